"""The broker's clock: monotonic, and its own stalls do not count."""

from __future__ import annotations

import pytest

from scale0_core.io.clock import STALL, SteadyClock


class Hands:
    """A clock that a test moves."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_now_is_the_monotonic_clock(hands: Hands):
    clock = SteadyClock(hands)
    hands.at += 5.0
    assert clock.now() == 1005.0


@pytest.mark.parametrize("late", [0.0, 0.5, STALL])
def test_a_wake_up_in_time_changes_nothing(hands: Hands, late: float):
    clock = SteadyClock(hands)
    hands.at += 2.0 + late
    assert (1002.0 + late, 0.0) == (clock.woke(2.0), clock.stalled)


def test_a_wake_up_before_time_changes_nothing(hands: Hands):
    clock = SteadyClock(hands)
    hands.at += 0.1
    assert (clock.woke(60.0), clock.stalled) == (1000.1, 0.0)


def test_the_time_the_process_stood_still_is_taken_out(hands: Hands):
    clock = SteadyClock(hands)
    hands.at += 2.0 + 300.0
    assert (clock.woke(2.0), clock.stalled) == (1002.0, 300.0)
    hands.at += 1.0
    assert clock.now() == 1003.0


def test_a_stall_is_told_once(hands: Hands):
    clock = SteadyClock(hands)
    hands.at += 300.0
    clock.woke(0.0)
    hands.at += 1.0
    assert (clock.woke(1.0), clock.stalled) == (1001.0, 0.0)


def test_stalls_add_up(hands: Hands):
    clock = SteadyClock(hands)
    for _ in range(3):
        hands.at += 1.0 + 100.0
        clock.woke(1.0)
    assert clock.now() == 1003.0


def test_a_sleep_without_a_limit_is_never_a_stall(hands: Hands):
    clock = SteadyClock(hands)
    hands.at += 86_400.0
    assert (clock.woke(None), clock.stalled) == (87_400.0, 0.0)
    hands.at += 1.0
    assert (clock.woke(1.0), clock.stalled) == (87_401.0, 0.0)


def test_a_turn_that_took_long_counts_as_a_stall(hands: Hands):
    clock = SteadyClock(hands)
    clock.woke(0.0)
    hands.at += 50.0  # a service held the loop, so nobody could be heard
    assert (clock.woke(0.0), clock.stalled) == (1000.0, 50.0)


def test_it_never_goes_backwards(hands: Hands):
    clock = SteadyClock(hands)
    seen = [clock.now()]
    for step, planned in ((0.5, 0.2), (100.0, 1.0), (0.0, 0.0), (3.0, None), (2.5, 0.1), (0.1, 5.0)):
        hands.at += step
        seen += [clock.woke(planned), clock.now()]
    assert sorted(seen) == seen
