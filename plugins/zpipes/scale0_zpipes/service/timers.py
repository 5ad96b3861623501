"""Timers that let go of what they hold as soon as they are cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from scale0_zpipes.service.pipe import Pipe

NEVER = float("inf")
FEW = 1024

E = TypeVar("E")


class Timers(Generic[E]):
    """A heap of times, and what each is for.

    The heap has nothing but times and numbers, so what is cancelled is free at once, though its entry stays for a
    while: a write of many megabytes must not live until its time would have been over.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, tuple[Pipe, E]] = {}
        self._numbers: dict[E, int] = {}
        self._count = count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due(self) -> float:
        """When the next one ends; infinity when there is none."""
        heap = self._heap
        while heap and heap[0][1] not in self._waiting:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def set(self, when: float, pipe: Pipe, waiting: E) -> None:
        """Let something end at a time."""
        number = self._numbers[waiting] = next(self._count)
        self._waiting[number] = (pipe, waiting)
        heappush(self._heap, (when, number))
        if len(self._heap) > 2 * len(self._waiting) + FEW:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapify(self._heap)

    def cancel(self, waiting: E) -> None:
        """Forget a timer, if there is one."""
        number = self._numbers.pop(waiting, None)
        if number is not None:
            del self._waiting[number]

    def ended(self, now: float) -> Iterator[tuple[Pipe, E]]:
        """Take out those whose time is over."""
        while self.due <= now:
            pipe, waiting = self._waiting[heappop(self._heap)[1]]
            self.cancel(waiting)
            yield pipe, waiting
