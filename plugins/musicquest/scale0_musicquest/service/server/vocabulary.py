"""All words of a library: which songs have them, which contain a part, which are nearly the same.

Each word is kept once for each of its endings, in order: ``song`` as ``song``, ``ong``, ``ng`` and ``g``. Whatever part
of a word one looks for, the words that contain it stand side by side; and so do those that share three letters with it.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from itertools import islice

from scale0_musicquest.service.server.ordered import Ordered

MOST_WORDS = 500
"""Words looked at for a part that very many contain, such as ``a``."""
MOST_ALIKE = 1_500
"""Words counted when looking for those that are nearly the same."""
MOST_COMPARED = 20
"""Of these, those that are compared letter by letter."""
ALIKE = 0.6

_END = "\0"


class Vocabulary:
    """Words, and the names of the songs that have them."""

    def __init__(self) -> None:
        self._songs: dict[str, set[str] | str] = {}  # most words are those of one song
        self._endings = Ordered()
        self.steps = 0
        """Words and songs looked at so far, by which tests see how much work a search is."""

    def __len__(self) -> int:
        return len(self._songs)

    def add(self, word: str, name: str) -> None:
        """Note that a song has a word."""
        songs = self._songs.get(word)
        if songs is None:
            self._songs[word] = name
            for at in range(len(word)):
                self._endings.add(f"{word[at:]}{_END}{word[:at]}")
        elif isinstance(songs, set):
            songs.add(name)
        elif songs != name:
            self._songs[word] = {songs, name}

    def remove(self, word: str, name: str) -> None:
        """Note that a song no longer has a word."""
        songs = self._songs[word]
        if isinstance(songs, set):
            songs.discard(name)
            if len(songs) == 1:
                self._songs[word] = songs.pop()
            return
        del self._songs[word]
        for at in range(len(word)):
            self._endings.remove(f"{word[at:]}{_END}{word[:at]}")

    def songs(self, word: str) -> set[str] | tuple[str]:
        """Give the names of the songs that have a word which is there."""
        songs = self._songs[word]
        return songs if isinstance(songs, set) else (songs,)

    def containing(self, part: str, most: int = MOST_WORDS) -> list[str]:
        """Give words that contain a part, each once, those that begin with it or are it among the first."""
        found: dict[str, None] = {}
        for ending in islice(self._endings.after(part), most):
            if not ending.startswith(part):
                break
            self.steps += 1
            tail, _, head = ending.partition(_END)
            found[head + tail] = None
        return list(found)

    def alike(self, word: str, most: int = 5) -> dict[str, float]:
        """Give the words that are nearly the same, and how much: 1 for those that contain it."""
        if known := self.containing(word, most):
            return dict.fromkeys(known, 1.0)
        scores: dict[str, float] = {}
        likeness = SequenceMatcher(None, "", word, autojunk=False)
        for other in self._sharing(word)[:MOST_COMPARED]:
            likeness.set_seq1(other)
            if (score := likeness.ratio()) >= ALIKE:
                scores[other] = score
        best = sorted(scores, key=lambda other: (-scores[other], other))[:most]
        return {other: scores[other] for other in best}

    def _sharing(self, word: str) -> list[str]:
        """Give words that share groups of letters with a word, those with the most first."""
        length = 3 if len(word) > 5 else 2
        grams = {word[at : at + length] for at in range(len(word) - length + 1)}
        shared: Counter[str] = Counter()
        for gram in grams:
            shared.update(self.containing(gram, MOST_ALIKE // len(grams)))
        # of words that share as many, those of about its length are the likely ones
        return sorted(shared, key=lambda other: (-shared[other] / (len(other) + len(word)), other))
