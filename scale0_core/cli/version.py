"""``scale0 version``: which versions of everything are in use."""

from __future__ import annotations

import platform
from typing import Any

import click

from scale0_core.cli import kit


@click.command()
@kit.output_option
def version() -> None:
    """Say which versions of everything are in use."""
    from scale0_core.plugins import installed_plugins

    about = versions()
    plugins = {plugin.distribution: plugin.version for plugin in installed_plugins().values()}
    kit.emit("scale0.version/1", {**about, "plugins": plugins}, show=lambda: _show({**about, **plugins}))


def versions() -> dict[str, Any]:
    """Give the versions of the core and of what it stands on."""
    import zmq

    from scale0_core import __version__
    from scale0_core.io.wire import choose_wire
    from scale0_core.plugin_types import API_VERSION

    return {
        "scale0": __version__,
        "api": API_VERSION,
        "wire": choose_wire("auto").name,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
    }


def _show(fields: dict[str, Any]) -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        click.echo(f"{name:{width}}  {value}")
