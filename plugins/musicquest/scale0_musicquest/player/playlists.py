"""Playlists as M3U8 files: one song's name a line, with its length and title for other players."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from scale0_core.api import Scale0Error, files, printable
from scale0_musicquest.names import name_fault
from scale0_musicquest.player.queue import Track

SUFFIX = ".m3u8"
MAX_BYTES = 10_000_000
HEAD = "#EXTM3U"

_exit = type(Scale0Error.exit_code)


class PlaylistError(Scale0Error):
    """A playlist cannot be read or written."""

    exit_code = _exit(65)


def playlists_folder(environment: Mapping[str, str]) -> Path:
    """Give the folder of a user's playlists."""
    data = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME", "."), ".local", "share"))
    return Path(data, "scale0", "musicquest", "playlists")


def playlist_file(folder: Path, name: str) -> Path:
    """Give the file of a playlist; a name that leads elsewhere is refused."""
    stem = name.removesuffix(SUFFIX)
    if fault := name_fault(stem) or name_fault(stem + SUFFIX):
        example = "choose a plain name such as evening"
        raise PlaylistError(f"no playlist is called {printable(name)}", fault, "nothing was done", example)
    return folder / (stem + SUFFIX)


def names(folder: Path) -> list[str]:
    """List the playlists of a folder."""
    found = (path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    return sorted(name for name in found if not name_fault(name))


def save(folder: Path, name: str, tracks: Iterable[Track]) -> Path:
    """Write a playlist; adverts are left out. It is there as a whole or not at all."""
    path = playlist_file(folder, name)
    lines = [HEAD]
    for track in tracks:
        if not track.advert:
            seconds = round(track.duration) or -1
            lines += [f"#EXTINF:{seconds},{' '.join(track.label.split())}", track.name]
    try:
        files.write_atomically(path, "\n".join(lines) + "\n", durable=False)
    except OSError as error:
        raise PlaylistError(f"{path} cannot be written", error.strerror or str(error), "nothing was saved") from error
    return path


def load(folder: Path, name: str) -> list[str]:
    """Read the names of a playlist's songs."""
    path = playlist_file(folder, name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        known = ", ".join(names(folder)) or "none yet"
        why = error.strerror or str(error)
        raise PlaylistError(f"there is no playlist {printable(name)}", why, "", f"there are: {known}") from error
    return read(data, os.fspath(path))


def read(data: bytes, source: str = "the playlist") -> list[str]:
    """Read a playlist's text; what is not a song's name is an error with its line."""
    if len(data) > MAX_BYTES:
        raise PlaylistError(f"{source} is too large", f"at most {MAX_BYTES} bytes are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlaylistError(f"{source} is not UTF-8", str(error)) from error
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if fault := name_fault(entry):
            remedy = "a playlist holds names of songs, no paths"
            raise PlaylistError(f"{source}, line {number}: {printable(entry)} is no song", fault, "", remedy)
        found.append(entry)
    return found
