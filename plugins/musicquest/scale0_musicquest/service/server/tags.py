"""What a file says of itself: title, artist, album and length, read by mutagen and made safe to pass on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import mutagen

from scale0_musicquest.songs import MAX_TEXT

_KEYS = {
    "title": ("title", "TIT2", "INAM"),
    "artist": ("artist", "TPE1", "IART"),
    "album": ("album", "TALB", "IPRD"),
}
"""Each field as Vorbis comments call it (OGG, FLAC), as ID3 does (MP3, WAV), and as RIFF's own list does (WAV)."""
_MOST_CHUNKS = 100
_LONGEST_LIST = 64 * 1024
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
        file.seek(0)
        found: Any = mutagen.File(file)
        if found is None:
            return Tags()
        tags = found.tags or _riff_info(file)
        texts = {field: _text(tags, keys) for field, keys in _KEYS.items()}
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


def _riff_info(file: BinaryIO) -> dict[str, list[str]]:
    """Read the list in which most programs write the tags of a WAV file, and which mutagen leaves aside."""
    file.seek(0)
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return {}
    place = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(place)
        kind, size = _chunk_head(file.read(8))
        if kind == b"LIST" and file.read(4) == b"INFO":
            return dict(_info_texts(file.read(max(0, min(size - 4, _LONGEST_LIST)))))
        if not kind:
            break
        place += 8 + size + size % 2
    return {}


def _chunk_head(head: bytes) -> tuple[bytes, int]:
    """Read what a chunk is and how long; nothing at the end of a file."""
    return (head[:4], int.from_bytes(head[4:], "little")) if len(head) == 8 else (b"", 0)


def _info_texts(body: bytes) -> Iterator[tuple[str, list[str]]]:
    while len(body) >= 8:
        kind, size = _chunk_head(body[:8])
        raw = body[8 : 8 + size].partition(b"\0")[0]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        yield kind.decode("latin-1"), [text]
        body = body[8 + size + size % 2 :]


def _clean(text: str) -> str:
    """Make a text of strangers fit to be shown and sent: one line, no control characters, not too long."""
    text = text[: 2 * MAX_TEXT].encode("utf-8", "replace").decode()
    text = "".join(mark if mark.isprintable() else " " for mark in text)
    return " ".join(text.split())[:MAX_TEXT].rstrip()


def _duration(found: Any) -> float:
    length = float(getattr(found.info, "length", 0.0))
    return round(length, 3) if 0 <= length < _LONGEST_SONG else 0.0
