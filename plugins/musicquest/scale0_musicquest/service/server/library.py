"""The songs of one server, in memory: by name, by parts of what their tags say, and what may have been meant.

What a search costs depends on what it finds, not on how many songs there are. It is bounded: of a search that fits
very many songs, a sample is looked at. Titles that begin as the search does come from an index of their own, so that
the best are found whatever the sample has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from sys import intern

import attrs

from scale0_musicquest.service.server.ordered import Ordered
from scale0_musicquest.service.server.vocabulary import MOST_WORDS, Vocabulary
from scale0_musicquest.service.server.words import words_of
from scale0_musicquest.songs import UNTOLD_SHA256, Query, Song

MOST_ASKED = 32
"""Words of a search that count; a song with so many of them is the right one."""
MOST_SOUGHT = 8
"""Words of a search, the longest, by which songs are looked up; the others are held against those."""
MOST_SONGS = 20_000
"""Songs that are taken up for a word that very many have."""
MOST_CHECKED = 2_000
"""Songs that are held against a search one by one."""
FEW = 64
"""So many songs are sooner held against a search than narrowed down."""
LEAST_TITLES = 200
"""Titles that begin as the search does, and are looked at even when it asks for fewer songs."""
MOST_MEANT = 4
"""Words of a search for which words that are nearly the same are looked for."""


@attrs.frozen(eq=False)
class _Entry:
    """A song, and its fields as words with blanks between."""

    song: Song
    title: str
    artist: str
    album: str

    @classmethod
    def of(cls, song: Song) -> _Entry:
        # many songs have the artist and the album in common
        artist, album = intern(" ".join(words_of(song.artist))), intern(" ".join(words_of(song.album)))
        return cls(song, _title_of(song), artist, album)

    def words(self) -> set[str]:
        return {*self.title.split(" "), *self.artist.split(" "), *self.album.split(" ")} - {""}

    def fields(self) -> Iterator[tuple[str, str]]:
        """Give each field as it is shown, and its words."""
        yield self.song.title or self.song.name, self.title
        yield self.song.artist, self.artist
        yield self.song.album, self.album

    @property
    def key(self) -> str:
        """Its place among the titles."""
        return f"{self.title}\0{self.song.name}"


def _title_of(song: Song) -> str:
    """Return the words of the title; without a title, of the name."""
    return " ".join(words_of(song.title) or words_of(song.name))


class _Wish:
    """A search in words: those that may be anywhere, and those of each field."""

    def __init__(self, query: Query) -> None:
        self.name = query.text
        text, title = words_of(query.text), words_of(query.title)
        artist, album = words_of(query.artist), words_of(query.album)
        self.lead = " ".join(title or text)
        """How the titles begin that fit best."""
        self.text, self.title = _distinct(text), _distinct(title)
        self.artist, self.album = _distinct(artist), _distinct(album)
        self.empty = not (text or title or artist or album)
        self.only_text = not (query.title or query.artist or query.album)

    def sought(self) -> list[str]:
        words = _distinct([*self.text, *self.title, *self.artist, *self.album])
        return sorted(words, key=len, reverse=True)[:MOST_SOUGHT]

    def fits(self, entry: _Entry) -> bool:
        title, artist, album = entry.title, entry.artist, entry.album
        for word in self.text:
            if word not in title and word not in artist and word not in album:
                return False
        return (
            all(word in title for word in self.title)
            and all(word in artist for word in self.artist)
            and all(word in album for word in self.album)
        )


def order_of(query: Query) -> Callable[[Song], tuple[object, ...]]:
    """Return a sort key for what a query found anywhere: the order of ``Library.find``, and then by digest.

    What only original servers have comes last. The order depends on the songs alone, not on who answered first.
    """
    wish = None if query.is_exact else _Wish(query)

    def key(song: Song) -> tuple[object, ...]:
        untold = song.sha256 == UNTOLD_SHA256
        if wish is None:
            return untold, song.name, song.sha256
        title = _title_of(song)
        named = wish.only_text and song.name == wish.name
        return untold, not named, not title.startswith(wish.lead), title, song.name, song.sha256

    return key


class Library:
    """Songs by name, and an index of their words."""

    def __init__(self, songs: Iterable[Song] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        self._names = Ordered()
        self._titles = Ordered()
        self._vocabulary = Vocabulary()
        for song in songs:
            self.add(song)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Song]:
        """Give all songs in order of their names; the library must not change meanwhile."""
        return (self._entries[name].song for name in self._names)

    @property
    def steps(self) -> int:
        """Titles, words and songs looked at by all searches so far."""
        return self._vocabulary.steps

    def add(self, song: Song) -> None:
        """Take in a song, in place of one of the same name."""
        entry = _Entry.of(song)
        before = self._entries.get(song.name)
        if before is not None and before.words() == entry.words() and before.title == entry.title:
            self._entries[song.name] = entry
            return
        if before is not None:
            self.remove(song.name)
        self._entries[song.name] = entry
        self._names.add(song.name)
        self._titles.add(entry.key)
        for word in entry.words():
            self._vocabulary.add(word, song.name)

    def remove(self, name: str) -> Song | None:
        """Take out a song, if it is there."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self._names.remove(name)
        self._titles.remove(entry.key)
        for word in entry.words():
            self._vocabulary.remove(word, name)
        return entry.song

    def get(self, name: str) -> Song | None:
        """Give the song of a name."""
        entry = self._entries.get(name)
        return None if entry is None else entry.song

    def page(self, offset: int, limit: int) -> list[Song]:
        """Give ``limit`` songs from the ``offset``-th on, in order of their names."""
        return [self._entries[name].song for name in self._names.page(offset, limit)]

    def find(self, query: Query) -> list[Song]:
        """Give the songs that a query asks for, best first.

        By name it is the one song. Otherwise each word must be part of a word of the song: those of ``text`` in any
        field, the others in their own; without a title, the name stands for it. First come titles that are what was
        asked for, then those that begin so, then the rest, each in order of title and name.
        """
        if query.is_exact:
            entry = self._entries.get(query.name)
            return [] if entry is None else [entry.song]
        wish = _Wish(query)
        found: dict[str, Song] = {}
        if wish.only_text and query.text in self._entries:
            found[query.text] = self._entries[query.text].song
        if not wish.empty:
            self._find_titles(wish, query.limit, found)
            if len(found) < query.limit:
                self._find_words(wish, query.limit, found)
        return list(islice(found.values(), query.limit))

    def _find_titles(self, wish: _Wish, limit: int, found: dict[str, Song]) -> None:
        """Add songs whose title begins as was asked; they stand side by side, the best first."""
        if not wish.lead:
            return
        for key in islice(self._titles.after(wish.lead), max(limit, LEAST_TITLES)):
            if not key.startswith(wish.lead) or len(found) >= limit:
                return
            self._vocabulary.steps += 1
            name = key.rpartition("\0")[2]
            entry = self._entries[name]
            if wish.fits(entry):
                found[name] = entry.song

    def _find_words(self, wish: _Wish, limit: int, found: dict[str, Song]) -> None:
        """Add the songs that have the words, wherever they stand."""
        fitting = []
        for name in islice(self._candidates(wish.sought()), MOST_CHECKED):
            self._vocabulary.steps += 1
            entry = self._entries[name]
            if name not in found and wish.fits(entry):
                fitting.append((not entry.title.startswith(wish.lead), entry.title, name))
        for _, _, name in sorted(fitting)[: limit - len(found)]:
            found[name] = self._entries[name].song

    def _candidates(self, sought: list[str]) -> Iterable[str]:
        """Give the songs that have all words, or more: as few as can be told without much work."""
        groups: list[tuple[bool, int, list[str]]] = []
        for word in sought:
            words = self._vocabulary.containing(word)
            count = sum(len(self._vocabulary.songs(each)) for each in words)
            complete = len(words) < MOST_WORDS and count <= MOST_SONGS
            groups.append((not complete, count, words))
            if complete and count <= FEW:
                return self._songs_of(words)
        groups.sort()
        complete_ones = [words for incomplete, _, words in groups if not incomplete]
        if len(complete_ones) < 2:  # nothing to narrow it down by
            songs = chain.from_iterable(map(self._vocabulary.songs, groups[0][2]))
            return dict.fromkeys(islice(songs, MOST_CHECKED))
        candidates = self._songs_of(complete_ones[0])
        for words in complete_ones[1:]:
            if len(candidates) <= FEW:
                break
            candidates &= self._songs_of(words)
        return candidates

    def _songs_of(self, words: list[str]) -> set[str]:
        return set().union(*map(self._vocabulary.songs, words))

    def suggest(self, text: str, limit: int = 5) -> list[str]:
        """Say what may have been meant: names, titles, artists and albums that are nearly the same."""
        sought = _distinct(words_of(text))[:MOST_MEANT]
        scores: dict[str, float] = {}
        alike = [self._vocabulary.alike(word) for word in sought]
        for word in dict.fromkeys(chain.from_iterable(alike)):
            for name in islice(self._vocabulary.songs(word), limit):
                for shown, words in self._entries[name].fields():
                    score = _likeness(words, alike)
                    if score:
                        scores[shown] = max(score, scores.get(shown, 0.0))
        for name in self._names_near(text):
            scores.setdefault(name, 0.5)
        return sorted(scores, key=lambda shown: (-scores[shown], len(shown), shown))[:limit]

    def _names_near(self, text: str) -> list[str]:
        """Give names beside a text that begin as it does for more than half of it."""
        half = text[: len(text) // 2 + 1]
        near = chain(islice(self._names.before(text), 3), islice(self._names.after(text), 3))
        return [name for name in near if half and name.startswith(half)]


def _distinct(words: list[str]) -> list[str]:
    """Leave out words that are part of others, which need not be looked for."""
    distinct: list[str] = []
    for word in sorted(dict.fromkeys(words), key=len, reverse=True):
        if len(distinct) == MOST_ASKED:
            break
        if not any(word in other for other in distinct):
            distinct.append(word)
    return distinct


def _likeness(words: str, alike: list[dict[str, float]]) -> float:
    """Say how well a field has what was meant: of each word the best, over all."""
    present = words.split(" ")
    return sum(max(close.get(word, 0.0) for word in present) for close in alike) / len(alike)
