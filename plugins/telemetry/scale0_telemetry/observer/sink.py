"""The thread that stores events: the loop hands them over and goes on.

Thread and loop share an interpreter, so the thread works in small pieces and lets the loop have its turn between them.
"""
# does I/O: a thread, the clock, files and a socket

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scale0_core.api import BatchReport, BrokerContext, Event, PackedEvents, RunningBroker, events, get_logger
from scale0_telemetry.observer.columns import Columns, Told, Turn
from scale0_telemetry.observer.load import Gauge, lost_events
from scale0_telemetry.observer.publisher import GOODBYE, Publisher
from scale0_telemetry.segments import Limits, Segments
from scale0_telemetry.settings import TelemetrySettings

LOG = get_logger("plugin.telemetry")

ROUND = 1.0
"""Seconds after which the thread looks at what there is."""

PIECE = 8192
"""Events that are converted in one go: some milliseconds, in which the loop has to wait for the interpreter now and
then. Smaller pieces cost more: each of some twenty calls gives the interpreter up and has to get it back. Larger ones
do as well: what the loop made is no longer in the processor's cache."""

PACKED = 8
"""So many packed events count as one: they are a few bytes, and nothing is done for each of them."""

LARGEST = 8 * PIECE
"""Events that are converted in one go when many wait: then it matters more to catch up."""

EARLY = PIECE
"""So many events wake it before; it is also woken when half of the places for those that wait are taken."""

PAUSE = 0.001
"""Seconds of rest between two pieces."""

STOP = 5.0
"""Seconds that the broker waits at its end until all is stored."""

STOP_PIPE = 2.0

QUEUE, FAILED = "queue", "failed"
"""Why events are lost."""

_FIRST_DAY = datetime.date(1970, 1, 1)


