"""What a file says of itself: title, artist, album and length, read by mutagen and made safe to pass on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

import mutagen

from scale0_musicquest.songs import MAX_TEXT

_KEYS = {"title": ("title", "TIT2"), "artist": ("artist", "TPE1"), "album": ("album", "TALB")}
"""Each field as Vorbis comments call it (OGG, FLAC), and as ID3 does (MP3, WAV)."""
_LONGEST_SONG = 1e9


class Tags(NamedTuple):
    """What is known of a song; empty where it does not say."""

    title: str = ""
    artist: str = ""
    album: str = ""
    duration: float = 0.0


def read_tags(file: BinaryIO) -> Tags:
    """Read the tags of an open file; one that is damaged, or no music at all, has none."""
    try:
        found: Any = mutagen.File(file)
        if found is None:
            return Tags()
        texts = {field: _text(found.tags, keys) for field, keys in _KEYS.items()}
        return Tags(**texts, duration=_duration(found))
    except Exception:  # files of strangers: whatever a parser makes of them, they are songs by their names
        return Tags()


def _text(tags: Any, keys: Iterable[str]) -> str:
    for key in keys if tags is not None else ():
        try:
            value = tags[key]
        except (KeyError, ValueError):  # Vorbis comments refuse some keys outright
            continue
        return _clean(", ".join(str(part) for part in getattr(value, "text", value)))
    return ""


def _clean(text: str) -> str:
    """Make a text of strangers fit to be shown and sent: one line, no control characters, not too long."""
    text = text[: 2 * MAX_TEXT].encode("utf-8", "replace").decode()
    text = "".join(mark if mark.isprintable() else " " for mark in text)
    return " ".join(text.split())[:MAX_TEXT].rstrip()


def _duration(found: Any) -> float:
    length = float(getattr(found.info, "length", 0.0))
    return round(length, 3) if 0 <= length < _LONGEST_SONG else 0.0
