"""Searches through the tree: each is always answered, with what was found by then.

A search is asked of all neighbours but the one it came from, and answered when all of these have answered or are lost,
or when its time is over. Each hop gives the next a little less time, so that those far away answer first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from scale0_core.api import Deadlines, Effect, Send
from scale0_musicquest import wire
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.batches import (
    MAX_HOPS,
    AskedSearch,
    FoundSongs,
    fitting,
    found_item,
    is_uuid,
    search_item,
)
from scale0_musicquest.service.server.cache import Cache, Popularity
from scale0_musicquest.service.server.library import Library, order_of
from scale0_musicquest.service.server.neighbours import Neighbour
from scale0_musicquest.songs import MAX_HOLDERS, UNTOLD_SHA256, Hit, Holder, Query, Song

SOCKET = "clients"
PASSED_ON = 0.9
MARGIN_MS = 20
"""A hop gives the next this part of its time, less this."""
MOST_SEEN = 100_000
SEEN_SECONDS = 60.0

Key: TypeAlias = tuple[str, str]
Told: TypeAlias = Callable[["Search", float], None]


class Search:
    """One search under way. ``asker`` is a neighbour, or the message of a client; None when only the cache asks."""

    __slots__ = (
        "asker", "cached", "complete", "deadline", "fresh", "here", "hits", "hops", "pending", "query", "started",
        "uuid",
    )  # fmt: skip

    def __init__(
        self, uuid: str, query: Query, asker: Neighbour | wire.Message | None, now: float, deadline: float, hops: int
    ) -> None:
        self.uuid = uuid
        self.query = query
        self.asker = asker
        self.hops = hops
        self.started = now
        self.deadline = deadline
        self.pending: set[Neighbour] = set()
        self.hits: dict[Key, Hit] = {}
        self.complete = True
        self.fresh = False
        """Whether everybody is to be heard, also when something was found."""
        self.here = False
        """Whether this server holds a song of those that were found."""
        self.cached = False

    @property
    def outcome(self) -> str:
        """How it ended, as events tell it."""
        if self.here:
            return "hit"
        if self.hits:
            return "cached" if self.cached else "found"
        return "miss" if self.complete else "timeout"

    def take_own(self, hits: Iterable[Hit]) -> None:
        """Add what this server holds itself."""
        self.take(hits)
        self.here = bool(self.hits)

    def take(self, hits: Iterable[Hit]) -> None:
        """Add what somebody has found."""
        for hit in hits:
            key = hit.song.sha256, hit.song.name
            known = self.hits.get(key)
            self.hits[key] = hit if known is None else united(known, hit)

    def best(self) -> list[Hit]:
        """Return what was found, as much of it as was asked for, in an order that does not depend on who was first."""
        order = order_of(self.query)
        return sorted(self.hits.values(), key=lambda hit: order(hit.song))[: self.query.limit]


@attrs.define
class Counts:
    """What became of the searches of clients, and how many were asked by neighbours."""

    asked: int = 0
    found: int = 0
    not_found: int = 0
    timed_out: int = 0
    cached: int = 0
    refused: int = 0
    passed_on: int = 0


class Searches:
    """All searches under way, those that were seen lately, and what is gathered for the neighbours."""

    def __init__(
        self,
        settings: MusicServerSettings,
        library: Library,
        cache: Cache,
        popularity: Popularity,
        neighbours: set[Neighbour],
        holder: Callable[[int, bool], Holder],
        told: Told,
        fresh_uuid: Callable[[], str],
    ) -> None:
        self.counts = Counts()
        self._settings = settings
        self._library = library
        self._cache = cache
        self._popularity = popularity
        self._neighbours = neighbours
        self._holder = holder
        self._told = told
        self._fresh_uuid = fresh_uuid
        self._open: dict[str, Search] = {}
        self._timers: Deadlines[str, Search] = Deadlines(grain=0.01)
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._seen_until = 0.0
        self._gathered: set[Neighbour] = set()
        self._gathered_since = 0.0

    def __len__(self) -> int:
        return len(self._open)

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """When something is to be done; at once, while messages for neighbours are gathered."""
        if self._gathered:
            return self._gathered_since
        return self._timers.next()

    def on_deadline(self, now: float) -> list[Effect]:
        """Answer the searches whose time is over; send what was gathered."""
        effects: list[Effect] = []
        for search in self._timers.take(now):
            search.complete = search.complete and not search.pending
            effects += self._finish(search, now)
        return [*effects, *self.flush()]

    def flush(self) -> list[Send]:
        """Give all messages that were gathered for neighbours."""
        gathered, self._gathered = self._gathered, set()
        return [send for neighbour in gathered if neighbour in self._neighbours for send in neighbour.flush()]

    # --- those who ask ------------------------------------------------------------------------------------------------

    def ask(
        self, message: wire.Message, uuid: str, query: Query, now: float, timeout: float, *, fresh: bool = False
    ) -> list[Effect]:
        """Take a client's search."""
        self.counts.asked += 1
        known = self._open.get(uuid)
        if known is not None and isinstance(known.asker, wire.Message) and known.asker.envelope == message.envelope:
            return []  # the same again: its answer is under way
        if query.is_exact:
            self._popularity.add(query.name, now)
            entry = None if fresh else self._cache.get(query.name, now)
            if entry is not None:
                self.counts.cached += 1
                search = Search(uuid, query, message, now, now, 0)
                search.cached = True
                search.take_own(self._own(query, 0))
                search.take(entry.hits)
                return self._answer(search, now)
        if len(self._open) >= self._settings.max_searches:
            self.counts.refused += 1
            return [(SOCKET, wire.error(message, 429, "too many searches are under way; try again later"))]
        if not is_uuid(uuid) or self._was_seen(uuid):
            uuid = self._fresh_uuid()
        self._see(uuid, now)
        search = Search(uuid, query, message, now, now + timeout, 0)
        search.fresh = fresh
        return self._begin(search, None, now)

    def refresh(self, name: str, now: float) -> list[Effect]:
        """Search for a name for the cache alone."""
        if len(self._open) >= self._settings.max_searches:
            return []
        uuid = self._fresh_uuid()
        self._see(uuid, now)
        return self._begin(Search(uuid, Query(name=name), None, now, now + self._settings.deadline, 0), None, now)

    def asked_by(self, neighbour: Neighbour, searches: Sequence[AskedSearch], now: float) -> list[Effect]:
        """Take the searches that a neighbour passes on."""
        self.counts.passed_on += len(searches)
        if neighbour.extended and self._neighbours == {neighbour}:
            self._answer_alone(neighbour, searches, now)
            return []
        effects: list[Effect] = []
        for uuid, query, left_ms, hops in searches:
            if self._was_seen(uuid):
                effects += self._tell(neighbour, uuid, (), True, now)
                continue
            self._see(uuid, now)
            if len(self._open) >= self._settings.max_searches:
                self.counts.refused += 1
                effects += self._tell(neighbour, uuid, self._own(query, hops), False, now)
            else:
                search = Search(uuid, query, neighbour, now, now + left_ms / 1000, hops)
                effects += self._begin(search, neighbour, now)
        return effects

    def _answer_alone(self, neighbour: Neighbour, searches: Sequence[AskedSearch], now: float) -> None:
        """Answer from the own disk, as most servers of a tree do: there is nobody else to ask."""
        found = neighbour.found
        if not found and searches:
            self._gather(neighbour, now)
        for uuid, query, _, hops in searches:
            if self._was_seen(uuid):
                found.append(uuid)
                continue
            self._see(uuid, now)
            hits = self._own(query, hops)
            found.append(found_item(uuid, hits, True) if hits else uuid)

    def _begin(self, search: Search, source: Neighbour | None, now: float) -> list[Effect]:
        query = search.query
        search.take_own(self._own(query, search.hops))
        left_ms = int((search.deadline - now) * 1000 * PASSED_ON) - MARGIN_MS
        effects: list[Effect] = []
        if left_ms > 0 and search.hops < MAX_HOPS:
            item = search_item(search.uuid, query, left_ms, search.hops + 1)
            for neighbour in self._neighbours:
                if neighbour is source:
                    continue
                if neighbour.extended:
                    search.pending.add(neighbour)
                    if not neighbour.searches:
                        self._gather(neighbour, now)
                    neighbour.searches.append(item)
                elif query.is_exact:  # an original server knows no other question
                    search.pending.add(neighbour)
                    effects.append(neighbour.send(wire.SEARCH, search.uuid.encode(), query.name.encode()))
                else:
                    search.complete = False
        else:
            search.complete = all(neighbour is source for neighbour in self._neighbours)
        if not search.pending:
            return [*effects, *self._finish(search, now)]
        self._open[search.uuid] = search
        self._set_timer(search, now)
        return effects

    # --- those who answer ---------------------------------------------------------------------------------------------

    def answered_by(self, neighbour: Neighbour, answers: Iterable[FoundSongs], now: float) -> list[Effect]:
        """Take a neighbour's answers."""
        effects: list[Effect] = []
        for uuid, hits, complete in answers:
            search = self._open.get(uuid)
            if search is None or neighbour not in search.pending:
                continue  # too late
            search.pending.remove(neighbour)
            if not complete:
                search.complete = False
            had = bool(search.hits)
            if hits:
                search.take(hits)
            if not search.pending:
                self._timers.remove(uuid)
                effects += self._finish(search, now)
            elif hits and not had:
                self._set_timer(search, now)
        return effects

    def answered_by_original(self, neighbour: Neighbour, uuid: str, endpoint: str, now: float) -> list[Effect]:
        """Take the answer of an original server: an address, or none."""
        search = self._open.get(uuid)
        if search is None:
            return []
        hits = []
        if endpoint:
            song = Song(search.query.name, 0, UNTOLD_SHA256)
            hits.append(Hit(song, (Holder(endpoint, 1.0, search.hops + 1),)))
        return self.answered_by(neighbour, [(uuid, hits, True)], now)

    def lost(self, neighbour: Neighbour, now: float) -> list[Effect]:
        """Wait no longer for a neighbour that is gone; what it had asked is of no use to anybody."""
        effects: list[Effect] = []
        self._gathered.discard(neighbour)
        for search in list(self._open.values()):
            if search.asker is neighbour:
                del self._open[search.uuid]
                self._timers.remove(search.uuid)
            elif neighbour in search.pending:
                effects += self.answered_by(neighbour, [(search.uuid, [], False)], now)
        return effects

    # --- answers ------------------------------------------------------------------------------------------------------

    def _finish(self, search: Search, now: float) -> Sequence[Effect]:
        self._open.pop(search.uuid, None)
        query, asker = search.query, search.asker
        if isinstance(asker, Neighbour):
            return self._tell(asker, search.uuid, search.best(), search.complete, now)
        if query.is_exact and (search.hits or search.complete):
            self._cache.put(query.name, tuple(_elsewhere(search.best())), now, found=bool(search.hits))
        if asker is None:
            return []
        if search.hits:
            self.counts.found += 1
        elif search.complete:
            self.counts.not_found += 1
        else:
            self.counts.timed_out += 1
        return self._answer(search, now)

    def _answer(self, search: Search, now: float) -> list[Effect]:
        """Answer a client."""
        self._told(search, now)
        message = search.asker
        assert isinstance(message, wire.Message)
        hits = search.best()
        if not message.extended:
            best = min((holder for hit in hits for holder in hit.holders), key=_rank, default=None)
            return [(SOCKET, (*message.envelope, best.endpoint.encode() if best else wire.NOT_FOUND))]
        query = search.query
        wanted = query.name or query.text or query.title or query.artist or query.album
        suggestions = [] if hits else self._library.suggest(wanted)

        def written(rows: list[Any]) -> bytes:
            complete = search.complete and len(rows) == len(hits)
            told = {"hits": rows, "complete": complete, "cached": search.cached, "suggestions": suggestions}
            return wire.to_json(told)

        return [(SOCKET, wire.answer(message, wire.FOUND, fitting([hit.to_json() for hit in hits], written)))]

    def _tell(
        self, neighbour: Neighbour, uuid: str, hits: Sequence[Hit], complete: bool, now: float
    ) -> Sequence[Effect]:
        """Answer a neighbour."""
        if neighbour.extended:
            if not neighbour.found:
                self._gather(neighbour, now)
            neighbour.found.append(found_item(uuid, hits, complete))
            return ()
        best = min((holder for hit in hits for holder in hit.holders), key=_rank, default=None)
        endpoint = best.endpoint.encode() if best is not None else wire.NOT_FOUND
        return [neighbour.send(wire.FOUND, uuid.encode(), endpoint, (1).to_bytes(4, "big"))]

    def _own(self, query: Query, hops: int) -> list[Hit]:
        """Give what is on the own disk."""
        if query.name:
            song = self._library.get(query.name)
            return [] if song is None else [Hit(song, (self._holder(hops, song.replica),))]
        return [Hit(song, (self._holder(hops, song.replica),)) for song in self._library.find(query)]

    def _gather(self, neighbour: Neighbour, now: float) -> None:
        if not self._gathered:
            self._gathered_since = now
        self._gathered.add(neighbour)

    def _set_timer(self, search: Search, now: float) -> None:
        """Let a search end in time; sooner when something was found, and only more holders could be."""
        grace = self._settings.grace
        ends = search.deadline
        if grace and search.hits and search.query.is_exact and not search.fresh:
            ends = min(ends, now + grace)
        self._timers.set(search.uuid, ends, search)

    # --- what was seen ------------------------------------------------------------------------------------------------

    def _was_seen(self, uuid: str) -> bool:
        return uuid in self._seen or uuid in self._seen_before

    def _see(self, uuid: str, now: float) -> None:
        if now >= self._seen_until or len(self._seen) >= MOST_SEEN:
            self._seen_before, self._seen = self._seen, set()
            self._seen_until = now + SEEN_SECONDS
        self._seen.add(uuid)


def united(one: Hit, other: Hit) -> Hit:
    """Put the holders of a song together, the best first."""
    holders = {holder.endpoint: holder for holder in sorted((*one.holders, *other.holders), key=_rank, reverse=True)}
    return Hit(one.song, tuple(sorted(holders.values(), key=_rank))[:MAX_HOLDERS])


def _rank(holder: Holder) -> tuple[float, int]:
    return holder.load, holder.hops


def _elsewhere(hits: Iterable[Hit]) -> Iterable[Hit]:
    """Leave out what is found on the own disk in any case."""
    for hit in hits:
        holders = tuple(holder for holder in hit.holders if holder.hops)
        if holders:
            yield Hit(hit.song, holders)
