"""Runs jobs and streams in a session: events in, tables out, lines about progress meanwhile."""
# does I/O: it reads events, writes tables and waits for streams

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import Exit, NegativeError, UsageError

from . import tables
from .progress import Progress, StreamWatch, job_look, number
from .session import open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .jobs import Job, Options

LOOK = 0.3
"""Seconds between two looks whether a stream has ended."""
COUNT_EVERY = 16
"""After so many looks the events that came too late are counted: Spark tells of the last 100 batches, no more."""
CHECKPOINTS = ".checkpoints"

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
    address: str


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
        why = _why(error)
        raise JobError(
            f"{what} failed", why, "each of its tables is as it was before, or new and whole",
            ANEW if "checkpoint" in why else "run it again with --log FILE, and look there",
        ) from error  # fmt: skip


ANEW = "begin anew with another folder for --checkpoints: tables then hold what the pipe still has"
"""What to do when a stream from a pipe cannot go on from its checkpoint."""


def _why(error: Exception) -> str:
    """Give what an error says: the sentence of ours that is somewhere in it, else its first lines."""
    told = [line for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in told if line.startswith("scale0_spark.")]
    return "\n".join(ours[-1:] or told[:3]) or type(error).__name__


def run_jobs(
    names: Sequence[str], span: Span, out: Path, place: Place, progress: Progress, options: Options | None = None
) -> list[tables.Entry]:
    """Run jobs one after the other in one session, and write their tables."""
    _check_folder(span, place)
    from .jobs import JOBS, Options

    chosen = options or Options()
    with session("scale0 " + " ".join(names), place, progress) as spark:
        jobs = [JOBS[name] for name in names]
        events = _events_of(spark, jobs, span, chosen, progress)
        return [
            entry for job in jobs for entry in _run_job(spark, job, events[job.name], out, progress, chosen, span.since)
        ]


def _check_folder(span: Span, place: Place) -> None:
    """Refuse a folder of events that is not there; a Spark Connect server may see others than we do."""
    if not span.folder.is_dir() and place.remote is None:
        raise NegativeError(
            f"there is no folder {span.folder}", "events are read from there", "no Spark session was started",
            "enable the plugin telemetry in a broker; or name the folder with --events",
        )  # fmt: skip


def _events_of(
    spark: SparkSession, jobs: Sequence[Job], span: Span, options: Options, progress: Progress
) -> dict[str, DataFrame]:
    """Give the events of each job, each once. Files are listed and repeats looked for once for all jobs."""
    from .events import chosen, deduplicated, repeats_in, stored_events
    from .jobs import reach

    with explained("reading events"), progress.during("reading events", job_look(spark)):
        stored = stored_events(spark, str(span.folder.absolute()))

        def of(*some: Job) -> DataFrame:
            kinds = sorted({kind for job in some for kind in job.kinds})
            earlier = {kind: back for kind, back in reach(some, options).items() if back != timedelta()}
            return chosen(stored, kinds, span.since, span.until, earlier=earlier)

        repeats = repeats_in(of(*jobs))
        return {job.name: deduplicated(of(job), repeats=repeats) for job in jobs}


def _run_job(
    spark: SparkSession,
    job: Job,
    events: DataFrame,
    out: Path,
    progress: Progress,
    options: Options,
    since: datetime | None,
) -> list[tables.Entry]:
    from .events import windows_from
    from .jobs import run

    with explained(f"the job {job.name}"):
        made = run(job, events, options)
        if since is not None and job.weeks_before is not None:
            made = {name: windows_from(frame, since) for name, frame in made.items()}
        return [_write(spark, out, name, frame, progress) for name, frame in made.items()]


def _write(spark: SparkSession, out: Path, name: str, frame: DataFrame, progress: Progress) -> tables.Entry:
    with progress.during(name, job_look(spark)):
        table = frame.toArrow()
    entry = tables.write(out, name, table)
    progress.say(f"{name}: {number(entry.rows)} rows written")
    return entry


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


def run_streams(
    names: Sequence[str],
    source: Span | Pipe,
    out: Path,
    place: Place,
    progress: Progress,
    *,
    checkpoints: Path | None = None,
    every: float | None = None,
    late: str = "1 hour",
    keep: timedelta | None = None,
    files_per_batch: int | None = None,
    options: Options | None = None,
) -> dict[str, int]:
    """Keep tables up to date until a signal comes; with `every` None, until all that is there now was read.

    Gives for each table how many events came too late for it.
    """
    kept = (checkpoints or out / CHECKPOINTS).absolute()
    if isinstance(source, Span):
        _check_folder(source, place)
    if place.remote is None:
        _check_checkpoints(kept, names, source)
    from .streaming import STREAMS, start

    trigger: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every:g} seconds"}
    place = attrs.evolve(place, settings={**STATE, **place.settings})
    with _until_a_signal() as ended, session("scale0 stream", place, progress) as spark, explained("the stream"):
        told: dict[str, Any] = {"options": options, "late": late, "keep": keep, "trigger": trigger}
        store, queries = Store(str(out.absolute())), []
        with progress.during("starting streams"):
            for name in names:
                stream, events = STREAMS[name], _stream(spark, source, STREAMS[name].kinds, name, files_per_batch)
                queries.append(start(stream, events, store, str(kept / name), **told))
        watch = StreamWatch(queries)
        with progress.during("streams", watch.look, watch.brief):
            _wait(queries, ended, watch)
        return _too_late(watch, late, progress)


def _too_late(watch: StreamWatch, late: str, progress: Progress) -> dict[str, int]:
    """Say which events are not in the tables."""
    counts = watch.too_late()
    for name, count in counts.items():
        if count:
            progress.say(
                f"{name}: {count} events are not in it, since they came more than {late} behind others; "
                "a job counts all that is stored: scale0 spark run"
            )
    return counts


def _check_checkpoints(kept: Path, names: Sequence[str], source: Span | Pipe) -> None:
    """Refuse checkpoints of another source: Spark would fail at the first batch, or count from the wrong place."""
    now = f"the pipe {source.name}" if isinstance(source, Pipe) else "files"
    for name in names:
        before = _source_of(kept / name)
        if before is not None and before != now:
            raise UsageError(
                f"the checkpoint of {name} in {kept} is of {before}", f"this stream takes its events from {now}",
                "no Spark session was started",
                "go on as before; or begin anew with another folder for --checkpoints, and for --out",
            )  # fmt: skip


def _source_of(checkpoint: Path) -> str | None:
    """Give where the events of a checkpoint come from, in words; None if it has no batch yet, or cannot be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        batches = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
        newest = max(batches, key=lambda path: int(path.name))
        offset = json.loads(newest.read_text(encoding="utf-8").splitlines()[-1])
        return "files" if "logOffset" in offset else f"the pipe {', '.join(offset.keys())}"
    return None


def _stream(
    spark: SparkSession, source: Span | Pipe, kinds: Sequence[str], name: str, files_per_batch: int | None
) -> DataFrame:
    if isinstance(source, Pipe):
        from .zpipes import register

        register(spark)
        # each table has its own reader: none waits for another, and the pipe keeps what one of them still needs
        told = {"address": source.address, "pipe": source.name, "payload": "events", "group": f"spark-{name}"}
        return spark.readStream.format("zpipes").options(**told).load()
    from .events import stream_events

    return stream_events(spark, str(source.folder.absolute()), kinds, files_per_batch=files_per_batch)


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
