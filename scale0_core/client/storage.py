"""The configuration that a client is given: reading its text, and keeping it for the next start."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from scale0_core.config.network import ClientConfig
from scale0_core.config.structure import structure
from scale0_core.config.tree import seed_names
from scale0_core.errors import Scale0Error
from scale0_core.logs import get_logger
from scale0_core.parts import records
from scale0_core.parts.files import write_atomically
from scale0_core.protocol.messages import LONGEST_OPTIONS, Message
from scale0_core.protocol.options import Version

LOG = get_logger("client")

JSON = "JSON"


@attrs.frozen
class Stored:
    """A configuration with its version, as a broker gave it."""

    version: Version
    config: ClientConfig | None = None
    hash: str = ""


def other_type(offered: object) -> str:
    """Choose a type of configurations that a broker offers and that can be read here; empty when there is none."""
    here = {JSON, *(entry.name for entry in metadata.entry_points(group="scale0.formats"))}
    types = offered if isinstance(offered, list) else []
    return next((kind for kind in types if isinstance(kind, str) and kind in here), "")


def read_config(message: Message) -> Stored | None:
    """Read a CONFIG message; without a text that can be read there is still the version."""
    version = message.options.get("config_version")
    if not isinstance(version, int | str) or isinstance(version, bool):
        return None
    digest = message.options.get("config_hash", "")
    text = bytes(message.body[0]) if message.body else b""
    config = _read_text(str(message.options.get("config_type", JSON)), text)
    return Stored(version, config, digest if isinstance(digest, str) else "")


def _read_text(kind: str, text: bytes) -> ClientConfig | None:
    try:
        if kind.upper() == JSON:
            # most clients need no plugin at all: JSON comes with Python
            config, faults = _structured(records.from_json(text))
        else:
            from scale0_core.config.formats import config_from_text
            from scale0_core.plugins import load_format

            config, faults = config_from_text(load_format(kind), text, ClientConfig, "client")
    except (ValueError, RecursionError, Scale0Error) as error:
        LOG.warning("the configuration cannot be read", config_type=kind, error=str(error))
        return None
    if faults:
        LOG.warning("the configuration cannot be used", faults="; ".join(map(str, faults)))
    return config


def _structured(table: Any) -> tuple[ClientConfig | None, list[Any]]:
    inner = table.get("client", table) if isinstance(table, dict) else table
    return structure(ClientConfig, seed_names(inner) if isinstance(inner, dict) else inner, "client")


class ConfigFile:
    """Where one client keeps its configuration; what cannot be read counts as none, and a full disk is no error."""

    def __init__(self, folder: Path, key: str, address: str) -> None:
        # equal versions of different brokers are different configurations: each broker has a file of its own
        place = hashlib.sha256(address.encode()).hexdigest()[:12]
        name = quote(key, safe="")
        if len(name) > 150:
            name = f"{name[:100]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.path = folder / f"{name}@{place}.json"
        self._address = address

    def load(self, identity: str) -> Stored | None:
        """Give what was kept."""
        try:
            with self.path.open("rb") as file:
                record = records.object_from(file.read(16 * LONGEST_OPTIONS))
            version = record["version"]
            config, faults = _structured(record["config"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            LOG.warning("the stored configuration cannot be read", path=str(self.path), error=repr(error))
            return None
        if faults or config is None or record.get("broker") != self._address or type(version) not in (int, str):
            return None
        return Stored(version, attrs.evolve(config, identity=identity), str(record.get("hash", "")))

    def save(self, stored: Stored) -> None:
        """Keep a configuration; the file is there whole or not at all."""
        if stored.config is None:
            return
        record = {
            "broker": self._address,
            "version": stored.version,
            "hash": stored.hash,
            "config": attrs.asdict(stored.config),
        }
        try:
            write_atomically(self.path, json.dumps(record, indent=2), durable=False)
        except OSError as error:
            LOG.warning("the configuration cannot be stored", path=str(self.path), error=repr(error))


def default_config_dir(environment: Mapping[str, str]) -> Path:
    """Give the folder for stored configurations: in $XDG_CACHE_HOME, else in the home folder."""
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "scale0" / "clients"


def program_name() -> str:
    """Give the name of the running program, for clients that were given no identity."""
    name = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "python"
