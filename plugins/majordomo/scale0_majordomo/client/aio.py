"""Client and Worker for programs with asyncio: the same names as in ``scale0_majordomo``, with coroutines."""

# does I/O: asyncio

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.flows import Inbox
from scale0_core.client.legacy import LoopDriver
from scale0_core.client.threads import Pool
from scale0_majordomo.client.calls import Call, CallOptions, Reply
from scale0_majordomo.client.errors import CallError, closed_error
from scale0_majordomo.client.handlers import (
    CANCELLED,
    Answer,
    Offer,
    end_of_parts,
    failure,
    frames_of,
    part_options,
    reply,
)
from scale0_majordomo.client.serving import Request, WorkerState
from scale0_majordomo.client.setup import (
    PARTS_AT_ONCE,
    WINDOW,
    BaseClient,
    BaseWorker,
    FutureSink,
    Item,
    Progress,
    check_window,
    count_of,
    forked_error,
    frames_of_item,
    is_serving,
    not_ready,
    told_by_broker,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Client", "Stream", "Worker"]

T = TypeVar("T")

# --- Client -----------------------------------------------------------------------------------------------------------


class Stream(AsyncIterator[Reply]):
    """The parts of a reply as they come, then its end; StopAsyncIteration or a CallError follows.

    One that is closed, or dropped before its end, is cancelled: its worker stops.
    """

    def __init__(self, parts: asyncio.Queue[Reply | CallError | None], cancel: Callable[[], None]) -> None:
        self._parts, self._cancel = parts, cancel
        self._loop = asyncio.get_running_loop()
        self._over = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Reply:
        if self._over:
            raise StopAsyncIteration
        part = await self._parts.get()
        if isinstance(part, Reply):
            return part
        self._over = True
        if part is None:
            raise StopAsyncIteration
        raise part

    async def close(self) -> None:
        """Let go of the rest; the worker is told."""
        if not self._over:
            self._over = True
            self._cancel()

    def __del__(self) -> None:
        if not self._over:
            self._over = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)  # the garbage collector may run in any thread

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(BaseClient):
    """Calls services through a broker, from the coroutines of one loop."""

    def _set_up(self) -> None:
        self._driver: LoopDriver | None = None
        self._closed = False

    async def call(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage. Options: timeout, retry, priority, key,
        traceparent; see ``CallOptions``. Cancelling it tells the worker.
        """
        return await self.submit(service, *body, **options)

    def submit(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> asyncio.Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it tells the worker."""
        return self._submit(service, body, options, 0)

    def _submit(
        self, service: str, body: tuple[bytes | str, ...], options: CallOptions, number: int
    ) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        call = self._call(service, body, FutureSink(future, asyncio.InvalidStateError, number), options)
        future.add_done_callback(lambda ended: self._cancel(call) if ended.cancelled() else None)
        self._begin(call)
        return future

    def stream(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Stream:
        """Call a service and iterate over the parts of its reply as they come, and its end; a break cancels it."""
        parts: asyncio.Queue[Reply | CallError | None] = asyncio.Queue()
        inbox = Inbox(parts.put_nowait)
        call = self._call(service, body, inbox, options, inbox.part)
        self._begin(call)
        return Stream(parts, lambda: self._cancel(call))

    async def map(
        self, service: str, items: Iterable[Item], *, window: int = WINDOW, ordered: bool = True,
        progress: Progress | None = None, **options: Unpack[CallOptions],
    ) -> AsyncIterator[Reply]:  # fmt: skip
        """Call a service for each item, ``window`` at once, and give the replies; the timeout is for each call.

        An item is the body: bytes, text, or a tuple of these. The first error ends it, and cancels the others.

        :param ordered: give the replies in the order of the items; else as they come, with ``reply.number``.
        :param progress: is called with the number of replies so far, and that of the items if known.
        """
        check_window(window)
        replies = (self._in_order if ordered else self._as_they_come)(service, items, window, options)
        total, number = count_of(items), 0
        try:
            async for each in replies:
                number += 1
                if progress is not None:
                    progress(number, total)
                yield each
        finally:
            await replies.aclose()

    async def _in_order(
        self, service: str, items: Iterable[Item], window: int, options: CallOptions
    ) -> AsyncGenerator[Reply, None]:
        under_way: deque[asyncio.Future[Reply]] = deque()
        try:
            for number, item in enumerate(items):
                under_way.append(self._submit(service, frames_of_item(item), options, number))
                while len(under_way) >= window or (under_way and under_way[0].done()):
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
        finally:
            _cancel_all(under_way)

    async def _as_they_come(
        self, service: str, items: Iterable[Item], window: int, options: CallOptions
    ) -> AsyncGenerator[Reply, None]:
        done: asyncio.Queue[asyncio.Future[Reply]] = asyncio.Queue()
        under_way: set[asyncio.Future[Reply]] = set()

        async def take() -> Reply:
            future = await done.get()
            under_way.discard(future)
            return await future

        try:
            for number, item in enumerate(items):
                future = self._submit(service, frames_of_item(item), options, number)
                under_way.add(future)
                future.add_done_callback(done.put_nowait)
                while len(under_way) >= window or not done.empty():
                    yield await take()
            while under_way:
                yield await take()
        finally:
            _cancel_all(under_way)

    # --- what the broker knows ----------------------------------------------------------------------------------------

    async def services(self, timeout: float | None = None) -> dict[str, dict[str, Any]]:
        """Ask the broker for its services, each with its figures: workers, waiting, requests and more."""
        figures: dict[str, dict[str, Any]] = told_by_broker("mmi.stats", await self.call("mmi.stats", timeout=timeout))
        return figures

    async def workers(self, service: str = "", timeout: float | None = None) -> list[dict[str, Any]]:
        """Ask the broker for its workers, or those of one service."""
        told = await self.call("mmi.workers", service, timeout=timeout)
        rows: list[dict[str, Any]] = told_by_broker("mmi.workers", told)
        return rows

    async def offers(self, service: str, timeout: float | None = None) -> bool:
        """Ask the broker whether somebody offers a service."""
        return (await self.call("mmi.service", service, timeout=timeout)).body == b"200"

    async def close(self) -> None:
        """End: open calls are cancelled and get a ClosedError. Returns soon, whatever the broker does."""
        self._closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            self._session.close(closed_error())
            await driver.close()

    async def __aenter__(self) -> Client:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self, call: Call) -> None:
        driver = self._start()
        self._session.open(call, time.monotonic())
        driver.kick()

    def _cancel(self, call: Call) -> None:
        self._session.cancel(call)
        if self._driver is not None:
            self._driver.kick()

    def _start(self) -> LoopDriver:
        if self._closed:
            raise closed_error()
        if self._driver is None:
            engine = Engine(self._session)  # type: ignore[arg-type]  # until it stands on the kit
            self._driver = LoopDriver(engine, on_turn=lambda: None, on_failure=self._failed)
        elif self._driver.forked:
            raise forked_error()
        return self._driver

    def _failed(self, error: Exception) -> None:
        self._closed = True
        self._session.close(closed_error(error))


def _cancel_all(futures: Iterable[asyncio.Future[Reply]]) -> None:
    for future in futures:
        if not future.cancel() and not future.cancelled():
            future.exception()  # nobody will ask for it, which is no fault


# --- Worker -----------------------------------------------------------------------------------------------------------


class Worker(BaseWorker):
    """Serves requests with async functions on the loop, and with plain ones on threads."""

    _asynchronous = True

    def _set_up(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._running = False
        self._news = asyncio.Event()

    def _offered(self, offer: Offer) -> None:
        if self._running:
            self._lines[offer.name] = _Line(self, offer)

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Worker:
        """Begin to serve in the background."""
        if self._running:
            raise RuntimeError("the worker has been started already")
        self._running = True
        try:
            for offer in self._offers.values():
                self._lines[offer.name] = _Line(self, offer)
        except BaseException:
            await self.stop()
            raise
        return self

    async def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        self._check()
        if await self._wait_for(lambda: all(is_serving(line.session) for line in self._all()), timeout):
            return
        raise next(not_ready(line.session, timeout) for line in self._all() if not is_serving(line.session))

    async def drain(self, timeout: float = 30.0) -> bool:
        """Begin no more requests, finish those in hand, then leave; False when the time was too short for that."""
        self._check()
        for line in self._all():
            line.drain()
        done = await self._wait_for(self._has_left, timeout)
        await self.stop()
        return done

    async def remove(self, name: str, timeout: float = 30.0) -> bool:
        """Offer a service no more; requests in hand are finished. False when the time was too short for that."""
        del self._offers[name]
        line = self._lines.pop(name, None)
        if line is None:
            return True
        line.drain()
        done = await self._wait_for(lambda: line.session.state is WorkerState.LEFT, timeout)
        await line.stop()
        return done

    async def stop(self) -> None:
        """Leave at once; what is in hand is given to other workers. Returns soon."""
        lines, self._lines, self._running = self._lines, {}, False
        await asyncio.gather(*(line.stop() for line in lines.values()))

    async def run(self) -> None:
        """Serve until TERM or INT comes, finish the requests in hand, and return. A second signal does not wait.

        Signals are heeded when the loop runs in the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        loop, main = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            if not self._running:
                await self.start()  # signals are heeded already, so no request is in hand of one who heeds none
            self._check()
            await self._wait_for(self._has_left, None)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self.stop()

    async def __aenter__(self) -> Worker:
        return self if self._running else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._forked:
            await self.drain()
        await self.stop()

    @property
    def _forked(self) -> bool:
        return any(line.forked for line in self._all())

    def _check(self) -> None:
        self._check_process(self._forked)

    def _all(self) -> list[_Line]:
        return list(self._lines.values())

    def _has_left(self) -> bool:
        return all(line.session.state is WorkerState.LEFT for line in self._all())

    def _on_signal(self) -> None:
        for line in self._all():
            if line.session.draining:
                line.leave()
            else:
                line.drain()

    async def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except asyncio.TimeoutError:
                return False
        return True

    def changed(self) -> None:
        """Have whoever waits for a change look."""
        self._news.set()


class _Line:
    """One service of a worker: its connection, and the tasks and threads that run the function."""

    def __init__(self, worker: Worker, offer: Offer) -> None:
        self._handler = offer.handler
        self.session = worker.session_for(offer, self._begin, self._cancel, worker.changed)
        self._pool = Pool(offer.threads, f"majordomo worker {offer.name}")
        self._tasks: dict[int, asyncio.Task[Answer]] = {}
        engine = Engine(self.session)  # type: ignore[arg-type]  # until it stands on the kit
        self._driver = LoopDriver(engine, on_turn=lambda: None, on_failure=self._failed)

    def drain(self) -> None:
        self.session.drain(time.monotonic())
        self._driver.kick()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, whose parent has the connection."""
        return self._driver.forked

    def leave(self) -> None:
        self.session.stop(time.monotonic())
        self._driver.kick()

    async def stop(self) -> None:
        self.session.stop(time.monotonic())
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        self._pool.stop()
        await self._driver.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, error: Exception) -> None:
        self.session.stop(time.monotonic())

    # --- requests -----------------------------------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._work(request))
        self._tasks[id(request)] = task  # two requests may be equal
        task.add_done_callback(partial(self._ended, request))

    def _cancel(self, request: Request) -> None:
        task = self._tasks.get(id(request))
        if task is not None:
            task.cancel()

    def _ended(self, request: Request, task: asyncio.Task[Answer]) -> None:
        self._tasks.pop(id(request), None)
        answer = CANCELLED if task.cancelled() else task.result()
        now = time.monotonic()
        if answer.code:
            self.session.error(request, answer.code, answer.reason, now)
        else:
            self.session.final(request, answer.options, answer.frames, now)
        self._driver.kick()

    async def _work(self, request: Request) -> Answer:
        try:
            return await self._answer(request)
        except Exception as error:
            return failure(request, error)

    async def _answer(self, request: Request) -> Answer:
        handler = self._handler
        if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
            result = handler(request)
        else:
            result = await self._in_pool(lambda: handler(request))
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncGeneratorType):
            return end_of_parts(await self._parts(request, result), None)
        if isinstance(result, GeneratorType):
            end: list[Any] = []
            seq = await self._parts(request, self._in_threads(result, end))
            return end_of_parts(seq, end[0] if end else None)
        return reply(result)

    async def _parts(self, request: Request, parts: AsyncGenerator[Any, None]) -> int:
        seq = 0
        try:
            async for part in parts:
                self.session.part(request, part_options(seq), frames_of(part), time.monotonic())
                self._driver.kick()
                seq += 1
                if seq % PARTS_AT_ONCE == 0:
                    await self._until_clear()
                if request.cancelled:
                    raise asyncio.CancelledError
        finally:
            await parts.aclose()
        return seq

    async def _in_threads(self, parts: GeneratorType[Any, None, Any], end: list[Any]) -> AsyncGenerator[Any, None]:
        def step() -> tuple[bool, Any]:
            try:
                return True, next(parts)
            except StopIteration as stop:
                return False, stop.value

        def close() -> None:
            with contextlib.suppress(Exception):
                parts.close()

        def close_later(ended: asyncio.Future[tuple[bool, Any]]) -> None:
            if not ended.cancelled():
                ended.exception()  # nobody waits for it any more
            self._pool.run(close)

        running: asyncio.Future[tuple[bool, Any]] | None = None
        try:
            while True:
                running = asyncio.ensure_future(self._in_pool(step))
                more, value = await asyncio.shield(running)
                if not more:
                    end.append(value)
                    return
                yield value
        finally:
            # while it runs it cannot be closed, and nobody is to wait for that
            if running is not None:
                running.add_done_callback(close_later)

    async def _in_pool(self, function: Callable[[], T]) -> T:
        """Run a function on a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)

        def job() -> None:
            value, error = None, None
            try:
                value = function()
            except Exception as caught:
                error = caught
            except BaseException as caught:  # a function that exits must end neither the thread nor the loop
                error = RuntimeError(f"{type(caught).__name__}: {caught}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        self._pool.run(job)
        return await future

    async def _until_clear(self) -> None:
        clear = asyncio.Event()
        self._driver.engine.when_clear(clear.set)
        self._driver.kick()
        await asyncio.wait_for(clear.wait(), 60)
