"""What the page needs of a client, and how its songs, servers and failures are told as JSON's types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

import attrs

from scale0_musicquest.names import name_fault
from scale0_musicquest.songs import Hit, Song

_NAMED = re.compile(r"(.+)-[0-9a-f]{8}").fullmatch
"""An id as servers draw it: the name of their broker, and something that is theirs alone."""
_DRAWN_BY_CHANCE = re.compile(r"[0-9a-f]{16,}").fullmatch


class Found(Protocol):
    """What a search found."""

    @property
    def hits(self) -> tuple[Hit, ...]:
        """The songs."""

    @property
    def complete(self) -> bool:
        """Whether every server answered in time."""

    @property
    def cached(self) -> bool:
        """Whether the answer was remembered."""

    @property
    def suggestions(self) -> tuple[str, ...]:
        """What may have been meant, when nothing was found."""


class Server(Protocol):
    """A server, as the broker knows it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""

    @property
    def father(self) -> str:
        """The id of the server above it; empty for a root."""

    @property
    def clients(self) -> int:
        """How many clients it has."""

    @property
    def capacity(self) -> int:
        """How many it would like to have at most."""

    @property
    def songs(self) -> int:
        """How many songs it holds."""

    @property
    def root(self) -> bool:
        """Whether it is the root of the tree."""


class Played(Protocol):
    """A song that is played often."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def title(self) -> str:
        """Its title; may be empty."""

    @property
    def artist(self) -> str:
        """Who plays; may be empty."""

    @property
    def count(self) -> float:
        """How often it was asked for; old times count less."""


class MusicSource(Protocol):
    """What the page asks of ``MusicClient``; all of it may block, and may be called by several threads."""

    @property
    def server(self) -> str:
        """The endpoint of the client's own server."""

    def search(self, text: str = "", *, name: str = "", limit: int = 20, fresh: bool = False) -> Found:
        """Look for songs."""

    def read(self, hit: Hit, offset: int, size: int) -> bytes:
        """Read a range of a song, from any of its holders."""

    def servers(self) -> Sequence[Server]:
        """List all servers."""

    def songs(self, endpoint: str = "", offset: int = 0, limit: int = 1000) -> tuple[int, Sequence[Song]]:
        """List the songs of one server, and tell how many there are."""

    def top(self, limit: int = 10) -> Sequence[Played]:
        """List the songs that are played most."""


@attrs.frozen
class Trouble:
    """A failure, in words for the page."""

    what: str
    why: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return {"what": self.what, "why": self.why, "next": self.remedy}


def song_url(name: str, sha256: str = "") -> str:
    """Give the address of a song's bytes on this page."""
    return f"/api/song/{quote(name, safe='')}" + (f"?sha={sha256}" if sha256 else "")


def song_json(song: Song) -> dict[str, Any]:
    """Tell of a song."""
    told = {**song.to_json(), "url": song_url(song.name, song.sha256)}
    return {**told, "title": song.title or song.name}


def hit_json(hit: Hit) -> dict[str, Any]:
    """Tell of a song that was found, with who holds it."""
    return {**song_json(hit.song), "holders": [holder.to_json() for holder in hit.holders]}


def found_json(found: Found) -> dict[str, Any]:
    """Tell what a search found."""
    return {
        "hits": [hit_json(hit) for hit in found.hits],
        "complete": found.complete,
        "cached": found.cached,
        "suggestions": list(found.suggestions),
    }


def label(server: Server) -> str:
    """Give the name by which people know a server; an id drawn by chance says less than where the server is."""
    if _DRAWN_BY_CHANCE(server.id):
        return server.endpoint.partition("://")[2]
    named = _NAMED(server.id)
    return named[1] if named else server.id


def server_json(server: Server, own: str) -> dict[str, Any]:
    """Tell of a server; ``own`` is the endpoint of the one that this page's client uses."""
    return {
        "id": server.id,
        "label": label(server),
        "endpoint": server.endpoint,
        "father": server.father,
        "clients": server.clients,
        "capacity": server.capacity,
        "songs": server.songs,
        "root": server.root,
        "own": bool(own) and server.endpoint == own,
    }


def top_json(rows: Sequence[Played]) -> list[dict[str, Any]]:
    """Tell which songs are played most; a row whose name no song can have is left out."""
    return [
        {
            "name": row.name,
            "title": row.title or row.name,
            "artist": row.artist,
            "count": max(1, round(row.count)),
            "url": song_url(row.name),
        }
        for row in rows
        if not name_fault(row.name)
    ]
