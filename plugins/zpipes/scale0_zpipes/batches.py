"""Many chunks in one frame."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from struct import Struct, error

from scale0_core.api import KIB

ROOM = 64 * KIB
"""Bytes of a frame beside chunks. libzmq cuts a connection whose frame is too large, and says nothing of it; so the
socket takes twice as much as a chunk may have and these, and what is too large is refused where it can be told."""

_LENGTH = Struct(">I")
_ENTRY = Struct(">QI")


class BatchError(ValueError):
    """A batch does not have the form it should have."""


class TooManyChunksError(BatchError):
    """A batch has more chunks than are wanted."""


def most_chunks(largest: int) -> int:
    """Return how many chunks may be in a frame, with as many bytes in them as the largest chunk may have."""
    return (largest + ROOM) // _LENGTH.size


def pack_chunks(chunks: Iterable[bytes]) -> bytes:
    """Put chunks into one frame, as PUT takes them."""
    parts: list[bytes] = []
    for chunk in chunks:
        parts += (_LENGTH.pack(len(chunk)), chunk)
    return b"".join(parts)


def unpack_chunks(batch: bytes, most: int = sys.maxsize) -> list[bytes]:
    """Take the chunks out of a frame that PUT was given; no further than it takes to see that there are too many."""
    chunks: list[bytes] = []
    view, offset = memoryview(batch), 0
    try:
        while offset < len(view):
            (length,) = _LENGTH.unpack_from(view, offset)
            offset += _LENGTH.size + length
            if offset > len(view):
                raise BatchError("the last chunk of the batch is cut off")
            if len(chunks) >= most:
                raise TooManyChunksError(f"the batch has more than {most} chunks")
            chunks.append(bytes(view[offset - length : offset]))
    except error:
        raise BatchError("the last length in the batch is cut off") from None
    return chunks


def pack_numbered(chunks: Iterable[tuple[int, bytes]]) -> bytes:
    """Put chunks with their numbers into one frame, as FETCH gives them."""
    parts: list[bytes] = []
    for number, chunk in chunks:
        parts += (_ENTRY.pack(number, len(chunk)), chunk)
    return b"".join(parts)


def unpack_numbered(batch: bytes) -> Iterator[tuple[int, bytes]]:
    """Take chunks with their numbers out of a frame that FETCH gave."""
    view, offset = memoryview(batch), 0
    while offset < len(view):
        try:
            number, length = _ENTRY.unpack_from(view, offset)
        except error:
            raise BatchError("the last number in the batch is cut off") from None
        offset += _ENTRY.size + length
        if offset > len(view):
            raise BatchError("the last chunk of the batch is cut off")
        yield number, bytes(view[offset - length : offset])


def pack_columns(numbers: Iterable[int], chunks: Sequence[bytes]) -> tuple[bytes, bytes, bytes]:
    """Put chunks with their numbers into three frames, as ROWS gives them: numbers, offsets, bytes."""
    ends = accumulate(map(len, chunks), initial=0)
    return _little(array("q", numbers)), _little(array("i", ends)), b"".join(chunks)


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
