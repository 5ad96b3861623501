"""The command `scale0 discovery`: ask for services from a shell, and watch them."""
# does I/O: it is an application

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from scale0_core.api import records
from scale0_core.cli import kit

FIX = "start a broker with the plugin discovery: scale0 broker; or choose one: --broker NAME|ADDRESS"
COLUMNS = {
    "service": "service", "provider": "provider", "kind": "kind", "state": "state", "version": "version",
    "metadata": "metadata", "endpoints": "endpoints",
}  # fmt: skip
ADVICE = {
    "service": "service", "group": "group", "advice": "advice", "workers_now": "now", "workers_wanted": "wanted",
    "utilisation": "utilisation", "share": "share", "reason": "reason",
}  # fmt: skip
_broker = kit.broker_option("--name", "--address")
_timeout = click.option("--timeout", default=5.0, show_default=True, metavar="S", type=kit.Seconds(0), help="Seconds.")


@click.group()
def main() -> None:
    """Find services: who offers them, how they are doing, and what changes."""


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in value for value in values):
        raise click.BadParameter("write it as KEY=VALUE")
    return dict(value.split("=", 1) for value in values)


@main.command()
@click.argument("service", required=False)
@click.option("--version", "versions", metavar="RANGE", help="Such as '>=1.2,<2'.")
@click.option("--metadata", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="May be given several times.")
@click.option("--state", help="Only those in this state: responsive, unresponsive, lost, quarantined.")
@click.option("--gone", is_flag=True, help="Those that went instead, with the revision at which they did.")
@_broker
@_timeout
@kit.output_option
def ls(
    *, service: str | None, versions: str | None, metadata: dict[str, str], state: str | None, gone: bool,
    broker: str | None, timeout: float,
) -> None:  # fmt: skip
    """List who offers SERVICE, or all services."""
    wanted = {"service": service, "version": versions, "metadata": metadata or None, "state": state, "gone": gone}
    options = {key: value for key, value in wanted.items() if value is not None}
    rows: list[dict[str, Any]] = []
    place = _requests(broker)
    answer = _ask(place, "LIST", options, timeout)
    rows += answer["providers"]
    while answer["more"] is not None:
        answer = _ask(place, "LIST", options | {"after": answer["more"]}, timeout)
        rows += answer["providers"]
    columns = COLUMNS | {"removed": "removed at"} if gone else COLUMNS
    if kit.output_format() == "table":
        rows = [{key: _safe(value) for key, value in (row | {"metadata": _metadata(row)}).items()} for row in rows]
    kit.emit("scale0.discovery.providers/1", rows, columns=columns)


@main.command()
@click.argument("service")
@_broker
@_timeout
@kit.output_option
def show(service: str, broker: str | None, timeout: float) -> None:
    """Show all about SERVICE: who offers it, where, and its figures. Ends with 1 when nobody can answer."""
    info = _ask(_requests(broker), "INFO", {"service": service}, timeout)
    kit.emit("scale0.discovery.service/1", info, show=lambda: _show(info))
    if not info["alive"]:
        kit.finish(kit.Exit.NEGATIVE)


@main.command()
@click.argument("service", required=False)
@_broker
@_timeout
@kit.output_option
def advice(service: str | None, broker: str | None, timeout: float) -> None:
    """Show where SERVICE, or any, should have how many workers. Others advise it; nothing is moved by it."""
    told = _ask(_requests(broker), "ADVICE", {} if service is None else {"service": service}, timeout)
    if kit.output_format() == "table":
        kit.say(_age(told))
        told["rows"] = [{key: _safe(value) for key, value in row.items()} for row in told["rows"]]
        kit.emit("scale0.discovery.advice/1", told["rows"], columns=ADVICE)
    else:
        kit.emit("scale0.discovery.advice/1", told)


