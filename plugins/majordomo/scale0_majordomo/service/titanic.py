"""Titanic (RFC 9): requests that are on disk before they are confirmed, and carried out when there is a worker.

A state machine without I/O. All that blocks is a job under one key, and jobs that wait are one transaction
(``titanic_store.py``). In memory are the uuids of requests that are not done; bodies only of those that a worker has.

How the service uses it
-----------------------
The service is the ``Executor``, and holds ``Titanic(Store(path), self)`` where the setting says so; None otherwise.

- *messages*: where a request's service ``handles()``, it calls ``request(service, body, answer, now)`` and returns the
  effects. ``answer`` writes the reply to the client, for example ``lambda body: [(SOCKET, dialects.answer(said.dialect,
  said.envelope, Word.FINAL, said.ident, said.service, b"", body))]``; it is called at once or after a job, just once.
- *names*: ``mmi.service`` says 200 for what ``handles()``; a worker that says READY with such a name gets DISCONNECT.
- *jobs*: ``on_job(result, now)`` for every job of the service: there are no others.
- *time*: ``next_deadline()`` is one more deadline, and ``on_deadline(now)`` is called with the others. The first one is
  due at once, and reads what is on disk.
- *workers*: after a READY, ``offered(service, now)``; ``offers(service)`` tells whether there is any worker.
- *execution*: ``execute(uuid, service, body, now)`` is a request of nobody's: the service queues it as any other, with
  the uuid in the place of a client, and instead of an answer calls ``executed(uuid, body, now)`` once; with None where
  it would give the client an error or drop the request (``_fail``: expired, refused, tried too often). Parts of a
  streamed reply are collected as for a client of MDP 0.1. ``executed`` may be called from inside ``execute``.
- *end*: ``on_stop()`` is the last job.

All methods that take ``now`` return effects. ``counts``, ``rows``, ``bytes`` and ``in_flight`` are for the statistics.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from scale0_core.api import MIB, Deadlines, Effect, Frames, Job, JobResult, backoff_seconds, get_logger
from scale0_majordomo.service.desk import Inside
from scale0_majordomo.service.titanic_store import (
    Close,
    Done,
    Expire,
    Found,
    Freed,
    Load,
    Opened,
    Operation,
    Put,
    Read,
    State,
    Store,
    new_uuid,
    weight,
)

LOG = get_logger("plugin.majordomo")

REQUEST, REPLY, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"
RESERVED = (b"titanic.", b"mmi.")
OK, PENDING, UNKNOWN, ERROR = b"200", b"300", b"400", b"500"

UUID = re.compile(rb"[0-9a-fA-F]{32}")
KEY = "titanic"
MAX_NAME = 255
DAY = 86400.0
PAUSE = 1.0
"""Seconds until something that failed is tried again; twice as many each time it fails again."""
LONGEST_PAUSE = 60.0
ABSENT_PAUSE = 1.0
"""Seconds after which services without workers are looked at again, should nobody have told."""
REOPEN_PAUSE = 5.0
SWEEP_EVERY = 60.0
NEVER = float("inf")
MAX_EARLY, MAX_EARLY_BYTES = 1000, 64 * MIB
"""So many requests may wait until the store is open."""
UNUSABLE = b"stored requests cannot be read or written; the broker's log says why"
TOO_EARLY = b"the store is not open yet, and too many requests wait for it"
STOPPED = b"the broker stopped before the store was open"

Answer = Callable[[Frames], Iterable[Effect]]
"""Writes the reply to a client."""


class Executor(Protocol):
    """What Titanic asks of the service."""

    def offers(self, service: bytes) -> bool:
        """Tell whether anybody offers a service."""

    def execute(self, ident: str, service: bytes, body: Frames, now: float) -> Iterable[Effect]:
        """Send a request to a worker; ``Titanic.executed`` is called once, with the reply or with None."""


class Entry:
    """A request that is on disk and not done."""

    __slots__ = ("body", "given_up", "gone", "ident", "lane", "reply", "service", "tries")

    def __init__(self, ident: str, service: bytes, body: Frames | None = None) -> None:
        self.ident = ident
        self.service = service
        self.body = body
        """None when it has to be read from disk."""
        self.reply: Frames | None = None
        """What is to be stored."""
        self.lane: Lane | None = None
        """Where it takes a place of those in flight."""
        self.tries = 0
        self.gone = False
        self.given_up = False


class Lane:
    """The requests of one service that wait for their turn; it is there as long as there are any that are not done."""

    __slots__ = ("in_flight", "listed", "paused", "service", "troubled", "waiting")

    def __init__(self, service: bytes) -> None:
        self.service = service
        self.waiting: deque[Entry] = deque()
        self.in_flight = 0
        self.paused = 0
        """How many are to be tried again later."""
        self.listed = False
        """Whether it stands in one of the lists of lanes."""
        self.troubled = False
        """Whether the last try failed: then one at a time is tried until one succeeds."""


class Titanic:
    """The services titanic.request, titanic.reply and titanic.close.

    After ``expiry`` seconds (0: never) a reply that nobody closed is deleted, and a request that could not be carried
    out is given up. ``parallel`` requests at most are in the hands of the executor. A service gets another place among
    them only while it has fewer than are free: so one whose workers hang leaves room for others, and those for more.

    Large, since each of its three services has several steps, each with a job for the store in between.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        new_id: Callable[[], str] = new_uuid,
        expiry: float = 7 * DAY,
        max_open: int = 100_000,
        max_bytes: int = 1024 * MIB,
        parallel: int = 64,
    ) -> None:
        self._store = store
        self._executor = executor
        self._new_id = new_id
        self._expiry = expiry or NEVER
        self._max_open = max_open
        self._max_bytes = max_bytes
        self._parallel = parallel
        self._services = {REQUEST: self._request, REPLY: self._reply, CLOSE: self._close}
        self._entries: dict[str, Entry] = {}
        self._out: dict[str, Entry] = {}
        """Those that the executor has."""
        self._lanes: dict[bytes, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._full: list[Lane] = []
        self._absent: dict[bytes, Lane] = {}
        self._handing_out = False
        self._paused: Deadlines[Entry, Entry] = Deadlines(0)
        self._open_due = 0.0
        self._sweep_every = min(SWEEP_EVERY, max(self._expiry / 4, 0.01))
        self._sweep_due = NEVER
        self._absent_due = NEVER
        self._fault = ""
        self._early: list[tuple[bytes, Frames, Answer]] = []
        """What came before the store was open."""
        self._early_bytes = 0
        self._is_open: bool | None = None
        """None until it is known."""
        self.in_flight = 0
        self.rows = 0
        """Requests on disk that are not closed, done or not."""
        self.bytes = 0
        self.counts = dict.fromkeys(
            ("requests", "refused", "executed", "retried", "closed", "expired", "given_up", "errors"), 0
        )

    # --- what clients ask ---------------------------------------------------------------------------------------------

    def handles(self, service: bytes) -> bool:
        """Tell whether a service is one of Titanic's own."""
        return service in self._services

    def request(self, service: bytes, body: Frames, answer: Answer, now: float) -> list[Effect]:
        """Take a request to one of Titanic's services; before the store is open it waits."""
        if self._is_open:
            return self._services[service](body, answer, now)
        if self._is_open is False:
            return list(answer((ERROR, UNUSABLE)))
        size = sum(map(len, body))
        if len(self._early) >= MAX_EARLY or self._early_bytes + size > MAX_EARLY_BYTES:
            self.counts["refused"] += 1
            return list(answer((ERROR, TOO_EARLY)))
        self._early.append((service, _as_bytes(body), answer))
        self._early_bytes += size
        return []

    def _take_early(self) -> list[tuple[bytes, Frames, Answer]]:
        early, self._early, self._early_bytes = self._early, [], 0
        return early

    def _request(self, body: Frames, answer: Answer, now: float) -> list[Effect]:
        target = bytes(body[0]) if body and len(body[0]) <= MAX_NAME else b""
        frames = body[1:] or (b"",)
        size = weight(target, frames)
        full = self.rows >= self._max_open or self.bytes + size > self._max_bytes
        if full or not target or target.startswith(RESERVED):
            self.counts["refused"] += 1
            return list(answer((ERROR,)))
        self.rows += 1
        self.bytes += size
        put = Put(self._new_id(), target, _as_bytes(frames))
        return [self._job(put, partial(self._stored, put, size, answer))]

    def _stored(self, put: Put, size: int, answer: Answer, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            self.rows -= 1
            self.bytes -= size
            return self._failed(answer, result.error)
        self._fault = ""
        self.counts["requests"] += 1
        entry = Entry(put.ident, put.service, put.body)
        self._await_turn(entry)
        effects = [*answer((OK, put.ident.encode())), *self._hand_out(now)]
        entry.body = None  # if it must wait, it is read again when its turn comes
        return effects

    def _reply(self, body: Frames, answer: Answer, now: float) -> list[Effect]:
        ident = _read_uuid(body)
        if ident is None:
            return list(answer((UNKNOWN,)))
        if ident in self._entries:
            return list(answer((PENDING,)))
        return [self._job(Read(ident), partial(self._was_read, answer))]

    def _was_read(self, answer: Answer, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            return self._failed(answer, result.error)
        found: Found | None = result.value
        if found is None:
            return list(answer((UNKNOWN,)))
        if found.state is State.DONE:
            return list(answer((OK, *found.reply)))
        return list(answer((PENDING if found.state is State.WAITING else ERROR,)))

    def _close(self, body: Frames, answer: Answer, now: float) -> list[Effect]:
        ident = _read_uuid(body)
        if ident is None:
            return list(answer((OK,)))  # RFC: always, also for what was never there
        return [self._job(Close(ident), partial(self._closed, ident, answer))]

    def _closed(self, ident: str, answer: Answer, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            return self._failed(answer, result.error)
        self._freed(result.value)
        self.counts["closed"] += result.value.rows
        entry = self._entries.pop(ident, None)
        if entry is not None:
            entry.gone = True
        return list(answer((OK,)))

    def _failed(self, answer: Answer, error: BaseException) -> list[Effect]:
        self._note_fault(error)
        return list(answer((ERROR, UNUSABLE)))

    def _freed(self, freed: Freed) -> None:
        self.rows -= freed.rows
        self.bytes -= freed.bytes

    # --- the disk -----------------------------------------------------------------------------------------------------

    def _job(self, operation: Operation, token: Callable[[JobResult, float], list[Effect]]) -> Job:
        return Job(KEY, self._store.commit, operation, token, grouped=True)

    def on_job(self, result: JobResult, now: float) -> list[Effect]:
        """Take the outcome of a job."""
        done: Callable[[JobResult, float], list[Effect]] = result.token
        return done(result, now)

    def on_stop(self) -> list[Effect]:
        """Answer who still waits, and give the last job: it closes the file when all others are done."""
        told = [effect for _, _, answer in self._take_early() for effect in answer((ERROR, STOPPED))]
        return [*told, Job(KEY, _close_store, self._store, _nothing)]

    def _opened(self, result: JobResult, now: float) -> list[Effect]:
        """Take over the requests on disk, then those that came meanwhile."""
        early = self._take_early()
        if result.error is not None:
            self._is_open = False
            self._note_fault(result.error)
            self._open_due = now + REOPEN_PAUSE
            return [effect for _, _, answer in early for effect in answer((ERROR, UNUSABLE))]
        self._is_open = True
        self._fault = ""
        found: Opened = result.value
        self.rows += found.rows
        self.bytes += found.bytes
        for ident, service in found.waiting:
            self._await_turn(Entry(ident, service))
        if found.rows:
            LOG.info("stored requests are back", requests=found.rows, waiting=len(found.waiting), bytes=found.bytes)
        self._sweep_due = now + self._sweep_every
        effects = self._hand_out(now)
        for service, body, answer in early:
            effects += self.request(service, body, answer, now)
        return effects

    def _note_fault(self, error: BaseException) -> None:
        """Log what is wrong with the disk, once for as long as it stays the same."""
        self.counts["errors"] += 1
        if (fault := str(error)) != self._fault:
            self._fault = fault
            LOG.error("stored requests cannot be read or written", error=fault)

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        due = min(self._open_due, self._sweep_due, self._absent_due, self._paused.due)
        return None if due == NEVER else due

    def on_deadline(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self._open_due <= now:
            self._open_due = NEVER
            effects.append(Job(KEY, _open_store, self._store, self._opened))
        if self._sweep_due <= now:
            self._sweep_due = now + self._sweep_every
            effects.append(self._job(Expire(self._expiry), self._expired))
        if self._absent_due <= now:
            self._absent_due = NEVER
            self._ready += self._absent.values()
            self._absent.clear()
        for entry in self._paused.take(now):
            if entry.reply is not None:
                effects.append(self._save(entry))
                continue
            lane = self._lanes[entry.service]
            lane.paused -= 1
            if not entry.gone:
                self._await_turn(entry)
            self._forget_if_unused(lane)
        return effects + self._hand_out(now)

    def _expired(self, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            self._note_fault(result.error)
            return []
        freed: Freed = result.value
        self._freed(freed)
        self.counts["expired"] += freed.rows
        for ident in freed.given_up:
            entry = self._entries.get(ident)
            if entry is None:
                continue
            LOG.warning("a stored request was given up", uuid=ident, service=entry.service, tries=entry.tries)
            self.counts["given_up"] += 1
            entry.given_up = True
            if entry.lane is None:  # else it is being carried out, and a reply is welcome
                entry.gone = True
                del self._entries[ident]
        return []

    # --- carrying out -------------------------------------------------------------------------------------------------

    def offered(self, service: bytes, now: float) -> list[Effect]:
        """Take note that somebody offers a service."""
        lane = self._absent.pop(service, None)
        if lane is None:
            return []
        self._ready.append(lane)
        return self._hand_out(now)

    def taker(self, ident: str) -> Inside:
        """Return what takes the outcome of a request."""
        return lambda outcome, now: self.executed(ident, None if outcome.code else outcome.body, now)

    def executed(self, ident: str, body: Frames | None, now: float) -> list[Effect]:
        """Take the reply of a worker; None when there will be none, so that the request is to be tried again."""
        entry = self._out.pop(ident, None)
        if entry is None:
            return []
        if body is None:
            return self._try_later(entry, now)
        assert entry.lane is not None
        entry.lane.troubled = False
        entry.reply = _as_bytes(body) or (b"",)
        return [self._save(entry)]

    def _await_turn(self, entry: Entry) -> None:
        self._entries[entry.ident] = entry
        lane = self._lanes.get(entry.service)
        if lane is None:
            lane = self._lanes[entry.service] = Lane(entry.service)
        lane.waiting.append(entry)
        if not lane.listed:
            lane.listed = True
            self._ready.append(lane)

    def _hand_out(self, now: float) -> list[Effect]:
        """Give requests to the executor, a service's turn after the other's, as long as there are places."""
        effects: list[Effect] = []
        if self._handing_out:
            return effects  # the executor has told of one while it was handed another
        self._handing_out = True
        try:
            while self._ready and self.in_flight < self._parallel:
                lane = self._ready.popleft()
                entry = self._next_of(lane, now)
                if entry is not None:
                    self._ready.append(lane)
                    effects += self._start(entry, lane, now)
        finally:
            self._handing_out = False
        return effects

    def _next_of(self, lane: Lane, now: float) -> Entry | None:
        """Take the next request of a lane; where there is none, or not now, the lane is put where it belongs."""
        waiting = lane.waiting
        while waiting and waiting[0].gone:
            waiting.popleft()
        if not waiting:
            lane.listed = False
            self._forget_if_unused(lane)
        elif lane.in_flight >= (1 if lane.troubled else self._parallel - self.in_flight):
            self._full.append(lane)
        elif not self._executor.offers(lane.service):
            self._absent[lane.service] = lane
            self._absent_due = min(self._absent_due, now + ABSENT_PAUSE)
        else:
            return waiting.popleft()
        return None

    def _start(self, entry: Entry, lane: Lane, now: float) -> list[Effect]:
        entry.lane = lane
        lane.in_flight += 1
        self.in_flight += 1
        if entry.body is None:
            return [self._job(Load(entry.ident), partial(self._loaded, entry))]
        return self._execute(entry, entry.body, now)

    def _loaded(self, entry: Entry, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            self._note_fault(result.error)
            return self._try_later(entry, now)
        body: Frames | None = result.value
        if body is None or entry.gone:  # closed meanwhile
            self._entries.pop(entry.ident, None)
            self._release(entry)
            return self._hand_out(now)
        return [*self._execute(entry, body, now), *self._hand_out(now)]

    def _execute(self, entry: Entry, body: Frames, now: float) -> list[Effect]:
        self._out[entry.ident] = entry
        return list(self._executor.execute(entry.ident, entry.service, body, now))

    def _try_later(self, entry: Entry, now: float) -> list[Effect]:
        lane = entry.lane
        assert lane is not None
        lane.troubled = True
        if entry.given_up:
            self._entries.pop(entry.ident, None)
        elif not entry.gone:
            self.counts["retried"] += 1
            lane.paused += 1
            self._pause(entry, now)
        self._release(entry)
        return self._hand_out(now)

    def _pause(self, entry: Entry, now: float) -> None:
        self._paused.set(entry, now + backoff_seconds(entry.tries, PAUSE, LONGEST_PAUSE), entry)
        entry.tries += 1

    def _release(self, entry: Entry) -> None:
        """Give back the place of a request among those in flight; with it there may be room for any service."""
        lane = entry.lane
        assert lane is not None
        entry.lane = None
        lane.in_flight -= 1
        self.in_flight -= 1
        self._ready += self._full
        self._full.clear()
        self._forget_if_unused(lane)

    def _forget_if_unused(self, lane: Lane) -> None:
        if not (lane.listed or lane.in_flight or lane.paused):
            del self._lanes[lane.service]

    # --- replies ------------------------------------------------------------------------------------------------------

    def _save(self, entry: Entry) -> Effect:
        assert entry.reply is not None
        return self._job(Done(entry.ident, entry.reply), partial(self._saved, entry))

    def _saved(self, entry: Entry, result: JobResult, now: float) -> list[Effect]:
        """Let go of a request whose reply is safe; while the disk refuses it, the request keeps its place.

        So a full disk stops the execution of requests, rather than have them executed again and again.
        """
        if result.error is not None and not entry.gone:
            self._note_fault(result.error)
            self._pause(entry, now)
            return []
        if result.error is None:
            self._fault = ""
            self.bytes += result.value
        if not entry.gone:
            self.counts["executed"] += 1
            self._entries.pop(entry.ident, None)
        self._release(entry)
        return self._hand_out(now)


def _as_bytes(frames: Frames) -> Frames:
    """Give frames that stay as they are when the message is gone."""
    return tuple(map(bytes, frames))


def _read_uuid(body: Frames) -> str | None:
    """Read a uuid, in either case; None when it is none."""
    if len(body) != 1 or len(body[0]) != 32:
        return None
    text = bytes(body[0])
    return text.decode().lower() if UUID.fullmatch(text) else None


def _open_store(store: Store) -> Opened:
    return store.open()


def _close_store(store: Store) -> None:
    store.close()


def _nothing(result: JobResult, now: float) -> list[Effect]:
    return []
