"""What Majordomo tells while somebody observes: of requests that are over, and of workers."""

from __future__ import annotations

from scale0_core.api import Event, Frames, events, printable
from scale0_majordomo.service.desk import LONGEST_LABEL, Request, Worker
from scale0_majordomo.service.queues import NEVER

RPC = events.RPC

BEAT_EVERY = 1.0
"""Seconds between two heartbeats of a worker that are told."""

REASONS = {"disconnected": "left", "silent": "silent", "cannot be reached": "lost", "takes nothing": "lost"}
"""Why a worker is gone, as events tell it; for any other reason it was sent away."""


class Telling:
    """Makes events of what is at hand anyway: there is one for each request."""

    def __init__(self, events: list[Event], group: str) -> None:
        self.events = events
        self._append = events.append
        self._group = group

    def answered(self, request: Request, worker: Worker, body: Frames, now: float) -> None:
        """Tell of a request that a worker answered."""
        given, due = request.given, request.due
        # who waited has an end of that, from which follows its beginning
        waited = 0.0 if due == NEVER else (given - due + request.service.expiry) * 1e6
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if request.streamed:
            size += request.passed_on
        self._append(
            (
                RPC, now, request.service.label, worker.label, self._group, "ok", waited,
                (now - given) * 1e6, size,
            )
        )  # fmt: skip

    def unanswered(self, request: Request, outcome: str, now: float) -> None:
        """Tell of a request that is over without a reply, or without all of it."""
        worker, due = request.worker, request.due
        given = now if worker is None else request.given
        waited: float | None = 0.0 if due == NEVER else (given - due + request.service.expiry) * 1e6
        peer, took = (None, None) if worker is None else (worker.label, (now - given) * 1e6)
        if outcome == "refused":
            waited = None
        told = request.service.label, peer, self._group, outcome, waited, took, request.passed_on
        self.events.append((events.RPC, now, *told))

    def refused(self, service: bytes, now: float) -> None:
        """Tell of a request for a service that could not be made."""
        self.events.append(
            (events.RPC, now, printable(service, LONGEST_LABEL), None, self._group, "refused", None, None, 0)
        )

    def beat(self, worker: Worker, now: float) -> None:
        """Tell that a worker lives."""
        if now - worker.beat_told >= BEAT_EVERY:
            worker.beat_told = now
            self.events.append((events.HEARTBEAT, now, worker.service.label, worker.label, self._group))

    def joined(self, worker: Worker, now: float) -> None:
        """Tell that a worker is ready."""
        self.events.append((events.JOIN, now, worker.service.label, worker.label, self._group, worker.credit))

    def left(self, worker: Worker, why: str, now: float) -> None:
        """Tell that a worker is gone, and why."""
        outcome, stayed = REASONS.get(why, "refused"), round(now - worker.joined, 6)
        self.events.append((events.LEAVE, now, worker.service.label, worker.label, self._group, outcome, stayed))


class Observed:
    """A service that tells, if it is asked to."""

    _telling: Telling | None = None
    _group = ""

    @property
    def events(self) -> list[Event] | None:
        """What happened since the last turn, or None while nobody observes."""
        return None if self._telling is None else self._telling.events

    @events.setter
    def events(self, events: list[Event] | None) -> None:
        self._telling = None if events is None else Telling(events, self._group)
