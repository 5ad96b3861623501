"""The music server: a state machine without I/O. Its parts are in the other modules; here messages find their way.

Sockets: ``clients`` (searches and downloads), ``children`` and ``father`` (the tree), ``broker`` (where this server
announces itself), ``holders`` (other servers, whose songs are taken over).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, ClassVar

import attrs

from scale0_core.api import (
    Connect,
    Disconnect,
    Effect,
    Endpoint,
    Event,
    Frames,
    JobResult,
    SocketKind,
    events,
    get_logger,
    records,
)
from scale0_musicquest import wire
from scale0_musicquest.names import read_name
from scale0_musicquest.server.settings import MAX_CHUNK, MusicServerSettings
from scale0_musicquest.service.server.batches import fitting, is_uuid, read_found, read_searches
from scale0_musicquest.service.server.cache import Cache, Popularity
from scale0_musicquest.service.server.library import Library
from scale0_musicquest.service.server.links import BROKER, Links, describe
from scale0_musicquest.service.server.neighbours import CHILDREN, FATHER, Neighbour
from scale0_musicquest.service.server.replication import SOCKET as HOLDERS
from scale0_musicquest.service.server.replication import Demand, Pulls, Replica
from scale0_musicquest.service.server.searches import Search, Searches
from scale0_musicquest.service.server.shelf import Shelf
from scale0_musicquest.service.server.uploads import SOCKET as CLIENTS
from scale0_musicquest.service.server.uploads import Client, Downloaded, Source, Uploads
from scale0_musicquest.service.server.watching import Watch
from scale0_musicquest.songs import (
    Holder,
    Query,
    Song,
    endpoint_of,
)

LOG = get_logger("plugin.musicquest-server")

NAME = "musicquest-server"
MOST_LISTED = 1_000
MOST_REPORTS = 4
"""Reports that wait for a broker that is away; further ones are written anew."""
MOST_UNTAKEN = 128
"""Fewer would hold up a client that has a thousand searches answered at once."""
LONGEST_IDENT = 50
"""Characters of the own id in a uuid, from its end: there it is random."""
MOST_PLANNED = 1_000
NEVER = float("inf")

Method = Callable[["MusicServer", Client, wire.Message, float], Iterable[Effect]]


class MusicServer:
    """One server of the tree.

    Large, since it is a method for each message of two dialects.
    """

    name = NAME

    def __init__(self, settings: MusicServerSettings, ident: str, shelf: Shelf, adverts: Shelf | None = None) -> None:
        self.settings = settings
        self.ident = ident
        self.endpoints: Mapping[str, Endpoint] = _endpoints(settings)
        self.events: list[Event] | None = None
        self.library = Library()
        self.popularity = Popularity(10 * max(100, settings.cache_size))
        self.cache = Cache(settings.cache_size, settings.cache_seconds, settings.cache_not_found, self.popularity)
        self.links = Links(settings, ident, self._report)
        numbers = count(1)
        self.searches = Searches(
            settings, self.library, self.cache, self.popularity, self.links.neighbours,
            holder=self._holder, told=self._searched, fresh_uuid=lambda: f"{ident[-LONGEST_IDENT:]}~{next(numbers)}",
        )  # fmt: skip
        self.uploads = Uploads(settings, self._started, self._downloaded, self._missing)
        self.demand = Demand(settings.replicate_after, settings.replicate_window)
        self.pulls = Pulls(settings, self.library, shelf, lambda: self.links.endpoint, self._replicated, self._evicted)
        self._replicas: set[str] = set()
        self._songs = Source(self.library, shelf)
        self._watches = [Watch(shelf, settings.rescan, self._changed)]
        self._adverts = Source(Library(), adverts, adverts=True) if adverts is not None else None
        self._next_advert = 0
        if adverts is not None:
            self._watches.append(Watch(adverts, settings.rescan, self._adverts_changed))
        self._malformed = 0

    def serves_at(self, clients: str, children: str) -> None:
        """Say where this server is really reached, when an address was bound to any port."""
        if not self.settings.endpoint:
            self.links.endpoint = clients
        if not self.settings.children_endpoint:
            self.links.children_endpoint = children

    # --- what the core calls ------------------------------------------------------------------------------------------

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take one message."""
        if socket == CLIENTS:
            return self._from_client(frames, now)
        try:
            effects = list(self._from_server(socket, frames, now))
        except records.MalformedError as error:
            effects = self._complain(socket, frames, str(error))
        return self._settle(effects, now) if self.links.gone else effects

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        due = min(self.links.due, self.uploads.due, self.pulls.due if len(self.pulls) else NEVER)
        for watch in self._watches:
            due = min(due, watch.due)
        search = self.searches.due
        if search is not None and search < due:
            return search
        return None if due == NEVER else due

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self.links.due <= now:
            effects = self._settle(self.links.on_deadline(now), now)
        if self.uploads.due <= now:
            effects += self.uploads.on_deadline(now)
        if len(self.pulls):
            effects += self.pulls.on_deadline(now)
        for watch in self._watches:
            effects += watch.on_deadline(now)
        return [*effects, *self.searches.on_deadline(now)]

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take what the disk says."""
        then: Callable[[JobResult, float], list[Effect]] = result.token
        return then(result, now)

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Take note that somebody cannot be reached."""
        if socket == CLIENTS:
            if reason == "EHOSTUNREACH":
                self.uploads.leave(bytes(frames[0]), now)
            else:
                self.uploads.dropped(bytes(frames[0]), now)
            return ()
        if socket == HOLDERS:
            return self.pulls.undelivered(frames[0], now)
        peer = bytes(frames[0]) if socket == CHILDREN else b""
        return self._settle(self.links.undelivered(socket, peer, now), now)

    def on_delayed(self, socket: str, frames: Frames, now: float) -> None:
        """Take note that somebody does not take what it was sent; told again as long as that is so."""
        if socket == CLIENTS:
            self.uploads.slow(bytes(frames[0]), now)

    def on_sent(self, socket: str, frames: Frames, now: float) -> None:
        """Take note that what had to wait has left; others may still wait, so this says nothing yet."""

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Effect]:
        """Take note that a connection to a neighbour has ended."""
        return self._settle(self.links.connection_lost(socket, now), now)

    def on_refused(self, effect: Connect | Disconnect, reason: str, now: float) -> Iterable[Effect]:
        """Take note that an address may not be connected to."""
        if isinstance(effect, Disconnect):
            return ()
        if effect.socket == HOLDERS:
            return self.pulls.cannot_connect(effect.address, reason, now)
        return self._settle(self.links.cannot_connect(effect.address, reason, now), now)

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Tell all that this server leaves."""
        return [*self.searches.flush(), *self.links.goodbye()]

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """Let no search wait for neighbours that are gone."""
        gone = self.links.gone
        while gone:
            effects += self.searches.lost(gone.pop(), now)
        return effects

    # --- clients ------------------------------------------------------------------------------------------------------

    def _from_client(self, frames: Frames, now: float) -> Iterable[Effect]:
        if not frames or not len(frames[0]):
            return ()
        message = wire.split(frames)
        client = self.uploads.heard(bytes(frames[0]), now)
        method = (self._EXTENDED if message.extended else self._ORIGINAL).get(message.word)
        try:
            if message.extended and not message.tag:
                wire.check_tag(message, frames)
            if method is None:
                raise records.MalformedError("this word is not known here")
            return method(self, client, message, now)
        except records.MalformedError as error:
            self._malformed += 1
            return [(CLIENTS, wire.error(message, 400, str(error)))]

    def _hello(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        told = {
            "id": self.ident,
            "heartbeat_ms": round(self.settings.heartbeat * 1000),
            "chunk": self.settings.chunk,
        }
        return [_json(message, wire.HELLO, told)]

    def _hugz(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        return [(CLIENTS, wire.answer(message, wire.HUGZ))]

    def _bye(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        self.uploads.leave(client.peer, now)
        return [(CLIENTS, wire.answer(message, wire.BYE))]

    def _search(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        told = records.table_of(wire.one_json(message))
        query = Query.from_json(told)
        most = self.settings.deadline
        timeout = min(most, records.whole_of(told, "timeout_ms", round(most * 1000)) / 1000)
        uuid = message.tag.decode("ascii", "replace")
        return self.searches.ask(message, uuid, query, now, timeout, fresh=records.flag_of(told, "fresh"))

    def _search_original(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        if len(message.rest) != 2:
            raise records.MalformedError("search has a uuid and a song")
        uuid, name = wire.short(message.rest[0]).decode("ascii", "replace"), read_name(message.rest[1])
        if name is None:
            return [(CLIENTS, (*message.envelope, wire.NOT_FOUND))]
        return self.searches.ask(message, uuid, Query(name=name), now, self.settings.deadline)

    def _stat(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        if len(message.rest) != 1:
            raise records.MalformedError("stat has a song")
        name = read_name(message.rest[0])
        song = self.library.get(name) if name is not None else None
        if song is None:
            return [(CLIENTS, wire.answer(message, wire.NOT_FOUND, bytes(message.rest[0])))]
        return [_json(message, wire.STAT, {**song.to_json(), "chunk": self.settings.chunk})]

    def _list(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        told = records.table_of(wire.one_json(message))
        offset, limit = records.whole_of(told, "offset", 0), records.whole_of(told, "limit", 100, most=MOST_LISTED)
        songs = [song.to_json() for song in self.library.page(offset, limit)]
        total = len(self.library)
        frame = fitting(songs, lambda rows: wire.to_json({"total": total, "songs": rows}))
        return [(CLIENTS, wire.answer(message, wire.LIST, frame))]

    def _top(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        limit = records.whole_of(records.table_of(wire.one_json(message)), "limit", 10, most=MOST_LISTED)
        rows = [self._popular(*entry, now) for entry in self.popularity.top(limit, now)]
        return [(CLIENTS, wire.answer(message, wire.TOP, fitting(rows, wire.to_json)))]

    def _popular(self, name: str, wanted: float, now: float) -> dict[str, Any]:
        song = self.library.get(name)
        entry = self.cache.get(name, now)
        if song is None and entry is not None and entry.hits:
            song = entry.hits[0].song
        title, artist = (song.title, song.artist) if song is not None else ("", "")
        return {"name": name, "title": title, "artist": artist, "count": round(wanted, 3)}

    def _fetch(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        if len(message.rest) != 4:
            return self.uploads.fetch(client, message, self._songs, now)
        if bytes(message.rest[0]) != wire.ADVERT:
            raise records.MalformedError("fetch has a song, an offset and a size")
        if self._adverts is None:
            raise records.MalformedError("there are no adverts here")
        return self.uploads.fetch(client, message, self._adverts, now)

    def _advert(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        name = self._choose_advert()
        if message.extended:
            frames = wire.answer(message, wire.ADVERT, name) if name else wire.answer(message, wire.NOT_FOUND)
            return [(CLIENTS, frames)]
        return [(CLIENTS, (*message.envelope, name or wire.NOT_FOUND))]

    def _choose_advert(self) -> bytes:
        """Give one advert after the other."""
        if self._adverts is None or not len(self._adverts.library):
            return b""
        self._next_advert = (self._next_advert + 1) % len(self._adverts.library)
        return self._adverts.library.page(self._next_advert, 1)[0].name.encode()

    def _stale(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        told = records.table_of(wire.one_json(message))
        song, endpoint = records.text_of(told, "song"), endpoint_of(told, "endpoint")
        effects: list[Effect] = [(CLIENTS, wire.answer(message, wire.OK))]
        entry = self.cache.get(song, now)
        if endpoint == self.links.endpoint:
            self._missing(song, now)
        if entry is not None and any(holder.endpoint == endpoint for hit in entry.hits for holder in hit.holders):
            self.cache.drop(song)
            effects += self.searches.refresh(song, now)
        return effects

    def _plan(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        told = records.table_of(wire.one_json(message))
        if not self.settings.plans:
            return [(CLIENTS, wire.error(message, 503, "plans are not taken here"))]
        accepted: list[str] = []
        refused: list[dict[str, str]] = []
        effects: list[Effect] = []
        for item in records.list_of(told, "songs", records.table_of, most=MOST_PLANNED):
            # nothing may be raised between an offer and its effects: the pull would wait for them for ever
            try:
                song, holders = Song.from_json(item), records.list_of(item, "holders", _endpoint)
            except records.MalformedError as error:
                refused.append({"name": _name_of(item), "why": str(error)})
                continue
            why, more = self.pulls.offer(attrs.evolve(song, replica=True), holders, "plan", now)
            effects += more
            if why:
                refused.append({"name": song.name, "why": why})
            else:
                accepted.append(song.name)
        return [_json(message, wire.OK, {"accepted": accepted, "refused": refused}), *effects]

    def _stats(self, client: Client, message: wire.Message, now: float) -> Iterable[Effect]:
        return [_json(message, wire.STATS, self.stats())]

    def stats(self) -> dict[str, Any]:
        """Give what this server knows of itself, as JSON's types."""
        links, father = self.links, self.links.father
        return {
            "id": self.ident,
            "endpoint": links.endpoint,
            "children_endpoint": links.children_endpoint,
            "father": describe([father])[0] if father is not None else None,
            "children": describe(list(links.children.values())),
            "path": list(links.path),
            "joined": links.rejoined,
            "registered": links.broker_heard is not None,
            "clients": len(self.uploads.clients),
            "capacity": self.settings.capacity,
            "load": self.uploads.load,
            "songs": len(self.library),
            "replicas": len(self._replicas),
            "scanned": self._watches[0].complete,
            "searches": {**attrs.asdict(self.searches.counts), "open": len(self.searches)},
            "cache": {"songs": len(self.cache), "hits": self.searches.counts.cached},
            "uploads": attrs.asdict(self.uploads.counts),
            "replication": {**attrs.asdict(self.pulls.counts), "open": len(self.pulls)},
            "malformed": self._malformed,
        }

    # --- other servers ------------------------------------------------------------------------------------------------

    def _from_server(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        if not frames:
            return ()
        if socket == CHILDREN:
            return self._from_child(frames, now) if len(frames[0]) else ()
        if socket == FATHER:
            return self._from_father(frames, now)
        if socket == BROKER:
            return self.links.from_broker(frames, now)
        return self.pulls.receive(frames, now)

    def _from_child(self, frames: Frames, now: float) -> Iterable[Effect]:
        peer, *body = frames
        word = wire.short(body[0]) if body else b""
        if word == wire.ADD:
            return self.links.add(bytes(peer), tuple(body[1:]), now)
        child = self.links.children.get(bytes(peer))
        if child is None:
            said = wire.short(body[1]) if word == wire.HEADER and len(body) > 1 else word
            return [] if said in (wire.BYE, wire.ERROR) else self._complain(CHILDREN, frames, "add yourself first", 404)
        child.heard = now
        return self._from_neighbour(child, tuple(body), now)

    def _from_father(self, frames: Frames, now: float) -> Iterable[Effect]:
        word = wire.short(frames[0])
        if word == wire.OK:
            return self.links.accepted(frames[1:], now)
        if word == wire.FULL:
            return self.links.full(frames[1:], now)
        if word == wire.ERROR:
            return self.links.refused("refused", now)
        father = self.links.father
        if father is None:
            return ()
        father.heard = now
        return self._from_neighbour(father, frames, now)

    def _from_neighbour(self, neighbour: Neighbour, body: Frames, now: float) -> Iterable[Effect]:
        if not body:
            raise records.MalformedError("a message has a word")
        if wire.short(body[0]) != wire.HEADER:
            return self._from_original(neighbour, body, now)
        word = wire.short(body[1]) if len(body) > 1 else b""
        payload = body[2] if len(body) > 2 else b""
        if word == wire.SEARCH:
            return self.searches.asked_by(neighbour, read_searches(payload), now)
        if word == wire.FOUND:
            return self.searches.answered_by(neighbour, read_found(payload), now)
        if word == wire.HUGZ:
            return self.links.father_says(wire.from_json(payload), now) if neighbour.is_father else ()
        if word == wire.REPLICATE:
            told = records.table_of(wire.from_json(payload))
            song = attrs.evolve(Song.from_json(told), replica=True)
            return self.pulls.offer(song, [endpoint_of(told, "endpoint")], "popular", now)[1]
        if word == wire.BYE:
            return self.links.lose(neighbour, now, "left")
        if word == wire.ERROR:
            forgotten = neighbour.is_father and bytes(payload) == b"404"
            return self.links.forgotten(now) if forgotten else ()
        raise records.MalformedError("this word is not known here")

    def _from_original(self, neighbour: Neighbour, body: Frames, now: float) -> Iterable[Effect]:
        """Take a message as the original servers write it."""
        word = wire.short(body[0])
        if word == wire.SEARCH and len(body) == 3:
            uuid, name = wire.text(body[1], wire.MAX_TAG), read_name(body[2])
            if name is None or not is_uuid(uuid):
                return [neighbour.send(wire.FOUND, bytes(body[1]), wire.NOT_FOUND, (1).to_bytes(4, "big"))]
            left_ms = round(self.settings.deadline * 900)
            return self.searches.asked_by(neighbour, [(uuid, Query(name=name), left_ms, 1)], now)
        if word == wire.FOUND and len(body) == 4:
            uuid, place = wire.text(body[1], wire.MAX_TAG), wire.text(body[2])
            endpoint = "" if place == "NF" else endpoint_of({"endpoint": place}, "endpoint")
            return self.searches.answered_by_original(neighbour, uuid, endpoint, now)
        if word == wire.ERROR:
            return ()
        raise records.MalformedError("this word is not known here")

    def _complain(self, socket: str, frames: Frames, reason: str, code: int = 400) -> list[Effect]:
        """Say what is wrong with a message, to a neighbour that can be told."""
        self._malformed += 1
        if socket not in (CHILDREN, FATHER):
            LOG.warning("a message makes no sense", socket=socket, reason=reason)
            return []
        peer = (frames[0],) if socket == CHILDREN else ()
        body = frames[len(peer) :]
        if body and bytes(body[0][: wire.MAX_TAG]) == wire.HEADER:
            return [(socket, (*peer, wire.HEADER, wire.ERROR, b"%d" % code, reason.encode()))]
        return [(socket, (*peer, wire.ERROR, reason.encode()))]

    # --- what the parts tell ------------------------------------------------------------------------------------------

    def _report(self) -> dict[str, Any]:
        return {"songs": len(self.library), "clients": len(self.uploads.clients)}

    def _holder(self, hops: int, replica: bool) -> Holder:
        return Holder(self.links.endpoint, self.uploads.load, hops, replica)

    def _searched(self, search: Search, now: float) -> None:
        if self.events is not None:
            query = search.query
            song, text = (query.name, None) if query.is_exact else (None, _wanted(query))
            took = round((now - search.started) * 1_000_000)
            self.events.append((events.SONG_SEARCH, now, self.links.endpoint, song, text, search.outcome, took))

    def _started(self, song: Song, now: float) -> list[Effect]:
        """Take note that a download has begun; what is wanted too often is offered to the neighbours."""
        self.popularity.add(song.name, now)
        if not self.demand.add(song.name, now):
            return []
        entry = self.cache.get(song.name, now)
        holders = {holder.endpoint for hit in entry.hits for holder in hit.holders} if entry is not None else set()
        told = {**song.to_json(), "endpoint": self.links.endpoint}
        offer = wire.to_json(told)
        return [
            neighbour.say(wire.REPLICATE, offer)
            for neighbour in self.links.neighbours
            if neighbour.extended and neighbour.endpoint not in holders
        ]

    def _missing(self, name: str, now: float) -> None:
        """Take note that a song is not as it was: the folder is looked at soon."""
        for watch in self._watches:
            watch.soon(now)

    def _downloaded(self, download: Downloaded, now: float) -> None:
        if self.events is not None:
            name, sent, complete = download
            outcome = "ok" if complete else "broken"
            self.events.append((events.SONG_DOWNLOAD, now, self.links.endpoint, name, outcome, sent))

    def _evicted(self, names: list[str]) -> None:
        """Take note that replicas had to go for another."""
        for name in names:
            song = self.library.get(name)
            if song is not None and song.replica:
                self._changed([], [name])

    def _replicated(self, replica: Replica, now: float) -> None:
        song = replica.song
        self._take_in(song)
        LOG.info("a song of another server is served here as well", song=song.name, source=replica.source)
        if self.events is not None:
            told = self.links.endpoint, song.name, replica.source, replica.cause, song.size
            self.events.append((events.SONG_REPLICA, now, *told))

    def _take_in(self, song: Song) -> None:
        self.library.add(song)
        self.cache.drop(song.name)
        if song.replica:
            self._replicas.add(song.name)
        else:
            self._replicas.discard(song.name)

    def _changed(self, added: list[Song], removed: list[str]) -> None:
        for name in removed:
            self.library.remove(name)
            self._replicas.discard(name)
            self.cache.drop(name)
        for song in added:
            self._take_in(song)
        LOG.info("the songs have changed", added=len(added), removed=len(removed), songs=len(self.library))

    def _adverts_changed(self, added: list[Song], removed: list[str]) -> None:
        if self._adverts is not None:
            for name in removed:
                self._adverts.library.remove(name)
            for song in added:
                self._adverts.library.add(song)

    _EXTENDED: ClassVar[Mapping[bytes, Method]] = {
        wire.HELLO: _hello,
        wire.HUGZ: _hugz,
        wire.BYE: _bye,
        wire.SEARCH: _search,
        wire.STAT: _stat,
        wire.LIST: _list,
        wire.TOP: _top,
        wire.FETCH: _fetch,
        wire.STALE: _stale,
        wire.PLAN: _plan,
        wire.STATS: _stats,
        wire.ADVERT: _advert,
    }
    _ORIGINAL: ClassVar[Mapping[bytes, Method]] = {
        wire.SEARCH: _search_original,
        wire.FETCH: _fetch,
        wire.ADVERT: _advert,
    }


def _endpoints(settings: MusicServerSettings) -> Mapping[str, Endpoint]:
    endpoints = {
        CLIENTS: Endpoint(
            kind=SocketKind.ROUTER, bind=settings.clients, high_water=_queue(settings), max_message=MAX_CHUNK
        ),
        CHILDREN: Endpoint(kind=SocketKind.ROUTER, bind=settings.children, max_message=wire.MAX_JSON, watch_peers=True),
        FATHER: Endpoint(kind=SocketKind.DEALER, max_message=wire.MAX_JSON, watch_peers=True),
        HOLDERS: Endpoint(kind=SocketKind.ROUTER, max_message=MAX_CHUNK),
    }
    if settings.broker:
        # a report that cannot be delivered is better written anew than kept: few wait for a broker that is away
        endpoints[BROKER] = Endpoint(kind=SocketKind.DEALER, connect=settings.broker, options={"SNDHWM": MOST_REPORTS})
    return endpoints


def _queue(settings: MusicServerSettings) -> int:
    """Give how many answers may be under way to a client.

    ZeroMQ learns only after half of them that they have left, so twice what a client may ask for never holds it up; and
    one that takes nothing costs no more memory than that.
    """
    return min(256, max(MOST_UNTAKEN, 2 * settings.credit))


def _json(message: wire.Message, word: bytes, value: object) -> Effect:
    return CLIENTS, wire.answer(message, word, wire.to_json(value))


def _wanted(query: Query) -> str:
    return query.text or query.title or query.artist or query.album


def _name_of(item: Mapping[str, Any]) -> str:
    """Give the name in an item of a plan that makes no sense; empty, when that makes none either."""
    try:
        return records.text_of(item, "name")
    except records.MalformedError:
        return ""


def _endpoint(value: object) -> str:
    return endpoint_of({"holder": value}, "holder")
