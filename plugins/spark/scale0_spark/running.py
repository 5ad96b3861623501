"""Runs jobs and streams in a session: events in, tables out, lines about progress meanwhile."""
# does I/O: it reads events, writes tables and waits for streams

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import Exit, NegativeError, say

from . import tables
from .checkpoints import check_checkpoint, note_down
from .progress import MOST_NAMED, SKIPPED, Missed, Progress, StreamWatch, duration, job_look, number
from .session import open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .jobs import Job, Options
    from .merging import Merged

LOOK = 0.3
"""Seconds between two looks whether a stream has ended."""
COUNT_EVERY = 16
"""After so many looks the events that came too late are counted: Spark tells of the last 100 batches, no more."""
CHECKPOINTS = ".checkpoints"
LATE = timedelta(hours=1)
"""How late an event may come and still count, if nothing else is said."""

STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
"""Where a stream has its state: in RocksDB, on disk.

A stream remembers the id of each event for as long as it may come again, and of all events that it finds at its start.
In Java's memory, which is Spark's default, that is about 300 bytes for each event and table: 2 million events in the
six tables of the default filled 1.3 GB of 4, and an hour of 1,000 events a second would take about twice that. With
RocksDB they filled 0.1 GB. It is as fast with small batches; the first one, of those 2 million, took twice as long.
"""


class JobError(Scale0Error):
    """Spark could not end a job."""

    exit_code = Exit.BUG


@attrs.frozen
class Place:
    """Where Spark runs, and with which settings beside ours."""

    master: str
    remote: str | None = None
    settings: Mapping[str, str] = attrs.field(factory=dict)
    log: Path | None = None


@attrs.frozen
class Span:
    """Which events are looked at."""

    folder: Path
    since: datetime | None = None
    until: datetime | None = None


@attrs.frozen
class Pipe:
    """A pipe that events come through."""

    name: str
    broker: str
    """The broker's name or address."""
    group: str = "spark"
    """What the names of its reader groups begin with; two streams with the same one take each other's chunks away."""
    skip_bad: bool = False
    """Whether chunks that hold no events, or are gone, are left out instead of ending the stream."""


@contextlib.contextmanager
def session(app: str, place: Place, progress: Progress) -> Iterator[SparkSession]:
    """Start a session and tell people of it, since it takes some seconds."""
    where = place.remote or place.master
    with contextlib.ExitStack() as stack:
        with progress.during(f"Spark session at {where}"):
            spark = stack.enter_context(
                open_session(app, place.master, place.remote, settings=place.settings, log=place.log)
            )
        yield spark


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Give Spark's errors as ours, with their first line; what Java throws is pages long."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        why, remedy = _in_words_of_the_command(_why(error))
        kind = tables.RowsLostError if "--replace" in remedy else JobError
        raise kind(f"{what} failed", why, "each of its tables is as it was before, or new and whole", remedy) from error


def _in_words_of_the_command(why: str) -> tuple[str, str]:
    """Give why something failed, and what to do: errors of a source name its options, which the command has not."""
    rest, _, advice = why.rpartition("; ")
    if "failOnDataLoss" in advice:
        return rest, SKIP
    if "--replace" in advice:
        return rest, advice
    return why, ANEW if "checkpoint" in why else "run it again with --log FILE, and look there"


SKIP = (
    "leave such chunks out with --skip-bad; if another stream reads the pipe by the same group, give this one another"
    " --group, and another folder for --checkpoints and for --out"
)
"""What to do about chunks of a pipe that are gone, or hold no events."""

ANEW = "begin anew with another folder for --checkpoints: tables then hold what the pipe still has"
"""What to do when a stream from a pipe cannot go on from its checkpoint."""


def _why(error: Exception) -> str:
    """Give what an error says: the sentence of ours that is somewhere in it, else its first lines."""
    told = [line for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in told if line.startswith("scale0_spark.")]
    return "\n".join(ours[-1:] or told[:3]) or type(error).__name__


