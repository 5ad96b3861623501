"""The records of the journal, and their bytes.

A record is a byte that says which kind, lengths and numbers, then names and the chunk. Integers are big endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias


class Stored(NamedTuple):
    """A chunk of a pipe. ``writer`` is empty when it has no id; the chunk may be anything with a buffer."""

    pipe: bytes
    number: int
    writer: bytes
    writer_number: int
    chunk: bytes


class Removed(NamedTuple):
    """Single chunks that were taken out of a pipe, in any order."""

    pipe: bytes
    numbers: Sequence[int]


class Acked(NamedTuple):
    """A group is done with all chunks up to this number; makes the group. Removes nothing, see ``Purged``."""

    pipe: bytes
    group: bytes
    upto: int


class GroupDropped(NamedTuple):
    """A group is forgotten."""

    pipe: bytes
    group: bytes


class Purged(NamedTuple):
    """All chunks that are there below this number are gone."""

    pipe: bytes
    before: int


class Dropped(NamedTuple):
    """A pipe is forgotten altogether, its numbers too."""

    pipe: bytes


class Wrote(NamedTuple):
    """At the beginning of a segment: the last number of a writer."""

    pipe: bytes
    writer: bytes
    writer_number: int


Record: TypeAlias = Stored | Removed | Acked | GroupDropped | Purged | Dropped | Wrote


class Opening(NamedTuple):
    """Begins a segment: the rest of its frame is what must outlive older segments."""


class Known(NamedTuple):
    """At the beginning of a segment: a pipe, with the lowest number it may hold and the one it will give next."""

    pipe: bytes
    first: int
    next_number: int


AnyRecord: TypeAlias = Record | Opening | Known


_STORED: Final = Struct(">BBBIQQ")  # kind, lengths of pipe, writer and chunk, number, writer's number
_REMOVED: Final = Struct(">BBI")  # kind, length of the pipe, how many numbers
_OTHER: Final = Struct(">BBBQQ")  # kind, lengths of the pipe and another name, two numbers
SIZE_OF_STORED: Final = _STORED.size


def _stored(record: Stored) -> bytes:
    pipe, number, writer, writer_number, chunk = record
    return _STORED.pack(1, len(pipe), len(writer), len(chunk), number, writer_number) + pipe + writer + chunk


def _removed(record: Removed) -> bytes:
    pipe, numbers = record
    count = len(numbers)
    return _REMOVED.pack(2, len(pipe), count) + pipe + _numbers(count).pack(*numbers)


@lru_cache(maxsize=1000)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}Q")


def _other(kind: int, pipe: bytes, name: bytes, number: int, other: int = 0) -> bytes:
    return _OTHER.pack(kind, len(pipe), len(name), number, other) + pipe + name


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Stored: _stored,
    Removed: _removed,
    Acked: lambda record: _other(3, *record),
    GroupDropped: lambda record: _other(4, record.pipe, record.group, 0),
    Purged: lambda record: _other(5, record.pipe, b"", record.before),
    Dropped: lambda record: _other(6, record.pipe, b"", 0),
    Opening: lambda _: _other(7, b"", b"", 0),
    Known: lambda record: _other(8, record.pipe, b"", record.first, record.next_number),
    Wrote: lambda record: _other(9, *record),
}

_DECODERS: Final[dict[int, Callable[[bytes, bytes, int, int], AnyRecord]]] = {
    3: lambda pipe, group, upto, _: Acked(pipe, group, upto),
    4: lambda pipe, group, _, __: GroupDropped(pipe, group),
    5: lambda pipe, _, before, __: Purged(pipe, before),
    6: lambda pipe, _, __, ___: Dropped(pipe),
    7: lambda _, __, ___, ____: Opening(),
    8: lambda pipe, _, first, next_number: Known(pipe, first, next_number),
    9: lambda pipe, writer, number, _: Wrote(pipe, writer, number),
}


def encoded(records: Sequence[AnyRecord]) -> bytes:
    """Give the bytes of records, one after another."""
    return b"".join([_ENCODERS[type(record)](record) for record in records])


def decoded(payload: bytes) -> list[AnyRecord]:
    """Read records back; raises ``ValueError`` or ``StructError`` for bytes that the encoders never make."""
    found: list[AnyRecord] = []
    at = 0
    while at < len(payload):
        kind = payload[at]
        if kind == 1:
            _, pipe_size, writer_size, size, number, writer_number = _STORED.unpack_from(payload, at)
            pipe_end = at + SIZE_OF_STORED + pipe_size
            writer_end = pipe_end + writer_size
            pipe, writer = payload[at + SIZE_OF_STORED : pipe_end], payload[pipe_end:writer_end]
            at = writer_end + size
            found.append(Stored(pipe, number, writer, writer_number, payload[writer_end:at]))
        else:
            record, at = _decoded_one(payload, at, kind)
            found.append(record)
    if at != len(payload):
        raise ValueError("the last record is longer than its frame")
    return found


def _decoded_one(payload: bytes, at: int, kind: int) -> tuple[AnyRecord, int]:
    if kind == 2:
        _, size, count = _REMOVED.unpack_from(payload, at)
        start = at + _REMOVED.size + size
        numbers = _numbers(count).unpack_from(payload, start)
        return Removed(payload[start - size : start], numbers), start + 8 * count
    if kind in _DECODERS:
        _, size, name_size, number, other = _OTHER.unpack_from(payload, at)
        start = at + _OTHER.size + size
        pipe, name = payload[start - size : start], payload[start : start + name_size]
        return _DECODERS[kind](pipe, name, number, other), start + name_size
    raise ValueError(f"a record of an unknown kind: {kind}")
