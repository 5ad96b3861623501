"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

import secrets

from scale0_core.api import BrokerContext, PluginInfo, Service, hookimpl
from scale0_discovery.service.discovery import DiscoveryService
from scale0_discovery.settings import DiscoverySettings


class DiscoveryPlugin:
    """The discovery service of one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="who offers which service, how it is doing, and what changes",
            api=(2, 2),
            settings=DiscoverySettings,
            safe_by_default=True,
        )

    @hookimpl
    def scale0_services(self, settings: DiscoverySettings, context: BrokerContext) -> list[Service]:
        """Make the one service of this plugin."""
        return [
            DiscoveryService(
                context.registry,
                settings,
                bind=[context.address(address) for address in settings.bind],
                watch=[context.address(address) for address in settings.watch],
                epoch=secrets.token_hex(8),
            )
        ]
