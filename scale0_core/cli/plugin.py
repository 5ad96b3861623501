"""``scale0 plugin``: make a plugin of your own."""

from __future__ import annotations

from pathlib import Path

import click

from scale0_core.cli import kit


@click.group()
def plugin() -> None:
    """Make a plugin of your own."""


@plugin.command()
@click.argument("name")
@click.option(
    "--dir", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Where; default ./scale0-NAME."
)
@click.option("--author", metavar="TEXT", help="Who made it.")
@click.option("--license", "licence", default="Apache-2.0", show_default=True, metavar="SPDX", help="Its licence.")
@kit.output_option
def new(name: str, folder: Path | None, author: str | None, licence: str) -> None:
    """Write a working plugin NAME: service, settings, command, tests, packaging.

    It is the echo plugin under another name, whose tests pass as they are; make it your own from there. NAME has small
    letters, digits and underscores. Nothing that exists is written over.
    """
    from scale0_core.cli import COMMANDS, plugin_commands, scaffold
    from scale0_core.plugins import installed_plugins

    scaffold.check_name(name, {*COMMANDS, *plugin_commands(), *installed_plugins()})
    folder = folder or Path(f"scale0-{scaffold.dist_of(name)}")
    files = scaffold.render(name, author or f"The developers of scale0-{scaffold.dist_of(name)}", licence)
    scaffold.write(folder, files)
    steps = [
        f"cd {folder}",
        'pip install -e ".[testing]"',
        "pytest",
        "scale0 plugins ls",
        "scale0 broker",
        f"scale0 {name} hello  # in another terminal",
    ]
    told = {"name": name, "folder": str(folder), "files": [path.as_posix() for path in files], "next": steps}
    kit.emit("scale0.plugin-new/1", told, show=lambda: click.echo("\n".join(str(folder / path) for path in files)))
    if kit.output_format() == "table":
        kit.say("\nNext:\n  " + "\n  ".join(steps))
