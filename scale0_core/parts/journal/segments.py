"""The files of a journal, which of their bytes are still needed, and what the records in them mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import attrs

_SIZE_BITS: Final = 32
_SEGMENT_BIT: Final = 40 + _SIZE_BITS
_SIZE: Final = (1 << _SIZE_BITS) - 1

FRAME: Final = ~_SIZE
"""``place & FRAME`` is the place of the frame that something is in, which is `Frame.place`."""

SEGMENT_NAME: Final = re.compile(r"journal-([0-9]{12})")


def place_of(sequence: int, offset: int) -> int:
    """Return a frame's place as one number; the size of what is in it may be added."""
    return (sequence << _SEGMENT_BIT) + (offset << _SIZE_BITS)


class Frame(NamedTuple):
    """Where a frame begins and ends, where its commit begins, and what is in it."""

    place: int
    offset: int
    end: int
    commit: int
    records: list[Any]


@attrs.define
class Segment:
    """A file of the journal: bytes that count, of its beginning, and of what is still needed."""

    sequence: int
    size: int = 0
    head: int = 0
    live: int = 0

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"journal-{self.sequence:012d}"


class Segments(dict[int, Segment]):
    """All segments by their sequence, the oldest first."""

    def hold(self, place: int) -> None:
        """Count the bytes of something as needed: the place of its frame plus its size, at most that on disk."""
        self[place >> _SEGMENT_BIT].live += place & _SIZE

    def release(self, place: int) -> None:
        """Count them as needed no more."""
        self[place >> _SEGMENT_BIT].live -= place & _SIZE


R = TypeVar("R")
F_co = TypeVar("F_co", covariant=True)


class Contents(Protocol[R, F_co]):
    """What the records of a journal mean and add up to, without their data. Made anew each time a journal is opened.

    It calls ``hold`` and ``release`` of the segments it was made with: those of which nothing is held are deleted.
    """

    def encode(self, records: Sequence[R], /) -> bytes:
        """Return the bytes of records; any exception refuses this group of records and no other."""

    def decode(self, payload: bytes, /) -> list[R]:
        """Read records back; raise ValueError or struct.error for bytes that ``encode`` never makes."""

    def apply(self, records: Sequence[R], place: int, /) -> None:
        """Take in the records of a frame at its place, which are on disk."""

    def snapshot(self) -> list[R]:
        """Return records, at least one, that bring back all but what is held: with them a segment begins."""

    def live_among(self, frames: Sequence[Frame], /) -> list[R]:
        """Return the records in frames that are still held, to be written again."""

    # while a journal is opened

    def restore(self, snapshot: Sequence[R], /) -> None:
        """Take in the beginning of a segment. It is right where it differs, since damage may have hidden records."""

    def load(self, records: Sequence[R], place: int, /) -> None:
        """Take in the records of a frame as ``apply`` does, and keep the data that are held."""

    def damaged(self) -> None:
        """Note that records are missing between what was read and what comes."""

    def segment_read(self) -> None:
        """Let go of data that are no longer held: after each segment, so that memory has little more than those."""

    def found(self, problems: list[str], lost: int, /) -> F_co:
        """Return what opening the journal gives; ``problems`` are for people, ``lost`` counts bytes."""


MakeContents: TypeAlias = Callable[[Segments], Contents[R, F_co]]
