"""The service itself: a state machine without I/O (docs/reference/majordomo-protocol.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, cast

from scale0_core.api import (
    KIB,
    Deadlines,
    Effect,
    Endpoint,
    FastPath,
    Frames,
    JobResult,
    SocketKind,
    get_logger,
    printable,
)
from scale0_majordomo import dialects
from scale0_majordomo.dialects import MAX_ID, MAX_OPTIONS, Dialect, Said, Side, Terms, Word
from scale0_majordomo.service import mmi
from scale0_majordomo.service.backpressure import Backpressure
from scale0_majordomo.service.desk import (
    COUNTS,
    DRAINING,
    LONGEST_LABEL,
    Outcome,
    Parts,
    Request,
    Service,
    Worker,
    weigh,
)
from scale0_majordomo.service.losses import Losses
from scale0_majordomo.service.queues import NEVER
from scale0_majordomo.service.titanic import Titanic
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.service.watch import WorkerWatch
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

LOG = get_logger("plugin.majordomo")

SOCKET = "requests"
MMI = mmi.PREFIX
ANY_BODY = range(5, 1025)
MAX_CREDIT = 10_000
MAX_TOLD = 10_000
HIGH_WATER = 20_000
"""Messages from a peer that ZeroMQ keeps; with few, its own heartbeats may end the process (libzmq 3937)."""
UNREAD = 1_000
"""Messages that ZeroMQ keeps for a peer that reads late; what is more waits in the core's outbox, bounded by bytes."""
SWEEP_PAUSE = 0.05
"""Seconds between looks at the queues for requests that have waited for too long, when there are some all the time."""
GONE_PAUSE = 0.25
"""Seconds after which the requests of clients that could not be reached are looked for."""
REFUSALS_LOGGED_EVERY = 10.0
"""Seconds between two log lines about requests that were refused."""
GONE, FULL = "EHOSTUNREACH", "EAGAIN"
GENERATED = b"\0"
"""How the routing ids begin that ZeroMQ makes up; they never come back."""
WORKER_CODES = re.compile(rb"5[0-9][0-9]").fullmatch
NO_TERMS = Terms()
MDP01, MDP02, OWN = Dialect.MDP01, Dialect.MDP02, Dialect.OWN


