"""What the core sees of the music broker: its hooks."""

from __future__ import annotations

from scale0_core.api import BrokerContext, PluginInfo, Service, hookimpl
from scale0_musicquest.broker.settings import MusicBrokerSettings
from scale0_musicquest.service.broker.service import MusicBroker


class MusicBrokerPlugin:
    """The music broker in one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="Zen Music Quest's broker: knows all servers and gives each client one, each server its place",
            api=(2, 2),
            settings=MusicBrokerSettings,
        )

    @hookimpl
    def scale0_services(self, settings: MusicBrokerSettings, context: BrokerContext) -> list[Service]:
        """Make the one service of this plugin."""
        servers, clients = (
            [context.address(address) for address in addresses]
            for addresses in (settings.bind_servers, settings.bind_clients)
        )
        return [MusicBroker(settings, servers, clients)]
