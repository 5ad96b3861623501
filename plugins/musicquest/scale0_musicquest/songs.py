"""Songs, who holds them, and questions for them, with their JSON; what comes from outside is checked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from scale0_core.api import records
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
        table = records.table_of(value)
        name = records.text_of(table, "name")
        if fault := name_fault(name):
            raise records.MalformedError(fault)
        return cls(
            name=name,
            size=records.whole_of(table, "size", most=MAX_SIZE),
            sha256=sha256_of(table),
            title=records.text_of(table, "title", ""),
            artist=records.text_of(table, "artist", ""),
            album=records.text_of(table, "album", ""),
            duration=records.number_of(table, "duration", 0.0),
            replica=records.flag_of(table, "replica"),
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
        table = records.table_of(value)
        return cls(
            endpoint_of(table, "endpoint"),
            records.number_of(table, "load", 0.0),
            records.whole_of(table, "hops", 0, most=10_000),
            records.flag_of(table, "replica"),
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
        table = records.table_of(value)
        return cls(Song.from_json(table), tuple(records.list_of(table, "holders", Holder.from_json, most=MAX_HOLDERS)))


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
        table = records.table_of(value)
        texts = {name: records.text_of(table, name, "") for name in ("name", "text", "title", "artist", "album")}
        if not any(texts.values()):
            raise records.MalformedError("a search says what it looks for: name, text, title, artist or album")
        if texts["name"] and (fault := name_fault(texts["name"])):
            raise records.MalformedError(fault)
        return cls(**texts, limit=max(1, records.whole_of(table, "limit", 20, most=MAX_HITS)))


# --- reading JSON of others -------------------------------------------------------------------------------------------


def endpoint_of(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Read an address; an empty one is allowed where there is a default."""
    value = records.text_of(table, key, default, most=MAX_ENDPOINT)
    if value != default and not value.startswith(("tcp://", "ipc://", "inproc://")):
        raise records.MalformedError(f"{key} is an address such as tcp://127.0.0.1:5556")
    return value


def sha256_of(table: Mapping[str, Any]) -> str:
    """Read a digest."""
    value = records.text_of(table, "sha256")
    if not _SHA256(value):
        raise records.MalformedError("sha256 is 64 hexadecimal digits")
    return value
