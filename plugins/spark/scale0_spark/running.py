"""Runs jobs and streams in a session: events in, tables out, lines about progress meanwhile."""
# does I/O: it reads events, writes tables and waits for streams

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import Exit, NegativeError

from . import tables
from .progress import Progress, job_look, number, stream_look
from .session import open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .jobs import Options

LOOK = 0.3
"""Seconds between two looks whether a stream has ended."""
CHECKPOINTS = ".checkpoints"


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
        told = [line for line in str(error).splitlines() if line.strip()]
        why = "\n".join(told[:3]) or type(error).__name__
        raise JobError(
            f"{what} failed", why, "each of its tables is as it was before, or new and whole",
            "run it again with --log FILE, and look there",
        ) from error  # fmt: skip


def run_jobs(
    names: Sequence[str], span: Span, out: Path, place: Place, progress: Progress, options: Options | None = None
) -> list[tables.Entry]:
    """Run jobs one after the other in one session, and write their tables."""
    if not span.folder.is_dir() and place.remote is None:
        raise NegativeError(
            f"there is no folder {span.folder}", "events are read from there", "no Spark session was started",
            "enable the plugin telemetry in a broker; or name the folder with --events",
        )  # fmt: skip
    from .jobs import JOBS

    with session("scale0 " + " ".join(names), place, progress) as spark:
        return [entry for name in names for entry in _run_job(spark, JOBS[name], span, out, progress, options)]


def _run_job(
    spark: SparkSession, job: Any, span: Span, out: Path, progress: Progress, options: Options | None
) -> list[tables.Entry]:
    from .events import deduplicated, read_events
    from .jobs import run

    with explained(f"the job {job.name}"):
        with progress.during(f"{job.name}: reading events", job_look(spark)):
            folder = str(span.folder.absolute())
            read = read_events(spark, folder, job.kinds, span.since, span.until, earlier=job.earlier)
            found = deduplicated(read)
        return [_write(spark, out, name, frame, progress) for name, frame in run(job, found, options).items()]


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
    options: Options | None = None,
) -> list[str]:
    """Keep tables up to date until a signal comes; with `every` None, until all that is there now was read.

    Gives the names of the tables that were written.
    """
    from .streaming import STREAMS, start

    trigger: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every:g} seconds"}
    kept = (checkpoints or out / CHECKPOINTS).absolute()
    with _until_a_signal() as ended, session("scale0 stream", place, progress) as spark, explained("the stream"):
        store, queries = Store(str(out.absolute())), []
        for name in names:
            events = _stream(spark, source, STREAMS[name].kinds, name)
            checkpoint = str(kept / name)
            queries.append(start(STREAMS[name], events, store, checkpoint, options=options, late=late, trigger=trigger))
        with progress.during("streams", stream_look(lambda: queries)):
            _wait(queries, ended)
    return list(names)


def _stream(spark: SparkSession, source: Span | Pipe, kinds: Sequence[str], name: str) -> DataFrame:
    if isinstance(source, Pipe):
        from .zpipes import register

        register(spark)
        # each table has its own reader: none waits for another, and the pipe keeps what one of them still needs
        told = {"address": source.address, "pipe": source.name, "payload": "events", "group": f"spark-{name}"}
        return spark.readStream.format("zpipes").options(**told).load()
    from .events import stream_events

    return stream_events(spark, str(source.folder.absolute()), kinds)


def _wait(queries: Sequence[StreamingQuery], ended: threading.Event) -> None:
    """Wait until all queries ended, one failed, or a signal came; then stop what still runs."""
    try:
        while not ended.wait(LOOK) and any(query.isActive for query in queries):
            for query in queries:
                if failure := query.exception():
                    raise failure
        for query in queries:
            if failure := query.exception():
                raise failure
    finally:
        for query in queries:
            with contextlib.suppress(Exception):
                query.stop()


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
