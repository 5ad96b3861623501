"""Clients that do not read their replies: their requests wait until they do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from scale0_core.api import Effect, Frames
from scale0_majordomo.service.desk import Service, Worker
from scale0_majordomo.service.queues import NEVER

SOCKET = "requests"


class Backpressure:
    """A service that gives workers nothing of a client while replies to it wait in the core's outbox."""

    _queues: dict[Service, None]
    _workers: Mapping[bytes, Worker]
    _late: dict[bytes, dict[int, Frames]]
    """Replies that wait, by client."""
    _resume_due = NEVER

    def on_delayed(self, socket: str, frames: Frames, now: float) -> None:
        """Note that a client does not read: its requests wait until it has read its replies."""
        peer = frames[0]
        if socket != SOCKET or peer in self._workers:
            return
        if peer not in self._late:
            self._late[peer] = {}
            for service in self._queues:
                service.hold(peer)
        self._late[peer][id(frames)] = frames

    def on_sent(self, socket: str, frames: Frames, now: float) -> None:
        """Note that a client has read some of its replies."""
        late = self._late.get(frames[0]) if socket == SOCKET else None
        if late is not None and late.pop(id(frames), None) is not None and not late:
            self._let_go(frames[0], now)

    def _let_go(self, client: bytes, now: float) -> None:
        """Carry out the requests of a client again that was slow, or is gone."""
        if self._late.pop(client, None) is not None:
            self._resume_due = now
            for service in self._queues:
                service.release(client)

    def _resume(self, now: float) -> list[Effect]:
        """Give requests that may go on now to workers that have room."""
        self._resume_due = NEVER
        effects: list[Effect] = []
        for service in self._queues:
            for worker in list(service.workers.values()):
                if not service.waiting:
                    break
                effects += self._give(worker, now)
        return effects

    @abstractmethod
    def _give(self, worker: Worker, now: float) -> list[Effect]:
        """Give a worker as many requests as it may have."""
