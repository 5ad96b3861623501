"""Configurations from one format into another, always through the schema: what is not valid is not converted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from scale0_core.config.files import EMBEDDED, find_config
from scale0_core.config.formats import MAX_BYTES, config_from_text, config_to_text
from scale0_core.config.network import ClientConfig, NetworkConfig
from scale0_core.config.settings import CoreSettings
from scale0_core.config.structure import structure
from scale0_core.config.tree import seed_names
from scale0_core.errors import ConfigDataError, Fault, FormatError, UsageError
from scale0_core.plugins import load_format

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMAS: Mapping[str, type[Any]] = {"network": NetworkConfig, "client": ClientConfig}
EXTENSIONS = {".toml": "TOML", ".json": "JSON", ".xml": "XML", ".zfl": "ZFL", ".zpl": "ZFL"}
TOML = "TOML"


@attrs.frozen
class Source:
    """A text that is to be converted, where it came from, and what format it has."""

    name: str
    data: bytes
    format: str


def source_of(file: str | None, format_name: str | None, schema: str) -> Source:
    """Read what is to be converted: a file, - for stdin, or by default the file that a broker would read."""
    if file is None and schema != "network":
        raise UsageError(f"which {schema} configuration?", "no FILE was given", "nothing was done", "name one, or -")
    if file == "-":
        return Source("stdin", sys.stdin.buffer.read(MAX_BYTES + 1), _format_of(Path("stdin"), format_name))
    path = find_config(file, os.environ)
    if path is None:
        return Source(EMBEDDED, b"", TOML)
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(str(path), [Fault(str(path), f"cannot be read: {error.strerror}")]) from error
    return Source(str(path), data, _format_of(path, format_name))


def convert(source: Source, schema: str, to: str) -> bytes:
    """Give the configuration in another format; a ConfigDataError lists all that is wrong with it."""
    # loaded first: a format that is missing matters more than what is wrong in the text
    reader = None if source.format == TOML else load_format(source.format)
    writer = None if to.upper() == TOML else load_format(to)
    cls = SCHEMAS[schema]
    try:
        if reader is None:
            config, faults = structure(cls, _toml_table(source.data, schema), schema)
        else:
            config, faults = config_from_text(reader, source.data, cls, schema)
    except FormatError as error:
        raise _refused(source.name, [_fault_of(error, source.format)]) from error
    if config is None:
        raise _refused(source.name, faults)
    try:
        return _toml(config, schema) if writer is None else config_to_text(writer, config, schema)
    except FormatError as error:
        raise _refused(
            source.name, [_fault_of(error, to.upper())], "choose another format, or change the value"
        ) from error


def _format_of(path: Path, given: str | None) -> str:
    name = given.upper() if given else EXTENSIONS.get(path.suffix.lower())
    if name is None:
        raise UsageError(
            f"which format has {path}?",
            f"only the endings {', '.join(EXTENSIONS)} tell",
            "nothing was converted",
            "say it with --from, as in --from json",
        )
    return name


def _toml_table(data: bytes, schema: str) -> Any:
    """Give the table of that name, the file itself when it has no tables of a broker, or nothing: all is default."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"the text has more than {MAX_BYTES} bytes")
    try:
        tree = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number or a nesting beyond Python's limits
        raise FormatError(str(error)) from error
    if schema in tree:
        table = tree[schema]
    else:
        tables = {field.name for field in attrs.fields(CoreSettings)} | {"plugin"}
        table = {} if tables & set(tree) else tree
    return seed_names(table) if isinstance(table, Mapping) else table


def _toml(config: Any, schema: str) -> bytes:
    import tomli_w

    table = attrs.asdict(config, filter=lambda _, value: value is not None)
    try:
        return tomli_w.dumps({schema: table}).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{error.object[error.start]!a} is no character of UTF-8") from error


def _fault_of(error: FormatError, format_name: str) -> Fault:
    return Fault(format_name if error.line is None else f"{format_name}, line {error.line}", error.reason)


def _refused(
    source: str, faults: list[Fault], remedy: str = "mend the places named, then try again"
) -> ConfigDataError:
    return ConfigDataError(source, tuple(faults), "nothing was converted", remedy)
