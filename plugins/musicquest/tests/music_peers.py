"""A broker and servers that do as a test says, behind real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from abc import ABC, abstractmethod
from collections import Counter

import zmq

from scale0_core.testing import Flavour
from scale0_musicquest import aio, wire
from scale0_musicquest.client import MusicClient
from scale0_musicquest.songs import Hit, Holder, Song


class Peer(ABC):
    """A ROUTER socket on a thread of its own; ``answer`` says what comes back."""

    def __init__(self, address: str = "tcp://127.0.0.1:*") -> None:
        self.seen: list[tuple[bytes, tuple[bytes, ...]]] = []
        """The word and the rest of all messages."""
        self.counts: Counter[bytes] = Counter()
        self.changed = threading.Condition()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            if not self._socket.poll(20):
                continue
            message = wire.split(tuple(self._socket.recv_multipart()))
            with self.changed:
                self.seen.append((message.word, message.rest))
                self.counts[message.word] += 1
                self.changed.notify_all()
            for frames in self.answer(message):
                self._socket.send_multipart(frames, copy=False)
        self._socket.close()

    @abstractmethod
    def answer(self, message: wire.Message) -> list:
        """Give what to send back."""

    def wait_for(self, word: bytes, count: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.counts[word] >= count, 30), self.counts

    def said(self, word: bytes) -> list[tuple[bytes, ...]]:
        return [rest for seen, rest in self.seen if seen == word]

    def die(self) -> None:
        """Close the socket: whoever is connected notices."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._context.term()


class FakeBroker(Peer):
    """Gives the servers it has, one after the other; ``bye`` while it has none."""

    def __init__(self, *servers: FakeServer, address: str = "tcp://127.0.0.1:*") -> None:
        self.servers = list(servers)
        super().__init__(address)

    def answer(self, message):
        if message.word == wire.SERVERS:
            rows = [
                {"id": f"s{number}", "endpoint": server.endpoint, "father": "s0" if number else "", "clients": 1,
                 "capacity": 100, "songs": len(server.songs), "root": not number}
                for number, server in enumerate(self.servers)
            ]  # fmt: skip
            return [wire.answer(message, wire.SERVERS, wire.to_json(rows))]
        avoid = wire.one_json(message).get("avoid", [])
        fit = [server for server in self.servers if server.endpoint not in avoid]
        if not fit:
            return [wire.answer(message, wire.BYE, wire.to_json({"retry_ms": 1000}))]
        told = {"id": "s", "endpoint": fit[0].endpoint}
        return [wire.answer(message, wire.HELLO, wire.to_json(told))]


class FakeServer(Peer):
    """Has songs; knows other holders; may fail in several ways."""

    def __init__(self, songs: dict[str, bytes] | None = None, *, heartbeat_ms: int = 2000) -> None:
        self.songs = dict(songs or {})
        self.others: list[FakeServer] = []
        """Whom it names as holders, beside itself."""
        self.heartbeat_ms = heartbeat_ms
        self.silent: set[bytes] = set()
        """Words that it does not answer."""
        self.refuses: dict[bytes, tuple[int, str]] = {}
        self.dies_after = -1
        """Chunks until it is gone."""
        self.damages = False
        self.sent = 0
        self.cached = False
        super().__init__()

    def song(self, name: str) -> Song:
        return song_of(name, self.songs[name])

    def hit(self, name: str) -> Hit | None:
        holders = [server for server in (self, *self.others) if name in server.songs]
        if not holders:
            return None
        return Hit(holders[0].song(name), tuple(Holder(server.endpoint) for server in holders))

    def answer(self, message):
        word = message.word
        if word in self.silent:
            return []
        if word in self.refuses:
            return [wire.error(message, *self.refuses[word])]
        if word == wire.FETCH:
            return self._fetch(message)
        answers = {
            wire.HELLO: (wire.HELLO, {"id": "s", "heartbeat_ms": self.heartbeat_ms, "chunk": 250_000}),
            wire.STALE: (wire.OK, {}),
            wire.TOP: (wire.TOP, [{"name": "a.wav", "title": "A", "artist": "X", "count": 3}]),
            wire.STATS: (wire.STATS, {"id": "s", "songs": len(self.songs)}),
            wire.PLAN: (wire.OK, {"accepted": ["a.wav"], "refused": []}),
        }
        if word in answers:
            back, told = answers[word]
            return [wire.answer(message, back, wire.to_json(told))]
        if word == wire.SEARCH:
            return [wire.answer(message, wire.FOUND, wire.to_json(self._found(wire.one_json(message))))]
        if word == wire.LIST:
            page = wire.one_json(message)
            rows = [self.song(name).to_json() for name in sorted(self.songs)]
            told = {"total": len(rows), "songs": rows[page["offset"] :][: page["limit"]]}
            return [wire.answer(message, wire.LIST, wire.to_json(told))]
        return [wire.answer(message, word)]

    def _found(self, query: dict) -> dict:
        text = query.get("text", "")
        known = {name for server in (self, *self.others) for name in server.songs}
        names = [query["name"]] if "name" in query else sorted(name for name in known if text in name)
        hits = [hit.to_json() for name in names if (hit := self.hit(name)) is not None]
        meant = [] if hits else sorted(known)[:3]
        return {"hits": hits, "complete": True, "cached": self.cached and not query["fresh"], "suggestions": meant}

    def _fetch(self, message) -> list:
        name = message.rest[0].decode()
        if name not in self.songs:
            return [wire.answer(message, wire.NOT_FOUND, message.rest[0])]
        if self.sent == self.dies_after:
            self.die()
            return []
        self.sent += 1
        offset, size = wire.read_number(message.rest[1]), wire.read_number(message.rest[2])
        data = self.songs[name][offset : offset + size]
        if self.damages:
            data = bytes(len(data))
        return [wire.answer(message, wire.DATA, wire.number(offset), data)]


def song_of(name: str, data: bytes) -> Song:
    return Song(name, len(data), hashlib.sha256(data).hexdigest(), title=name.partition(".")[0].title(), duration=1.0)


def client_of(flavour: Flavour, *arguments, **options):
    """Make a client of one flavour, which is used as those of threads are."""
    return flavour.make(MusicClient, aio.MusicClient, *arguments, **options)


@contextlib.contextmanager
def peers():
    """Give a function that notes peers, to be ended in the end."""
    made: list[Peer] = []

    def note(peer):
        made.append(peer)
        return peer

    try:
        yield note
    finally:
        for peer in made:
            peer.die()
