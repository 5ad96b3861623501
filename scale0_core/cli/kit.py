"""What commands share: the command-line half of the plugin API.

A plugin's command is a click command behind an entry point of the group ``scale0.commands``. With this kit it looks and
behaves like the core's own::

    @click.command()
    @kit.output_option
    def pipes() -> None:
        kit.emit("scale0.pipes/1", rows, columns={"name": "name", "depth": "depth"})

- Data goes to stdout by ``emit``; everything else goes to stderr by ``say``.
- With ``-o json`` there is one object that carries the name and version of its schema, with ``-o jsonl`` one a line.
- Raise a ``Scale0Error`` (``NotReachedError``, ``TimedOutError``...): it is shown in four parts, with its exit code.
- ``finish(Exit.NEGATIVE)`` ends a command whose answer is "no".

Import zmq and other large modules inside the functions that need them.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from scale0_core.errors import (
    AddressError,
    Exit,
    NegativeError,
    NotReachedError,
    Problem,
    Scale0Error,
    TimedOutError,
    UsageError,
)

if TYPE_CHECKING:
    import zmq
    from click.shell_completion import CompletionItem

    from scale0_core.config.running import BrokerRecord

__all__ = [
    "AddressError",
    "AnswerError",
    "Exit",
    "NegativeError",
    "NotReachedError",
    "Problem",
    "Scale0Error",
    "Seconds",
    "TimedOutError",
    "UsageError",
    "address_at",
    "ask",
    "broker_here",
    "broker_of_environment",
    "broker_option",
    "chosen_broker",
    "config_option",
    "connected",
    "data_dir",
    "emit",
    "finish",
    "insist_on_listener",
    "moment",
    "output_format",
    "output_option",
    "overrides_of",
    "problem_text",
    "say",
    "set_option",
    "understanding",
]

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "json", "jsonl")
_FORMAT = "scale0.output"


def _remember_format(ctx: click.Context, _: click.Parameter, value: str) -> None:
    ctx.meta[_FORMAT] = value


def output_option(command: Command) -> Command:
    """Give a command the option ``-o table|json|jsonl``; ``emit`` heeds it."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, expose_value=False,
        callback=_remember_format, help="How to write data: a table for people, JSON for machines.",
    )(command)  # fmt: skip


def config_option(command: Command) -> Command:
    """Give a command the option ``--config FILE``, handed in as ``file``."""
    return click.option(
        "-c", "--config", "file", metavar="FILE", type=click.Path(),
        help="The configuration; by default $SCALE0_CONFIG, else broker.toml here, else embedded defaults.",
    )(command)  # fmt: skip


class _BrokerOption(click.Option):
    """The option ``-b/--broker``, with older spellings that work and are not shown."""

    def __init__(self, _: object, *, older: Sequence[str], **settings: Any) -> None:
        super().__init__(["-b", "--broker"], **settings)
        self._older = older

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have the parser take the older spellings as well."""
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=self._older, dest=self.name, nargs=1)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of brokers that run."""
        from click.shell_completion import CompletionItem

        from scale0_core.config.running import running_brokers

        names = [record.name for record in running_brokers(os.environ)[0]]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


WHICH_BROKER = (
    "Name of a broker on this machine, or the address that takes these requests. "
    "[default: $SCALE0_BROKER, else the name in ./broker.toml, else the only broker that runs]"
)


def broker_option(*older: str, envvar: str | None = None, text: str = WHICH_BROKER) -> Callable[[Command], Command]:
    """Give a command the option ``-b/--broker NAME|ADDRESS``: which broker; None if it is not given.

    :param older: spellings of this option that the command had before; they still work and are not shown.
    """
    return click.option(
        cls=_BrokerOption, older=older, metavar="NAME|ADDRESS", envvar=envvar, help=text,
        callback=lambda ctx, option, value: _checked(value),
    )  # fmt: skip


def _checked(broker: str | None, where: str = "") -> str | None:
    """Return what was given if it is the name or the address of a broker."""
    from scale0_core.client.kit.route import target

    try:
        return broker if broker is None or target(broker, "", "") else None
    except ValueError as error:
        raise click.BadParameter(f"{where}{error}") from None


def chosen_broker(given: str | None, otherwise: str = "") -> str:
    """Return the name or the address of the broker that ``-b`` gives, or that is meant without it.

    :param otherwise: what is returned if no broker runs, instead of raising a NotReachedError.
    """
    from scale0_core.config.running import running_brokers

    chosen = given or broker_of_environment() or _name_in_file()
    if chosen:
        return chosen
    records, problems = running_brokers(os.environ)
    if len(records) == 1:
        return records[0].name
    if records:
        running = ", ".join(record.name for record in records)
        raise UsageError(
            "several brokers run on this machine", running, "nothing was done", "choose one: --broker NAME"
        )
    if otherwise:
        return otherwise
    raise NotReachedError("no broker runs on this machine", "; ".join(problems), "nothing was done", START)


