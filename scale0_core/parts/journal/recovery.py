"""Reading the journal when it is opened: what it holds, and what of it is torn or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from scale0_core.parts.journal.disk import Disk
from scale0_core.parts.journal.frames import good_frames, is_of_another_version
from scale0_core.parts.journal.segments import SEGMENT_NAME, Contents, F_co, Frame, R, Segment, Segments


class OtherVersionError(Exception):
    """The journal was written by another version of this program, which must read it."""


class Reading(Generic[R, F_co]):
    """Reads the segments, oldest first, into the contents."""

    def __init__(self, disk: Disk, contents: Contents[R, F_co], segments: Segments) -> None:
        self.problems: list[str] = []
        self.lost = 0
        self._disk = disk
        self._contents = contents
        self._segments = segments

    def read(self) -> Segment | None:
        """Read all; returns the segment to go on with."""
        found = [SEGMENT_NAME.fullmatch(name) for name in self._disk.names("journal-")]
        sequences = [int(match[1]) for match in found if match]
        current = None
        for sequence in sequences:
            if current is not None and sequence != current.sequence + 1:
                missing = sequence - current.sequence - 1
                self.problems.append(f"{missing} segments are missing between {current.name} and the next one")
                self._contents.damaged()
            current = self._read_segment(sequence, is_last=sequence == sequences[-1]) or current
        if current is not None:
            # what a killed process has written may not be safe yet, but from now on it is told to readers
            self._disk.fsync(current.name)
        return current

    def _read_segment(self, sequence: int, *, is_last: bool) -> Segment | None:
        segment = self._segments[sequence] = Segment(sequence)
        data = self._disk.read(segment.name)
        if is_of_another_version(data, sequence):
            raise OtherVersionError(f"{segment.name} was written by another version of this program")
        segment.size = len(data)
        frames = good_frames(data, sequence, self._contents.decode)
        end = 0
        for frame in _until_torn(frames) if is_last else frames:
            if frame.offset > end:
                self._report(segment, end, frame.offset, "are damaged and were skipped")
            end = frame.end
            if frame.offset == 0:
                segment.head = end
                self._contents.restore(frame.records)
            else:
                self._contents.load(frame.records, frame.place)
        self._contents.segment_read()
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
            del self._segments[segment.sequence]
            return None
        if end < segment.size:
            self._disk.truncate(segment.name, end)
            segment.size = end
        return segment

    def _report(self, segment: Segment, start: int, end: int, what: str) -> None:
        self._contents.damaged()
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
