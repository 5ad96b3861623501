"""Pipes for programs with asyncio: the same names as in ``scale0_zpipes``, with coroutines."""

# does I/O: the loop and the clock

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, overload

from scale0_core.api import get_logger
from scale0_core.client.kit.route import Broker
from scale0_zpipes.client.errors import PipeError, PipeLostError, PipeTimeoutError, Stage, closed, inherited
from scale0_zpipes.client.link import Engine, Link
from scale0_zpipes.client.session import NEVER, Session
from scale0_zpipes.client.sessions import BATCH_BYTES, BATCH_CHUNKS, WINDOW, ReaderSession, WriterSession
from scale0_zpipes.client.setup import TIMEOUT, Start, as_chunk, reader_session, writer_session
from scale0_zpipes.client.sync import GOODBYE, SHORT, SLICE

__all__ = ["Pipe", "PipeReader", "PipeWriter"]

_LOG = get_logger("zpipes")

S = TypeVar("S", bound=Session)
P = TypeVar("P", bound="Pipe")


class _Driver:
    """Drives an engine on an asyncio loop: by the sockets' descriptors and a timer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._watched: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._waiting: set[asyncio.Future[None]] = set()
        engine.on_link = self._watch
        engine.start()
        self.kick()

    def kick(self) -> None:
        """Have a turn soon."""
        if not self._due and not self.engine.closed:
            self._due = True
            self._loop.call_soon(self._turn)

    async def turned(self, seconds: float) -> None:
        """Wait until there was a turn, no longer than that."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        timer = self._loop.call_later(seconds, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.discard(future)

    def close(self) -> None:
        """Close everything, without waiting: it would be the loop that waits."""
        if self._timer is not None:
            self._timer.cancel()
        self.engine.close()
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            _finish(future)

    def _watch(self, link: Link | None) -> None:
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched = []
        if link is not None and link.monitor is not None:
            self._watched = [link.socket.fileno(), link.monitor.fileno()]
            for fd in self._watched:
                self._loop.add_reader(fd, self.kick)
            self.kick()

    def _turn(self) -> None:
        self._due = False
        if self.engine.closed:
            return
        more = self.engine.turn()
        link = self.engine.link
        # the descriptors tell of changes only: what came while we were sending must be looked for
        if more or (link is not None and link.readable):
            self.kick()
        self._arm()
        self._wake()

    def _arm(self) -> None:
        deadline = self.engine.session.next_deadline()
        if self._timer is not None:
            if self._timer.when() <= deadline and not self._timer.cancelled():
                return  # it comes early, and the next one is set then
            self._timer.cancel()
            self._timer = None
        if deadline != NEVER:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.kick()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Pipe:
    """A named pipe: a queue of chunks at a broker. ``await Pipe.open(...)``, or ``async with Pipe.open(...)``."""

    @overload
    @staticmethod
    def open(
        name: str | bytes, mode: Literal["r"], *, broker: Broker = ..., timeout: float = ...,
        group: str | bytes | None = ..., start: Start = ..., lease: float | None = ..., auto_ack: bool | None = ...,
        batch_bytes: int = ..., batch_chunks: int = ...,
    ) -> PipeReader: ...  # fmt: skip

    @overload
    @staticmethod
    def open(
        name: str | bytes, mode: Literal["w"], *, broker: Broker = ..., timeout: float = ...,
        batch: bool = ..., batch_bytes: int = ..., batch_chunks: int = ..., window: int = ..., delay: float = ...,
    ) -> PipeWriter: ...  # fmt: skip

    @staticmethod
    def open(name: str | bytes, mode: str, **options: Any) -> Pipe:
        """Open a pipe for reading ("r") or writing ("w"); it is made if it is not there.

        The options are those of ``PipeReader`` and ``PipeWriter``.
        """
        if mode not in ("r", "w"):
            raise ValueError(f"a pipe is opened for reading, 'r', or for writing, 'w': {mode!r}")
        return PipeReader(name, **options) if mode == "r" else PipeWriter(name, **options)


