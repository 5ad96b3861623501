"""Percentiles against a sorted list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.parts.histogram import Histogram

DURATIONS = st.floats(0, 100_000) | st.floats(0, 0.001)
PARTS = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


@given(st.lists(DURATIONS, min_size=1, max_size=300))
def test_percentiles_are_off_by_one_step_at_most(durations: list[float]):
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)
    ordered = sorted(durations)
    for part, found in zip(PARTS, histogram.percentiles(PARTS), strict=True):
        exact = ordered[max(math.ceil(part * len(ordered)) - 1, 0)]
        assert exact - 1e-9 <= found <= exact * 1.126 + 2e-6
    assert (histogram.count, histogram.longest) == (len(durations), max(durations))


def test_an_empty_one_knows_nothing():
    assert Histogram().percentiles() == [0.0, 0.0, 0.0]


def test_no_percentile_is_beyond_the_longest():
    histogram = Histogram()
    histogram.add(1.0)
    assert histogram.percentiles() == [1.0] * 3


def test_it_stays_small():
    histogram = Histogram()
    for exponent in range(400):
        histogram.add(1.1**exponent / 1e6 if exponent < 300 else exponent)
    for number in range(20_000):
        histogram.add(number * 0.37)
    assert len(histogram._counts) < 40 * 8


@pytest.mark.parametrize(("seconds", "most"), [(0.000_001, 0.000_002), (0.000_016, 0.000_018), (0.25, 0.28125)])
def test_values_at_the_edges_of_steps(seconds: float, most: float):
    histogram = Histogram()
    histogram.add(seconds)
    histogram.add(3600.0)
    assert seconds <= histogram.percentiles([0.5])[0] <= most
