"""Client and Worker for programs without asyncio: a thread owns each socket."""

# does I/O: threads

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from types import GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.flows import Inbox
from scale0_core.client.threads import GuardedFuture, IoThread, Pool, Signals
from scale0_majordomo.client.calls import Call, CallOptions, ClientSession, Reply
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
    LOOK_EVERY,
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

# --- Client -----------------------------------------------------------------------------------------------------------


class Stream(Iterator[Reply]):
    """The parts of a reply as they come, then its end; StopIteration or a CallError follows.

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
        """Let go of the rest; the worker is told."""
        if not self._over:
            self._over = True
            self._cancel()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(BaseClient):
    """Calls services through a broker. All methods may be used from any thread."""

    def _set_up(self) -> None:
        self._runner = _ClientRunner(self._session)
        self._finalizer = weakref.finalize(self, self._runner.stop)

    def call(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Reply:
        """Call a service and wait for its reply, a tuple of frames; a streamed reply is given as a whole.

        Raises a CallError that says what went wrong, and at which stage. Options: timeout, retry, priority, key,
        traceparent; see ``CallOptions``.
        """
        future = self.submit(service, *body, **options)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def submit(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Future[Reply]:
        """Call a service and go on; the future has the reply or the CallError. Cancelling it tells the worker."""
        return self._submit(service, body, options, 0)

    def _submit(self, service: str, body: tuple[bytes | str, ...], options: CallOptions, number: int) -> Future[Reply]:
        future: Future[Reply] = GuardedFuture(self._runner.check)
        call = self._call(service, body, FutureSink(future, InvalidStateError, number), options)
        self._runner.open(call)
        future.add_done_callback(partial(self._runner.forget_cancelled, call))
        return future

    def stream(self, service: str, *body: bytes | str, **options: Unpack[CallOptions]) -> Stream:
        """Call a service and iterate over the parts of its reply as they come, and its end; a break cancels it."""
        parts: queue.SimpleQueue[Reply | CallError | None] = queue.SimpleQueue()
        inbox = Inbox(parts.put)
        call = self._call(service, body, inbox, options, inbox.part)
        self._runner.open(call)
        # the client lives as long as its streams
        return Stream(parts, lambda: self._runner.cancel(call), self._runner.check)

    def map(
        self, service: str, items: Iterable[Item], *, window: int = WINDOW, ordered: bool = True,
        progress: Progress | None = None, **options: Unpack[CallOptions],
    ) -> Iterator[Reply]:  # fmt: skip
        """Call a service for each item, ``window`` at once, and give the replies; the timeout is for each call.

        An item is the body: bytes, text, or a tuple of these. The first error ends it, and cancels the others.

        :param ordered: give the replies in the order of the items; else as they come, with ``reply.number``.
        :param progress: is called with the number of replies so far, and that of the items if known.
        """
        check_window(window)
        replies = self._in_order(service, items, window, options) if ordered else self._as_they_come(
            service, items, window, options
        )  # fmt: skip
        if progress is None:
            return replies
        return _counted(replies, progress, count_of(items))

    def _in_order(
        self, service: str, items: Iterable[Item], window: int, options: CallOptions
    ) -> Generator[Reply, None, None]:
        under_way: deque[Future[Reply]] = deque()
        try:
            for number, item in enumerate(items):
                under_way.append(self._submit(service, frames_of_item(item), options, number))
                while len(under_way) >= window or (under_way and under_way[0].done()):
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def _as_they_come(
        self, service: str, items: Iterable[Item], window: int, options: CallOptions
    ) -> Generator[Reply, None, None]:
        done: queue.SimpleQueue[Future[Reply]] = queue.SimpleQueue()
        under_way: set[Future[Reply]] = set()

        def take() -> Reply:
            future = done.get()
            under_way.discard(future)
            return future.result()

        try:
            for number, item in enumerate(items):
                future = self._submit(service, frames_of_item(item), options, number)
                under_way.add(future)
                future.add_done_callback(done.put)
                while len(under_way) >= window or not done.empty():
                    yield take()
            while under_way:
                yield take()
        finally:
            for future in under_way:
                future.cancel()

    # --- what the broker knows ----------------------------------------------------------------------------------------

    def services(self, timeout: float | None = None) -> dict[str, dict[str, Any]]:
        """Ask the broker for its services, each with its figures: workers, waiting, requests and more."""
        figures: dict[str, dict[str, Any]] = told_by_broker("mmi.stats", self.call("mmi.stats", timeout=timeout))
        return figures

    def workers(self, service: str = "", timeout: float | None = None) -> list[dict[str, Any]]:
        """Ask the broker for its workers, or those of one service."""
        rows: list[dict[str, Any]] = told_by_broker("mmi.workers", self.call("mmi.workers", service, timeout=timeout))
        return rows

    def offers(self, service: str, timeout: float | None = None) -> bool:
        """Ask the broker whether somebody offers a service."""
        return self.call("mmi.service", service, timeout=timeout).body == b"200"

    def close(self) -> None:
        """End: open calls are cancelled and get a ClosedError. Returns soon, whatever the broker does."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _counted(replies: Iterator[Reply], progress: Progress, total: int | None) -> Generator[Reply, None, None]:
    for number, each in enumerate(replies, 1):
        progress(number, total)
        yield each


