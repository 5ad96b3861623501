"""What the core sees of the music server: its hooks."""

from __future__ import annotations

import secrets
from pathlib import Path
from weakref import WeakValueDictionary

import attrs

from scale0_core.api import BrokerContext, PluginInfo, RunningBroker, Service, hookimpl
from scale0_musicquest.server.service import NAME, MusicServer
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.shelf import Shelf

LONGEST_NAME = 40

_MADE: WeakValueDictionary[str, MusicServer] = WeakValueDictionary()
"""The servers of this process, by the name of their broker: they are told their addresses when these are open."""


@hookimpl
def scale0_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="a server of Zen Music Quest: songs from a folder, searched for in a tree of servers",
        api=(1, 1),
        settings=MusicServerSettings,
    )


@hookimpl
def scale0_services(settings: MusicServerSettings, context: BrokerContext) -> list[Service]:
    """Make the one service of this plugin."""
    settings = attrs.evolve(
        settings,
        clients=tuple(map(context.address, settings.clients)),
        children=tuple(map(context.address, settings.children)),
    )
    state = Path(context.data_dir) / NAME
    songs = Shelf(_folder(settings.music, context), state / "songs", settings.replica_bytes)
    adverts = Shelf(_folder(settings.adverts, context), state / "adverts", 0) if settings.adverts else None
    # for people the broker's name; the rest tells this start from the one before, and from a namesake elsewhere
    ident = f"{context.name[:LONGEST_NAME]}-{secrets.token_hex(4)}"
    server = _MADE[context.name] = MusicServer(settings, ident, songs, adverts)
    return [server]


@hookimpl
def scale0_started(broker: RunningBroker) -> None:
    """Tell the server where it is reached, since a port may have been left to the system."""
    server = _MADE.get(broker.name)
    addresses = broker.addresses.get(NAME)
    if server is not None and addresses:
        server.serves_at(addresses["clients"][0], addresses["children"][0])


def _folder(template: str, context: BrokerContext) -> Path:
    return Path(context.address(template.replace("{data}", context.data_dir))).expanduser()
