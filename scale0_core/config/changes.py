"""What is different in a configuration that was read again: which settings, and whether the file is whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from scale0_core.config.files import BrokerConfig

AT_START = frozenset(
    f"network.{name}"
    for name in (
        "bind_address",
        "frontend_port",
        "backend_port",
        "config_pub_port",
        "config_sub_ports",
        "peers",
        "state",
    )
)
"""Settings of the network that count when a broker starts, and not before."""

AT_START_AS_WELL = frozenset({"network.identity", "network.group"})
"""Settings that the broker goes by at once, and the services of plugins when it starts."""


@attrs.frozen
class Changes:
    """Settings that are different, by their names: those in force now, and those that a restart puts into force."""

    applied: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def changes(started: BrokerConfig, running: BrokerConfig, new: BrokerConfig) -> Changes:
    """Compare a configuration with the one in force and, for what counts at start, with that of the start."""
    applied = [key for key in _different(running, new) if key.startswith("network.") and key not in AT_START]
    waiting = _different(started, new)
    restart = [key for key in waiting if not key.startswith("network.") or key in AT_START | AT_START_AS_WELL]
    return Changes(tuple(applied), tuple(restart))


def why_not_whole(old: bytes, new: bytes) -> str:
    """Return why a file seems to have lost a part since it was read; empty if it does not.

    A file that is being written is empty, or ends somewhere: in the middle of a line, or of what it was before.
    """
    before, now = old.strip(), new.strip()
    if before and not now:
        return "is empty, and was not when it was read before"
    if before != now and before.startswith(now):
        return f"is cut off: it ends after {len(new)} bytes of the {len(old)} that were read before"
    if now and old.endswith(b"\n") and not new.endswith(b"\n"):
        return "ends in the middle of a line, as a file does that is not written to its end"
    return ""


def _different(one: BrokerConfig, other: BrokerConfig) -> list[str]:
    old, new = _settings(one), _settings(other)
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def _settings(config: BrokerConfig) -> dict[str, Any]:
    return _flat({**attrs.asdict(config.core), "plugin": config.plugin_tables})


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found
