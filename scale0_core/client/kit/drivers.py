"""Who turns engines: a thread of their own, the thread that calls, or an asyncio loop (in ``loop``).

A driver runs the engine of its session, and those of sessions that ``add`` joins to it. It makes the steps of flows
(see ``flows``), so flows and sessions do not know which driver they have. All drivers provide ``Driver``.

- ``ThreadDriver``: any thread may use it; ``post`` hands work to the I/O thread. For clients that many threads share,
  and where heartbeats and handlers must go on while the program does something else.
- ``CallerDriver``: whoever waits turns the engine, under a lock; nothing happens in between, unless a ticker turns it
  while the session is busy. No hop between threads, so it has the lowest latency.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import signal
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from functools import partial
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import zmq

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.errors import ClientError, forked_error
from scale0_core.client.kit.flows import Flow, Step, Stream, each, run
from scale0_core.client.kit.link import wait
from scale0_core.client.kit.sessions import Session
from scale0_core.io.waker import Waker
from scale0_core.logs import get_logger

LOG = get_logger("client")

JOIN_SECONDS = 5.0
CALLS_AT_ONCE = 1000
"""Calls from other threads between two turns."""
_END = object()
SLICE = 0.25
"""Seconds after which somebody who waits on the calling thread looks again at what no socket tells."""

S = TypeVar("S", bound=Session)
T = TypeVar("T")


class Mailbox(Protocol):
    """A queue of results; ``take`` of the driver is the step that waits for the next."""

    def put(self, item: Any, /) -> None:
        """Put one in; from where the session is."""

    def empty(self) -> bool:
        """Return whether there is none."""


class Signals(Protocol):
    """What came while signals were heeded."""

    count: int


class Driver(ABC, Generic[S]):
    """Turns the engine of a session, and of those that were added."""

    def __init__(self, session: S) -> None:
        self.session = session
        self.engine = Engine(session)
        self.forked_error: Callable[[], ClientError] = forked_error
        """Makes the error of operations in a forked child; a client with errors of its own sets its own."""
        self._others: list[Engine] = []

    @property
    def forked(self) -> bool:
        """Whether this is a forked child: sockets and threads are the parent's, and nothing can be done here."""
        return self.engine.forked

    def check(self) -> None:
        """Raise a ClosedError in a forked child, where nothing would ever come."""
        if self.engine.forked:
            raise self.forked_error()

    now = staticmethod(time.monotonic)
    """Return the time that sessions count in."""

    @abstractmethod
    def start(self) -> None:
        """Begin; raises an AddressError when the address is not valid."""

    @abstractmethod
    def post(self, function: Callable[[], object]) -> bool:
        """Have a function called where the session is, then what it wants done; False if the driver has ended."""

    @abstractmethod
    def kick(self) -> None:
        """Have done what the session wants, after it was used directly; to be called where the session is."""

    def belong_to(self, owner: object) -> None:
        """Close when nobody refers to the owner any more; neither driver nor session may refer to it."""

    def add(self, session: Session) -> Engine:
        """Run another session as well, until it has ended; to be called where the session is."""
        engine = Engine(session)
        engine.start()
        self._others.append(engine)
        return engine

    def _turn_all(self) -> bool:
        more = self.engine.turn()
        if not self._others:
            return more
        for engine in list(self._others):
            more |= engine.turn()
        for engine in (self.engine, *self._others):
            engine.apply()  # a session may have changed another, which had its turn before
        for engine in [engine for engine in self._others if engine.session.ended]:
            self._others.remove(engine)
            engine.close()
        return more

    def _deadline(self) -> float | None:
        deadline = self.engine.next_deadline()
        for engine in self._others:
            other = engine.next_deadline()
            deadline = other if deadline is None else deadline if other is None else min(deadline, other)
        return deadline

    def _timeout(self) -> float | None:
        deadline = self._deadline()
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def _polled(self) -> list[tuple[Any, int]]:
        link = self.engine.link
        found: list[tuple[Any, int]] = list(link.polled) if link is not None else []
        for engine in self._others:
            found += engine.link.polled if engine.link is not None else ()
        return found

    def _stop_all(self, error: BaseException | None) -> None:
        """End the sessions, and let last words leave."""
        now = time.monotonic()

        def stop(engine: Engine) -> None:
            if not engine.session.ended or engine is self.engine:
                engine.session.stop(now, error)
            engine.apply()

        self._for_all(stop)

    def _for_all(self, end: Callable[[Engine], object]) -> None:
        """Do something to end with all engines, also if it fails with one."""
        for engine in (self.engine, *self._others):
            try:
                end(engine)
            except Exception as error:
                LOG.error("a session did not end well", session=type(engine.session).__name__, error=repr(error))

    # --- what flows need ----------------------------------------------------------------------------------------------

    @abstractmethod
    def future(self, cancel: Callable[[Any], object], operation: object) -> Any:
        """Make a future; if its user cancels it, ``cancel(operation)`` is posted."""

    @abstractmethod
    def mailbox(self) -> Mailbox:
        """Make a mailbox."""

    @abstractmethod
    def stream(self, mailbox: Mailbox, cancel: Callable[[], object]) -> Any:
        """Make a stream of what comes into a mailbox."""

    @abstractmethod
    def until(self, predicate: Callable[[], bool], seconds: float | None = None, every: float | None = None) -> Step:
        """Wait until a predicate holds, and return whether it does.

        It is asked after every turn, and after every so many seconds. Where the session is, it may use the session.
        """

    @abstractmethod
    def result(self, future: Any) -> Step:
        """Wait for the outcome of a future, and return or raise it."""

    @abstractmethod
    def take(self, mailbox: Any) -> Step:
        """Wait for what comes next into a mailbox, and return it."""

    @abstractmethod
    def in_thread(self, function: Callable[[], Any]) -> Step:
        """Call a function that blocks, and return its result."""

    @abstractmethod
    def closing(self) -> Step:
        """Stop the session, send its last words, and close everything."""

    @abstractmethod
    def run(self, flow: Flow[Any]) -> Any:
        """Run a flow; on asyncio the result is awaited."""

    @abstractmethod
    def each(self, flow: Flow[Any]) -> Any:
        """Iterate over the items of a flow."""

    @abstractmethod
    def signals(self, on_signal: Callable[[int], None]) -> AbstractContextManager[Signals]:
        """Heed TERM and INT for a while; the callback gets how many have come."""


