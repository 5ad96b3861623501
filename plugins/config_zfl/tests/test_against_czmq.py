"""Whatever this plugin takes, CZMQ reads the same: random texts, and everything that is written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_config_zfl.format import FORMAT
from scale0_core.api import FormatError, Node

NAMES = st.text("abz09$-_@.&+", min_size=1, max_size=4)
VALUES = st.none() | st.text(st.sampled_from(" \t\v\f#='\"ax\xe9\u2028%\\")) | st.text()
TREES = st.recursive(
    st.builds(Node, NAMES, VALUES),
    lambda inner: st.builds(Node, NAMES, VALUES, st.lists(inner, max_size=4).map(tuple)),
    max_leaves=12,
)
PIECES = [
    b"a", b"b_1", b"name", b"/", b"=", b" = ", b" ", b"    ", b"        ", b"\t", b"\n", b"\n", b"\n    ", b"\r\n",
    b"\r", b"\v", b"\f", b"\0", b"#", b" # c", b'"', b"'", b'"x"', b"'y'", b"x y", b"1", b"\xc3\xa9", b"\xe9", b"%s",
    b"\\", b"a = 1\n", b'a = "b c"\n', b"\n    c = 2",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)


def as_czmq(node: Node):
    """Give the children of a node as CZMQ shows them: no value is an empty one."""
    return tuple((child.name, child.value or "", as_czmq(child)) for child in node.children)


@settings(max_examples=1000, deadline=None)
@given(TEXTS)
def test_every_text_that_is_taken_is_read_alike(czmq, text):
    try:
        node = FORMAT.read(text)
    except FormatError:
        return
    assert czmq(text) == as_czmq(node)


@settings(max_examples=300, deadline=None)
@given(st.lists(TREES, max_size=4))
def test_everything_that_is_written_is_read_alike(czmq, nodes):
    document = Node("", None, tuple(nodes))
    try:
        text = FORMAT.write(document)
    except FormatError:
        return
    assert FORMAT.read(text) == document
    assert czmq(text) == as_czmq(document)
