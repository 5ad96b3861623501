"""How long things took, as percentiles, in a few hundred numbers."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = 8
"""Each power of two of microseconds is cut into so many steps: a percentile is off by at most 12 %."""


class Histogram:
    """Counts durations from a microsecond to hours. Adding one costs a few operations on small numbers."""

    __slots__ = ("_counts", "count", "longest")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        micros = int(seconds * 1e6)
        bits = micros.bit_length()
        slot = micros if bits <= 4 else (bits << 3) + ((micros >> (bits - 4)) & 7)
        counts = self._counts
        counts[slot] = counts.get(slot, 0) + 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def percentiles(self, wanted: Sequence[float] = (0.5, 0.95, 0.99)) -> list[float]:
        """Give the durations, in seconds, below which these parts of all lie."""
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
