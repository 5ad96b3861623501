"""What the core sees of this plugin: its hooks. The format itself is found by the group scale0.formats."""

from __future__ import annotations

from scale0_core.api import PluginInfo, hookimpl


class JsonPlugin:
    """Reads and writes configurations as JSON."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(summary="reads and writes configurations as JSON", api=(2, 2), safe_by_default=True)
