"""Packed events: who reads them sees the tuples that would have been told otherwise."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core import packing
from scale0_core.events import JOIN, TASK
from scale0_core.packing import RECORD, PackedEvents, Packing

JOINED = (JOIN, 1.0, "echo", "w", "g", 1)


def packed(one: Packing, numbers: dict[object, int], service: str, over: float = 2.0) -> bytearray:
    number = numbers.get(service)
    if number is None:
        number = one.number(numbers, service, (service, "w", "g", "ok"))
    return bytearray(RECORD.pack(over, 1.0, 1.5, 100, number))


def tuple_of(service: str, over: float = 2.0) -> tuple[object, ...]:
    return (TASK, over, service, "w", "g", "ok", 500_000.0, (over - 1.5) * 1e6, 100)


def test_only_kinds_with_the_fields_of_a_request_can_be_packed():
    with pytest.raises(ValueError, match="join cannot be packed"):
        Packing(JOIN)


@given(st.lists(st.none() | st.sampled_from(["echo", "sum", "sort"]), max_size=20))
def test_events_are_seen_as_tuples_in_the_order_in_which_they_were_told(told):
    """None stands for an event that is not packed."""
    one, numbers = Packing(TASK), {}
    found = one.told([JOINED if name is None else packed(one, numbers, name, place) for place, name in enumerate(told)])
    expected = [JOINED if name is None else tuple_of(name, place) for place, name in enumerate(told)]
    assert list(found) == expected
    assert len(found) == len(expected)
    assert [found[place] for place in range(len(told))] == expected
    assert found[1:3] == expected[1:3]
    assert found.packed == sum(name is not None for name in told)


def test_bytes_that_are_no_record_are_left_as_they_are():
    one, numbers = Packing(TASK), {}
    good = packed(one, numbers, "echo")
    found = one.told([good, b"short", good[1:], bytes(good), good + good])
    assert found.runs == [good, [b"short", good[1:], bytes(good)], good + good]
    assert (found.packed, len(found)) == (3, 6)


def test_numbers_hold_until_they_are_forgotten():
    one, numbers = Packing(TASK), {}
    first = packed(one, numbers, "echo")
    assert packed(one, numbers, "echo") == first
    assert list(numbers) == ["echo"]
    one.forget()
    assert numbers == {}
    # what was told before means the same as before
    assert list(one.told([first, packed(one, numbers, "sum")])) == [tuple_of("echo"), tuple_of("sum")]


def test_names_of_those_who_are_gone_do_not_stay_for_ever(monkeypatch):
    monkeypatch.setattr(packing, "MOST_ABOUTS", 10)
    one, kept = Packing(TASK), []
    for turn in range(10):
        names = [f"{turn} {each}" for each in range(4)]
        kept.append((names, one.told([packed(one, {}, name) for name in names])))
    assert all(isinstance(found, PackedEvents) and len(found.abouts) < 20 for _, found in kept)
    for names, found in kept:
        assert list(found) == [tuple_of(name) for name in names]


def test_a_record_is_what_others_may_rely_on():
    assert RECORD.size == 40
    assert struct.unpack("3d2q", RECORD.pack(3.0, 1.0, 2.0, 100, 7)) == (3.0, 1.0, 2.0, 100, 7)


@pytest.mark.parametrize("add", [packing.add, packing._add], ids=["as built", "python"])
def test_packed_events_are_appended_one_after_the_other(add):
    events = [("before",)]
    add(events, 3.5, 1, 2.25, 100, 7)
    add(events, 4.5, 1, 2.25, 100, 8)
    events.append(("between",))
    add(events, 5.5, 1, 2.25, 100, 9)
    first, second, third = (RECORD.pack(3.5 + place, 1.0, 2.25, 100, 7 + place) for place in range(3))
    expected = [("before",), bytearray(first + second), ("between",), bytearray(third)]
    assert events == expected
    for wrong in (("x", 1.0, 1.0, 1, 1), (1.0, 1.0, 1.0, 1.5, 1), (1.0, 1.0, 1.0, 2**80, 1), (1.0,)):
        with pytest.raises((TypeError, OverflowError, struct.error)):
            add(events, *wrong)
    assert events == expected


@given(st.lists(st.none() | st.tuples(st.floats(0, 10), st.integers(0, 9)), max_size=50))
def test_however_they_were_appended_they_are_read_in_order(told):
    """None stands for an event that is not packed."""
    lists = []
    for add in (packing.add, packing._add):
        events = []
        for each in told:
            if each is None:
                events.append(JOINED)
            else:
                add(events, each[0], 1.0, 1.5, each[1], 0)
        lists.append(events)
    assert lists[0] == lists[1]
    one = Packing(TASK)
    one.number({}, "", ("echo", "w", "g", "ok"))
    expected = [JOINED if each is None else (*tuple_of("echo", each[0])[:-1], each[1]) for each in told]
    assert list(one.told(lists[0])) == expected
