"""The command ``scale0``.

This module imports click and nothing else, and each sub-command is imported when it is called: so ``scale0 --help``
and the completion of the shell stay quick, however many plugins are installed, and a plugin whose command cannot be
imported does not stand in the way of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from click.shell_completion import CompletionItem

PLUGIN_COMMANDS = "scale0.commands"
"""The group of entry points under which plugins offer commands: the command's name = module:click_command."""

COMMANDS = {
    "broker": ("scale0_core.cli.broker:broker", "Run a broker in the foreground; TERM or INT ends it."),
    "call": ("scale0_core.cli.work:call", "Call a service and write its reply."),
    "clients": ("scale0_core.cli.manage:clients", "List the clients of a running broker."),
    "completion": ("scale0_core.cli.completion:completion", "Print the completion script of a shell."),
    "config": ("scale0_core.cli.config:config", "Check or show the configuration."),
    "disable": ("scale0_core.cli.manage:disable", "Have a broker answer nothing but enable."),
    "doctor": ("scale0_core.cli.doctor:doctor", "Look at this machine and say what is wrong."),
    "enable": ("scale0_core.cli.manage:enable", "Have a disabled broker answer again."),
    "errors": ("scale0_core.cli.errors:errors", "Explain error codes and exit codes."),
    "kick": ("scale0_core.cli.manage:kick", "Disconnect a worker by its identity."),
    "password": ("scale0_core.cli.manage:password", "Make the hash of a password for network.users."),
    "plugin": ("scale0_core.cli.plugin:plugin", "Make a plugin of your own."),
    "plugins": ("scale0_core.cli.plugins:plugins", "List, show and diagnose installed plugins."),
    "ps": ("scale0_core.cli.ps:ps", "List the brokers that run on this machine."),
    "reload": ("scale0_core.cli.manage:reload", "Have a broker read its configuration again."),
    "serve": ("scale0_core.cli.work:serve", "Offer a service by running a command for each task."),
    "services": ("scale0_core.cli.manage:services", "List the services of a running broker."),
    "silenced": ("scale0_core.cli.manage:silenced", "List or forgive connections that are met with silence."),
    "status": ("scale0_core.cli.manage:status", "Show the state of a running broker."),
    "version": ("scale0_core.cli.version:version", "Say which versions of everything are in use."),
}
"""The core's own commands: where each is, and the line that stands in the list."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names of all commands, the core's and the plugins'."""
        return sorted({*COMMANDS, *plugin_commands()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command. The core's own come first: a plugin cannot take their names."""
        if cmd_name in COMMANDS:
            return _imported(COMMANDS[cmd_name][0])
        entry = plugin_commands().get(cmd_name)
        return None if entry is None else plugin_command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was called; one that does not exist is answered with the nearest that does."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or name in COMMANDS or name in plugin_commands():
            return super().resolve_command(ctx, args)
        from scale0_core.config.structure import nearest
        from scale0_core.errors import UsageError

        raise UsageError(
            f"there is no command {name}",
            nearest(name, self.list_commands(ctx)),
            "nothing was done",
            "scale0 --help lists all commands",
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, in which those of plugins have a part of their own."""
        plugins = _summaries()
        for title, rows in (("Commands", [(name, line) for name, (_, line) in COMMANDS.items()]), ("Plugins", plugins)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names without importing the commands."""
        from click.shell_completion import CompletionItem

        known = [*((name, line) for name, (_, line) in COMMANDS.items()), *_summaries()]
        names = [CompletionItem(name, help=line) for name, line in known if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def plugin_commands() -> dict[str, EntryPoint]:
    """Find the commands of plugins by name, without importing any."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=PLUGIN_COMMANDS) if entry.name not in COMMANDS}


def plugin_command(entry: EntryPoint) -> click.Command:
    """Import the command of a plugin; a PluginError says why that cannot be done."""
    from scale0_core.errors import PluginContractError, PluginImportError

    consequence = "this command cannot be used; the others are not affected"
    try:
        command = entry.load()
    except (Exception, SystemExit) as error:
        raise PluginImportError(
            entry.name,
            f"the command {entry.name} cannot be imported",
            f"{entry.value}: {type(error).__name__}: {error}",
            consequence,
            f"scale0 plugins doctor {entry.name}",
        ) from error
    if not isinstance(command, click.Command):
        raise PluginContractError(
            entry.name,
            f"the command {entry.name} is not a command",
            f"{entry.value} is {type(command).__name__}, not a click command",
            consequence,
            f"mend the entry point {entry.name} in the group {PLUGIN_COMMANDS}",
        )
    return command


def _imported(place: str) -> click.Command:
    from importlib import import_module

    module, _, attribute = place.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


def _summaries() -> list[tuple[str, str]]:
    """Give the names of the plugins' commands and what each plugin's distribution says of itself in one line."""
    return sorted((name, _summary(entry)) for name, entry in plugin_commands().items())


def _summary(entry: EntryPoint) -> str:
    # the header of the file is enough; parsing it all as a message costs more than the rest of --help
    about = (entry.dist.read_text("METADATA") or "") if entry.dist is not None else ""
    return next((line[9:] for line in about.splitlines() if line.startswith("Summary: ")), "")


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from scale0_core import __version__

        click.echo(f"scale0 {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Say the version and end.",
)
@click.option(
    "--debug", is_flag=True, expose_value=False, envvar="SCALE0_DEBUG", help="Show a traceback when something fails."
)
def scale0() -> None:
    """Scale0 is a broker container for ZeroMQ services.

    Data goes to stdout and everything else to stderr; -o json gives data for machines. Exit codes: see scale0 errors.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = scale0.main(args=given, prog_name="scale0", standalone_mode=False, color=color)
        sys.stdout.flush()  # here, not at the interpreter's end, where a closed pipe could no longer be handled
    except (Exception, KeyboardInterrupt) as error:
        from scale0_core.cli.failures import report

        code = report(error, given)
    sys.exit(code if isinstance(code, int) else 0)
