"""What is to be generated: how many events, over which time, from which seed."""

from __future__ import annotations

import attrs
import numpy as np

from scale0_core.api import Scale0Error

DAY_US = 86_400_000_000
MINUTES = 1440
MINUTE_US = 60_000_000
LONGEST = 3660
MOST_BROKERS = 64
DEFAULT_START = "2026-01-05"
"""A Monday, so that weeks begin where one looks for them."""


class GeneratorError(Scale0Error):
    """Events cannot be generated as asked."""


@attrs.frozen
class Plan:
    """How many events to make, and of what time; the same plan gives the same events."""

    rows: int
    seed: int = 0
    days: int = 28
    start: str = DEFAULT_START
    brokers: int = 3
    late: float = 0.0
    duplicates: float = 0.0

    def __attrs_post_init__(self) -> None:
        for wrong, what in (
            (not 1 <= self.rows <= 10**12, f"{self.rows} rows: there must be from 1 to 10^12"),
            (not 0 <= self.seed < 2**63, f"seed {self.seed}: it must be from 0 to 2^63 - 1"),
            (not 1 <= self.days <= LONGEST, f"{self.days} days: there must be from 1 to {LONGEST}"),
            (not 1 <= self.brokers <= MOST_BROKERS, f"{self.brokers} brokers: there must be from 1 to {MOST_BROKERS}"),
            (not 0 <= self.late <= 0.9, f"a share of {self.late:g} late events: it must be from 0 to 0.9"),
            (not 0 <= self.duplicates <= 0.5, f"a share of {self.duplicates:g} duplicates: it must be from 0 to 0.5"),
        ):
            if wrong:
                raise refused(what)
        start_us(self.start)

    @property
    def start_us(self) -> int:
        """The first microsecond, since 1970 in UTC."""
        return start_us(self.start)

    @property
    def end_us(self) -> int:
        """The first microsecond that is no longer part of it."""
        return self.start_us + self.days * DAY_US

    @property
    def copies(self) -> int:
        """How many of the rows repeat another one."""
        return min(round(self.rows * self.duplicates), self.rows - 1)

    @property
    def originals(self) -> int:
        """How many events there are."""
        return self.rows - self.copies

    def chance(self, *where: int) -> np.random.Generator:
        """Give the random numbers of one place, the same whatever else was drawn before."""
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, *where])))


def refused(what: str) -> GeneratorError:
    """Make the error of an option that makes no sense."""
    return GeneratorError(what, "so the events cannot be made", "nothing was written", "choose another value")


def start_us(start: str) -> int:
    """Give the microsecond at which a day begins; the day is written like 2026-01-05."""
    try:
        day = np.datetime64(start, "D")
        if np.isnat(day) or str(day) != start or not np.datetime64("1970-01-02") <= day <= np.datetime64("2200-01-01"):
            raise ValueError(start)
    except ValueError:
        raise refused(f"{start!r} is not a day such as {DEFAULT_START}, from 1970-01-02 to 2200-01-01") from None
    return int(day.astype("datetime64[us]").astype(np.int64))


def parts_of(total: int, weights: np.ndarray) -> np.ndarray:
    """Part a whole number by weights, so that the parts add up to it."""
    sums = np.cumsum(weights, dtype=np.float64)
    edges = np.floor(sums / sums[-1] * total + 0.5).astype(np.int64)
    edges[-1] = total
    return np.diff(edges, prepend=0)
