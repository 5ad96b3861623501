"""Songs, who holds them, and questions for them, with their JSON; what comes from outside is checked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from scale0_musicquest.names import name_fault

MAX_TEXT = 1_000
MAX_HOLDERS = 64
MAX_HITS = 1_000
MAX_SIZE = 2**40
"""Bytes of one song."""
MAX_ENDPOINT = 300
UNTOLD_SHA256 = "0" * 64
"""Of a song on an original server, which tells neither size nor digest."""

_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch
_Item = TypeVar("_Item")


class MalformedError(ValueError):
    """A message from outside is not what it should be; the text says why."""


@attrs.frozen
class Song:
    """One song: its name, which is that of its file, and what its tags say."""

    name: str
    size: int
    sha256: str
    title: str = ""
    artist: str = ""
    album: str = ""
    duration: float = 0.0
    replica: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return {
            "name": self.name,
            "size": self.size,
            "sha256": self.sha256,
            "title": self.title,
            "artist": self.artist,
            "album": self.album,
            "duration": self.duration,
            "replica": self.replica,
        }

    @classmethod
    def from_json(cls, value: object) -> Song:
        """Read it from JSON's types."""
        table = table_of(value)
        name = text_of(table, "name")
        if fault := name_fault(name):
            raise MalformedError(fault)
        return cls(
            name=name,
            size=whole_of(table, "size", most=MAX_SIZE),
            sha256=sha256_of(table),
            title=text_of(table, "title", ""),
            artist=text_of(table, "artist", ""),
            album=text_of(table, "album", ""),
            duration=number_of(table, "duration", 0.0),
            replica=flag_of(table, "replica"),
        )


@attrs.frozen
class Holder:
    """A server that holds a song: where it is, how much it has to do, and how far away it is."""

    endpoint: str
    load: float = 0.0
    hops: int = 0
    replica: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return {"endpoint": self.endpoint, "load": self.load, "hops": self.hops, "replica": self.replica}

    @classmethod
    def from_json(cls, value: object) -> Holder:
        """Read it from JSON's types."""
        table = table_of(value)
        return cls(
            endpoint_of(table, "endpoint"),
            number_of(table, "load", 0.0),
            whole_of(table, "hops", 0, most=10_000),
            flag_of(table, "replica"),
        )


@attrs.frozen
class Hit:
    """A song that was found, and who holds it, the best first."""

    song: Song
    holders: tuple[Holder, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types: the song's fields, and the holders."""
        told = self.song.to_json()
        del told["replica"]
        return {**told, "holders": [holder.to_json() for holder in self.holders]}

    @classmethod
    def from_json(cls, value: object) -> Hit:
        """Read it from JSON's types."""
        table = table_of(value)
        return cls(Song.from_json(table), tuple(list_of(table, "holders", Holder.from_json, most=MAX_HOLDERS)))


@attrs.frozen
class Query:
    """What a client looks for: one song by its exact name, or songs by parts of what is known of them."""

    name: str = ""
    text: str = ""
    title: str = ""
    artist: str = ""
    album: str = ""
    limit: int = 20

    @property
    def is_exact(self) -> bool:
        """Whether it asks for one song by its name."""
        return bool(self.name)

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types, without what is empty."""
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @classmethod
    def from_json(cls, value: object) -> Query:
        """Read it from JSON's types."""
        table = table_of(value)
        texts = {name: text_of(table, name, "") for name in ("name", "text", "title", "artist", "album")}
        if not any(texts.values()):
            raise MalformedError("a search says what it looks for: name, text, title, artist or album")
        if texts["name"] and (fault := name_fault(texts["name"])):
            raise MalformedError(fault)
        return cls(**texts, limit=max(1, whole_of(table, "limit", 20, most=MAX_HITS)))


# --- reading JSON of others -------------------------------------------------------------------------------------------


def table_of(value: object) -> Mapping[str, Any]:
    """Insist on an object."""
    if not isinstance(value, dict):
        raise MalformedError("an object is needed")
    return value


def text_of(table: Mapping[str, Any], key: str, default: str | None = None, *, most: int = MAX_TEXT) -> str:
    """Read a text."""
    value = table.get(key, default)
    if not isinstance(value, str) or len(value) > most or not (value.isascii() or _is_unicode(value)):
        raise MalformedError(f"{key} is a text of at most {most} characters")
    return value


def _is_unicode(value: str) -> bool:
    """Tell whether a text can be written again: JSON can say halves of surrogate pairs, UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def endpoint_of(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Read an address; an empty one is allowed where there is a default."""
    value = text_of(table, key, default, most=MAX_ENDPOINT)
    if value != default and not value.startswith(("tcp://", "ipc://", "inproc://")):
        raise MalformedError(f"{key} is an address such as tcp://127.0.0.1:5556")
    return value


def whole_of(table: Mapping[str, Any], key: str, default: int | None = None, *, most: int = 2**63 - 1) -> int:
    """Read a whole number that is not negative."""
    value = table.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedError(f"{key} is a whole number from 0 to {most}")
    return value


def number_of(table: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Read a number that is not negative."""
    value = table.get(key, default)
    if type(value) not in (int, float) or not 0 <= value < 1e15:
        raise MalformedError(f"{key} is a number that is not negative")
    return float(value)


def flag_of(table: Mapping[str, Any], key: str) -> bool:
    """Read a switch, off when it is not there."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise MalformedError(f"{key} is true or false")
    return value


def sha256_of(table: Mapping[str, Any]) -> str:
    """Read a digest."""
    value = text_of(table, "sha256")
    if not _SHA256(value):
        raise MalformedError("sha256 is 64 hexadecimal digits")
    return value


def list_of(
    table: Mapping[str, Any], key: str, read: Callable[[object], _Item], *, most: int = MAX_HITS
) -> list[_Item]:
    """Read a list, empty when it is not there."""
    return items_of(table.get(key, []), read, most=most, what=key)


def items_of(value: object, read: Callable[[object], _Item], *, most: int, what: str = "it") -> list[_Item]:
    """Read all items of a list."""
    if not isinstance(value, list) or len(value) > most:
        raise MalformedError(f"{what} is a list of at most {most} items")
    return [read(item) for item in value]
