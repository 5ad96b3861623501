"""What the core sees of this plugin: its hooks."""

from __future__ import annotations

from pathlib import Path

from scale0_core.api import BrokerContext, PluginInfo, Service, hookimpl
from scale0_core.api import journal as journals
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings

BY_NAME = "ipc://@/zpipes/{name}"
ALIAS = "ipc://@/zpipes/local"
RESERVED = 4
"""One part in so many of a segment is reserved on the disk for noting what was read."""


class ZpipesPlugin:
    """The pipes of one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(
            summary="named pipes: several writers, one reader, in memory or on disk",
            api=(2, 2),
            settings=ZpipesSettings,
            safe_by_default=True,
        )

    @hookimpl
    def scale0_services(self, settings: ZpipesSettings, context: BrokerContext) -> list[Service]:
        """Make the one service of this plugin."""
        bind = [context.address(address) for address in settings.bind]
        if settings.alias and context.name == "default" and BY_NAME in settings.bind:
            bind.append(ALIAS)
        journal = None
        if settings.durable:
            # the folder is made when the journal is opened, in a job
            disk, size = journals.FolderDisk(Path(context.data_dir) / "zpipes"), settings.segment_bytes
            journal = Journal(disk, size, reserve_bytes=size // RESERVED)
        return [ZpipesService(settings, bind, journal)]
