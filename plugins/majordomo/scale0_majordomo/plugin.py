"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

from pathlib import Path

from scale0_core.api import BrokerContext, PluginInfo, Service, hookimpl
from scale0_majordomo.service.bridge import OWN_BROKER, Bridge
from scale0_majordomo.service.bridged import BridgedMajordomo
from scale0_majordomo.service.majordomo import MajordomoService
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.settings import MajordomoSettings


class MajordomoPlugin:
    """The Majordomo service of one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="requests to workers by the name of a service: MDP 0.1 and 0.2",
            api=(2, 2),
            settings=MajordomoSettings,
            safe_by_default=True,
        )

    @hookimpl
    def scale0_services(self, settings: MajordomoSettings, context: BrokerContext) -> list[Service]:
        """Make the one service of this plugin."""
        # the file is made when it is opened, in a job
        store = Store(Path(context.data_dir) / "majordomo" / "titanic.sqlite") if settings.titanic else None
        bind = [context.address(address) for address in settings.bind]
        if not settings.bridge:
            return [MajordomoService(settings, bind, store, group=context.group)]
        frontend, backend = (
            context.address(place or OWN_BROKER) for place in (settings.bridge_frontend, settings.bridge_backend)
        )
        bridge = Bridge(f"{context.name}.majordomo", frontend, backend)
        return [BridgedMajordomo(settings, bind, store, bridge, context.registry, group=context.group)]