# --- waiting on threads -----------------------------------------------------------------------------------------------


class Bell:
    """Wakes threads that wait for a condition; drivers may share one."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def ring(self) -> None:
        """Have all who wait look at their conditions."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def until(self, predicate: Callable[[], bool], seconds: float | None, every: float | None) -> Step:
        """Make the step that waits until a predicate holds."""
        return partial(self._wait, predicate, seconds, every)

    def _wait(self, predicate: Callable[[], bool], seconds: float | None, every: float | None) -> bool:
        end = math.inf if seconds is None else time.monotonic() + seconds
        with self._condition:
            self._waiting += 1
            try:
                while not predicate():
                    left = min(end - time.monotonic(), math.inf if every is None else every)
                    if left <= 0:
                        return False
                    self._condition.wait(None if left == math.inf else left)
            finally:
                self._waiting -= 1
        return True


class GuardedFuture(Future[T]):
    """A future whose outcome comes from a driver; it raises in a forked child, where none would come."""

    def __init__(self, driver: BlockingDriver[Any], cancel: Callable[[Any], object], operation: object) -> None:
        super().__init__()
        self._driver: BlockingDriver[Any] | None = driver
        self._tell, self._operation = cancel, operation

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome, and return or raise it."""
        return super().result(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return the error, or None."""
        return super().exception(self._wait(timeout))

    def _wait(self, timeout: float | None) -> float | None:
        driver = self._driver
        return timeout if driver is None or self.done() else driver.wait_for(self, timeout)

    def cancel(self) -> bool:
        """Cancel the operation, unless it is over; return whether that could be done."""
        if not super().cancel():
            return False
        driver, self._driver = self._driver, None
        if driver is not None:  # once, whoever else cancels it
            self.set_running_or_notify_cancel()  # whoever waits for several futures learns of it by this
            driver.post(partial(self._tell, self._operation))
        return True


def restore(number: int, handler: Any) -> None:
    """Set the handler that was there before; one that is not Python's, which nobody can set, is the default then."""
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


