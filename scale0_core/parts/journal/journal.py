"""One journal for much that must survive, so that one fsync serves it all.

It is a row of files, the segments. Each begins with all that must outlive older segments, the snapshot. Then come
frames with records (see `frames.py`); what they mean is for others to say (see `Contents`). A group of records is in
one frame, so it is there whole or not at all.

A commit is one write and one fsync, and no commit begins before the one before it is safe, or if it failed, is cut off
for good. So what cannot be read is of the last write, torn by a crash, if no later commit follows; else the disk has
spoiled it (see `recovery.py`).

The journal keeps no data in memory: where each live piece is and how large, its contents know. All methods are called
by jobs of one key, so never at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from typing import Final, Generic

from scale0_core.parts.journal.disk import Disk, FolderDisk
from scale0_core.parts.journal.frames import HEAD, Lot, good_frames
from scale0_core.parts.journal.recovery import Reading
from scale0_core.parts.journal.segments import Contents, F_co, MakeContents, R, Segment, Segments, place_of


class Reserve:
    """Room on the disk for what frees space: a file that is made smaller when there is no other room."""

    NAME: Final = "reserve"
    PARTS: Final = 8

    def __init__(self, disk: Disk, size: int) -> None:
        self.size = size
        self._disk = disk
        self.left = 0

    def open(self) -> None:
        """Find out what an earlier run has left."""
        self.left = self._disk.size(self.NAME) if self._disk.exists(self.NAME) else 0

    def fill(self) -> None:
        """Take the room again; raise OSError if there is not enough."""
        if self.left < self.size:
            self._disk.allocate(self.NAME, self.size)
            self.left = self.size

    def use(self) -> bool:
        """Give a part of the room to others; return False if nothing is left of it, or the disk refuses."""
        if not self.left:
            return False
        left = max(0, self.left - max(1, self.size // self.PARTS))
        try:
            self._disk.truncate(self.NAME, left)
        except OSError:
            return False
        self.left = left
        return True


class Journal(Generic[R, F_co]):
    """Keeps records on a disk. ``open`` comes first."""

    def __init__(
        self, disk: Disk, contents: MakeContents[R, F_co], segment_bytes: int = 64 << 20, reserve_bytes: int = 0
    ) -> None:
        self._disk = disk
        self._make_contents = contents
        self._segments = Segments()
        self._contents: Contents[R, F_co] = contents(self._segments)
        self._segment_bytes = segment_bytes
        self._reserve = Reserve(disk, reserve_bytes)
        self._current: Segment | None = None
        self._is_open = False
        self._is_full = False
        """Whether there was no room for the last commit: then space is worth more than time."""
        self._unfinished: Segment | None = None
        """Where a commit is being written, or one that failed is not cut off yet."""
        self._walked = 0
        """How far the oldest segment was copied forward."""
        self._last_lot = 0

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self._segments.values())

    @property
    def live(self) -> int:
        """The bytes of all that is still needed."""
        return sum(segment.live for segment in self._segments.values())

    def open(self) -> F_co:
        """Read what is there, and cut off what a crash has left half written.

        Bad bytes are reported, never raised. What is raised is an ``OSError`` of the disk, or ``OtherVersionError``.
        """
        self._segments = Segments()
        self._contents = self._make_contents(self._segments)
        reading = Reading(self._disk, self._contents, self._segments)
        self._current = reading.read()
        self._is_open, self._is_full, self._unfinished, self._walked, self._last_lot = True, False, None, 0, 0
        self._reserve.open()
        return self._contents.found(reading.problems, reading.lost)

    def commit(self, groups: Sequence[Sequence[R]]) -> list[Exception | None]:
        """Write groups of records and make them safe, all with one fsync; the function of a grouped job.

        For each group None, or why nothing of it was written. A disk that fails, fails them all; the next commit
        tries anew, but not before what the failed one has left is cut off, and the reserve is whole again.
        """
        self._check_open()
        while True:
            try:
                self._cut_off()
                self._reserve.fill()
            except Exception as error:
                outcomes: list[Exception | None] = [error] * len(groups)
            else:
                outcomes = self._commit(groups)
            self._is_full = any(map(_is_no_room, outcomes))
            if not self._is_full or not self._make_room():
                return outcomes

    def free(self, groups: Sequence[Sequence[R]]) -> list[Exception | None]:
        """Write groups of records that free space, none of which holds any; if need be use the reserve.

        If there is not even room for that, they count all the same: segments that nobody needs any more are deleted,
        and if little is left, that is written anew, without all that is gone. Otherwise they are to be written again.
        """
        self._check_open()
        with_upkeep = True
        while True:
            try:
                self._cut_off()
            except Exception as error:
                outcomes: list[Exception | None] = [error] * len(groups)
                break
            outcomes = self._commit(groups, with_upkeep=with_upkeep)
            if not any(isinstance(outcome, OSError) for outcome in outcomes):
                if self._is_full:
                    self._make_room()
                return outcomes
            if not any(map(_is_no_room, outcomes)) or not (self._reserve.use() or with_upkeep):
                break
            with_upkeep = with_upkeep and self._reserve.left > 0
        if self._current is None or self._unfinished is not None:
            return outcomes
        for records in groups:
            self._contents.apply(records, place_of(self._current.sequence, 0))
        self._delete_dead()
        return [None] * len(groups) if self._write_anew() else outcomes

    def _make_room(self) -> bool:
        """Write what is left anew, if most is gone and the reserve has room for it; tell whether that was done."""
        head = self._current.head if self._current is not None else 0
        if self._unfinished is not None or self.size <= 2 * (self.live + head):
            return False
        while self._reserve.use():
            pass
        before = self.size
        return self._write_anew() and self.size < before

    def _write_anew(self) -> bool:
        """Write all that is left to a new segment and delete the others; tell whether that was done."""
        old = list(self._segments.values())
        if self.live > self._reserve.size:
            return False
        try:
            copies = [copy for segment in old for copy in self._live_in(segment)]
        except OSError:
            return False
        segment = Segment(old[-1].sequence + 1)
        lot = Lot(self._contents.encode, segment.sequence, 0)
        lot.add_own(self._contents.snapshot())
        head = lot.end
        lot.add_own(copies)
        if self._put(segment, lot, head) is not None:
            return False
        self._walked = 0
        self._delete_dead()
        return list(self._segments.values()) == [segment]

    def _live_in(self, segment: Segment) -> list[R]:
        if not segment.live:
            return []
        data = self._disk.read(segment.name, 0, segment.size)
        return self._contents.live_among(list(good_frames(data, segment.sequence, self._contents.decode)))

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("a journal is opened before it is written to")

    def _commit(self, groups: Sequence[Sequence[R]], *, with_upkeep: bool = True) -> list[Exception | None]:
        segment, opening = self._target(with_upkeep=with_upkeep)
        lot = Lot(self._contents.encode, segment.sequence, segment.size)
        lot.add_own(opening)
        head = lot.end
        copies, walked = self._copies() if with_upkeep else ([], self._walked)
        lot.add_own(copies)  # before the groups, which may remove them
        own = len(lot.frames)
        outcomes = lot.add(groups)
        if len(lot.frames) == own:
            return outcomes
        error = self._put(segment, lot, head if opening else 0)
        if error is not None:
            return [error if outcome is None else outcome for outcome in outcomes]
        self._walked = walked
        self._delete_dead()
        return outcomes

    def _put(self, segment: Segment, lot: Lot[R], head: int) -> Exception | None:
        """Write a lot, of which ``head`` bytes begin a new segment, and take it in; return why that failed."""
        self._unfinished = segment
        try:
            self._write(segment, b"".join(lot.parts))
        except Exception as error:  # whatever it was, nothing of it may count
            with suppress(Exception):  # then the next commit tries that first
                self._cut_off()
            return error
        self._unfinished = None
        self._last_lot = lot.end - segment.size
        segment.size = lot.end
        if head:
            segment.head = head
            self._segments[segment.sequence] = self._current = segment
        for offset, records in lot.frames[1:] if head else lot.frames:
            self._contents.apply(records, place_of(segment.sequence, offset))
        return None

    def close(self) -> None:
        """Close the files. All that was committed is safe already."""
        self._is_open = False
        if isinstance(self._disk, FolderDisk):
            self._disk.close()

    def _target(self, *, with_upkeep: bool = True) -> tuple[Segment, list[R]]:
        """Give the segment to write to; for a new one also the records it begins with."""
        current = self._current
        if current is None:
            return Segment(1), self._contents.snapshot()
        room = current.head + max(self._segment_bytes, current.head)
        if current.size < room or not with_upkeep:
            return current, []
        return Segment(current.sequence + 1), self._contents.snapshot()

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

    def _copies(self) -> tuple[list[R], int]:
        """Give what is live of a part of the oldest segment, if too much is dead, and where the next part begins.

        A part at a time, so that no commit waits long; twice the size of the last commit, to be faster than growth.
        """
        oldest = next(iter(self._segments.values()), None)
        if oldest is None or oldest is self._current or self._walked >= oldest.size or not self._is_wasteful(oldest):
            return [], self._walked
        part = max(self._segment_bytes // 64, 2 * self._last_lot, HEAD.size)
        while True:
            wanted = min(part, oldest.size - self._walked)
            try:
                data = self._disk.read(oldest.name, self._walked, wanted)
            except OSError:
                return [], self._walked
            frames = list(good_frames(data, oldest.sequence, self._contents.decode, self._walked))
            if frames:
                return self._contents.live_among(frames), frames[-1].end
            if len(data) < part:
                return [], oldest.size
            part *= 4

    def _is_wasteful(self, oldest: Segment) -> bool:
        head = self._current.head if self._current is not None else 0
        if self._is_full:  # as soon as it pays, if there is room for it
            return oldest.live <= self._reserve.size // 2 and oldest.size > 2 * (oldest.live + head)
        return self.size > 2 * (self.live + head) + 2 * self._segment_bytes

    def _delete_dead(self) -> None:
        """Delete segments of which nothing is live. Oldest first: a later one says what of an older one was removed."""
        segments = self._segments
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


def _is_no_room(outcome: Exception | None) -> bool:
    return isinstance(outcome, OSError) and outcome.errno in (ENOSPC, EDQUOT)
