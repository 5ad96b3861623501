"""JSON (RFC 8259), strictly: UTF-8, no name twice in an object, no NaN, no list in a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NoReturn

from scale0_core.api import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, FormatError, Node

_TRUTHS = {"1": True, "0": False}


class JsonFormat:
    """Configurations as JSON. Numbers and truth are written as such, and read as the texts that a tree has."""

    name = "JSON"

    def read(self, data: bytes) -> Node:
        """Read one object; its members are the outermost names."""
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text has {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        members = _parsed(data)
        if not isinstance(members, _Object):
            raise FormatError("the outermost value must be an object, as in {...}")
        return Node("", None, _children(members, 1))

    def write(self, node: Node) -> bytes:
        """Write one object."""
        if node.depth > MAX_CONFIG_DEPTH:
            raise FormatError(f"names are nested more than {MAX_CONFIG_DEPTH} deep")
        if not node.name and node.value:
            raise FormatError("a value without a name cannot be written as JSON")
        try:
            data = json.dumps(_members(node.outermost), indent=2, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError as error:
            raise FormatError(f"{error.object[error.start]!a} is no character of UTF-8") from error
        if len(data) > MAX_CONFIG_BYTES:
            raise FormatError(f"the text would have {len(data)} bytes, and {MAX_CONFIG_BYTES} are allowed")
        return data


class _Object(tuple[tuple[str, Any], ...]):
    """The members of an object in their order; a class of its own, to be told from a list."""

    __slots__ = ()


def _parsed(data: bytes) -> Any:
    try:
        # numbers stay the text they are, so that none is too large or loses a digit
        return json.loads(
            data.decode(), object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=_no_number
        )
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"byte {data[error.start]:#04x} is not UTF-8", line) from error
    except json.JSONDecodeError as error:
        raise FormatError(f"{error.msg} at column {error.colno}", error.lineno) from error
    except RecursionError as error:
        raise FormatError(f"values are nested more than {MAX_CONFIG_DEPTH} deep") from error


def _object(members: list[tuple[str, Any]]) -> _Object:
    seen = set()
    for name, _ in members:
        if name in seen:
            raise FormatError(f"the name {name!a} stands twice in one object")
        if not name:
            raise FormatError("a name is empty")
        _check_text(name)
        seen.add(name)
    return _Object(members)


def _no_number(text: str) -> NoReturn:
    raise FormatError(f"{text} is no number of JSON")


def _check_text(text: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise FormatError(f"half of a surrogate pair in {text!a:.80}")


def _children(members: _Object, depth: int) -> tuple[Node, ...]:
    if depth > MAX_CONFIG_DEPTH and members:
        raise FormatError(f"values are nested more than {MAX_CONFIG_DEPTH} deep")
    return tuple(node for name, value in members for node in _nodes(name, value, depth))


def _nodes(name: str, value: Any, depth: int) -> list[Node]:
    if not isinstance(value, list):
        return [_node(name, value, depth)]
    nodes = [_node(name, item, depth) for item in value]
    # an empty node at the front of a list is no item: see scale0_core.config.tree
    return nodes if nodes and not nodes[0].empty else [Node(name), *nodes]


def _node(name: str, value: Any, depth: int) -> Node:
    if isinstance(value, _Object):
        return Node(name, None, _children(value, depth + 1))
    if isinstance(value, list):
        raise FormatError(f"{name!a:.80} holds a list in a list")
    if isinstance(value, bool):
        return Node(name, "1" if value else "0")
    if value is not None:
        _check_text(value)
    return Node(name, value)


def _members(nodes: Sequence[Node]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, group in groupby(sorted(nodes, key=_first_places(nodes)), key=lambda node: node.name):
        if not name:
            raise FormatError("a node without a name cannot be written as JSON")
        same = list(group)
        if len(same) == 1 and not same[0].listed:
            members[name] = _value(same[0])
        else:
            members[name] = [_value(node) for node in (same[1:] if same[0].empty else same)]
    return members


def _first_places(nodes: Sequence[Node]) -> Any:
    """Sort nodes of one name together, at the place of the first of them."""
    places: dict[str, int] = {}
    for place, node in enumerate(nodes):
        places.setdefault(node.name, place)
    return lambda node: places[node.name]


def _value(node: Node) -> Any:
    if node.children:
        if node.value:
            raise FormatError(f"{node.name!a:.80} has a value and names below it, and JSON has no place for both")
        return _members(node.children)
    if node.value is None:
        return None
    if node.kind == "truth":
        return _TRUTHS.get(node.value, node.value)
    return _number(node.value) if node.kind == "number" else node.value


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            number: int | float = kind(text)
        except ValueError:
            continue
        if repr(number) == text:
            return number
    return text


FORMAT = JsonFormat()
