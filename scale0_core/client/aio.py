"""Client and Worker for programs with asyncio: the same names as in ``scale0_core.client``, with coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, TypeVar

import zmq

from scale0_core.client.calls import Call, Reply, check_call
from scale0_core.client.errors import CallError
from scale0_core.client.handlers import (
    WORKING_ON,
    Answer,
    Handler,
    end_of_parts,
    ended,
    failure,
    frames_of,
    not_here,
    part_of,
)
from scale0_core.client.inbox import Inbox
from scale0_core.client.link import Engine, Link, ready
from scale0_core.client.session import Task, WorkerState
from scale0_core.client.setup import (
    CLIENT_LINGER_MS,
    PARTS_AT_ONCE,
    WORKER_LINGER_MS,
    BaseClient,
    BaseWorker,
    FutureSink,
    closed_error,
    forked_error,
)
from scale0_core.client.threads import FORKED, Pool
from scale0_core.logs import get_logger

__all__ = ["Client", "Stream", "Worker"]

LOG = get_logger("client")

T = TypeVar("T")


class LoopDriver:
    """Drives an engine on an asyncio loop: by the sockets' descriptors and a timer."""

    def __init__(self, engine: Engine, *, on_turn: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        self.engine = engine
        self._on_turn, self._on_failure = on_turn, on_failure
        self._loop = asyncio.get_running_loop()
        self._watched: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False
        engine.on_link = self._watch
        engine.start()
        self.kick()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child; the sockets are the parent's, and reading them would rob it."""
        return self.engine.forked

    def kick(self) -> None:
        """Have a turn soon."""
        if not self._due and not self._closed and not self.forked:
            self._due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Close everything."""
        if self._closed or self.forked:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.engine.apply()
        self.engine.close_link()
        # waits for what is still to be delivered, at most for the linger
        await asyncio.shield(asyncio.to_thread(self.engine.terminate))

    def _watch(self, _: Link | None, new: Link | None) -> None:
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched = []
        if new is not None and new.monitor is not None:
            self._watched = [new.socket.fileno(), new.monitor.fileno()]
            for fd in self._watched:
                self._loop.add_reader(fd, self.kick)
            self.kick()

    def _turn(self) -> None:
        self._due = False
        if self._closed:
            return
        if self.forked:
            self._closed = True
            self._on_failure(RuntimeError(FORKED))
            return
        try:
            more = self.engine.turn()
            self._on_turn()
        except Exception as error:
            LOG.error("the client failed", error=repr(error))
            self._closed = True
            self.engine.close_link()
            self._on_failure(error)
            return
        # the descriptors tell of changes only: what came while we were sending must be looked for
        if more or self._readable():
            self.kick()
        self._arm()

    def _readable(self) -> bool:
        link = self.engine.link
        if link is None or link.monitor is None:
            return False
        return bool((ready(link.socket) | ready(link.monitor)) & zmq.POLLIN)

    def _arm(self) -> None:
        deadline = self.engine.next_deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline and not self._timer.cancelled():
                return  # it comes early, and the next one is set then
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.kick()


# --- Client -----------------------------------------------------------------------------------------------------------


class Stream(AsyncIterator[Reply]):
    """The parts of a reply, as they come; ends in StopAsyncIteration or in a CallError.

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
        """Cancel the rest."""
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

    async def call(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage.

        :param timeout: seconds until the call ends in any case.
        :param retry: the service may be called twice: the call is sent again when a worker or the broker dies.
        """
        return await self.submit(service, *payload, timeout=timeout, retry=retry)

    def submit(
        self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False
    ) -> asyncio.Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it stops the worker."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        frames = check_call(service, payload)
        sink = FutureSink(future, asyncio.InvalidStateError)
        self._open(Call(service, frames, sink, timeout=self._time(timeout), retry=retry), future)
        return future

    def stream(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Stream:
        """Call a service and iterate over the parts of its reply as they come; a ``break`` cancels the rest."""
        parts: asyncio.Queue[Reply | CallError | None] = asyncio.Queue()
        inbox, frames = Inbox(parts.put_nowait), check_call(service, payload)
        call = Call(service, frames, inbox, timeout=self._time(timeout), retry=retry, on_part=inbox.part)
        self._begin(call)
        return Stream(parts, lambda: self._cancel(call))

    async def map(
        self, service: str, payloads: Iterable[bytes | tuple[bytes, ...]], *,
        timeout: float | None = None, retry: bool = False, window: int = 500,
    ) -> AsyncIterator[Reply]:  # fmt: skip
        """Call a service for each payload, ``window`` at once, and give the replies in the order of the payloads.

        The timeout is for each call. The first error ends the iteration, and cancels the others.
        """
        if window < 1:
            raise ValueError("a window has at least one place")
        under_way: deque[asyncio.Future[Reply]] = deque()
        try:
            for payload in payloads:
                frames = payload if isinstance(payload, tuple) else (payload,)
                under_way.append(self.submit(service, *frames, timeout=timeout, retry=retry))
                while len(under_way) >= window or (under_way and under_way[0].done()):
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
        finally:
            for future in under_way:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # nobody will ask for it, which is no fault

    async def ping(self, timeout: float = 5.0) -> float:
        """Ask the broker whether it is there; gives the seconds until its answer."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        self._open(Call("", (), FutureSink(future, asyncio.InvalidStateError), timeout=self._time(timeout)), future)
        await future
        return time.monotonic() - began

    async def close(self) -> None:
        """End: open calls get a ClosedError, and the connection is closed. Returns soon, whatever the broker does."""
        self._closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            self._frontend.close(closed_error())
            await driver.close()

    async def __aenter__(self) -> Client:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self, call: Call, future: asyncio.Future[Reply]) -> None:
        future.add_done_callback(lambda done: self._cancel(call) if done.cancelled() else None)
        self._begin(call)

    def _cancel(self, call: Call) -> None:
        self._frontend.calls.cancel(call)
        if self._driver is not None:
            self._driver.kick()

    def _begin(self, call: Call) -> None:
        driver = self._start()
        self._frontend.open(call, time.monotonic())
        driver.kick()

    def _start(self) -> LoopDriver:
        if self._closed:
            raise closed_error()
        if self._driver is None:
            engine = Engine(self._frontend, CLIENT_LINGER_MS)
            self._driver = LoopDriver(engine, on_turn=lambda: None, on_failure=self._failed)
        elif self._driver.forked:
            raise forked_error()
        return self._driver

    def _failed(self, error: Exception) -> None:
        self._closed = True
        self._frontend.close(closed_error(error))


# --- Worker -----------------------------------------------------------------------------------------------------------


class Worker(BaseWorker):
    """Serves tasks from a broker with async functions on the loop, and with plain ones on threads."""

    _asynchronous = True

    def _set_up(self) -> None:
        self._driver: LoopDriver | None = None
        self._pool = Pool(self._concurrency, "")
        self._places = asyncio.Semaphore(self._concurrency)
        self._news = asyncio.Event()
        self._running: dict[Task, asyncio.Task[Answer]] = {}

    def _offer(self) -> None:
        if self._driver is not None:
            self._session.offer(self._handlers.names, time.monotonic())
            self._driver.kick()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Worker:
        """Begin to serve in the background."""
        if self._driver is not None:
            raise RuntimeError("the worker has been started already")
        if self._session.state is WorkerState.LEFT:
            self._session = self._make()
        self._session.offer(self._handlers.names, time.monotonic())
        self._pool = Pool(self._concurrency, f"scale0 worker {self.identity}")
        engine = Engine(self._session, WORKER_LINGER_MS)
        self._driver = LoopDriver(engine, on_turn=lambda: None, on_failure=self._failed)
        return self

    async def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        self._check()
        if await self._wait_for(lambda: self._session.offers(self._handlers.names), timeout):
            return
        raise self._not_ready(timeout)

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take no more tasks, finish those in hand, then leave; False when the time was too short for that."""
        if self._driver is None:
            return True
        self._check()
        self._session.drain(time.monotonic())
        self._driver.kick()
        done = await self._wait_for(self._has_left, timeout)
        await self.stop()
        return done

    async def stop(self) -> None:
        """Leave at once; what is in hand gets no reply. Returns soon."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._session.stop(time.monotonic())
        running = list(self._running.values())
        for task in running:
            task.cancel()
        self._pool.stop()
        await driver.close()
        await asyncio.gather(*running, return_exceptions=True)

    async def run(self) -> None:
        """Serve until TERM or INT comes, finish the tasks in hand, and return. A second signal does not wait for them.

        Signals are heeded when the loop runs in the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        loop, main = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            if self._driver is None:
                await self.start()  # signals are heeded already, so no task is in hand of one who heeds none
            self._check()
            await self._wait_for(self._has_left, None)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self.stop()

    async def __aenter__(self) -> Worker:
        return self if self._driver is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._forked:
            await self.drain()
        await self.stop()

    @property
    def _forked(self) -> bool:
        return self._driver is not None and self._driver.forked

    def _check(self) -> None:
        self._check_process(self._forked)

    def _on_signal(self) -> None:
        now = time.monotonic()
        if self._session.draining:
            self._session.stop(now)
        else:
            self._session.drain(now)
        if self._driver is not None:
            self._driver.kick()

    def _has_left(self) -> bool:
        return self._session.state is WorkerState.LEFT

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

    def _changed(self) -> None:
        self._news.set()

    def _failed(self, error: Exception) -> None:
        self._session.stop(time.monotonic())

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        handler = self._handlers[task.service]
        if handler is None:
            self._give(task, not_here(task))
            return
        running = self._running[task] = asyncio.get_running_loop().create_task(self._work(task, handler))
        running.add_done_callback(partial(self._ended, task))

    def _cancel(self, task: Task) -> None:
        running = self._running.get(task)
        if running is not None:
            running.cancel()

    def _ended(self, task: Task, running: asyncio.Task[Answer]) -> None:
        del self._running[task]
        if not running.cancelled():
            self._give(task, running.result())
        elif self._driver is not None:  # the worker goes on: it was cancelled, or what it awaited was
            self._give(task, failure(task, asyncio.CancelledError("the handler was cancelled")))

    async def _work(self, task: Task, handler: Handler) -> Answer:
        async with self._places:
            WORKING_ON.set(task)
            try:
                return await self._answer(task, handler)
            except Exception as error:
                return failure(task, error)

    async def _answer(self, task: Task, handler: Handler) -> Answer:
        if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
            result = handler(*task.payload)
        else:
            result = await self._in_pool(lambda: handler(*task.payload))
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncGeneratorType):
            return await self._parts(task, result)
        if isinstance(result, GeneratorType):
            return await self._parts(task, self._in_threads(result))
        return Answer(b"", frames_of(result))

    async def _parts(self, task: Task, parts: AsyncGenerator[Any, None]) -> Answer:
        seq = 0
        try:
            async for part in parts:
                answer = part_of(part, seq)
                self._session.reply(task, answer.options, answer.frames, time.monotonic())
                self._kick()
                seq += 1
                if seq % PARTS_AT_ONCE == 0:
                    await self._until_clear()
                if task.over:
                    break
        finally:
            await parts.aclose()
        return end_of_parts(seq)

    async def _in_threads(self, parts: GeneratorType[Any, None, None]) -> AsyncGenerator[Any, None]:
        nothing = object()
        try:
            while (part := await self._in_pool(lambda: next(parts, nothing))) is not nothing:
                yield part
        finally:
            if self._driver is not None:  # else the worker stops, and does not wait for a thread
                await self._in_pool(parts.close)

    async def _in_pool(self, function: Callable[[], T]) -> T:
        """Run a function on a thread. Cancelled, it ends when the thread is free, unless the worker stops."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)

        def job() -> None:
            value, error = None, None  # type: Any, BaseException | None
            try:
                value = context.run(function)
            except Exception as caught:
                error = caught
            except BaseException as caught:  # a function that exits must end neither the thread nor the loop
                error = RuntimeError(f"{type(caught).__name__}: {caught}")
                error.__cause__ = caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        self._pool.run(job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._driver is not None:
                await asyncio.wait([future])
            raise

    async def _until_clear(self) -> None:
        driver = self._driver
        if driver is not None:
            clear = asyncio.Event()
            driver.engine.when_clear(clear.set)
            driver.kick()
            await asyncio.wait_for(clear.wait(), 60)

    def _give(self, task: Task, answer: Answer) -> None:
        now = time.monotonic()
        if task.over:
            answer = ended(task)
        self._session.reply(task, answer.options, answer.frames, now)
        self._session.finish(task, now)
        self._kick()

    def _kick(self) -> None:
        if self._driver is not None:
            self._driver.kick()
