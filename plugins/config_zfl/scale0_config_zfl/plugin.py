"""What the core sees of this plugin: its hooks. The format itself is found by the group scale0.formats."""

from __future__ import annotations

from scale0_core.api import PluginInfo, hookimpl


class ZflPlugin:
    """Reads and writes configurations as ZFL."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(summary="reads and writes configurations as ZFL", api=(2, 2), safe_by_default=True)
