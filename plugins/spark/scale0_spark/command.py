"""The command `scale0 spark`: jobs on events, streams, tables and the report. Spark is imported when a job runs."""
# does I/O: it is an application

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_spark.jobs import Options
    from scale0_spark.running import Place, Span
    from scale0_spark.tables import Entry

Function = TypeVar("Function", bound=Callable[..., Any])

JOBS = ("trends", "availability", "capacity", "popularity", "caches", "replication", "placement", "anomalies")
STREAMED = ("trends_minute", "trends_hour", "trends_day", "popularity", "cache_rates", "flapping")
"""The tables that a stream keeps if it is not told which: each of their batches costs about what is new in it."""
FINISHED = ("availability", "capacity", "anomalies", "replication_plan", "placement_plan")
"""The tables that a stream keeps if it is told to: with each batch they are made anew from all sums."""
WRITTEN = {"table": "table", "rows": "rows", "written": "written", "file": "file"}


@attrs.frozen
class Common:
    """What all jobs are told."""

    events: str | None
    out: str | None
    master: str
    remote: str | None
    since: datetime | None
    until: datetime | None
    settings: dict[str, str]
    log: str | None
    broker: str
    quiet: bool

    @property
    def folder(self) -> Path:
        """Where tables are."""
        return _out(self.out, self.broker)

    def place(self) -> Place:
        """Where Spark runs."""
        from scale0_spark.running import Place

        return Place(self.master, self.remote, self.settings, Path(self.log) if self.log else None)

    def span(self) -> Span:
        """Which events are looked at."""
        from scale0_spark.running import Span

        if self.since and self.until and self.since >= self.until:
            raise kit.UsageError("--since is not before --until", "no event is in between", "nothing was done", "")
        return Span(_events(self.events, self.broker), self.since, self.until)


def _events(given: str | None, broker: str) -> Path:
    """Give the folder of events: by default the one in which the telemetry of the broker of that name keeps them."""
    return Path(given) if given else kit.data_dir(broker) / "telemetry"


def _out(given: str | None, broker: str) -> Path:
    return Path(given) if given else kit.data_dir(broker) / "spark"


