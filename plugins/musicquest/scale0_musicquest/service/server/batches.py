"""What neighbours say to each other in the extended form, many searches and answers to a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from scale0_core.api import records
from scale0_musicquest import wire
from scale0_musicquest.names import name_fault
from scale0_musicquest.songs import MAX_HITS, MAX_HOLDERS, Hit, Holder, Query, Song

MAX_BATCH = 10_000
MAX_UUID = 64
MAX_HOPS = 1_000
MAX_WAIT_MS = 600_000


AskedSearch: TypeAlias = tuple[str, Query, int, int]
"""A search as a neighbour passes it on: its uuid, the query, the milliseconds left, and the hops so far."""

FoundSongs: TypeAlias = tuple[str, list[Hit], bool]
"""A neighbour's answer: the uuid, what was found, and whether all have answered."""


def read_searches(frame: bytes) -> list[AskedSearch]:
    """Read the searches of a message."""
    found: list[AskedSearch] = []
    for item in _items(frame):
        if type(item) is not list or len(item) != 4:
            raise records.MalformedError("a search is uuid, query, milliseconds left, hops")
        uuid, query, left, hops = item
        if type(uuid) is not str or not 0 < len(uuid) <= MAX_UUID or not uuid.isascii():
            raise records.MalformedError("a uuid has ASCII characters, and not too many")
        if type(left) is not int or type(hops) is not int or not (0 <= left <= MAX_WAIT_MS and 0 <= hops <= MAX_HOPS):
            raise records.MalformedError("a search has milliseconds left and hops")
        # nearly all are for one name, and many for the same
        exact = type(query) is dict and len(query) == 1 and type(query.get("name")) is str
        found.append((uuid, _exact(query["name"]) if exact else Query.from_json(query), left, hops))
    return found


def read_found(frame: bytes) -> list[FoundSongs]:
    """Read the answers of a message."""
    found: list[FoundSongs] = []
    for item in _items(frame):
        if type(item) is str:  # nothing, as from most servers for most searches
            found.append((item, [], True))
            continue
        if type(item) is not list or len(item) != 3:
            raise records.MalformedError("an answer is uuid, hits, complete; or a uuid alone")
        uuid, hits, complete = item
        if type(uuid) is not str or type(complete) is not bool:
            raise records.MalformedError("an answer is uuid, hits, complete; or a uuid alone")
        found.append((uuid, records.items_of(hits, _read_hit, most=MAX_HITS, what="hits"), complete))
    return found


def _items(frame: bytes) -> list[Any]:
    items = wire.from_json(frame)
    if type(items) is not list or len(items) > MAX_BATCH:
        raise records.MalformedError(f"it is a list of at most {MAX_BATCH} items")
    return items


def search_item(uuid: str, query: Query, left_ms: int, hops: int) -> str:
    """Give a search as JSON, which is the same for all neighbours."""
    return wire.write_json([uuid, {"name": query.name} if query.name else query.to_json(), left_ms, hops])


def found_item(uuid: str, hits: Sequence[Hit], complete: bool) -> list[Any] | str:
    """Give an answer as JSON's types."""
    if complete and not hits:
        return uuid
    return [uuid, [hit.to_json() for hit in hits], complete]


def pack_searches(items: list[str], limit: int = wire.MAX_JSON) -> list[bytes]:
    """Write searches into as few frames as they fit in."""
    whole = f"[{','.join(items)}]".encode()
    if (len(whole) <= limit and len(items) <= MAX_BATCH) or len(items) == 1:
        return [whole]
    half = len(items) // 2
    return pack_searches(items[:half], limit) + pack_searches(items[half:], limit)


def pack_found(items: list[Any], limit: int = wire.MAX_JSON) -> list[bytes]:
    """Write answers into as few frames as they fit in; one that is too large by itself loses hits."""
    whole = wire.to_json(items)
    if len(whole) <= limit and len(items) <= MAX_BATCH:
        return [whole]
    if len(items) > 1:
        half = len(items) // 2
        return pack_found(items[:half], limit) + pack_found(items[half:], limit)
    uuid, hits, _ = items[0]
    return pack_found([[uuid, hits[: len(hits) // 2], False]], limit)


def fitting(rows: list[Any], written: Callable[[list[Any]], bytes], limit: int = wire.MAX_JSON) -> bytes:
    """Write an answer with as many rows as fit: what is too long would not be read."""
    frame = written(rows)
    while len(frame) > limit and rows:
        rows = rows[: min(len(rows) - 1, len(rows) * limit // len(frame))]
        frame = written(rows)
    return frame


def is_uuid(uuid: object) -> bool:
    """Tell whether this may name a search."""
    return type(uuid) is str and 0 < len(uuid) <= MAX_UUID and uuid.isascii()


@lru_cache(4096)
def _exact(name: str) -> Query:
    if fault := name_fault(name):
        raise records.MalformedError(fault)
    return Query(name=name)


_FIELDS = ("name", "size", "sha256", "title", "artist", "album", "duration")


def _read_hit(value: object) -> Hit:
    table = records.table_of(value)
    try:
        song = _song(*map(table.get, _FIELDS))
    except TypeError:  # a list, say, which cannot be remembered
        song = Song.from_json(table)
    return Hit(song, tuple(records.list_of(table, "holders", Holder.from_json, most=MAX_HOLDERS)))


@lru_cache(4096, typed=True)
def _song(*values: object) -> Song:
    """Check what is told of a song; many are found again and again."""
    return Song.from_json({field: value for field, value in zip(_FIELDS, values, strict=True) if value is not None})
