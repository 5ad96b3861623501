"""Tunes of our own: WAV files that anybody can play, with tags."""

from __future__ import annotations

import wave
from array import array

import pytest

from scale0_musicquest.service.server.shelf import Shelf
from scale0_musicquest.tunes import ALBUM, ARTIST, make_tunes


def test_tunes_are_songs_with_tags(tmp_path):
    paths = make_tunes(tmp_path / "music", seconds=1.0)
    songs = Shelf(tmp_path / "music", tmp_path / "state", 0).scan().added
    assert [song.name for song in songs] == [path.name for path in paths]
    assert len({song.title for song in songs}) == len({song.sha256 for song in songs}) == 5
    assert {(song.artist, song.album, song.duration) for song in songs} == {(ARTIST, ALBUM, 1.0)}
    assert all(song.title in song.name for song in songs)


def test_the_same_call_makes_the_same_files(tmp_path):
    first = [path.read_bytes() for path in make_tunes(tmp_path, count=7, seconds=0.5)]
    assert [path.read_bytes() for path in make_tunes(tmp_path, count=7, seconds=0.5)] == first
    assert len(set(first)) == 7


@pytest.mark.parametrize("seconds", [0.0, 0.01, 3.0])
def test_a_tune_is_as_long_as_asked_and_begins_and_ends_softly(tmp_path, seconds):
    (path,) = make_tunes(tmp_path, count=1, seconds=seconds)
    with wave.open(str(path)) as file:
        assert file.getsampwidth() == 2
        samples = array("h", file.readframes(file.getnframes()))
        assert len(samples) == round(seconds * file.getframerate())
    if seconds == 3.0:
        assert 20_000 < max(samples) <= 32_767
        assert -32_768 <= min(samples) < -15_000
    if samples:
        assert abs(samples[0]) < 500
        assert abs(samples[-1]) < 500
