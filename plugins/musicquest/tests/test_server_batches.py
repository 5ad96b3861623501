"""Messages among servers: any bytes are read or malformed, and what is written is read as it was."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.api import records
from scale0_musicquest import wire
from scale0_musicquest.service.server.batches import (
    found_item,
    pack_found,
    pack_searches,
    read_found,
    read_searches,
    search_item,
)
from scale0_musicquest.service.server.neighbours import Introduction, read_addresses
from scale0_musicquest.songs import Hit, Holder, Query, Song

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
NAMED = st.dictionaries(
    st.sampled_from(["id", "endpoint", "children_endpoint", "path", "grandfather", "name", "holders"]), JSON
)
NEARLY = st.lists(st.lists(JSON | NAMED | st.just("uuid"), min_size=2, max_size=5), max_size=4)
READERS = [read_searches, read_found, Introduction.read, read_addresses]
UUID = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
NAME = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\", exclude_categories=["C"]), min_size=1, max_size=40
)


@pytest.mark.parametrize("read", READERS)
@given(frame=st.binary(max_size=200) | (JSON | NAMED | NEARLY).map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_malformed(read, frame):
    with suppress(records.MalformedError):
        read(frame)


@given(st.lists(st.tuples(UUID, NAME.filter(lambda name: name[0] != "."), st.integers(0, 600_000), st.integers(0, 9))))
def test_searches_are_read_as_they_were_written(searches):
    wanted = [(uuid, Query(name=name), left, hops) for uuid, name, left, hops in searches]
    (frame,) = pack_searches([search_item(*search) for search in wanted])
    assert read_searches(frame) == wanted


@given(st.lists(NAME.filter(lambda name: name[0] != "."), min_size=1, max_size=30), st.integers(300, 2000))
def test_searches_are_split_into_messages_that_are_not_too_large(names, limit):
    wanted = [(f"uuid-{number}", Query(name=name), 1000, 1) for number, name in enumerate(names)]
    frames = pack_searches([search_item(*search) for search in wanted], limit)
    assert all(len(frame) <= limit for frame in frames)
    assert [search for frame in frames for search in read_searches(frame)] == wanted


@given(st.lists(st.tuples(UUID, st.integers(0, 5), st.booleans()), max_size=20), st.integers(300, 5000))
def test_answers_are_split_into_messages_that_are_not_too_large(answers, limit):
    hits = [Hit(Song(f"{number}.ogg", 1, "ab" * 32), (Holder("tcp://127.0.0.1:1", 0.5, 2),)) for number in range(5)]
    items = [found_item(uuid, hits[:count], complete) for uuid, count, complete in answers]
    frames = pack_found(items, limit)
    assert all(len(frame) <= limit for frame in frames)
    read = [answer for frame in frames for answer in read_found(frame)]
    assert [uuid for uuid, *_ in read] == [uuid for uuid, *_ in answers]
    for (_, found, complete), (_, count, was_complete) in zip(read, answers, strict=True):
        assert found == hits[: len(found)]
        assert complete == (was_complete and len(found) == count)


def test_a_batch_of_very_many_is_split():
    frames = pack_searches([search_item("u", Query(text="a"), 1000, 1)] * 25_000)
    assert sum(len(read_searches(frame)) for frame in frames) == 25_000
    frames = pack_found([["u", [], True]] * 25_000)
    assert len(frames) > 1
    assert sum(len(read_found(frame)) for frame in frames) == 25_000
    with pytest.raises(records.MalformedError):
        read_found(wire.to_json([["u", [], True]] * 25_000))
