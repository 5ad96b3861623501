"""The frames of the journal: records with a checksum.

- 4 bytes `S0J1`, 4 the length of the records, 4 their CRC-32, begun with a value made of place, mark and distance
- 4 bytes of distance: how far back the commit begins that this frame is part of
- the records

Integers are big endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Any, Final, Generic, TypeAlias
from zlib import crc32

from scale0_core.parts.journal.segments import Frame, R, place_of

HEAD: Final = Struct(">IIII")
_MARK: Final = b"S0J1"
_MARK_NUMBER: Final = int.from_bytes(_MARK, "big")
_FRAME_BYTES: Final = 4096
"""Groups share a frame up to this: disks lose no less than that at once, so smaller frames would save nothing."""
_LARGEST_COMMIT: Final = 1 << 31
_MOST_IN_VAIN: Final = 16
"""So many times the bytes there are may be summed up after damage: chunks may be made to look like frames."""


def start_of_sum(sequence: int, offset: int, back: int, mark: int = _MARK_NUMBER) -> int:
    """Make the checksum depend on the place, so that a copy of a journal inside a chunk is never taken for frames."""
    return ((sequence * 0x9E3779B1 + offset) & 0xFFFFFFFF) ^ back ^ mark


Decode: TypeAlias = Callable[[bytes], list[Any]]


def _frame_at(data: bytes, at: int, sequence: int, decode: Decode, base: int) -> Frame | None:
    """Read the frame at a place, if there is a good one; ``base`` is where the data begins in its segment."""
    if len(data) - at < HEAD.size:
        return None
    mark, size, checksum, back = HEAD.unpack_from(data, at)
    start, offset = at + HEAD.size, base + at
    if mark != _MARK_NUMBER or not 0 < size <= len(data) - start or back > offset:
        return None
    payload = data[start : start + size]
    if crc32(payload, start_of_sum(sequence, offset, back)) != checksum:
        return None
    try:
        return Frame(place_of(sequence, offset), offset, base + start + size, offset - back, decode(payload))
    except (ValueError, StructError):
        return None


def good_frames(data: bytes, sequence: int, decode: Decode, base: int = 0) -> Iterator[Frame]:
    """Give all good frames, in order. What is between them cannot be read."""
    at, in_vain = 0, 0
    while at >= 0:
        frame = _frame_at(data, at, sequence, decode, base)
        if frame is not None:
            yield frame
            at = frame.end - base
            continue
        left = len(data) - at - HEAD.size
        size = HEAD.unpack_from(data, at)[1] if left > 0 else 0
        in_vain += size if size <= left else 0
        at = data.find(_MARK, at + 1) if in_vain <= _MOST_IN_VAIN * len(data) else -1


def is_of_another_version(data: bytes, sequence: int) -> bool:
    """Tell a journal of another version from a damaged mark: its checksum is right with the mark it has."""
    if len(data) < HEAD.size:
        return False
    mark, size, checksum, back = HEAD.unpack_from(data)
    if mark == _MARK_NUMBER or mark >> 8 != _MARK_NUMBER >> 8 or not 0 < size <= len(data) - HEAD.size:
        return False
    return bool(crc32(data[HEAD.size : HEAD.size + size], start_of_sum(sequence, 0, back, mark)) == checksum)


class Lot(Generic[R]):
    """What one commit writes: frames, and where each of them will be."""

    def __init__(self, encode: Callable[[Sequence[R]], bytes], sequence: int, start: int) -> None:
        self.parts: list[bytes] = []
        self.frames: list[tuple[int, list[R]]] = []
        self._encode = encode
        self.end = start
        self._start = start
        self._sequence = sequence

    def add(self, groups: Sequence[Sequence[R]]) -> list[Exception | None]:
        """Add groups, small ones several to a frame; gives for each None, or why it was left out."""
        outcomes: list[Exception | None] = []
        payloads: list[bytes] = []
        taken: list[R] = []
        size = 0
        is_full = False  # what comes after a group that was left out for its size may build on it
        for records in groups:
            try:
                payload = self._encode(records)
                is_full = is_full or self.end - self._start + size + len(payload) > _LARGEST_COMMIT
                if is_full:
                    raise OverflowError("more than one commit can hold")
            except Exception as error:  # a number or a name too large is the fault of this group alone
                outcomes.append(error)
                continue
            outcomes.append(None)
            payloads.append(payload)
            taken += records
            size += len(payload)
            if size >= _FRAME_BYTES:
                self._add_frame(b"".join(payloads), taken)
                payloads, taken, size = [], [], 0
        if taken:
            self._add_frame(b"".join(payloads), taken)
        return outcomes

    def add_own(self, records: Sequence[R]) -> None:
        """Add what the journal itself has to write, without which the rest must not be written."""
        for error in self.add([records]):
            if error is not None:
                raise error

    def _add_frame(self, payload: bytes, records: list[R]) -> None:
        back = self.end - self._start
        checksum = crc32(payload, start_of_sum(self._sequence, self.end, back))
        self.parts += (HEAD.pack(_MARK_NUMBER, len(payload), checksum, back), payload)
        self.frames.append((self.end, records))
        self.end += HEAD.size + len(payload)
