"""Which folders a broker uses; making them is the broker's own work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from scale0_core.config.settings import BrokerSettings
from scale0_core.plugin_types import BrokerContext


def default_runtime_dir(name: str, environment: Mapping[str, str]) -> Path:
    """Give the folder for a broker's sockets: in $XDG_RUNTIME_DIR, else in the temporary folder under the user's id."""
    base = environment.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "scale0" / name
    # not tempfile.gettempdir(), which tries folders by writing to them: a client and its broker must find the same one
    temporary = Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108  the broker insists that its own folder is private
    return temporary / f"scale0-{os.getuid()}" / name


def default_data_dir(name: str, environment: Mapping[str, str]) -> Path:
    """Give the folder for what must survive a restart: in $XDG_STATE_HOME, else in the home folder."""
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "scale0" / name


def broker_context(broker: BrokerSettings, environment: Mapping[str, str]) -> BrokerContext:
    """Make the context that a broker with these settings gives its plugins."""
    return BrokerContext(
        name=broker.name,
        runtime_dir=broker.runtime_dir or str(default_runtime_dir(broker.name, environment)),
        data_dir=broker.data_dir or str(default_data_dir(broker.name, environment)),
    )
