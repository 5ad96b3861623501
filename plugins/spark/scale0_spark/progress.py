"""What Spark is doing, on stderr while it does it.

On a terminal one line that is written over; elsewhere a plain line every few seconds. Nothing at all when quiet.
"""
# does I/O: it looks at the clock and at Spark's counters from a thread

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

import attrs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK = 0.25
"""Seconds between two looks, and between two writes of the line on a terminal."""
PLAIN_EVERY = 5.0
"""Seconds between two lines where lines stay."""
WIDTH = 100

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

    def since(self, before: Work) -> Work:
        """Give what came after an earlier look."""
        return Work(
            self.stages_done - before.stages_done, self.stages - before.stages, self.tasks_done - before.tasks_done,
            self.tasks - before.tasks, self.rows - before.rows,
        )  # fmt: skip


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
    def during(self, what: str, look: Look = lambda: "") -> Iterator[None]:
        """Show what is going on, with what a look at it tells, until the block ends; then say how long it took."""
        if self._quiet:
            yield
            return
        began, ended = self._clock(), threading.Event()
        if not self._live:
            self.say(f"{what} ...")
        thread = threading.Thread(target=self._watch, args=(what, look, began, ended), daemon=True)
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
    """Count by Spark's own store of what it did, which is kept also without its pages."""
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()  # noqa: SLF001  the tracker that is public counts no rows
    tracker = context.statusTracker()
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
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
        stages = sorted({number for job in jobs if job is not None for number in job.stageIds})
        return total(stage(number) for number in stages)

    return count


def total(works: Iterator[Work]) -> Work:
    """Add up."""
    sums = [0, 0, 0, 0, 0]
    for work in works:
        sums = [have + more for have, more in zip(sums, attrs.astuple(work), strict=True)]
    return Work(*sums)


def _connect_counter(spark: SparkSession) -> Callable[[], Work]:
    """Count by what a Spark Connect server tells: stages and tasks of each operation, no rows."""
    operations: dict[str, Work] = {}

    def heard(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        parts = [Work(int(one.done), 1, one.num_completed_tasks, one.num_tasks) for one in stages or ()]
        if parts:
            operations[operation_id or ""] = total(iter(parts))

    handler: Any = heard  # Spark's type asks for other names of the arguments than it uses
    spark.registerProgressHandler(handler)
    return lambda: total(iter(list(operations.values())))


# --- streams ----------------------------------------------------------------------------------------------------------


def stream_line(name: str, progress: Mapping[str, Any], now: datetime) -> str:
    """Write what a streaming query tells of its last batch: its number, rows, rows a second, and how far behind."""
    parts = [f"{name}: batch {progress.get('batchId', '-')}", f"{number(progress.get('numInputRows') or 0)} rows"]
    if rate := progress.get("processedRowsPerSecond"):
        parts.append(f"{number(rate)} rows/s")
    if newest := (progress.get("eventTime") or {}).get("max"):
        parts.append(f"lag {_seconds_between(newest, now):.1f} s")
    return _line(*parts)


def _seconds_between(text: str, now: datetime) -> float:
    """Give the seconds since a time that Spark wrote, such as 2030-01-02T12:00:00.000Z."""
    try:
        then = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=timezone.utc))).total_seconds())


def stream_look(queries: Callable[[], list[Any]]) -> Look:
    """Give a look at streaming queries."""

    def look() -> str:
        now = datetime.now(timezone.utc)
        told = [(query.name or "stream", as_mapping(query.lastProgress)) for query in queries()]
        return " | ".join(stream_line(name, progress, now) for name, progress in told if progress)

    return look


def as_mapping(progress: Any) -> Mapping[str, Any]:
    """Give the progress of a query as a mapping, whichever way Spark hands it out."""
    import json

    if progress is None or isinstance(progress, Mapping):
        return progress or {}
    return dict(json.loads(progress.json))
