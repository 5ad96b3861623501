"""What Spark is doing, on stderr while it does it.

On a terminal one line that is written over; elsewhere a plain line every few seconds. Nothing at all when quiet.
"""
# does I/O: it looks at the clock and at Spark's counters from a thread

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakKeyDictionary

import attrs

from scale0_core.api import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK = 0.25
"""Seconds between two looks, and between two writes of the line on a terminal."""
PLAIN_EVERY = 5.0
"""Seconds between two lines where lines stay."""
WIDTH = 100
SKIPPED = "skipped"
"""The name under which a query counts chunks that it leaves out, and names the first of them."""

Clock = Callable[[], float]
Look = Callable[[], str]


@attrs.frozen
class Work:
    """How far Spark is with what it was asked for."""

    stages_done: int = 0
    stages: int = 0
    tasks_done: int = 0
    tasks: int = 0
    rows: int = 0
    bytes: int = 0
    """What was read, where nobody tells how many rows that is."""

    def since(self, before: Work) -> Work:
        """Give what came after an earlier look."""
        return Work(*(now - then for now, then in zip(attrs.astuple(self), attrs.astuple(before), strict=True)))


class Progress:
    """Writes lines about what is going on; with `quiet`, none."""

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, clock: Clock = time.monotonic, every: float = LOOK
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._every = every
        self._live = not quiet and self._stream.isatty()
        self._shown = 0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self._quiet:
            return
        with self._lock:
            self._clear()
            self._stream.write(text + "\n")
            self._stream.flush()

    def _show(self, text: str) -> None:
        """Write over the line that is there."""
        with self._lock:
            self._clear()
            self._stream.write(text[:WIDTH])
            self._stream.flush()
            self._shown = min(len(text), WIDTH)

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._shown = 0

    @contextlib.contextmanager
    def during(self, what: str, look: Look = lambda: "", brief: Look | None = None) -> Iterator[None]:
        """Show what is going on, with what a look at it tells, until the block ends; then say how long it took.

        `brief` is the look for the one line of a terminal, where that of `look` is too long for it.
        """
        if self._quiet:
            yield
            return
        began, ended = self._clock(), threading.Event()
        if not self._live:
            self.say(f"{what} ...")
        watched = brief if brief is not None and self._live else look
        thread = threading.Thread(target=self._watch, args=(what, watched, began, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            last = _told(look)
            ended.set()
            thread.join()
            how = "" if sys.exc_info()[0] is None else "failed after "
            self.say(_line(f"{what}: {how}{self._clock() - began:.1f} s", last))

    def _watch(self, what: str, look: Look, began: float, ended: threading.Event) -> None:
        every = self._every if self._live else PLAIN_EVERY
        while not ended.wait(every):
            line = _line(f"{what} {self._clock() - began:.0f} s", _told(look))
            if self._live:
                self._show(line)
            else:
                self.say(line)


def _told(look: Look) -> str:
    """Look, whatever comes of it: a session that is ending must not take the command down with it."""
    try:
        return look()
    except Exception:  # noqa: BLE001, S110, RUF100  Java throws what it likes
        return ""


def _line(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


# --- batch ------------------------------------------------------------------------------------------------------------


def job_look(spark: SparkSession, clock: Clock = time.monotonic) -> Look:
    """Give a look at the jobs that run from now on: stages, tasks, rows and rows a second."""
    count = _connect_counter(spark) if _is_remote(spark) else _classic_counter(spark)
    before, began = count(), clock()

    def look() -> str:
        return work_line(count().since(before), clock() - began)

    return look


def work_line(work: Work, seconds: float) -> str:
    """Write how far Spark is."""
    parts = [f"stages {work.stages_done}/{work.stages}", f"tasks {work.tasks_done}/{work.tasks}"]
    if work.rows:
        parts.append(f"{number(work.rows)} rows")
        parts.append(f"{number(work.rows / max(seconds, 0.001))} rows/s")
    elif work.bytes:
        parts.append(f"{number(work.bytes)}B read")
        parts.append(f"{number(work.bytes / max(seconds, 0.001))}B/s")
    return _line(*parts) if work.stages else ""


def number(value: float) -> str:
    """Write a number so that it is read at a glance: 950, 12.3k, 4.56M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _classic_counter(spark: SparkSession) -> Callable[[], Work]:
    """Count by Spark's own store of what it did, which is kept also without its pages; jobs of before are left out.

    To ask for these as well would take seconds in a session that has done much.
    """
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()  # noqa: SLF001  the tracker that is public counts no rows
    tracker = context.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    done: dict[int, Work] = {}

    def stage(number: int) -> Work:
        if number in done:
            return done[number]
        try:
            data = store.lastStageAttempt(number)
        except Exception:  # noqa: BLE001, RUF100  a stage of a job that is waiting is not in the store yet
            return Work(stages=1)
        status = str(data.status())
        if status == "SKIPPED":  # what it would make is there already; its tasks are never run
            work = Work(1, 1)
        else:
            ended = int(status == "COMPLETE")
            work = Work(ended, 1, data.numCompleteTasks(), data.numTasks(), data.inputRecords())
        if status in ("COMPLETE", "SKIPPED", "FAILED"):
            done[number] = work
        return work

    def count() -> Work:
        jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(None)) - before]
        stages = sorted({number for job in jobs if job is not None for number in job.stageIds})
        return total(stage(number) for number in stages)

    return count


def total(works: Iterable[Work]) -> Work:
    """Add up."""
    sums = attrs.astuple(Work())
    for work in works:
        sums = tuple(have + more for have, more in zip(sums, attrs.astuple(work), strict=True))
    return Work(*sums)


class _Heard:
    """What a Spark Connect server tells of a session: stages, tasks and bytes of each operation, no rows."""

    def __init__(self) -> None:
        self._ended = Work()
        self._open: dict[str, Work] = {}
        self._lock = threading.Lock()

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        parts = [
            Work(int(one.done), 1, one.num_completed_tasks, one.num_tasks, bytes=one.num_bytes_read)
            for one in stages or ()
        ]
        name = operation_id or ""
        with self._lock:
            if parts:
                self._open[name] = total(parts)
            if done:
                self._ended = total([self._ended, self._open.pop(name, Work())])

    def count(self) -> Work:
        with self._lock:
            return total([self._ended, *self._open.values()])


_HEARD: WeakKeyDictionary[SparkSession, _Heard] = WeakKeyDictionary()
"""One for each session: Spark keeps what is registered, and calls all of it for each operation."""


def _connect_counter(spark: SparkSession) -> Callable[[], Work]:
    if spark not in _HEARD:
        handler: Any = _Heard()  # Spark's type asks for other names of the arguments than it uses
        spark.registerProgressHandler(handler)
        _HEARD[spark] = handler
    return _HEARD[spark].count


# --- streams ----------------------------------------------------------------------------------------------------------


MOST_NAMED = 10
"""So many of the chunks that a batch left out are named."""


@attrs.frozen
class Missed:
    """What is not in a table: events that came too late, and chunks of a pipe that were left out."""

    too_late: int = 0
    skipped: int = 0
    named: tuple[int, ...] = ()
    """The numbers of the first chunks that were left out."""

    def __add__(self, other: Missed) -> Missed:
        named = (*self.named, *other.named)[:MOST_NAMED]
        return Missed(self.too_late + other.too_late, self.skipped + other.skipped, named)

    def most(self, other: Missed) -> Missed:
        """Give the larger numbers, of two accounts of the same batch."""
        named = max(self.named, other.named, key=len)
        return Missed(max(self.too_late, other.too_late), max(self.skipped, other.skipped), named)


@attrs.frozen
class Batch:
    """What a streaming query tells of its last batch, and what it missed so far."""

    table: str
    number: int
    rows: int = 0
    rate: float = 0.0
    """Rows a second."""
    seconds: float = 0.0
    lag: float | None = None
    """Seconds since the newest event."""
    missed: Missed = Missed()


def batch_of(table: str, progress: Mapping[str, Any], now: datetime, missed: Missed = Missed()) -> Batch:
    """Take from the progress of a query what people want to know."""
    newest = (progress.get("eventTime") or {}).get("max")
    return Batch(
        table, int(progress.get("batchId", 0)), int(progress.get("numInputRows") or 0),
        float(progress.get("processedRowsPerSecond") or 0.0), float(progress.get("batchDuration") or 0) / 1000,
        None if newest is None else _seconds_between(newest, now), missed,
    )  # fmt: skip


def missed_in(progress: Mapping[str, Any]) -> Missed:
    """Give what a batch missed: events that Spark left out since they were too late, and what `SKIPPED` counted."""
    late = sum(int(part.get("numRowsDroppedByWatermark") or 0) for part in progress.get("stateOperators") or ())
    observed = (progress.get("observedMetrics") or {}).get(SKIPPED) or {}
    told = observed if isinstance(observed, Mapping) else observed.asDict()  # a row of Spark's, or what was its JSON
    return Missed(late, int(told.get("chunks") or 0), tuple(map(int, told.get("named") or ())))


def stream_line(batch: Batch) -> str:
    """Write how far a table is: the number of its batch, rows, rows a second, how far behind, and what it left out."""
    parts = [f"{batch.table}: batch {batch.number}", f"{number(batch.rows)} rows"]
    if batch.rate:
        parts.append(f"{number(batch.rate)} rows/s")
    return _line(*parts, *_behind(batch.lag, batch.missed))


def streams_line(batches: Sequence[Batch]) -> str:
    """Write how far all tables are in one short line: their sums, and the one that takes longest."""
    if len(batches) < 2:
        return _line(*map(stream_line, batches))
    slowest = max(batches, key=lambda batch: batch.seconds)
    lags = [batch.lag for batch in batches if batch.lag is not None]
    return _line(
        f"{len(batches)} tables",
        f"{number(sum(batch.rows for batch in batches))} rows",
        f"{number(sum(batch.rate for batch in batches))} rows/s",
        f"slowest {slowest.table} {duration(slowest.seconds)}",
        *_behind(max(lags, default=None), sum((batch.missed for batch in batches), Missed())),
    )


def _behind(lag: float | None, missed: Missed) -> Iterator[str]:
    if lag is not None:
        yield f"lag {duration(lag)}"
    if missed.too_late:
        yield f"{number(missed.too_late)} too late"
    if missed.skipped:
        yield f"{number(missed.skipped)} chunks skipped"


def duration(seconds: float) -> str:
    """Write how long something is so that it is read at a glance: 1.5 s, 35 min, 5.2 h, 312 d."""
    for unit, name, least in ((86_400, "d", 2), (3600, "h", 2), (60, "min", 2)):
        if seconds >= least * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.1f} s"


def _seconds_between(text: str, now: datetime) -> float:
    """Give the seconds since a time that Spark wrote, such as 2030-01-02T12:00:00.000Z."""
    try:
        then = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=timezone.utc))).total_seconds())


class StreamWatch:
    """What streaming queries tell of their batches; what they missed is counted over all of them."""

    def __init__(self, queries: Sequence[Any]) -> None:
        self._counted = [_Counted(query) for query in queries]
        self._lock = threading.Lock()

    def look(self) -> str:
        """Write a part for each table."""
        return " | ".join(map(stream_line, self._batches()))

    def brief(self) -> str:
        """Write one short line about all."""
        return streams_line(self._batches())

    def count(self) -> None:
        """Count what the queries told since the last look."""
        self._batches()

    def missed(self) -> dict[str, Missed]:
        """Give what is not in each table, as far as it was counted."""
        return {each.table: each.missed for each in self._counted}

    def _batches(self) -> list[Batch]:
        now = datetime.now(timezone.utc)
        with self._lock:  # a thread looks for the line, and the one that waits for the queries counts
            return [batch for each in self._counted if (batch := each.last_batch(now)) is not None]


class _Counted:
    """One query: its last batch, and what all of its batches missed."""

    def __init__(self, query: Any) -> None:
        self.table = query.name or "stream"
        self._query = query
        self._batch = -1
        self._of_batch = self._before = Missed()
        self._shown: Mapping[str, Any] = {}

    @property
    def missed(self) -> Missed:
        return self._before + self._of_batch

    def last_batch(self, now: datetime) -> Batch | None:
        last = as_mapping(self._query.lastProgress)
        if not last:
            return None
        # Spark keeps the progress of the last 100 batches: those since the last look are among them
        missed = last["batchId"] > self._batch + 1
        for progress in map(as_mapping, self._query.recentProgress) if missed else ():
            self._count(progress)
        self._count(last)
        return batch_of(self.table, self._shown, now, self.missed)

    def _count(self, progress: Mapping[str, Any]) -> None:
        """Add what a batch tells, which may be told again, and before it has begun."""
        number = int(progress["batchId"])
        if number > self._batch:
            self._before, self._batch, self._of_batch = self.missed, number, Missed()
        if number == self._batch:
            self._of_batch = self._of_batch.most(missed_in(progress))
        if progress.get("numInputRows") or not self._shown:  # the last batch is often one that only closes windows
            self._shown = progress


def as_mapping(progress: Any) -> Mapping[str, Any]:
    """Give the progress of a query as a mapping, whichever way Spark hands it out."""
    if progress is None or isinstance(progress, Mapping):
        return progress or {}
    return records.object_from(progress.json)
