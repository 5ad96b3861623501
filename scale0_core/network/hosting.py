"""Services of plugins among the workers: they take tasks from the same queues, and need no connection for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scale0_core.api import KIB, Endpoint, Frames, Send, SocketKind
from scale0_core.network.dispatch import FORGET, HOSTED, Dispatcher
from scale0_core.network.workers import HostedWorker
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import Code
from scale0_core.protocol.states import ClientEvent

WINDOW = 1_000
"""Tasks that such a service may have in hand; more wait in the queue."""

ENDPOINT = Endpoint(
    kind=SocketKind.ROUTER, bind="@tasks", high_water=100_000, max_frames=wire.MOST_FRAMES - 3, blob_over=8 * KIB
)
"""Where the hosts of services are; what they say is in ``scale0_core/container/task_host.py``."""

FAILURES = {b"too large": Code.TOO_LARGE, b"raised": Code.FAILURE, b"quarantined": Code.UNAVAILABLE}


class Hosting:
    """Brings services of plugins to the dispatcher, takes them away, and passes on what they answer."""

    def __init__(self, dispatcher: Dispatcher, provider: Callable[[], str]) -> None:
        self._dispatcher = dispatcher
        self._provider = provider
        self._workers: dict[str, HostedWorker] = {}

    def receive(self, frames: Frames, now: float) -> Iterable[Send]:
        """Take what the host of a service says."""
        name, word, *more = map(bytes, frames[:3]) if len(frames) > 1 else (b"", b"")
        if word == b"READY":
            return self.host(name.decode(errors="replace"), now)
        if word == b"GONE":
            return self.leave(name.decode(errors="replace"), now)
        task = self._dispatcher.tasks.get(more[0]) if more else None
        if task is None:
            return ()
        if word == b"DONE":
            options, body = b"", frames[3:]
        else:
            why, text = map(bytes, frames[3:5]) if len(frames) > 4 else (b"", b"")
            code = FAILURES.get(why, Code.FAILURE)
            options, body = wire.write_options(code=int(code), message=text.decode(errors="replace")), ()
        return self._dispatcher.reply((HOSTED, name), options, (task.service.name, task.number, *body), now)

    def host(self, name: str, now: float) -> list[Send]:
        """Let a service take tasks from now on."""
        self._dispatcher.quarantined.discard(name.encode())
        worker = HostedWorker((HOSTED, name.encode()), f"{self._provider()}.{name}", now, 0.0)
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
        worker = self._workers.pop(name, None)
        if worker is None:
            return []
        self._dispatcher.quarantined.add(name.encode())
        return self._dispatcher.lose(worker, ClientEvent.LEAVE, now)

    def undelivered(self, frames: Frames, now: float) -> list[Send]:
        """Take back a task that a service could not be given."""
        worker = self._dispatcher.workers.get((HOSTED, frames[0]))
        if worker is None or frames[1] == FORGET:
            return []
        sends = self._dispatcher.undelivered_task(frames[2], worker, "EHOSTUNREACH", now)
        return [*sends, *self._dispatcher.lose(worker, ClientEvent.LOST, now)]