class HeededSignals:
    """Heeds TERM and INT for a while, where that is possible: on the main thread."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self.count = 0
        self._on_signal = on_signal
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> HeededSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            restore(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._on_signal(self.count)


class BlockingDriver(Driver[S]):
    """What both drivers of threads have in common."""

    def future(self, cancel: Callable[[Any], object], operation: object) -> GuardedFuture[Any]:
        """Make a future; if its user cancels it, ``cancel(operation)`` is posted."""
        return GuardedFuture(self, cancel, operation)

    def wait_for(self, future: Future[Any], timeout: float | None) -> float | None:
        """Do what it takes that a future has an outcome; return how long it may still be waited for."""
        self.check()
        return timeout

    def result(self, future: Future[Any]) -> Step:
        """Wait for the outcome of a future, and return or raise it."""
        return future.result

    def mailbox(self) -> Mailbox:
        """Make a mailbox."""
        return queue.SimpleQueue()

    def stream(self, mailbox: Mailbox, cancel: Callable[[], object]) -> Stream[Any]:
        """Make a stream of what comes into a mailbox."""

        def take() -> Any:
            self.check()
            return self.take(mailbox)()

        return Stream(take, cancel)

    def in_thread(self, function: Callable[[], Any]) -> Step:
        """Call a function that blocks, on this thread."""
        return function

    def each(self, flow: Flow[Any]) -> Generator[Any, None, None]:
        """Iterate over the items of a flow."""
        return each(flow)

    def closing(self) -> Step:
        """Stop the session, send its last words, and close everything."""
        return self.close

    @abstractmethod
    def close(self) -> None:
        """Stop the session, send its last words, and close everything."""

    def belong_to(self, owner: object) -> None:
        """Close when nobody refers to the owner any more; neither driver nor session may refer to it."""
        weakref.finalize(owner, self.abandon).atexit = False

    def abandon(self) -> None:
        """Close for an owner that is gone."""
        self.close()

    def signals(self, on_signal: Callable[[int], None]) -> HeededSignals:
        """Heed TERM and INT for a while; the callback gets how many have come."""
        return HeededSignals(on_signal)


class ThreadDriver(BlockingDriver[S]):
    """Turns engines on a thread of its own, from ``start`` on, until the session has ended."""

    def __init__(self, session: S, name: str, bell: Bell | None = None) -> None:
        super().__init__(session)
        self._bell = bell or Bell()
        self._waker = Waker()
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = self._over = False
        self._lock = threading.RLock()  # the garbage collector may close a client in between
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; what comes may be answered immediately, so whoever made this has a name for it by now."""
        try:
            self.engine.start()
            atexit.register(self.close)
            self._thread.start()
        except BaseException:  # there may be no more threads
            atexit.unregister(self.close)
            self.engine.close()
            self._waker.close()
            raise

    def post(self, function: Callable[[], object]) -> bool:
        """Have a function called on the thread; False if the driver has ended. Any thread may use it."""
        if self.engine.forked:
            return False
        with self._lock:
            if self._over:
                return False
            self._calls.append(function)
            if self._woken:
                return True
            self._woken = True
        self._waker.wake()
        return True

    def kick(self) -> None:
        """Do nothing: on the thread, a turn follows anyway."""

    def close(self) -> None:
        """Stop the session, and wait for the thread to end, unless this is it; in a forked child do nothing."""
        if self.engine.forked:
            return
        self.post(self._stop)
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _stop(self) -> None:
        self.session.stop(time.monotonic())

    def until(self, predicate: Callable[[], bool], seconds: float | None = None, every: float | None = None) -> Step:
        """Wait until a predicate holds, and return whether it does."""
        return self._bell.until(predicate, seconds, every)

    def take(self, mailbox: Any) -> Step:
        """Wait for what comes next into a mailbox, and return it."""
        return mailbox.get

    def run(self, flow: Flow[T]) -> T:
        """Run a flow, and return what it returns."""
        return run(flow)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        waker = self._waker.fd
        try:
            more = False
            while not self.session.ended:
                found = wait([(waker, zmq.POLLIN), *self._polled()], 0 if more else self._timeout())
                if found and found[0][0] == waker:
                    self._run_calls()
                more = self._turn_all()
                self._bell.ring()
        except Exception as caught:
            error = caught
            LOG.error("the client's thread failed", error=repr(caught))
        finally:
            with self._lock:
                self._over = True
            while self._calls:
                self._run_calls()
            try:
                self._stop_all(error)
                self._for_all(Engine.close)
            finally:
                self._waker.close()
                self._bell.ring()
                atexit.unregister(self.close)

    def _run_calls(self) -> None:
        self._waker.run()
        calls = self._calls
        for _ in range(CALLS_AT_ONCE):
            if not calls:
                # before the last look: who posts from now on wakes us, and who posted before is seen
                self._woken = False
                if not calls:
                    return
            call = calls.popleft()
            try:
                call()
            except Exception as error:
                LOG.error("a call from another thread raised", call=repr(call), error=repr(error))
        self._waker.wake()


# --- the calling thread -----------------------------------------------------------------------------------------------


