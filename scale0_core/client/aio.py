"""Client and Worker for programs with asyncio: the same names as in ``scale0_core.client``, with coroutines."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, TypeVar

import zmq

from scale0_core.client.calls import Call, Reply, check_call
from scale0_core.client.errors import CallError, ClosedError, WorkerError
from scale0_core.client.handlers import Answer, Handler, Handlers, end_of_parts, failure, frames_of, not_here, part_of
from scale0_core.client.link import Engine, Link, ready
from scale0_core.client.session import Session, Task, WorkerState
from scale0_core.client.setup import ConfigDir, check_worker, frontend_for, session_for
from scale0_core.client.sync import CLIENT_LINGER_MS, PARTS_AT_ONCE, WORKER_LINGER_MS
from scale0_core.client.threads import Pool
from scale0_core.logs import get_logger

__all__ = ["Client", "Stream", "Worker"]

LOG = get_logger("client")

F = TypeVar("F", bound=Handler)
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

    def kick(self) -> None:
        """Have a turn soon."""
        if not self._due and not self._closed:
            self._due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Close everything."""
        if self._closed:
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
        deadline = self.engine.dialog.next_deadline()
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


class _FutureSink:
    """Puts the outcome of a call into a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Reply]) -> None:
        self.future = future

    def part(self, reply: Reply) -> None:
        raise NotImplementedError

    def final(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: CallError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Stream(AsyncIterator[Reply]):
    """The parts of a reply, as they come; ends in StopAsyncIteration or in a CallError."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[Reply | CallError | None] = asyncio.Queue()
        self._on_close: Callable[[], None] = lambda: None
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
        """Let go of the rest."""
        if not self._over:
            self._over = True
            self._on_close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def part(self, reply: Reply) -> None:
        """Take a part; for the client."""
        self._parts.put_nowait(reply)

    def final(self, reply: Reply) -> None:
        """Take the end; for the client."""
        if reply:
            self._parts.put_nowait(reply)
        self._parts.put_nowait(None)

    def fail(self, error: CallError) -> None:
        """Take an error; for the client."""
        self._parts.put_nowait(error)


