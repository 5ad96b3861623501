"""From packed events to columns: records are numbers in memory already, so that no event is looked at by itself.

Pure, as ``columns`` is, which numbers and samples these events with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from scale0_core.api import Event, EventKind, packing

RECORDS = np.dtype([("over", "f8"), ("came", "f8"), ("taken", "f8"), ("bytes", "i8"), ("about", "i8")])
"""``packing.RECORD``, as numpy says it."""

LAST_US = 253_402_300_799_000_000
"""Years have four digits in the names of folders."""

_NO_WHOLE = 2.0**63


class Records(NamedTuple):
    """Packed events of one kind, with their offsets of time and their places among all that are converted at once."""

    kind: EventKind
    abouts: Sequence[packing.About]
    rows: Any
    offsets: Any
    places: Any

    def only(self, mask: Any) -> Records:
        """Leave out all others."""
        return Records(self.kind, self.abouts, self.rows[mask], self.offsets[mask], self.places[mask])

    def tuples(self) -> list[Event]:
        """Give these events as services usually tell them; one that makes no sense is empty."""
        known = (self.rows["about"] >= 0) & (self.rows["about"] < len(self.abouts))
        good = packing.unpacked(self.kind, self.abouts, self.rows[known].tobytes())
        return [next(good) if each else () for each in known]

    def times(self) -> Any:
        """Give the times in microseconds."""
        return np.rint((self.rows["over"] + self.offsets) * 1e6)

    def durations(self) -> tuple[Any, Any]:
        """Say how long each waited and how long it took, in microseconds."""
        taken = self.rows["taken"]
        return (taken - self.rows["came"]) * 1e6, (self.rows["over"] - taken) * 1e6

    def fitting(self) -> Any:
        """Say which of them have columns for all that they tell; None: all."""
        about = self.rows["about"]
        within = [(self.times(), 0.0, LAST_US), *((each, 1 - _NO_WHOLE, _NO_WHOLE / 2) for each in self.durations())]
        if all(low <= each.min() and each.max() <= high for each, low, high in within):
            if about.min() >= 0 and about.max() < len(self.abouts):
                return None
        fits = (about >= 0) & (about < len(self.abouts))
        for each, low, high in within:
            fits &= (each >= low) & (each <= high)  # what is not a number is neither
        return fits

    def columns(self) -> list[Any]:
        """Give the columns of a kind that can be packed; a text that is the same in all rows stands alone."""
        used, rows = _used(self.rows["about"], len(self.abouts))
        told = [self.abouts[number] for number in used]
        return [
            *(_texts([about[place] for about in told], rows) for place in range(4)),
            *(pa.array(each.astype(np.int64)) for each in self.durations()),
            pa.array(np.ascontiguousarray(self.rows["bytes"])),
        ]


def joined(kind: EventKind, abouts: Sequence[packing.About], parts: Sequence[tuple[float, int, bytes]]) -> Records:
    """Put records of some turns together: what to add to their times, how many events were told before, and they."""
    rows = np.frombuffer(b"".join(records for *_, records in parts), RECORDS)
    lengths = [len(records) // RECORDS.itemsize for *_, records in parts]
    begins = np.cumsum(lengths) - lengths
    starts = np.array([before for _, before, _ in parts])
    offsets = np.repeat([offset for offset, *_ in parts], lengths)
    return Records(kind, abouts, rows, offsets, np.repeat(starts - begins, lengths) + np.arange(len(rows)))


def _used(about: Any, most: int) -> tuple[Sequence[int], Any]:
    """Give the numbers that occur, and for each row which of those it has."""
    found = np.zeros(most, bool)
    found[about] = True
    return np.flatnonzero(found).tolist(), (np.cumsum(found, dtype=np.int32) - np.int32(1))[about]


def _texts(texts: list[str | None], rows: Any) -> Any:
    if texts.count(texts[0]) == len(texts):
        return texts[0]
    return pa.array(texts, pa.string()).take(pa.array(rows))
