"""Clients and workers of the Scale0 protocol as nodes of the simulated network: their real sessions, and nobody's code.

Give each node a client or worker of its own; a restart makes another one, as another process would::

    net.add("worker", lambda node: [SimWorker(node, FRONTEND, ["upper"], upper)])
    net.add("client", lambda node: [SimClient(node, FRONTEND)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scale0_core.client.frontend import ClientSession, check_call
from scale0_core.client.kit.calls import Call, Reply
from scale0_core.client.kit.errors import CallError
from scale0_core.client.kit.route import Place, Route
from scale0_core.client.session import Task, WorkerSession, WorkerState
from scale0_core.testing.simnode import SimNode
from scale0_core.testing.simsession import SimSession

WALL = 1_700_000_000.0
"""The time of day at which a simulation begins."""


class Outcome:
    """What becomes of a call: ``ended`` is 0 until there is a ``reply`` or an ``error``, then the time."""

    __slots__ = ("_ended", "_node", "call", "ended", "error", "reply")

    def __init__(self, node: SimNode, ended: Callable[[Outcome], object]) -> None:
        self.call: Call
        self.ended = 0.0
        self.reply: Reply | None = None
        self.error: CallError | None = None
        self._node, self._ended = node, ended

    def final(self, reply: Reply) -> None:
        """Take the reply."""
        self.reply = reply
        self._end()

    def fail(self, error: CallError) -> None:
        """Take the error."""
        self.error = error
        self._end()

    def _end(self) -> None:
        if self.ended:
            raise AssertionError(f"the call of {self.call.service!r} has ended twice")
        self.ended = self._node.now
        self._ended(self)


class SimClient(SimSession):
    """The session of a client of the broker at an address."""

    session: ClientSession

    def __init__(self, node: SimNode, broker: str) -> None:
        identity = f"{node.name}-{node.starts}"
        super().__init__(node, ClientSession(Route(Place(broker)), identity=identity, random=node.random))

    def call(
        self, service: str, *payload: bytes, timeout: float = 30.0, retry: bool = False,
        ended: Callable[[Outcome], object] = bool,
    ) -> Outcome:  # fmt: skip
        """Call a service; ``ended`` is called with the outcome. Use it in an action: ``client.at(time, action)``."""
        outcome = Outcome(self.node, ended)
        outcome.call = Call(service, check_call(service, payload), outcome, timeout=timeout, retry=retry)
        self.session.open(outcome.call, self.node.now)
        return outcome


class SimWorker(SimSession):
    """The session of a worker; ``work(worker, task)`` is called with each task, and ends it with ``reply``."""

    session: WorkerSession

    def __init__(
        self, node: SimNode, broker: str, services: Iterable[str], work: Callable[[SimWorker, Task], None], *,
        window: int = 1, interval: float = 2.5,
    ) -> None:  # fmt: skip
        session = WorkerSession(
            Route(Place(broker)), identity=node.name, begin=lambda task: work(self, task), window=window,
            wall_time=lambda: WALL + node.now, interval=interval, random=node.random,
        )  # fmt: skip
        session.offer(services, node.now)
        super().__init__(node, session)

    @property
    def serves(self) -> bool:
        """Whether the broker has taken it on."""
        return self.session.state is WorkerState.SERVING

    def reply(self, task: Task, *frames: bytes, options: bytes = b"", more: bool = False) -> None:
        """Answer a task, if anybody still waits for it; with ``more``, it goes on."""
        self.session.reply(task, options, frames, self.node.now)
        if not more:
            self.session.finish(task, self.node.now)
