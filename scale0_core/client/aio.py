"""Client and Worker for programs with asyncio: the same names as in ``scale0_core.client``, with coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType

from scale0_core.client import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClientError,
    ClosedError,
    NoBrokerError,
    NoServiceError,
    RemoteError,
    Stage,
    TooLargeError,
    TooManyError,
    UnavailableError,
    WorkerError,
    cancelled,
    time_left,
)
from scale0_core.client.frontend import ClientSession
from scale0_core.client.kit.calls import WINDOW, Reply, Window
from scale0_core.client.kit.flows import AsyncStream, arun
from scale0_core.client.kit.loop import LoopDriver
from scale0_core.client.kit.loop_serving import LoopServing
from scale0_core.client.kit.serving import Serving
from scale0_core.client.session import WorkerSession
from scale0_core.client.setup import BaseClient, BaseWorker

__all__ = [
    "AsyncStream",
    "BrokerLostError",
    "CallError",
    "CallTimedOutError",
    "Client",
    "ClientError",
    "ClosedError",
    "NoBrokerError",
    "NoServiceError",
    "RemoteError",
    "Reply",
    "Stage",
    "TooLargeError",
    "TooManyError",
    "UnavailableError",
    "Worker",
    "WorkerError",
    "cancelled",
    "time_left",
]

Progress = Callable[[int, int | None], None]


class Client(BaseClient):
    """Calls services through a broker, from the coroutines of one loop."""

    def _driven(self, session: ClientSession) -> LoopDriver[ClientSession]:
        return LoopDriver(session)

    async def call(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage.

        :param timeout: seconds until the call ends in any case.
        :param retry: the service may be called twice: the call is sent again when a worker or the broker dies.
        """
        return await arun(self._caller.call(self._call(service, payload, timeout, retry)))

    def submit(
        self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False
    ) -> asyncio.Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it stops the worker."""
        future: asyncio.Future[Reply] = self._caller.submit(self._call(service, payload, timeout, retry))
        return future

    def stream(
        self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False
    ) -> AsyncStream[Reply]:
        """Call a service and iterate over the parts of its reply as they come; a ``break`` cancels the rest.

        Parts that are not read yet are kept in memory, without a bound; a worker does not wait for a slow reader.
        """
        stream: AsyncStream[Reply] = self._caller.stream(self._call(service, payload, timeout, retry))
        return stream

    def map(
        self, service: str, payloads: Iterable[bytes | tuple[bytes, ...]], *, timeout: float | None = None,
        retry: bool = False, window: int = WINDOW, ordered: bool = True, progress: Progress | None = None,
    ) -> AsyncIterator[Reply]:  # fmt: skip
        """Call a service for each payload, ``window`` at once, and iterate over the replies.

        The timeout is for each call. The first error ends the iteration, and cancels the others.

        :param ordered: give the replies in the order of the payloads; else as they come, with ``reply.number``.
        :param progress: is called with the number of replies so far, and that of the payloads if it is known.
        """
        replies: AsyncIterator[Reply] = self._map(service, payloads, timeout, retry, Window(window, ordered, progress))
        return replies

    async def ping(self, timeout: float = 5.0) -> float:
        """Ask the broker whether it is there; returns the seconds until its answer."""
        return await arun(self._ping(timeout))

    async def close(self) -> None:
        """Close: open calls get a ClosedError, and the connection is closed. Returns soon, whatever the broker does."""
        await arun(self._caller.close())

    async def __aenter__(self) -> Client:
        self._caller.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Worker(BaseWorker):
    """Serves tasks from a broker with async functions on the loop, and with plain ones on threads."""

    def _served(self) -> Serving[WorkerSession]:
        return LoopServing()

    async def start(self) -> Worker:
        """Begin to serve in the background."""
        self._begin()
        return self

    async def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        await arun(self._wait_ready(timeout))

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take no more tasks, finish those in hand, then leave; False when the time was too short for that."""
        return await arun(self._drain(timeout))

    async def stop(self) -> None:
        """Leave immediately; what is in hand gets no reply. Returns soon."""
        await arun(self._serving.stop())

    async def run(self) -> None:
        """Serve until TERM or INT comes, finish the tasks in hand, and return. A second signal does not wait for them.

        Signals are heeded when the loop runs in the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        await arun(self._serving.serve(self._begin, self._check))

    async def __aenter__(self) -> Worker:
        return self if self._serving.running else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await arun(self._leave(finish=error is None))
