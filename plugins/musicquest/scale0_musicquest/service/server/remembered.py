"""What was known of songs when it was last written down, so that a restart need not read them all again.

A text file: a line that says what it is, a line of JSON for each song, and their hash. It can be lost without harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from scale0_core.api import files, records
from scale0_musicquest.service.server.files import Mark
from scale0_musicquest.songs import Song

_TITLE = {"scale0-musicquest": "songs", "version": 1}


class Known(NamedTuple):
    """A song, and the file it was read from."""

    song: Song
    mark: Mark
    settled: bool = True
    """Not so when the file had just been written, and may have changed in the same moment."""


def load(path: Path) -> list[Known]:
    """Read what was written down; nothing when the file is damaged or not there."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.readlines()
        *told, last = lines or [""]
        if not told or records.from_json(told[0]) != _TITLE or last != _seal(told):
            return []
        return [_read(line) for line in told[1:]]
    except (OSError, ValueError):  # records.MalformedError among them
        return []


def save(path: Path, known: Iterable[Known]) -> None:
    """Write it down, all or nothing."""
    with files.new_file(path, durable=True, mode=0o666) as file:
        file.writelines(line.encode() for line in _lines(known))


def _lines(known: Iterable[Known]) -> Iterator[str]:
    lines = [json.dumps(_TITLE) + "\n"]
    lines += (json.dumps({**song.to_json(), "mtime_ns": mark.mtime_ns}) + "\n" for song, mark, _ in known)
    yield from lines
    yield _seal(lines)


def _seal(lines: Iterable[str]) -> str:
    """Give the last line, by which damage to the others is found."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
    return json.dumps({"sha256": digest.hexdigest()}) + "\n"


def _read(line: str) -> Known:
    table = records.table_of(records.from_json(line))
    song = Song.from_json(table)
    mtime_ns = table.get("mtime_ns")
    if type(mtime_ns) is not int:  # before 1970 it is negative
        raise records.MalformedError("a line says when its file was written")
    return Known(song, Mark(song.size, mtime_ns))
