"""What a server says of itself, read strictly."""

from __future__ import annotations

import re

import attrs

from scale0_core.api import records
from scale0_musicquest.songs import MAX_ENDPOINT, endpoint_of

MAX_ID = 64
MAX_IDS = 1_000
MAX_NUMBER = 10**9
DEFAULT_CAPACITY = 100
"""Of a server that does not say: clients for which it is made."""

_GRAPHIC = re.compile(r"[!-~]+").fullmatch


@attrs.frozen(kw_only=True)
class Report:
    """One report of a server: where it is, what it has, and where it stands in the tree."""

    id: str
    endpoint: str
    children_endpoint: str = ""
    capacity: int = DEFAULT_CAPACITY
    """How many clients it is made for; with 0 it gets none, which is how a server is drained."""
    songs: int = 0
    clients: int = 0
    slots: int = 0
    """How many children it takes in all."""
    children: tuple[str, ...] = ()
    father: str = ""
    path: tuple[str, ...] = ()
    """Its ancestors, the father first and the root last."""
    wants_father: bool = False
    """Whether this broker decides on its father, now and later; a server that was told one by its owner says no."""
    father_endpoint: str = ""
    lost: tuple[str, ...] = ()
    """Servers that it found dead."""
    version: tuple[int, int] | None = None
    """Epoch and sequence: which start of the server this is, and which report since; None when it does not say."""
    original: bool = False
    """It gave its address and nothing else, and it will not report again."""

    @classmethod
    def from_json(cls, endpoint: str, value: object) -> Report:
        """Read it from JSON's types."""
        table = records.table_of(value)
        children_endpoint = endpoint_of(table, "children_endpoint", "")
        slots = records.whole_of(table, "slots", 0, most=MAX_IDS)
        return cls(
            id=identity(table.get("id")),
            endpoint=endpoint,
            children_endpoint=_graphic(children_endpoint, "children_endpoint") if children_endpoint else "",
            capacity=records.whole_of(table, "capacity", DEFAULT_CAPACITY, most=MAX_NUMBER),
            songs=records.whole_of(table, "songs", 0, most=MAX_NUMBER),
            clients=records.whole_of(table, "clients", 0, most=MAX_NUMBER),
            # without an address nobody can become its child
            slots=slots if children_endpoint else 0,
            children=tuple(dict.fromkeys(records.list_of(table, "children", identity, most=MAX_IDS))),
            father=identity(table["father"]) if table.get("father") else "",
            path=tuple(records.list_of(table, "path", identity, most=MAX_IDS)),
            wants_father=records.flag_of(table, "wants_father") if "wants_father" in table else True,
            father_endpoint=endpoint_of(table, "father_endpoint", ""),
            lost=tuple(records.list_of(table, "lost", identity, most=MAX_IDS)),
            version=_version(table) if "sequence" in table else None,
        )


def _version(table: object) -> tuple[int, int]:
    fields = records.table_of(table)
    return records.whole_of(fields, "epoch", 0), records.whole_of(fields, "sequence")


def identity(value: object) -> str:
    """Read the id of a server."""
    text = records.text_of({"id": value}, "id", most=MAX_ID)
    return _graphic(text, "id")


def endpoint_in(frame: bytes) -> str:
    """Read an address that is a frame of its own."""
    if len(frame) > MAX_ENDPOINT:
        raise records.MalformedError(f"an address has at most {MAX_ENDPOINT} bytes")
    text = bytes(frame).decode("ascii", "replace")
    return _graphic(endpoint_of({"the frame": text}, "the frame"), "an address")


def _graphic(text: str, what: str) -> str:
    if not _GRAPHIC(text):
        raise records.MalformedError(f"{what} is made of printable ASCII characters, without blanks")
    return text
