"""For tests of the page: a source of songs in memory, as the page sees a client, and the page's real HTTP server."""

from __future__ import annotations

import hashlib
import io
import math
import shutil
import struct
import threading
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from scale0_core.api import Scale0Error
from scale0_core.testing import BrokerStarter
from scale0_musicquest.songs import Hit, Holder, Song
from scale0_musicquest.tunes import make_tunes
from scale0_musicquest.web.app import PageServer, listen

RATE = 8_000
ANY_PORT = ["tcp://127.0.0.1:*"]
SERVERS = 3


def tune(seconds: float, pitch: float) -> bytes:
    """Make a tone as a WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        count = int(seconds * RATE)
        file.writeframes(
            b"".join(struct.pack("<h", int(6_000 * math.sin(2 * math.pi * pitch * at / RATE))) for at in range(count))
        )
    return out.getvalue()


class Result(NamedTuple):
    hits: tuple[Hit, ...]
    complete: bool
    cached: bool
    suggestions: tuple[str, ...]


class Row(NamedTuple):
    id: str
    endpoint: str
    father: str
    clients: int
    capacity: int
    songs: int
    root: bool


class Played(NamedTuple):
    name: str
    title: str
    artist: str
    count: float


class Shelves:
    """Songs on some servers of a tree, all in memory; ``broken`` makes every question fail."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.on: dict[str, list[Song]] = {}
        self.bytes: dict[str, bytes] = {}
        self.plays: dict[str, int] = {}
        self.server = ""
        self.broken: Exception | None = None
        self.dead: set[str] = set()
        self.reads: list[tuple[str, int, int]] = []
        self.searches: list[str] = []

    def add_server(self, ident: str, father: str = "", clients: int = 0, capacity: int = 20) -> str:
        endpoint = f"tcp://127.0.0.1:{5556 + len(self.rows)}"
        self.rows.append(Row(ident, endpoint, father, clients, capacity, 0, not father))
        self.on[endpoint] = []
        self.server = self.server or endpoint
        return endpoint

    def add_song(self, name: str, data: bytes, *endpoints: str, **tags: Any) -> Song:
        song = Song(name, len(data), hashlib.sha256(data).hexdigest(), **tags)
        self.bytes[song.sha256] = data
        for endpoint in endpoints:
            self.on[endpoint].append(song)
        return song

    # what the page uses

    def search(self, text: str = "", *, name: str = "", limit: int = 20, fresh: bool = False) -> Result:
        self.searches.append(text or name)
        self.fail()
        hits: dict[str, Hit] = {}
        for endpoint, songs in self.on.items():
            for song in songs:
                said = f"{song.name} {song.title} {song.artist} {song.album}".lower()
                if endpoint not in self.dead and (song.name == name if name else text.lower() in said):
                    before = hits.get(song.sha256, Hit(song)).holders
                    hits[song.sha256] = Hit(song, (*before, Holder(endpoint)))
        meant = (
            ()
            if hits or name
            else tuple(sorted({song.title for song in self.all() if song.title[:2] == text[:2].title()}))
        )
        return Result(tuple(hits.values())[:limit], True, False, meant)

    def all(self) -> list[Song]:
        return [song for songs in self.on.values() for song in songs]

    def fail(self) -> None:
        if self.broken is not None:
            raise self.broken

    def read(self, hit: Hit, offset: int, size: int) -> bytes:
        self.fail()
        self.reads.append((hit.song.name, offset, size))
        if all(holder.endpoint in self.dead for holder in hit.holders):
            raise Scale0Error("no holder answers")
        self.plays[hit.song.name] = self.plays.get(hit.song.name, 0) + (offset == 0)
        return self.bytes[hit.song.sha256][offset : offset + size]

    def servers(self) -> list[Row]:
        self.fail()
        return [row._replace(songs=len(self.on[row.endpoint])) for row in self.rows]

    def songs(self, endpoint: str = "", offset: int = 0, limit: int = 1000) -> tuple[int, list[Song]]:
        self.fail()
        songs = sorted(self.on[endpoint], key=lambda song: song.name)
        return len(songs), songs[offset : offset + limit]

    def top(self, limit: int = 10) -> list[Played]:
        self.fail()
        by_name = {song.name: song for song in self.all()}
        best = sorted(self.plays.items(), key=lambda item: -item[1])[:limit]
        return [Played(name, by_name[name].title, by_name[name].artist, count) for name, count in best]


