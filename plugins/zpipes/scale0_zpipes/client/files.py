"""Pipes as files: for ``shutil``, ``csv``, ``print`` and all else that works on files.

A pipe has no end, so a file needs a mark for it: an empty chunk. ``PipeWriter.file`` writes one when it is closed, and
``PipeReader.file`` ends there. ``read`` and ``write`` of the pipe itself pass empty chunks on like others.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BLOCK = 65536


class RawReader(io.RawIOBase):
    """The bytes of a pipe up to the end mark."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._rest = memoryview(b"")
        self._over = False

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Put some bytes into a buffer; 0 at the end."""
        if not self._rest and not self._over:
            self._rest = memoryview(self._read())
            self._over = not self._rest
        into = memoryview(buffer).cast("B")
        size = min(len(into), len(self._rest))
        into[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class RawWriter(io.RawIOBase):
    """Writes to a pipe, and an end mark when it is closed."""

    def __init__(self, write: Callable[[bytes], None], flush: Callable[[], None], *, end: bool) -> None:
        self._write, self._flush, self._end = write, flush, end

    def writable(self) -> bool:
        """Whether it can be written to: yes."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write a chunk."""
        chunk = bytes(memoryview(data).cast("B"))
        if chunk:  # an empty one would be the end
            self._write(chunk)
        return len(chunk)

    def close(self) -> None:
        """Write the end mark, and wait until all is acknowledged."""
        if self.closed:
            return
        try:
            if self._end:
                self._write(b"")
            self._flush()
        finally:
            super().close()


def reading_file(read: Callable[[], bytes], encoding: str | None, newline: str | None) -> IO[Any]:
    """Make a file to read."""
    binary = io.BufferedReader(RawReader(read), BLOCK)
    return binary if encoding is None else io.TextIOWrapper(binary, encoding, newline=newline)


def writing_file(
    write: Callable[[bytes], None], flush: Callable[[], None], encoding: str | None, newline: str | None, *,
    end: bool, block: int,
) -> IO[Any]:  # fmt: skip
    """Make a file to write to."""
    binary = io.BufferedWriter(RawWriter(write, flush, end=end), block)
    return binary if encoding is None else io.TextIOWrapper(binary, encoding, newline=newline, write_through=False)
