"""One song on its way here, in chunks from one or several holders, without I/O.

The caller sends every ``Request`` it is given, and hands in what comes: ``wanted`` says whether the bytes are to be
written, then ``data`` notes them, wanted or not. Chunks are asked for in order, so that a song can be played while it
comes. Each holder has at most ``credit`` requests open and gets another with each answer; so a faster one gets more.

A holder that says nothing for ``patience`` seconds has its chunks asked of others as well; after twice that it is lost.
Nothing is asked for further ahead of ``position`` than the window, so that a caller may keep in memory what comes out
of order. When all chunks that may be asked for are under way, a holder without work asks for those that take far longer
than its own did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scale0_musicquest.songs import Song

CHUNK = 250_000
MAX_CHUNK = 1024 * 1024
CREDIT = 10
PATIENCE = 5.0
WINDOW = 64
"""Chunks that may be under way or out of order."""
SLOW = 3.0
"""How many times longer than its own a chunk of another takes before a holder without work asks for it as well."""
SHORTEST_SLOW = 0.2
STRIKES = 2


class Request(NamedTuple):
    """Bytes to be asked of a holder."""

    holder: str
    offset: int
    size: int


class _Holder:
    """What is open at one holder."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.asked: dict[int, float] = {}
        """The chunks it was asked for, each with the time."""
        self.heard = now
        """When it last said something, or was first asked after a rest."""
        self.strikes = 0
        self.pace = 0.0
        """Seconds a chunk takes, smoothed; 0 as long as none came."""


