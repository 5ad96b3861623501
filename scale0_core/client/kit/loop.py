"""The driver for asyncio, apart from the others so that programs without asyncio do not import it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from scale0_core.client.kit.drivers import Driver, Mailbox, S, restore
from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.errors import FORKED
from scale0_core.client.kit.flows import AsyncStream, Flow, Step, aeach, arun
from scale0_core.client.kit.link import Link
from scale0_core.client.kit.sessions import Session
from scale0_core.logs import get_logger

LOG = get_logger("client")

T = TypeVar("T")


class LoopBell:
    """Wakes coroutines that wait for a condition; drivers of one loop may share one."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Have all who wait look at their conditions."""
        for future in self._waiting:
            _finish(future)

    async def until(self, predicate: Callable[[], bool], seconds: float | None, every: float | None) -> bool:
        """Wait until a predicate holds, and return whether it does."""
        end = None if seconds is None else time.monotonic() + seconds
        while not predicate():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            await self._rung(left if every is None else every if left is None else min(left, every))
        return True

    async def _rung(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        timer = None if seconds is None else loop.call_later(seconds, _finish, future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class LoopMailbox(asyncio.Queue[Any]):
    """A queue of results."""

    def put(self, item: Any, /) -> None:  # type: ignore[override]  # it has no bound, so nobody waits
        """Put one in."""
        self.put_nowait(item)


class LoopSignals:
    """Heeds TERM and INT for a while, where that is possible: in the loop of the main thread."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self.count = 0
        self._on_signal = on_signal

    def handle(self) -> None:
        """Take one."""
        self.count += 1
        self._on_signal(self.count)


class LoopDriver(Driver[S]):
    """Turns engines on an asyncio loop: by the sockets' descriptors and a timer. It starts where it is first used."""

    def __init__(self, session: S, bell: LoopBell | None = None) -> None:
        super().__init__(session)
        self._bell = bell or LoopBell()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[Engine, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._closed = False

    def start(self) -> None:
        """Begin, unless that was done; in a coroutine."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._watch(self.engine)
            try:
                self.engine.start()
            except BaseException:
                self._loop = None  # whoever uses it again is told again
                raise
            self.kick()

    def add(self, session: Session) -> Engine:
        """Run another session as well, until it has ended."""
        engine = Engine(session)
        self._watch(engine)
        engine.start()
        self._others.append(engine)
        self.kick()
        return engine

    def post(self, function: Callable[[], object]) -> bool:
        """Call a function, and have a turn soon; False if the driver has ended."""
        if self._closed or self.engine.forked:
            return False
        if self._loop is None:
            self.start()
        function()
        if not self._due:
            self.kick()
        return True

    def kick(self) -> None:
        """Have a turn soon."""
        if not self._due and not self._closed and self._loop is not None and not self.forked:
            self._due = True
            self._loop.call_soon(self._turn)

    def _watch(self, engine: Engine) -> None:
        engine.on_link = partial(self._follow, engine)

    def _follow(self, engine: Engine, _: Link | None, new: Link | None) -> None:
        loop = self._loop
        assert loop is not None
        for fd in self._watched.pop(engine, ()):
            loop.remove_reader(fd)
        if new is not None and new.monitor is not None:
            fds = self._watched[engine] = [new.socket.fileno(), new.monitor.fileno()]
            for fd in fds:
                loop.add_reader(fd, self.kick)
            self.kick()

    def _turn(self) -> None:
        self._due = False
        if self._closed:
            return
        try:
            if self.forked:
                raise RuntimeError(FORKED)  # the sockets are the parent's, and reading them would rob it
            more = self._turn_all()
        except Exception as error:
            LOG.error("the client failed", error=repr(error))
            self._closed = True
            if not self.forked:
                self._close_links(error)
            else:
                self.session.stop(time.monotonic(), error)
            self._bell.ring()
            return
        # the descriptors tell of changes only: what came while we were sending must be looked for
        if more or self._readable():
            self.kick()
        self._arm()
        self._bell.ring()

    def _readable(self) -> bool:
        link = self.engine.link
        if link is not None and link.readable:
            return True
        return bool(self._others) and any(engine.link is not None and engine.link.readable for engine in self._others)

    def _arm(self) -> None:
        deadline = self._deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline and not self._timer.cancelled():
                return  # it comes early, and the next one is set then
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            assert self._loop is not None
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.kick()

    def _close_links(self, error: BaseException | None) -> None:
        self._stop_all(error)
        self._for_all(Engine.close_link)

    # --- what flows need ----------------------------------------------------------------------------------------------

    def future(self, cancel: Callable[[Any], object], operation: object) -> asyncio.Future[Any]:
        """Make a future; if its user cancels it, ``cancel(operation)`` is posted."""

        def look(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                self.post(partial(cancel, operation))

        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(look)
        return future

    def mailbox(self) -> Mailbox:
        """Make a mailbox."""
        return LoopMailbox()

    def stream(self, mailbox: Any, cancel: Callable[[], object]) -> AsyncStream[Any]:
        """Make a stream of what comes into a mailbox."""

        def cancel_anywhere() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                assert self._loop is not None
                self._loop.call_soon_threadsafe(cancel)

        return AsyncStream(mailbox.get, cancel_anywhere)

    def until(self, predicate: Callable[[], bool], seconds: float | None = None, every: float | None = None) -> Step:
        """Wait until a predicate holds, and return whether it does."""
        return self._bell.until(partial(self._look, predicate), seconds, every)

    def _look(self, predicate: Callable[[], bool]) -> bool:
        holds = predicate()
        if self.engine.behind:
            self.kick()
        return holds

    def result(self, future: Any) -> Step:
        """Wait for the outcome of a future, and return or raise it."""
        return future

    def take(self, mailbox: Any) -> Step:
        """Wait for what comes next into a mailbox, and return it."""
        return mailbox.get()

    def in_thread(self, function: Callable[[], Any]) -> Step:
        """Call a function that blocks, on another thread."""
        return asyncio.to_thread(function)

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow, and return what it returns."""
        return await arun(flow)

    def each(self, flow: Flow[Any]) -> AsyncGenerator[Any, None]:
        """Iterate over the items of a flow."""
        return aeach(flow)

    async def closing(self) -> None:
        """Stop the session, send its last words, and close everything."""
        if self.forked:
            return
        first, self._closed = not self._closed, True
        if self._timer is not None:
            self._timer.cancel()
        if first and self._loop is not None:
            self._close_links(None)
        else:
            self.session.stop(time.monotonic())
        self._bell.ring()
        if self._loop is None:
            return
        # waits for what is still to be delivered, at most for the linger
        await asyncio.shield(asyncio.to_thread(self._terminate))

    def _terminate(self) -> None:
        self._for_all(Engine.terminate)

    def signals(self, on_signal: Callable[[int], None]) -> contextlib.AbstractContextManager[LoopSignals]:
        """Heed TERM and INT for a while; the callback gets how many have come."""
        return heeding(on_signal)


@contextlib.contextmanager
def heeding(on_signal: Callable[[int], None]) -> Iterator[LoopSignals]:
    """Heed TERM and INT for a while."""
    loop = asyncio.get_running_loop()
    main = threading.current_thread() is threading.main_thread()
    heeded = LoopSignals(on_signal)
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, heeded.handle)
            if handler != signal.getsignal(number):  # else the loop had one, of which it knows no more
                before[number] = handler
        yield heeded
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        for number, handler in before.items():  # asyncio.run has one of its own for INT
            restore(number, handler)
