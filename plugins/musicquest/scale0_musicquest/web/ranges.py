"""Which bytes a browser asks for: the header Range, as HTTP says, for one range at a time."""

from __future__ import annotations

import re
from typing import NamedTuple

_ONE_RANGE = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.ASCII | re.IGNORECASE).fullmatch


class Span(NamedTuple):
    """Bytes from ``start`` up to, and without, ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return self.end - self.start


class UnsatisfiableError(ValueError):
    """The bytes that are asked for lie outside of the song."""


def asked_span(header: str | None, size: int) -> Span | None:
    """Read a Range header for a song of this size; None means the whole, as for what is not understood.

    Several ranges at once are answered by the whole song, which HTTP allows and no player needs otherwise.
    """
    match = _ONE_RANGE(header) if header and len(header) <= 200 else None
    if match is None:
        return None
    first, last = match.groups()
    if not first:
        return _tail(last, size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise UnsatisfiableError(f"the song has {size} bytes")
    return Span(start, min(int(last) + 1, size) if last else size)


def _tail(count: str, size: int) -> Span | None:
    """Give the last so many bytes."""
    if not count:
        return None
    if not int(count) or not size:
        raise UnsatisfiableError(f"the song has {size} bytes")
    return Span(max(0, size - int(count)), size)