class _Lock:
    """A lock that is not waited for in a forked child: whoever had it may be a thread that is not there."""

    def __init__(self, driver: CallerDriver[Any]) -> None:
        self._lock = threading.RLock()
        self._driver, self._process = driver, os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise self._driver.forked_error()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class CallerDriver(BlockingDriver[S]):
    """Has the thread that calls turn the engines, while it waits; one thread at a time, a lock sees to it.

    :param tick: have a thread turn the engines every so many seconds, from ``kick`` on, as long as ``busy`` holds: for
        sessions that have work to finish while their user does other things.
    :param busy: whether there is such work.
    """

    def __init__(self, session: S, *, tick: float = 0.0, busy: Callable[[], bool] = lambda: False) -> None:
        super().__init__(session)
        self.lock = _Lock(self)
        self.closed = self._looks = False
        self._ticker = _Ticker(self, tick, busy) if tick else None

    def start(self) -> None:
        """Begin to connect."""
        self.engine.start()

    def post(self, function: Callable[[], object]) -> bool:
        """Call a function, then have done what the session wants."""
        with self.lock:
            if self.closed:
                return False
            function()
            self.engine.apply()
        return True

    def turn(self) -> bool:
        """Do all there is to do; return whether more is waiting already. Under the lock."""
        return False if self.closed else self._turn_all()

    def kick(self) -> None:
        """Send what the session wants to; the ticker goes on while the session is busy.

        Every second time it looks for answers too: one who sends much need not wait for the ticker to have them, and
        what was sent last has no answer yet.
        """
        if self.session.out and not self.closed:
            self.engine.apply()
            self._looks = not self._looks
            if not self._looks:
                self._turn_all()
        if self._ticker is not None:
            self._ticker.wake()

    def until(self, predicate: Callable[[], bool], seconds: float | None = None, every: float | None = SLICE) -> Step:
        """Send what the session wants to, then turn the engines until a predicate holds; return whether it does."""
        return partial(self._until, predicate, seconds, SLICE if every is None else every)

    def _until(self, predicate: Callable[[], bool], seconds: float | None, every: float) -> bool:
        end = math.inf if seconds is None else time.monotonic() + seconds
        engine = self.engine
        more = late = False
        with self.lock:
            while True:
                if engine.behind and not self.closed:
                    engine.apply()  # first: what is to be sent does not wait until we have looked for answers
                if predicate():
                    if engine.behind and not self.closed:
                        engine.apply()
                    return True
                if late or self.closed:
                    return False
                left = end - time.monotonic()
                late = left <= 0  # one more look, for what has come by now
                if not more and not engine.behind:
                    timeout = self._timeout()
                    wait(self._polled(), max(0.0, min(left, every, every if timeout is None else timeout)))
                more = self.turn()

    def wait_for(self, future: Future[Any], timeout: float | None) -> float | None:
        """Turn the engines until a future has an outcome; whoever waits for several at once turns them himself."""
        self.check()
        self._until(future.done, timeout, SLICE)
        return 0.0

    def take(self, mailbox: Any) -> Step:
        """Turn the engines until something comes into a mailbox, and return it."""

        def step() -> Any:
            self._until(lambda: not mailbox.empty(), None, SLICE)
            return mailbox.get_nowait()

        return step

    def run(self, flow: Flow[T]) -> T:
        """Run a flow under the lock, and return what it returns."""
        with self.lock:
            return run(flow)

    def each(self, flow: Flow[Any]) -> Generator[Any, None, None]:
        """Iterate over the items of a flow, which runs under the lock from one to the next."""
        with closing(each(flow)) as items:
            while True:
                with self.lock:
                    item = next(items, _END)
                if item is _END:
                    return
                yield item

    def close(self) -> None:
        """Stop the session, send its last words, and close everything; in a forked child do nothing."""
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Close, and tell the session what ended it."""
        if self.engine.forked:
            return
        with self.lock:
            if self.closed:
                return
            self._stop_all(error)
            self.closed = True
            self._for_all(Engine.close)
        if self._ticker is not None:
            self._ticker.stop()

    def abandon(self) -> None:
        """Close for a user that is gone, without waiting for a ticker that may have the lock: it does so instead."""
        if self.engine.forked:
            return
        if self._ticker is not None and self._ticker.stop():
            return
        self.close()


class _Ticker:
    """A thread that turns engines while a session is busy; it begins when there is work for the first time."""

    def __init__(self, driver: CallerDriver[Any], every: float, busy: Callable[[], bool]) -> None:
        self._driver, self._every, self._busy = driver, every, busy
        self._work, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="scale0 client ticker", daemon=True)
            self._thread.start()
        if not self._work.is_set():
            self._work.set()

    def stop(self) -> bool:
        """End the thread, which closes the driver; return whether there is one."""
        self._stopped.set()
        self._work.set()
        return self._thread is not None

    def _run(self) -> None:
        driver, error = self._driver, None  # type: CallerDriver[Any], BaseException | None
        try:
            while self._work.wait() and not self._stopped.wait(self._every):
                with driver.lock:
                    driver.turn()
                    if not self._busy():
                        self._work.clear()
                        if self._stopped.is_set():
                            self._work.set()
        except Exception as caught:
            error = caught
            LOG.error("the client's ticker failed", error=repr(caught))
        driver.end(error)
