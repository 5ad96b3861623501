"""What is known of the writers of pipes that were forgotten: a pipe that comes back knows them again. No I/O."""

from __future__ import annotations

from scale0_zpipes.service.pipe import Pipe

MOST_NUMBERS = 100_000
"""Writers that are remembered, of all forgotten pipes together."""

Numbers = dict[bytes, int]


class Forgotten:
    """The last numbers of writers, by the names of their pipes; what was forgotten longest ago comes first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[bytes, tuple[float, Numbers]] = {}
        """By name: until when, and the numbers."""
        self._count = 0

    def remember(self, pipe: Pipe, now: float) -> None:
        """Keep the numbers of a pipe that is being forgotten, for a while: a writer without an answer asks again."""
        self.recall(pipe.name, now)
        if pipe.producers:
            self._kept[pipe.name] = (now + self._seconds, dict(pipe.producers))
            self._count += len(pipe.producers)
        while self._count > MOST_NUMBERS:
            self._take(next(iter(self._kept)))
        self.expire(now)

    def recall(self, name: bytes, now: float) -> Numbers | None:
        """Give the numbers of a pipe that is made anew, or None if nothing is known; from now on it has them itself."""
        self.expire(now)
        return self._take(name) if name in self._kept else None

    def expire(self, now: float) -> None:
        """Drop what was kept long enough."""
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            self._take(next(iter(self._kept)))

    def _take(self, name: bytes) -> Numbers:
        _, numbers = self._kept.pop(name)
        self._count -= len(numbers)
        return numbers
