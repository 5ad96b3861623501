"""What the broker did, and what it dropped: the events that telemetry makes by itself."""
# does I/O: reads the clock of the process and its size

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from scale0_core.api import Event, RunningBroker, events

_STATM = Path("/proc/self/statm")


class Gauge:
    """Gives events on load and drops, each on what happened since the last one."""

    def __init__(self, broker: RunningBroker, group: str = "") -> None:
        self._group = group
        self._counts = broker.counts
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._received = 0
        self._cpu, self._at = time.process_time(), time.monotonic()
        self._busy = self._busy_told = 0.0
        self._period = 0
        self._longest = (0, 0.0)
        """The length of the longest turn, and in which period that was: the one is written by the loop's thread alone,
        the other by the one that tells of it."""

    def turn(self, seconds: float) -> None:
        """Take note of a turn of the loop; on the loop's thread."""
        self._busy += seconds
        period, longest = self._longest
        if seconds > longest or period != self._period:
            self._longest = (self._period, seconds)

    def events(self, now: float) -> list[Event]:
        """Tell of load, and of messages that the core dropped or could not deliver."""
        return [self._load(now), *self._drops(now)]

    def _load(self, now: float) -> Event:
        cpu, at, busy, (period, longest) = time.process_time(), time.monotonic(), self._busy, self._longest
        longest = longest if period == self._period else 0.0
        self._period += 1
        received = sum(counts.received for counts in self._counts.values())
        share = (cpu - self._cpu) / max(at - self._at, 1e-6)
        told = (
            events.LOAD, now, self._group, share, received - self._received,
            round((busy - self._busy_told) * 1e6), round(longest * 1e6), memory_bytes(),
        )  # fmt: skip
        self._cpu, self._at, self._busy_told, self._received = cpu, at, busy, received
        return told

    def _drops(self, now: float) -> list[Event]:
        before, self._dropped = self._dropped, Counter()
        for service, counts in self._counts.items():
            # copies: the loop may add a reason while they are looked at
            for reason, count in dict(counts.dropped).items():
                self._dropped[service, reason] += count
            for (_, reason), count in dict(counts.undelivered).items():
                self._dropped[service, reason] += count
        return [(events.DROP, now, *key, count) for key, count in (self._dropped - before).items()]


def lost_events(service: str, lost: Mapping[str, int], now: float) -> list[Event]:
    """Tell of events that telemetry itself has lost."""
    return [(events.DROP, now, service, reason, count) for reason, count in lost.items()]


def memory_bytes() -> int:
    """Give the memory that this process has in use."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # no Linux: the most it ever had is the next best
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