def run_jobs(
    names: Sequence[str],
    span: Span,
    out: Path,
    place: Place,
    progress: Progress,
    options: Options | None = None,
    *,
    replace: bool = False,
) -> list[tables.Entry]:
    """Run jobs one after the other in one session, and merge what they computed into their tables.

    With `replace` the tables hold what was computed and nothing else. Raise RowsLostError if rows of a table would be
    lost without that; then no table was changed.
    """
    _check_folder(span, place)
    from .jobs import JOBS, Options

    chosen = options or Options()
    with session("scale0 " + " ".join(names), place, progress) as spark:
        results, failure = _computed(
            spark, [JOBS[name] for name in names], span, out, progress, chosen, replace=replace
        )
        written = _merge(out, results, chosen, progress, replace=replace)
    if failure is not None:
        raise failure
    return written


def _check_folder(span: Span, place: Place) -> None:
    """Refuse a folder of events that is not there; a Spark Connect server may see others than we do."""
    if not span.folder.is_dir() and place.remote is None:
        raise NegativeError(
            f"there is no folder {span.folder}", "events are read from there", "no Spark session was started",
            "enable the plugin telemetry in a broker; or name the folder with --events",
        )  # fmt: skip


@attrs.frozen
class _Result:
    """What a job computed for a table."""

    job: Job
    table: str
    read: tables.Coverage
    """Of which events, and the first day of which some are stored."""
    rows: pa.Table


def _computed(
    spark: SparkSession, jobs: Sequence[Job], span: Span, out: Path, progress: Progress, options: Options, *,
    replace: bool,
) -> tuple[list[_Result], JobError | None]:  # fmt: skip
    """Compute the tables of jobs up to the first that fails. Files are listed and repeats looked for once for all."""
    from .events import chosen, deduplicated, first_days, repeats_in, stored_events, windows_between
    from .jobs import reach
    from .merging import SHAPES, reading, united

    asked = tables.Coverage(_utc(span.since), _utc(span.until))
    spans = {
        name: reading(SHAPES[name], asked, None if replace else tables.coverage(out, name))
        for job in jobs
        for name in job.tables
    }

    def of(some: Sequence[Job], read: tables.Coverage, beyond: timedelta = timedelta()) -> DataFrame:
        kinds = sorted({kind for job in some for kind in job.kinds})
        earlier = {kind: back for kind, back in reach(some, options).items() if back != timedelta()}
        until = None if read.until is None else read.until + beyond
        return chosen(stored, kinds, read.since, until, earlier=earlier)

    with explained("reading events"), progress.during("reading events", job_look(spark)):
        stored = stored_events(spark, str(span.folder.absolute()))
        days = first_days(stored)
        most = max(SHAPES[name].beyond for name in spans)
        repeats = repeats_in(of(jobs, reduce(united, spans.values()), most))

    results: list[_Result] = []
    try:
        for job in jobs:
            first = min((days[kind] for kind in job.kinds if kind in days), default=None)
            for name, transform in job.tables.items():
                shape, read = SHAPES[name], attrs.evolve(spans[name], first=first)
                with explained(f"the job {job.name}"), progress.during(name, job_look(spark)):
                    made = transform(deduplicated(of([job], read, shape.beyond), repeats=repeats), options)
                    if shape.every is not None:
                        made = windows_between(made, read.since, read.until)
                    results.append(_Result(job, name, read, made.toArrow()))
    except JobError as error:
        return results, error
    return results, None


