"""Client and Worker for programs without asyncio: each has one thread that owns its socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType

from scale0_core.client.frontend import ClientSession
from scale0_core.client.kit.calls import WINDOW, Reply, Window
from scale0_core.client.kit.drivers import ThreadDriver
from scale0_core.client.kit.flows import Stream, run
from scale0_core.client.kit.serving import Serving, ThreadServing
from scale0_core.client.session import WorkerSession
from scale0_core.client.setup import BaseClient, BaseWorker

Progress = Callable[[int, int | None], None]


class Client(BaseClient):
    """Calls services through a broker. All methods may be used from any thread."""

    def _driven(self, session: ClientSession) -> ThreadDriver[ClientSession]:
        driver = ThreadDriver(session, f"scale0 client {session.identity}")
        driver.start()
        return driver

    def call(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage.

        :param timeout: seconds until the call ends in any case.
        :param retry: the service may be called twice: the call is sent again when a worker or the broker dies.
        """
        return run(self._caller.call(self._call(service, payload, timeout, retry)))

    def submit(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it stops the worker."""
        future: Future[Reply] = self._caller.submit(self._call(service, payload, timeout, retry))
        return future

    def stream(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Stream[Reply]:
        """Call a service and iterate over the parts of its reply as they come; a ``break`` cancels the rest.

        Parts that are not read yet are kept in memory, without a bound; a worker does not wait for a slow reader.
        """
        stream: Stream[Reply] = self._caller.stream(self._call(service, payload, timeout, retry))
        return stream

    def map(
        self, service: str, payloads: Iterable[bytes | tuple[bytes, ...]], *, timeout: float | None = None,
        retry: bool = False, window: int = WINDOW, ordered: bool = True, progress: Progress | None = None,
    ) -> Iterator[Reply]:  # fmt: skip
        """Call a service for each payload, ``window`` at once, and iterate over the replies.

        The timeout is for each call. The first error ends the iteration, and cancels the others.

        :param ordered: give the replies in the order of the payloads; else as they come, with ``reply.number``.
        :param progress: is called with the number of replies so far, and that of the payloads if it is known.
        """
        replies: Iterator[Reply] = self._map(service, payloads, timeout, retry, Window(window, ordered, progress))
        return replies

    def ping(self, timeout: float = 5.0) -> float:
        """Ask the broker whether it is there; returns the seconds until its answer."""
        return run(self._ping(timeout))

    def close(self) -> None:
        """Close: open calls get a ClosedError, and the connection is closed. Returns soon, whatever the broker does."""
        run(self._caller.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(BaseWorker):
    """Serves tasks from a broker with functions, which run on threads while heartbeats go on."""

    _elsewhere = "scale0_core.client.aio.Worker"

    def _served(self) -> Serving[WorkerSession]:
        return ThreadServing()

    def start(self) -> Worker:
        """Begin to serve in the background."""
        self._begin()
        return self

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        run(self._wait_ready(timeout))

    def drain(self, timeout: float = 30.0) -> bool:
        """Take no more tasks, finish those in hand, then leave; False when the time was too short for that."""
        return run(self._drain(timeout))

    def stop(self) -> None:
        """Leave immediately; what is in hand gets no reply. Returns soon."""
        run(self._serving.stop())

    def run(self) -> None:
        """Serve until TERM or INT comes, finish the tasks in hand, and return. A second signal does not wait for them.

        Signals are heeded when this is the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        run(self._serving.serve(self._begin, self._check))

    def __enter__(self) -> Worker:
        return self if self._serving.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._leave(finish=error is None))
