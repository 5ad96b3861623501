"""Pauses between retries: doubling, bounded, and with jitter where many retry."""

from __future__ import annotations

from random import Random

from scale0_core.parts.backoff import Backoff, backoff_seconds


def test_the_pause_doubles_up_to_the_longest():
    backoff = Backoff(0.1, 1.0)
    assert [round(backoff.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_success_begins_with_the_shortest_pause_again():
    backoff = Backoff(0.1, 1.0)
    backoff.next(), backoff.next()
    backoff.reset()
    assert (backoff.next(), backoff.failures) == (0.1, 1)


def test_with_jitter_a_pause_is_between_half_and_all_of_it():
    random = Random(7)
    pauses = [backoff_seconds(2, 0.1, 5.0, random) for _ in range(200)]
    assert 0.2 <= min(pauses) < 0.22
    assert 0.38 < max(pauses) <= 0.4


def test_the_number_of_failures_has_no_bound():
    assert backoff_seconds(10**9, 0.1, 5.0) == 5.0
