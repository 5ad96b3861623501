"""What can be said in options, and what is said about what cannot. Without Spark."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_spark.zpipes.errors import OptionError, RefusedError, UnreachedError
from scale0_spark.zpipes.options import READERS, Options, read_options
from scale0_spark.zpipes.ranges import Bounds, Offset, cut, from_json, shares, to_json

NEEDED = {"broker": "ipc://@/zpipes/local", "pipe": "orders"}


def test_defaults():
    options = read_options(NEEDED)
    assert (options.pipes, options.group, options.payload, options.starting) == (
        ("orders",),
        "spark",
        "chunks",
        "first",
    )
    assert options.pipe == "orders"
    assert options.fail_on_data_loss
    assert options.partitions >= 1


def test_all_options_whatever_their_case():
    options = read_options(
        {
            "BROKER": "tcp://127.0.0.1:1", "pipes": "b, a", "Group": "g", "payload": "Events",
            "startingsequence": "7", "maxRowsPerTrigger": "10", "rowsPerPartition": "5", "partitions": "3",
            "failondataloss": "FALSE", "timeout": "1.5", "stagingTimeout": "60", "checkpointLocation": "x",
        }
    )  # fmt: skip
    assert options == Options(
        "tcp://127.0.0.1:1", ("a", "b"), "g", "events", 7, 10, 5, 3, fail_on_data_loss=False, timeout=1.5,
        staging_timeout=60.0,
    )  # fmt: skip
    with pytest.raises(OptionError, match="2 pipes"):
        _ = options.pipe


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"pipe": "p"}, "broker"), ({"broker": "tcp://x:1"}, "pipe"), ({**NEEDED, "goup": "x"}, "goup"),
        ({**NEEDED, "broker": "http://x"}, "tcp://"), ({**NEEDED, "pipe": ""}, "pipe"),
        ({**NEEDED, "broker": "a,b/c"}, "by its name"),
        ({**NEEDED, "pipe": "x" * 256}, "255"), ({"broker": "tcp://x:1", "pipes": "a,a"}, "twice"),
        ({"broker": "tcp://x:1", "pipes": "a,,b"}, "pipes"), ({**NEEDED, "group": ""}, "group"),
        ({**NEEDED, "payload": "json"}, "chunks or events"), ({**NEEDED, "startingSequence": "0"}, "startingSequence"),
        ({**NEEDED, "startingSequence": "last"}, "first, next"),
        ({**NEEDED, "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({**NEEDED, "maxRowsPerTrigger": "many"}, "whole number"), ({**NEEDED, "partitions": "-1"}, "partitions"),
        ({**NEEDED, "rowsPerPartition": "1.5"}, "rowsPerPartition"),
        ({**NEEDED, "failOnDataLoss": "1"}, "true or false"),
        ({**NEEDED, "timeout": "0"}, "timeout"), ({**NEEDED, "timeout": "nan"}, "timeout"),
        ({**NEEDED, "stagingTimeout": "inf"}, "stagingTimeout"), ({**NEEDED, "path": "p"}, "path"),
        ({**NEEDED, "pipes": "a,b"}, "pipe and pipes"), ({**NEEDED, "markSkipped": "true"}, "payload events"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_name_of_the_option(given_, says):
    with pytest.raises(OptionError, match=says):
        read_options(given_)


@given(st.dictionaries(st.sampled_from([*READERS, "other"]), st.text(max_size=30)))
def test_any_options_are_read_or_refused(given_):
    try:
        read_options({**NEEDED, **given_})
    except OptionError as error:
        assert str(error)  # noqa: PT017


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 50), st.none() | st.integers(1000, 10**6))
def test_parts_cover_the_range_and_do_not_overlap(start, rows, partitions, rows_per_partition):
    parts = list(cut(start, start + rows, partitions, rows_per_partition))
    assert [number for part in parts for number in part][1:-1:2] == [part[0] for part in parts][1:]
    assert all(begin < end for begin, end in parts)
    assert (parts[0][0], parts[-1][1]) == (start, start + rows) if rows else not parts
    if rows_per_partition:
        assert all(end - begin <= rows_per_partition for begin, end in parts)
    else:
        assert len(parts) <= partitions


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=5), st.integers(1, 2000))
def test_shares_are_as_large_as_allowed(available, most):
    given_ = shares(available, most)
    assert given_.keys() == available.keys()
    assert all(0 <= given_[pipe] <= rows for pipe, rows in available.items())
    assert sum(given_.values()) == min(most, sum(available.values()))


def test_offsets_come_back_from_a_checkpoint():
    offsets = {"b": Offset(3, 0.1), "a": Offset(1, 2.5)}
    assert list(to_json(offsets)) == ["a", "b"]
    assert from_json(to_json(offsets)) == offsets


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5)
)
def test_any_checkpoint_is_offsets_or_refused(kept):
    try:
        from_json(kept)
    except OptionError as error:
        assert "checkpoint" in str(error)  # noqa: PT017


def test_bounds_narrow_down():
    assert Bounds().within(3, 9).within(1, 5) == Bounds(3, 5)


def test_errors_pass_between_processes():
    for error in (UnreachedError("a", "b", "c", "d"), RefusedError("a", "b", "", "", 404)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
