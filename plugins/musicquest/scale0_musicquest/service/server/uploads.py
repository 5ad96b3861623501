"""Clients, and the songs that they are sent. Every read is a job; clients take turns.

A client's requests wait in its queue. One job at a time reads for a client, several of its requests when these have
come meanwhile; so one client can have all that the disk gives, and many share it evenly.

In the original form an answer does not say what it answers, so there none overtakes another: what needs no read waits
in the queue as well.

For a client that does not take what it was sent nothing more is read, until it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import attrs

from scale0_core.api import Effect, Frames, Job, JobResult, get_logger, records
from scale0_musicquest import wire
from scale0_musicquest.names import read_name
from scale0_musicquest.server.settings import MAX_CHUNK, MusicServerSettings
from scale0_musicquest.service.server.files import SongMissingError
from scale0_musicquest.service.server.library import Library
from scale0_musicquest.service.server.shelf import Shelf
from scale0_musicquest.songs import Song

LOG = get_logger("plugin.musicquest-server")

SOCKET = "clients"
MOST_READS = 128
"""Jobs at a time; other clients wait their turn."""
READ_AHEAD_BYTES = 1024 * 1024
"""How much one job reads, if a client has asked for as much."""
MOST_FOLLOWED = 64
"""Downloads of one client that are followed to their end."""
HOLD = 0.3
"""Seconds for which nothing is read for a client whose queue is full; the core retries at least every 0.25 s, and as
long as that is in vain, this begins again."""
MOST_REFUSALS = 1_000
"""Refusals of one client that wait behind its songs; who asks for more has given up order itself."""


class Source(NamedTuple):
    """Where songs come from: what is there, and the folder, which is read in jobs."""

    library: Library
    shelf: Shelf
    adverts: bool = False


class Fetch(NamedTuple):
    """A part of a song that a client has asked for."""

    message: wire.Message
    source: Source
    song: Song
    offset: int
    size: int


class Refusal(NamedTuple):
    """An answer without a part of a song, which waits for those before it."""

    effect: Effect
    size: int = 0


@attrs.define(eq=False)
class Client:
    """A peer of the socket for clients."""

    peer: bytes
    heard: float
    waiting: deque[Fetch | Refusal] = attrs.field(factory=deque)
    reading: int = 0
    held_until: float = 0.0
    downloads: dict[str, int] = attrs.field(factory=dict)
    """Bytes sent of songs whose end was not sent yet."""

    @property
    def busy(self) -> bool:
        """Whether answers are under way that others could overtake."""
        return bool(self.waiting or self.reading)


@attrs.define
class Counts:
    """What was sent."""

    downloads: int = 0
    whole: int = 0
    chunks: int = 0
    bytes: int = 0
    missing: int = 0
    refused: int = 0
    failed: int = 0


class Downloaded(NamedTuple):
    """A download from this server that has ended: what it sent, and whether that reached the end of the song."""

    name: str
    bytes: int
    complete: bool


class Uploads:
    """The clients, counted from their first message until they leave or fall silent, and what they fetch."""

    def __init__(
        self,
        settings: MusicServerSettings,
        started: Callable[[Song, float], list[Effect]],
        ended: Callable[[Downloaded, float], None],
        missing: Callable[[str, float], None],
    ) -> None:
        self.counts = Counts()
        self.clients: dict[bytes, Client] = {}
        self._settings = settings
        self._started = started
        self._ended = ended
        self._missing = missing
        self._turns: deque[Client] = deque()
        self._jobs = 0
        self._silence = settings.heartbeat * settings.liveness
        self._look_due = float("inf")
        self._held: list[Client] = []
        """Clients that have a turn, but do not take what they were sent."""
        self._held_due = float("inf")

    @property
    def due(self) -> float:
        """When something is to be done."""
        return min(self._look_due, self._held_due)

    @property
    def load(self) -> float:
        """How much there is to do, where 1 is what the server is made for."""
        return round((len(self.clients) + self._jobs) / max(1, self._settings.capacity), 4)

    def heard(self, peer: bytes, now: float) -> Client:
        """Note that a client has said something."""
        client = self.clients.get(peer)
        if client is None:
            client = self.clients[peer] = Client(peer, now)
            self._look_due = min(self._look_due, now + self._silence)
        client.heard = now
        return client

    def leave(self, peer: bytes, now: float) -> None:
        """Forget a client, and what it waits for."""
        client = self.clients.pop(peer, None)
        if client is None:
            return
        client.waiting.clear()
        for name in list(client.downloads):
            self._break_off(client, name, now)

    def slow(self, peer: bytes, now: float) -> None:
        """Note that a client's queue is full: more is read for it when that has not been so for a moment."""
        client = self.clients.get(peer)
        if client is not None:
            client.held_until = now + HOLD

    def dropped(self, peer: bytes, now: float) -> None:
        """Note that an answer was given up, since too much waits already."""
        self.counts.failed += 1
        self.slow(peer, now)

    def on_deadline(self, now: float) -> list[Effect]:
        """Forget clients that have been silent for too long; go on with those that were held."""
        if self._look_due <= now:
            self._forget_silent(now)
        if self._held_due > now:
            return []
        self._turns.extend(self._held)
        self._held, self._held_due = [], float("inf")
        return self._read(now)

    def _forget_silent(self, now: float) -> None:
        silent = [
            client.peer
            for client in self.clients.values()
            if now - client.heard >= self._silence and not client.waiting and not client.reading
        ]
        for peer in silent:
            self.leave(peer, now)
        self._look_due = now + self._settings.heartbeat if self.clients else float("inf")

    # --- fetches ------------------------------------------------------------------------------------------------------

    def fetch(self, client: Client, message: wire.Message, source: Source, now: float) -> list[Effect]:
        """Take a request for a part of a song: its name, an offset and a size; before these, the word ``adver``."""
        if not 3 <= len(message.rest) <= 4:
            raise records.MalformedError("fetch has a song, an offset and a size")
        named, *place = message.rest[-3:]
        offset, size = map(wire.read_number, place)
        name = read_name(named)
        song = source.library.get(name) if name is not None else None
        if song is None:
            return self._refuse(client, message, self._not_found(message, named), now)
        fetch = Fetch(message, source, song, offset, min(size, MAX_CHUNK, max(0, song.size - offset)))
        if len(client.waiting) + client.reading >= self._settings.credit:
            self.counts.refused += 1
            reason = f"at most {self._settings.credit} requests of a client may wait"
            return self._refuse(client, message, (SOCKET, wire.error(message, 429, reason)), now)
        effects = self._follow(client, fetch, now)
        if fetch.size or (client.busy and not message.extended):
            return [*effects, *self._wait(client, fetch, now)]
        return [*effects, *self._send(client, fetch, b"", now)]

    def _refuse(self, client: Client, message: wire.Message, effect: Effect, now: float) -> list[Effect]:
        if message.extended or not client.busy or len(client.waiting) >= self._settings.credit + MOST_REFUSALS:
            return [effect]
        return self._wait(client, Refusal(effect), now)

    def _wait(self, client: Client, request: Fetch | Refusal, now: float) -> list[Effect]:
        client.waiting.append(request)
        if not client.reading and len(client.waiting) == 1:
            self._turns.append(client)
        return self._read(now)

    def _read(self, now: float) -> list[Effect]:
        """Have as many clients read for as may be."""
        jobs: list[Effect] = []
        while self._turns and self._jobs < MOST_READS:
            client = self._turns.popleft()
            if client.held_until > now:
                self._held.append(client)
                self._held_due = min(self._held_due, client.held_until)
                continue
            batch = _next_batch(client.waiting)
            if batch:
                client.reading = len(batch)
                self._jobs += 1
                jobs.append(Job(("read", client.peer), _read_all, batch, token=partial(self._was_read, client, batch)))
        return jobs

    def _was_read(self, client: Client, batch: list[Fetch | Refusal], result: JobResult, now: float) -> list[Effect]:
        """Send what was read."""
        self._jobs -= 1
        client.reading = 0
        parts = result.value if result.error is None else [result.error] * len(batch)
        effects: list[Effect] = []
        if self.clients.get(client.peer) is client:
            for request, part in zip(batch, parts, strict=True):
                effects += [request.effect] if isinstance(request, Refusal) else self._send(client, request, part, now)
            if client.waiting:
                self._turns.append(client)
        return [*effects, *self._read(now)]

    def _send(self, client: Client, fetch: Fetch, part: bytes | Exception, now: float) -> list[Effect]:
        if isinstance(part, bytes):
            self.counts.chunks += 1
            self.counts.bytes += len(part)
            self._note_sent(client, fetch, len(part), now)
            return [self._data(fetch.message, fetch.offset, part)]
        if isinstance(part, SongMissingError):
            self._missing(fetch.song.name, now)
            return [self._not_found(fetch.message, fetch.song.name.encode())]
        self.counts.failed += 1
        LOG.error("a song cannot be read", song=fetch.song.name, error=str(part))
        return [(SOCKET, wire.error(fetch.message, 503, "the song cannot be read just now"))]

    def _data(self, message: wire.Message, offset: int, part: bytes) -> Effect:
        if message.extended:
            return SOCKET, (*message.envelope, wire.HEADER, wire.DATA, message.tag, wire.number(offset), part)
        return SOCKET, (*message.envelope, part)

    def _not_found(self, message: wire.Message, name: bytes) -> Effect:
        self.counts.missing += 1
        frames: Frames = (*message.envelope, wire.NOT_FOUND)
        return SOCKET, wire.answer(message, wire.NOT_FOUND, bytes(name)) if message.extended else frames

    # --- downloads ----------------------------------------------------------------------------------------------------

    def _follow(self, client: Client, fetch: Fetch, now: float) -> list[Effect]:
        """Note that a download begins, at whatever offset: it may be resumed, or shared with other holders."""
        song, downloads = fetch.song, client.downloads
        beyond = not fetch.size and song.size  # who reads ahead asks for more than there is
        if beyond or fetch.source.adverts or (fetch.offset and song.name in downloads):
            return []
        if song.name in downloads:  # from the beginning once more
            self._break_off(client, song.name, now)
        elif len(downloads) >= MOST_FOLLOWED:
            self._break_off(client, next(iter(downloads)), now)
        downloads[song.name] = 0
        self.counts.downloads += 1
        return self._started(song, now)

    def _note_sent(self, client: Client, fetch: Fetch, size: int, now: float) -> None:
        """Follow a download to its end."""
        song, downloads = fetch.song, client.downloads
        if fetch.source.adverts or song.name not in downloads:
            return
        downloads[song.name] += size
        if fetch.offset + size >= song.size and (size or not song.size):
            self.counts.whole += 1
            self._ended(Downloaded(song.name, downloads.pop(song.name), complete=True), now)

    def _break_off(self, client: Client, name: str, now: float) -> None:
        sent = client.downloads.pop(name)
        if sent:
            self._ended(Downloaded(name, sent, complete=False), now)


def _next_batch(waiting: deque[Fetch | Refusal]) -> list[Fetch | Refusal]:
    batch: list[Fetch | Refusal] = []
    size = 0
    while waiting and (not batch or size + waiting[0].size <= READ_AHEAD_BYTES):
        size += waiting[0].size
        batch.append(waiting.popleft())
    return batch


def _read_all(batch: list[Fetch | Refusal]) -> list[bytes | Exception]:
    """Read several parts, on a thread; one that cannot be read does not keep the others."""
    return list(_each(batch))


def _each(batch: list[Fetch | Refusal]) -> Iterator[bytes | Exception]:
    for fetch in batch:
        if isinstance(fetch, Refusal):
            yield b""
            continue
        try:
            yield fetch.source.shelf.read(fetch.song.name, fetch.offset, fetch.size)
        except Exception as error:
            yield error
