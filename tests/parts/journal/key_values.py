"""A journal of keys and values, as plain as its contents can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple, TypeAlias

from scale0_core.parts.journal import FRAME, Disk, FolderDisk, Frame, Journal, Segments

HEAD = Struct(">BHIQ")


class Put(NamedTuple):
    key: bytes
    value: bytes
    version: int


class Deleted(NamedTuple):
    key: bytes
    version: int


class Begin(NamedTuple):
    """The snapshot: the last version, which outlives what was deleted."""

    version: int


Record: TypeAlias = Put | Deleted | Begin


class Found(NamedTuple):
    values: dict[bytes, bytes]
    version: int
    problems: list[str]
    lost: int


class KeyValues:
    """What the records of such a journal add up to."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._places: dict[bytes, int] = {}
        self._values: dict[bytes, bytes] = {}
        self._version = 0

    def encode(self, records: Sequence[Record]) -> bytes:
        return b"".join(map(_encoded, records))

    def decode(self, payload: bytes) -> list[Record]:
        return list(_decoded(payload))

    def apply(self, records: Sequence[Record], place: int) -> None:
        for record in records:
            self._version = max(self._version, record.version)
            if isinstance(record, Begin):
                continue
            if record.key in self._places:
                self._segments.release(self._places.pop(record.key))
            if isinstance(record, Put):
                self._places[record.key] = held = place + len(record.value) + 1  # less than it takes
                self._segments.hold(held)

    def snapshot(self) -> list[Record]:
        return [Begin(self._version)]

    def live_among(self, frames: Sequence[Frame]) -> list[Record]:
        return [
            record
            for frame in frames
            for record in frame.records
            if isinstance(record, Put) and self._places.get(record.key, 0) & FRAME == frame.place
        ]

    def restore(self, snapshot: Sequence[Record]) -> None:
        self.apply(snapshot, 0)

    def load(self, records: Sequence[Record], place: int) -> None:
        self.apply(records, place)
        self._values.update({record.key: record.value for record in records if isinstance(record, Put)})

    def damaged(self) -> None:
        pass

    def segment_read(self) -> None:
        self._values = {key: value for key, value in self._values.items() if key in self._places}

    def found(self, problems: list[str], lost: int) -> Found:
        self._values, values = {}, self._values
        return Found(values, self._version, problems, lost)


def _encoded(record: Record) -> bytes:
    if isinstance(record, Begin):
        return HEAD.pack(0, 0, 0, record.version)
    value = record.value if isinstance(record, Put) else b""
    kind = 1 if isinstance(record, Put) else 2
    return HEAD.pack(kind, len(record.key), len(value), record.version) + record.key + value


def _decoded(payload: bytes) -> Iterator[Record]:
    at = 0
    while at < len(payload):
        kind, key_size, size, version = HEAD.unpack_from(payload, at)
        at += HEAD.size
        if kind == 0:
            yield Begin(version)
            continue
        key, value = payload[at : at + key_size], payload[at + key_size : at + key_size + size]
        at += key_size + size
        yield Put(key, value, version) if kind == 1 else Deleted(key, version)


def a_journal(disk: Disk | Path, segment_bytes: int = 1 << 20, reserve_bytes: int = 0) -> Journal[Record, Found]:
    return Journal(disk if not isinstance(disk, Path) else FolderDisk(disk), KeyValues, segment_bytes, reserve_bytes)
