"""Reading broker.toml, the command line's overrides included."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from scale0_core.config.addresses import network_faults
from scale0_core.config.settings import CoreSettings
from scale0_core.config.structure import nearest, shown, structure
from scale0_core.errors import ConfigError, Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_FILE = "broker.toml"
EMBEDDED = "embedded defaults"


@attrs.frozen
class BrokerConfig:
    """One broker.toml as read: the core's settings, and the tables of the plugins, not looked at yet."""

    source: str
    core: CoreSettings
    plugin_tables: Mapping[str, Any]
    path: Path | None = None
    overrides: tuple[str, ...] = ()
    text: bytes = attrs.field(default=b"", repr=False, eq=False)
    """The file as it was read."""

    def read_again(self) -> BrokerConfig:
        """Read the same file with the same overrides as it is now."""
        return read_config(self.path, self.overrides)


def find_config(given: str | None, environment: Mapping[str, str]) -> Path | None:
    """Give the file to read: the one given, $SCALE0_CONFIG, or broker.toml here; None for the embedded defaults."""
    if given or environment.get("SCALE0_CONFIG"):
        return Path(given or environment["SCALE0_CONFIG"])
    here = Path(DEFAULT_FILE)
    return here if here.exists() else None


def read_config(path: Path | None, overrides: Iterable[str] = ()) -> BrokerConfig:
    """Read a configuration and lay ``table.key=value`` overrides over it; a ConfigError lists all faults."""
    source = EMBEDDED if path is None else str(path)
    overrides = tuple(overrides)
    text = b"" if path is None else _read(path)
    tree, faults = _tree(path, text, overrides)
    plugin_tables = tree.pop("plugin", {})
    faults += _table_faults(plugin_tables)
    core, core_faults = structure(CoreSettings, tree, "")
    faults += core_faults + network_faults(tree.get("network"))
    if core is None or faults:
        raise ConfigError(source, tuple(faults))
    return BrokerConfig(source, core, plugin_tables, path, overrides, text)


def read_tree(path: Path | None, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], list[Fault]]:
    """Read the tables of a file with overrides laid over them, unchecked, and list the overrides that are wrong."""
    return _tree(path, b"" if path is None else _read(path), overrides)


def _tree(path: Path | None, text: bytes, overrides: Iterable[str]) -> tuple[dict[str, Any], list[Fault]]:
    tree = {} if path is None else _parse(path, text)
    faults = [fault for override in overrides if (fault := _override(tree, override))]
    return tree, faults


def unknown_tables(tables: Mapping[str, Any], known: Iterable[str]) -> list[Fault]:
    """List the tables [plugin.NAME] that belong to no plugin."""
    names = set(known)
    return [
        Fault(f"plugin.{name}", "no plugin of that name is installed", nearest(name, names))
        for name in tables
        if name not in names
    ]


def unknown_levels(levels: Mapping[str, Any], known: Iterable[str]) -> list[Fault]:
    """List the levels in [log.levels] that belong to no plugin."""
    names = set(known)
    return [
        Fault(f"log.levels.{name}", "no plugin of that name is installed", nearest(name, names))
        for name in levels
        if name not in names
    ]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(str(path), (Fault(str(path), f"cannot be read: {error.strerror}"),)) from error
    except ValueError as error:  # a path that no file can have
        raise ConfigError(str(path), (Fault(str(path), f"cannot be read: {error}"),)) from error


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = tomllib.loads(text.decode())
        return tree
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number or a nesting beyond Python's limits
        raise ConfigError(str(path), (Fault(str(path), f"is not TOML: {error}"),)) from error


def _table_faults(tables: object) -> list[Fault]:
    if not isinstance(tables, Mapping):
        return [Fault("plugin", f"must hold tables such as [plugin.echo], not {shown(tables)}")]
    return [
        Fault(f"plugin.{name}", f"must be a table, not {shown(table)}")
        for name, table in tables.items()
        if not isinstance(table, Mapping)
    ]


def _override(tree: dict[str, Any], override: str) -> Fault | None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) < 2:
        return Fault(f"--set {override}", "must look like table.key=value", "for example wire.batch=64")
    table = tree
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return Fault(f"--set {override}", f"{part} is not a table")
    table[parts[-1]] = _value(text.strip())
    return None


def _value(text: str) -> Any:
    """Read a TOML value; a bare word is a string, so that the shell needs no second quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
