"""The state that the records of the journal add up to: numbers, not chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from scale0_core.api import journal
from scale0_zpipes.service.records import (
    SIZE_OF_STORED,
    Acked,
    AnyRecord,
    Dropped,
    GroupDropped,
    Known,
    Opening,
    Purged,
    Removed,
    Stored,
    Wrote,
    decoded,
    encoded,
)

MOST_WRITERS: Final = 10_000
"""Writers remembered for each pipe; beyond that, the one that has been silent for longest is forgotten."""


@attrs.define(eq=False)
class _Pipe:
    """What must be known of a pipe to write the beginning of a segment; ``live`` has a place for each chunk."""

    next_number: int = 1
    first: int = 1
    live: dict[int, int] = attrs.field(factory=dict)
    groups: dict[bytes, int] = attrs.field(factory=dict)
    writers: dict[bytes, int] = attrs.field(factory=dict)
    last_writer: bytes = b""


class Index:
    """The state that the records add up to, without the chunks."""

    encode = staticmethod(encoded)
    decode = staticmethod(decoded)

    def __init__(self, segments: journal.Segments) -> None:
        self.pipes: dict[bytes, _Pipe] = {}
        self._release, self._hold = segments.release, segments.hold

    def apply(self, records: Sequence[AnyRecord], place: int) -> None:
        """Take in the records of a frame at its place."""
        stored = 0
        for record in records:
            if type(record) is not Stored:
                self._apply_other(record)
                continue
            name, number, writer, writer_number, chunk = record
            pipe = self.pipes.get(name) or self._pipe(name)
            if number >= pipe.next_number:
                pipe.next_number = number + 1
            else:
                self._take_out(pipe, (number,))
                pipe.first = min(pipe.first, number)
            size = SIZE_OF_STORED + len(name) + len(chunk)
            pipe.live[number] = place + size
            stored += size
            if writer:
                if writer != pipe.last_writer:
                    _move_to_end(pipe, writer)
                pipe.writers[writer] = writer_number
        self._hold(place + stored)

    def snapshot(self) -> list[AnyRecord]:
        """Give records that bring back all but the chunks."""
        records: list[AnyRecord] = [Opening()]
        for name, pipe in self.pipes.items():
            records.append(Known(name, pipe.first, pipe.next_number))
            records += [Acked(name, group, upto) for group, upto in pipe.groups.items()]
            records += [Wrote(name, writer, number) for writer, number in pipe.writers.items()]
        return records

    def restore(self, snapshot: Sequence[AnyRecord]) -> None:
        """Take in the beginning of a segment. It is right where it differs, since damage may have hidden records."""
        before, self.pipes = self.pipes, {}
        for record in snapshot[1:]:
            if isinstance(record, Known):
                pipe = before.pop(record.pipe, None) or _Pipe()
                self.pipes[record.pipe] = pipe
                pipe.groups, pipe.writers, pipe.last_writer = {}, {}, b""
                if pipe.next_number > record.next_number:  # numbers of a pipe that was dropped and made again
                    self._take_out(pipe, [number for number in pipe.live if number >= record.next_number])
                pipe.next_number = record.next_number
                self._purge(pipe, record.first)
                pipe.first = record.first
            else:
                self._apply_other(record)
        for pipe in before.values():
            self._take_out(pipe, list(pipe.live))

    def live_among(self, frames: Sequence[journal.Frame]) -> list[AnyRecord]:
        """Return the chunks in frames that are not yet removed."""
        found: list[AnyRecord] = []
        for frame in frames:
            for record in frame.records:
                if type(record) is Stored:
                    pipe = self.pipes.get(record.pipe)
                    if pipe is not None and pipe.live.get(record.number, 0) & journal.FRAME == frame.place:
                        # without the writer, who has written more since, or is forgotten
                        found.append(Stored(record.pipe, record.number, b"", 0, record.chunk))
        return found

    def _apply_other(self, record: Any) -> None:
        kind = type(record)
        pipe = self._pipe(record.pipe) if kind in (Acked, Wrote) else self.pipes.get(record.pipe)
        if pipe is None:
            return
        if kind is Removed:
            self._take_out(pipe, record.numbers)
        elif kind is Purged:
            self._purge(pipe, record.before)
        elif kind is Acked:
            pipe.groups[record.group] = record.upto
        elif kind is GroupDropped:
            pipe.groups.pop(record.group, None)
        elif kind is Wrote:
            _move_to_end(pipe, record.writer)
            pipe.writers[record.writer] = record.writer_number
        elif kind is Dropped:
            del self.pipes[record.pipe]
            self._take_out(pipe, list(pipe.live))

    def _pipe(self, name: bytes) -> _Pipe:
        return self.pipes.setdefault(name, _Pipe())

    def _purge(self, pipe: _Pipe, before: int) -> None:
        before = min(before, pipe.next_number)
        if before - pipe.first <= 2 * len(pipe.live):
            self._take_out(pipe, range(pipe.first, before))
        else:
            self._take_out(pipe, [number for number in pipe.live if number < before])
        pipe.first = max(pipe.first, before)

    def _take_out(self, pipe: _Pipe, numbers: Sequence[int]) -> None:
        live = pipe.live
        for number in numbers:
            place = live.pop(number, 0)
            if place:
                self._release(place)


def _move_to_end(pipe: _Pipe, writer: bytes) -> None:
    """Put a writer last in line to be forgotten."""
    writers = pipe.writers
    writers[writer] = writers.pop(writer, 0)
    pipe.last_writer = writer
    if len(writers) > MOST_WRITERS:
        del writers[next(iter(writers))]
