"""What ends when its time is over, unless it ended before."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from scale0_zpipes.pipe import Pipe

NEVER = float("inf")
FEW = 1024


class Ending(Protocol):
    """Something that may end before its time."""

    over: bool


E = TypeVar("E", bound=Ending)


class Timers(Generic[E]):
    """A heap of those that wait; what is over is thrown out when it has become too much."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Pipe, E]] = []
        self._numbers = count()
        self._most = FEW

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def due(self) -> float:
        """When the next one ends; infinity when there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def set(self, when: float, pipe: Pipe, waiting: E) -> None:
        """Let something end at a time."""
        heappush(self._heap, (when, next(self._numbers), pipe, waiting))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if not entry[3].over]
            heapify(self._heap)
            self._most = max(FEW, 2 * len(self._heap))

    def ended(self, now: float) -> Iterator[tuple[Pipe, E]]:
        """Take out those whose time is over, and that are not over already."""
        while self._heap and self._heap[0][0] <= now:
            _, _, pipe, waiting = heappop(self._heap)
            if not waiting.over:
                yield pipe, waiting
