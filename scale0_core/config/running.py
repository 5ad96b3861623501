"""Which brokers run on this machine: each keeps a record of itself where every command and client finds it.

The record is the file ``broker.json`` in the broker's folder below one of two places: the user's own, or the one of the
machine's services. The broker holds a lock on it as long as it runs, so a record without a lock is stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs

from scale0_core.config.folders import default_runtime_dir
from scale0_core.config.structure import structure
from scale0_core.logs import printable
from scale0_core.parts.files import new_file
from scale0_core.parts.records import from_json

SERVICES = "/run/scale0"
"""The place of the machine's services; $SCALE0_RUN_DIR names another one."""

FILE = "broker.json"
MOST_BYTES = 1_000_000
READABLE = 0o644
"""Who may read a record is up to its folder, as with the sockets."""

Addresses = Mapping[str, Mapping[str, tuple[str, ...]]]


@attrs.frozen(kw_only=True)
class BrokerRecord:
    """A broker that runs, as it describes itself."""

    name: str
    pid: int
    since: str
    state: str
    config: str
    """Its configuration file; empty for the embedded defaults."""
    runtime_dir: str
    data_dir: str
    addresses: Addresses
    """Where its sockets are: by service, then by socket."""

    def is_at(self, broker: str) -> bool:
        """Return whether this broker is meant by a name, or by the address of one of its sockets."""
        bound = (places for sockets in self.addresses.values() for places in sockets.values())
        return broker == self.name or any(broker in places for places in bound)


class RecordFile:
    """The record of one broker: written whole or not at all, locked until it is removed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock: int | None = None

    def write(self, record: BrokerRecord) -> None:
        """Write the record in place of the one before; raise an OSError if that is not possible."""
        with new_file(self._path, durable=False, mode=READABLE) as file:
            lock = os.dup(file.fileno())
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anybody can see it
            file.write(json.dumps(attrs.asdict(record), indent=2).encode())
        self._unlock()
        self._lock = lock

    def remove(self) -> None:
        """Remove the record, if it was written."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def record_folder(name: str, runtime_dir: str, environment: Mapping[str, str]) -> Path:
    """Return where a broker keeps its record: its runtime folder, if a place has it by its name, or the user's."""
    own, services = _places(environment)
    folder = Path(runtime_dir)
    in_services = folder.parent.resolve() == services.resolve() and folder.name == name
    return folder if in_services else own / name


def running_brokers(environment: Mapping[str, str]) -> tuple[list[BrokerRecord], list[str]]:
    """List the brokers that run, and the reasons why records cannot be used, each with its path."""
    records: dict[str, BrokerRecord] = {}
    problems: list[str] = []
    own, services = _places(environment)
    for place, owners in ((own, {0, os.getuid()}), (services, None)):
        try:
            _check_place(place)
            folders = sorted(place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {_reason(error)}")
            continue
        for folder in folders:
            try:
                record = _read(folder / FILE, owners)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{folder / FILE}: {_reason(error)}")
            else:
                if record is None:
                    continue
                if record.name == folder.name:
                    records.setdefault(record.name, record)
                else:  # whoever has one folder could take over the name of any broker
                    problems.append(f"{folder / FILE}: it is of a broker {printable(record.name)}")
    return [records[name] for name in sorted(records)], problems


def _places(environment: Mapping[str, str]) -> tuple[Path, Path]:
    return default_runtime_dir("", environment), Path(environment.get("SCALE0_RUN_DIR") or SERVICES)


def _check_place(place: Path) -> None:
    """Raise a ValueError if somebody else could have put records there."""
    about = place.stat()
    if about.st_uid not in (0, os.getuid()) or about.st_mode & 0o022:
        raise ValueError("another user owns it or may write to it")


def _read(path: Path, owners: Collection[int] | None) -> BrokerRecord | None:
    """Return a record, None if it is stale; raise a ValueError if it is damaged or not of one of the owners."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        about = os.fstat(file.fileno())
        if owners is not None and about.st_uid not in owners:
            raise ValueError("it belongs to another user")
        text = file.read(MOST_BYTES) if stat.S_ISREG(about.st_mode) else b""
    try:
        record, faults = structure(BrokerRecord, from_json(text), "")
    except ValueError as error:
        raise ValueError(f"it is damaged: {error}") from error
    if record is None:
        raise ValueError(f"it is damaged: {faults[0]}")
    return record


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
