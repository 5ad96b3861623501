"""The canonical tree between schema and text.

A format plugin turns bytes into a tree of names and texts, and back; it knows no schema. The schema, an attrs class,
says which names are lists, numbers or tables. So a list of one item survives every format, also those that cannot tell
it from a single value::

    attrs object  <-- to_tree, from_tree -->  Node  <-- a format plugin -->  bytes

Rules, the same for every format:

- A table is a node with children. A list is its name repeated, in order; lists of lists do not exist.
- Truth is ``1`` or ``0``; ``true``, ``false``, ``yes`` and ``no`` are read as well. Where a number or a text may stand,
  digits mean a number.
- No value and an empty value are the same. In a field that may be None both mean None.
- An empty list is left out where it is the default. Elsewhere it is the name once, without a value. So an empty node
  at the front of a list is no item; a list that really begins with an empty item has one more in front of it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs

from scale0_core.config.structure import is_union, shown, structure
from scale0_core.errors import Fault

T = TypeVar("T")

Kind = Literal["text", "number", "truth"]

ALIASES = {"preferred_broker": "prefered_broker", "broker": "network"}
"""Other spellings that are read; what is written is the name the seed documents use."""

_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DIGITS = re.compile(r"[0-9]{1,18}")
_REAL = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")


@attrs.frozen
class Node:
    """A name with a text, with children, or with neither.

    What a format reads is a node without a name whose children are the outermost names of the text. ``kind`` and
    ``listed`` are what the schema knows; formats that can show it may use them, and they do not count in comparisons.
    """

    name: str
    value: str | None = None
    children: tuple[Node, ...] = ()
    kind: Kind = attrs.field(default="text", kw_only=True, eq=False, repr=False)
    listed: bool = attrs.field(default=False, kw_only=True, eq=False, repr=False)

    @property
    def empty(self) -> bool:
        """Whether there is neither a value nor a child."""
        return not self.value and not self.children

    @property
    def outermost(self) -> tuple[Node, ...]:
        """The nodes that stand at the margin of a text: the children of a node without a name, else the node itself."""
        return (self,) if self.name else self.children

    @property
    def depth(self) -> int:
        """How many names are nested, at most; a node without a name does not count."""
        levels, level = 0, self.outermost
        while level:
            levels += 1
            level = tuple(child for node in level for child in node.children)
        return levels


def to_tree(config: Any, name: str) -> Node:
    """Make the tree of an attrs object; every field is written, defaults too."""
    return Node(name, None, tuple(_children(config)))


def from_tree(cls: type[T], node: Node, place: str) -> tuple[T | None, list[Fault]]:
    """Make an attrs object from a tree, or list all faults; ``place`` is what its outermost name should be.

    Takes what a format has read, with or without that outermost name, or the node of that name itself.
    """
    faults: list[Fault] = []
    body = _body(cls, node, place, faults)
    if body is None:
        return None, faults
    value, more = structure(cls, _table(cls, body, place, faults), place)
    faults += more
    return (None, faults) if faults else (value, [])


def tree_hash(node: Node) -> str:
    """Give the SHA-256 of a tree: equal for equal configurations, whatever format they came from.

    The order of different names does not count, that of equal names does. Hash what ``to_tree`` gives, since a text may
    leave out defaults and write a number in several ways.
    """
    digest = hashlib.sha256()
    for part in _encoded(node.outermost):
        digest.update(part)
    return digest.hexdigest()


def seed_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Replace other spellings of names in a plain table by the ones that the schema has."""
    return {name if (known := ALIASES.get(name, name)) in table else known: value for name, value in table.items()}


def _encoded(nodes: Iterable[Node]) -> Iterator[bytes]:
    ordered = sorted(nodes, key=lambda node: node.name)
    yield b"%d[" % len(ordered)
    for node in ordered:
        for text in (node.name, node.value or ""):
            data = text.encode("utf-8", "surrogatepass")
            yield b"%d:%b" % (len(data), data)
        yield from _encoded(node.children)
    yield b"]"


# --- from objects to trees --------------------------------------------------------------------------------------------


def _children(config: Any) -> Iterator[Node]:
    values = attrs.asdict(config, recurse=False)
    for field in _fields(type(config)).values():
        yield from _nodes(field.type, field.name, values[field.name], _default(field))


def _nodes(annotation: Any, name: str, value: Any, default: Any) -> list[Node]:
    """Write one field: no node, one, or a list of them."""
    kind, optional = _without_none(annotation)
    if value is None and optional and (default is None or not _is_list(kind)):
        return [] if default is None else [Node(name)]
    if _is_list(kind) and isinstance(value, Sequence):
        return _list_nodes(get_args(kind)[0], name, value, default)
    if _is_mapping(kind) and isinstance(value, Mapping):
        item = get_args(kind)[1]
        inner = [node for key, entry in value.items() for node in _nodes(item, key, entry, attrs.NOTHING)]
        return [] if not inner and default == {} else [Node(name, None, tuple(inner))]
    return [_node(kind, name, value)]


def _list_nodes(item: Any, name: str, values: Sequence[Any], default: Any) -> list[Node]:
    nodes = [_node(item, name, value, listed=True) for value in values]
    if nodes and not nodes[0].empty:
        return nodes
    if not nodes and default in ((), []):
        return []
    return [Node(name, listed=True), *nodes]