class _ClientRunner:
    """The part of a client that its thread knows, so that a client nobody refers to any more can be closed."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._new: deque[Call] = deque()
        self._stopped = False
        self._lock = threading.RLock()  # the garbage collector may close a client in between
        engine = Engine(session)  # type: ignore[arg-type]  # until it stands on the kit
        self._thread = IoThread(
            engine, f"majordomo client {session.address}", ended=lambda: self._stopped, on_end=self._end
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
            self._session.open(self._new.popleft(), now)

    def cancel(self, call: Call) -> None:
        self._thread.call(lambda: self._cancel(call))

    def _cancel(self, call: Call) -> None:
        self._open_new()  # it may be among them
        self._session.cancel(call)

    def forget_cancelled(self, call: Call, future: Future[Reply]) -> None:
        """Note that a future is done: one that was cancelled has the worker told."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # whoever waits for several futures learns of it by this
            self.cancel(call)

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
        self._session.close(closed_error(error))


# --- Worker -----------------------------------------------------------------------------------------------------------


class Worker(BaseWorker):
    """Serves requests with functions, which run on threads while heartbeats go on."""

    _asynchronous = False

    def _set_up(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._running = False
        self._condition = threading.Condition()

    def _offered(self, offer: Offer) -> None:
        if self._running:
            self._lines[offer.name] = _Line(self, offer)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> Worker:
        """Begin to serve in the background."""
        if self._running:
            raise RuntimeError("the worker has been started already")
        self._running = True
        try:
            for offer in self._offers.values():
                self._lines[offer.name] = _Line(self, offer)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until the broker has taken the services on offer; raises a WorkerError that says what is wrong."""
        self._check()
        with self._condition:
            if self._condition.wait_for(lambda: all(is_serving(line.session) for line in self._all()), timeout):
                return
        raise next(not_ready(line.session, timeout) for line in self._all() if not is_serving(line.session))

    def drain(self, timeout: float = 30.0) -> bool:
        """Begin no more requests, finish those in hand, then leave; False when the time was too short for that."""
        self._check()
        for line in self._all():
            line.call(partial(line.session.drain, time.monotonic()))
        with self._condition:
            done = self._condition.wait_for(self._has_left, timeout)
        self.stop()
        return done

    def remove(self, name: str, timeout: float = 30.0) -> bool:
        """Offer a service no more; requests in hand are finished. False when the time was too short for that."""
        del self._offers[name]
        line = self._lines.pop(name, None)
        if line is None:
            return True
        line.call(partial(line.session.drain, time.monotonic()))
        with self._condition:
            done = self._condition.wait_for(lambda: line.session.state is WorkerState.LEFT, timeout)
        line.stop()
        return done

    def stop(self) -> None:
        """Leave at once; what is in hand is given to other workers. Returns soon."""
        lines, self._lines, self._running = self._lines, {}, False
        for line in lines.values():
            line.stop()

    def run(self) -> None:
        """Serve until TERM or INT comes, finish the requests in hand, and return. A second signal does not wait.

        Signals are heeded when this is the main thread; elsewhere, ``drain`` or ``stop`` end it.
        """
        with Signals(self._on_signal) as signals:  # before requests come, so that none is in hand of one who heeds none
            if not self._running:
                self.start()
            self._check()
            if signals.count:
                self._on_signal(signals.count)  # it may have come too early for the threads
            with self._condition:
                self._condition.wait_for(self._has_left)
        self.stop()

    def __enter__(self) -> Worker:
        return self if self._running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._forked:
            self.drain()
        self.stop()

    @property
    def _forked(self) -> bool:
        return any(line.forked for line in self._all())

    def _check(self) -> None:
        self._check_process(self._forked)

    def _all(self) -> list[_Line]:
        return list(self._lines.values())

    def _has_left(self) -> bool:
        return all(line.session.state is WorkerState.LEFT for line in self._all())

    def _on_signal(self, count: int) -> None:
        now = time.monotonic()
        for line in self._all():
            line.call(partial(line.session.drain if count == 1 else line.session.stop, now))

    def changed(self) -> None:
        """Have whoever waits for a change look; for the threads."""
        with self._condition:
            self._condition.notify_all()


class _Line:
    """One service of a worker: its connection, the thread that owns it, and those that run the function."""

    def __init__(self, worker: Worker, offer: Offer) -> None:
        self._handler = offer.handler
        self.session = worker.session_for(offer, self._begin, lambda request: None, worker.changed)
        name = f"majordomo worker {offer.name}"
        self._pool = Pool(offer.threads, name)
        self._engine = Engine(self.session)  # type: ignore[arg-type]  # until it stands on the kit
        self._thread = IoThread(
            self._engine, name, ended=lambda: self.session.state is WorkerState.LEFT, on_end=self._end
        )
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, in which the thread does not exist."""
        return self._thread.forked

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the thread that owns the connection."""
        self._thread.call(function)

    def stop(self) -> None:
        self._thread.call(lambda: self.session.stop(time.monotonic()))
        self._thread.join()
        self._pool.stop()

    def _end(self, error: BaseException | None) -> None:
        self.session.stop(time.monotonic())

    def _begin(self, request: Request) -> None:
        self._pool.run(partial(self._work, request))

    def _work(self, request: Request) -> None:
        """Run the function; on one of the pool's threads."""
        answer = CANCELLED
        if not request.cancelled:
            try:
                result = self._handler(request)
                answer = self._parts(request, result) if isinstance(result, GeneratorType) else reply(result)
            except BaseException as error:  # a function that exits must not take the thread away
                answer = failure(request, error)
        self.call(partial(self._give, request, answer))

    def _parts(self, request: Request, parts: GeneratorType[Any, None, Any]) -> Answer:
        seq = 0
        while True:
            try:
                body = frames_of(next(parts))
            except StopIteration as end:
                return end_of_parts(seq, end.value)
            self.call(partial(self._give_part, request, part_options(seq), body))
            seq += 1
            if seq % PARTS_AT_ONCE == 0:
                self._wait_until_clear(request)
            if request.cancelled:
                parts.close()
                return CANCELLED

    def _wait_until_clear(self, request: Request) -> None:
        clear = threading.Event()
        self.call(lambda: self._engine.when_clear(clear.set))
        while not clear.wait(LOOK_EVERY) and not request.cancelled:
            pass

    def _give_part(self, request: Request, options: bytes, body: tuple[bytes, ...]) -> None:
        self.session.part(request, options, body, time.monotonic())

    def _give(self, request: Request, answer: Answer) -> None:
        now = time.monotonic()
        if answer.code:
            self.session.error(request, answer.code, answer.reason, now)
        else:
            self.session.final(request, answer.options, answer.frames, now)
