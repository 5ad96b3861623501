"""Client and Worker for programs with asyncio: the same names as in ``scale0_majordomo``, with coroutines."""

# does I/O: asyncio

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scale0_core.client.kit.calls import Reply, Window
from scale0_core.client.kit.flows import AsyncStream as Stream
from scale0_core.client.kit.flows import arun
from scale0_core.client.kit.loop import LoopDriver
from scale0_core.client.kit.loop_serving import LoopServing
from scale0_core.client.kit.serving import Serving
from scale0_majordomo.client.codec import CallOptions
from scale0_majordomo.client.session import ClientSession, WorkerSession
from scale0_majordomo.client.setup import WINDOW, BaseClient, BaseWorker, Item, Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Client", "Reply", "Stream", "Worker"]


class Client(BaseClient):
    """Calls services through a broker, from the coroutines of one loop."""

    def _driven(self, session: ClientSession) -> LoopDriver[ClientSession]:
        return LoopDriver(session)

    async def call(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage. Options: timeout, retry, priority, key,
        traceparent; see ``CallOptions``. Cancelling it tells the worker.
        """
        return await arun(self._caller.call(self._call(service, body, options)))

    def submit(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> asyncio.Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it tells the worker."""
        future: asyncio.Future[Reply] = self._caller.submit(self._call(service, body, options))
        return future

    def stream(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Stream[Reply]:
        """Call a service and iterate over the parts of its reply as they come, and its end; a break cancels it.

        Parts that are not read yet are kept in memory, without a bound; a worker does not wait for a slow reader.
        """
        stream: Stream[Reply] = self._caller.stream(self._call(service, body, options))
        return stream

    def map(
        self, service: str, items: Iterable[Item], *, window: int = WINDOW, ordered: bool = True,
        progress: Progress | None = None, **options: Unpack[CallOptions],
    ) -> AsyncIterator[Reply]:  # fmt: skip
        """Call a service for each item, ``window`` at once, and give the replies; the timeout is for each call.

        An item is the body: bytes, text, or a tuple of these. The first error ends it, and cancels the others.

        :param ordered: give the replies in the order of the items; else as they come, with ``reply.number``.
        :param progress: is called with the number of replies so far, and that of the items if known.
        """
        replies: AsyncIterator[Reply] = self._map(service, items, options, Window(window, ordered, progress))
        return replies

    async def services(self, timeout: float | None = None) -> dict[str, dict[str, Any]]:
        """Ask the broker for its services, each with its figures: workers, waiting, requests and more."""
        return await arun(self._told(dict, "mmi.stats", timeout=timeout))

    async def workers(self, service: str = "", timeout: float | None = None) -> list[dict[str, Any]]:
        """Ask the broker for its workers, or those of one service."""
        return await arun(self._told(list, "mmi.workers", service, timeout=timeout))

    async def offers(self, service: str, timeout: float | None = None) -> bool:
        """Ask the broker whether somebody offers a service."""
        return await arun(self._offers(service, timeout))

    async def close(self) -> None:
        """Close: open calls are cancelled and get a ClosedError. Returns soon, whatever the broker does."""
        await arun(self._caller.close())

    async def __aenter__(self) -> Client:
        self._caller.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Worker(BaseWorker):
    """Serves requests with async functions on the loop, and with plain ones on threads."""

    def _served(self) -> Serving[WorkerSession]:
        return LoopServing()

    async def start(self) -> Worker:
        """Begin to serve in the background."""
        await arun(self._start())
        return self

    async def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        await arun(self._wait_ready(timeout))

    async def drain(self, timeout: float = 30.0) -> bool:
        """Begin no more requests, finish those in hand, then leave; False when the time was too short for that."""
        return await arun(self._drain(timeout))

    async def remove(self, name: str, timeout: float = 30.0) -> bool:
        """Offer a service no more; requests in hand are finished. False when the time was too short for that."""
        return await arun(self._remove(name, timeout))

    async def stop(self) -> None:
        """Leave immediately; what is in hand is given to other workers. Returns soon."""
        await arun(self._serving.stop())

    async def run(self) -> None:
        """Serve until TERM or INT comes, finish the requests in hand, and return. A second signal does not wait.

        Signals are heeded when the loop runs in the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        await arun(self._serving.serve(self._begin, self._check))

    async def __aenter__(self) -> Worker:
        return self if self._serving.running else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await arun(self._leave(finish=error is None))
