"""Pipes for programs without asyncio. A pipe is used by one thread at a time; a lock sees to it."""

# does I/O: threads and the clock

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, Any, Generic, Literal, TypeVar, overload

from scale0_core.api import get_logger
from scale0_core.client.kit.route import Broker
from scale0_zpipes.client.errors import PipeLostError, PipeTimeoutError, Stage, closed, inherited
from scale0_zpipes.client.files import reading_file, writing_file
from scale0_zpipes.client.link import Engine
from scale0_zpipes.client.session import NEVER, Session
from scale0_zpipes.client.sessions import BATCH_BYTES, BATCH_CHUNKS, WINDOW, ReaderSession, WriterSession
from scale0_zpipes.client.setup import TIMEOUT, Start, as_chunk, reader_session, writer_session

__all__ = ["Pipe", "PipeReader", "PipeWriter"]

_LOG = get_logger("zpipes")

SLICE = 0.25
"""Seconds after which somebody who waits looks whether the broker has been away for too long."""
SHORT = 1.0
"""Seconds that a broker has to answer whether there is a chunk, though the time to wait for one is over."""
LINGER_MS = 200
GOODBYE = 1.0
"""Seconds that a broker has to answer when a pipe is closed."""

S = TypeVar("S", bound=Session)
P = TypeVar("P", bound="Pipe")


