"""Whose chunk is next, of several writers of a pipe.

Writers that are open at the same time have their turns, so that one that is far ahead does not delay another. What a
writer left behind when it closed comes before all of a writer that began later: files written one after the other come
out one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

NEVER = float("inf")


class Turn:
    """What a writer has waiting: it began at the tick ``since``, and is open until the tick ``until``."""

    __slots__ = ("gone", "heard", "items", "key", "peer", "since", "until")

    def __init__(self, key: bytes, peer: bytes, since: int, items: deque[Any], heard: float) -> None:
        self.key = key
        self.peer = peer
        """The connection on which it wrote last."""
        self.since = since
        self.until: float = NEVER
        self.items = items
        self.heard = heard
        self.gone = NEVER
        """When it was found to be gone without having closed; what had come from it by then may still follow."""


class Turns:
    """The writers of a pipe that have chunks waiting."""

    def __init__(self) -> None:
        self._open: dict[bytes, Turn] = {}
        """By writer; those that closed are not among them, since one of the same name is another writer."""
        self._ready: deque[Turn] = deque()
        """Those that have their turns now."""
        self._later: deque[Turn] = deque()
        """Those that began after another one had closed that still has chunks waiting; by when they began."""
        self._left: deque[Turn] = deque()
        """Those that closed, in that order."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def __iter__(self) -> Iterator[Turn]:
        """Iterate over writers that have not closed."""
        return iter(self._open.values())

    def get(self, key: bytes) -> Turn | None:
        """Find the turn of a writer that has not closed."""
        return self._open.get(key)

    def add(self, turn: Turn) -> None:
        """Let a writer take part, after those that have their turns already."""
        self._open[turn.key] = turn
        if not self._left or turn.since < self._left[0].until:
            self._ready.append(turn)
            return
        place = len(self._later)
        while place and self._later[place - 1].since > turn.since:
            place -= 1
        self._later.insert(place, turn)

    def close(self, turn: Turn, tick: int) -> None:
        """Note that a writer has closed: whoever begins later comes later."""
        if self._open.get(turn.key) is turn:
            del self._open[turn.key]
        if turn.until == NEVER:
            turn.until = tick
            self._left.append(turn)

    def lose(self, turn: Turn, tick: int, now: float) -> None:
        """Note that a writer is gone; its name still is its own, since what came before may follow."""
        if turn.until == NEVER:
            turn.gone = now
            turn.until = tick
            self._left.append(turn)

    def revive(self, turn: Turn) -> None:
        """Note that a writer that was taken for gone has written again."""
        turn.gone = turn.until = NEVER
        self._left.remove(turn)
        self._let_in()

    def pop(self) -> tuple[Any, Turn | None]:
        """Take the next chunk, each writer in turn; with a writer that has nothing waiting now, if it is open."""
        turn = self._ready[0]
        item = turn.items.popleft()
        if turn.items:
            self._ready.rotate(-1)
            return item, None
        self._ready.popleft()
        if self._open.get(turn.key) is turn:
            del self._open[turn.key]
        self._let_in()
        return item, turn if turn.until == NEVER else None

    def _let_in(self) -> None:
        """Let those have their turns before whom all is read."""
        while self._left and not self._left[0].items:
            self._left.popleft()
        ends = self._left[0].until if self._left else NEVER
        while self._later and self._later[0].since < ends:
            self._ready.append(self._later.popleft())

    @property
    def only(self) -> Turn | None:
        """The one writer that is left, if it has not closed."""
        if len(self._ready) != 1 or self._later or self._ready[0].until != NEVER:
            return None
        return self._ready[0]
