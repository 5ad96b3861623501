"""Client and Worker for programs without asyncio: each has one thread that owns its socket."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from types import GeneratorType, TracebackType
from typing import Any

from scale0_core.client.calls import Call, Reply, check_call
from scale0_core.client.errors import CallError
from scale0_core.client.frontend import Frontend
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
from scale0_core.client.link import Engine
from scale0_core.client.session import Task, WorkerState
from scale0_core.client.setup import (
    CLIENT_LINGER_MS,
    LOOK_EVERY,
    PARTS_AT_ONCE,
    WORKER_LINGER_MS,
    BaseClient,
    BaseWorker,
    FutureSink,
    closed_error,
    forked_error,
)
from scale0_core.client.threads import GuardedFuture, IoThread, Pool, Signals

# --- Client -----------------------------------------------------------------------------------------------------------


class Stream(Iterator[Reply]):
    """The parts of a reply, as they come; ends in StopIteration or in a CallError.

    One that is closed, or dropped before its end, is cancelled: its worker stops.
    """

    def __init__(
        self, parts: queue.SimpleQueue[Reply | CallError | None], cancel: Callable[[], None], check: Callable[[], None]
    ) -> None:
        self._parts, self._cancel, self._check = parts, cancel, check
        self._over = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Reply:
        if self._over:
            raise StopIteration
        self._check()
        part = self._parts.get()
        if isinstance(part, Reply):
            return part
        self._over = True
        if part is None:
            raise StopIteration
        raise part

    def close(self) -> None:
        """Cancel the rest."""
        if not self._over:
            self._over = True
            self._cancel()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CallFuture(GuardedFuture[Reply]):
    """The future of a call. One that is cancelled has the worker stop."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(check)
        self.on_cancel: list[Callable[[], None]] = []

    def cancel(self) -> bool:
        """Cancel the call, unless it is over; return whether that could be done."""
        if not super().cancel():
            return False
        if self.on_cancel:  # once, whoever else cancels it
            tell = self.on_cancel.pop()
            self.set_running_or_notify_cancel()  # whoever waits for several futures learns of it by this
            tell()
        return True


