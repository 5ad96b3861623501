"""Ranges of versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_discovery.service.versions import RangeError, VersionRange, parse


@pytest.mark.parametrize(
    ("wanted", "inside", "outside"),
    [
        (">=1.2,<2", ["1.2", "1.2.0", "1.10.3", "v1.9"], ["1.1.9", "2", "2.0.0", "2.0-rc.1", "", "nightly"]),
        ("1.2", ["1.2", "1.2.0", "1.2+build.7"], ["1.2.1", "1.2-rc1"]),
        ("== 1.2 ", ["1.2.0"], ["1.2.1"]),
        ("!=1.2", ["1.3", "nightly"], ["1.2.0"]),
        (">1", ["1.0.1"], ["1", "1.0", "1.1-beta"]),
        ("<=1.5", ["1.5.0", "0.1"], ["1.5.1", "1.5-rc1"]),
        (">=2.0-alpha", ["2.0-alpha", "2.0-beta.2", "2.0rc1", "2.0", "2.1"], ["1.9", "2.0-1"]),
        ("<2.0-rc.10", ["2.0-rc.9", "1.9"], ["2.0-rc.10", "2.0-rc.11", "2.0"]),
        ("==nightly", ["nightly"], ["1.0", "nightly2", ""]),
    ],
)
def test_versions_are_in_a_range_or_not(wanted, inside, outside):
    versions = VersionRange(wanted)
    assert [text for text in inside if text not in versions] == []
    assert [text for text in outside if text in versions] == []


@pytest.mark.parametrize(
    "text", ["", ",", ">=", ">=1.2 <2", "=>1", ">=nightly", "1.2,", "~=1", ",".join(["1"] * 17), "1" * 257]
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(RangeError):
        VersionRange(text)


@given(st.text(), st.text())
def test_any_text_is_a_range_or_refused_and_any_version_is_in_it_or_not(text, version):
    try:
        versions = VersionRange(text)
    except RangeError:
        return
    assert (version in versions) in (True, False)


NUMBERS = st.lists(st.integers(0, 12), min_size=1, max_size=4)


@given(NUMBERS, NUMBERS)
def test_numbers_are_compared_as_numbers(one, other):
    length = max(len(one), len(other))
    padded = [numbers + [0] * (length - len(numbers)) for numbers in (one, other)]
    first, second = (".".join(map(str, numbers)) for numbers in (one, other))
    assert (padded[0] < padded[1]) == (first in VersionRange(f"<{second}"))
    assert (padded[0] == padded[1]) == (parse(first) == parse(second))
