"""Pipes for programs without asyncio. A pipe is used by one thread at a time; a lock sees to it."""

# does I/O: the thread that calls turns a connection

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, TypeVar

from scale0_core.client.kit.drivers import CallerDriver
from scale0_core.client.kit.flows import run
from scale0_zpipes.client.ends import End, Opens, Reading, Writing
from scale0_zpipes.client.files import reading_file, writing_file
from scale0_zpipes.client.session import Session

__all__ = ["Pipe", "PipeReader", "PipeWriter"]

P = TypeVar("P", bound="Pipe")


class Pipe(End, Opens["PipeReader", "PipeWriter"]):
    """A named pipe: a queue of chunks at a broker. ``Pipe.open`` returns a ``PipeReader`` or a ``PipeWriter``."""

    _driver: CallerDriver[Session]

    @classmethod
    def _kinds(cls) -> tuple[type[PipeReader], type[PipeWriter]]:
        return PipeReader, PipeWriter

    def _driven(self, session: Session, tick: float) -> CallerDriver[Session]:
        return CallerDriver(session, tick=tick, busy=lambda: session.busy)

    def _begin(self) -> None:
        self._driver.run(self._open())

    @abstractmethod
    def close(self) -> None:
        """Close this end of the pipe."""

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._may_leave():
            self._driver.run(self._end(error))


class PipeReader(Reading, Pipe):
    """Reads a pipe, chunk by chunk.

    A chunk is acknowledged after the next one was asked for: what a reader that died had not made use of goes to the
    next reader. The broker may be away for ``timeout`` seconds before that is an error.
    """

    def read(self, timeout: float | None = None) -> bytes:
        """Return the next chunk; waits for one, or for at most so many seconds: then a PipeTimeoutError says so.

        With a timeout of 0 the chunk that is there is returned; to find out takes the way to the broker and back.
        """
        with self._driver.lock:
            chunk = self._take()
            return run(self._next(timeout)) if chunk is None else chunk

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks()

    def chunks(self, timeout: float | None = None) -> Iterator[bytes]:
        """Iterate over chunks as they come; with a timeout, until none came for so many seconds."""
        chunks: Iterator[bytes] = self._driver.each(self._chunks(timeout))
        return chunks

    def drain(self) -> Iterator[bytes]:
        """Iterate over the chunks that are there; ends when the pipe is empty."""
        chunks: Iterator[bytes] = self._driver.each(self._drain())
        return chunks

    def ack(self, number: int | None = None, timeout: float | None = None) -> None:
        """Acknowledge all that was read, or all up to a number; returns when the broker has confirmed it."""
        self._driver.run(self._ack(number, timeout))

    def seek(self, number: int, timeout: float | None = None) -> None:
        """Go on from another number; in a group only. A PipeGoneError ends the reader if that is acknowledged."""
        self._driver.run(self._seek(number, timeout))

    def info(self, timeout: float | None = None) -> dict[str, Any]:
        """Ask the broker about the pipe: chunks, bytes, rates, links and more, as in the protocol."""
        info: dict[str, Any] = self._driver.run(self._info(timeout))
        return info

    def file(self, *, encoding: str | None = None, newline: str | None = None) -> IO[Any]:
        """Return a file that reads the bytes of the pipe up to the end mark, an empty chunk; text with an encoding."""
        return reading_file(self.read, encoding, newline)

    def close(self, *, consumed: bool = True, drop_group: bool = False) -> None:
        """Close; what was not consumed goes back to the pipe.

        :param consumed: whether the chunk that was read last was made use of.
        :param drop_group: have the broker forget the group.
        """
        if self._may_leave():
            self._driver.run(self._close(consumed=consumed, drop_group=drop_group))


class PipeWriter(Writing, Pipe):
    """Writes to a pipe.

    Small chunks are collected, and sent after ``delay`` seconds, when there are enough of them, or by ``flush``. Chunks
    stay in order, and each is stored once, however often the connection breaks. The broker may be away for ``timeout``
    seconds before that is an error.
    """

    def write(self, chunk: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Write a chunk; waits for room, or for at most so many seconds: then a PipeFullError says so."""
        with self._driver.lock:
            if (waiting := self._write(chunk, timeout)) is not None:
                run(waiting)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was written is acknowledged; an error tells of chunks that were refused."""
        self._driver.run(self._flush(timeout))

    def file(
        self, *, encoding: str | None = None, newline: str | None = None, end: bool = True, block: int = 65536
    ) -> IO[Any]:
        """Return a file that writes to the pipe, in chunks of about ``block`` bytes; text with an encoding.

        When it is closed it writes an end mark, an empty chunk, unless ``end`` is False. The pipe stays open.
        """
        return writing_file(self.write, self.flush, encoding, newline, end=end, block=block)

    def close(self, timeout: float | None = None) -> None:
        """Send what was written, wait until it is acknowledged, and close; an error tells of what was not."""
        if self._may_leave():
            self._driver.run(self._close(timeout))