class Client(BaseClient):
    """Calls services through a broker. All methods may be used from any thread."""

    def _set_up(self) -> None:
        self._runner = _ClientRunner(self._frontend)
        self._finalizer = weakref.finalize(self, self._runner.stop)

    def call(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage.

        :param timeout: seconds until the call ends in any case.
        :param retry: the service may be called twice: the call is sent again when a worker or the broker dies.
        """
        future = self.submit(service, *payload, timeout=timeout, retry=retry)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def submit(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it stops the worker."""
        future, frames = CallFuture(self._runner.check), check_call(service, payload)
        sink = FutureSink(future, InvalidStateError)
        call = Call(service, frames, sink, timeout=self._time(timeout), retry=retry)
        future.on_cancel.append(partial(self._runner.cancel, call))
        self._runner.open(call)
        return future

    def stream(self, service: str, *payload: bytes, timeout: float | None = None, retry: bool = False) -> Stream:
        """Call a service and iterate over the parts of its reply as they come; a ``break`` cancels the rest."""
        parts: queue.SimpleQueue[Reply | CallError | None] = queue.SimpleQueue()
        inbox, frames = Inbox(parts.put), check_call(service, payload)
        call = Call(service, frames, inbox, timeout=self._time(timeout), retry=retry, on_part=inbox.part)
        self._runner.open(call)
        # the client lives as long as its streams
        return Stream(parts, lambda: self._runner.cancel(call), self._runner.check)

    def map(
        self, service: str, payloads: Iterable[bytes | tuple[bytes, ...]], *,
        timeout: float | None = None, retry: bool = False, window: int = 500,
    ) -> Iterator[Reply]:  # fmt: skip
        """Call a service for each payload, ``window`` at once, and give the replies in the order of the payloads.

        The timeout is for each call. The first error ends the iteration, and cancels the others.
        """
        if window < 1:
            raise ValueError("a window has at least one place")
        under_way: deque[Future[Reply]] = deque()
        try:
            for payload in payloads:
                frames = payload if isinstance(payload, tuple) else (payload,)
                under_way.append(self.submit(service, *frames, timeout=timeout, retry=retry))
                while len(under_way) >= window or (under_way and under_way[0].done()):
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def ping(self, timeout: float = 5.0) -> float:
        """Ask the broker whether it is there; gives the seconds until its answer."""
        future, began = CallFuture(self._runner.check), time.monotonic()
        self._runner.open(Call("", (), FutureSink(future, InvalidStateError), timeout=self._time(timeout)))
        future.result()
        return time.monotonic() - began

    def close(self) -> None:
        """End: open calls get a ClosedError, and the connection is closed. Returns soon, whatever the broker does."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ClientRunner:
    """The part of a client that its thread knows, so that a client nobody refers to any more can be closed."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._new: deque[Call] = deque()
        self._stopped = False
        self._lock = threading.RLock()  # the garbage collector may close a client in between
        self._thread = IoThread(
            Engine(frontend, CLIENT_LINGER_MS),
            f"scale0 client {frontend.identity}",
            ended=lambda: self._stopped,
            on_end=self._end,
        )
        self._thread.start()

    def check(self) -> None:
        """Raise in a forked child, where nothing would ever come."""
        if self._thread.forked:
            raise forked_error()

    def open(self, call: Call) -> None:
        self.check()  # before the lock, which another thread may have held at the fork
        with self._lock:
            if self._stopped:
                raise closed_error()
            self._new.append(call)
            first = len(self._new) == 1
        if first:
            self._thread.call(self._open_new)

    def _open_new(self) -> None:
        now = time.monotonic()
        while self._new:
            self._frontend.open(self._new.popleft(), now)

    def cancel(self, call: Call) -> None:
        self._thread.call(lambda: self._cancel(call))

    def _cancel(self, call: Call) -> None:
        self._open_new()  # it may be among them
        self._frontend.calls.cancel(call)

    def stop(self) -> None:
        if self._thread.forked:
            return
        with self._lock:
            self._stopped = True
        self._thread.call(lambda: None)
        self._thread.join()

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._stopped = True
        self._open_new()
        self._frontend.close(closed_error(error))


# --- Worker -----------------------------------------------------------------------------------------------------------


class Worker(BaseWorker):
    """Serves tasks from a broker with functions, which run on threads while heartbeats go on."""

    _asynchronous = False

    def _set_up(self) -> None:
        self._thread: IoThread | None = None
        self._engine: Engine | None = None
        self._pool = Pool(self._concurrency, "")
        self._condition = threading.Condition()
        self._left = threading.Event()
        self._finalizer: weakref.finalize[[], Worker] | None = None

    def _offer(self) -> None:
        if self._thread is not None:
            self._thread.call(lambda: self._session.offer(self._handlers.names, time.monotonic()))

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> Worker:
        """Begin to serve in the background."""
        if self._thread is not None:
            raise RuntimeError("the worker has been started already")
        if self._session.state is WorkerState.LEFT:
            self._session = self._make()
        self._left.clear()
        self._session.offer(self._handlers.names, time.monotonic())
        self._pool = Pool(self._concurrency, f"scale0 worker {self.identity}")
        engine = self._engine = Engine(self._session, WORKER_LINGER_MS)
        self._thread = IoThread(
            engine,
            f"scale0 worker {self.identity}",
            ended=lambda: self._session.state is WorkerState.LEFT,
            on_end=self._end,
        )
        self._finalizer = weakref.finalize(self, self.stop)
        self._thread.start()
        return self

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        self._check()
        with self._condition:
            if self._condition.wait_for(lambda: self._session.offers(self._handlers.names), timeout):
                return
        raise self._not_ready(timeout)

    def drain(self, timeout: float = 30.0) -> bool:
        """Take no more tasks, finish those in hand, then leave; False when the time was too short for that."""
        if self._thread is None:
            return True
        self._check()
        self._thread.call(lambda: self._session.drain(time.monotonic()))
        done = self._left.wait(timeout)
        self.stop()
        return done

    def stop(self) -> None:
        """Leave at once; what is in hand gets no reply. Returns soon."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(lambda: self._session.stop(time.monotonic()))
            thread.join()
            self._pool.stop()
        if self._finalizer is not None:
            self._finalizer.detach()

    def run(self) -> None:
        """Serve until TERM or INT comes, finish the tasks in hand, and return. A second signal does not wait for them.

        Signals are heeded when this is the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        with Signals(self._on_signal) as signals:  # before tasks come, so that none is in hand of one who heeds none
            if self._thread is None:
                self.start()
            self._check()
            if signals.count:
                self._on_signal(signals.count)  # it may have come too early for the thread
            self._left.wait()
        self.stop()

    def __enter__(self) -> Worker:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._forked:
            self.drain()
        self.stop()

    @property
    def _forked(self) -> bool:
        return self._thread is not None and self._thread.forked

    def _check(self) -> None:
        self._check_process(self._forked)

    def _on_signal(self, count: int) -> None:
        session, now = self._session, time.monotonic()
        if self._thread is not None:
            self._thread.call(lambda: session.drain(now) if count == 1 else session.stop(now))

    def _changed(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _end(self, error: BaseException | None) -> None:
        self._session.stop(time.monotonic())
        self._left.set()

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        handler = self._handlers[task.service]
        if handler is None:
            self._give(task, not_here(task))
            return
        self._pool.run(lambda: self._work(task, handler))

    def _cancel(self, task: Task) -> None:
        """Stop a task. One that a thread has begun is told by ``task.over``; the others need none to end."""
        if not task.begun:
            self._give(task, ended(task))

    def _work(self, task: Task, handler: Handler) -> None:
        """Run a function; on one of the pool's threads."""
        task.begun = True
        if task.over:
            self._post(partial(self._give, task, ended(task)))
            return
        WORKING_ON.set(task)
        try:
            result = handler(*task.payload)
            answer = self._parts(task, result) if isinstance(result, GeneratorType) else Answer(b"", frames_of(result))
        except BaseException as error:  # a function that exits must not take the thread away
            answer = failure(task, error)
        finally:
            WORKING_ON.set(None)
        self._post(partial(self._give, task, answer))

    def _parts(self, task: Task, parts: GeneratorType[Any, None, None]) -> Answer:
        seq = 0
        for part in parts:
            self._post(partial(self._give_part, task, part_of(part, seq)))
            seq += 1
            if seq % PARTS_AT_ONCE == 0:
                self._wait_until_clear(task)
            if task.over:
                parts.close()
                break
        return end_of_parts(seq)

    def _wait_until_clear(self, task: Task) -> None:
        clear, engine = threading.Event(), self._engine
        if engine is not None:
            self._post(lambda: engine.when_clear(clear.set))
            while not task.over and not clear.wait(LOOK_EVERY):
                pass

    def _post(self, call: Callable[[], None]) -> None:
        thread = self._thread
        if thread is not None:
            thread.call(call)

    def _give_part(self, task: Task, answer: Answer) -> None:
        if not task.over:
            self._session.reply(task, answer.options, answer.frames, time.monotonic())

    def _give(self, task: Task, answer: Answer) -> None:
        now = time.monotonic()
        if task.over:
            answer = ended(task)
        self._session.reply(task, answer.options, answer.frames, now)
        self._session.finish(task, now)
