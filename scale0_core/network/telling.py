"""What the broker's own service tells while somebody observes: of tasks that are over, and of workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scale0_core.api import Event, Frames, Packing, printable
from scale0_core.events import HEARTBEAT, JOIN, LEAVE, TASK
from scale0_core.network.workers import LONGEST_LABEL, ServiceQueue, Task, Worker
from scale0_core.protocol.states import ClientEvent

BEAT_EVERY = 1.0
"""Seconds between two heartbeats of a worker that are told: who beats more often costs no more."""

REASONS = {
    ClientEvent.LEAVE: "left",
    ClientEvent.LOST: "lost",
    ClientEvent.SILENCE: "silent",
    ClientEvent.REFUSED: "refused",
}


class Telling:
    """Makes events of what is at hand anyway. There is one for each task, so nothing is looked up or written anew."""

    def __init__(self, events: list[Event], group: str, packing: Packing) -> None:
        self.events = events
        self.group = group
        self._packing = packing
        self._add = packing.add
        self._parts: dict[bytes, int] = {}
        """Bytes of the parts of answers that are not whole yet, by the numbers of the tasks."""

    def regroup(self, group: str) -> None:
        """Note that the broker is in another group from now on."""
        self.group = group
        self._packing.forget()

    def part(self, task: Task, body: Frames) -> None:
        """Count a part of an answer."""
        self._parts[task.number] = self._parts.get(task.number, 0) + sum(map(len, body[2:]))

    def answered(self, task: Task, worker: Worker, outcome: str, body: Frames, now: float) -> None:
        """Tell of a task that a worker answered. There is one such event for each task."""
        size = len(body[2]) if len(body) == 3 else sum(map(len, body[2:]))
        if task.streamed:
            size += self._parts.pop(task.number, 0)
        service = task.service
        key = service if outcome == "ok" else (service, outcome)
        try:
            about = worker.abouts[key]
        except KeyError:
            told = (service.label, worker.label, self.group, outcome)
            about = self._packing.number(worker.abouts, key, told)
        self._add(self.events, now, task.created, task.sent, size, about)

    def unanswered(self, task: Task, worker: Worker | None, outcome: str, now: float) -> None:
        """Tell of a task that was over before it was answered, or before all of the answer was there."""
        handed_over = task.sent if worker is not None else now
        waited = (handed_over - task.created) * 1e6
        peer, took = (None, None) if worker is None else (worker.label, (now - handed_over) * 1e6)
        size = self._parts.pop(task.number, 0)
        self.events.append((TASK, now, task.service.label, peer, self.group, outcome, waited, took, size))

    def refused(self, service: bytes, now: float) -> None:
        """Tell of a task that was not taken."""
        label = printable(bytes(service), LONGEST_LABEL)
        self.events.append((TASK, now, label, None, self.group, "refused", None, None, 0))

    def beat(self, worker: Worker, now: float) -> None:
        """Tell that a worker lives."""
        if now - worker.beat_told >= BEAT_EVERY and worker.label is not None:
            worker.beat_told = now
            for service in worker.services:
                self.events.append((HEARTBEAT, now, service.label, worker.label, self.group))

    def offers(self, worker: Worker, before: Sequence[ServiceQueue], now: float) -> None:
        """Tell what a worker offers now and did not before, and the other way round."""
        if worker.label is None:
            return
        old, new = set(before), set(worker.services)
        self._left(worker, [service for service in before if service not in new], "left", now)
        for service in worker.services:
            if service not in old:
                self.events.append((JOIN, now, service.label, worker.label, self.group, worker.window or 1))

    def gone(self, worker: Worker, event: ClientEvent, now: float) -> None:
        """Tell that a worker is gone, and why."""
        if worker.label is not None:
            self._left(worker, worker.services, REASONS[event], now)

    def _left(self, worker: Worker, services: Iterable[ServiceQueue], reason: str, now: float) -> None:
        for service in services:
            stayed = round(now - worker.joined, 6)
            self.events.append((LEAVE, now, service.label, worker.label, self.group, reason, stayed))
