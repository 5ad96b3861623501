"""What the core sees of the music server: its hooks."""

from __future__ import annotations

import secrets
from pathlib import Path

import attrs

from scale0_core.api import BrokerContext, PluginInfo, RunningBroker, Service, hookimpl
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.service import NAME, MusicServer
from scale0_musicquest.service.server.shelf import Shelf

LONGEST_NAME = 40


class MusicServerPlugin:
    """The music server in one broker."""

    def __init__(self) -> None:
        self._server: MusicServer | None = None

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="a server of Zen Music Quest: songs from a folder, searched for in a tree of servers",
            api=(2, 2),
            settings=MusicServerSettings,
        )

    @hookimpl
    def scale0_services(self, settings: MusicServerSettings, context: BrokerContext) -> list[Service]:
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
        self._server = MusicServer(settings, ident, songs, adverts)
        return [self._server]

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        """Tell the server where it is reached, since a port may have been left to the system."""
        addresses = broker.addresses.get(NAME)
        if self._server is not None and addresses:
            self._server.serves_at(addresses["clients"][0], addresses["children"][0])


def _folder(template: str, context: BrokerContext) -> Path:
    return Path(context.address(template.replace("{data}", context.data_dir))).expanduser()
