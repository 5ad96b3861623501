"""Services of plugins among the workers: they take tasks from the same queues, and need no connection for it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from scale0_core.network.dispatch import Dispatcher
from scale0_core.network.workers import HostedWorker
from scale0_core.protocol.states import ClientEvent
from scale0_core.service import Send

DOOR = "door"
"""Stands for the broker's sockets where a worker is a service of the broker itself."""

WINDOW = 1_000
"""Tasks that such a service may have in hand; more wait in the queue."""


@attrs.frozen
class Host:
    """A service of a plugin, as the dispatcher needs it: who hosts it, and what it is told."""

    service: str
    provider: str
    given: Callable[[], None]
    """There is a task for it among what is to be sent."""
    forget: Callable[[bytes], None]
    """The task of this number is over: its time is up, or it was cancelled."""


class Hosting:
    """Brings services of plugins to the dispatcher and takes them away."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._workers: dict[str, HostedWorker] = {}

    def host(self, host: Host, now: float) -> list[Send]:
        """Let a service take tasks from now on."""
        name = host.service
        self._dispatcher.quarantined.discard(name.encode())
        worker = HostedWorker((DOOR, name.encode()), f"{host.provider}.{name}", now, 0.0)
        worker.given, worker.forget = host.given, host.forget
        worker.window = worker.limit = WINDOW
        worker.happen(ClientEvent.CHECKCONFIG)
        self._workers[name] = worker
        self._dispatcher.workers[worker.key] = worker
        return self.offer(now)

    def offer(self, now: float) -> list[Send]:
        """Offer each to the dispatcher if the configuration, which may be new, has it managed here."""
        sends: list[Send] = []
        for name, worker in self._workers.items():
            services, _ = self._dispatcher.permitted([name])
            if [*worker.services] == services:
                continue
            self._dispatcher.offer(worker, services, now)
            worker.happen(ClientEvent.READY)
            if len(worker.in_hand) >= worker.limit:
                worker.happen(ClientEvent.FULL)
            self._dispatcher.announce(worker)
            sends += self._dispatcher.give_work(worker, now)
        return sends

    def leave(self, name: str, now: float) -> list[Send]:
        """Give a service that is quarantined no more tasks; what it has goes to others, or ends in an error."""
        self._dispatcher.quarantined.add(name.encode())
        return self._dispatcher.lose(self._workers.pop(name), ClientEvent.LEAVE, now)