def _moment(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    return None if value is None else kit.moment(value, datetime.now(timezone.utc))


def _settings(_: click.Context, __: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    split = [value.partition("=") for value in values]
    for key, equals, _rest in split:
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{key!r}: write --conf spark.some.setting=value")
    return {key: value for key, _, value in split}


_OUT = click.option("--out", metavar="DIR", type=click.Path(), help="The folder for tables. [default: of the broker]")
_BROKER = click.option(
    "-n", "--name", "broker", default="default", show_default=True, metavar="BROKER",
    help="The broker whose folders are meant where none are given.",
)  # fmt: skip
_QUIET = click.option("--quiet", is_flag=True, help="No lines about progress.")
_OPTIONS = (
    click.option("--events", metavar="DIR", type=click.Path(), help="The folder of events. [default: of the broker]"),
    _OUT,
    click.option("--master", default="local[*]", show_default=True, metavar="URL",
                 help="Where Spark runs: local[*], local[2], spark://host:port."),
    click.option("--remote", metavar="URL", help="A Spark Connect server instead: sc://host:port."),
    click.option("--since", metavar="TIME", callback=_moment, help="Only events from then on: 2030-01-31, or 7d."),
    click.option("--until", metavar="TIME", callback=_moment, help="Only events before."),
    click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, callback=_settings,
                 help="A setting of Spark, on top of ours."),
    click.option("--log", metavar="FILE", type=click.Path(), help="Write there what Spark logs."),
    _BROKER,
    _QUIET,
)  # fmt: skip


def _common(command: Function) -> Function:
    """Give a command the options that all jobs have, handed in as one."""
    from functools import wraps

    @wraps(command)
    def gather(**values: Any) -> Any:
        common = Common(**{field.name: values.pop(field.name) for field in attrs.fields(Common)})
        return command(common, **values)

    for option in reversed(_OPTIONS):
        gather = option(gather)
    return kit.output_option(gather)  # type: ignore[return-value]


@click.group()
def main() -> None:
    """Make tables, plans and a report from events, with Spark.

    Tables are Parquet files in the folder --out. Needs Java 17 or later, or pip install "scale0-spark[jre]".

    \b
    Examples:
      scale0 telemetry generate --rows 1000000 --out events
      scale0 spark run --events events --out tables
      scale0 spark report --out tables
      scale0 spark tables popularity --out tables
      scale0 spark trends --events events --out tables --master spark://127.0.0.1:7077
    """  # noqa: D301


# --- jobs -------------------------------------------------------------------------------------------------------------


def _run(common: Common, names: Iterable[str], **changed: Mapping[str, Any] | int) -> list[Entry]:
    """Run jobs and say what they wrote."""
    from scale0_spark.progress import Progress
    from scale0_spark.running import run_jobs

    chosen, place, span = list(names), common.place(), common.span()
    _check_place(place)
    options = _options(changed)
    return run_jobs(chosen, span, common.folder, place, Progress(quiet=common.quiet), options)


def _check_place(place: Place) -> None:
    from scale0_spark.session import check_place

    check_place(place.master, place.remote)


def _options(changed: Mapping[str, Mapping[str, Any] | int]) -> Options:
    """Make the jobs' options; each part is given as what differs from its defaults."""
    from scale0_spark.jobs import Options

    fresh = Options()
    parts: dict[str, Any] = {
        name: attrs.evolve(_part(fresh, name), **value) if isinstance(value, Mapping) else value
        for name, value in changed.items()
    }
    return attrs.evolve(fresh, **parts)


def _part(options: Options, name: str) -> Any:
    return attrs.asdict(options, recurse=False)[name]


def _tell(entries: Iterable[Entry], folder: Path, too_late: Mapping[str, int] | None = None) -> None:
    from scale0_spark.tables import file_of

    rows = [
        {"table": entry.name, "rows": entry.rows, "written": entry.written, "file": str(file_of(folder, entry.name))}
        for entry in entries
    ]
    for row in rows if too_late is not None else ():
        row["too_late"] = (too_late or {}).get(str(row["table"]), 0)
    kit.emit("scale0.spark.tables/1", rows, columns=WRITTEN)


_ACCURACY = click.option(
    "--accuracy", default=1000, show_default=True, metavar="N", type=click.IntRange(min=1),
    help="Ranks of percentiles are off by one in so many at most.",
)  # fmt: skip


@main.command()
@_ACCURACY
@click.option("--seconds", is_flag=True, help="By second as well: for a run that was short.")
@_common
def trends(common: Common, *, accuracy: int, seconds: bool) -> None:
    """Rates, errors and percentiles of each service by minute, hour and day."""
    names = ["trends", "seconds"] if seconds else ["trends"]
    _tell(_run(common, names, accuracy=accuracy), common.folder)


@main.command()
@_common
def availability(common: Common) -> None:
    """How long workers were there, and which come and go."""
    _tell(_run(common, ["availability"]), common.folder)


@main.command()
@_common
def capacity(common: Common) -> None:
    """How busy services are, and when they will be full."""
    _tell(_run(common, ["capacity"]), common.folder)


_HALF_LIFE = click.option(
    "--half-life", default=7.0, show_default=True, metavar="DAYS", type=click.FloatRange(min=0, min_open=True),
    help="After so many days a request counts half.",
)  # fmt: skip


@main.command()
@_HALF_LIFE
@_common
def popularity(common: Common, *, half_life: float) -> None:
    """Which songs are asked for most, the recent requests counting more."""
    _tell(_run(common, ["popularity"], popularity={"half_life_days": half_life}), common.folder)


@main.command()
@_common
def caches(common: Common) -> None:
    """How many searches each music server answered by itself."""
    _tell(_run(common, ["caches"]), common.folder)


@main.command()
@click.option("--weeks", default=4, show_default=True, metavar="N", type=click.IntRange(min=1),
              help="So many weeks before are compared.")  # fmt: skip
@click.option("--deviation", default=4.0, show_default=True, metavar="X", type=click.FloatRange(min=0, min_open=True),
              help="How far from the usual an hour must be.")  # fmt: skip
@_common
def anomalies(common: Common, *, weeks: int, deviation: float) -> None:
    """Hours unlike the same hour of the weeks before."""
    _tell(_run(common, ["anomalies"], anomalies={"weeks": weeks, "deviation": deviation}), common.folder)


@main.command()
@_HALF_LIFE
@click.option("--per-server", default=20, show_default=True, metavar="N", type=click.IntRange(min=1),
              help="At most so many songs to one server.")  # fmt: skip
@click.option("--apply", is_flag=True, help="Send the plan to the music servers.")
@click.option("--music-broker", metavar="ADDRESS", help="Ask there who holds a song that its source no longer has.")
@click.option("--wait", default=0.0, show_default=True, metavar="S", type=click.FloatRange(min=0),
              help="With --apply: wait so many seconds for the songs to be there.")  # fmt: skip
@_common
def replication(
    common: Common, *, half_life: float, per_server: int, apply: bool, music_broker: str | None, wait: float
) -> None:
    """Plan which songs should be copied to which music servers; with --apply, have it done.

    Ends with 1 if --apply did not reach all of them.
    """
    if not apply and (music_broker or wait):
        raise kit.UsageError("--music-broker and --wait need --apply", "", "nothing was done", "add --apply")
    written = _run(common, ["replication"], replication={"half_life_days": half_life, "per_server": per_server})
    if not apply:
        _tell(written, common.folder)
        return
    from scale0_spark.delivery import apply_replication

    say = (lambda _: None) if common.quiet else kit.say
    outcome = apply_replication(_plan(common, "replication_plan"), music_broker=music_broker, wait=wait, progress=say)
    kit.emit("scale0.spark.replication/1", [attrs.asdict(row) for row in outcome.rows])
    if not outcome.complete:
        kit.finish(kit.Exit.NEGATIVE)


@main.command()
@click.option("--utilisation", metavar="SHARE", type=click.FloatRange(0, 1, min_open=True),
              help="How busy workers should be at most.")  # fmt: skip
@click.option("--apply", is_flag=True, help="Send the plan to a broker's discovery, which shows it.")
@click.option("--discovery", metavar="ADDRESS", help="Where discovery is; by default the broker's ipc address.")
@_common
def placement(common: Common, *, utilisation: float | None, apply: bool, discovery: str | None) -> None:
    """Plan how many workers each service should have in which group; with --apply, discovery shows it."""
    if discovery and not apply:
        raise kit.UsageError("--discovery needs --apply", "", "nothing was done", "add --apply")
    written = _run(common, ["placement"], placement={} if utilisation is None else {"utilisation": utilisation})
    if not apply:
        _tell(written, common.folder)
        return
    from scale0_spark.delivery import apply_placement

    address = discovery or f"ipc://{kit.runtime_dir(common.broker)}/discovery"
    kit.emit(
        "scale0.spark.placement/1", attrs.asdict(apply_placement(_plan(common, "placement_plan"), address=address))
    )


def _plan(common: Common, name: str) -> list[dict[str, Any]]:
    from scale0_spark import tables

    rows: list[dict[str, Any]] = tables.read(common.folder, name).to_pylist()
    return rows


@main.command()
@_ACCURACY
@click.option("--report", "with_report", is_flag=True, help="Write the report, too.")
@_common
def run(common: Common, *, accuracy: int, with_report: bool) -> None:
    """Run all jobs, one after the other in one session."""
    written = _run(common, JOBS, accuracy=accuracy)
    if with_report:
        from scale0_spark.report.page import write_report

        write_report(common.folder)
    _tell(written, common.folder)


# --- streams ----------------------------------------------------------------------------------------------------------


def _names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not names or not set(names) <= {*STREAMED, *FINISHED}:
        raise click.BadParameter(f"{value!r}: there are {', '.join((*STREAMED, *FINISHED))}")
    return names


def _span(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    if not value[:1].isdigit() or not value[-1:].isalpha():
        raise click.BadParameter(f"{value!r} is not how long, as in 36h, 90d or 8w")
    now = datetime.now(timezone.utc)
    return now - kit.moment(value, now)


@main.command()
@click.option("--tables", "names", default=",".join(STREAMED), metavar="NAMES", callback=_names,
              help=f"Which tables, with commas between; also {', '.join(FINISHED)}, which cost more.")  # fmt: skip
@click.option("--once", is_flag=True, help="Take in what is there now, and end.")
@click.option("--every", default=10.0, show_default=True, metavar="S", type=click.FloatRange(min=0.1),
              help="Seconds from batch to batch.")  # fmt: skip
@click.option("--late", default="1 hour", show_default=True, metavar="TIME",
              help="How late an event may come and still count.")  # fmt: skip
@click.option("--keep", metavar="TIME", callback=_span,
              help="Drop windows that began longer before their table's newest: 90d. [default: keep all]")  # fmt: skip
@click.option("--files-per-batch", metavar="N", type=click.IntRange(min=1),
              help="At most so many new files in a batch: events may then count as late. [default: all]")  # fmt: skip
@click.option("--pipe", metavar="NAME", help="Take events from this pipe, not from files.")
@click.option("--address", metavar="ADDRESS", help="Where the pipe is; by default the broker's ipc address.")
@click.option("--checkpoints", metavar="DIR", type=click.Path(),
              help="Where Spark remembers how far it came. [default: .checkpoints in --out]")  # fmt: skip
@_common
def stream(
    common: Common, *, names: list[str], once: bool, every: float, late: str, keep: timedelta | None,
    files_per_batch: int | None, pipe: str | None, address: str | None, checkpoints: str | None,
) -> None:  # fmt: skip
    """Keep tables up to date while events come in. Ctrl-C or TERM ends it in order; started again, it goes on."""
    from scale0_spark import tables
    from scale0_spark.progress import Progress
    from scale0_spark.running import Pipe, run_streams

    if common.since or common.until:
        raise kit.UsageError("a stream takes all events", "--since and --until are for jobs", "nothing was done", "")
    if address and not pipe:
        raise kit.UsageError("--address needs --pipe", "", "nothing was done", "name the pipe: --pipe NAME")
    if files_per_batch and pipe:
        raise kit.UsageError("--files-per-batch is not for a pipe", "it has no files", "nothing was done", "")
    place = common.place()
    _check_place(place)
    source = Pipe(pipe, _pipes(address, common.broker)) if pipe else common.span()
    too_late = run_streams(
        names, source, common.folder, place, Progress(quiet=common.quiet),
        checkpoints=Path(checkpoints) if checkpoints else None, every=None if once else every, late=late, keep=keep,
        files_per_batch=files_per_batch,
    )  # fmt: skip
    written = [entry for entry in tables.entries(common.folder) if entry.name in names]
    _tell(written, common.folder, too_late)


def _pipes(address: str | None, broker: str) -> str:
    """Give the address of the pipes; an error says at once that nobody is there."""
    place = address or f"ipc://{kit.runtime_dir(broker)}/zpipes"
    if place.startswith("ipc:///") and not Path(place.removeprefix("ipc://")).exists():
        raise kit.NotReachedError(
            f"nobody is at {place}", "connecting: there is no such socket", "no Spark session was started",
            "start a broker with the plugin zpipes: scale0 broker; or name another one with --name or --address",
        )  # fmt: skip
    return place


# --- a quicker start --------------------------------------------------------------------------------------------------


@main.command()
@click.option("--log", metavar="FILE", type=click.Path(), help="Write there what Spark and Java log.")
@_QUIET
@kit.output_option
def prepare(*, log: str | None, quiet: bool) -> None:
    """Have Spark start in about half the time from now on, on this machine.

    Takes about a minute, once for each Java and PySpark: an archive of Java's classes is written to your cache folder.
    """
    import os

    from scale0_spark.archive import make_archive
    from scale0_spark.java import find_java
    from scale0_spark.progress import Progress
    from scale0_spark.running import Place

    place = Place("local[*]", log=Path(log) if log else None)
    made = make_archive(find_java(os.environ), os.environ, place, Progress(quiet=quiet))
    kit.emit("scale0.spark.prepare/1", attrs.asdict(made))


# --- tables and report ------------------------------------------------------------------------------------------------


@main.command("tables")
@click.argument("table", required=False)
@click.option("--limit", default=20, show_default=True, metavar="N", type=click.IntRange(min=1), help="So many rows.")
@_OUT
@_BROKER
@kit.output_option
def show_tables(*, table: str | None, limit: int, out: str | None, broker: str) -> None:
    """List the tables, or show the first rows of one. Needs no Spark. Ends with 1 if one cannot be read."""
    from scale0_spark import tables

    folder = _out(out, broker)
    if table is None:
        found = tables.survey(folder)
        _tell([entry for entry in found.entries if not entry.name.startswith(tables.SUMS)], folder)
        tables.say_damaged(found.damaged)
        if found.damaged:
            kit.finish(kit.Exit.NEGATIVE)
        return
    rows = tables.read(folder, table).slice(0, limit).to_pylist()
    kit.emit("scale0.spark.rows/1", [{name: _shown(value) for name, value in row.items()} for row in rows])


def _shown(value: object) -> object:
    from scale0_spark.tables import plain

    if kit.output_format() == "table" and isinstance(value, float):
        return f"{value:.6g}"
    return plain(value)


@main.command()
@_OUT
@_BROKER
@kit.output_option
def report(*, out: str | None, broker: str) -> None:
    """Write the tables as one HTML page with charts, and the charts as PNG files. Needs no Spark."""
    from scale0_spark.report.page import write_report

    written = write_report(_out(out, broker))
    charts = [str(path) for path in written.charts]
    kit.emit("scale0.spark.report/1", {"page": str(written.page), "charts": charts})
    if written.damaged:
        kit.finish(kit.Exit.NEGATIVE)