def broker_of_environment() -> str | None:
    """Return the name or the address in $SCALE0_BROKER; None if there is none."""
    return _checked(os.environ.get("SCALE0_BROKER") or None, "$SCALE0_BROKER: ")


def _name_in_file() -> str:
    """Return the broker's name in ./broker.toml; empty if there is no such file, or no name in it."""
    from scale0_core.config.files import DEFAULT_FILE, read_tree

    file = Path(DEFAULT_FILE)
    broker = read_tree(file)[0].get("broker") if file.exists() else None
    name = broker.get("name") if isinstance(broker, dict) else None
    return _checked(name, f"name in {file}: ") or "" if isinstance(name, str) else ""


def address_at(broker: str | None, service: str, socket: str) -> str:
    """Return where to connect to a service's socket at the broker that ``-b`` gives."""
    from scale0_core.client.kit.route import target

    return target(chosen_broker(broker), service, socket)


def set_option(command: Command) -> Command:
    """Give a command the option ``--set TABLE.KEY=VALUE``, handed in as ``overrides``."""
    return click.option(
        "--set", "overrides", metavar="TABLE.KEY=VALUE", multiple=True,
        help="Change one setting, as in --set wire.batch=64; may be given several times.",
    )(command)  # fmt: skip


def overrides_of(name: str | None, overrides: Iterable[str]) -> list[str]:
    """Put ``--name`` and ``--set`` into one list, of which the last word counts."""
    # quoted, since a broker may be named 1 or true
    named = [] if name is None else [f"broker.name={json.dumps(name, ensure_ascii=False)}"]
    return [*overrides, *named]