def _merge(
    out: Path, results: Sequence[_Result], options: Options, progress: Progress, *, replace: bool
) -> list[tables.Entry]:
    """Merge results into their tables and write these, or none of them if one would lose rows."""
    from .merging import SHAPES, Merged

    with tables.locked(out):
        new: dict[str, Merged] = {}
        losses: list[str] = []
        for result in results:
            name = result.table
            if replace:
                new[name] = Merged(result.rows, result.read)
                continue
            before = tables.coverage(out, name)
            old = None if before is None else (tables.read(out, name), before)
            new[name] = into = _merged(result, old, options)
            if into.lost and not SHAPES[name].shrinks and not into.gone:
                count = 0 if old is None else old[0].num_rows
                losses.append(f"{name} would lose {number(into.lost)} of {number(count)} rows")
        if losses:
            raise tables.RowsLostError(
                "; ".join(losses), "the events that were read do not have them", "no table was changed",
                "name the folder of their events with --events; another folder for these with --out; or add --replace",
            )  # fmt: skip
        return [_written(out, result, new[result.table], progress) for result in results]


def _merged(result: _Result, old: tuple[pa.Table, tables.Coverage] | None, options: Options) -> Merged:
    from .merging import SHAPES, NoSuccessorError, merged

    weeks = 0 if result.job.weeks_before is None else result.job.weeks_before(options)
    try:
        return merged(SHAPES[result.table], old, result.rows, result.read, timedelta(weeks=weeks))
    except NoSuccessorError as error:
        raise tables.RowsLostError(
            f"{result.table} is a table of another version", str(error), "no table was changed",
            "make it anew from all events: add --replace",
        ) from error  # fmt: skip


def _written(out: Path, result: _Result, into: Merged, progress: Progress) -> tables.Entry:
    name = result.table
    entry = tables.write(out, name, into.table, coverage=into.coverage)
    kept = f", {number(into.kept)} of them from before" if into.kept else ""
    progress.say(f"{name}: {number(entry.rows)} rows written{kept}")
    if into.lost and into.gone:
        say(f"{name}: {number(into.lost)} rows are no longer in it, since their events are no longer stored")
    return entry


def _utc(moment: datetime | None) -> datetime | None:
    if moment is None or moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=timezone.utc)


# --- streams ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Store:
    """The tables of a folder, as streams keep them."""

    out: str

    def read(self, name: str) -> pa.Table | None:
        """Give a table, or None if it was never written."""
        try:
            return tables.read(Path(self.out), name)
        except NegativeError:
            return None

    def write(self, name: str, table: pa.Table) -> None:
        """Put a table in the place of the one that is there."""
        tables.write(Path(self.out), name, table)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Have the tables to oneself."""
        return tables.locked(Path(self.out))


def run_streams(
    names: Sequence[str],
    source: Span | Pipe,
    out: Path,
    place: Place,
    progress: Progress,
    *,
    checkpoints: Path | None = None,
    every: float | None = None,
    late: timedelta = LATE,
    keep: timedelta | None = None,
    files_per_batch: int | None = None,
    options: Options | None = None,
    replace: bool = False,
) -> dict[str, Missed]:
    """Keep tables up to date until a signal comes; with `every` None, until all that is there now was read.

    With a new checkpoint the first batch puts new tables in the place of those that are there. Raise RowsLostError if
    rows would be lost by that, unless `replace` is set.

    Gives for each table what is not in it: events that came too late, and chunks that were left out.
    """
    kept = (checkpoints or out / CHECKPOINTS).absolute()
    notes = {name: _note(source, name, options) for name in names}
    if isinstance(source, Span):
        _check_folder(source, place)
    # the checkpoints of a Spark Connect server are on its own disk
    own = {} if place.remote is not None else {kept / name: note for name, note in notes.items()}
    for checkpoint, note in own.items():
        check_checkpoint(checkpoint, note)
    from .streaming import STREAMS, start

    trigger: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every:g} seconds"}
    place = attrs.evolve(place, settings={**STATE, **place.settings})
    with _until_a_signal() as ended, session("scale0 stream", place, progress) as spark, explained("the stream"):
        spark_late = f"{late.total_seconds():.0f} seconds"
        told: dict[str, Any] = {"options": options, "late": spark_late, "keep": keep, "trigger": trigger}
        told["replace"] = replace
        store, queries = Store(str(out.absolute())), []
        with progress.during("starting streams"):
            for checkpoint, note in own.items():
                note_down(checkpoint, note)
            for name in names:
                stream, events = STREAMS[name], _stream(spark, source, STREAMS[name].kinds, name, files_per_batch)
                queries.append(start(stream, events, store, str(kept / name), **told))
        watch = StreamWatch(queries)
        with progress.during("streams", watch.look, watch.brief):
            _wait(queries, ended, watch)
        missed = watch.missed()
        for name, some in missed.items():
            _say_missed(name, some, late, progress)
        return missed


def _say_missed(name: str, missed: Missed, late: timedelta, progress: Progress) -> None:
    """Say what is not in a table."""
    if missed.too_late:
        progress.say(
            f"{name}: {missed.too_late} events are not in it, since they came more than"
            f" {duration(late.total_seconds())} behind others; a job counts all that is stored: scale0 spark run"
        )
    if missed.skipped:
        named = ", ".join(map(str, missed.named))
        more = " and others" if missed.skipped > len(missed.named) else ""
        progress.say(
            f"{name}: {missed.skipped} chunks of the pipe were left out, since they are gone or hold no events:"
            f" {named}{more}; Spark's log says why: --log FILE"
        )


def _note(source: Span | Pipe, name: str, options: Options | None) -> dict[str, Any]:
    """Tell what the state of a table's stream depends on; to go on with other values would mix two kinds of sums."""
    if isinstance(source, Pipe):
        note: dict[str, Any] = {"pipe": source.name, "address": source.broker, "group": source.group}
    else:
        note = {"folder": str(source.folder.resolve())}
    if name == "popularity":
        from .jobs import Options

        note["half_life_days"] = (options or Options()).popularity.half_life_days
    return note


