"""How long things took, as percentiles, in a few hundred numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

STEPS = 8
"""Each power of two of microseconds is cut into so many steps: a percentile is off by at most 12 %."""

MOST_FRESH = 1024
"""Durations that are put down before they are sorted in."""


class Histogram:
    """Counts durations from a microsecond to hours. Adding one costs a few operations on small numbers."""

    __slots__ = ("_counts", "_fresh", "_longest", "_sorted")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._fresh: list[float] = []
        self._sorted = 0
        self._longest = 0.0

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return self._sorted + len(self._fresh)

    @property
    def longest(self) -> float:
        """The longest of them."""
        return max(self._longest, *self._fresh) if self._fresh else self._longest

    def add(self, seconds: float) -> None:
        """Count one duration. It is only put down: many are sorted in at once, which costs a third."""
        self._fresh.append(seconds)
        if len(self._fresh) >= MOST_FRESH:
            self._sort_in()

    def _sort_in(self) -> None:
        counts = self._counts
        for seconds, times in Counter(self._fresh).items():
            micros = int(seconds * 1e6)
            bits = micros.bit_length()
            slot = micros if bits <= 4 else (bits << 3) + ((micros >> (bits - 4)) & 7)
            counts[slot] = counts.get(slot, 0) + times
        self._longest = self.longest
        self._sorted += len(self._fresh)
        self._fresh.clear()

    def percentiles(self, wanted: Sequence[float] = (0.5, 0.95, 0.99)) -> list[float]:
        """Give the durations, in seconds, below which these parts of all lie."""
        if self._fresh:
            self._sort_in()
        found: list[float] = []
        slots = sorted(self._counts)
        for part in wanted:
            need, seen, value = part * self.count, 0, 0.0
            for slot in slots:
                seen += self._counts[slot]
                value = _upper(slot)
                if seen >= need:
                    break
            found.append(min(value, self.longest))
        return found


def _upper(slot: int) -> float:
    """Give the largest duration that a slot stands for."""
    if slot < 16:
        return (slot + 1) / 1e6
    bits, step = slot >> 3, slot & 7
    return ((8 + step + 1) << (bits - 4)) / 1e6