class Pipe(ABC):
    """A named pipe: a queue of chunks at a broker. ``Pipe.open`` gives a ``PipeReader`` or a ``PipeWriter``."""

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

    @abstractmethod
    def close(self) -> None:
        """Close this end of the pipe."""

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Lock:
    """A lock that is not waited for in a forked child: whoever had it may be a thread that is not there."""

    def __init__(self, name: bytes) -> None:
        self._lock = threading.RLock()
        self._name, self._process = name, os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise inherited(self._name)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _End(Pipe, Generic[S]):
    """One end of a pipe, with its session."""

    def __init__(self, session: S) -> None:
        self._session = session
        self._engine = Engine(session)
        self._lock = _Lock(session.name)
        self._closing = False
        self._tickers: list[_Ticker] = []
        self._finalizer = weakref.finalize(self, _abandon, self._engine, self._tickers)
        try:
            self._engine.start()
            self._wait(lambda: session.ready, None)
        except BaseException:
            self._engine.close()
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

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Let the session work until something holds; an error ends it, or the time."""
        session, engine = self._session, self._engine
        began = time.monotonic()
        deadline = NEVER if timeout is None else began + timeout
        while True:
            more = engine.turn()
            if done():
                if session.out:
                    engine.apply()
                return
            now = time.monotonic()
            fault = session.fault(now, began)
            if fault is not None:
                raise fault
            if now >= deadline and timeout is not None:
                raise session.late(timeout)
            if self._closing and not session.goodbyes:
                raise closed(session.name)
            if session.out:
                engine.apply()
            elif not more:
                engine.wait(min(deadline - now, SLICE))

    def _check(self) -> None:
        if self._closing:
            raise closed(self._session.name)
        if self._session.error is not None:
            raise self._session.error

    def _leave(self) -> None:
        """Say good-bye to the broker, and close."""
        session, engine = self._session, self._engine
        try:
            if not engine.closed and session.error is None:
                session.leave(time.monotonic())
                end = time.monotonic() + min(GOODBYE, session.patience)
                while not session.left and time.monotonic() < end:
                    if not engine.turn() and not session.left:
                        engine.wait(end - time.monotonic())
        finally:
            engine.close(LINGER_MS)
            self._finalizer.detach()


# --- reading ----------------------------------------------------------------------------------------------------------


class PipeReader(_End[ReaderSession]):
    """Reads a pipe, chunk by chunk.

    A chunk is acknowledged after the next one was asked for: what a reader that died had not made use of goes to the
    next reader. The broker may be away for ``timeout`` seconds before that is an error.

    :param broker: the name of a broker on this machine, an address of a service zpipes, or several, tried in order.
    :param group: read as a group of this name: all chunks, without removing them for others; ``ack`` says what is done.
    :param start: where a new group begins: "first", "next" or a number.
    :param lease: have the broker forget the group when it was not used for so many seconds. Such a reader takes nothing
        away from the pipe's own, and does not count as somebody who has the pipe open.
    :param auto_ack: acknowledge chunks by itself; by default not in a group.
    """

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

    def read(self, timeout: float | None = None) -> bytes:
        """Give the next chunk; waits for one, or for at most so many seconds: then a PipeTimeoutError says so.

        With a timeout of 0 the chunk that is there is given; to find out takes the way to the broker and back.
        """
        with self._lock:
            self._check()
            chunk = self._session.take(time.monotonic())
            if chunk is None:
                return self._wait_for_chunk(timeout)
            if self._session.out:
                self._engine.apply()
            return chunk

    def _wait_for_chunk(self, timeout: float | None) -> bytes:
        found: list[bytes] = []

        def took() -> bool:
            chunk = self._session.take(time.monotonic())
            if chunk is not None:
                found.append(chunk)
            return chunk is not None

        try:
            self._wait(took, timeout)
        except PipeTimeoutError as error:
            # shorter than the way to the broker and back, so it is not known yet whether there is a chunk
            if timeout is None or timeout >= SHORT or error.stage is not Stage.CHUNK:
                raise
            chunk = self._take_or_empty(SHORT)
            if chunk is None:
                raise
            return chunk
        return found[0]

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks()

    def chunks(self, timeout: float | None = None) -> Iterator[bytes]:
        """Iterate over chunks as they come; with a timeout, until none came for so many seconds."""
        while True:
            try:
                chunk = self.read(timeout)
            except PipeTimeoutError as error:
                if error.stage is Stage.CHUNK:
                    return
                raise
            yield chunk

    def drain(self) -> Iterator[bytes]:
        """Iterate over the chunks that are there; ends when the pipe is empty."""
        while (chunk := self._take_or_empty(self._session.patience)) is not None:
            yield chunk

    def _take_or_empty(self, timeout: float) -> bytes | None:
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

        with self._lock:
            self._check()
            session.empty = False
            self._wait(took_or_empty, timeout)
        return found[0] if found else None

    def done(self) -> None:
        """Say that the chunk read last was made use of, before the next one is asked for."""
        with self._lock:
            self._session.consume(time.monotonic())

    @property
    def number(self) -> int:
        """The number of the chunk that was read last; 0 before the first."""
        return self._session.number

    @property
    def position(self) -> int:
        """The number of the chunk that is read next, as far as that is known."""
        return self._session.position

    def ack(self, number: int | None = None, timeout: float | None = None) -> None:
        """Acknowledge all that was read, or all up to a number; returns when the broker has confirmed it."""
        with self._lock:
            self._check()
            session, now = self._session, time.monotonic()
            lost = session.acks_lost
            if number is None:
                session.consume(now)
            session.ack(now, number)
            self._engine.apply()
            self._wait(lambda: session.acks_confirmed or session.acks_lost != lost, timeout)
            if session.acks_lost != lost and not (session.group and session.durable):
                what = "the connection broke before the acknowledgement was confirmed"
                raise PipeLostError(what, "", "the chunks may come again", "", pipe=session.name)
            self._wait(lambda: session.acks_confirmed, timeout)

    def seek(self, number: int, timeout: float | None = None) -> None:
        """Go on from another number; in a group only. A PipeGoneError ends the reader if that is acknowledged."""
        with self._lock:
            self._check()
            if not self._session.group:
                raise ValueError("only a reader with a group can go to another number")
            self._session.seek(number, time.monotonic())
            self._wait(lambda: self._session.ready, timeout)

    def info(self, timeout: float | None = None) -> dict[str, Any]:
        """Ask the broker about the pipe: chunks, bytes, rates, links and more, as in the protocol."""
        with self._lock:
            self._check()
            session = self._session
            self._wait(lambda: session.ready, timeout)
            session.ask_info()
            self._engine.apply()
            self._wait(lambda: session.ready and not session.info_asked, timeout)
            return session.info

    def file(self, *, encoding: str | None = None, newline: str | None = None) -> IO[Any]:
        """Give a file that reads the bytes of the pipe up to the end mark, an empty chunk; text with an encoding."""
        return reading_file(self.read, encoding, newline)

    def close(self, *, consumed: bool = True, drop_group: bool = False) -> None:
        """Close; what was not consumed goes back to the pipe.

        :param consumed: whether the chunk that was read last was made use of.
        :param drop_group: have the broker forget the group.
        """
        self._closing = True
        if self._engine.inherited:
            return
        with self._lock:
            if self._engine.closed:
                return
            if consumed:
                self._session.consume(time.monotonic())
            if drop_group:
                self._session.drop_group()
            self._leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(consumed=error is None)


# --- writing ----------------------------------------------------------------------------------------------------------


class PipeWriter(_End[WriterSession]):
    """Writes to a pipe.

    Small chunks are collected, and sent after ``delay`` seconds, when there are enough of them, or by ``flush``. Chunks
    stay in order, and each is stored once, however often the connection breaks. The broker may be away for ``timeout``
    seconds before that is an error.

    :param broker: the name of a broker on this machine, an address of a service zpipes, or several, tried in order.
    :param batch: False has each chunk sent and acknowledged before ``write`` returns.
    :param window: batches that may be under way at once.
    """

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
        self._batch, self._delay = batch, delay

    def write(self, chunk: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Write a chunk; waits for room, or for at most so many seconds: then a PipeFullError says so."""
        data = as_chunk(chunk)
        with self._lock:
            self._check()
            session = self._session
            session.check(data)
            if not self._batch:
                self._write_through(data, timeout)
                return
            if not session.has_room:
                self._wait(lambda: session.has_room or bool(session.failures), timeout)
            if session.failures:
                self._fail()
            session.write(data, time.monotonic())
            if session.out:
                self._engine.turn()
            if not self._tickers:
                self._tickers.append(_Ticker(session, self._engine, self._lock, max(self._delay, 0.005)))
            self._tickers[0].wake()

    def _write_through(self, data: bytes, timeout: float | None) -> None:
        session = self._session
        try:
            if not session.idle:  # an earlier one, of which it was not known whether it was written
                session.give_up_at(NEVER, time.monotonic())
                self._wait(lambda: session.idle, timeout)
            now = time.monotonic()
            # so the broker says for certain that there is no room before our time is over
            session.give_up_at(NEVER if timeout is None else now + timeout * 0.9, now)
            session.write(data, now)
            self._engine.apply()
            self._wait(lambda: session.idle, timeout)
        except PipeTimeoutError as error:
            if timeout is not None and session.withdraw():
                raise session.late(timeout) from error
            raise
        if session.failures:
            self._fail()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was written is acknowledged; an error tells of chunks that were refused."""
        with self._lock:
            self._check()
            self._flush(timeout)

    def _flush(self, timeout: float | None) -> None:
        session, now = self._session, time.monotonic()
        session.give_up_at(NEVER, now)
        session.flush(now)
        self._engine.apply()
        self._wait(lambda: session.idle, timeout)
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

    def file(
        self, *, encoding: str | None = None, newline: str | None = None, end: bool = True, block: int = 65536
    ) -> IO[Any]:
        """Give a file that writes to the pipe, in chunks of about ``block`` bytes; text with an encoding.

        When it is closed it writes an end mark, an empty chunk, unless ``end`` is False. The pipe stays open.
        """
        return writing_file(self.write, self.flush, encoding, newline, end=end, block=block)

    def close(self, timeout: float | None = None) -> None:
        """Send what was written, wait until it is acknowledged, and close; an error tells of what was not."""
        if self._engine.inherited:
            self._closing = True  # what was not acknowledged is sent by the parent
            return
        with self._lock:
            if self._closing:
                return
            try:
                if self._session.error is None:
                    self._flush(self._session.patience if timeout is None else timeout)
                elif not self._session.idle:
                    raise self._session.error
            finally:
                self._closing = True
                for ticker in self._tickers:
                    ticker.stop()
                self._leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(min(1.0, self._session.patience))
        except Exception as second:
            # the first error is the one to be told
            _LOG.warning("a pipe was closed with chunks that are not confirmed", error=str(second))


class _Ticker:
    """A thread that lets a writer's session work while its user does other things, as long as there is work."""

    def __init__(self, session: WriterSession, engine: Engine, lock: _Lock, every: float) -> None:
        self._session, self._engine, self._lock, self._every = session, engine, lock, every
        self._work, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="scale0 pipe writer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if not self._work.is_set():
            self._work.set()

    def stop(self) -> None:
        self._stopped.set()
        self._work.set()

    def _run(self) -> None:
        while self._work.wait() and not self._stopped.wait(self._every):
            with self._lock:
                self._engine.turn()
                if self._session.idle or self._session.error is not None:
                    self._work.clear()
                    if self._stopped.is_set():
                        self._work.set()
        with self._lock:
            self._engine.close()  # nobody else does when the pipe was not closed


def _abandon(engine: Engine, tickers: list[_Ticker]) -> None:
    """Close what belongs to a pipe that nobody refers to any more; its thread, if there is one, may be at work."""
    if engine.inherited:
        return
    for ticker in tickers:
        ticker.stop()
    if not tickers:
        engine.close()
