"""Tags of real files in all formats, and of files that are broken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_musicquest.service.server.shelf import Shelf
from scale0_musicquest.service.server.tags import Tags, read_tags
from scale0_musicquest.songs import MAX_TEXT, Song
from scale0_musicquest.tunes import make_tunes

mutagen: Any = pytest.importorskip("mutagen")
id3: Any = pytest.importorskip("mutagen.id3")

SECONDS = 1.5
RATE = 22_050


def write_sound(path: Path) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    numpy: Any = pytest.importorskip("numpy")
    if path.suffix[1:].upper() not in soundfile.available_formats():
        pytest.skip(f"this soundfile cannot write {path.suffix}")
    turns = numpy.arange(int(SECONDS * RATE)) * (440 * 2 * numpy.pi / RATE)
    soundfile.write(path, 0.3 * numpy.sin(turns), RATE)


def write_tags(path: Path, title: str, artist: str, album: str) -> None:
    file = mutagen.File(path)
    if path.suffix in (".ogg", ".flac"):
        file["title"], file["artist"], file["album"] = title, artist, album
    else:
        if file.tags is None:
            file.add_tags()
        for frame, text in ((id3.TIT2, title), (id3.TPE1, artist), (id3.TALB, album)):
            file.tags.add(frame(encoding=3, text=[text]))
    file.save()


def scanned(folder: Path) -> Song:
    (song,) = Shelf(folder, folder.parent / f"{folder.name}.state", 0).scan().added
    assert Song.from_json(song.to_json()) == song  # others will take it
    return song


@pytest.mark.requirement("M20")
@pytest.mark.parametrize("suffix", [".wav", ".ogg", ".flac", ".mp3"])
def test_tags_and_length_are_read_from_real_files(tmp_path, suffix):
    write_sound(tmp_path / f"song{suffix}")
    bare = scanned(tmp_path)
    assert (bare.title, bare.artist, bare.album) == ("", "", "")
    assert bare.duration == pytest.approx(SECONDS, abs=0.1)
    write_tags(tmp_path / f"song{suffix}", "Élégie", "日本の人", "Album")
    song = scanned(tmp_path)
    assert (song.title, song.artist, song.album) == ("Élégie", "日本の人", "Album")
    assert song.duration == pytest.approx(SECONDS, abs=0.1)


def test_tags_in_riffs_own_list_are_read_as_well(tmp_path):
    soundfile: Any = pytest.importorskip("soundfile")
    with soundfile.SoundFile(tmp_path / "song.wav", "w", RATE, 1) as file:
        file.title, file.artist, file.album = "Élégie", "Artist", "Album"
        file.write([0.0] * RATE)
    song = scanned(tmp_path)
    assert (song.title, song.artist, song.album, song.duration) == ("Élégie", "Artist", "Album", 1.0)


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3"])
def test_tags_of_strangers_are_made_safe_to_show_and_send(tmp_path, suffix):
    write_sound(tmp_path / f"song{suffix}")
    write_tags(tmp_path / f"song{suffix}", "a\nb\x1b[2J\tc", "x" * 5_000, " \r\n ")
    song = scanned(tmp_path)
    assert song.title == "a b [2J c"
    assert song.artist == "x" * MAX_TEXT
    assert song.album == ""


@pytest.mark.parametrize("suffix", [".wav", ".ogg", ".flac", ".mp3"])
@pytest.mark.parametrize(
    "content", [b"", b"NF", b"RIFF", b"OggS" * 100, b"fLaC\0\0\0", b"ID3\4\0\0\x7f\x7f\x7f\x7f", bytes(5_000)]
)
def test_a_broken_file_is_a_song_with_its_name(tmp_path, suffix, content):
    (tmp_path / f"song{suffix}").write_bytes(content)
    song = scanned(tmp_path)
    assert song.name == f"song{suffix}"
    assert song.size == len(content)
    assert song.title == ""


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> list[bytes]:
    """Give good files in all formats that can be written here."""
    folder = tmp_path_factory.mktemp("samples")
    make_tunes(folder, count=1, seconds=0.1)
    listed = b"INFOINAM\6\0\0\0Title\0IART\4\0\0\0\xe9t\xe9\0"
    (folder / "list.wav").write_bytes(
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x22\x56\0\0\x44\xac\0\0\2\0\x10\0data\2\0\0\0\0\0"
        + b"LIST%c\0\0\0" % len(listed)
        + listed
    )
    for suffix in (".ogg", ".flac", ".mp3"):
        try:
            write_sound(folder / f"song{suffix}")
            write_tags(folder / f"song{suffix}", "Title", "Artist", "Album")
        except pytest.skip.Exception:
            continue
    return [path.read_bytes()[:20_000] for path in sorted(folder.iterdir())]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_is_damaged_in_a_file_it_can_be_sent_on(samples, data):
    raw = bytearray(data.draw(st.sampled_from(samples)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 600)))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    tags = read_tags(io.BytesIO(bytes(raw)))
    song = Song("x.ogg", len(raw), "00" * 32, *tags)
    assert Song.from_json(song.to_json()) == song
    assert all(text.isprintable() for text in tags[:3])


@given(st.binary(max_size=2_000))
def test_any_bytes_have_tags_or_none(raw):
    assert isinstance(read_tags(io.BytesIO(raw)), Tags)
