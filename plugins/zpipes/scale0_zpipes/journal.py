"""One journal for all durable pipes of a broker, so that one fsync serves them all.

It is a row of files, the segments. Each begins with all that must outlive older segments: the numbers, groups and
writers of every pipe. Then come frames with records (see `frames.py` and `records.py`). A group of records is in one
frame, so it is there whole or not at all.

A commit is one write and one fsync, and no commit begins before the one before it is safe, or if it failed, is cut off
for good. So what cannot be read is of the last write, torn by a crash, if no later commit follows; else the disk has
spoiled it (see `recovery.py`).

The journal keeps numbers, not chunks: where each live chunk is, and how large (see `index.py`). All methods are called
by jobs of one key, so never at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from scale0_core.api import MIB
from scale0_zpipes.disk import Disk, FolderDisk
from scale0_zpipes.frames import HEAD, Lot, good_frames
from scale0_zpipes.index import Index, Segment
from scale0_zpipes.records import (
    Acked,
    AnyRecord,
    Dropped,
    GroupDropped,
    Opening,
    Purged,
    Record,
    Removed,
    Stored,
)
from scale0_zpipes.recovery import OtherVersionError, Reading, Recovered, RecoveredPipe

__all__ = [
    "Acked",
    "Dropped",
    "GroupDropped",
    "Journal",
    "OtherVersionError",
    "Purged",
    "Record",
    "Recovered",
    "RecoveredPipe",
    "Removed",
    "Stored",
]


class Journal:
    """Keeps the chunks of durable pipes on a disk. ``open`` comes first."""

    def __init__(self, disk: Disk, segment_bytes: int = 64 * MIB) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._index = Index()
        self._current: Segment | None = None
        self._is_open = False
        self._unfinished: Segment | None = (
            None  # where a commit is being written, or one that failed is not cut off yet
        )
        self._walked = 0  # how far the oldest segment was copied forward
        self._last_lot = 0

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self._index.segments.values())

    @property
    def live(self) -> int:
        """The bytes of all chunks that are not yet removed."""
        return sum(segment.live for segment in self._index.segments.values())

    def open(self) -> Recovered:
        """Read what is there, and cut off what a crash has left half written.

        Bad bytes are reported, never raised. What is raised is an ``OSError`` of the disk, or ``OtherVersionError``.
        """
        reading = Reading(self._disk)
        self._current = reading.read()
        self._index = reading.index
        self._is_open, self._unfinished, self._walked, self._last_lot = True, None, 0, 0
        return reading.result()

    def commit(self, groups: Sequence[Sequence[Record]]) -> list[Exception | None]:
        """Write groups of records and make them safe, all with one fsync; the function of a grouped job.

        For each group None, or why nothing of it was written. A disk that fails, fails them all; the next commit
        tries anew, but not before what the failed one has left is cut off.
        """
        if not self._is_open:
            raise RuntimeError("a journal is opened before it is written to")
        try:
            self._cut_off()
        except Exception as error:
            return [error] * len(groups)
        segment, opening = self._target()
        lot = Lot(segment.sequence, segment.size)
        lot.add_own(opening)
        head = lot.end
        copies, walked = self._copies()
        lot.add_own(copies)  # before the groups, which may remove them
        own = len(lot.frames)
        outcomes = lot.add(groups)
        if len(lot.frames) == own:
            return outcomes
        self._unfinished = segment
        try:
            self._write(segment, b"".join(lot.parts))
        except Exception as error:  # whatever it was, nothing of it may count
            with suppress(Exception):  # then the next commit tries that first
                self._cut_off()
            return [error if outcome is None else outcome for outcome in outcomes]
        self._unfinished = None
        self._last_lot = lot.end - segment.size
        segment.size = lot.end
        if opening:
            segment.head = head
            self._index.segments[segment.sequence] = self._current = segment
        for offset, records in lot.frames[1:] if opening else lot.frames:
            self._index.apply(records, segment.sequence, offset)
        self._walked = walked
        self._delete_dead()
        return outcomes

    def close(self) -> None:
        """Close the files. All that was committed is safe already."""
        self._is_open = False
        if isinstance(self._disk, FolderDisk):
            self._disk.close()

    def _target(self) -> tuple[Segment, list[AnyRecord]]:
        """Give the segment to write to; for a new one also the records it begins with."""
        current = self._current
        if current is None:
            return Segment(1), [Opening()]
        room = current.head + max(self._segment_bytes, current.head)
        if current.size < room:
            return current, []
        return Segment(current.sequence + 1), [Opening(), *self._index.snapshot()]

    def _write(self, segment: Segment, data: bytes) -> None:
        if self._disk.append(segment.name, data) != segment.size:
            raise OSError(f"{segment.name} was changed by somebody else")
        self._disk.fsync(segment.name)

    def _cut_off(self) -> None:
        """Take back a write that failed, also on the disk: a crash must not bring it back.

        A new segment becomes an empty file, which the next commit writes to.
        """
        if self._unfinished is None:
            return
        with suppress(FileNotFoundError):  # a new segment of which not even the file was made
            self._disk.truncate(self._unfinished.name, self._unfinished.size)
            self._disk.fsync(self._unfinished.name)
        self._unfinished = None

    def _copies(self) -> tuple[list[Stored], int]:
        """Give live chunks of a part of the oldest segment, if too much is dead, and where the next part begins.

        A part at a time, so that no commit waits long; twice the size of the last commit, to be faster than growth.
        """
        oldest = next(iter(self._index.segments.values()), None)
        if oldest is None or oldest is self._current or self._walked >= oldest.size or not self._is_wasteful():
            return [], self._walked
        part = max(self._segment_bytes // 64, 2 * self._last_lot, HEAD.size)
        while True:
            wanted = min(part, oldest.size - self._walked)
            try:
                data = self._disk.read(oldest.name, self._walked, wanted)
            except OSError:
                return [], self._walked
            frames = list(good_frames(data, oldest.sequence, self._walked))
            if frames:
                return self._index.live_among(frames, oldest.sequence), frames[-1].end
            if len(data) < part:
                return [], oldest.size
            part *= 4

    def _is_wasteful(self) -> bool:
        head = self._current.head if self._current is not None else 0
        return self.size > 2 * (self.live + head) + 2 * self._segment_bytes

    def _delete_dead(self) -> None:
        """Delete segments without live chunks. Oldest first: a later one says what was removed from an older one."""
        segments = self._index.segments
        for segment in list(segments.values()):
            if segment is self._current or segment.live:
                return
            try:
                if self._disk.exists(segment.name):
                    self._disk.remove(segment.name)
            except OSError:
                return  # tried again after the next commit
            del segments[segment.sequence]
            self._walked = 0