class Sink:
    """Takes what turns of the loop tell, and stores it on a thread of its own."""

    def __init__(self, settings: TelemetrySettings, context: BrokerContext, broker: RunningBroker) -> None:
        self._settings = settings
        epoch = time.time_ns() // 1000
        self._columns = Columns(broker.name, epoch, settings.sampling)
        self._segments: Segments | None = None
        if settings.files:
            folder = Path(settings.folder) if settings.folder else Path(context.data_dir) / "telemetry"
            limits = Limits(
                segment_bytes=settings.segment_bytes,
                segment_seconds=settings.segment_seconds,
                quota_bytes=settings.quota_bytes,
            )
            self._segments = Segments(folder, broker.name, epoch, limits)
        self._publisher: Publisher | None = None
        own = tuple(broker.addresses.get("zpipes", {}).get("pipes", ()))
        pipe_broker = settings.pipe_broker or own or broker.name
        if settings.pipe:
            writer = f"telemetry-{epoch}-{broker.name}".encode()[:64]
            self._publisher = Publisher(pipe_broker, settings.pipe.encode(), writer, settings.pipe_buffer)
        # a broker that stops answers nobody, itself included
        self._stop_pipe = 0.0 if pipe_broker in (own, broker.name, *own) else STOP_PIPE
        if unknown := sorted(settings.sampling.keys() - events.KINDS.keys()):
            LOG.warning("sampling names kinds that Scale0 itself does not have", kinds=", ".join(unknown))
        self._gauge = Gauge(broker, context.group)
        self._load_due = time.monotonic() + settings.load_interval
        self._queue: deque[Turn] = deque()
        self._offered = self._taken = self._refused = 0
        self._work_offered = self._work_taken = 0
        self._refused_told = 0
        self._failed = self._failed_before = False
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scale0-telemetry", daemon=True)

    # --- on the loop's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        # pyarrow imports more at its first column: beside a busy loop that takes seconds, in which events would be lost
        Columns("", 0).convert([(0.0, [("telemetry", [(events.DROP, 0.0, "telemetry", QUEUE, 0)])])])
        self._thread.start()

    def offer(self, report: BatchReport) -> None:
        """Take the events of a turn; costs the same for one and for thousands, and never waits."""
        self._gauge.turn(report.seconds)
        told = report.events
        if not told:
            return
        count, work = _count(told)
        # each of these numbers is changed by one of the two threads alone, so that no lock is needed
        waiting = self._offered - self._taken
        if waiting + count > self._settings.max_queue:
            self._refused += count
            return
        self._queue.append((time.time() - report.now - report.seconds, told))
        self._offered += count
        self._work_offered += work
        much = self._work_offered - self._work_taken >= EARLY or waiting >= self._settings.max_queue // 2
        if much and not self._wake.is_set():
            self._wake.set()

    def stop(self, seconds: float = STOP) -> None:
        """Have all stored that is there, and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            waiting = self._offered - self._taken
            LOG.error("events could not be stored in time", seconds=seconds, waiting=waiting)

    # --- on the thread of its own -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._guarded(self._clean)
        while not self._stopping:
            self._wake.wait(ROUND)
            self._wake.clear()
            if not self._stopping:
                self._guarded(self._round)
        self._guarded(self._finish)
        self._guarded(self._leave_pipe)

    def _clean(self) -> None:
        if self._segments is not None and (left := self._segments.clean()):
            LOG.warning("unfinished segments of an earlier run removed", segments=left)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something; an error in it does not end the thread. It is told, unless there was one the last time too."""
        self._failed = False
        try:
            work()
        except Exception as error:
            self._tell_failed(error)
        self._failed_before = self._failed

    def _tell_failed(self, error: Exception) -> None:
        if not (self._failed or self._failed_before):
            LOG.error("telemetry failed; it goes on", error=repr(error))
        self._failed = True

    def _round(self) -> None:
        """Store what is there now; what comes meanwhile is for the next round, or under load no round would end."""
        end = self._offered
        while self._taken < end and not self._stopping:
            self._store(self._take())
            if self._work_offered - self._work_taken < LARGEST:
                time.sleep(PAUSE)
        now = time.monotonic()
        if now >= self._load_due:
            self._load_due = now + self._settings.load_interval
            self._tell([*self._gauge.events(time.time()), *self._lost()])
        if self._segments is not None:
            self._segments.tick(now)
        if self._publisher is not None:
            self._publisher.step()

    def _finish(self) -> None:
        while turns := self._take():
            self._store(turns)
        self._tell([*self._gauge.events(time.time()), *self._lost()])
        if self._segments is not None:
            self._segments.close(time.monotonic())
        if self._publisher is not None:
            self._publisher.step(self._stop_pipe)
            self._publisher.give_up()
        lost = self._take_lost()
        if lost:
            LOG.warning("events were lost at the end", **lost)

    def _leave_pipe(self) -> None:
        if self._publisher is not None:
            self._publisher.close(min(self._stop_pipe, GOODBYE))

    def _take(self) -> list[Turn]:
        """Take some turns off the queue: half of what waits, within bounds."""
        turns: list[Turn] = []
        taken, end = self._work_taken, self._work_offered
        end = taken + min(max(PIECE, (end - taken) // 2), LARGEST)
        while self._queue and self._work_taken < end:
            turns.append(self._queue.popleft())
            count, work = _count(turns[-1][1])
            self._taken += count
            self._work_taken += work
        return turns

    def _store(self, turns: Sequence[Turn]) -> None:
        try:
            batches = self._columns.convert(turns)
        except Exception as error:  # whatever a plugin has put into its events
            self._columns.lost[FAILED] += sum(_count(told)[0] for _, told in turns)
            self._tell_failed(error)
            return
        if self._segments is not None:
            now = time.monotonic()
            for kind, day, rows in batches:
                self._segments.write(kind, _FIRST_DAY + datetime.timedelta(day), rows, now)
        if self._publisher is not None:
            self._publisher.put(batches)

    def _tell(self, own: Sequence[Event]) -> None:
        """Store events of telemetry's own, whose times are those of the clock on the wall."""
        if own:
            self._store([(0.0, [("telemetry", own)])])

    def _lost(self) -> list[Event]:
        return lost_events("telemetry", self._take_lost(), time.time())

    def _take_lost(self) -> Counter[str]:
        """Take the counts of events that were lost since the last time, by reason."""
        refused = self._refused
        lost = Counter({QUEUE: refused - self._refused_told})
        self._refused_told = refused
        parts = [self._columns.lost]
        if self._segments is not None:
            parts.append(self._segments.lost)
        if self._publisher is not None:
            parts.append(self._publisher.lost)
        for part in parts:
            lost.update(part)
            part.clear()
        return +lost


def _count(told: Told) -> tuple[int, int]:
    """Count events, and how much work they are."""
    count = work = 0
    for _, found in told:
        count += len(found)
        work += len(found)
        if isinstance(found, PackedEvents):
            work -= found.packed - found.packed // PACKED
    return count, work
