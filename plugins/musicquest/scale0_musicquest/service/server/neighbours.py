"""A neighbour in the tree: the father, or a child; and what is gathered for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from scale0_core.api import Send, records
from scale0_musicquest import wire
from scale0_musicquest.service.server.batches import pack_found, pack_searches
from scale0_musicquest.songs import MAX_TEXT, endpoint_of

FATHER, CHILDREN = "father", "children"
MAX_ID = 64
MAX_PATH = 1_000
MAX_LISTED = 1_000

_GRAPHIC = re.compile(r"[!-~]+").fullmatch


@attrs.define(eq=False)
class Neighbour:
    """One server that is directly connected: its routing id (empty for the father), and what is known of it."""

    peer: bytes
    ident: str
    endpoint: str
    children_endpoint: str
    extended: bool
    heard: float
    searches: list[str] = attrs.field(factory=list)
    """Searches that leave with the next message."""
    found: list[Any] = attrs.field(factory=list)
    """Answers that leave with the next message."""

    @property
    def is_father(self) -> bool:
        """Whether it is above this server."""
        return not self.peer

    def send(self, *frames: bytes) -> Send:
        """Write a message to it."""
        return (CHILDREN, (self.peer, *frames)) if self.peer else (FATHER, frames)

    def say(self, word: bytes, *frames: bytes) -> Send:
        """Write a message in the extended form to it."""
        return self.send(wire.HEADER, word, *frames)

    def flush(self) -> list[Send]:
        """Give all that was gathered for it, in as few messages as possible."""
        sends: list[Send] = []
        if self.searches:
            sends += [self.say(wire.SEARCH, frame) for frame in pack_searches(self.searches)]
            self.searches = []
        if self.found:
            sends += [self.say(wire.FOUND, frame) for frame in pack_found(self.found)]
            self.found = []
        return sends


@attrs.frozen
class Introduction:
    """What a server says of itself when it joins, or is joined; ``path`` are its ancestors, the nearest first."""

    ident: str
    endpoint: str
    children_endpoint: str
    path: tuple[str, ...] = ()
    grandfather: str = ""

    @classmethod
    def read(cls, frame: bytes) -> Introduction:
        """Read it from JSON."""
        table = records.table_of(wire.from_json(frame))
        return cls(
            ident_of(table, "id"),
            endpoint_of(table, "endpoint"),
            endpoint_of(table, "children_endpoint"),
            path_of(table),
            endpoint_of(table, "grandfather", ""),
        )


def ident_of(table: Mapping[str, Any], key: str) -> str:
    """Read the id of a server."""
    return _ident(table.get(key))


def path_of(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the ids of a server's ancestors."""
    return tuple(records.items_of(table.get("path", []), _ident, most=MAX_PATH, what="path"))


def read_addresses(frame: bytes) -> list[str]:
    """Read a list of addresses."""
    found = records.items_of(wire.from_json(frame), _text, most=MAX_LISTED)
    return [endpoint_of({"address": address}, "address") for address in found]


def _ident(value: object) -> str:
    ident = records.text_of({"id": value}, "id", most=MAX_ID)
    if not _GRAPHIC(ident):
        raise records.MalformedError("an id is made of printable ASCII characters, without blanks")
    return ident


def _text(value: object) -> str:
    return records.text_of({"text": value}, "text", most=MAX_TEXT)
