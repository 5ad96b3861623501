"""From tables to settings objects: strict, and all faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import pytest
from attrs import validators
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.config.settings import CoreSettings
from scale0_core.config.structure import describe, nearest, shown, structure
from scale0_core.errors import Fault


@attrs.frozen
class Inner:
    depth: int = 1
    kind: Literal["a", "b"] = "a"


@attrs.frozen
class Sample:
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    words: tuple[str, ...] = ()
    numbers: list[int] = attrs.field(factory=list)
    levels: Mapping[str, int] = attrs.field(factory=dict)
    maybe: tuple[str, ...] | None = None
    either: int | str = 0
    inner: Inner = attrs.field(factory=Inner)


@attrs.frozen
class Needed:
    address: str
    port: int
    note: str = ""


def faults_of(cls: type, table: object, place: str = "table") -> list[Fault]:
    value, faults = structure(cls, table, place)
    assert value is None
    return faults


def test_an_empty_table_gives_the_defaults():
    assert structure(Sample, {}, "table") == (Sample(), [])


def test_each_kind_is_read():
    table = {
        "text": "x", "number": 3, "ratio": 0.5, "flag": True, "words": ["a", "b"], "numbers": [1, 2],
        "levels": {"echo": 1}, "maybe": ["y"], "either": "z", "inner": {"depth": 2, "kind": "b"},
    }  # fmt: skip
    expected = Sample("x", 3, 0.5, True, ("a", "b"), [1, 2], {"echo": 1}, ("y",), "z", Inner(2, "b"))
    assert structure(Sample, table, "table") == (expected, [])


def test_a_whole_number_is_read_as_a_float():
    value, _ = structure(Sample, {"ratio": 2}, "table")
    assert value is not None
    assert (type(value.ratio), value.ratio) == (float, 2.0)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"text": 1}, Fault("table.text", "must be a string, not 1")),
        ({"number": "1"}, Fault("table.number", "must be a whole number, not '1'")),
        ({"number": True}, Fault("table.number", "must be a whole number, not True")),
        ({"number": 1.0}, Fault("table.number", "must be a whole number, not 1.0")),
        ({"ratio": "0.5"}, Fault("table.ratio", "must be a number, not '0.5'")),
        ({"ratio": True}, Fault("table.ratio", "must be a number, not True")),
        ({"flag": 1}, Fault("table.flag", "must be true or false, not 1")),
        ({"flag": "yes"}, Fault("table.flag", "must be true or false, not 'yes'")),
        ({"words": "a"}, Fault("table.words", "must be a list of strings, not 'a'")),
        ({"words": ["a", 2]}, Fault("table.words[1]", "must be a string, not 2")),
        ({"numbers": {}}, Fault("table.numbers", "must be a list of whole numbers, not {}")),
        ({"levels": []}, Fault("table.levels", "must be a table, not []")),
        ({"levels": {"echo": "x"}}, Fault("table.levels.echo", "must be a whole number, not 'x'")),
        ({"maybe": 3}, Fault("table.maybe", "must be a list of strings, not 3")),
        ({"either": []}, Fault("table.either", "must be a whole number or a string, not []")),
        ({"inner": 5}, Fault("table.inner", "must be a table, not 5")),
        ({"inner": {"kind": "c"}}, Fault("table.inner.kind", "must be 'a' or 'b', not 'c'")),
        ({"inner": {"kind": ["a"]}}, Fault("table.inner.kind", "must be 'a' or 'b', not ['a']")),
        ({"numbr": 5}, Fault("table.numbr", "unknown setting", "did you mean number?")),
        ({"inner": {"dept": 5}}, Fault("table.inner.dept", "unknown setting", "did you mean depth?")),
        ({"inner": {"zzz": 5}}, Fault("table.inner.zzz", "unknown setting", "known: depth, kind")),
    ],
)
def test_a_wrong_value_is_named_with_its_place(table: dict[str, Any], fault: Fault):
    assert [fault] == faults_of(Sample, table)


@pytest.mark.parametrize("table", [None, 5, "text", [], [{}], True])
def test_what_is_no_table_is_refused(table: object):
    assert [Fault("table", f"must be a table, not {table!r}")] == faults_of(Sample, table)


def test_none_is_accepted_only_where_it_is_allowed():
    assert structure(Sample, {"maybe": None}, "table") == (Sample(), [])
    assert [Fault("table.text", "must be a string, not None")] == faults_of(Sample, {"text": None})


def test_all_faults_come_at_once_in_the_order_of_the_table():
    table = {"text": 1, "inner": {"depth": "x", "kin": "a"}, "numbr": 1, "words": [1, "b", 3]}
    places = ["table.text", "table.inner.depth", "table.inner.kin", "table.numbr", "table.words[0]", "table.words[2]"]
    assert places == [fault.place for fault in faults_of(Sample, table)]


def test_the_outermost_table_has_no_name_in_a_place():
    assert [f.place for f in faults_of(Sample, {"numbr": 1, "inner": {"dept": 1}}, "")] == ["numbr", "inner.dept"]


def test_missing_settings_are_faults_and_say_what_they_take():
    assert [
        Fault("table.note", "must be a string, not 1"),
        Fault("table.address", "is missing: a string"),
        Fault("table.port", "is missing: a whole number"),
    ] == faults_of(Needed, {"note": 1})


def test_a_wrong_value_is_not_missing_as_well():
    assert [fault.place for fault in faults_of(Needed, {"address": 1, "port": 1})] == ["table.address"]


# checks


def in_order(instance: Range, attribute: attrs.Attribute[int], value: int) -> None:
    if value < instance.low:
        raise ValueError("high lies below low")


@attrs.frozen
class Range:
    low: int = attrs.field(default=0, validator=validators.ge(0))
    high: int = attrs.field(default=9, validator=in_order)


def test_a_check_is_told_with_the_key_and_without_repeating_it():
    assert [Fault("table.low", "must be >= 0: -1")] == faults_of(Range, {"low": -1})


def test_a_check_on_a_value_of_the_wrong_kind_is_not_tried():
    assert [Fault("table.low", "must be a whole number, not 'x'")] == faults_of(Range, {"low": "x"})


def test_a_check_that_looks_at_other_settings_gets_the_whole_object():
    assert structure(Range, {"low": 2, "high": 3}, "table") == (Range(2, 3), [])
    assert [Fault("table", "high lies below low")] == faults_of(Range, {"low": 4, "high": 3})


@pytest.mark.parametrize("error", [ValueError(), KeyError("k"), ZeroDivisionError("by zero"), RuntimeError()])
def test_whatever_a_check_raises_is_a_fault(error: Exception):
    def check(*_: object) -> None:
        raise error

    checked = attrs.make_class("Checked", {"x": attrs.field(default=0, type=int, validator=check)})
    (fault,) = faults_of(checked, {"x": 1})
    assert fault.message == (str(error.args[0]) if error.args else type(error).__name__)


def test_a_converter_that_refuses_is_a_fault():
    cls = attrs.make_class("Converted", {"x": attrs.field(default="1", type=str, converter=int)})
    (fault,) = faults_of(cls, {"x": "one"})
    assert (fault.place, fault.message) == ("table", "invalid literal for int() with base 10: 'one'")


# words


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (str, "a string"), (bool, "true or false"), (tuple[str, ...], "a list of strings"),
        (list[float], "a list of numbers"), (tuple[Inner, ...], "a list of values"), (str | None, "a string"),
        (int | str, "a whole number or a string"), (Literal["a", "b"], "'a' or 'b'"), (Inner, "a table"),
        (Mapping[str, int], "a table"),
    ],
)  # fmt: skip
def test_describe(annotation: Any, words: str):
    assert words == describe(annotation)


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("eco", ["echo", "zpipes"], "did you mean echo?"),
        ("batch_size", ["batch", "linger_ms"], "did you mean batch?"),
        ("qqq", ["zpipes", "echo"], "known: echo, zpipes"),
        ("eco", [], ""),
    ],
)
def test_nearest(word: str, known: list[str], hint: str):
    assert hint == nearest(word, known)


def test_a_wrong_value_is_shown_short_however_large_it_is():
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    for value in (deep, "x" * 100_000, list(range(100_000)), 16**5000, 10**4000):
        assert len(shown(value)) < 200
    assert shown("\x1b[31m") == "'\\x1b[31m'"


def test_a_number_too_large_for_a_float_is_a_fault():
    (fault,) = faults_of(Sample, {"ratio": 10**400})
    assert fault.message.startswith("must be a number, not 1000")


# anything at all

known = ["text", "number", "ratio", "levels", "maybe", "inner", "broker", "wire", "log", "limits", "address"]
keys = st.sampled_from(known) | st.text()
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes()
    | st.integers(min_value=10**310, max_value=10**320)
)  # fmt: skip
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=8)


@settings(deadline=None, max_examples=60)
@given(tree=trees | st.dictionaries(keys, trees))
@pytest.mark.parametrize("cls", [Sample, Needed, Range, CoreSettings])
def test_any_tree_gives_a_value_or_faults_and_never_raises(cls: type, tree: object):
    value, faults = structure(cls, tree, "table")
    assert (value is None) == bool(faults)
    assert value is None or isinstance(value, cls)
    for fault in faults:
        assert fault.place.startswith("table")


@settings(deadline=None, max_examples=60)
@given(tree=st.dictionaries(keys, leaves, min_size=1))
def test_no_unknown_key_passes(tree: dict[str, Any]):
    unknown = {key for key in tree if key not in attrs.fields_dict(Sample)}
    _, faults = structure(Sample, tree, "")
    assert unknown == {fault.place for fault in faults if fault.message == "unknown setting" and fault.place in unknown}


@settings(deadline=None, max_examples=60)
@given(
    value=st.builds(
        Sample, st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.lists(st.text()).map(tuple),
        st.lists(st.integers()), st.dictionaries(st.text(), st.integers()), st.none() | st.lists(st.text()).map(tuple),
        st.integers() | st.text(), st.builds(Inner, st.integers(), st.sampled_from(["a", "b"])),
    )
)  # fmt: skip
def test_what_was_written_down_is_read_back(value: Sample):
    assert structure(Sample, attrs.asdict(value), "table") == (value, [])
