"""Reading the journal when it is opened: what it holds, and what of it is torn or damaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from scale0_zpipes.service.disk import Disk
from scale0_zpipes.service.frames import Frame, good_frames, is_of_another_version
from scale0_zpipes.service.index import SEGMENT_NAME, Index, Segment
from scale0_zpipes.service.records import AnyRecord, Dropped, Known, Opening, Purged, Removed, Stored


@attrs.frozen
class RecoveredPipe:
    """A pipe as it was: chunks in the order of their numbers, groups with the last number each is done with."""

    next_number: int
    chunks: list[tuple[int, bytes]]
    groups: dict[bytes, int]
    writers: dict[bytes, int]
    purged: int = 0
    """The last number that was thrown away unread."""
    lost: int = 0
    """How many chunks were damaged and could not be read, as far as it can be told from the numbers around them."""


@attrs.frozen
class Recovered:
    """All that the journal holds. ``problems`` says, for people, what could not be read; ``lost`` counts its bytes."""

    pipes: dict[bytes, RecoveredPipe]
    problems: list[str]
    lost: int


class OtherVersionError(Exception):
    """The journal was written by another version of this program, which must read it."""


@attrs.define
class _Missing:
    """The numbers of a pipe that are missing since something could not be read, and are needed by somebody."""

    since: int = 0
    """What was next before the damage; 0 when a later number was read."""
    numbers: set[int] = attrs.field(factory=set)
    removed: set[int] = attrs.field(factory=set)
    purged: int = 0

    def found(self, record: Stored | Known) -> None:
        following = record.number if isinstance(record, Stored) else record.next_number
        if self.since:
            self.numbers.update(range(self.since, following))
            self.since = 0
        if isinstance(record, Stored):
            self.numbers.discard(record.number)  # a copy of it
        else:
            self.purged = max(self.purged, record.first)

    def gone(self, record: Removed | Purged) -> None:
        if isinstance(record, Purged):
            self.purged = max(self.purged, record.before)
        else:
            self.removed.update(record.numbers)

    @property
    def count(self) -> int:
        return sum(number >= self.purged for number in self.numbers - self.removed)


class Reading:
    """Reads the segments, oldest first, into an index and the chunks."""

    def __init__(self, disk: Disk) -> None:
        self.index = Index()
        self.problems: list[str] = []
        self.lost = 0
        self._disk = disk
        self._chunks: dict[bytes, dict[int, bytes]] = {}
        self._missing: dict[bytes, _Missing] = {}
        """After damage: what may be missing, by pipe."""

    def read(self) -> Segment | None:
        """Read all; returns the segment to go on with."""
        found = [SEGMENT_NAME.fullmatch(name) for name in self._disk.names("journal-")]
        sequences = [int(match[1]) for match in found if match]
        current = None
        for sequence in sequences:
            if current is not None and sequence != current.sequence + 1:
                missing = sequence - current.sequence - 1
                self.problems.append(f"{missing} segments are missing between {current.name} and the next one")
                self._suspect()
            current = self._read_segment(sequence, is_last=sequence == sequences[-1]) or current
        if current is not None:
            # what a killed process has written may not be safe yet, but from now on it is told to readers
            self._disk.fsync(current.name)
        return current

    def result(self) -> Recovered:
        """Give what was read."""
        pipes = {}
        for name, pipe in self.index.pipes.items():
            chunks = sorted(self._chunks.get(name, {}).items())
            lost = self._missing[name].count if name in self._missing else 0
            pipes[name] = RecoveredPipe(
                pipe.next_number, chunks, dict(pipe.groups), dict(pipe.writers), pipe.first - 1, lost
            )
        return Recovered(pipes, self.problems, self.lost)

    def _read_segment(self, sequence: int, *, is_last: bool) -> Segment | None:
        segment = self.index.segments[sequence] = Segment(sequence)
        data = self._disk.read(segment.name)
        if is_of_another_version(data, sequence):
            raise OtherVersionError(f"{segment.name} was written by another version of this program")
        segment.size = len(data)
        frames = good_frames(data, sequence)
        end = 0
        for frame in _until_torn(frames) if is_last else frames:
            if frame.offset > end:
                self._report(segment, end, frame.offset, "are damaged and were skipped")
            end = frame.end
            if isinstance(frame.records[0], Opening):
                segment.head = end
                self._look_for_lost(frame.records)
                self.index.restore(frame.records[1:])
            else:
                if self.problems:
                    self._look_for_lost(frame.records)
                for record in frame.records:
                    if type(record) is Stored:
                        self._chunks.setdefault(record.pipe, {})[record.number] = record.chunk
                self.index.apply(frame.records, sequence, frame.offset)
        self._forget_removed()
        if is_last:
            return self._cut(segment, end)
        if end < segment.size:
            self._report(segment, end, segment.size, "are damaged and were skipped")
        return segment

    def _cut(self, segment: Segment, end: int) -> Segment | None:
        """Cut off what a crash has left at the end of the last segment, or remove it if nothing else is there."""
        if end < segment.size:
            self._report(segment, end, segment.size, "were cut off: the last write was not finished, or is damaged")
        if not end:
            self._disk.remove(segment.name)
            del self.index.segments[segment.sequence]
            return None
        if end < segment.size:
            self._disk.truncate(segment.name, end)
            segment.size = end
        return segment

    def _forget_removed(self) -> None:
        """Let go of chunks that are no longer live: after each segment, so that memory holds little more than those."""
        for name, chunks in list(self._chunks.items()):
            pipe = self.index.pipes.get(name)
            if pipe is None:
                del self._chunks[name]
            elif len(chunks) > len(pipe.live):
                self._chunks[name] = {number: chunk for number, chunk in chunks.items() if number in pipe.live}

    def _suspect(self) -> None:
        """Note, where bytes cannot be read, how far each pipe was."""
        for name, pipe in self.index.pipes.items():
            missing = self._missing.setdefault(name, _Missing())
            missing.since = missing.since or pipe.next_number

    def _look_for_lost(self, records: Sequence[AnyRecord]) -> None:
        """See from the records after damage which numbers are missing, and which of those nobody needs any more."""
        for record in records:
            if isinstance(record, Stored | Known):
                if record.pipe not in self.index.pipes and record.pipe not in self._missing and self.problems:
                    self._missing[record.pipe] = _Missing(since=1)
                if record.pipe in self._missing:
                    self._missing[record.pipe].found(record)
            elif isinstance(record, Removed | Purged) and record.pipe in self._missing:
                self._missing[record.pipe].gone(record)
            elif isinstance(record, Dropped):
                self._missing[record.pipe] = _Missing()

    def _report(self, segment: Segment, start: int, end: int, what: str) -> None:
        self._suspect()
        self.lost += end - start
        self.problems.append(f"{segment.name}: {end - start} bytes from {start} on {what}")


def _until_torn(frames: Iterator[Frame]) -> Iterator[Frame]:
    """Stop where the last segment is torn: at the first gap behind which no later commit begins."""
    end = 0
    for frame in frames:
        if frame.offset > end:
            others = [frame, *frames]
            for other in others:
                if other.offset > end >= others[-1].commit:
                    return
                yield other
                end = other.end
            return
        yield frame
        end = frame.end