def small_world() -> Shelves:
    """Make a tree of six servers with a dozen songs."""
    world = Shelves()
    rio = world.add_server("rio", "", 7)
    lima, oslo = world.add_server("lima", "rio", 14), world.add_server("oslo", "rio", 3)
    cairo, kyoto = world.add_server("cairo", "lima", 0), world.add_server("kyoto", "lima", 19)
    accra = world.add_server("accra", "oslo", 5)
    world.server = oslo
    songs = [
        ("Blue Hour", "Ida Falk", "Northern Rooms", 12, (rio, kyoto)),
        ("Blue River, Slow Boat", "The Lanterns", "Tidewater", 9, (cairo,)),
        ("Copper Rain", "Ida Falk", "Northern Rooms", 8, (lima, accra)),
        ("A Lighthouse Keeper Counts the Evening Ships Again and Again", "The Lanterns", "Tidewater", 7, (oslo,)),
        ("Paper Moons", "Quiet Harbour", "Blue Notebook", 10, (accra, rio, cairo)),
        ("Étude for Late Trains", "Noor Haddad", "", 11, (kyoto,)),
    ]
    for number, (title, artist, album, seconds, where) in enumerate(songs):
        name = title.lower().replace(" ", "-").replace(",", "") + ".wav"
        tags = {"title": title, "artist": artist, "album": album, "duration": float(seconds)}
        world.add_song(name, tune(seconds, 220 + 40 * number), *where, **tags)
    return world


class Listening(NamedTuple):
    """The page's server, running."""

    port: int
    link: str
    announced: list[str]
    server: PageServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Give a browser that came in by the link."""
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            assert client.get(self.server.guard.link, follow_redirects=True).status_code == 200
            yield client


@contextmanager
def listening(source: Any) -> Iterator[Listening]:
    """Serve the page for a source, on a port of its own."""
    announced: list[str] = []
    with listen(0) as taken:
        page = PageServer(source, taken, announced.append)
        thread = threading.Thread(target=page.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: page.started or not thread.is_alive())
            yield Listening(taken.getsockname()[1], page.guard.link, announced, page)
        finally:
            page.should_exit = True
            thread.join(20)
    assert not thread.is_alive(), "the page's server did not end"


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


class Network(NamedTuple):
    """A broker and its servers, each with some of the tunes."""

    clients: str
    tunes: list[Path]
    endpoints: list[str]


@contextmanager
def real_network(folder: Path) -> Iterator[Network]:
    """Start a broker and three servers in a row, each a process, with the last tune on two of them."""
    tunes = make_tunes(folder / "all", count=4, seconds=6.0)
    with BrokerStarter() as start:
        broker = start(
            ["musicquest-broker"],
            {"plugin": {"musicquest-broker": {"bind_servers": ANY_PORT, "bind_clients": ANY_PORT, "lease": 3.0}}},
        )
        endpoints = []
        for number in range(SERVERS):
            music = folder / f"server{number}"
            music.mkdir()
            for tune in (tunes[number], tunes[-1]) if number else (tunes[0],):
                shutil.copy(tune, music)
            server = start(
                ["musicquest-server"],
                {
                    "plugin": {
                        "musicquest-server": {
                            "music": str(music),
                            "clients": ANY_PORT,
                            "children": ANY_PORT,
                            "broker": broker.address("musicquest-broker", "servers"),
                            "slots": 1,
                            "rescan": 0.5,
                            "heartbeat": 0.5,
                            "replicate_after": 0,
                        }
                    }
                },
            )
            endpoints.append(server.address("musicquest-server", "clients"))
        yield Network(broker.address("musicquest-broker", "clients"), tunes, endpoints)
