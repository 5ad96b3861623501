"""JSON: strict, bounded, and natural to read: lists, numbers and truth look like what they are."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_config_json.format import FORMAT
from scale0_config_json.plugin import JsonPlugin
from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)
NAMES = st.text(min_size=1, max_size=3)
TREES = st.recursive(
    st.builds(Node, NAMES, st.none() | st.text()),
    lambda inner: st.builds(Node, NAMES, st.none(), st.lists(inner, max_size=4, unique_by=lambda n: n.name).map(tuple)),
    max_leaves=12,
)


def nested(depth: int) -> Node:
    node = Node("a")
    for _ in range(depth - 1):
        node = Node("a", None, (node,))
    return node


def read(text: str) -> tuple[Node, ...]:
    return FORMAT.read(text.encode()).children


def written(*nodes: Node) -> object:
    return json.loads(FORMAT.write(Node("", None, nodes)))


def reason_of(call, argument) -> str:
    with pytest.raises(FormatError) as caught:
        call(argument)
    return str(caught.value.problem.what)


@given(st.binary() | st.text('[]{}:,"\\1aeNu \n').map(str.encode))
def test_any_bytes_give_a_node_or_a_format_error(data):
    with contextlib.suppress(FormatError):
        assert isinstance(FORMAT.read(data), Node)


@given(st.dictionaries(st.text(max_size=2), ANY_JSON, max_size=3))
def test_any_json_gives_a_node_or_a_format_error(value):
    with contextlib.suppress(FormatError):
        assert isinstance(FORMAT.read(json.dumps(value).encode()), Node)


@given(TREES)
def test_trees_come_back(node):
    assert FORMAT.read(FORMAT.write(node)) == Node("", None, (node,))


def test_each_kind_is_read_as_the_text_a_tree_has():
    assert read('{"a": "x", "b": 1, "c": -2.50e3, "d": true, "e": false, "f": null, "g": {"h": ""}}') == (
        Node("a", "x"), Node("b", "1"), Node("c", "-2.50e3"), Node("d", "1"), Node("e", "0"), Node("f"),
        Node("g", None, (Node("h", ""),)),
    )  # fmt: skip


def test_a_number_keeps_all_its_digits():
    digits = "9" * 10_000
    assert read(f'{{"a": {digits}}}') == (Node("a", digits),)


def test_a_list_is_its_name_repeated():
    assert read('{"a": ["x", "y"], "b": [{"c": 1}]}') == (
        Node("a", "x"), Node("a", "y"), Node("b", None, (Node("c", "1"),)),
    )  # fmt: skip


def test_a_list_that_is_empty_or_begins_so_has_an_empty_node_in_front():
    assert read('{"a": [], "b": ["", "x"]}') == (Node("a"), Node("b"), Node("b", ""), Node("b", "x"))


def test_what_the_schema_knows_is_shown():
    assert written(
        Node("a", "x", listed=True), Node("b", listed=True), Node("c", "5", kind="number"),
        Node("d", "0.5", kind="number"), Node("e", "1", kind="truth"), Node("f", "0", kind="truth"),
    ) == {"a": ["x"], "b": [], "c": 5, "d": 0.5, "e": True, "f": False}  # fmt: skip


def test_what_the_schema_does_not_say_is_text():
    assert written(Node("a", "5"), Node("b", "x"), Node("b", "y"), Node("c")) == {"a": "5", "b": ["x", "y"], "c": None}


def test_nodes_of_one_name_are_one_list_wherever_they_stand():
    assert written(Node("a", "1"), Node("b", "2"), Node("a", "3")) == {"a": ["1", "3"], "b": "2"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"), ("[1]", "must be an object"), ("3", "must be an object"), ("{} {}", "Extra data"),
        ('{"a": 1, "a": 2}', "stands twice"), ('{"a": {"b": 1, "b": 2}}', "stands twice"), ('{"": 1}', "empty"),
        ('{"a": NaN}', "NaN is no number"), ('{"a": -Infinity}', "-Infinity"), ('{"a": [[1]]}', "a list in a list"),
        ('{"a": "\\ud800"}', "surrogate"), ('{"\\udc00": 1}', "surrogate"), ("\ufeff{}", "BOM"),
    ],
)  # fmt: skip
def test_what_is_refused(text, words):
    assert words in reason_of(FORMAT.read, text.encode())


def test_what_is_wrong_is_told_with_its_line():
    assert reason_of(FORMAT.read, b'{\n  "a": 1,\n  b\n}').startswith("line 3: ")
    assert reason_of(FORMAT.read, b'{\n  "a": "\xe9"}') == "line 2: byte 0xe9 is not UTF-8"


def test_texts_are_bounded():
    assert "bytes" in reason_of(FORMAT.read, b" " * (MAX_CONFIG_BYTES + 1))
    assert "bytes" in reason_of(FORMAT.write, Node("a", "x" * MAX_CONFIG_BYTES))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"a":['])
def test_nesting_is_bounded(opening):
    assert reason_of(FORMAT.read, opening * (MAX_CONFIG_BYTES // len(opening)))


def test_nesting_is_bounded_at_the_same_depth_for_all():
    whole = nested(MAX_CONFIG_DEPTH)
    assert FORMAT.read(FORMAT.write(whole)) == Node("", None, (whole,))
    too_deep = nested(MAX_CONFIG_DEPTH + 1)
    assert "deep" in reason_of(FORMAT.write, too_deep)
    text = '{"a":' * (MAX_CONFIG_DEPTH + 1) + "1" + "}" * (MAX_CONFIG_DEPTH + 1)
    assert "deep" in reason_of(FORMAT.read, text.encode())


@pytest.mark.parametrize(
    "node", [Node("a", "x", (Node("b"),)), Node("", "x"), Node("a", None, (Node("", "x"),)), Node("a", "\ud800")]
)
def test_what_cannot_be_expressed_is_refused(node):
    assert reason_of(FORMAT.write, node)


def test_says_what_it_is():
    info = JsonPlugin().scale0_plugin_info()
    assert (info.summary, info.safe_by_default, info.settings) == (
        "reads and writes configurations as JSON", True, None,
    )  # fmt: skip
