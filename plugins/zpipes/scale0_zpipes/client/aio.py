"""Pipes for programs with asyncio: the same names as in ``scale0_zpipes``, with coroutines."""

# does I/O: a loop turns a connection

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any, TypeVar

from scale0_core.client.kit.flows import arun
from scale0_core.client.kit.loop import LoopDriver
from scale0_zpipes.client.ends import End, Opens, Reading, Writing
from scale0_zpipes.client.session import Session

__all__ = ["Pipe", "PipeReader", "PipeWriter"]

P = TypeVar("P", bound="Pipe")


class Pipe(End, Opens["PipeReader", "PipeWriter"]):
    """A named pipe: a queue of chunks at a broker. ``await Pipe.open(...)``, or ``async with Pipe.open(...)``."""

    @classmethod
    def _kinds(cls) -> tuple[type[PipeReader], type[PipeWriter]]:
        return PipeReader, PipeWriter

    def _driven(self, session: Session, tick: float) -> LoopDriver[Session]:
        return LoopDriver(session)

    def _begin(self) -> None: ...

    def _check(self) -> None:
        # for each chunk, so all at once; nothing else looks for a fork here
        if self._driver.engine.forked or self._closing or not self._opened or self._session.error is not None:
            self._driver.check()
            super()._check()

    @abstractmethod
    async def close(self) -> None:
        """Close this end of the pipe."""

    def __await__(self: P) -> Generator[Any, Any, P]:
        return self.__aenter__().__await__()

    async def __aenter__(self: P) -> P:
        await arun(self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._may_leave():
            await arun(self._end(error))


class PipeReader(Reading, Pipe):
    """Reads a pipe, chunk by chunk, from one coroutine at a time. All is as with ``scale0_zpipes.PipeReader``."""

    async def read(self, timeout: float | None = None) -> bytes:
        """Return the next chunk; waits for one, or for at most so many seconds: then a PipeTimeoutError says so.

        With a timeout of 0 the chunk that is there is returned; to find out takes the way to the broker and back.
        """
        chunk = self._take()
        return await arun(self._next(timeout)) if chunk is None else chunk

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.chunks()

    def chunks(self, timeout: float | None = None) -> AsyncIterator[bytes]:
        """Iterate over chunks as they come; with a timeout, until none came for so many seconds."""
        chunks: AsyncIterator[bytes] = self._driver.each(self._chunks(timeout))
        return chunks

    def drain(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks that are there; ends when the pipe is empty."""
        chunks: AsyncIterator[bytes] = self._driver.each(self._drain())
        return chunks

    async def ack(self, number: int | None = None, timeout: float | None = None) -> None:
        """Acknowledge all that was read, or all up to a number; returns when the broker has confirmed it."""
        await arun(self._ack(number, timeout))

    async def seek(self, number: int, timeout: float | None = None) -> None:
        """Go on from another number; in a group only. A PipeGoneError ends the reader if that is acknowledged."""
        await arun(self._seek(number, timeout))

    async def info(self, timeout: float | None = None) -> dict[str, Any]:
        """Ask the broker about the pipe: chunks, bytes, rates, links and more, as in the protocol."""
        return await arun(self._info(timeout))

    async def close(self, *, consumed: bool = True, drop_group: bool = False) -> None:
        """Close; what was not consumed goes back to the pipe.

        :param consumed: whether the chunk that was read last was made use of.
        :param drop_group: have the broker forget the group.
        """
        if self._may_leave():
            await arun(self._close(consumed=consumed, drop_group=drop_group))


class PipeWriter(Writing, Pipe):
    """Writes to a pipe. All is as with ``scale0_zpipes.PipeWriter``."""

    async def write(self, chunk: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Write a chunk; waits for room, or for at most so many seconds: then a PipeFullError says so."""
        if (waiting := self._write(chunk, timeout)) is not None:
            await arun(waiting)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was written is acknowledged; an error tells of chunks that were refused."""
        await arun(self._flush(timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Send what was written, wait until it is acknowledged, and close; an error tells of what was not."""
        if self._may_leave():
            await arun(self._close(timeout))