def _stream(
    spark: SparkSession, source: Span | Pipe, kinds: Sequence[str], name: str, files_per_batch: int | None
) -> DataFrame:
    if isinstance(source, Pipe):
        from .zpipes import register

        register(spark)
        # each table has its own reader: none waits for another, and the pipe keeps what one of them still needs
        told = {"broker": source.broker, "pipe": source.name, "payload": "events", "group": f"{source.group}-{name}"}
        if not source.skip_bad:
            return spark.readStream.format("zpipes").options(**told).load()
        told |= {"failOnDataLoss": "false", "markSkipped": "true"}
        return _counting_skipped(spark.readStream.format("zpipes").options(**told).load())
    from .events import stream_events

    return stream_events(spark, str(source.folder.absolute()), kinds, files_per_batch=files_per_batch)


def _counting_skipped(events: DataFrame) -> DataFrame:
    """Have the query tell of the rows that stand for chunks; they are of no kind, so that no table has them."""
    from pyspark.sql import functions as F  # noqa: N812

    is_mark = F.col("kind").isNull()
    named = F.slice(F.array_sort(F.collect_set(F.when(is_mark, F.col("sequence")))), 1, MOST_NAMED)
    return events.observe(SKIPPED, F.sum(F.when(is_mark, F.col("count"))).alias("chunks"), named.alias("named"))


def _wait(queries: Sequence[StreamingQuery], ended: threading.Event, watch: StreamWatch) -> None:
    """Wait until all queries ended, one failed, or a signal came; then stop what still runs."""
    looks = 0
    try:
        while not ended.wait(LOOK) and any(query.isActive for query in queries):
            _raise_failure(queries)
            looks += 1
            if looks % COUNT_EVERY == 0:
                with contextlib.suppress(Exception):  # what could not be counted now is counted with the next ones
                    watch.count()
        _raise_failure(queries)
    finally:
        with contextlib.suppress(Exception):
            watch.count()
        for query in queries:
            with contextlib.suppress(Exception):
                query.stop()


def _raise_failure(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        if failure := query.exception():
            raise failure


@contextlib.contextmanager
def _until_a_signal() -> Iterator[threading.Event]:
    """Have INT and TERM end a stream in order, not in the middle of a write."""
    ended = threading.Event()

    def note(_: int, __: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
