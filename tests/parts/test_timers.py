"""Deadlines against a plain model: a dict that is searched."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scale0_core.parts.timers import LEAST_CLEARED, Deadlines

GRAIN = 0.05
ROUNDING = 1e-9
TIMES = st.floats(0, 1000) | st.integers(0, 20_000).map(lambda step: step * GRAIN)


class DeadlinesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[int, tuple[int, float]] = Deadlines(GRAIN)
        self.model: dict[int, float] = {}
        self.now = 0.0

    @rule(key=st.integers(0, 9), when=TIMES)
    def set(self, key: int, when: float) -> None:
        self.deadlines.set(key, when, (key, when))
        self.model[key] = when

    @rule(key=st.integers(0, 9))
    def remove(self, key: int) -> None:
        self.deadlines.remove(key)
        self.model.pop(key, None)

    @rule(later=st.floats(0, 100))
    def take(self, later: float) -> None:
        self.now += later
        taken = self.deadlines.take(self.now)
        for key, when in taken:
            assert self.model.pop(key) == when <= self.now + ROUNDING, "due early, or an old setting"
        assert all(when > self.now - GRAIN - ROUNDING for when in self.model.values()), "late by more than a step"
        steps = [int(when / GRAIN) for _, when in taken]
        assert steps == sorted(steps)
        following = self.deadlines.next()
        assert following is None or following > self.now

    @invariant()
    def same(self) -> None:
        assert len(self.deadlines) == len(self.model)
        assert all((key in self.deadlines) == (key in self.model) for key in range(10))
        following = self.deadlines.next()
        if not self.model:
            assert following is None
        else:
            first = min(self.model.values())
            assert first - ROUNDING <= following <= first + GRAIN + ROUNDING


TestDeadlines = DeadlinesMachine.TestCase
TestDeadlines.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(TIMES, max_size=50))
def test_nothing_is_left_behind(moments: list[float]):
    deadlines: Deadlines[int, int] = Deadlines(GRAIN)
    for number, when in enumerate(moments):
        deadlines.set(number, when, number)
        deadlines.set(number, when + 7, number)
    for number in range(0, len(moments), 2):
        deadlines.remove(number)
    assert sorted(deadlines.take(2000)) == list(range(1, len(moments), 2))
    assert (deadlines.next(), len(deadlines)) == (None, 0)
    assert deadlines._slots == deadlines._slot_of == {}
    assert deadlines._order == []


def test_setting_one_key_again_and_again_does_not_grow():
    deadlines: Deadlines[str, int] = Deadlines(GRAIN)
    for step in range(100_000):
        deadlines.set("w", step / 10 + 7.5, step)
        if step % 100 == 0:
            deadlines.take(step / 10)
    assert len(deadlines._slots) < 1000
    assert len(deadlines._order) < 1000


class Item:
    """Something that a deadline holds."""


def test_what_is_removed_or_replaced_is_let_go_immediately():
    deadlines: Deadlines[str, Item] = Deadlines(GRAIN)
    removed, replaced, moved = Item(), Item(), Item()
    gone = [weakref.ref(item) for item in (removed, replaced, moved)]
    deadlines.set("removed", 3600.0, removed)
    deadlines.set("replaced", 3600.0, replaced)
    deadlines.set("moved", 3600.0, moved)
    del removed, replaced, moved
    assert all(item() is not None for item in gone)
    deadlines.remove("removed")
    deadlines.set("replaced", 3600.0, Item())
    deadlines.set("moved", 7200.0, Item())
    assert [item() for item in gone] == [None, None, None]


def test_steps_that_became_empty_do_not_pile_up():
    deadlines: Deadlines[int, int] = Deadlines(GRAIN)
    deadlines.set(-1, 1e9, -1)
    for number in range(10_000):
        deadlines.set(number, 1000.0 + number, number)
        deadlines.remove(number)
    assert len(deadlines._slots) == len(deadlines._order) <= LEAST_CLEARED
    for number in range(1000):
        deadlines.set(number, 1000.0 + number, number)
    assert deadlines.take(2000.0) == list(range(1000))
    assert deadlines.take(2e9) == [-1]


def test_without_a_grain_an_item_is_due_at_the_very_moment_and_the_first_set_comes_first():
    deadlines: Deadlines[str, str] = Deadlines(0)
    for key, when in (("late", 2.0), ("b", 1.25), ("a", 1.25)):
        deadlines.set(key, when, key)
    assert (deadlines.due, deadlines.next(), deadlines.take(1.2)) == (1.25, 1.25, [])
    assert deadlines.take(1.25) == ["b", "a"]
    deadlines.remove("late")
    assert (deadlines.due, deadlines.next()) == (float("inf"), None)


def test_what_is_removed_or_set_anew_while_others_expire_does_not_come():
    deadlines: Deadlines[str, str] = Deadlines(0)
    for key in "abcd":
        deadlines.set(key, 1.0, key)
    seen = []
    for key in deadlines.expire(1.0):
        seen.append(key)
        deadlines.remove("b")
        deadlines.set("c", 2.0, "c")
    assert (seen, deadlines.take(2.0)) == (["a", "d"], ["c"])


@pytest.mark.parametrize("take", [Deadlines.take, lambda deadlines, now: [*deadlines.expire(now)]])
def test_at_the_end_of_time_all_is_due(take: Callable[[Deadlines[int, int], float], list[int]]):
    deadlines: Deadlines[int, int] = Deadlines()
    assert take(deadlines, inf) == []
    for number in range(3):
        deadlines.set(number, float(number), number)
    assert take(deadlines, inf) == [0, 1, 2]
    assert take(deadlines, inf) == []
