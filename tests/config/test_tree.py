"""The tree between schema and text: one meaning, whatever the text looked like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig
from scale0_core.config.settings import CoreSettings
from scale0_core.config.tree import Node, from_tree, seed_names, to_tree, tree_hash
from scale0_core.errors import Fault


@attrs.frozen
class Inner:
    depth: int = 1
    tags: tuple[str, ...] = ("x",)


@attrs.frozen
class Bare:
    """All of it may be absent."""

    note: str | None = None


@attrs.frozen
class Sample:
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    either: int | str = 0
    maybe: str | None = None
    surely: str | None = "here"
    words: tuple[str, ...] | None = None
    kind: Literal["a", "b", 3] = "a"
    numbers: list[int] = attrs.field(factory=list)
    inner: Inner = attrs.field(factory=Inner)
    inners: tuple[Inner, ...] = ()
    bares: tuple[Bare, ...] = ()
    levels: Mapping[str, int] = attrs.field(factory=dict)
    lists: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


def document(*nodes: Node) -> Node:
    return Node("", None, nodes)


def sample(*nodes: Node) -> Sample:
    value, faults = from_tree(Sample, Node("sample", None, nodes), "sample")
    assert faults == []
    assert value is not None
    return value


def faults_of(*nodes: Node, cls: type = Sample, place: str = "sample") -> list[Fault]:
    value, faults = from_tree(cls, Node(place, None, nodes), place)
    assert value is None
    return faults


def children(config: Any, name: str) -> tuple[Node, ...]:
    return tuple(node for node in to_tree(config, "sample").children if node.name == name)


# there and back

TEXTS = st.text(max_size=3)
INNERS = st.builds(Inner, st.integers(-9, 9), st.lists(TEXTS, max_size=2).map(tuple))
SAMPLES = st.builds(
    Sample,
    text=TEXTS, number=st.integers(-(10**17), 10**17), ratio=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.booleans(), either=st.integers(0, 10**17) | TEXTS.filter(lambda text: not text.isdecimal()),
    maybe=st.none() | st.text(min_size=1), surely=st.none() | st.text(min_size=1),
    words=st.none() | st.lists(TEXTS, max_size=3).map(tuple), kind=st.sampled_from(["a", "b", 3]),
    numbers=st.lists(st.integers(-9, 9), max_size=3), inner=INNERS, inners=st.lists(INNERS, max_size=3).map(tuple),
    bares=st.lists(st.builds(Bare, st.none() | st.text(min_size=1)), max_size=3).map(tuple),
    levels=st.dictionaries(st.text(min_size=1), st.integers(0, 9), max_size=2),
    lists=st.dictionaries(st.text(min_size=1), st.lists(TEXTS, max_size=2).map(tuple), max_size=2),
)  # fmt: skip


@given(SAMPLES)
def test_every_value_comes_back(value):
    assert from_tree(Sample, to_tree(value, "sample"), "sample") == (value, [])


@given(SAMPLES)
def test_no_value_and_an_empty_value_are_the_same(value):
    def blank(node: Node) -> Node:
        return Node(node.name, node.value or None, tuple(map(blank, node.children)))

    tree = to_tree(value, "sample")
    assert from_tree(Sample, blank(tree), "sample") == (value, [])
    assert tree_hash(tree) == tree_hash(blank(tree))


@pytest.mark.parametrize("cls", [NetworkConfig, ClientConfig, CoreSettings])
def test_defaults_come_back(cls):
    assert from_tree(cls, to_tree(cls(), "x"), "x") == (cls(), [])


def test_what_a_text_leaves_out_has_its_default():
    assert from_tree(NetworkConfig, Node(""), "network") == (NetworkConfig(), [])


# how it looks


def test_each_kind_has_its_text():
    value = Sample("x", -3, 0.5, True, "tcp://a", "m", kind="b", numbers=[1, 2], levels={"echo": 1})
    texts = {node.name: node.value for node in to_tree(value, "sample").children if not node.children}
    assert texts == {
        "text": "x", "number": "-3", "ratio": "0.5", "flag": "1", "either": "tcp://a", "maybe": "m", "surely": "here",
        "kind": "b", "numbers": "2",
    }  # fmt: skip
    assert children(value, "numbers") == (Node("numbers", "1"), Node("numbers", "2"))
    assert children(value, "levels") == (Node("levels", None, (Node("echo", "1"),)),)


def test_what_the_schema_knows_goes_with_it():
    tree = to_tree(Sample(numbers=[1]), "sample")
    known = {node.name: (node.kind, node.listed) for node in tree.children}
    assert [known[name] for name in ("text", "ratio", "flag", "numbers")] == [
        ("text", False), ("number", False), ("truth", False), ("number", True),
    ]  # fmt: skip


def test_a_whole_number_in_a_float_field_is_written_like_any_other():
    assert children(Sample(ratio=2), "ratio") == (Node("ratio", "2.0"),)


def test_an_empty_list_is_left_out_where_that_is_the_default():
    assert children(Sample(), "numbers") == ()
    assert children(Inner(tags=()), "tags") == (Node("tags"),)
    assert sample(Node("inner", None, (Node("tags"),))).inner.tags == ()


def test_an_empty_node_at_the_front_of_a_list_is_no_item():
    assert children(Inner(tags=("", "a")), "tags") == (Node("tags"), Node("tags", ""), Node("tags", "a"))


@pytest.mark.parametrize("value", [Sample(text=object()), Sample(ratio=float("nan")), Sample(numbers=[[1]])])
def test_what_no_format_has_a_place_for_is_refused(value):
    with pytest.raises(TypeError, match="no format has a place"):
        to_tree(value, "sample")


# how it is read


@pytest.mark.parametrize(
    ("text", "truth"),
    [("1", True), ("true", True), ("Yes", True), ("0", False), ("FALSE", False), ("no", False)],
)  # fmt: skip
def test_truth_is_read_in_several_ways(text, truth):
    assert sample(Node("flag", text)).flag is truth


@pytest.mark.parametrize(
    ("text", "value"), [("6001", 6001), ("tcp://*:1", "tcp://*:1"), ("-1", "-1"), ("1.5", "1.5"), ("", "")]
)
def test_digits_mean_a_number_where_both_may_stand(text, value):
    assert sample(Node("either", text)).either == value


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2.0), ("-2.50", -2.5), ("1e3", 1000.0), ("1E-2", 0.01)]
)  # fmt: skip
def test_numbers_are_read_as_the_formats_write_them(text, value):
    assert sample(Node("ratio", text)).ratio == value


def test_one_item_is_a_list():
    assert sample(Node("words", "x")).words == ("x",)
    assert sample(Node("lists", None, (Node("a", "x"),))).lists == {"a": ("x",)}


def test_blanks_beside_children_are_nothing():
    assert sample(Node("inner", "\n  ", (Node("depth", "2"),))).inner.depth == 2


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (Node("numbr", "1"), Fault("sample.numbr", "unknown setting", "did you mean number?")),
        (Node("number", "x"), Fault("sample.number", "must be a whole number, not 'x'")),
        (Node("number", "1.0"), Fault("sample.number", "must be a whole number, not '1.0'")),
        (Node("number", "٣"), Fault("sample.number", "must be a whole number, not '٣'")),
        (Node("number"), Fault("sample.number", "must be a whole number, not ''")),
        (Node("number", "9" * 19), Fault("sample.number", f"must be a whole number, not '{'9' * 19}'")),
        (Node("ratio", "nan"), Fault("sample.ratio", "must be a number, not 'nan'")),
        (Node("ratio", "1e999"), Fault("sample.ratio", "must be a number, not '1e999'")),
        (Node("flag", "2"), Fault("sample.flag", "must be true or false, not '2'")),
        (Node("kind", "c"), Fault("sample.kind", "must be 'a' or 'b' or 3, not 'c'")),
        (Node("text", None, (Node("a", "1"),)), Fault("sample.text", "must be a string, not {'a': '1'}")),
        (Node("inner", "x"), Fault("sample.inner", "must be a table, not 'x'")),
        (Node("inner", "x", (Node("depth", "1"),)), Fault("sample.inner", "has a value, 'x', and names below it")),
        (Node("inners", None, (Node("x", "1"),)), Fault("sample.inners[0].x", "unknown setting", "known: depth, tags")),
        (Node("levels", None, (Node("a", "x"),)), Fault("sample.levels.a", "must be a whole number, not 'x'")),
        (Node("text", "\udce9"), Fault("sample.text", "is not UTF-8: '\\udce9'")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(node, fault):
    assert faults_of(node) == [fault]


def test_what_takes_one_value_is_given_once():
    assert faults_of(Node("text", "a"), Node("text", "b")) == [
        Fault("sample.text", "is given 2 times, and takes one value")
    ]
    two = (Node("inner", None, (Node("depth", "1"),)), Node("inner", None, ()))
    assert faults_of(*two) == [Fault("sample.inner", "is given 2 times, and takes one value")]


def test_all_faults_are_told_at_once():
    nodes = (Node("numbr", "1"), Node("text", "a"), Node("text", "b"), Node("flag", "maybe"))
    assert {fault.place for fault in faults_of(*nodes)} == {"sample.numbr", "sample.text", "sample.flag"}


def test_names_that_would_confuse_a_terminal_are_told_escaped():
    (fault,) = faults_of(Node("\x1b[31m", "1"))
    assert fault.place == "sample.'\\x1b[31m'"


NAMES = ["text", "number", "inner", "inners", "tags", "levels", "x", ""]


@given(st.recursive(
    st.builds(Node, st.sampled_from(NAMES), st.none() | st.text()),
    lambda inner: st.builds(Node, st.sampled_from(["", "inner", "inners", "lists", "words"]), st.none() | st.text(),
                            st.lists(inner, max_size=4).map(tuple)),
))  # fmt: skip
def test_any_tree_gives_a_value_or_faults(node):
    value, faults = from_tree(Sample, node, "sample")
    assert (value is None) == bool(faults)


# outermost names


def test_the_outermost_name_may_be_there_or_not():
    inner = (Node("identity", "x"), Node("group", "g"))
    expected = NetworkConfig(identity="x", group="g")
    for name in ("network", "broker"):
        assert from_tree(NetworkConfig, document(Node(name, None, inner)), "network") == (expected, [])
    assert from_tree(NetworkConfig, document(*inner), "network") == (expected, [])


def test_a_single_field_is_no_outermost_name():
    groups = document(Node("group_config", None, (Node("name", "east"),)))
    value, faults = from_tree(NetworkConfig, groups, "network")
    assert faults == []
    assert value == NetworkConfig(group_config=(GroupConfig(name="east"),))


def test_an_unknown_outermost_name_is_told():
    wrong = document(Node("netwrok", None, (Node("identity", "x"),)))
    assert from_tree(NetworkConfig, wrong, "network") == (
        None, [Fault("netwrok", "unknown name of a whole configuration", "known: network")],
    )  # fmt: skip


# the seed's spelling


@pytest.mark.parametrize("name", ["prefered_broker", "preferred_broker"])
def test_both_spellings_of_the_preferred_broker_are_read_and_the_seeds_is_written(name):
    expected = ClientConfig(prefered_broker="b")
    assert from_tree(ClientConfig, document(Node(name, "b")), "client") == (expected, [])
    assert [node.name for node in to_tree(expected, "client").children if node.value == "b"] == ["prefered_broker"]
    assert seed_names({name: "b"}) == {"prefered_broker": "b"}


def test_both_spellings_at_once_are_one_too_many():
    nodes = (Node("prefered_broker", "a"), Node("preferred_broker", "b"))
    (fault,) = faults_of(*nodes, cls=ClientConfig, place="client")
    assert fault == Fault("client.prefered_broker", "is given 2 times, and takes one value")
    both = {"prefered_broker": "a", "preferred_broker": "b"}
    assert seed_names(both) == both


# the hash


def test_the_hash_heeds_every_name_value_and_order_of_a_list():
    trees = [
        Node("n"), Node("m"), Node("n", "1"), Node("n", None, (Node("a", "1"),)), Node("n", None, (Node("a", "11"),)),
        Node("n", None, (Node("a", "1"), Node("a", "2"))), Node("n", None, (Node("a", "2"), Node("a", "1"))),
        Node("n", None, (Node("a", None, (Node("b"),)),)), Node("n", None, (Node("a"), Node("b"))), document(),
        document(Node("n"), Node("n")), Node("n", "\ud800"),
    ]  # fmt: skip
    assert len({tree_hash(tree) for tree in trees}) == len(trees)


def test_the_hash_does_not_heed_what_means_the_same():
    first = Node("n", None, (Node("a", "1"), Node("b", "")))
    second = Node("n", None, (Node("b"), Node("a", "1", kind="number", listed=True)))
    assert tree_hash(first) == tree_hash(second) == tree_hash(document(second))


def test_the_hash_stays_the_same_from_version_to_version():
    """Brokers of different versions compare hashes, and records on disk keep them."""
    node = Node("group", None, (Node("name", "é"), Node("brokers", None, (Node("identity", "a"), Node("services")))))
    assert tree_hash(node) == "0d515bc53a2ec2a98c2c1e0b6bce2d269138185e9f785704ff15afb36562a87c"


def test_depth_counts_names():
    assert [Node("").depth, Node("a").depth, Node("a", None, (Node("b"),)).depth] == [0, 1, 2]
