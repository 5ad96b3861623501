"""Messages and JSON from outside: read strictly, and never an exception but MalformedError."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.api import records
from scale0_musicquest import wire
from scale0_musicquest.names import name_fault, read_name
from scale0_musicquest.songs import Hit, Holder, Query, Song

SONG = Song("tune.wav", 17, "ab" * 32, "Tune", "Nobody", "Album", 1.5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(["name", "size", "sha256", "title", "artist", "album", "duration", "holders", "endpoint"])


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=8))
def test_any_message_is_taken_apart_and_its_answer_goes_back_the_same_way(frames):
    message = wire.split(tuple(frames))
    assert message.envelope[0] == frames[0]
    assert wire.answer(message, wire.OK)[: len(message.envelope)] == message.envelope
    assert wire.error(message, 400, "no")[: len(message.envelope)] == message.envelope


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_malformed(frame):
    with suppress(records.MalformedError):
        wire.from_json(frame)


@given(JSON | st.dictionaries(FIELDS, JSON))
def test_any_json_is_a_song_a_hit_and_a_query_or_malformed(value):
    for kind in (Song, Holder, Hit, Query):
        try:
            kind.from_json(value)
        except records.MalformedError:
            continue


def test_songs_hits_and_queries_come_back_as_they_were():
    hit = Hit(SONG, (Holder("tcp://127.0.0.1:5556", 0.5, 2, replica=True), Holder("tcp://127.0.0.1:5557")))
    assert Song.from_json(wire.from_json(wire.to_json(SONG.to_json()))) == SONG
    assert Hit.from_json(wire.from_json(wire.to_json(hit.to_json()))) == hit
    query = Query(text="été", limit=3)
    assert Query.from_json(wire.from_json(wire.to_json(query.to_json()))) == query


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../up", "a\\b", "nul\0", "tab\t", "x" * 256, "\ud800", "é" * 128]
)
def test_hostile_names_are_refused(name):
    assert name_fault(name)
    assert read_name(name.encode("utf-8", "surrogatepass")) is None


@pytest.mark.parametrize("name", ["NF", "a b.ogg", "été.flac", "x" * 255, "..".join("abc")])
def test_other_names_are_fine(name):
    assert read_name(name.encode()) == name


def test_names_that_are_not_utf_8_are_refused():
    assert read_name(b"\xff\xfe.ogg") is None
    assert read_name(b"x" * 10_000) is None


@given(st.integers(0, 2**64 - 1))
def test_numbers_have_eight_bytes(value):
    assert wire.read_number(wire.number(value)) == value


@pytest.mark.parametrize("frame", [b"", b"1", b"1234567", b"123456789"])
def test_other_numbers_are_malformed(frame):
    with pytest.raises(records.MalformedError):
        wire.read_number(frame)
