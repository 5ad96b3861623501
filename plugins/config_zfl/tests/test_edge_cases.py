"""The edge cases of ZFL, side by side: this plugin (strict), RFC 4 as it is (strict=False), and CZMQ's zconfig."""

from __future__ import annotations

import pytest

from scale0_config_zfl.format import FORMAT, ZflFormat
from scale0_core.api import FormatError, Node

LOOSE = ZflFormat(strict=False)
ERROR = None


def one(value, name="a", *children):
    return ((name, value, tuple(children)),)


def two(*values, names="aa"):
    return tuple((name, value, ()) for name, value in zip(names, values, strict=True))


SAME = [
    # text, and what all three read
    (b"", ()),
    (b"\n   \n\t\n\r\n", ()),
    (b"a = 1", one("1")),
    (b"a = 1\r\nb = 2\r\n", two("1", "2", names="ab")),
    (b"# c\na = 1\n    # c\n", one("1")),
    (b"\t# c\n", ()),
    (b"a = 1 # c", one("1")),
    (b"a = x#c", one("x")),
    (b"a # c", one(None)),
    (b"a#c", one(None)),
    (b"a =#2", one("")),
    (b'a = "#2"', one("#2")),
    (b"a = '#2'", one("#2")),
    (b'a = "x" # c', one("x")),
    (b"a = it's", one("it's")),
    (b'a = "it\'s"', one("it's")),
    (b'a = ""', one("")),
    (b"a =", one("")),
    (b"a", one(None)),
    (b"a b", ERROR),
    (b"a = b = c", one("b = c")),
    (b"a=1", one("1")),
    (b"a\t=\t1", one("1")),
    (b"a = x   y", one("x   y")),
    (b'a = "  x  "', one("  x  ")),
    (b"a = 1\n    b = 2", one("1", "a", ("b", "2", ()))),
    (b"bind = x\nbind = y", two("x", "y", names=("bind", "bind"))),
    (
        b"a\n    b\n        c\n    d\ne",
        (("a", None, (("b", None, (("c", None, ()),)), ("d", None, ()))), ("e", None, ())),
    ),
    (b"a\n  b", ERROR),
    (b"a\n     b", ERROR),
    (b"a\n      b", ERROR),
    (b"a\n        b", ERROR),
    (b"    a", ERROR),
    (b"\ta", ERROR),
    (b"a\n    \tb", ERROR),
    (b"frontend_port = 1", one("1", "frontend_port")),
    (b"some-path = 1", one("1", "some-path")),
    (b"a.b$c@d&e+f = 1", one("1", "a.b$c@d&e+f")),
    (b"a/b = 1", one("1", "a/b")),
    (b"/a = 1", ERROR),
    (b"a/ = 1", ERROR),
    (b"/ = 1", ERROR),
    (b"a:b = 1", ERROR),
    (b"* = 1", ERROR),
    (b'"a" = 1', ERROR),
    (b"= 1", ERROR),
    ("é = 1".encode(), ERROR),
    (b"9a = 1", one("1", "9a")),
    (b".a = 1", one("1", ".a")),
    ("a = é".encode(), one("é")),
    (b"a = \xe9", one("\udce9")),
    (b"\xef\xbb\xbfa = 1", ERROR),
    (b"a = " + b"x" * 3000, one("x" * 3000)),
    (b"a = %s\\n", one("%s\\n")),
]

DIFFERENT = [
    # text, strict, RFC 4, CZMQ
    (b"a = 1\rb = 2", ERROR, two("1", "2", names="ab"), one("1\rb = 2")),
    (b"a = 1\n\rb = 2", ERROR, two("1", "2", names="ab"), ERROR),
    (b"  # c", ERROR, (), ERROR),
    (b"a = #2", ERROR, one(""), one("#2")),
    (b'a = "x" y', ERROR, one('"x" y'), ERROR),
    (b'a = "x', ERROR, one('"x'), ERROR),
    (b"a = 'tis", ERROR, one("'tis"), ERROR),
    (b'a = "x\\"y"', ERROR, one('"x\\"y"'), ERROR),
    (b"a = x\0y", ERROR, ERROR, one("x")),
    (b"a = \vx\f", ERROR, one("\vx\f"), one("x")),
    (b"a//b = 1", ERROR, ERROR, one("1", "a//b")),
]

CASES = [*((text, tree, tree, tree) for text, tree in SAME), *DIFFERENT]
IDS = [ascii(text[:30]) for text, *_ in CASES]


def tree_of(node: Node):
    return tuple((child.name, child.value, tree_of(child)) for child in node.children)


def read(fmt, text):
    try:
        return tree_of(fmt.read(text))
    except FormatError:
        return ERROR


def without_none(tree):
    """CZMQ cannot tell no value from an empty one."""
    return tree and tuple((name, value or "", without_none(children)) for name, value, children in tree)


@pytest.mark.parametrize(("text", "strict", "rfc4", "czmq_says"), CASES, ids=IDS)
def test_edge_case(text, strict, rfc4, czmq_says):
    assert (strict, rfc4) == (read(FORMAT, text), read(LOOSE, text))


@pytest.mark.parametrize(("text", "strict", "rfc4", "czmq_says"), CASES, ids=IDS)
def test_edge_case_in_czmq(czmq, text, strict, rfc4, czmq_says):
    assert without_none(czmq_says) == czmq(text)
