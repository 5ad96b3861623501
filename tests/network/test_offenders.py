"""Offenders: counting, penalties, and a bound on what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.network import offenders as module
from scale0_core.network.offenders import Offenders

KEY, OTHER = ("frontend", b"c"), ("backend", b"w")


def note(offenders: Offenders, *moments: float, key=KEY) -> list[bool]:
    return [offenders.note(key, "junk", now) for now in moments]


@pytest.mark.requirement("R76")
def test_the_threshold_silences():
    offenders = Offenders(3, 60, 300)
    assert note(offenders, 0, 1, 2) == [False, False, True]
    assert offenders.ignores(KEY, 2)
    assert not offenders.ignores(OTHER, 2)
    assert not offenders.ignores(KEY, 302)
    assert offenders.silenced == {}


def test_errors_outside_the_window_do_not_count():
    assert not any(note(Offenders(3, 60, 300), 0, 30, 61, 91.5, 123, 153.5))


def test_penalties_double_up_to_a_bound():
    offenders = Offenders(1, 60, 10)
    now, lengths = 0.0, []
    for _ in range(13):
        offenders.note(KEY, "junk", now)
        lengths.append(offenders.silenced[KEY].until - now)
        now = offenders.silenced[KEY].until
        assert not offenders.ignores(KEY, now)
    assert lengths == [10 * 2**n for n in range(11)] + [10 * 2**10] * 2


def test_listing_and_clearing():
    offenders = Offenders(1, 60, 100)
    offenders.note(KEY, "junk", 0, "anna")
    offenders.note(OTHER, "stuff", 50)
    assert [(row["identity"], row["reason"], row["seconds_left"]) for row in offenders.listing(60)] == [
        ("anna", "junk", 40), ("", "stuff", 90)
    ]  # fmt: skip
    assert [row["reason"] for row in offenders.listing(120)] == ["stuff"]
    assert [offenders.clear("anna"), offenders.clear("anna"), offenders.clear()] == [1, 0, 1]
    assert offenders.listing(60) == []


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 5)), max_size=300), st.integers(1, 4))
def test_no_more_than_a_bound_is_remembered(events: list[tuple[int, float]], threshold: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_REMEMBERED", 20)
        offenders = Offenders(threshold, 60, 10)
        now = 0.0
        for number, later in events:
            now += later
            key = ("frontend", b"%d" % number)
            if not offenders.ignores(key, now):
                offenders.note(key, "junk", now)
            assert len(offenders._known) <= 20
            assert set(offenders.silenced) <= set(offenders._known)
            assert all(len(entry.recent) < threshold for entry in offenders._known.values())
