"""Which workers are alive: heartbeats to them, and how long they may be silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scale0_core.api import Deadlines, Frames
from scale0_majordomo import dialects
from scale0_majordomo.dialects import Word
from scale0_majordomo.service.queues import NEVER
from scale0_majordomo.settings import MajordomoSettings

if TYPE_CHECKING:
    from scale0_majordomo.service.desk import Worker

PROBES = (0.005, 0.05)
"""Seconds after a lost connection at which the workers that have requests are asked: the first may be too early."""
PROBE_COST = 0.0005
"""Seconds of rest for each worker that was asked, before they are asked again."""
LOOK_COST = 0.000001
"""The same for each worker that was looked at."""


class WorkerWatch:
    """Says when to send heartbeats, and who has been silent for too long."""

    def __init__(self, settings: MajordomoSettings, workers: Mapping[bytes, Worker]) -> None:
        self._settings = settings
        self._workers = workers
        self.alarms: Deadlines[Worker, Worker] = Deadlines(0)
        self._lost_at = -NEVER
        self._probe_due = NEVER
        self._probe_not_before = -NEVER

    @property
    def due(self) -> float:
        """When there is something to do."""
        return min(self._probe_due, self.alarms.due)

    def begin(self, worker: Worker, now: float) -> None:
        """Watch a worker."""
        self._set_alarm(worker, now)

    def end(self, worker: Worker) -> None:
        """Watch a worker no more."""
        self.alarms.remove(worker)

    def connection_lost(self, now: float) -> None:
        """Ask the workers that have requests, in a moment, whether it was one of them."""
        self._lost_at = now
        self._probe_due = min(self._probe_due, max(now + PROBES[0], self._probe_not_before))

    def may_be_another(self, worker: Worker) -> bool:
        """Tell whether a connection was lost since a worker was last heard: it may have been the worker's."""
        return self._lost_at >= worker.heard

    def on_deadline(self, now: float) -> tuple[list[Worker], list[Frames]]:
        """Return the workers that have been silent for too long, and the heartbeats to send."""
        silent: list[Worker] = []
        beats: list[Frames] = []
        for worker in self.alarms.take(now):
            if now - worker.heard >= self._patience(worker):
                silent.append(worker)
                continue
            if now - worker.sent >= self._settings.heartbeat:
                beats.append(_beat(worker, now))
            self._set_alarm(worker, now)
        if self._probe_due <= now:
            beats += self._probe(now)
        return silent, beats

    def _set_alarm(self, worker: Worker, now: float) -> None:
        due = min(worker.sent + self._settings.heartbeat, worker.heard + self._patience(worker))
        self.alarms.set(worker, max(due, now + 0.001), worker)

    def _patience(self, worker: Worker) -> float:
        return self._settings.busy_timeout if worker.in_hand else self._settings.heartbeat * self._settings.liveness

    def _probe(self, now: float) -> list[Frames]:
        """Send something to the workers that have requests, to see whether they are there."""
        beats = [_beat(worker, now) for worker in self._workers.values() if worker.in_hand]
        self._probe_not_before = now + PROBES[0] + PROBE_COST * len(beats) + LOOK_COST * len(self._workers)
        late = self._lost_at + PROBES[1]
        self._probe_due = max(late, self._probe_not_before) if now < late else NEVER
        return beats


def _beat(worker: Worker, now: float) -> Frames:
    worker.sent = now
    return dialects.to_worker(worker.dialect, worker.envelope, Word.HEARTBEAT)