class Client:
    """Calls services through a broker, from the coroutines of one loop.

    :param broker: the name of a broker on this machine, or the address of a broker's frontend.
    :param identity: who this is, for the broker's lists; made up when not given.
    :param timeout: seconds for a call that names no timeout of its own.
    :param retries: how often a call with ``retry=True`` is sent again.
    :param config_dir: where the configuration is kept; by default in the user's cache folder.
    :param config_type: the format in which the broker is asked for the configuration.
    """

    def __init__(
        self, broker: str = "default", *, identity: str | None = None, timeout: float = 30.0, retries: int = 5,
        config_dir: ConfigDir = None, config_type: str = "JSON",
    ) -> None:  # fmt: skip
        self._frontend = frontend_for(
            broker, identity=identity, retries=retries, config_dir=config_dir, config_type=config_type
        )
        self._timeout = timeout
        self._driver: LoopDriver | None = None
        self._closed = False

    @property
    def identity(self) -> str:
        """Who this is."""
        return self._frontend.identity

    @property
    def address(self) -> str:
        """The address of the broker that is talked to."""
        return self._frontend.address

    @property
    def config_version(self) -> int | str | None:
        """The version of the configuration that the broker gave; None as long as there is none."""
        stored = self._frontend.stored
        return stored.version if stored else None

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
        """Call a service and go on; the future has the reply or the CallError. Cancelled, it gets neither."""
        sink = _FutureSink(asyncio.get_running_loop().create_future())
        frames = check_call(service, payload)
        return self._open(Call(service, frames, sink, timeout=self._time(timeout), retry=retry), sink)

    def stream(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Stream:
        """Call a service and iterate over the parts of its reply as they come."""
        stream = Stream()
        frames = check_call(service, payload)
        call = Call(service, frames, stream, timeout=self._time(timeout), retry=retry, streams=True)
        stream._on_close = lambda: self._frontend.calls.forget(call)  # noqa: SLF001
        self._begin(call)
        return stream

    async def map(
        self, service: str, payloads: Iterable[bytes | tuple[bytes, ...]], *,
        timeout: float | None = None, retry: bool = False, window: int = 500,
    ) -> AsyncIterator[Reply]:  # fmt: skip
        """Call a service for each payload, ``window`` at once, and give the replies in the order of the payloads.

        The timeout is for each call. The first error ends the iteration.
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
        sink = _FutureSink(asyncio.get_running_loop().create_future())
        began = time.monotonic()
        await self._open(Call("", (), sink, timeout=timeout), sink)
        return time.monotonic() - began

    async def close(self) -> None:
        """End: open calls get a ClosedError, and the connection is closed. Returns soon, whatever the broker does."""
        self._closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            self._frontend.close(_closed())
            await driver.close()

    async def __aenter__(self) -> Client:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self, call: Call, sink: _FutureSink) -> asyncio.Future[Reply]:
        sink.future.add_done_callback(lambda future: self._frontend.calls.forget(call) if future.cancelled() else None)
        self._begin(call)
        return sink.future

    def _begin(self, call: Call) -> None:
        driver = self._start()
        self._frontend.open(call, time.monotonic())
        driver.kick()

    def _start(self) -> LoopDriver:
        if self._closed:
            raise _closed()
        if self._driver is None:
            engine = Engine(self._frontend, CLIENT_LINGER_MS)
            self._driver = LoopDriver(engine, on_turn=lambda: None, on_failure=self._failed)
        return self._driver

    def _failed(self, error: Exception) -> None:
        self._closed = True
        self._frontend.close(_closed(error))

    def _time(self, timeout: float | None) -> float:
        seconds = self._timeout if timeout is None else timeout
        if not seconds > 0:
            raise ValueError(f"a timeout is longer than nothing: {seconds}")
        return seconds


def _closed(error: Exception | None = None) -> ClosedError:
    why = f"it failed: {error!r}" if error else ""
    return ClosedError("the client is closed", why, "the call has no reply", "" if error else "make another Client")


# --- Worker -----------------------------------------------------------------------------------------------------------


class Worker:
    """Serves tasks from a broker with async functions on the loop, and with plain ones on threads.

    :param broker: the name of a broker on this machine, or the address of a broker's frontend.
    :param identity: who this is, unique among workers; made up when not given.
    :param concurrency: how many tasks it works on at once.
    :param prefetch: how many more it takes in advance: more throughput for short tasks, longer waits behind long ones.
    :param heartbeat_interval: seconds between heartbeats; the broker may want it longer.
    :param version: the version of what it serves, for service discovery.
    :param metadata: short texts for service discovery.
    :param backend: the address for backends, for brokers that give no configuration.
    """

    def __init__(
        self, broker: str = "default", *, identity: str | None = None, concurrency: int = 1, prefetch: int = 0,
        heartbeat_interval: float = 2.5, version: str = "", metadata: Mapping[str, str] | None = None,
        backend: str | None = None, config_dir: ConfigDir = None, config_type: str = "JSON",
    ) -> None:  # fmt: skip
        check_worker(concurrency, prefetch, heartbeat_interval)
        self._concurrency = concurrency
        self._handlers = Handlers(asynchronous=True)
        self._make: Callable[[], Session] = lambda: session_for(
            broker, backend=backend, identity=identity, window=concurrency + prefetch, interval=heartbeat_interval,
            metadata={**({"version": version} if version else {}), **(metadata or {})},
            config_dir=config_dir, config_type=config_type, begin=self._begin, changed=self._changed,
        )  # fmt: skip
        self._session: Session = self._make()
        self._driver: LoopDriver | None = None
        self._pool = Pool(concurrency, "")
        self._places = asyncio.Semaphore(concurrency)
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- services ---------------------------------------------------------------------------------------------------

    def service(self, name: str) -> Callable[[F], F]:
        """Have the function below serve; also while the worker runs."""

        def register(function: F) -> F:
            self.add(name, function)
            return function

        return register

    def add(self, name: str, function: Handler) -> None:
        """Offer a service; it takes the payload, a frame each, and returns bytes, text, a tuple of these, or None.

        A generator sends what it yields as it goes. What it raises goes to the caller as a RemoteError.
        """
        self._handlers.add(name, function)
        self._offer()

    def remove(self, name: str) -> None:
        """Offer a service no more; tasks in hand are finished."""
        self._handlers.remove(name)
        self._offer()

    def _offer(self) -> None:
        if self._driver is not None:
            self._session.offer(self._handlers.names, time.monotonic())
            self._driver.kick()

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Who this is."""
        return self._session.identity

    @property
    def state(self) -> WorkerState:
        """How far it has come: ``serving`` when tasks may come."""
        return self._session.state

    @property
    def fault(self) -> WorkerError | None:
        """What keeps it from serving, or the last that did; None when all is well."""
        return self._session.fault

    @property
    def config_version(self) -> int | str | None:
        """The version of the configuration that the broker gave; None as long as there is none."""
        stored = self._session.stored
        return stored.version if stored else None

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
        if await self._wait_for(lambda: self._session.offers(self._handlers.names), timeout):
            return
        raise self._session.fault or WorkerError(
            f"the worker is not ready after {timeout:g} s", f"it is {self._session.state.value}"
        )

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take no more tasks, finish those in hand, then leave; False when the time was too short for that."""
        if self._driver is None:
            return True
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
        for task in self._tasks:
            task.cancel()
        self._pool.stop()
        await driver.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(self) -> None:
        """Serve until TERM or INT comes, finish the tasks in hand, and return. A second signal does not wait for them.

        Signals are heeded when the loop runs in the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        if self._driver is None:
            await self.start()
        loop, main = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
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
        if error is None:
            await self.drain()
        await self.stop()

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
            self._give(task, not_here(task.service.decode("utf-8", "replace")))
            return
        running = asyncio.get_running_loop().create_task(self._work(task, handler))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _work(self, task: Task, handler: Handler) -> None:
        async with self._places:
            try:
                answer = await self._answer(task, handler)
            except Exception as error:
                answer = failure(task.service.decode("utf-8", "replace"), error)
        self._give(task, answer)

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
                if not task.alive:
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
            await self._in_pool(parts.close)

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
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        self._pool.run(job)
        return await future

    async def _until_clear(self) -> None:
        driver = self._driver
        if driver is not None:
            clear = asyncio.Event()
            driver.engine.when_clear(clear.set)
            driver.kick()
            await asyncio.wait_for(clear.wait(), 60)

    def _give(self, task: Task, answer: Answer) -> None:
        now = time.monotonic()
        self._session.reply(task, answer.options, answer.frames, now)
        self._session.finish(task, now)
        self._kick()

    def _kick(self) -> None:
        if self._driver is not None:
            self._driver.kick()