class MajordomoService(Backpressure, Losses):
    """Takes requests from clients to workers, and replies back.

    Large, since a request goes through many hands on one path that is passed at every message; parts that stand
    alone are in other modules.
    """

    name = "majordomo"

    def __init__(
        self,
        settings: MajordomoSettings | None = None,
        bind: Iterable[str] = ("inproc://majordomo",),
        store: Store | None = None,
        *,
        group: str = "",
    ) -> None:
        self._settings = settings = settings or MajordomoSettings()
        self._group = group
        self.endpoints: Mapping[str, Endpoint] = {
            SOCKET: Endpoint(
                kind=SocketKind.ROUTER,
                bind=bind,
                high_water=HIGH_WATER,
                max_message=settings.max_message,
                blob_over=8 * KIB,
                watch_peers=True,
                options={"SNDHWM": UNREAD},
            )
        }
        self._services: dict[bytes, Service] = {}
        self._workers: dict[bytes, Worker] = {}
        self._open: dict[Frames, Request] = {}
        """Requests of clients that gave them an id, by envelope and id."""
        self._addresses = count(1)
        self._names = count(1)
        self._watch = WorkerWatch(settings, self._workers)
        self._timers: Deadlines[Request, Request] = Deadlines(0)
        self._queues: dict[Service, None] = {}
        """Services with requests that may become due."""
        self._sweep_due = NEVER
        self._leaving = {}
        self._gone: set[bytes] = set()
        """Clients that could not be reached and will not come back, until their requests are looked for."""
        self._gone_due = NEVER
        self._late = {}
        self._refusals_logged = -NEVER
        self._now = 0.0
        self._titanic = self._make_titanic(settings, store)
        self._told: dict[bytes, None] = {}
        """Unknown workers that were told to DISCONNECT."""
        self.counts = dict.fromkeys(
            ("requests", "replies", *COUNTS, "malformed", "unknown_workers", "lost_workers", "undelivered"), 0
        )
        """Without those of the services that are there now; ``totals`` has all."""

    # --- what the core calls ------------------------------------------------------------------------------------------

    @property
    def fast_paths(self) -> Iterable[FastPath]:
        """Requests and final replies of each dialect, to services and from workers that are known."""
        return (
            FastPath(SOCKET, ANY_BODY, 2, b"MDPC01", self._fast_request),
            FastPath(SOCKET, ANY_BODY, 2, b"MDPW01", self._fast_reply),
            FastPath(SOCKET, ANY_BODY, 2, b"\x04", self._fast_modern_reply),
            FastPath(SOCKET, ANY_BODY, 1, b"S0MC01", self._fast_own_request),
        )

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take one message."""
        return self._understand(frames, now) if socket == SOCKET else self._receive_elsewhere(socket, frames, now)

    def _receive_elsewhere(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        return ()  # it has one socket, and its child more

    def _fast_request(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        name = frames[3]
        service = self._services.get(name) if type(name) is bytes else None
        if service is None or frames[1]:
            return None
        address = b"%d" % next(self._addresses)
        return self._requested(Request(address, MDP01, frames[:4], service, frames[4:]), now)

    def _fast_reply(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        if len(frames) < 7 or frames[3] != b"\x03" or frames[1] or frames[5]:
            return None
        return self._fast_replied(frames, MDP01, frames[4], frames[6:], now)

    def _fast_modern_reply(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        header = frames[1]
        dialect = MDP02 if header == b"MDPW02" else OWN if header == b"S0MW01" else None
        if dialect is None or len(frames) < 6 or frames[4]:
            return None
        return self._fast_replied(frames, dialect, frames[3], frames[5:], now)

    def _fast_replied(
        self, frames: Frames, dialect: Dialect, address: bytes, body: Frames, now: float
    ) -> Iterable[Effect] | None:
        worker = self._workers.get(frames[0])
        if worker is None or worker.dialect is not dialect or type(address) is not bytes:
            return None
        request = worker.in_hand.pop(address, None)
        return self._replied(worker, request, b"", body, now) if request is not None else None

    def _fast_own_request(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        if len(frames) < 7 or frames[2] != b"\x01":
            return None
        _, header, _, ident, name, options = frames[:6]
        service = self._services.get(name) if type(name) is bytes else None
        fits = type(ident) is type(options) is bytes and 0 < len(ident) <= MAX_ID and len(options) <= MAX_OPTIONS
        if service is None or not fits:
            return None
        back = (frames[0], header, dialects.FINAL, ident, name)
        request = Request(b"%d" % next(self._addresses), OWN, back, service, frames[6:])
        return self._own_requested(request, ident, options, now)

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        due = min(self._sweep_due, self._watch.due, self._gone_due, self._resume_due, self._timers.due)
        if self._leaving:
            due = min(due, next(iter(self._leaving.values())))
        if self._titanic is not None and (titanic := self._titanic.next_deadline()) is not None:
            due = min(due, titanic)
        return None if due == NEVER else due

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        self._now = now
        effects: list[Effect] = [] if self._titanic is None else self._titanic.on_deadline(now)
        if self._watch.due <= now:
            silent, beats = self._watch.on_deadline(now)
            for worker in silent:
                effects += self._lose(worker, "silent", now)
            effects += [(SOCKET, beat) for beat in beats if beat[0] in self._workers]
        for request in self._timers.expire(now):
            request.timed = False
            effects += self._time_over(request)
        effects += self._lose_leaving(now)
        if self._resume_due <= now:
            effects += self._resume(now)
        if self._gone_due <= now:
            effects += self._abandon(now)
        if self._sweep_due <= now:
            effects += self._sweep(now)
        return effects

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Effect]:
        """Ask the workers that have requests, in a moment, whether it was one of them."""
        self._watch.connection_lost(now)
        return ()

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Note that a peer cannot be reached: a worker is gone, a client gets no reply."""
        self._now = now
        self.counts["undelivered"] += 1
        peer = frames[0]
        self._told.pop(peer, None)
        worker = self._workers.get(peer)
        if worker is None:
            if reason == GONE:
                self._let_go(peer, now)
                if peer[:1] == GENERATED:
                    self._gone.add(peer)
                    self._gone_due = min(self._gone_due, now + GONE_PAUSE)
            else:
                self.on_sent(socket, frames, now)
                LOG.warning("a reply was dropped: its client does not read", reason=reason, bytes=sum(map(len, frames)))
            return ()
        if reason == FULL:
            request = self._request_in(frames, worker)
            return self._take_back(worker, request, now) if request is not None else ()
        return self._unreachable(worker, now)

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Tell everybody that the broker stops: workers, and clients that understand it."""
        effects: list[Effect] = [
            (SOCKET, dialects.to_worker(worker.dialect, worker.envelope, Word.DISCONNECT))
            for worker in self._workers.values()
        ]
        effects += [(SOCKET, dialects.error(request.back, 503, "the broker stops")) for request in self._open.values()]
        return effects if self._titanic is None else [*effects, *self._titanic.on_stop()]

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take what Titanic's store says."""
        self._now = now
        return () if self._titanic is None else self._titanic.on_job(result, now)

    # --- Titanic ------------------------------------------------------------------------------------------------------

    def _make_titanic(self, settings: MajordomoSettings, store: Store | None) -> Titanic | None:
        if store is None:
            return None
        return Titanic(store, self, expiry=settings.titanic_expiry, parallel=settings.titanic_parallel)

    def offers(self, service: bytes) -> bool:
        """Tell whether anybody offers a service."""
        known = self._services.get(service)
        return known is not None and bool(known.workers)

    def execute(self, ident: str, service: bytes, body: Frames, now: float) -> Iterable[Effect]:
        """Send a request that Titanic has stored to a worker."""
        self._now = now
        titanic = self._titanic
        known = self._services.get(service) or self._make(service)
        if titanic is None or known is None:
            return [] if titanic is None else titanic.executed(ident, None, now)
        request = Request(b"%d" % next(self._addresses), MDP01, (b"\0titanic",), known, body)
        request.inside = titanic.taker(ident)
        effects = self._requested(request, now)
        self._tidy(known)
        return effects

    # --- messages -----------------------------------------------------------------------------------------------------

    def _understand(self, frames: Frames, now: float) -> Iterable[Effect]:
        self._now = now
        said = dialects.read(frames)
        if said is None:
            self.counts["malformed"] += 1
            worker = self._workers.get(frames[0]) if frames else None
            return self._dismiss(worker, "a message that makes no sense", now) if worker is not None else ()
        if said.side is Side.CLIENT:
            return self._client_said(said, now)
        return self._worker_said(frames[0], said, now)

    def _client_said(self, said: Said, now: float) -> Iterable[Effect]:
        if said.word is Word.CANCEL:
            request = self._open.get((*said.envelope, said.ident))
            return self._cancel(request) if request is not None else ()
        back = dialects.final_head(said.dialect, said.envelope, said.ident, said.service)
        if said.service.startswith(MMI):
            return ((SOCKET, dialects.final(said.dialect, back, b"", self._mmi(said, now))),)
        if self._titanic is not None and self._titanic.handles(said.service):
            return self._titanic.request(
                said.service, said.body, lambda body: [(SOCKET, dialects.final(said.dialect, back, b"", body))], now
            )
        service = self._services.get(said.service) or self._make(said.service)
        if service is None:
            self.counts["requests"] += 1
            self.counts["refused"] += 1
            if self._telling is not None:
                self._telling.refused(said.service, now)
            self._log_refusals("there are too many services", said.service, now)
            return self._error(said.dialect, back, said.service, 429, "there are too many services")
        request = Request(b"%d" % next(self._addresses), said.dialect, back, service, said.body)
        if said.dialect is OWN:
            effects = self._own_requested(request, said.ident, said.options, now)
        else:
            effects = self._requested(request, now)
        self._tidy(service)
        return effects

    def _worker_said(self, peer: bytes, said: Said, now: float) -> Iterable[Effect]:
        """Follow the table of what a worker may say when; whatever it may not say ends in DISCONNECT."""
        worker = self._workers.get(peer)
        word = said.word
        if word is Word.DISCONNECT:
            return self._lose(worker, "disconnected", now) if worker is not None else ()
        if worker is None:
            return self._ready(peer, said, now) if word is Word.READY else self._unknown(peer, said)
        if word is Word.READY and (worker in self._leaving or self._watch.may_be_another(worker)):
            # the old connection is gone, since ZeroMQ has let in another of the same routing id
            return [*self._lose(worker, "cannot be reached", now), *self._ready(peer, said, now)]
        worker.heard = now
        if said.dialect is not worker.dialect:
            return self._dismiss(worker, "two dialects", now)
        if word is Word.HEARTBEAT:
            if self._telling is not None:
                self._telling.beat(worker, now)
            return ()
        if word is Word.DRAIN and worker.credit != DRAINING:
            return self._drain(worker, said.body, now)
        request = worker.in_hand.get(said.ident) if word in (Word.PARTIAL, Word.FINAL, Word.ERROR) else None
        if request is None:
            return self._dismiss(worker, f"an unexpected {word.value}", now)
        if word is Word.PARTIAL:
            return self._part(request, said)
        del worker.in_hand[said.ident]
        if word is Word.ERROR:
            return self._worker_failed(worker, request, said, now)
        return self._replied(worker, request, said.options, said.body, now)

    # --- workers ------------------------------------------------------------------------------------------------------

    def _ready(self, peer: bytes, said: Said, now: float) -> Iterable[Effect]:
        options = dialects.read_options(said.options)
        credit = options.get("credit", 1) if options is not None else None
        taken = said.service.startswith(MMI) or self._is_titanics(said.service)
        fine = type(credit) is int and 1 <= credit <= MAX_CREDIT and not taken
        self._told.pop(peer, None)  # who says READY begins anew, and is told anew
        if not fine or len(self._workers) >= self._settings.max_workers:
            return self._unknown(peer, said)
        service = self._services.get(said.service) or self._make(said.service)
        if service is None:
            return self._unknown(peer, said)
        assert credit is not None
        worker = self._workers[peer] = Worker(peer, said.dialect, said.envelope, service, credit, now)
        worker.name = f"w{next(self._names)}"
        service.add(worker)
        if self._telling is not None:
            self._telling.joined(worker, now)
        self._watch.begin(worker, now)
        effects = self._give(worker, now)
        return effects if self._titanic is None else [*effects, *self._titanic.offered(said.service, now)]

    def _unknown(self, peer: bytes, said: Said) -> Iterable[Effect]:
        """Tell a worker that nobody knows to begin anew; once, however many heartbeats it has queued."""
        if peer in self._told:
            return ()
        self.counts["unknown_workers"] += 1
        self._note_told(peer)
        return [(SOCKET, dialects.to_worker(said.dialect, said.envelope, Word.DISCONNECT))]

    def _note_told(self, peer: bytes) -> None:
        while len(self._told) >= MAX_TOLD:
            del self._told[next(iter(self._told))]
        self._told[peer] = None

    def _dismiss(self, worker: Worker, why: str, now: float) -> Iterable[Effect]:
        """Send a worker away that says what it may not say."""
        self._note_told(worker.peer)
        farewell = (SOCKET, dialects.to_worker(worker.dialect, worker.envelope, Word.DISCONNECT))
        return [farewell, *self._lose(worker, why, now)]

    # --- requests -----------------------------------------------------------------------------------------------------

    def _make(self, name: bytes) -> Service | None:
        if len(self._services) >= self._settings.max_services:
            return None
        service = self._services[name] = Service(name, self._settings_of(name), self._late)
        return service

    def _settings_of(self, service: bytes) -> ServiceSettings:
        return self._settings.services.get(service.decode("utf-8", "backslashreplace"), self._settings.default)

    def _tidy(self, service: Service) -> None:
        """Forget a service that nobody offers and nobody waits for; its figures are kept in the total."""
        if service.unused and self._services.pop(service.name, None) is not None:
            self._queues.pop(service, None)
            for name, number in mmi.figures(service).items():
                self.counts[name] += number

    def _requested(self, request: Request, now: float) -> Iterable[Effect]:
        """Give a new request to a worker, or let it wait."""
        service = request.service
        service.requests += 1
        client = request.back[0]
        if client in self._late:  # it has replies to read first
            chosen = None
        elif service.quick:
            chosen = service.take_ready() if not service.waiting or not service.available else None
        else:
            chosen = service.take_worker(request)
        if chosen is not None:
            return (self._hand_over(request, chosen, now),)
        request.size = size = weigh(request.body)
        if not service.may_wait(client, size):
            return self._refuse(request, now)
        self._wait(request, now + service.expiry)
        return ()

    def _refuse(self, request: Request, now: float) -> list[Effect]:
        """Refuse a request that there is no room for."""
        service = request.service
        service.counts["refused"] += 1
        self._now = now
        self._log_refusals("too many wait", service.name, now)
        return self._fail(request, "refused", 429, "too many requests wait for this service")

    def _log_refusals(self, reason: str, service: bytes, now: float) -> None:
        """Log that requests are refused, now and then: clients of MDP are not told."""
        if now - self._refusals_logged >= REFUSALS_LOGGED_EVERY:
            self._refusals_logged = now
            total = self.totals()["refused"]
            LOG.warning("requests refused", reason=reason, service=printable(service, LONGEST_LABEL), total=total)

    def _own_requested(self, request: Request, ident: bytes, options: bytes, now: float) -> Iterable[Effect]:
        """Take a request with an id, and what its client wants of it."""
        key = (*request.back[:-3], ident)
        terms = dialects.read_terms(options) if options else NO_TERMS
        if type(terms) is str or key in self._open:
            self.counts["malformed"] += 1
            fault = terms if type(terms) is str else "there is a request of this id already"
            return ((SOCKET, dialects.error(request.back, 400, fault)),)
        request.options = options
        request.open_as = key
        self._open[key] = request
        timeout, request.priority, request.key, request.retry = cast("Terms", terms)
        if timeout is not None:
            request.timed = True
            request.ends = now + timeout
            self._timers.set(request, request.ends, request)
        return self._requested(request, now)

    def _place(self, request: Request, now: float) -> Iterable[Effect]:
        """Give a request that has waited already to a worker, or let it wait."""
        worker = request.service.take_worker(request)
        if worker is not None:
            return (self._hand_over(request, worker, now),)
        self._wait(request, request.due)
        return ()

    def _wait(self, request: Request, due: float, *, first: bool = False) -> None:
        request.service.wait(request, due, first=first)
        if due < request.service.next_due:
            self._expect_due(request.service, due)

    def _expect_due(self, service: Service, due: float) -> None:
        service.next_due = due
        self._queues[service] = None
        self._sweep_due = min(self._sweep_due, due)

    def _hand_over(self, request: Request, worker: Worker, now: float) -> Effect:
        request.worker = worker
        request.given = now
        request.tries += 1
        in_hand = worker.in_hand
        in_hand[request.address] = request
        worker.sent = now
        if len(in_hand) < worker.credit and not worker.queued:
            worker.queued = True
            worker.service.ready.append(worker)
        if worker.dialect is OWN:
            return (SOCKET, worker.request(request))
        return (SOCKET, (*worker.head, request.address, b"", *request.body))

    def _give(self, worker: Worker, now: float) -> list[Effect]:
        """Give a worker as many requests as it may have, or let it wait for one."""
        service = worker.service
        effects: list[Effect] = []
        while service.waiting and len(worker.in_hand) < worker.credit:
            request = service.take_request(worker)
            if request is None:
                break
            effects.append(self._hand_over(request, worker, now))
        service.offer(worker)
        return effects

    def _replied(self, worker: Worker, request: Request, options: bytes, body: Frames, now: float) -> Iterable[Effect]:
        """Take a final reply to its client, and let the worker go on."""
        worker.heard = now
        service = request.service
        if request.done:  # the client gave up meanwhile
            service.counts["late"] += 1
            return self._give(worker, now)
        service.replies += 1
        if options and request.dialect is not OWN and dialects.stands_for_nothing(options):
            body = ()  # its client has no such option
        if request.parts is not None:
            body = (*request.parts.frames, *body)
        if not body and request.part is None:
            body = (b"",)
        if self._telling is not None:
            self._telling.answered(request, worker, body, now)
        if request.inside is not None:
            request.done = True
            return [*request.inside(Outcome(body), now), *self._give(worker, now)]
        if request.dialect is OWN:
            self._finish(request)
            effect: Effect = (SOCKET, (*request.back, options, *body))
        else:
            request.done = True
            effect = (SOCKET, request.back + body)
        if service.waiting and worker.credit > 0:
            following = service.take_request(worker)  # and no more: before the reply it had no room, or nothing waited
            if following is not None:
                return (effect, self._hand_over(following, worker, now))
        if not worker.queued:
            worker.queued = True
            service.ready.append(worker)
        return (effect,)

    def _part(self, request: Request, said: Said) -> Iterable[Effect]:
        if request.done:
            return ()
        if self._telling is not None and (request.part is not None or request.dialect is not MDP01):
            request.passed_on += sum(map(len, said.body))
        if request.part is not None:
            request.streamed = True
            return request.part(said.body)
        if request.dialect is not MDP01:
            request.streamed = True
            return [(SOCKET, dialects.partial(request.dialect, request.back, said.options, said.body))]
        if request.parts is None:
            request.parts = Parts()
        request.parts.add(said.body)
        if request.parts.size > self._settings.max_message:
            request.service.counts["failed"] += 1
            return self._fail(request, "error", 500, "its parts are too many to be put together")
        return ()

    def _worker_failed(self, worker: Worker, request: Request, said: Said, now: float) -> Iterable[Effect]:
        """Take a worker's ERROR to its client."""
        counts = request.service.counts
        if request.done:
            counts["late"] += 1
            return self._give(worker, now)
        counts["errors"] += 1
        code = int(said.options) if WORKER_CODES(said.options) else 500
        reason = bytes(said.body[0]).decode("utf-8", "replace")
        return [*self._fail(request, "error", code, reason), *self._give(worker, now)]

    def _finish(self, request: Request) -> None:
        request.done = True
        request.body = ()  # a worker that was told to stop may keep it for long
        if request.open_as:
            del self._open[request.open_as]
        if request.timed:
            self._timers.remove(request)

    def _fail(self, request: Request, outcome: str, code: int, reason: str) -> list[Effect]:
        """Answer a request with an error, where its client's dialect has such a thing."""
        if self._telling is not None:
            self._telling.unanswered(request, outcome, self._now)
        request.parts = None
        self._finish(request)
        if request.inside is not None:
            return list(request.inside(Outcome((), code, reason), self._now))
        return self._error(request.dialect, request.back, request.service.name, code, reason)

    def _error(self, dialect: Dialect, back: Frames, service: bytes, code: int, reason: str) -> list[Effect]:
        """Tell a client of an error; MDP has none, so its clients get a reply that says so, or nothing."""
        if dialect is OWN:
            return [(SOCKET, dialects.error(back, code, reason))]
        if self._settings_of(service).error_replies:
            return [(SOCKET, (*back, b"%d" % code, reason.encode()))]
        return []

    def _give_up(self, request: Request) -> list[Effect]:
        """Stop to work on a request: it waits no longer, and a worker of our own dialect is told."""
        worker = request.worker
        if worker is None:
            request.service.drop(request)
            return []
        if worker.dialect is not OWN:
            return []
        return [(SOCKET, (*worker.envelope, dialects.CANCEL, request.address))]

    def _end(self, request: Request, counted: str, outcome: str, code: int, reason: str) -> list[Effect]:
        """End a request before its reply has come, wherever it is."""
        service = request.service
        service.counts[counted] += 1
        effects = [*self._give_up(request), *self._fail(request, outcome, code, reason)]
        self._tidy(service)
        return effects

    def _time_over(self, request: Request) -> list[Effect]:
        where = "waited for a worker" if request.worker is None else "was worked on"
        return self._end(request, "expired", "timeout", 408, f"its time is over; it {where}")

    def _cancel(self, request: Request) -> list[Effect]:
        return self._end(request, "cancelled", "cancelled", 410, "cancelled")

    def _sweep(self, now: float) -> list[Effect]:
        """End the requests that have waited for too long."""
        effects: list[Effect] = []
        for service in list(self._queues):
            if service.next_due <= now:
                reason = f"nobody took it within {service.expiry:g} s"
                for request in service.expired(now):
                    effects += self._end(request, "expired", "timeout", 408, reason)
            if service.next_due == NEVER:
                self._queues.pop(service, None)
        due = min((service.next_due for service in self._queues), default=NEVER)
        self._sweep_due = max(due, now + SWEEP_PAUSE)
        return effects

    def _abandon(self, now: float) -> list[Effect]:
        """End the requests of clients that are gone for good."""
        gone, self._gone, self._gone_due = self._gone, set(), NEVER
        found = [request for service in self._queues for request in service.all_waiting() if request.back[0] in gone]
        for worker in self._workers.values():
            found += [each for each in worker.in_hand.values() if each.back[0] in gone and not each.done]
        effects: list[Effect] = []
        for request in found:
            effects += self._give_up(request)
            self._fail(request, "cancelled", 410, "its client is gone")
            request.service.counts["abandoned"] += 1
            self._tidy(request.service)
        return effects

    # --- figures ------------------------------------------------------------------------------------------------------

    def _mmi(self, said: Said, now: float) -> Frames:
        return mmi.answer(said.service, self._services, self._is_there, said.body, now)

    def _is_titanics(self, service: bytes) -> bool:
        return self._titanic is not None and self._titanic.handles(service)

    def _is_there(self, service: bytes) -> bool:
        """Tell whether a service without a worker here is answered all the same."""
        return self._is_titanics(service)

    def stats(self, service: Service) -> dict[str, Any]:
        """Give the figures of a service."""
        return mmi.stats(service)

    def totals(self) -> dict[str, int]:
        """Give the figures of all services that are and were, and of what belongs to none."""
        total = dict(self.counts)
        for service in self._services.values():
            for name, number in mmi.figures(service).items():
                total[name] += number
        return total
