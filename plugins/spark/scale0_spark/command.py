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
    from scale0_spark.progress import Missed
    from scale0_spark.running import Place, Span
    from scale0_spark.tables import Entry

Function = TypeVar("Function", bound=Callable[..., Any])

JOBS = ("trends", "availability", "capacity", "popularity", "caches", "replication", "placement", "anomalies")
STREAMED = ("trends_minute", "trends_hour", "trends_day", "popularity", "cache_rates", "flapping")
"""The tables that a stream keeps if it is not told which: each of their batches costs about what is new in it."""
FINISHED = ("availability", "capacity", "anomalies", "replication_plan", "placement_plan")
"""The tables that a stream keeps if it is told to: with each batch they are made anew from all sums."""
GROUP = "spark"
MOST_IN_GROUP = 200
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
    replace: bool
    broker: str | None
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


def _events(given: str | None, broker: str | None) -> Path:
    """Give the folder of events: by default the one in which the telemetry of the broker of that name keeps them."""
    return Path(given) if given else kit.data_dir(broker) / "telemetry"


def _out(given: str | None, broker: str | None) -> Path:
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
_BROKER = kit.broker_option("-n", "--name")
_QUIET = click.option("--quiet", is_flag=True, help="No lines about progress.")
_OPTIONS = (
    click.option("--events", metavar="DIR", type=click.Path(), help="The folder of events. [default: of the broker]"),
    _OUT,
    click.option("--master", default="local[*]", show_default=True, metavar="URL",
                 help="Where Spark runs: local[*], local[2], spark://host:port."),
    click.option("--remote", metavar="URL", help="A Spark Connect server instead: sc://host:port."),
    click.option("--since", metavar="TIME", callback=_moment,
                 help="Compute what was from then on, and merge it into the tables: 2030-01-31, or 7d."),
    click.option("--until", metavar="TIME", callback=_moment, help="Compute what was before, and merge it."),
    click.option("--replace", is_flag=True,
                 help="Write what was computed in place of the tables, whatever rows they had."),
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


Changed = Mapping[str, Mapping[str, Any] | int]
"""What differs from the jobs' defaults: by part of their options, and field."""


@attrs.frozen
class Tuning:
    """An option that tables depend on, and the fields of the jobs' options that it is for."""

    option: Callable[[Any], Any]
    fields: tuple[str, ...]


_TUNING = {
    "accuracy": Tuning(
        click.option("--accuracy", default=1000, show_default=True, metavar="N", type=click.IntRange(min=1),
                     help="Ranks of percentiles are off by one in so many at most."),
        ("accuracy",),
    ),
    "half_life": Tuning(
        click.option("--half-life", default=7.0, show_default=True, metavar="DAYS",
                     type=click.FloatRange(min=0, min_open=True), help="After so many days a request counts half."),
        ("popularity.half_life_days", "replication.half_life_days"),
    ),
    "weeks": Tuning(
        click.option("--weeks", default=4, show_default=True, metavar="N", type=click.IntRange(1, 104),
                     help="So many weeks before are compared, to find anomalies."),
        ("anomalies.weeks",),
    ),
    "deviation": Tuning(
        click.option("--deviation", default=4.0, show_default=True, metavar="X",
                     type=click.FloatRange(min=0, min_open=True),
                     help="How far from the usual an hour must be to be an anomaly."),
        ("anomalies.deviation",),
    ),
    "per_server": Tuning(
        click.option("--per-server", default=20, show_default=True, metavar="N", type=click.IntRange(min=1),
                     help="Plan at most so many songs for one music server."),
        ("replication.per_server",),
    ),
    "utilisation": Tuning(
        click.option("--utilisation", default=0.6, show_default=True, metavar="SHARE",
                     type=click.FloatRange(0, 1, min_open=True), help="Plan workers to be so busy at most."),
        ("placement.utilisation",),
    ),
}  # fmt: skip
"""What tables can be told to depend on. Each stands here once, for all commands that make such a table."""


def _tuned(*names: str) -> Callable[[Function], Function]:
    """Give a command the options that its tables depend on, handed in as `changed`."""

    def add(command: Function) -> Function:
        from functools import wraps

        @wraps(command)
        def gather(**values: Any) -> Any:
            return command(changed=_changed({name: values.pop(name) for name in names}), **values)

        for name in reversed(names):
            gather = _TUNING[name].option(gather)
        return gather  # type: ignore[return-value]

    return add


def _changed(chosen: Mapping[str, Any]) -> Changed:
    changed: dict[str, Any] = {}
    for name, value in chosen.items():
        for place in _TUNING[name].fields:
            part, _, field = place.rpartition(".")
            (changed.setdefault(part, {}) if part else changed)[field] = value
    return changed


def _run(common: Common, names: Iterable[str], changed: Changed | None = None) -> list[Entry]:
    """Run jobs and say what they wrote."""
    from scale0_spark.progress import Progress
    from scale0_spark.running import run_jobs

    chosen, place, span = list(names), common.place(), common.span()
    _check_place(place)
    options = _options(changed or {})
    progress = Progress(quiet=common.quiet)
    return run_jobs(chosen, span, common.folder, place, progress, options, replace=common.replace)


def _check_place(place: Place) -> None:
    from scale0_spark.session import check_place

    check_place(place.master, place.remote)


def _options(changed: Changed) -> Options:
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


def _tell(entries: Iterable[Entry], folder: Path, missed: Mapping[str, Missed] | None = None) -> None:
    from scale0_spark.tables import file_of

    rows = [
        {"table": entry.name, "rows": entry.rows, "written": entry.written, "file": str(file_of(folder, entry.name))}
        for entry in entries
    ]
    for row in rows:
        if missed is not None and (some := missed.get(str(row["table"]))):
            row |= {"too_late": some.too_late, "skipped": some.skipped}
    kit.emit("scale0.spark.tables/1", rows, columns=WRITTEN)


@main.command()
@_tuned("accuracy")
@click.option("--seconds", is_flag=True, help="By second as well: for a run that was short.")
@_common
def trends(common: Common, *, changed: Changed, seconds: bool) -> None:
    """Rates, errors and percentiles of each service by minute, hour and day."""
    names = ["trends", "seconds"] if seconds else ["trends"]
    _tell(_run(common, names, changed), common.folder)


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


@main.command()
@_tuned("half_life")
@_common
def popularity(common: Common, *, changed: Changed) -> None:
    """Which songs are asked for most, the recent requests counting more."""
    _tell(_run(common, ["popularity"], changed), common.folder)


@main.command()
@_common
def caches(common: Common) -> None:
    """How many searches each music server answered by itself."""
    _tell(_run(common, ["caches"]), common.folder)


@main.command()
@_tuned("weeks", "deviation")
@_common
def anomalies(common: Common, *, changed: Changed) -> None:
    """Hours unlike the same hour of the weeks before."""
    _tell(_run(common, ["anomalies"], changed), common.folder)


# --- plans ------------------------------------------------------------------------------------------------------------


_SONG_DELIVERY = (
    click.option("--music-broker", metavar="NAME|ADDRESS", hidden=True, help="The older way to say --broker."),
    click.option("--wait", default=0.0, show_default=True, metavar="S", type=click.FloatRange(min=0),
                 help="Wait so many seconds for the songs to be there."),
)  # fmt: skip
_DISCOVERY = click.option("--discovery", metavar="ADDRESS", hidden=True, help="The older way to say --broker.")


def _song_delivery(command: Function) -> Function:
    """Give a command what can be said about how songs are brought to servers."""
    for option in reversed(_SONG_DELIVERY):
        command = option(command)
    return command


@main.command()
@_tuned("half_life", "per_server")
@click.option("--apply", is_flag=True, help="Send the plan to the music servers; --wait needs it.")
@_song_delivery
@_common
def replication(common: Common, *, changed: Changed, apply: bool, music_broker: str | None, wait: float) -> None:
    """Plan which songs should be copied to which music servers; with --apply, have it done.

    With --broker, its music broker is asked for songs that a source has no more.

    Ends with 1 if --apply did not reach all of them. scale0 spark apply sends a plan that is there.
    """
    if not apply and (music_broker or wait):
        raise kit.UsageError("--music-broker and --wait need --apply", "", "nothing was done", "add --apply")
    written = _run(common, ["replication"], changed)
    if not apply:
        _tell(written, common.folder)
        return
    _send_songs(common.folder, music_broker or common.broker, wait, quiet=common.quiet)


@main.command()
@_tuned("utilisation")
@click.option("--apply", is_flag=True, help="Send the plan to a broker's discovery, which shows it.")
@_DISCOVERY
@_common
def placement(common: Common, *, changed: Changed, apply: bool, discovery: str | None) -> None:
    """Plan how many workers each service should have in which group; with --apply, discovery shows it.

    scale0 spark apply sends a plan that is there.
    """
    if discovery and not apply:
        raise kit.UsageError("--discovery needs --apply", "", "nothing was done", "add --apply")
    written = _run(common, ["placement"], changed)
    if not apply:
        _tell(written, common.folder)
        return
    _send_advice(common.folder, discovery, common.broker)


@main.group("apply")
def apply_plan() -> None:
    """Send a plan that stands in the tables, as a job or a stream wrote it. Needs no Spark.

    \b
    Examples:
      scale0 spark apply replication --out tables --wait 60
      scale0 spark apply placement --out tables
    """  # noqa: D301


@apply_plan.command("replication")
@_song_delivery
@_OUT
@_BROKER
@_QUIET
@kit.output_option
def apply_replication(
    *, music_broker: str | None, wait: float, out: str | None, broker: str | None, quiet: bool
) -> None:
    """Have music servers fetch the songs of the table replication_plan. Ends with 1 if it did not reach all of them.

    With --broker, its music broker is asked for songs that a source has no more.
    """
    _send_songs(_out(out, broker), music_broker or broker, wait, quiet=quiet)


@apply_plan.command("placement")
@_DISCOVERY
@_OUT
@_BROKER
@kit.output_option
def apply_placement(*, discovery: str | None, out: str | None, broker: str | None) -> None:
    """Have discovery show the table placement_plan, with the time at which it was written."""
    _send_advice(_out(out, broker), discovery, broker)


def _send_songs(folder: Path, broker: str | None, wait: float, *, quiet: bool) -> None:
    from scale0_spark import delivery, tables

    rows = tables.read(folder, "replication_plan").to_pylist()
    say = (lambda _: None) if quiet else kit.say
    outcome = delivery.apply_replication(rows, broker=broker, wait=wait, progress=say)
    kit.emit("scale0.spark.replication/1", [attrs.asdict(row) for row in outcome.rows])
    if not outcome.complete:
        kit.finish(kit.Exit.NEGATIVE)


def _send_advice(folder: Path, discovery: str | None, broker: str | None) -> None:
    from scale0_spark import delivery, tables

    rows = tables.read(folder, "placement_plan").to_pylist()
    made = datetime.fromisoformat(tables.entry(folder, "placement_plan").written)
    outcome = delivery.apply_placement(rows, broker=kit.chosen_broker(discovery or broker), as_of=made)
    kit.emit("scale0.spark.placement/1", attrs.asdict(outcome))


# --- all of them ------------------------------------------------------------------------------------------------------


@main.command()
@_tuned(*_TUNING)
@click.option("--report", "with_report", is_flag=True, help="Write the report, too.")
@_common
def run(common: Common, *, changed: Changed, with_report: bool) -> None:
    """Run all jobs, one after the other in one session."""
    written = _run(common, JOBS, changed)
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
    if not value[:1].isdigit() or not value[-1:].isalpha() or " " in value:
        raise click.BadParameter(f"{value!r} is not how long, as in 90m, 36h, 90d or 8w")
    now = datetime.now(timezone.utc)
    return now - kit.moment(value, now)


def _group(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not 1 <= len(value.encode()) <= MOST_IN_GROUP:
        raise click.BadParameter(f"it has 1 to {MOST_IN_GROUP} bytes: the name of the table is added")
    return value


@main.command()
@click.option("--tables", "names", default=",".join(STREAMED), metavar="NAMES", callback=_names,
              help=f"Which tables, with commas between; also {', '.join(FINISHED)}, which cost more.")  # fmt: skip
@click.option("--once", is_flag=True, help="Take in what is there now, and end.")
@click.option("--every", default=10.0, show_default=True, metavar="S", type=click.FloatRange(min=0.1),
              help="Seconds from batch to batch.")  # fmt: skip
@click.option("--late", default="1h", show_default=True, metavar="TIME", callback=_span,
              help="How late an event may come and still count: 90m, 36h.")  # fmt: skip
@click.option("--keep", metavar="TIME", callback=_span,
              help="Drop windows that began longer before their table's newest: 90d. [default: keep all]")  # fmt: skip
@click.option("--files-per-batch", metavar="N", type=click.IntRange(min=1),
              help="At most so many new files in a batch: events may then count as late. [default: all]")  # fmt: skip
@click.option("--pipe", metavar="NAME", help="Take events from this pipe, not from files.")
@click.option("--address", metavar="ADDRESS", hidden=True, help="The older way to say --broker.")
@click.option("--group", metavar="NAME", callback=_group,
              help="What its reader groups are called: two streams on one pipe need two. [default: spark]")  # fmt: skip
@click.option(
    "--skip-bad", is_flag=True, help="Leave out chunks of the pipe that hold no events or are gone; say which."
)
@_tuned(*_TUNING)
@click.option("--checkpoints", metavar="DIR", type=click.Path(),
              help="Where Spark remembers how far it came. [default: .checkpoints in --out]")  # fmt: skip
@_common
def stream(
    common: Common, *, names: list[str], once: bool, every: float, late: timedelta, keep: timedelta | None,
    files_per_batch: int | None, pipe: str | None, address: str | None, group: str | None, skip_bad: bool,
    checkpoints: str | None, changed: Changed,
) -> None:  # fmt: skip
    """Keep tables up to date while events come in. Ctrl-C or TERM ends it in order; started again, it goes on."""
    from scale0_spark import tables
    from scale0_spark.progress import Progress
    from scale0_spark.running import Pipe, run_streams

    if common.since or common.until:
        raise kit.UsageError("a stream takes all events", "--since and --until are for jobs", "nothing was done", "")
    for option, given in (("--address", address), ("--group", group), ("--skip-bad", skip_bad)):
        if given and not pipe:
            raise kit.UsageError(f"{option} needs --pipe", "", "nothing was done", "name the pipe: --pipe NAME")
    if files_per_batch and pipe:
        raise kit.UsageError("--files-per-batch is not for a pipe", "it has no files", "nothing was done", "")
    place = common.place()
    _check_place(place)
    source = Pipe(pipe, _pipes(address or common.broker), group or GROUP, skip_bad) if pipe else common.span()
    missed = run_streams(
        names, source, common.folder, place, Progress(quiet=common.quiet),
        checkpoints=Path(checkpoints) if checkpoints else None, every=None if once else every, late=late, keep=keep,
        files_per_batch=files_per_batch, options=_options(changed), replace=common.replace,
    )  # fmt: skip
    written = [entry for entry in tables.entries(common.folder) if entry.name in names]
    _tell(written, common.folder, missed)


def _pipes(broker: str | None) -> str:
    """Return the broker of the pipes; an error says at once that nobody is there."""
    from scale0_core.client.kit.route import target

    chosen = kit.chosen_broker(broker)
    if not chosen.startswith("tcp://"):
        kit.insist_on_listener(
            target(chosen, "zpipes", "pipes"), "no Spark session was started",
            "start a broker with the plugin zpipes: scale0 broker; or choose one: --broker NAME|ADDRESS",
        )  # fmt: skip
    return chosen


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
def show_tables(*, table: str | None, limit: int, out: str | None, broker: str | None) -> None:
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
def report(*, out: str | None, broker: str | None) -> None:
    """Write the tables as one HTML page with charts, and the charts as PNG files. Needs no Spark."""
    from scale0_spark.report.page import write_report

    written = write_report(_out(out, broker))
    charts = [str(path) for path in written.charts]
    kit.emit("scale0.spark.report/1", {"page": str(written.page), "charts": charts})
    if written.damaged:
        kit.finish(kit.Exit.NEGATIVE)