class _End(Pipe, Generic[S]):
    """One end of a pipe, with its session."""

    def __init__(self, session: S) -> None:
        self._session = session
        self._driver: _Driver | None = None
        self._closing = False

    async def _start(self) -> None:
        if self._driver is None:
            self._driver = _Driver(Engine(self._session))
            try:
                await self._wait(lambda: self._session.ready, None)
            except BaseException:
                self._driver.close()
                raise

    @property
    def name(self) -> bytes:
        """The name of the pipe."""
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._closing

    @property
    def timeout(self) -> float:
        """Seconds for which the broker may be away."""
        return self._session.patience

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._session.patience = seconds

    async def _wait(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Wait until something holds; an error ends it, or the time."""
        session, driver = self._session, self._running()
        began = time.monotonic()
        deadline = NEVER if timeout is None else began + timeout
        while not done():
            now = time.monotonic()
            fault = session.fault(now, began)
            if fault is not None:
                raise fault
            if now >= deadline and timeout is not None:
                raise session.late(timeout)
            if self._closing and not session.goodbyes:
                raise closed(session.name)
            if session.out:
                driver.kick()
            await driver.turned(min(deadline - now, SLICE))
        if session.out:
            driver.kick()

    def _running(self) -> _Driver:
        if self._driver is None:
            raise RuntimeError("open a pipe by await Pipe.open(...) or async with Pipe.open(...)")
        if self._driver.engine.inherited:
            raise inherited(self._session.name)
        return self._driver

    def _check(self) -> _Driver:
        driver = self._running()
        if self._closing:
            raise closed(self._session.name)
        if self._session.error is not None:
            raise self._session.error
        return driver

    async def _leave(self) -> None:
        """Say good-bye to the broker, and close."""
        driver, session = self._running(), self._session
        try:
            if session.error is None:
                session.leave(time.monotonic())
                driver.kick()
                end = time.monotonic() + min(GOODBYE, session.patience)
                while not session.left and (left := end - time.monotonic()) > 0:
                    await driver.turned(left)
        finally:
            driver.close()


# --- reading ----------------------------------------------------------------------------------------------------------


class PipeReader(_End[ReaderSession]):
    """Reads a pipe, chunk by chunk, from one coroutine at a time. All is as with ``scale0_zpipes.PipeReader``."""

    def __init__(
        self, name: str | bytes, *, broker: Broker = "default", timeout: float = TIMEOUT,
        group: str | bytes | None = None, start: Start = "first", lease: float | None = None,
        auto_ack: bool | None = None, batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS,
    ) -> None:  # fmt: skip
        super().__init__(
            reader_session(
                name, broker=broker, timeout=timeout, group=group, start=start, lease=lease,
                auto_ack=auto_ack, batch_bytes=batch_bytes, batch_chunks=batch_chunks,
            )
        )  # fmt: skip

    async def read(self, timeout: float | None = None) -> bytes:
        """Give the next chunk; waits for one, or for at most so many seconds: then a PipeTimeoutError says so."""
        driver = self._check()
        chunk = self._session.take(time.monotonic())
        if chunk is None:
            return await self._wait_for_chunk(timeout)
        if self._session.out:
            driver.kick()
        return chunk

    async def _wait_for_chunk(self, timeout: float | None) -> bytes:
        found: list[bytes] = []

        def took() -> bool:
            chunk = self._session.take(time.monotonic())
            if chunk is not None:
                found.append(chunk)
            return chunk is not None

        try:
            await self._wait(took, timeout)
        except PipeTimeoutError as error:
            # shorter than the way to the broker and back, so it is not known yet whether there is a chunk
            if timeout is None or timeout >= SHORT or error.stage is not Stage.CHUNK:
                raise
            chunk = await self._take_or_empty(SHORT)
            if chunk is None:
                raise
            return chunk
        return found[0]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.chunks()

    async def chunks(self, timeout: float | None = None) -> AsyncIterator[bytes]:
        """Iterate over chunks as they come; with a timeout, until none came for so many seconds."""
        while True:
            try:
                chunk = await self.read(timeout)
            except PipeTimeoutError as error:
                if error.stage is Stage.CHUNK:
                    return
                raise
            yield chunk

    async def drain(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks that are there; ends when the pipe is empty."""
        while (chunk := await self._take_or_empty(self._session.patience)) is not None:
            yield chunk

    async def _take_or_empty(self, timeout: float) -> bytes | None:
        session = self._session
        found: list[bytes] = []

        def took_or_empty() -> bool:
            chunk = session.take(time.monotonic())
            if chunk is not None:
                found.append(chunk)
                return True
            if session.empty:
                return True
            session.probe()
            return False

        self._check()
        session.empty = False
        await self._wait(took_or_empty, timeout)
        return found[0] if found else None

    def done(self) -> None:
        """Say that the chunk read last was made use of, before the next one is asked for."""
        self._session.consume(time.monotonic())

    @property
    def number(self) -> int:
        """The number of the chunk that was read last; 0 before the first."""
        return self._session.number

    @property
    def position(self) -> int:
        """The number of the chunk that is read next, as far as that is known."""
        return self._session.position

    async def ack(self, number: int | None = None, timeout: float | None = None) -> None:
        """Acknowledge all that was read, or all up to a number; returns when the broker has confirmed it."""
        driver = self._check()
        session, now = self._session, time.monotonic()
        lost = session.acks_lost
        if number is None:
            session.consume(now)
        session.ack(now, number)
        driver.kick()
        await self._wait(lambda: session.acks_confirmed or session.acks_lost != lost, timeout)
        if session.acks_lost != lost and not (session.group and session.durable):
            what = "the connection broke before the acknowledgement was confirmed"
            raise PipeLostError(what, "", "the chunks may come again", "", pipe=session.name)
        await self._wait(lambda: session.acks_confirmed, timeout)

    async def seek(self, number: int, timeout: float | None = None) -> None:
        """Go on from another number; in a group only. A PipeGoneError ends the reader if that is acknowledged."""
        driver = self._check()
        if not self._session.group:
            raise ValueError("only a reader with a group can go to another number")
        self._session.seek(number, time.monotonic())
        driver.kick()
        await self._wait(lambda: self._session.ready, timeout)

    async def info(self, timeout: float | None = None) -> dict[str, Any]:
        """Ask the broker about the pipe: chunks, bytes, rates, links and more, as in the protocol."""
        driver, session = self._check(), self._session
        await self._wait(lambda: session.ready, timeout)
        session.ask_info()
        driver.kick()
        await self._wait(lambda: session.ready and not session.info_asked, timeout)
        return session.info

    async def close(self, *, consumed: bool = True, drop_group: bool = False) -> None:
        """Close; what was not consumed goes back to the pipe.

        :param consumed: whether the chunk that was read last was made use of.
        :param drop_group: have the broker forget the group.
        """
        if self._closing or self._driver is None:
            return
        if self._driver.engine.inherited:
            self._closing = True
            return
        self._closing = True
        if consumed:
            self._session.consume(time.monotonic())
        if drop_group:
            self._session.drop_group()
        await self._leave()

    def __await__(self) -> Any:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> PipeReader:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(consumed=error is None)


# --- writing ----------------------------------------------------------------------------------------------------------


class PipeWriter(_End[WriterSession]):
    """Writes to a pipe. All is as with ``scale0_zpipes.PipeWriter``."""

    def __init__(
        self, name: str | bytes, *, broker: Broker = "default", timeout: float = TIMEOUT,
        batch: bool = True, batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS, window: int = WINDOW,
        delay: float = 0.05,
    ) -> None:  # fmt: skip
        super().__init__(
            writer_session(
                name, broker=broker, timeout=timeout, batch_bytes=batch_bytes,
                batch_chunks=batch_chunks, window=window, delay=delay,
            )
        )  # fmt: skip
        self._batch = batch
        self._turn = asyncio.Lock()

    async def write(self, chunk: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Write a chunk; waits for room, or for at most so many seconds: then a PipeFullError says so."""
        data = as_chunk(chunk)
        driver, session = self._check(), self._session
        session.check(data)
        if not self._batch:
            async with self._turn:
                await self._write_through(data, timeout)
            return
        if not session.has_room:
            await self._wait(lambda: session.has_room or bool(session.failures), timeout)
        if session.failures:
            self._fail()
        session.write(data, time.monotonic())
        driver.kick()

    async def _write_through(self, data: bytes, timeout: float | None) -> None:
        session = self._session
        try:
            if not session.idle:  # an earlier one, of which it was not known whether it was written
                session.give_up_at(NEVER, time.monotonic())
                await self._wait(lambda: session.idle, timeout)
            now = time.monotonic()
            # so the broker says for certain that there is no room before our time is over
            session.give_up_at(NEVER if timeout is None else now + timeout * 0.9, now)
            session.write(data, now)
            await self._wait(lambda: session.idle, timeout)
        except PipeTimeoutError as error:
            if timeout is not None and session.withdraw():
                raise session.late(timeout) from error
            raise
        if session.failures:
            self._fail()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was written is acknowledged; an error tells of chunks that were refused."""
        self._check()
        await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> None:
        session, now = self._session, time.monotonic()
        session.give_up_at(NEVER, now)
        session.flush(now)
        await self._wait(lambda: session.idle, timeout)
        if session.failures:
            self._fail()

    def _fail(self) -> None:
        failures, self._session.failures = self._session.failures, []
        failures[0].others = tuple(failures[1:])
        raise failures[0]

    @property
    def pending(self) -> int:
        """How many chunks are not acknowledged yet."""
        return self._session.pending

    async def close(self, timeout: float | None = None) -> None:
        """Send what was written, wait until it is acknowledged, and close; an error tells of what was not."""
        if self._closing or self._driver is None:
            return
        if self._driver.engine.inherited:
            self._closing = True
            return
        try:
            if self._session.error is None:
                await self._flush(self._session.patience if timeout is None else timeout)
            elif not self._session.idle:
                raise self._session.error
        finally:
            self._closing = True
            await self._leave()

    def __await__(self) -> Any:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> PipeWriter:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(min(1.0, self._session.patience))
        except PipeError as second:
            # the first error is the one to be told
            _LOG.warning("a pipe was closed with chunks that are not confirmed", error=str(second))
