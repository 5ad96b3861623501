"""What is asked for most: how popular songs are, and who holds them."""

from __future__ import annotations

import attrs

from scale0_musicquest.songs import Hit

HALF_LIFE = 3600.0
SHARE = 8
"""What part of all is forgotten at once when there is no room: to find the least wanted is to look at all."""
REBASE_AFTER = 500 * HALF_LIFE
"""Seconds after which the counts are written anew: what counts double each hour would outgrow a float."""


class Popularity:
    """How often songs are wanted; what is an hour old counts half. The least wanted are forgotten."""

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._scores: dict[str, float] = {}
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, name: str, now: float) -> None:
        """Note that a song was wanted."""
        if now - self._since > REBASE_AFTER:
            self._rebase(now)
        if name not in self._scores and len(self._scores) >= self._size:
            for worst in sorted(self._scores, key=self._scores.__getitem__)[: max(1, self._size // SHARE)]:
                del self._scores[worst]
        # instead of all counts getting smaller, those that are added get larger
        self._scores[name] = self._scores.get(name, 0.0) + self._weight(now)

    def score(self, name: str) -> float:
        """Give what songs are compared by."""
        return self._scores.get(name, 0.0)

    def top(self, most: int, now: float) -> list[tuple[str, float]]:
        """Give the most wanted songs with their counts as of now, the first first."""
        best = sorted(self._scores.items(), key=lambda entry: entry[1], reverse=True)[:most]
        return [(name, score / self._weight(now)) for name, score in best]

    def _weight(self, now: float) -> float:
        return float(2.0 ** ((now - self._since) / HALF_LIFE))

    def _rebase(self, now: float) -> None:
        weight = float(2.0 ** -min(1000.0, (now - self._since) / HALF_LIFE))
        self._scores = {name: score * weight for name, score in self._scores.items() if score * weight > 1e-9}
        self._since = now


@attrs.frozen
class Entry:
    """What a search for a name has found, and until when that counts."""

    hits: tuple[Hit, ...]
    expires: float
    found: bool = True


class Cache:
    """Holders of songs by name. Of fixed size: the least popular go first."""

    def __init__(self, size: int, seconds: float, seconds_not_found: float, popularity: Popularity) -> None:
        self._size = size
        self._seconds = seconds
        self._seconds_not_found = seconds_not_found
        self._popularity = popularity
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str, now: float) -> Entry | None:
        """Give what is known of a name, if that is still good."""
        entry = self._entries.get(name)
        if entry is not None and entry.expires <= now:
            del self._entries[name]
            return None
        return entry

    def put(self, name: str, hits: tuple[Hit, ...], now: float, *, found: bool = True) -> None:
        """Remember what was found; what is on the own disk need not be among the hits."""
        seconds = self._seconds if found else self._seconds_not_found
        if not self._size or not seconds:
            return
        if name not in self._entries and len(self._entries) >= self._size:
            self._make_room(now)
        self._entries[name] = Entry(hits, now + seconds, found)

    def drop(self, name: str) -> bool:
        """Forget a name; tells whether it was known."""
        return self._entries.pop(name, None) is not None

    def _make_room(self, now: float) -> None:
        self._entries = {name: entry for name, entry in self._entries.items() if entry.expires > now}
        excess = len(self._entries) - self._size + max(1, self._size // SHARE)
        if excess > 0:
            for name in sorted(self._entries, key=self._worth)[:excess]:
                del self._entries[name]

    def _worth(self, name: str) -> tuple[bool, float]:
        return self._entries[name].found, self._popularity.score(name)
