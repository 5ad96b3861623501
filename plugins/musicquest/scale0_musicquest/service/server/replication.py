"""Songs that are wanted often are offered to the neighbours; songs of others are taken over.

Who takes a song over fetches it like any client, a few parts at a time, and serves it only when its hash is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeAlias

import attrs

from scale0_core.api import Connect, Disconnect, Effect, Frames, Job, JobResult, get_logger, records
from scale0_musicquest import wire
from scale0_musicquest.download import Download, Request
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.library import Library
from scale0_musicquest.service.server.shelf import Shelf
from scale0_musicquest.songs import Song

LOG = get_logger("plugin.musicquest-server")

SOCKET = "holders"
MOST_PULLS = 2
MOST_WAITING = 1_000
MOST_COUNTED = 10_000
DISK = "replicas"


class Demand:
    """Counts downloads begun, by song, in a sliding window; says once a window that a song is wanted too often."""

    def __init__(self, threshold: int, window: float) -> None:
        self._threshold = threshold
        self._window = window
        self._starts: dict[str, deque[float]] = {}
        self._told: dict[str, float] = {}

    def add(self, name: str, now: float) -> bool:
        """Count one; tells whether the song should be held by more servers."""
        if not self._threshold:
            return False
        starts = self._starts.get(name)
        if starts is None:
            if len(self._starts) >= MOST_COUNTED:
                self._forget(now)
            starts = self._starts[name] = deque(maxlen=self._threshold)
        starts.append(now)
        often = len(starts) == self._threshold and now - starts[0] <= self._window
        if not often or now - self._told.get(name, -self._window) < self._window:
            return False
        self._told[name] = now
        return True

    def _forget(self, now: float) -> None:
        """Forget all that is older than the window, or else the oldest half."""
        since = now - self._window
        kept = {name: starts for name, starts in self._starts.items() if starts[-1] > since}
        if len(kept) >= MOST_COUNTED:
            kept = dict(sorted(kept.items(), key=lambda entry: entry[1][-1])[MOST_COUNTED // 2 :])
        self._starts = kept
        self._told = {name: told for name, told in self._told.items() if told > since}


@attrs.define(eq=False)
class Pull:
    """A song of another server on its way here."""

    tag: bytes
    song: Song
    holders: list[str]
    cause: str
    download: Download | None = None
    writing: int = 0
    unnoted: deque[tuple[str, int, int]] = attrs.field(factory=deque)
    """What came while the disk was slow: holder, offset and size. Until it is noted, nothing is asked for instead."""
    finishing: bool = False
    source: str = ""

    def next_deadline(self) -> float | None:
        """Say when something is due; while this server is the slow one, no holder is."""
        return None if self.download is None or self.unnoted else self.download.next_deadline()


Then: TypeAlias = Callable[[Pull, Any, float], list[Effect]]


@attrs.define
class Counts:
    """What became of the songs that were offered."""

    offered: int = 0
    taken: int = 0
    failed: int = 0


@attrs.frozen
class Replica:
    """A song that was taken over."""

    song: Song
    source: str
    cause: str


class Pulls:
    """The songs that are taken over, a few at a time."""

    def __init__(
        self,
        settings: MusicServerSettings,
        library: Library,
        shelf: Shelf,
        own_endpoint: Callable[[], str],
        taken: Callable[[Replica, float], None],
        evicted: Callable[[list[str]], None],
    ) -> None:
        self.counts = Counts()
        self._settings = settings
        self._library = library
        self._shelf = shelf
        self._own_endpoint = own_endpoint
        self._taken = taken
        self._evicted = evicted
        self._waiting: deque[Pull] = deque()
        self._active: dict[bytes, Pull] = {}
        self._by_name: dict[str, Pull] = {}
        self._users: dict[str, int] = {}
        """How many pulls use a connection."""
        self._ids: dict[str, bytes] = {}
        self._holders: dict[bytes, str] = {}
        """The holders by their routing ids. These are new each time: ZeroMQ bears no id twice in a short while."""
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def due(self) -> float:
        """When something is to be done."""
        due = float("inf")
        for pull in self._active.values():
            deadline = pull.next_deadline()
            if deadline is not None:
                due = min(due, deadline)
        return due

    def on_deadline(self, now: float) -> list[Effect]:
        """Ask others for what did not come."""
        effects: list[Effect] = []
        for pull in list(self._active.values()):
            download, due = pull.download, pull.next_deadline()
            if download is not None and due is not None and due <= now:
                effects += self._go_on(pull, download.on_deadline(now), now)
        return effects

    # --- offers -------------------------------------------------------------------------------------------------------

    def offer(self, song: Song, holders: Iterable[str], cause: str, now: float) -> tuple[str, list[Effect]]:
        """Take an offer; gives why it is refused, or nothing."""
        self.counts.offered += 1
        own = self._own_endpoint()
        usable = [one for one in dict.fromkeys(holders) if one != own]
        if why := self._refusal(song, usable):
            return why, []
        known = self._by_name.get(song.name)
        if known is not None:
            return "", self._add_holders(known, usable, now)
        pull = Pull(b"%d" % next(self._numbers), song, usable, cause)
        self._by_name[song.name] = pull
        self._waiting.append(pull)
        return "", self._start()

    def _refusal(self, song: Song, holders: list[str]) -> str:
        here = self._library.get(song.name)
        known = self._by_name.get(song.name)
        if not self._settings.replica_bytes:
            return "no songs of others are kept here"
        if here is not None:
            same = here.sha256 == song.sha256
            return "it is here already" if same else "another song has that name here"
        if known is not None and known.song.sha256 != song.sha256:
            return "another song of that name is on its way here"
        if song.size > self._settings.replica_bytes:
            return "it is larger than all the room for songs of others"
        if not holders:
            return "no other server is named that holds it"
        return "too many songs wait already" if len(self._by_name) >= MOST_WAITING else ""

    def _add_holders(self, pull: Pull, holders: list[str], now: float) -> list[Effect]:
        new = [holder for holder in holders if holder not in pull.holders]
        pull.holders += new
        if pull.download is None:
            return []
        effects: list[Effect] = []
        for holder in new:
            effects += self._connect(holder)
            effects += self._requests(pull, pull.download.add(holder, now))
        return effects

    # --- one song -----------------------------------------------------------------------------------------------------

    def _start(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._active) < MOST_PULLS:
            pull = self._waiting.popleft()
            self._active[pull.tag] = pull
            effects.append(self._job(pull, self._shelf.begin, pull.song, self._prepared))
        return effects

    def _job(self, pull: Pull, function: Callable[..., Any], argument: object, then: Then) -> Job:
        """Have something done on disk, and go on with the pull when it is done."""

        def done(result: JobResult, now: float) -> list[Effect]:
            if result.error is not None:
                return self._fail(pull, str(result.error), now)
            return then(pull, result.value, now)

        return Job((DISK, pull.song.name), function, argument, token=done)

    def _written(self, pull: Pull, value: object, now: float) -> list[Effect]:
        pull.writing -= 1
        effects: list[Effect] = []
        while pull.unnoted and pull.download is not None and pull.writing <= self._settings.replica_credit:
            effects += self._go_on(pull, pull.download.data(*pull.unnoted.popleft(), now), now)
        return [*effects, *self._finish_if_whole(pull)]

    def _prepared(self, pull: Pull, evicted: Any, now: float) -> list[Effect]:
        self._evicted(evicted)
        settings = self._settings
        pull.download = Download(pull.song, pull.holders, chunk=settings.chunk, credit=settings.replica_credit)
        effects = [effect for holder in pull.holders for effect in self._connect(holder)]
        effects += self._requests(pull, pull.download.start(now))
        return [*effects, *self._finish_if_whole(pull)]

    def _requests(self, pull: Pull, requests: Iterable[Request]) -> list[Effect]:
        name = pull.song.name.encode()
        return [
            (
                SOCKET,
                (self._ids[holder], wire.HEADER, wire.FETCH, pull.tag, name, wire.number(offset), wire.number(size)),
            )
            for holder, offset, size in requests
        ]

    def _go_on(self, pull: Pull, requests: Iterable[Request], now: float) -> list[Effect]:
        if pull.download is not None and pull.download.needs_holders:
            return self._fail(pull, "nobody is left who gives it", now)
        return self._requests(pull, requests)

    def receive(self, frames: Frames, now: float) -> list[Effect]:
        """Take what a holder sends; what nobody waits for is left alone."""
        message = wire.split(frames)
        pull = self._active.get(message.tag)
        if pull is None or pull.download is None or not message.extended:
            return []
        holder = self._holders.get(bytes(message.envelope[0]), "")
        if message.word != wire.DATA:
            return self._go_on(pull, pull.download.lost(holder, now), now)
        if len(message.rest) != 2:
            raise records.MalformedError("data has an offset and bytes")
        offset, data = wire.read_number(message.rest[0]), message.rest[1]
        effects: list[Effect] = []
        if pull.download.wanted(holder, offset, len(data)):
            pull.writing += 1
            pull.source = holder
            write = (pull.song.name, offset, data)
            effects.append(self._job(pull, self._write, write, self._written))
        if pull.writing > self._settings.replica_credit:
            pull.unnoted.append((holder, offset, len(data)))
            return effects
        return effects + self._go_on(pull, pull.download.data(holder, offset, len(data), now), now)

    def _write(self, write: tuple[str, int, bytes]) -> None:
        self._shelf.write(*write)

    def undelivered(self, routing_id: bytes, now: float) -> list[Effect]:
        """Take note that a holder could not be asked."""
        holder = self._holders.get(bytes(routing_id))
        return self._lost(holder, now) if holder is not None else []

    def _lost(self, holder: str, now: float) -> list[Effect]:
        """Ask others instead of a holder that cannot be reached."""
        effects: list[Effect] = []
        for pull in list(self._active.values()):
            if pull.download is not None:
                effects += self._go_on(pull, pull.download.lost(holder, now), now)
        return effects

    def _finish_if_whole(self, pull: Pull) -> list[Effect]:
        if pull.download is None or not pull.download.done or pull.writing or pull.finishing:
            return []
        pull.finishing = True
        return [self._job(pull, self._shelf.finish, pull.song, self._finished)]

    def _finished(self, pull: Pull, song: Any, now: float) -> list[Effect]:
        self.counts.taken += 1
        self._taken(Replica(song, pull.source, pull.cause), now)
        return self._end(pull)

    def _fail(self, pull: Pull, why: str, now: float) -> list[Effect]:
        if self._by_name.get(pull.song.name) is not pull:
            return []  # it has failed already
        self.counts.failed += 1
        LOG.warning("a song of another server was not taken over", song=pull.song.name, why=why)
        drop = Job((DISK, pull.song.name), self._shelf.abort, pull.song.name, token=_nothing_more)
        return [drop, *self._end(pull)]

    def _end(self, pull: Pull) -> list[Effect]:
        self._active.pop(pull.tag, None)
        self._by_name.pop(pull.song.name, None)
        effects: list[Effect] = []
        if pull.download is not None:
            effects = [effect for holder in pull.holders for effect in self._disconnect(holder)]
        pull.download = None
        return [*effects, *self._start()]

    # --- connections --------------------------------------------------------------------------------------------------

    def _connect(self, holder: str) -> list[Effect]:
        self._users[holder] = self._users.get(holder, 0) + 1
        if holder in self._ids:
            return []
        routing_id = self._ids[holder] = b"%d" % next(self._numbers)
        self._holders[routing_id] = holder
        return [Connect(SOCKET, holder, routing_id)]

    def _disconnect(self, holder: str) -> list[Effect]:
        self._users[holder] -= 1
        if self._users[holder]:
            return []
        del self._users[holder]
        del self._holders[self._ids.pop(holder)]
        return [Disconnect(SOCKET, holder)]

    def cannot_connect(self, address: str, reason: str, now: float) -> list[Effect]:
        """Take note that a holder's address is not one that may be used."""
        LOG.warning("a holder's address cannot be used", address=address, reason=reason)
        return self._lost(address, now)


def _nothing_more(result: JobResult, now: float) -> list[Effect]:
    if result.error is not None:
        LOG.warning("what came of a song could not be removed", error=str(result.error))
    return []