def _node(annotation: Any, name: str, value: Any, *, listed: bool = False) -> Node:
    if attrs.has(type(value)):
        return Node(name, None, tuple(_children(value)), listed=listed)
    if isinstance(value, bool):
        return Node(name, "1" if value else "0", kind="truth", listed=listed)
    if isinstance(value, int | float) and math.isfinite(value):
        number = float(value) if annotation is float else value
        return Node(name, repr(number), kind="number", listed=listed)
    if isinstance(value, str):
        return Node(name, value, listed=listed)
    raise TypeError(f"{name} holds {shown(value)}, for which no format has a place")


# --- from trees to objects --------------------------------------------------------------------------------------------


def _body(cls: type, node: Node, place: str, faults: list[Fault]) -> Node | None:
    """Give the node whose children are the fields: past the outermost name if it is there."""
    if node.name or len(node.children) != 1:
        return node
    (only,) = node.children
    fields = _fields(cls)
    if _known(only.name, fields) in fields:
        return node
    if ALIASES.get(only.name, only.name) == place:
        return only
    if not only.children:
        return node
    faults.append(Fault(_printable(only.name), "unknown name of a whole configuration", f"known: {place}"))
    return None


def _table(cls: Any, node: Node, place: str, faults: list[Fault]) -> Any:
    """Make the plain table of an attrs class; what the schema does not know is left to ``structure``."""
    if (text := _text_of_table(node, place, faults)) is not None:
        return text
    fields = _fields(cls)
    table: dict[str, Any] = {}
    for name, nodes in _grouped(node.children, fields).items():
        if name in fields:
            table[name] = _value(fields[name].type, nodes, f"{place}.{name}" if place else name, faults)
        else:
            table[_printable(name)] = nodes[0].value
    return table


def _text_of_table(node: Node, place: str, faults: list[Fault]) -> str | None:
    """Give the text that stands where a table should be, if any; blanks are how formats with end tags look tidy."""
    if not node.value or not node.value.strip():
        return None
    if node.children:
        faults.append(Fault(place, f"has a value, {shown(node.value)}, and names below it"))
        return None
    return node.value


def _value(annotation: Any, nodes: Sequence[Node], place: str, faults: list[Fault]) -> Any:
    kind, _ = _without_none(annotation)
    if _is_list(kind):
        item = get_args(kind)[0]
        items = nodes[1:] if nodes[0].empty else nodes
        return [_single(item, node, f"{place}[{index}]", faults) for index, node in enumerate(items)]
    if len(nodes) > 1:
        faults.append(Fault(place, f"is given {len(nodes)} times, and takes one value"))
    return _single(annotation, nodes[0], place, faults)


def _single(annotation: Any, node: Node, place: str, faults: list[Fault]) -> Any:
    kind, optional = _without_none(annotation)
    if optional and node.empty:
        return None
    if attrs.has(kind):
        return _table(kind, node, place, faults)
    if _is_mapping(kind):
        text = _text_of_table(node, place, faults)
        groups = _grouped(node.children, {}).items()
        item = get_args(kind)[1]
        return text or {name: _value(item, nodes, f"{place}.{name}", faults) for name, nodes in groups}
    if node.children:
        return {_printable(child.name): child.value for child in node.children}  # structure says what is wrong with it
    return _scalar(kind, node.value or "", place, faults)


def _scalar(kind: Any, text: str, place: str, faults: list[Fault]) -> Any:
    """Read a text as the schema says; one that does not fit stays a text, and ``structure`` tells."""
    if is_union(kind):
        # a text takes anything, so it comes last; a sign is no digit, so that "-1" stays a text beside a number
        parts = [part for part in get_args(kind) if part is not str]
        numeric = bool(_DIGITS.fullmatch(text)) or int not in parts
        attempts = [_scalar(part, text, place, faults) for part in parts if part is not int or numeric]
        return next((value for value in attempts if not isinstance(value, str)), text)
    if kind is bool:
        return _TRUTHS.get(text.lower(), text)
    if kind is int and _WHOLE.fullmatch(text):
        return int(text)
    if kind is float and _REAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == text), text)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        faults.append(Fault(place, f"is not UTF-8: {shown(text)}"))
    return text


def _grouped(nodes: Iterable[Node], fields: Mapping[str, Any]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_known(node.name, fields), []).append(node)
    return groups


def _known(name: str, fields: Mapping[str, Any]) -> str:
    other = ALIASES.get(name, name)
    return other if name not in fields and other in fields else name


def _printable(name: str) -> str:
    return name if name.isprintable() and len(name) <= 80 else shown(name)


# --- what the schema says ---------------------------------------------------------------------------------------------


def _fields(cls: Any) -> dict[str, attrs.Attribute[Any]]:
    return {field.name: field for field in attrs.fields(attrs.resolve_types(cls))}


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return attrs.NOTHING if default.takes_self else default.factory()
    return default


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Give the annotation without ``| None``, and whether that was there."""
    parts = get_args(annotation) if is_union(annotation) else ()
    if type(None) not in parts:
        return annotation, False
    others = tuple(part for part in parts if part is not type(None))
    kind = others[0]
    for other in others[1:]:
        kind = kind | other
    return kind, True


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list)


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)
