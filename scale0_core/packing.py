"""Events of requests in forty bytes each: another carrier of the same schema, for kinds of which there are very many.

A tuple of an event costs little to make, but much to turn to columns: each of its values is an object. A record has the
numbers as they are in memory, so that a buffer of them is columns already; and one number for all that is the same for
many events, of which a list goes along. Who gets packed events and does not care sees the same tuples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, overload

from scale0_core.events import Event, EventKind

RECORD = struct.Struct("dddqq")
"""When it was over, when it came, and when somebody took it, in seconds; bytes; the place of its ``About``."""

About = tuple[str, str | None, str, str]
"""Service, peer, group and outcome: what is the same for many events."""

PACKED_FIELDS = ("service", "peer", "group", "outcome", "queue_us", "service_us", "bytes")
"""The fields of kinds that can be packed."""

MOST_ABOUTS = 65_536
"""When a list has more, another is begun: workers that are gone leave theirs behind."""

Run = bytearray | list[Event]
"""Records one after the other, or events that are tuples."""


def _add(events: list[Any], over: float, came: float, taken: float, size: int, number: int, /) -> None:
    """Append a packed event to a list of events: to the records at its end, if there are some."""
    record = RECORD.pack(over, came, taken, size, number)
    if events and type(events[-1]) is bytearray:
        events[-1] += record
    else:
        events.append(bytearray(record))


add = _add

with suppress(ImportError):  # built without a compiler
    from scale0_core import _packing

    add = _packing.add


class PackedEvents(Sequence[Event]):
    """Events of a turn, in order: runs of packed ones of one kind, and of others."""

    __slots__ = ("_length", "abouts", "kind", "packed", "runs")

    def __init__(self, kind: EventKind, abouts: Sequence[About], runs: Sequence[Run]) -> None:
        self.kind, self.abouts, self.runs = kind, abouts, runs
        self.packed = sum(len(run) for run in runs if isinstance(run, bytearray)) // RECORD.size
        """How many of them are packed."""
        self._length = self.packed + sum(len(run) for run in runs if not isinstance(run, bytearray))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        """Give an event as a tuple, or some of them; who wants all should iterate."""
        return list(self)[place]

    def __iter__(self) -> Iterator[Event]:
        """Give all events as tuples."""
        for run in self.runs:
            if isinstance(run, bytearray):
                yield from unpacked(self.kind, self.abouts, run)
            else:
                yield from run


def unpacked(kind: EventKind, abouts: Sequence[About], records: bytes | bytearray) -> Iterator[Event]:
    """Give records as tuples."""
    for over, came, taken, size, about in RECORD.iter_unpack(records):
        yield (kind, over, *abouts[about], (taken - came) * 1e6, (over - taken) * 1e6, size)


class Packing:
    """Knows what the numbers in records mean. A service that packs has one, for as long as it lives.

    It calls ``add(events, over, came, taken, bytes, number)``, where it would append a tuple to its list of events.
    """

    def __init__(self, kind: EventKind) -> None:
        if kind.fields != PACKED_FIELDS:
            raise ValueError(f"events of the kind {kind.name} cannot be packed: their fields are {kind.fields}")
        self.kind = kind
        self.add = add
        self._abouts: list[About] = []
        self._numbers: list[dict[Any, int]] = []

    def number(self, numbers: dict[Any, int], key: object, about: About) -> int:
        """Give a number to what is the same for many events, and note it; it holds until it is gone from there."""
        number = numbers[key] = len(self._abouts)
        self._abouts.append(about)
        if len(numbers) == 1:
            self._numbers.append(numbers)
        return number

    def forget(self) -> None:
        """Empty all notes of numbers, since what they stand for is no longer so."""
        for numbers in self._numbers:
            numbers.clear()
        self._numbers.clear()

    def told(self, events: list[Any]) -> Sequence[Event]:
        """Take what a service told of in a turn, so that others can read it."""
        found = PackedEvents(self.kind, self._abouts, _runs(events))
        if len(self._abouts) > MOST_ABOUTS:
            self.forget()
            self._abouts = []
        return found


def _runs(events: list[Any]) -> list[Run]:
    if len(events) == 1 and _are_records(events[0]):  # as nearly always
        return events
    runs: list[Run] = []
    for packed, group in groupby(events, _are_records):
        run = list(group)
        runs += run if packed else [run]
    return runs


def _are_records(told: object) -> bool:
    return type(told) is bytearray and len(told) % RECORD.size == 0
