"""The words of a text, as they are looked for: without case, accents and punctuation."""

from __future__ import annotations

import re
import unicodedata

LONGEST_WORD = 64
"""Characters of a word; a longer one is taken as several."""

_plain_words = re.compile(r"[0-9a-z]+").findall
_words = re.compile(r"[^\W_]+").findall
_APOSTROPHES = {ord(mark): None for mark in "'’‘ʼ`´"}  # noqa: RUF001
_STROKES = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})  # noqa: RUF001
"""Letters that Unicode does not take apart, and what people type in their place."""


def folded(text: str) -> str:
    """Give a text without case, accents and apostrophes."""
    if text.isascii():
        return text.lower().replace("'", "").replace("`", "")
    text = unicodedata.normalize("NFKD", text.translate(_APOSTROPHES)).casefold()
    text = "".join(mark for mark in unicodedata.normalize("NFKD", text) if not unicodedata.combining(mark))
    return text.translate(_STROKES).translate(_APOSTROPHES)


def words_of(text: str) -> list[str]:
    """Give the words of a text in order; one of signs alone, such as ``!!!``, consists of them."""
    text = folded(text)
    words = _plain_words(text) if text.isascii() else _words(text)
    if not words:
        words = text.replace("\0", " ").split()
    if any(len(word) > LONGEST_WORD for word in words):
        words = [word[at : at + LONGEST_WORD] for word in words for at in range(0, len(word), LONGEST_WORD)]
    return words
