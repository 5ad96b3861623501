"""Many deadlines, cheap to set and to take back."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LEAST_CLEARED = 64
"""So many steps are kept in any case, empty or not."""


class Deadlines(Generic[K, V]):
    """Keeps items by the moment they are due, in steps of ``grain`` seconds; with 0 to the very moment.

    Setting and removing cost two operations on a dict each, however many there are: a heap of single items would cost a
    walk, and removed items would stay in it until they are due. Nothing is due early; it may be late by one step. What
    is removed is let go immediately, and steps that have become empty are cleared away before there are too many.
    """

    def __init__(self, grain: float = 0.05) -> None:
        self._grain = grain
        self._slots: dict[float, dict[K, V]] = {}
        self._slot_of: dict[K, float] = {}
        self._order: list[float] = []
        self._clear_at = LEAST_CLEARED

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: K) -> bool:
        return key in self._slot_of

    def set(self, key: K, when: float, item: V) -> None:
        """Have an item come due at ``when``; an earlier setting of the key no longer counts."""
        slot = (int(when / self._grain) + 1) * self._grain if self._grain else when
        before = self._slot_of.get(key)
        if before is not None:
            if before == slot:
                self._slots[slot][key] = item
                return
            del self._slots[before][key]
        entries = self._slots.get(slot)
        if entries is None:
            if len(self._order) >= self._clear_at:
                self._clear_away()
            entries = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        entries[key] = item
        self._slot_of[key] = slot

    def remove(self, key: K) -> None:
        """Forget an item, if it is there."""
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            del self._slots[slot][key]

    def _clear_away(self) -> None:
        """Forget the steps that have become empty: with deadlines far away they would stay until these are over."""
        self._slots = {slot: entries for slot, entries in self._slots.items() if entries}
        self._order = sorted(self._slots)
        self._clear_at = max(LEAST_CLEARED, 2 * len(self._order))

    @property
    def due(self) -> float:
        """When the next item is due; infinity when there is none."""
        order, slots = self._order, self._slots
        while order:
            if slots[order[0]]:
                return order[0]
            del slots[heapq.heappop(order)]
        return inf

    def next(self) -> float | None:
        """Return when the next item is due, or None."""
        due = self.due
        return None if due == inf else due

    def take(self, now: float) -> list[V]:
        """Take out all that is due, in order of time."""
        due: list[V] = []
        while self.due <= now and self._order:  # for `inf`, too
            entries = self._slots.pop(heapq.heappop(self._order))
            for key in entries:
                del self._slot_of[key]
            due.extend(entries.values())
        return due

    def expire(self, now: float) -> Iterator[V]:
        """Take out what is due one by one: what is removed or set anew meanwhile does not come."""
        while self.due <= now and self._order:  # for `inf`, too
            entries = self._slots[self._order[0]]
            key = next(iter(entries))
            del self._slot_of[key]
            yield entries.pop(key)
