"""ZFL, which is ZPL: the property language of RFC 4 of ZeroMQ (https://rfc.zeromq.org/spec/4/).

RFC 4 and its living reader, CZMQ's zconfig, read some texts differently. By default only texts are taken that both read
alike; ``strict=False`` takes all that RFC 4 allows, and reads it as RFC 4 does. See the README for the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

_BLANKS = " \t"
_LINE_ENDS = re.compile("\r\n|\n\r|\n|\r")
_NAME_CHARS = r"[A-Za-z0-9$\-_@.&+]"
_NAME = re.compile(rf"{_NAME_CHARS}+(/{_NAME_CHARS}+)*")
_WRITTEN_NAME = re.compile(rf"{_NAME_CHARS}+")


@attrs.frozen
class ZflFormat:
    """Configurations as ZFL: a line is a name with or without a value, four spaces are one level down."""

    name: str = attrs.field(default="ZFL", init=False)
    strict: bool = True

    def read(self, data: bytes) -> Node:
        """Read a text; the names at the margin are the outermost ones. Bytes that are not UTF-8 become surrogates."""
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text has {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        document = _Draft("", None)
        path = [document]
        for number, line in enumerate(self._lines(data.decode(errors="surrogateescape")), 1):
            try:
                self._take(line, path)
            except _LineError as error:
                raise FormatError(str(error), number) from error
        return document.node()

    def write(self, node: Node) -> bytes:
        """Write a tree, every value in quotes where that is possible."""
        if node.depth > MAX_CONFIG_DEPTH:
            raise FormatError(f"names are nested more than {MAX_CONFIG_DEPTH} deep")
        if not node.name and node.value:
            raise FormatError("a value without a name cannot be written as ZFL")
        text = "".join(f"{line}\n" for top in node.outermost for line in _written(top, ""))
        data = _encoded(text)
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text would have {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        return data

    def _lines(self, text: str) -> list[str]:
        if not self.strict:
            return _LINE_ENDS.split(text)
        return [line.removesuffix("\r") for line in text.split("\n")]

    def _take(self, line: str, path: list[_Draft]) -> None:
        """Take one line; ``path`` leads from the document to the newest node."""
        if "\0" in line or "\r" in line:
            raise _LineError("NUL is not allowed" if "\0" in line else "CR alone does not end a line")
        rest = line.lstrip(" ")
        indent = len(line) - len(rest)
        content = rest.strip(_BLANKS)
        if not content or (content[0] == "#" and not (self.strict and indent % 4)):
            return
        if indent % 4:
            raise _LineError(f"a line is indented by a multiple of four spaces, not by {indent}")
        depth = indent // 4
        if depth >= len(path):
            raise _LineError(f"a line may be indented by at most {4 * (len(path) - 1)} spaces here, not by {indent}")
        if depth >= MAX_CONFIG_DEPTH:
            raise _LineError(f"names are nested more than {MAX_CONFIG_DEPTH} deep")
        draft = self._property(rest)
        del path[depth + 1 :]
        path[-1].children.append(draft)
        path.append(draft)

    def _property(self, text: str) -> _Draft:
        name = _NAME.match(text)
        if not name:
            raise _LineError(f"a line begins with a name, not with {text[0]!a}")
        rest = text[name.end() :].lstrip(_BLANKS)
        if not rest or rest[0] == "#":
            return _Draft(name[0], None)
        if rest[0] != "=":
            raise _LineError(f"after the name {name[0]!a:.80} comes '=', not {rest[0]!a}")
        return _Draft(name[0], self._value(rest[1:]))

    def _value(self, text: str) -> str:
        value = text.lstrip(_BLANKS)
        if value[:1] in ('"', "'"):
            quoted, quote, rest = value[1:].partition(value[0])
            rest = rest.strip(_BLANKS)
            if quote and (not rest or rest[0] == "#"):
                return quoted
            if self.strict:
                raise _LineError(f"after the second {value[0]} comes nothing but a comment" if quote
                                 else f"the second {value[0]} is missing")  # fmt: skip
        if self.strict and value[:1] == "#" and value != text:
            raise _LineError("a comment to RFC 4, a value to CZMQ: put it in quotes, or leave out the =")
        value = value.partition("#")[0].rstrip(_BLANKS)
        if self.strict and value != value.strip("\v\f"):
            raise _LineError("a value that begins or ends with a vertical tab or a form feed stands in quotes")
        return value


FORMAT = ZflFormat()


class _LineError(Exception):
    """What is wrong with a line; which one it is, the reader knows."""


@attrs.define
class _Draft:
    """A node that is still being read."""

    name: str
    value: str | None
    children: list[_Draft] = attrs.field(factory=list)

    def node(self) -> Node:
        return Node(self.name, self.value, tuple(child.node() for child in self.children))


def _written(node: Node, indent: str) -> Iterator[str]:
    if not _WRITTEN_NAME.fullmatch(node.name):
        raise FormatError(f"{node.name!a:.80} is no name of ZFL: letters, digits and $ - _ @ . & + only")
    yield f"{indent}{node.name}" if node.value is None else f"{indent}{node.name} = {_quoted(node.name, node.value)}"
    for child in node.children:
        yield from _written(child, f"{indent}    ")


def _quoted(name: str, value: str) -> str:
    """Put a value in quotes; there are no escapes, so some cannot be written at all."""
    if any(letter in value for letter in "\0\r\n"):
        raise FormatError(f"{name} holds the end of a line or NUL, for which ZFL has no place")
    for quote in ('"', "'"):
        if quote not in value:
            return f"{quote}{value}{quote}"
    if "#" in value or value[0] in "\"'" or value != value.strip(" \t\v\f"):
        raise FormatError(f"{name} holds both kinds of quotes, and ZFL has no escapes for them")
    return value


def _encoded(text: str) -> bytes:
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise FormatError(f"{error.object[error.start]!a} is no character of UTF-8") from error
    if not text.isascii() and data.decode(errors="surrogateescape") != text:
        raise FormatError("bytes that are not UTF-8 stand side by side so that they would be read as UTF-8")
    return data