class Download:
    """The chunks of one song: which are there, which were asked of whom."""

    def __init__(
        self, song: Song, holders: Iterable[str], *, have: int = 0, chunk: int = CHUNK, credit: int = CREDIT,
        patience: float = PATIENCE, window: int = WINDOW,
    ) -> None:  # fmt: skip
        if not 0 <= have <= song.size:
            raise ValueError(f"{have} bytes of a song of {song.size} cannot be there")
        if not 1 <= chunk <= MAX_CHUNK or min(credit, window) < 1 or patience <= 0:
            raise ValueError(f"a chunk has 1 to {MAX_CHUNK} bytes; credit, window and patience are positive")
        self.song = song
        self.chunk, self.credit, self.patience = chunk, credit, patience
        self._ahead = window * chunk
        self.position = have
        """The first byte that is not there; all before it are."""
        self.received = have
        """Bytes that are there, with those from before."""
        self._holders = {name: _Holder(name, 0.0) for name in holders}
        self._next = have
        """The first byte that was never asked for."""
        self._askers: dict[int, int] = {}
        """Every chunk that was asked for and is not there, and of how many it is asked now."""
        self._again: set[int] = set()
        """Chunks to be asked of somebody else."""
        self._there: set[int] = set()
        """Chunks that came before the one at ``position``."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether every byte is there."""
        return self.received == self.song.size

    @property
    def active(self) -> tuple[str, ...]:
        """The holders it downloads from."""
        return tuple(self._holders)

    @property
    def needs_holders(self) -> bool:
        """Whether nobody is left to ask."""
        return not self.done and not self._holders

    def wanted(self, holder: str, offset: int, size: int) -> bool:
        """Say whether these bytes are to be written: asked of this holder, complete, and not there yet."""
        known = self._holders.get(holder)
        return known is not None and offset in known.asked and offset in self._askers and size == self._size(offset)

    @property
    def _limit(self) -> int:
        return min(self.song.size, self.position + self._ahead)

    def _size(self, offset: int) -> int:
        return min(self.chunk, self.song.size - offset)

    # --- what happens -------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Request]:
        """Begin: the first requests."""
        return self._fill(now)

    def add(self, holder: str, now: float) -> list[Request]:
        """Download from this holder as well; one that was lost gets another chance."""
        self._holders.setdefault(holder, _Holder(holder, now))
        return self._fill(now)

    def data(self, holder: str, offset: int, data_size: int, now: float) -> list[Request]:
        """Note that a holder sent so many bytes; what was not asked of it changes nothing."""
        known = self._holders.get(holder)
        if known is None or offset not in known.asked:
            return []
        if data_size != self._size(offset):
            return self.lost(holder, now)  # it holds something else under this name
        took = now - known.asked.pop(offset)
        known.pace = 0.8 * known.pace + 0.2 * took if known.pace else took
        known.heard, known.strikes = now, 0
        if self._askers.pop(offset, None) is not None:
            self._arrived(offset)
        return self._fill(now)

    def _arrived(self, offset: int) -> None:
        self._again.discard(offset)
        self.received += self._size(offset)
        self._there.add(offset)
        while self.position in self._there:
            self._there.remove(self.position)
            self.position += self._size(self.position)

    def lost(self, holder: str, now: float) -> list[Request]:
        """Note that a holder does not have it, cannot be reached or is silent: its chunks go to others."""
        if holder not in self._holders:
            return []
        self._forget(holder)
        return self._fill(now)

    def _forget(self, holder: str) -> None:
        for offset in self._holders.pop(holder).asked:
            if offset in self._askers:
                self._askers[offset] -= 1
                if not self._askers[offset]:
                    self._again.add(offset)

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when it wants to be called."""
        if self.done:
            return None
        due = [known.heard + self.patience for known in self._holders.values() if known.asked]
        due += [moment for known in self._idle() if (moment := self._slowest(known)[0]) is not None]
        return min(due, default=None)

    def on_deadline(self, now: float) -> list[Request]:
        """Do what is due: have chunks of silent and slow holders asked of others."""
        for known in list(self._holders.values()):
            if not known.asked or now < known.heard + self.patience:
                continue
            known.heard = now
            known.strikes += 1
            if known.strikes >= STRIKES:
                self._forget(known.name)
            else:
                self._again |= {offset for offset in known.asked if self._askers.get(offset) == 1}
        return self._fill(now)

    # --- who is asked for what ----------------------------------------------------------------------------------------

    def _fill(self, now: float) -> list[Request]:
        """Use the credit of all holders, one chunk each in turn, so that what is asked first is spread."""
        requests: list[Request] = []
        free = [known for known in self._holders.values() if len(known.asked) < self.credit]
        while free and not self.done:
            still_free = []
            for known in free:
                offset = self._chunk_for(known, now)
                if offset is None:
                    continue
                requests.append(self._ask(known, offset, now))
                if len(known.asked) < self.credit:
                    still_free.append(known)
            free = still_free
        return requests

    def _ask(self, known: _Holder, offset: int, now: float) -> Request:
        if not known.asked:
            known.heard = now
        known.asked[offset] = now
        self._askers[offset] = self._askers.get(offset, 0) + 1
        return Request(known.name, offset, self._size(offset))

    def _chunk_for(self, known: _Holder, now: float) -> int | None:
        if elsewhere := self._again - known.asked.keys():
            offset = min(elsewhere)
            self._again.remove(offset)
            return offset
        if self._next < self._limit:
            offset = self._next
            self._next += self._size(offset)
            return offset
        due, slowest = self._slowest(known)
        return slowest if due is not None and due <= now else None

    def _idle(self) -> list[_Holder]:
        """Find the holders without work while all that may be asked for is under way."""
        if self._next < self._limit:
            return []
        return [known for known in self._holders.values() if len(known.asked) < self.credit]

    def _slowest(self, idle: _Holder) -> tuple[float | None, int]:
        """Find the chunk that takes longest elsewhere, and when an idle holder should be asked for it."""
        if not idle.pace:
            return None, 0
        asked = [
            (since, offset)
            for known in self._holders.values()
            for offset, since in known.asked.items()
            if known is not idle and self._askers.get(offset) == 1
        ]
        if not asked:
            return None, 0
        since, offset = min(asked)
        return since + max(SHORTEST_SLOW, SLOW * idle.pace), offset
