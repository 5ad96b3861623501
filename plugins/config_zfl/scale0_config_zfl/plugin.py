"""What the core sees of this plugin: its hooks. The format itself is found by the group scale0.formats."""

from __future__ import annotations

from scale0_config_zfl.format import FORMAT
from scale0_core.api import PluginInfo, hookimpl


@hookimpl
def scale0_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary=f"reads and writes configurations as {FORMAT.name}", api=(1, 1), safe_by_default=True)