@main.command()
@click.argument("service", required=False)
@click.option("--watch-address", metavar="ADDRESS", help="Where changes are published, unless where the broker says.")
@click.option("--since", metavar="REVISION", type=click.IntRange(min=0), help="Begin after this one, not with a list.")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many changes.")
@_broker
@_timeout
@kit.output_option
def watch(
    *, service: str | None, watch_address: str | None, since: int | None, count: int | None, broker: str | None,
    timeout: float,
) -> None:  # fmt: skip
    """Write a line for everybody who offers SERVICE, or any, and one for each change from then on. Ends by Ctrl-C."""
    from scale0_core.client.kit.drivers import CallerDriver
    from scale0_discovery.client.following import NewsSession, WatchSession, changes
    from scale0_discovery.client.watching import RefusedError, Watch

    following = Watch(service, revision=since)
    place = _requests(broker)
    published = watch_address or _published_at(place, timeout)
    with kit.connected(place, timeout, FIX):
        pass
    driver = CallerDriver(WatchSession(place, following, timeout, _say_silence))
    driver.start()
    try:
        driver.post(lambda: driver.add(NewsSession(published, driver.session)))
        for number, change in enumerate(driver.each(changes(driver)), 1):
            _write(change)
            if number == count:
                return
    except kit.AddressError as error:
        problem = error.problem
        raise kit.UsageError(problem.what, problem.why, "nothing is watched", problem.remedy) from error
    except RefusedError as error:
        raise kit.NegativeError("the broker refuses", str(error), "nothing is watched", "see the reason") from error
    except KeyboardInterrupt:
        kit.say(f"last revision: {following.revision}")
    finally:
        driver.close()


def _say_silence() -> None:
    from scale0_discovery.client.following import SILENCE

    kit.say(f"Nothing heard for {SILENCE:g} s; waiting for the broker.")


def _write(change: Mapping[str, Any]) -> None:
    row = change["provider"]
    words = [f"{change['revision']:>8}", f"{change['kind']:8}", row["service"], row["provider"], row["state"]]
    line = _safe("  ".join(filter(None, (*words, row["version"], _metadata(row)))))
    kit.emit("scale0.discovery.change/1", change, show=lambda: click.echo(line))


def _show(info: dict[str, Any]) -> None:
    lines = [f"{info['service']}: {'somebody answers' if info['alive'] else 'nobody can answer'}"]
    for row in (*info["providers"], *info["gone"]):
        state = f"gone at {row['removed']}" if "removed" in row else row["state"]
        words = (row["provider"], row["kind"], state, row["version"], _metadata(row))
        lines.append("  " + "  ".join(filter(None, words)))
        addresses = row["sockets"] or {"": row["endpoints"]}
        lines += [f"    {f'{name} at ' if name else ''}{each}" for name, bound in addresses.items() for each in bound]
    for kind, figures in info["stats"].items():
        told = [f"{key.replace('_', ' ')} {value}" for key, value in figures.items() if value not in (None, "")]
        lines.append(f"  {kind}: {', '.join(told)}")
    advised = info["advice"]
    for row in advised["rows"]:
        where = f" in {row['group']}" if row["group"] else ""
        workers = f"{row['workers_now']} workers now, {row['workers_wanted']} wanted"
        lines.append(f"  advice: {row['advice']}{where}: {workers}; {row['reason']}")
    if advised["rows"]:
        lines.append(f"  {_age(advised)}")
    for line in lines:
        click.echo(_safe(line))


def _age(told: Mapping[str, Any]) -> str:
    """Say how old advice is."""
    if told["as_of"] is None:
        return "There is no advice: none came yet, or it was too old."
    return f"advice as of {_safe(told['as_of'])}, received {_ago(told['age_s'])} ago"


def _ago(seconds: float) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {name}"
    return f"{seconds:.0f} s"


def _safe(value: Any) -> Any:
    """Make what a worker says of itself safe to print: it might want to talk to the terminal."""
    from scale0_core.api import printable

    return printable(value, 2000) if isinstance(value, str) else value


def _metadata(row: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(row["metadata"].items()) if key != "version")


# --- sockets ----------------------------------------------------------------------------------------------------------


def _requests(broker: str | None) -> str:
    """Return where the broker takes queries."""
    return kit.address_at(broker, "discovery", "requests")


def _ask(place: str, command: str, options: dict[str, Any], timeout: float) -> dict[str, Any]:
    answer = kit.ask(place, [command.encode(), json.dumps(options).encode()], timeout, remedy=FIX)
    if answer[0] == b"ERROR":
        why = b": ".join(answer[1:3]).decode(errors="replace")
        raise kit.NegativeError(
            "the broker refuses", why, "there is no answer", "scale0 discovery ls lists what is there"
        )
    with kit.understanding(place):
        return records.object_from(answer[1])


def _published_at(place: str, timeout: float) -> str:
    """Ask the broker where it publishes changes."""
    from scale0_core.client.kit.route import address_of, seen_from

    for row in _ask(place, "INFO", {"service": "discovery"}, timeout)["providers"]:
        for address in row["sockets"].get("watch", ()):
            return seen_from(address_of(place), address)
    raise kit.NegativeError(
        "the broker publishes no changes", "its service discovery has no socket watch", "nothing is watched",
        "give the address where it does: --watch-address ADDRESS",
    )  # fmt: skip
