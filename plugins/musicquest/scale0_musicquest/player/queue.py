"""The list of a player, without I/O: which track is on, which comes next; adverts that nobody skips."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from random import Random

import attrs

from scale0_musicquest.songs import Hit


class QueueError(ValueError):
    """The list cannot be changed so; the text says why."""


class State(str, Enum):
    """What a player does."""

    STOPPED = "stopped"
    PLAYING = "playing"
    PAUSED = "paused"


class Repeat(str, Enum):
    """What comes after the last track."""

    OFF = "off"
    ALL = "all"
    ONE = "one"


@attrs.frozen
class Track:
    """What can be played: a song that was found, or a file that is here, such as an advert."""

    name: str
    title: str = ""
    artist: str = ""
    duration: float = 0.0
    hit: Hit | None = None
    file: str = ""
    advert: bool = False

    @classmethod
    def of(cls, hit: Hit) -> Track:
        """Make a track of a song that was found."""
        song = hit.song
        return cls(song.name, song.title, song.artist, song.duration, hit)

    @property
    def label(self) -> str:
        """What people call it."""
        called = " - ".join(part for part in (self.artist, self.title) if part)
        return "advert" if self.advert else called or self.name


@attrs.frozen(eq=False)
class Entry:
    """A track in the list; the same track may be there twice."""

    track: Track


class PlayQueue:
    """The list: tracks in order, the current one, and what the player should do with it.

    :param advert_every: songs between two adverts; 0 for none.
    """

    def __init__(self, *, advert_every: int = 0, random: Random) -> None:
        if advert_every < 0:
            raise ValueError("adverts come every n songs, or with 0 never")
        self.state = State.STOPPED
        self.repeat = Repeat.OFF
        self._entries: list[Entry] = []
        self._at = 0
        """The number of the current entry; that of the entries when all were played."""
        self._heard: set[Entry] = set()
        self._every, self._random = advert_every, random
        self._songs_since_advert = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    @property
    def current(self) -> Entry | None:
        """The entry that is on, or would be."""
        return self._entries[self._at] if self._at < len(self._entries) else None

    @property
    def position(self) -> int:
        """The number of the current entry, from 1."""
        return self._at + 1

    @property
    def upcoming(self) -> Entry | None:
        """The entry that comes after the current one."""
        at = self._after_current()
        return None if at is None or at == self._at else self._entries[at]

    # --- changing it --------------------------------------------------------------------------------------------------

    def add(self, track: Track) -> bool:
        """Put a song at the end; tell whether an advert is due after it."""
        self._entries.append(Entry(track))
        self._songs_since_advert += 1
        return bool(self._every) and self._songs_since_advert >= self._every

    def add_advert(self, track: Track) -> None:
        """Put an advert at the end."""
        self._entries.append(Entry(attrs.evolve(track, advert=True)))
        self._songs_since_advert = 0

    def delete(self, number: int) -> Entry:
        """Take the entry of this number, from 1, out of the list; the next one is on when it was the current one."""
        entry = self._entry(number)
        if entry.track.advert:
            raise QueueError("an advert cannot be deleted")
        del self._entries[number - 1]
        self._heard.discard(entry)
        if number - 1 < self._at:
            self._at -= 1
        elif self.current is None:
            self.state = State.STOPPED
        return entry

    def shuffle(self) -> None:
        """Mix the songs that are to come; adverts stay where they are."""
        places = [at for at in range(self._at + 1, len(self._entries)) if not self._entries[at].track.advert]
        songs = [self._entries[at] for at in places]
        self._random.shuffle(songs)
        for at, entry in zip(places, songs, strict=True):
            self._entries[at] = entry

    def _entry(self, number: int) -> Entry:
        if not 1 <= number <= len(self._entries):
            raise QueueError(f"the list has no number {number}" if self._entries else "the list is empty")
        return self._entries[number - 1]

    # --- playing ------------------------------------------------------------------------------------------------------

    def play(self, number: int | None = None) -> None:
        """Play: go on after a pause, begin after a stop, or go to a number; adverts on the way are heard first."""
        if number is None:
            if self.current is None:
                self._at = 0
            if not self._entries:
                raise QueueError("the list is empty")
        else:
            self._entry(number)
            self._jump(number - 1)
        self.state = State.PLAYING

    def pause(self) -> None:
        """Hold still, or go on."""
        if self.state is State.STOPPED:
            raise QueueError("nothing is played")
        self.state = State.PLAYING if self.state is State.PAUSED else State.PAUSED

    def stop(self) -> None:
        """Stop; playing begins with the same track again."""
        self.state = State.STOPPED

    def next(self) -> None:
        """Go to the next track; after the last one it stops."""
        self._refuse_to_skip()
        self._go_on(self._after_current(by_hand=True))

    def prev(self) -> None:
        """Go back to the track before."""
        self._refuse_to_skip()
        if not self._entries:
            raise QueueError("the list is empty")
        self._at = max(self._at - 1, 0)

    def ended(self) -> None:
        """Note that the current track was played to its end, or cannot be."""
        if self.current is not None:
            self._heard.add(self.current)
        self._go_on(self._after_current())

    def _jump(self, to: int) -> None:
        if to == self._at:
            return
        self._refuse_to_skip()
        between = range(self._at + 1, to)
        unheard = (at for at in between if self._entries[at].track.advert and self._entries[at] not in self._heard)
        self._at = next(unheard, to)

    def _refuse_to_skip(self) -> None:
        entry = self.current
        if entry is not None and entry.track.advert and entry not in self._heard:
            raise QueueError("an advert cannot be skipped")

    def _after_current(self, *, by_hand: bool = False) -> int | None:
        """Find what comes next; None when that is the end."""
        if not self._entries:
            return None
        if self.repeat is Repeat.ONE and not by_hand and self.current is not None:
            return self._at
        if self._at + 1 < len(self._entries):
            return self._at + 1
        return 0 if self.repeat is Repeat.ALL else None

    def _go_on(self, at: int | None) -> None:
        if at is None:
            self._at, self.state = len(self._entries), State.STOPPED
        else:
            self._at = at
