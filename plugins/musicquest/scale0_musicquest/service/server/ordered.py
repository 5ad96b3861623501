"""Texts in order: cheap to add to, to take from, and to look into, however many there are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

BLOCK = 512
"""Texts of a block before it is split; what an insertion moves."""


class Ordered:
    """A set of texts in order, in blocks, so that a change moves a few hundred of them and not all."""

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from block

    def add(self, text: str) -> None:
        """Take in a text that is not there yet."""
        self._size += 1
        if not self._blocks:
            self._blocks.append([text])
            self._lasts.append(text)
            return
        at = min(bisect_left(self._lasts, text), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, text)
        if len(block) > BLOCK:
            half = len(block) // 2
            self._blocks.insert(at + 1, block[half:])
            self._lasts.insert(at + 1, block[-1])
            del block[half:]
        self._lasts[at] = block[-1]

    def remove(self, text: str) -> None:
        """Take out a text that is there."""
        at = bisect_left(self._lasts, text)
        block = self._blocks[at]
        del block[bisect_left(block, text)]
        self._size -= 1
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at]
            del self._lasts[at]

    def after(self, text: str) -> Iterator[str]:
        """Give the text itself, if it is there, and all that come after it."""
        at = bisect_left(self._lasts, text)
        if at == len(self._blocks):
            return
        block = self._blocks[at]
        # by number: a slice or islice would touch hundreds of texts of which a few are wanted
        for place in range(bisect_left(block, text), len(block)):
            yield block[place]
        for number in range(at + 1, len(self._blocks)):
            yield from self._blocks[number]

    def before(self, text: str) -> Iterator[str]:
        """Give those that come before a text, the nearest first."""
        at = bisect_left(self._lasts, text)
        if at < len(self._blocks):
            block = self._blocks[at]
            for place in range(bisect_left(block, text) - 1, -1, -1):
                yield block[place]
        for number in range(at - 1, -1, -1):
            yield from reversed(self._blocks[number])

    def page(self, offset: int, limit: int) -> list[str]:
        """Give ``limit`` texts from the ``offset``-th on."""
        found: list[str] = []
        for block in self._blocks:
            if offset < len(block):
                found += block[offset : offset + limit - len(found)]
            if len(found) >= limit:
                break
            offset = max(0, offset - len(block))
        return found
