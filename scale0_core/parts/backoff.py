"""Exponential backoff with jitter."""

from __future__ import annotations

from random import Random

MOST_DOUBLINGS = 30
"""More doublings than any pause needs; keeps the number small however often something fails."""


def backoff_seconds(failures: int, first: float, longest: float, random: Random | None = None) -> float:
    """Return the pause in seconds after so many earlier failures: it doubles with each, up to ``longest``.

    With ``random`` it is between half of that and all of it, so that many clients do not come back in step. Without it
    there is no jitter: for a service that retries alone, such as a write to its own disk.
    """
    full: float = min(first * 2 ** min(failures, MOST_DOUBLINGS), longest)
    return full if random is None else full * random.uniform(0.5, 1.0)


class Backoff:
    """Counts the failures of one thing that is retried, and returns the pause before each retry."""

    __slots__ = ("_random", "failures", "first", "longest")

    def __init__(self, first: float, longest: float, random: Random | None = None) -> None:
        self.first, self.longest, self._random = first, longest, random
        self.failures = 0
        """Failures since the last reset. May be set: lower where part of the way succeeded, higher to skip the short
        pauses."""

    def next(self) -> float:
        """Count a failure and return the seconds to wait before the retry."""
        seconds = backoff_seconds(self.failures, self.first, self.longest, self._random)
        self.failures += 1
        return seconds

    def reset(self) -> None:
        """Begin again with the shortest pause, after a success."""
        self.failures = 0
