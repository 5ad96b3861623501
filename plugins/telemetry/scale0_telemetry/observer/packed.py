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

_LEAST, _MOST = -(2.0**62), 2.0**62
"""Microseconds that are whole numbers for certain."""

Measured = tuple[Any, Any, Any]
"""Times, how long it waited, how long it took: floats."""


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

    def measured(self) -> Measured:
        """Say when each was over, how long it waited and how long it took, in microseconds."""
        over, taken = self.rows["over"], self.rows["taken"]
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of that does not fit
            return np.rint((over + self.offsets) * 1e6), (taken - self.rows["came"]) * 1e6, (over - taken) * 1e6

    def fitting(self, measured: Measured) -> Any:
        """Say which of them have columns for all that they tell; None: all."""
        limits: list[tuple[Any, float, float]] = [(self.rows["about"], 0, len(self.abouts) - 1)]
        limits += zip(measured, (0, _LEAST, _LEAST), (LAST_US, _MOST, _MOST), strict=True)
        if all(low <= each.min() and each.max() <= high for each, low, high in limits):
            return None
        # what is not a number is within no limits
        return np.logical_and.reduce([(each >= low) & (each <= high) for each, low, high in limits])

    def columns(self, measured: Measured) -> list[Any]:
        """Give the columns of a kind that can be packed; a text that is the same in all rows stands alone."""
        used, rows = _used(self.rows["about"], len(self.abouts))
        told = [self.abouts[number] for number in used]
        return [
            *(_texts([about[place] for about in told], rows) for place in range(4)),
            *(pa.array(each.astype(np.int64)) for each in measured[1:]),
            pa.array(np.ascontiguousarray(self.rows["bytes"])),
        ]


def joined(kind: EventKind, abouts: Sequence[packing.About], parts: Sequence[tuple[float, int, bytearray]]) -> Records:
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
        pa.array(texts[:1], pa.string())  # says whether it is a text
        return texts[0]
    return numbered_texts(texts, rows)


def numbered_texts(texts: Sequence[str | None], rows: Any) -> Any:
    """Give a column of texts: for each row, which of them it has. A text may stand among them twice."""
    different = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if len(different) != len(texts):
        rows = np.array([different[text] for text in texts], np.int32)[rows]
    mask = rows == different[None] if None in different else None
    # the numbers go on, so that of what has none there may be one, too; it is never looked at
    return pa.DictionaryArray.from_arrays(
        pa.array(rows, mask=mask), pa.array(["" if text is None else text for text in different], pa.string())
    )
