"""The broker's clock: monotonic seconds in which its own stalls do not count."""

from __future__ import annotations

import time
from collections.abc import Callable

STALL = 1.0
"""Seconds of lateness from which on a wake-up counts as a stall."""


class SteadyClock:
    """Gives ``now`` to services.

    When the whole process stood still (stopped, swapped out, a suspended machine), the time lost is taken out, so that
    nobody is declared dead because the broker slept: every deadline moves by the lateness.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = 0.0
        self._last = monotonic()
        self.stalled = 0.0

    @property
    def is_real(self) -> bool:
        """Whether it follows the machine's own clock."""
        return self._monotonic is time.monotonic

    def now(self) -> float:
        """Read the clock."""
        return self._monotonic() - self._offset

    def woke(self, planned: float | None) -> float:
        """Read the clock after a sleep that was to last at most ``planned`` seconds; None if it had no limit."""
        raw = self._monotonic()
        late = 0.0 if planned is None else raw - self._last - planned
        self._last = raw
        self.stalled = late if late > STALL else 0.0
        self._offset += self.stalled
        return raw - self._offset
