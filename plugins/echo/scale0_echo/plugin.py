"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

from scale0_core.api import BrokerContext, PluginInfo, Service, hookimpl
from scale0_echo.service import EchoService
from scale0_echo.settings import EchoSettings


class EchoPlugin:
    """The echo service of one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="sends back what it gets, at once, later, or as a digest",
            api=(2, 2),
            settings=EchoSettings,
            safe_by_default=True,
        )

    @hookimpl
    def scale0_services(self, settings: EchoSettings, context: BrokerContext) -> list[Service]:
        """Make the one service of this plugin."""
        return [EchoService(settings, bind=[context.address(address) for address in settings.bind])]
