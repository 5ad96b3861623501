"""Commands that ask a running broker, or change it: status, services, clients, enable, disable, reload, kick."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from scale0_core.cli import kit

PASSWORD = "SCALE0_PASSWORD"  # noqa: S105  the name of a variable
"""The environment variable that holds the password: never on the command line, where everybody can read it."""


def broker_options(command: kit.Command) -> kit.Command:
    """Give a command the options that say which broker is asked, and by whom."""
    for option in (
        click.option("--timeout", default=5.0, show_default=True, type=kit.Seconds(0.1), help="Seconds."),
        click.option("--user", metavar="NAME", help=f"Who asks; the password is taken from ${PASSWORD} or asked for."),
        kit.broker_option("-n", "--name", "--address"),
    ):
        command = option(command)
    return command


def request(command: str, arguments: Mapping[str, Any] | None = None, **who: Any) -> Any:
    """Send a management request and give what it answers."""
    from scale0_core.logs import printable
    from scale0_core.parts import records
    from scale0_core.protocol import messages as wire

    address = kit.address_at(who["broker"], "scale0", "management")
    options: dict[str, Any] = {"command": command, "args": dict(arguments or {})}
    if who["user"]:
        secret = os.environ.get(PASSWORD) or click.prompt("Password", hide_input=True, err=True)
        options |= {"auth_id": who["user"], "auth_password": secret}
    frames = (wire.FRONTEND, wire.MANAGEMENTREQ, wire.write_options(options))
    try:
        answer = kit.ask(address, frames, who["timeout"])
    except kit.TimedOutError as error:
        silent = "a disabled broker ignores all but: scale0 enable; and scale0 status of its owner on its own machine"
        raise kit.TimedOutError(error.problem.what, error.problem.why, error.problem.consequence, silent) from error
    with kit.understanding(address):
        reply = wire.read_message(tuple(answer), routed=False)
        code, reason = reply.options.get("code"), str(reply.options.get("message", ""))
        if code == 200:
            return records.from_json(reply.body[0]) if reply.body else None
        if not isinstance(code, int):
            raise ValueError(f"there is no code in {printable(reply.command)}")
    if code in (401, 403):
        fix = f"--user NAME, with the password in ${PASSWORD}; network.users says who may do what"
        raise NotAllowedError(f"{address} refuses {command}", f"{code}: {reason}", "nothing was done", fix)
    what, fix = f"{address} refuses {command}", f"scale0 errors {code}"
    raise kit.NegativeError(what, f"{code}: {reason}", "nothing was done", fix)


class NotAllowedError(kit.Scale0Error):
    """The broker does not let this user do that."""

    exit_code = kit.Exit.PERMISSION


@click.command()
@broker_options
@kit.output_option
def status(**who: Any) -> None:
    """Show the state of a running broker."""
    state = request("state", **who)
    counts = state.pop("counts")
    state["config_hash"] = state["config_hash"][:12]
    quarantined = state.pop("quarantined")
    state["quarantined"] = [row["service"] for row in quarantined]
    told = {**state, "counts": ", ".join(f"{key}: {value}" for key, value in counts.items() if value) or "-"}
    if kit.output_format() != "table":
        told |= {"counts": counts, "quarantined": quarantined}
    kit.emit("scale0.status/1", told)
    if state["state"] != "active":
        kit.finish(kit.Exit.NEGATIVE)


@click.command()
@broker_options
@kit.output_option
def services(**who: Any) -> None:
    """List the services of a running broker: those of workers and those of plugins."""
    rows = request("list_services", **who)
    names = (
        "service",
        "kind",
        "state",
        "workers",
        "idle",
        "waiting",
        "requests",
        "errors",
        "p50_ms",
        "p95_ms",
        "p99_ms",
    )
    kit.emit("scale0.services/1", rows, {name: name.replace("_", " ") for name in names})


@click.command()
@broker_options
@kit.output_option
def clients(**who: Any) -> None:
    """List the clients of a running broker: workers, and frontends that were active within the last minute."""
    rows = request("list_clients", **who)
    names = (
        "identity",
        "role",
        "state",
        "services",
        "open_tasks",
        "age_ms",
        "interval_ms",
        "config_version",
        "skew_ms",
    )
    kit.emit("scale0.clients/1", rows, {name: name.replace("_", " ") for name in names})


@click.command()
@click.option("--clear", is_flag=True, help="Forgive them.")
@click.option("--identity", default="", help="Only the one with this identity or connection.")
@broker_options
@kit.output_option
def silenced(clear: bool, identity: str, **who: Any) -> None:
    """List connections that broke the protocol too often and are met with silence (error_clients)."""
    if clear:
        kit.emit("scale0.silenced.cleared/1", request("clear_error_client", {"identity": identity}, **who))
        return
    rows = [row for row in request("list_error_clients", **who) if not identity or identity in row.values()]
    names = ("connection", "identity", "errors", "reason", "seconds_left")
    kit.emit("scale0.silenced/1", rows, {name: name.replace("_", " ") for name in names})


@click.command()
@click.argument("identity")
@broker_options
@kit.output_option
def kick(identity: str, **who: Any) -> None:
    """Disconnect the worker with this IDENTITY; it may come back."""
    kit.emit("scale0.kick/1", request("kick", {"identity": identity}, **who))


def _change(name: str, help_text: str) -> click.Command:
    """Make a command that sends one management request and shows its answer."""

    def run(**who: Any) -> None:
        kit.emit(f"scale0.{name}/1", request(name, **who))

    command: click.Command = click.command(name, help=help_text)(kit.output_option(broker_options(run)))
    return command


enable = _change("enable", "Have a disabled broker answer again.")
disable = _change(
    "disable",
    "Disable a broker and its services: it ignores everything except `enable` and, on its own machine, `status`; "
    "running tasks may finish.",
)


@click.command()
@click.option("--force", is_flag=True, help="Take a file that seems to be empty or cut off.")
@broker_options
@kit.output_option
def reload(force: bool, **who: Any) -> None:
    """Read the configuration again, and show what took effect and what needs a restart.

    A change of [network] becomes a new version. A file that is wrong, empty or cut off is refused, and the broker goes
    on as before.
    """
    told = request("reload_config", {"force": force}, **who)
    kit.emit("scale0.reload/1", told, show=lambda: _show_reload(told))


def _show_reload(told: Mapping[str, Any]) -> None:
    is_new = "" if told["changed"] else ", as before"
    click.echo(f"read {told['read']}: version {told['config_version']}{is_new}")
    for words, keys in (("in force now", told["took_effect"]), ("needs a restart", told["needs_restart"])):
        if keys:
            click.echo(f"{words}: {', '.join(keys)}")


@click.command()
def password() -> None:
    """Make the hash of a password for network.users; the password is asked for, or read from stdin."""
    import secrets

    from scale0_core.network.passwords import hash_password

    if sys.stdin.isatty():
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        secret = sys.stdin.readline().rstrip("\n")
    if not secret:
        raise kit.UsageError("there is no password", "the line is empty", "nothing was written", "type one")
    click.echo(hash_password(secret, secrets.token_bytes(16)))
