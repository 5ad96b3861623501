"""From what a user says to a dialog: names, addresses, identities, stored configurations."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scale0_core.client.brokers import Place, Route, frontend_address
from scale0_core.client.frontend import Frontend
from scale0_core.client.session import Session, Task
from scale0_core.client.storage import ConfigFile, default_config_dir, program_name
from scale0_core.protocol.messages import LONGEST_IDENTITY

ConfigDir = str | Path | None

LARGEST_WINDOW = 10_000


def frontend_for(
    broker: str, *, identity: str | None, retries: int, config_dir: ConfigDir, config_type: str
) -> Frontend:
    """Make the dialog of a client."""
    address = frontend_address(broker, os.environ)
    name = _identity(identity)
    file = ConfigFile(_folder(config_dir), identity or f"client-{program_name()}", address)
    return Frontend(
        Route(Place(address)), identity=name, config_type=config_type.upper(), stored=file.load(name), retries=retries,
        store=file.save,
    )  # fmt: skip


def session_for(
    broker: str, *, backend: str | None, identity: str | None, window: int, interval: float,
    metadata: Mapping[str, str], config_dir: ConfigDir, config_type: str,
    begin: Callable[[Task], None], changed: Callable[[], None],
) -> Session:  # fmt: skip
    """Make the dialog of a worker."""
    address = frontend_address(broker, os.environ)
    name = _identity(identity)
    file = ConfigFile(_folder(config_dir), identity or f"worker-{program_name()}", address)
    return Session(
        Route(Place(address, backend or "")), identity=name, begin=begin, changed=changed, wall_time=time.time,
        window=window, interval=interval, metadata=metadata, config_type=config_type.upper(),
        stored=file.load(name), store=file.save,
    )  # fmt: skip


def check_worker(concurrency: int, prefetch: int, heartbeat_interval: float) -> None:
    """Raise what is wrong with the numbers given to a worker."""
    if concurrency < 1 or prefetch < 0 or concurrency + prefetch > LARGEST_WINDOW:
        raise ValueError(f"a worker takes 1 to {LARGEST_WINDOW} tasks: {concurrency} and {prefetch} in advance")
    if not 0 < heartbeat_interval <= 86_400:
        raise ValueError(f"a heartbeat interval is longer than nothing, at most a day: {heartbeat_interval}")


def _folder(config_dir: ConfigDir) -> Path:
    return default_config_dir(os.environ) if config_dir is None else Path(config_dir)


def _identity(identity: str | None) -> str:
    """Give the identity; without one, a new one that says where it runs and is like no other."""
    if identity is None:
        return f"{program_name()[:80]}-{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
    if not 0 < len(identity.encode()) <= LONGEST_IDENTITY:
        raise ValueError(f"an identity has 1 to {LONGEST_IDENTITY} bytes: {identity!r}")
    return identity