def output_format() -> str:
    """Give the format that ``-o`` asks for."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_FORMAT, "table")) if context else "table"


def emit(
    schema: str,
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] | None = None,
    show: Callable[[], None] | None = None,
) -> None:
    """Write data to stdout in the format that ``-o`` asks for.

    :param schema: name and version of what is written, such as ``scale0.plugins/1``.
    :param data: one object, or a list of rows.
    :param columns: the fields to show as a table, each with its heading; by default all of them.
    :param show: writes the data for people in another way than as a table.
    """
    form = output_format()
    if form == "table":
        if show is not None:
            show()
        elif isinstance(data, Mapping):
            _show_fields(data, columns)
        else:
            _show_table(data, columns or {key: key for row in data[:1] for key in row})
    elif isinstance(data, Mapping):
        _write_json({"schema": schema, **data}, form)
    elif form == "json":
        _write_json({"schema": schema, "items": list(data)}, form)
    else:
        for row in data:
            _write_json({"schema": schema, **row}, form)


def say(text: str, *, nl: bool = True) -> None:
    """Tell people something that is not data, on stderr."""
    click.echo(text, err=True, nl=nl)


def problem_text(problem: Problem, title: str = "problem") -> str:
    """Write a problem for people in its four parts."""
    from scale0_core.cli.failures import as_text

    return as_text(problem, title, "yellow")


def finish(code: Exit) -> NoReturn:
    """End the command with an exit code."""
    click.get_current_context().exit(int(code))


def data_dir(broker: str | None) -> Path:
    """Return the folder in which the broker that ``-b`` gives keeps what lasts, whether it runs or not."""
    from scale0_core.config.folders import default_data_dir

    name, record = broker_here(chosen_broker(broker, "default"))
    return default_data_dir(name, os.environ) if record is None else Path(record.data_dir)


def broker_here(broker: str) -> tuple[str, BrokerRecord | None]:
    """Return the name of a broker, and its record if it runs on this machine; of an address there must be a record."""
    from scale0_core.config.running import running_brokers

    records, problems = running_brokers(os.environ)
    record = next((record for record in records if record.is_at(broker)), None)
    if record is None and "://" in broker:
        here = "brokers that run here: " + (", ".join(record.name for record in records) or "none")
        raise UsageError(
            f"no broker that runs on this machine is at {broker}", "; ".join([here, *problems]), "nothing was done",
            "give its name: --broker NAME; scale0 ps lists names and addresses",
        )  # fmt: skip
    return broker if record is None else record.name, record


START = "start a broker: scale0 broker; or choose one: --broker NAME|ADDRESS"


def insist_on_listener(address: str, consequence: str = "nothing was sent", remedy: str = START) -> None:
    """Raise a NotReachedError if it is clear that nobody listens at an address or at what ``address_at`` returned."""
    from scale0_core.client.kit.listening import why_nobody_listens

    if reason := why_nobody_listens(address):
        raise NotReachedError(f"nobody is at {address}", f"connecting: {reason}", consequence, remedy)


@contextmanager
def connected(address: str, timeout: float, remedy: str = START) -> Iterator[zmq.Socket[bytes]]:
    """Give a DEALER socket that is connected; an error says that nobody is there, or that the address is none.

    :param address: an address, or what ``address_at`` returned.
    :param timeout: seconds to connect.
    :param remedy: what to do when nobody is there.
    """
    from scale0_core.client.kit.link import Link
    from scale0_core.client.kit.route import resolve
    from scale0_core.client.kit.sessions import Limits

    insist_on_listener(address, remedy=remedy)
    try:
        link = Link(resolve(address)[0], Limits(reconnect=True, max_message=-1, linger_ms=0))
    except AddressError as error:
        raise _no_address(address, error.problem.why) from error
    with link:
        if not link.wait_until_connected(timeout, patient=True):
            why = f"connecting: nobody listens there, or does not answer within {timeout:g} s"
            raise NotReachedError(f"nobody is at {address}", why, "nothing was sent", remedy)
        yield link.socket


def _no_address(address: str, why: str) -> UsageError:
    return UsageError(f"{address} is not an address", why, "nothing was sent", "write it like tcp://127.0.0.1:5555")


def ask(
    address: str, request: Sequence[bytes], timeout: float, patience: float | None = None, remedy: str = START
) -> list[bytes]:
    """Send one request from a DEALER socket and wait for one answer; an error says how far it came.

    :param timeout: seconds to connect.
    :param patience: seconds to wait for the answer; by default as long as for connecting.
    :param remedy: what to do when nobody is there.
    """
    patience = timeout if patience is None else patience
    with connected(address, timeout, remedy) as socket:
        socket.send_multipart(request)
        if not socket.poll(round(patience * 1000)):
            why = f"waiting for the answer: connected and sent, but nothing came within {patience:g} s"
            carried = "the request may still be carried out"
            raise TimedOutError(f"{address} does not answer", why, carried, "try a longer --timeout")
        return socket.recv_multipart()


class AnswerError(Scale0Error):
    """What a broker answered cannot be understood."""

    exit_code = Exit.DATA


@contextmanager
def understanding(address: str) -> Iterator[None]:
    """Raise an AnswerError where an answer from an address makes no sense, as of a service of another kind."""
    from scale0_core.protocol.messages import MalformedError

    try:
        yield
    except (MalformedError, ValueError, LookupError, TypeError) as error:
        remedy = "perhaps another service is at this address: scale0 ps -o json lists those of each broker"
        raise AnswerError(
            f"the answer from {address} makes no sense", str(error), "nothing is shown", remedy
        ) from error


class Seconds(click.FloatRange):
    """The type of options for times: so many seconds, at least and at most; by default at most a day."""

    def __init__(self, least: float = 0.001, most: float | None = 86_400) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


_SPAN = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)


def moment(text: str, now: datetime) -> datetime:
    """Read a time, ISO 8601 and UTC unless it says otherwise, or how long ago, as in 90s, 36h or 2w; give it in UTC."""
    try:
        if span := _SPAN.fullmatch(text):
            return (now - timedelta(**{_UNITS[span[2]]: int(span[1])})).astimezone(timezone.utc)
        if time := _TIME.fullmatch(text):
            # written out, since Python 3.10 reads neither Z nor parts of a second of any length
            date, minute, second, part, zone = time.groups()
            whole = f"{date}T{minute or '00:00'}:{second or '00'}.{(part or '').ljust(6, '0')}"
            return datetime.fromisoformat(f"{whole}{(zone or 'Z').replace('Z', '+00:00')}").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        pass
    raise click.BadParameter(f"{text!r} is no time, as in 2030-01-31T12:00, and not how long ago, as in 90m or 7d")


def cell(value: object) -> str:
    """Write one value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "-"
    return str(value)


def _write_json(value: Mapping[str, Any], form: str) -> None:
    indent = 2 if form == "json" and sys.stdout.isatty() else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def _show_fields(data: Mapping[str, Any], columns: Mapping[str, str] | None) -> None:
    headings = columns or {key: key for key in data}
    width = max(map(len, headings.values()), default=0)
    for key, heading in headings.items():
        click.echo(f"{click.style(f'{heading:{width}}', bold=True)}  {cell(data[key])}")


def _show_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    lines = [[cell(row.get(key)) for key in columns] for row in rows]
    if sys.stdout.isatty():
        _show_rich_table(lines, list(columns.values()))
        return
    # whoever reads a pipe wants every byte, and lines that awk and grep can work on
    headings = [heading.upper() for heading in columns.values()]
    flat = [[" ".join(text.split()) for text in line] for line in (headings, *lines)]
    widths = [max(map(len, texts)) for texts in zip(*flat, strict=True)]
    for line in flat:
        click.echo("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _show_rich_table(lines: Sequence[Sequence[str]], headings: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.upper(), overflow="fold")
    for line in lines:
        # as Text, so that square brackets in data are not taken for markup
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in line))
    Console(highlight=False).print(table)


_STYLES = {"ok": "green", "failed": "red", "missing": "red"}
