"""ZFL: bounds, where it says what is wrong, what it cannot express."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_config_zfl.format import FORMAT, ZflFormat
from scale0_config_zfl.plugin import ZflPlugin
from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

TEXT = b"""\
#   Scale0 broker configuration, ZFL (= ZPL, RFC 4) form
broker
    identity = "broker-a"
    frontend_port = "6001"
    config_sub_ports = "tcp://10.0.0.2:6004"        # one line per item
    config_sub_ports = "tcp://10.0.0.3:6004"
    group_config
        name = "east"
        brokers
            identity = "broker-a"
            services = "echo"
            services = "mail"
        brokers
            identity = "broker-b"
            services = "echo"
"""


def nested(depth: int) -> Node:
    node = Node("a")
    for _ in range(depth - 1):
        node = Node("a", None, (node,))
    return node


def indented(depth: int) -> bytes:
    return b"".join(b"    " * level + b"a\n" for level in range(depth))


def reason_of(call, argument) -> str:
    with pytest.raises(FormatError) as caught:
        call(argument)
    return str(caught.value.problem.what)


def test_the_example_of_the_specification():
    (broker,) = FORMAT.read(TEXT).children
    assert [child.name for child in broker.children] == [
        "identity", "frontend_port", "config_sub_ports", "config_sub_ports", "group_config",
    ]  # fmt: skip
    first, second = [child for child in broker.children[-1].children if child.name == "brokers"]
    assert [child.value for child in first.children] == ["broker-a", "echo", "mail"]
    assert [child.value for child in second.children] == ["broker-b", "echo"]


@pytest.mark.parametrize("fmt", [FORMAT, ZflFormat(strict=False)], ids=["strict", "loose"])
@given(data=st.binary() | st.text("a/=#'\" \t\n\r\0").map(str.encode))
def test_any_bytes_give_a_node_or_a_format_error(fmt, data):
    with contextlib.suppress(FormatError):
        assert isinstance(fmt.read(data), Node)


def test_what_is_wrong_is_told_with_its_line():
    assert reason_of(FORMAT.read, b"a = 1\n\nb c\n") == "line 3: after the name 'b' comes '=', not 'c'"
    assert reason_of(FORMAT.read, b"a\n   b") == "line 2: a line is indented by a multiple of four spaces, not by 3"
    assert "at most 4 spaces here, not by 8" in reason_of(FORMAT.read, b"a\n        b")
    assert "put it in quotes" in reason_of(FORMAT.read, b"a = #fff")


def test_texts_are_bounded():
    line = b"a = 1\n"
    assert FORMAT.read(line * (MAX_CONFIG_BYTES // len(line)))
    assert "bytes" in reason_of(FORMAT.read, b"#" * (MAX_CONFIG_BYTES + 1))
    assert "bytes" in reason_of(FORMAT.write, Node("a", "x" * MAX_CONFIG_BYTES))


def test_nesting_is_bounded():
    assert FORMAT.read(indented(MAX_CONFIG_DEPTH)).depth == MAX_CONFIG_DEPTH
    assert FORMAT.write(nested(MAX_CONFIG_DEPTH)) == indented(MAX_CONFIG_DEPTH)
    assert "deep" in reason_of(FORMAT.read, indented(MAX_CONFIG_DEPTH + 1))
    assert "deep" in reason_of(FORMAT.write, nested(MAX_CONFIG_DEPTH + 1))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"a\n"), ("", b'a = ""\n'), ("x", b'a = "x"\n'), ('say "hi"', b"a = 'say \"hi\"'\n"),
        ("#=", b'a = "#="\n'), ("it's \"x\"", b"a = it's \"x\"\n"), ("\udce9", b'a = "\xe9"\n'),
    ],
)  # fmt: skip
def test_values_are_quoted_so_that_they_come_back(value, text):
    node = Node("a", value)
    assert (text, Node("", None, (node,))) == (FORMAT.write(node), FORMAT.read(text))


@pytest.mark.parametrize(
    "value", ["a\nb", "a\rb", "a\0b", "'\"", 'it\'s "#"', ' it\'s "x"', "\ud800", "\udcc3\udca9", 'it\'s "x"\v']
)
def test_what_cannot_be_expressed_is_refused(value):
    assert reason_of(FORMAT.write, Node("a", value))


@pytest.mark.parametrize("name", ["a/b", "", "a b", "é", "a\n", "a:b"])
def test_names_that_cannot_be_written_are_refused(name):
    assert "is no name" in reason_of(FORMAT.write, Node("", None, (Node(name, "1"),)))


def test_a_value_without_a_name_is_refused():
    assert "without a name" in reason_of(FORMAT.write, Node("", "x"))


def test_a_certificate_of_czmq_is_read():
    key = "Yne@#$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI"
    text = f'#   made by hand\n\nmetadata\n    email = "a@b"\ncurve\n    public-key = "{key}"\n'
    _, curve = FORMAT.read(text.encode()).children
    assert curve.children[0].value == key


def test_says_what_it_is():
    info = ZflPlugin().scale0_plugin_info()
    assert (info.summary, info.safe_by_default, info.settings) == ("reads and writes configurations as ZFL", True, None)
