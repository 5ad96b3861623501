"""XML 1.0, of which only elements, attributes and text are used.

Read by defusedxml with everything refused that reaches beyond the text or makes it grow: no DTD, no entities but the
five of XML, no namespaces. An attribute is read as an element with that text; only elements are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

_ENCODING = re.compile(r"""\A\ufeff?<\?xml[^>]*?\sencoding\s*=\s*["']([^"']*)""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_CHARACTER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


class XmlFormat:
    """Configurations as XML: a name is an element, a list an element repeated."""

    name = "XML"

    def read(self, data: bytes) -> Node:
        """Read one document; the root element is the outermost name."""
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text has {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        text = _decoded(data)
        builder = _Builder()
        parser = XMLParser(target=builder, forbid_dtd=True)
        try:
            parser.feed(text)
            parser.close()
        except ParseError as error:
            raise FormatError(str(error).partition(":")[0], error.position[0]) from error
        except DefusedXmlException as error:
            raise FormatError("DTDs and entities are not allowed", parser.parser.CurrentLineNumber) from error
        except _RefusedError as error:
            raise FormatError(str(error), parser.parser.CurrentLineNumber) from error
        return Node("", None, tuple(builder.document.children))

    def write(self, node: Node) -> bytes:
        """Write one document; there must be exactly one outermost name."""
        if len(node.outermost) != 1 or (not node.name and node.value):
            raise FormatError("a document of XML has one root element, and no text beside it")
        if node.depth > MAX_CONFIG_DEPTH:
            raise FormatError(f"names are nested more than {MAX_CONFIG_DEPTH} deep")
        lines = ['<?xml version="1.0" encoding="UTF-8"?>', *_lines(node.outermost[0], "")]
        data = "".join(f"{line}\n" for line in lines).encode()
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text would have {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        return data


def _decoded(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"byte {data[error.start]:#04x} is not UTF-8", line) from error
    declared = _ENCODING.match(text)
    if declared and declared[1].upper() not in ("UTF-8", "US-ASCII"):
        raise FormatError(f"the encoding must be UTF-8, not {declared[1]!a:.80}", 1)
    return text


class _RefusedError(Exception):
    """What is XML, but not of the kind that is used here."""


class _Element:
    """A node that is still being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: list[str] = []
        self.children: list[Node] = []

    def node(self) -> Node:
        text = "".join(self.texts)
        if not self.children:
            return Node(self.name, text or None)
        if text.strip(" \t\r\n"):
            raise _RefusedError(f"{self.name!a:.80} has text beside elements or attributes")
        return Node(self.name, None, tuple(self.children))


class _Builder:
    """Builds nodes as the parser goes, and stops it where it would go too deep."""

    def __init__(self) -> None:
        self.document = _Element("")
        self._open = [self.document]

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if len(self._open) + bool(attributes) > MAX_CONFIG_DEPTH:
            raise _RefusedError(f"elements are nested more than {MAX_CONFIG_DEPTH} deep")
        element = _Element(_plain(tag))
        element.children += [Node(_plain(name), text or None) for name, text in attributes.items()]
        self._open.append(element)

    def end(self, _: str) -> None:
        node = self._open.pop().node()
        self._open[-1].children.append(node)

    def data(self, text: str) -> None:
        self._open[-1].texts.append(text)

    def close(self) -> None:
        """Nothing is left to do."""


def _plain(name: str) -> str:
    if name.startswith("{"):
        raise _RefusedError(f"namespaces are not used here: {name!a:.80}")
    return name


def _lines(node: Node, indent: str) -> Iterator[str]:
    if not _NAME.fullmatch(node.name):
        raise FormatError(f"{node.name!a:.80} is no name that XML can have here")
    if not node.children:
        text = _text(node)
        yield f"{indent}<{node.name}>{text}</{node.name}>" if text else f"{indent}<{node.name}/>"
        return
    if node.value:
        raise FormatError(f"{node.name!a:.80} has a value and names below it, and XML has no place for both")
    yield f"{indent}<{node.name}>"
    for child in node.children:
        yield from _lines(child, f"{indent}  ")
    yield f"{indent}</{node.name}>"


def _text(node: Node) -> str:
    text = node.value or ""
    if wrong := _NO_CHARACTER.search(text):
        raise FormatError(f"{node.name!a:.80} holds {wrong[0]!a}, which is no character of XML")
    return text.translate(_ESCAPES)


FORMAT = XmlFormat()
