"""Workers that are lost: their last replies are taken, and what they had in hand goes to others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from scale0_core.api import Effect, Frames, get_logger
from scale0_majordomo.service.desk import DRAINING, Request, Service, Worker, weigh
from scale0_majordomo.service.telling import Observed
from scale0_majordomo.service.watch import WorkerWatch

LOG = get_logger("plugin.majordomo")

LAST_WORDS = 0.05
"""Seconds in which the replies are read that a worker sent before it was gone."""


class Losses(Observed):
    """A service that loses no request with its worker."""

    counts: dict[str, int]
    _workers: dict[bytes, Worker]
    _watch: WorkerWatch
    _leaving: dict[Worker, float]
    """Workers that cannot be reached, and until when their last replies are taken."""

    def _lose(self, worker: Worker, why: str, now: float) -> Iterable[Effect]:
        """Forget a worker; what it had in hand goes to others."""
        self.counts["lost_workers"] += 1
        if self._telling is not None:
            self._telling.left(worker, why, now)
        service = worker.service
        del self._workers[worker.peer]
        self._leaving.pop(worker, None)
        service.leave(worker)
        self._watch.end(worker)
        LOG.debug("a worker is gone", service=service.name, peer=worker.peer, why=why, in_hand=len(worker.in_hand))
        held = list(worker.in_hand.values())
        worker.in_hand.clear()
        effects = self._hand_on(worker, held, now)
        self._tidy(service)
        return effects

    def _unreachable(self, worker: Worker, now: float) -> Iterable[Effect]:
        """Give nothing more to a worker whose connection is gone; it keeps what it had, for its replies may be unread.

        ZeroMQ takes nothing more for a peer that has left, while messages that it sent before still wait to be read.
        """
        if worker in self._leaving:
            return ()
        unsent = [request for request in worker.in_hand.values() if request.given == now]
        for request in unsent:
            request.unsent = True  # what was given in this turn has not left
        if len(unsent) == len(worker.in_hand):
            return self._lose(worker, "cannot be reached", now)
        self._leaving[worker] = now + LAST_WORDS
        for request in unsent:
            del worker.in_hand[request.address]
        if worker.credit != DRAINING:
            worker.service.drain(worker)
        return self._hand_on(worker, unsent, now)

    def _lose_leaving(self, now: float) -> list[Effect]:
        """Let go of the workers that cannot be reached, and of which all has been read."""
        effects: list[Effect] = []
        while self._leaving and next(iter(self._leaving.values())) <= now:
            effects += self._lose(next(iter(self._leaving)), "cannot be reached", now)
        return effects

    def _drain(self, worker: Worker, begun: Frames, now: float) -> Iterable[Effect]:
        """Give a worker nothing more; what it has not begun was on its way to it, and goes to others at no cost."""
        worker.service.drain(worker)
        known = set(begun)
        crossed = [request for address, request in worker.in_hand.items() if address not in known]
        for request in crossed:
            del worker.in_hand[request.address]
            request.unsent = not request.streamed and request.parts is None
        return self._hand_on(worker, crossed, now)

    def _hand_on(self, worker: Worker, requests: list[Request], now: float) -> list[Effect]:
        """Give to others what a worker had, and what waits for it alone."""
        service = worker.service
        held = [request for request in requests if not request.done]
        if service.settings.scheduling == "priority":
            held.sort(key=lambda request: -request.priority)
        effects = self._again(held, now)
        for request in service.take_backlog(worker):
            effects += self._place(request, now)
        return effects

    def _again(self, requests: list[Request], now: float) -> list[Effect]:
        """Put requests whose worker is gone back to the head of their queue, or give them up."""
        effects: list[Effect] = []
        rest = []
        for request in requests:
            service = request.service
            if request.unsent:
                request.tries -= 1
            repeatable, request.unsent = request.repeatable, False
            if not repeatable:
                service.counts["failed"] += 1
                reason = f"its worker is gone, and it was tried {_times(request.tries)}"
                effects += self._fail(request, "lost", 502, reason)
            request.worker = request.parts = None
            if not repeatable:
                continue
            service.counts["retried"] += 1
            worker = service.take_worker(request, first=True)
            if worker is None:
                rest.append(request)
            else:
                effects.append(self._hand_over(request, worker, now))
        for request in reversed(rest):
            request.size = weigh(request.body)
            self._wait(request, now + request.service.expiry, first=True)
        return effects

    def _request_in(self, frames: Frames, worker: Worker) -> Request | None:
        place = len(worker.head)
        return worker.in_hand.get(frames[place]) if frames[:place] == worker.head and len(frames) > place else None

    def _take_back(self, worker: Worker, request: Request, now: float) -> Iterable[Effect]:
        """Take a request back that a worker has no room for; it announced more than it can take."""
        request.unsent = True
        if len(worker.in_hand) == 1:
            return self._lose(worker, "takes nothing", now)
        del worker.in_hand[request.address]
        worker.credit = min(worker.credit, len(worker.in_hand))
        return [] if request.done else self._again([request], now)

    @abstractmethod
    def _tidy(self, service: Service) -> None:
        """Forget a service that nobody offers and nobody asks."""

    @abstractmethod
    def _place(self, request: Request, now: float) -> Iterable[Effect]:
        """Give a request to a worker, or have it wait for one."""

    @abstractmethod
    def _wait(self, request: Request, due: float, *, first: bool = False) -> None:
        """Put a request into the queue of its service."""

    @abstractmethod
    def _hand_over(self, request: Request, worker: Worker, now: float) -> Effect:
        """Give a request to a worker."""

    @abstractmethod
    def _fail(self, request: Request, outcome: str, code: int, reason: str) -> list[Effect]:
        """Answer a request with an error."""


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
