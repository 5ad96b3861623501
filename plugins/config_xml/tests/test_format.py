"""XML: hardened, bounded, exact."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_config_xml.format import FORMAT
from scale0_config_xml.plugin import XmlPlugin
from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

NAMES = st.text("abz_", min_size=1, max_size=3)
CHARACTERS = st.characters(
    exclude_categories=["Cs", "Cc"], include_characters="\t\n\r", exclude_characters="\ufffe\uffff"
)
VALUES = st.none() | st.text(CHARACTERS, min_size=1)
TREES = st.recursive(
    st.builds(Node, NAMES, VALUES),
    lambda inner: st.builds(Node, NAMES, st.none(), st.lists(inner, max_size=4).map(tuple)),
    max_leaves=12,
)
PIECES = [
    "<a>", "</a>", "<a/>", "<b x='1'>", "</b>", "text", " ", "&amp;", "&#0;", "&lol;", "<!--c-->", "<![CDATA[<x>]]>",
    "<?p i?>", "<!DOCTYPE a>", "<!DOCTYPE a [<!ENTITY lol 'x'>]>", "<?xml version='1.0'?>", "<n:a xmlns:n='u'/>", "\0",
    "é",     "<?xml version='1.0' encoding='utf-7'?>", "<?xml version='1.0' encoding='latin-1'?>", "<", ">", "]]>",
]  # fmt: skip


def nested(depth: int) -> Node:
    node = Node("a")
    for _ in range(depth - 1):
        node = Node("a", None, (node,))
    return node


def read(text: str | bytes) -> Node:
    data = text.encode() if isinstance(text, str) else text
    (root,) = FORMAT.read(data).children
    return root


def reason_of(call, argument) -> str:
    with pytest.raises(FormatError) as caught:
        call(argument)
    return str(caught.value.problem.what)


@given(st.binary() | st.lists(st.sampled_from(PIECES), max_size=10).map(lambda pieces: "".join(pieces).encode()))
def test_any_bytes_give_a_node_or_a_format_error(data):
    with contextlib.suppress(FormatError):
        assert isinstance(FORMAT.read(data), Node)


@given(TREES)
def test_trees_come_back(node):
    assert read(FORMAT.write(node)) == node


@given(st.text())
def test_any_text_comes_back_or_is_refused(text):
    try:
        data = FORMAT.write(Node("a", text))
    except FormatError:
        return
    assert (read(data).value or "") == text


def test_elements_are_names_and_their_text_is_kept_as_it_is():
    text = "<network>\n<identity> a &lt;b&gt; </identity>\n<peers>x</peers><peers><![CDATA[y & z]]></peers>\n</network>"
    assert read(text) == Node(
        "network", None, (Node("identity", " a <b> "), Node("peers", "x"), Node("peers", "y & z"))
    )  # fmt: skip


def test_an_empty_element_has_no_value():
    assert read("<a/>") == read("<a></a>") == Node("a")


def test_attributes_are_read_as_elements():
    text = '<network identity="a"><group_config name="east"/><peers>x</peers></network>'
    assert read(text) == Node(
        "network", None,
        (Node("identity", "a"), Node("group_config", None, (Node("name", "east"),)), Node("peers", "x")),
    )  # fmt: skip


def test_comments_and_instructions_are_skipped():
    assert read("<!-- c --><?p i?><a>1<!-- c -->2<?p i?></a>") == Node("a", "12")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no element found"), ("<a>", "no element found"), ("<a></b>", "mismatched tag"), ("<a/><b/>", "junk"),
        ("<a>text<b/></a>", "text beside"), ("<a x='1'>text</a>", "text beside"), ("<a x='1' x='2'/>", "duplicate"),
        ("<n:a xmlns:n='u'/>", "namespaces"), ("<a xmlns='u'/>", "namespaces"), ("<a xml:lang='en'/>", "namespaces"),
        ("<n:a/>", "unbound prefix"), ("<a>&#0;</a>", "reference to invalid character"),
        ("<a>&other;</a>", "undefined entity"), ("<?xml version='1.0' encoding='latin-1'?><a/>", "must be UTF-8"),
    ],
)  # fmt: skip
def test_what_is_refused(text, words):
    assert words in reason_of(FORMAT.read, text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a><a/>',
        '<!DOCTYPE a SYSTEM "http://example.org/a.dtd"><a/>',
        '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://example.org/x"> %x;]><a/>',
        '<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;&x;&x;&x;&x;&x;">]><a>&y;&y;&y;</a>',
    ],
)  # fmt: skip
def test_nothing_reaches_beyond_the_text_or_makes_it_grow(text):
    assert reason_of(FORMAT.read, text.encode()) == "line 1: DTDs and entities are not allowed"


def test_what_is_wrong_is_told_with_its_line():
    assert reason_of(FORMAT.read, b"<a>\n<b>\n</a>") == "line 3: mismatched tag"
    assert reason_of(FORMAT.read, b"<a>\n\n<b>x<c/></b></a>") == "line 3: 'b' has text beside elements or attributes"
    assert reason_of(FORMAT.read, b"<a>\n\xe9</a>") == "line 2: byte 0xe9 is not UTF-8"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_encodings_are_refused(encoding):
    assert "is not UTF-8" in reason_of(FORMAT.read, "<a/>".encode(encoding))


def test_a_byte_order_mark_is_skipped():
    assert read(b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><a/>") == Node("a")


def test_texts_are_bounded():
    assert "bytes" in reason_of(FORMAT.read, b" " * (MAX_CONFIG_BYTES + 1))
    assert "bytes" in reason_of(FORMAT.write, Node("a", "x" * MAX_CONFIG_BYTES))


def test_nesting_is_bounded():
    whole = nested(MAX_CONFIG_DEPTH)
    assert read(FORMAT.write(whole)) == whole
    assert "deep" in reason_of(FORMAT.write, nested(MAX_CONFIG_DEPTH + 1))
    assert "deep" in reason_of(FORMAT.read, b"<a>" * (MAX_CONFIG_DEPTH + 1))
    assert "deep" in reason_of(FORMAT.read, b"<a>" * (MAX_CONFIG_BYTES // 3))
    assert "deep" in reason_of(FORMAT.read, b"<a>" * (MAX_CONFIG_DEPTH - 1) + b"<a b='1'/>")


@pytest.mark.parametrize(
    "node",
    [
        Node("", None, (Node("a"), Node("b"))), Node("", None, ()), Node("", "x", (Node("a"),)),
        Node("a", "x", (Node("b"),)), Node("9a", "1"), Node("a b"), Node("a/b"), Node("n:a"), Node("a", "\0"),
        Node("a", "\x1b"), Node("a", "\ud800"), Node("a", "\ufffe"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused(node):
    assert reason_of(FORMAT.write, node)


def test_says_what_it_is():
    info = XmlPlugin().scale0_plugin_info()
    assert (info.summary, info.safe_by_default, info.settings) == ("reads and writes configurations as XML", True, None)
