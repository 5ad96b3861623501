"""Requests, workers, and the services at which they meet: who gets what next."""

from __future__ import annotations

import sys
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from scale0_core.api import Effect, Frames, printable
from scale0_majordomo.dialects import Dialect, worker_head
from scale0_majordomo.service.queues import NEVER, FairQueue, Line, Share
from scale0_majordomo.settings import ServiceSettings

DRAINING = -1
"""The credit of a worker that takes no more requests: it is there, and never has room."""
SPARE = 64
"""So many dead entries are left where they stand, before a tidy-up is worth it."""

REQUEST_OVERHEAD, FRAME_OVERHEAD = 448, 64
"""Bytes of memory that a request takes beside its body, and each frame of its body."""
SHARE_OF_FREE = 4
"""A client may have so many times as much waiting at a service as there is room left: four fifths if it is alone."""

LONGEST_LABEL = 1_000
"""Characters of a name as events tell it: what no name has, however much of it had to be escaped."""

COUNTS = ("retried", "expired", "refused", "errors", "cancelled", "failed", "abandoned", "late")
"""What is counted of a service beside ``requests`` and ``replies``.

Of its requests each ends as one of ``replies``, ``errors`` (its worker said so), ``expired``, ``refused`` (no room),
``cancelled``, ``failed`` (its workers died) or ``abandoned`` (its client is gone). ``late`` are replies that nobody
waited for any more, ``retried`` are repetitions.
"""


class Outcome(NamedTuple):
    """How a request ended: with a reply, or with an error if there is a code."""

    body: Frames
    code: int = 0
    reason: str = ""


Inside = Callable[[Outcome, float], Iterable[Effect]]


def weigh(body: Frames) -> int:
    """Return the bytes of memory that a request with this body takes while it waits."""
    if len(body) == 1:
        return REQUEST_OVERHEAD + FRAME_OVERHEAD + len(body[0])
    return REQUEST_OVERHEAD + FRAME_OVERHEAD * len(body) + sum(map(len, body))


class Parts:
    """What a worker has sent of a streamed reply, for a client that takes only one."""

    __slots__ = ("frames", "size")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.size = 0

    def add(self, body: Frames) -> None:
        """Append a part."""
        self.frames += body
        self.size += sum(map(len, body))


class Request:
    """What a client asked for; it is kept until it is answered."""

    # Most requests need no other value of these and are never asked for them; in __init__ each would cost its time.
    address: bytes
    """What the worker knows it by."""
    dialect: Dialect
    back: Frames
    """The frames of the final reply up to its options or body; the first is the client's routing id."""
    service: Service
    body: Frames
    worker: Worker | None = None
    given = NEVER
    """When it was given to its worker."""
    tries = 0
    done = False
    parts: Parts | None = None
    open_as: Frames = ()
    """What the client knows it by: envelope and id, where it has one."""
    options = b""
    streamed = False
    """Whether its client has got a part of the reply already."""
    passed_on = 0
    """Bytes of these parts, while somebody observes."""
    size = 0
    due = NEVER
    """When it has waited for too long."""
    timed = False
    """Whether it stands among the timers."""
    ends = NEVER
    """When its client's time is over, if that said so."""
    unsent = False
    """Whether it is known not to have reached its last worker."""
    line: Line | None = None
    """Where it waits."""
    share: Share | None = None
    """What its client has waiting at the service, while it waits itself."""
    retry: bool | None = None
    """What the client says about repetitions; None leaves it to the service."""
    priority = 0
    key = b""
    inside: Inside | None = None
    """Takes the outcome, where the client is in the broker itself."""
    part: Callable[[Frames], Iterable[Effect]] | None = None
    """Takes a part of the reply, where a client in the broker wants it as it comes."""

    def __init__(self, address: bytes, dialect: Dialect, back: Frames, service: Service, body: Frames) -> None:
        self.address = address
        self.dialect = dialect
        self.back = back
        self.service = service
        self.body = body

    @property
    def repeatable(self) -> bool:
        """Whether another worker may get it as well."""
        settings = self.service.settings
        wanted = settings.resend if self.retry is None else self.retry
        return self.unsent or (wanted and not self.streamed and self.tries < settings.max_tries)


class Worker:
    """Somebody who offers a service."""

    __slots__ = (
        "backlog", "beat_told", "credit", "dialect", "envelope", "head", "heard", "in_hand", "joined", "label", "name",
        "peer", "point", "queued", "sent", "service",
    )  # fmt: skip

    dialect: Dialect
    head: Frames
    """The frames in front of a request's address."""
    service: Service
    credit: int
    """How many requests it may have in hand; none when it is gone, ``DRAINING`` when it is about to go."""
    in_hand: dict[bytes, Request]
    heard: float
    sent: float
    queued: bool
    """Whether it stands among those that are ready."""

    def __init__(
        self, peer: bytes, dialect: Dialect, envelope: Frames, service: Service, credit: int, now: float
    ) -> None:
        self.peer = peer
        self.point = crc32(peer)
        self.dialect = dialect
        self.envelope = envelope
        self.head = worker_head(dialect, envelope)
        self.service = service
        self.credit = credit
        self.in_hand = {}
        self.name = ""
        """What others may know it by: who knows a routing id may use it to keep the worker out."""
        self.label = printable(peer, LONGEST_LABEL)
        """The routing id as events tell it."""
        self.joined = self.heard = self.sent = now
        self.beat_told = -NEVER
        """When those who observe were last told that it lives."""
        self.queued = False
        self.backlog = FairQueue()
        """Requests that are to go to this worker and no other."""

    def request(self, request: Request) -> Frames:
        """Write a request for this worker."""
        if self.dialect is Dialect.OWN:
            return (*self.head, request.address, request.service.name, request.options, *request.body)
        return (*self.head, request.address, b"", *request.body)


class Service:
    """A name, those who offer it, and what waits for them.

    A request waits in one of three places, each of which serves clients in turn: ``queue``; one of ``levels``, instead,
    where requests have priorities; or the backlog of the one worker that is to have it. In each, requests whose worker
    died come first.

    Large, since a service has three kinds of queues, its own limits, and its counts.
    """

    __slots__ = (
        "_order", "counts", "draining", "expiry", "held", "label", "levels", "max_bytes", "max_waiting", "name",
        "next_due", "queue", "queue_bytes", "quick", "ready", "replies", "requests", "settings", "shares", "simple",
        "sticky", "waiting", "workers",
    )  # fmt: skip

    quick: bool
    """Whether the worker that is ready longest gets a request that needs not wait."""
    simple: bool
    """Whether a new request waits at the end of the queue, whatever it is."""
    expiry: float
    max_waiting: int
    max_bytes: int
    ready: deque[Worker]
    """Those with room for a request, longest idle first; some may have gone, or have no room any more."""
    queue: FairQueue
    shares: dict[bytes, Share]
    """What clients have waiting, by routing id; who has nothing is not there."""
    held: Mapping[bytes, object]
    """Clients of all services that read too slowly."""
    waiting: int
    queue_bytes: int
    next_due: float
    """No request that waits is due before."""
    requests: int
    replies: int

    def __init__(self, name: bytes, settings: ServiceSettings, held: Mapping[bytes, object]) -> None:
        self.name = name
        self.label = printable(name, LONGEST_LABEL)
        """The name as events tell it."""
        self.settings = settings
        self.quick = settings.scheduling in ("lru", "priority")
        self.simple = settings.scheduling in ("lru", "least")
        self.sticky = settings.scheduling == "sticky"
        self.expiry = settings.expiry
        self.max_waiting = min(settings.max_queue, sys.maxsize)
        self.max_bytes = min(settings.max_queue_bytes, sys.maxsize)
        self.workers: dict[bytes, Worker] = {}
        self.draining: dict[bytes, Worker] = {}
        """Those that only finish what they have in hand."""
        self.ready = deque()
        self.queue = FairQueue()
        self.shares = {}
        self.held = held
        self.levels: dict[int, FairQueue] = {}
        """Queues by priority."""
        self._order: list[int] = []
        """Their priorities, the largest last."""
        self.waiting = 0
        self.queue_bytes = 0
        self.next_due = NEVER
        self.requests = 0
        self.replies = 0
        self.counts = dict.fromkeys(COUNTS, 0)

    @property
    def unused(self) -> bool:
        """Whether it may be forgotten."""
        return not (self.workers or self.waiting or self.draining)

    @property
    def available(self) -> bool:
        """Whether any worker could have a request that waits; those of clients that are held do not count."""
        return bool(self.queue.available) or any(level.available for level in self.levels.values())

    # --- workers ------------------------------------------------------------------------------------------------------

    def add(self, worker: Worker) -> None:
        """Let a worker in; it gets the requests whose keys are its own now."""
        places = [self.queue, *(other.backlog for other in self.workers.values())]
        self.workers[worker.peer] = worker
        if not self.sticky or not self.waiting:
            return
        self.queue = FairQueue()
        for other in self.workers.values():
            other.backlog = FairQueue()
        for place in places:
            found = list(place)
            retried = [request for request in found if request.line is place.again]
            for request in reversed(retried):
                self._stand(request, first=True)
            for request in found[len(retried) :]:
                self._stand(request, first=False)

    def offer(self, worker: Worker) -> None:
        """Let a worker that has room stand at the end of those that are ready."""
        if not worker.queued and len(worker.in_hand) < worker.credit:
            worker.queued = True
            self.ready.append(worker)

    def drain(self, worker: Worker) -> None:
        """Let a worker finish what it has. What stands in its backlog is still waiting, and to be placed anew."""
        self.draining[worker.peer] = self.workers.pop(worker.peer)
        worker.credit = DRAINING

    def leave(self, worker: Worker) -> None:
        """Let a worker go. What stands in its backlog is still waiting, and to be placed anew."""
        del (self.draining if worker.credit == DRAINING else self.workers)[worker.peer]
        worker.credit = 0
        if len(self.ready) > 2 * len(self.workers) + SPARE:
            self.ready = deque(worker for worker in self.ready if worker.credit)

    def take_worker(self, request: Request, *, first: bool = False) -> Worker | None:
        """Choose the worker for a request; None when it has to wait, be it only because others do."""
        if self.sticky and request.key:
            owner = self._owner(request.key) if self.workers else None
            return owner if owner and len(owner.in_hand) < owner.credit else None
        if not first and self.available:
            return None
        if self.settings.scheduling == "least":
            free = [worker for worker in self.workers.values() if len(worker.in_hand) < worker.credit]
            return min(free, key=_load, default=None)
        return self.take_ready()

    def take_ready(self) -> Worker | None:
        """Take the worker that has been ready longest; None when there is none."""
        ready = self.ready
        while ready:
            worker = ready.popleft()
            worker.queued = False
            if len(worker.in_hand) < worker.credit:
                return worker
        return None

    def _owner(self, key: bytes) -> Worker:
        """Give the worker a key belongs to: as long as it lives the same one, and few keys move when others come."""
        seed = crc32(key)
        # the hash of numbers is the same in every process; checksums alone are too much alike to choose by
        return max(self.workers.values(), key=lambda worker: hash((seed, worker.point)))

    # --- requests -----------------------------------------------------------------------------------------------------

    def may_wait(self, client: bytes, size: int) -> bool:
        """Tell whether a request may wait: there is room, and its client has no more than its share of that."""
        free, free_bytes = self.max_waiting - self.waiting, self.max_bytes - self.queue_bytes
        if free <= 0 or size > free_bytes:
            return False
        share = self.shares.get(client)
        if share is None:
            return free_bytes > 0
        return share.waiting < SHARE_OF_FREE * free and share.bytes < SHARE_OF_FREE * free_bytes

    def wait(self, request: Request, due: float, *, first: bool = False) -> None:
        """Let a request wait behind the others of its client, or before all others."""
        client = request.back[0]
        share = self.shares.get(client)
        if share is None:
            share = self.shares[client] = Share(client)
            share.held = client in self.held
        share.waiting += 1
        share.bytes += request.size
        self.waiting += 1
        self.queue_bytes += request.size
        request.due = due
        request.share = share
        self._stand(request, first=first)

    def _stand(self, request: Request, *, first: bool) -> None:
        place = self.queue
        if self.sticky and request.key and self.workers:
            place = self._owner(request.key).backlog
        elif self.settings.scheduling == "priority":
            place = self._level(request.priority)
        assert request.share is not None
        (place.put_back if first else place.append)(request, request.share)

    def _level(self, priority: int) -> FairQueue:
        level = self.levels.get(priority)
        if level is None:
            if len(self.levels) > 2 * self.waiting + SPARE:
                self.levels = {each: queue for each, queue in self.levels.items() if len(queue)}
                self._order = sorted(self.levels)
            level = self.levels[priority] = FairQueue()
            insort(self._order, priority)
        return level

    def take_request(self, worker: Worker) -> Request | None:
        """Give the next request for a worker, its own first; None when there is none."""
        request = worker.backlog.take() if self.sticky else None
        if request is None:
            request = self._most_urgent() if self.levels else self.queue.take()
        if request is not None:
            self.unwait(request)
        return request

    def _most_urgent(self) -> Request | None:
        request = None
        for place in range(len(self._order) - 1, -1, -1):  # where nothing is taken, all is of clients that are held
            priority = self._order[place]
            level = self.levels[priority]
            request = level.take()
            if not len(level):
                del self.levels[priority], self._order[place]
            if request is not None:
                break
        return request

    def unwait(self, request: Request) -> None:
        """Note that a request waits no longer."""
        share = request.share
        assert share is not None
        self.waiting -= 1
        self.queue_bytes -= request.size
        share.waiting -= 1
        share.bytes -= request.size
        if not share.waiting:
            del self.shares[share.client]
        request.line = request.share = None

    def drop(self, request: Request) -> None:
        """End a request where it waits."""
        request.done = True
        request.body = ()
        assert request.line is not None
        request.line.drop()
        self.unwait(request)

    def take_backlog(self, worker: Worker) -> list[Request]:
        """Take over what stands in the backlog of a worker that is gone."""
        found = list(worker.backlog)
        worker.backlog = FairQueue()
        for request in found:
            self.unwait(request)
        return found

    def hold(self, client: bytes) -> None:
        """Leave the requests of a client where they are: it does not read its replies."""
        share = self.shares.get(client)
        if share is not None and not share.held:
            share.held = True
            for place in self._places():
                place.hold(share)

    def release(self, client: bytes) -> None:
        """Serve a client again."""
        share = self.shares.get(client)
        if share is not None and share.held:
            share.held = False
            for place in self._places():
                place.release(share)

    def all_waiting(self) -> Iterator[Request]:
        """Give all requests that wait."""
        return (request for place in self._places() for request in place)

    def expired(self, now: float) -> list[Request]:
        """Give the requests that have waited for too long, and note when the next ones will have."""
        found: list[Request] = []
        self.next_due = NEVER
        for place in self._places():
            due, next_due = place.expired(now, self.simple)
            found += due
            self.next_due = min(self.next_due, next_due)
        return found

    def _places(self) -> list[FairQueue]:
        backlogs = [worker.backlog for worker in self.workers.values()] if self.sticky else []
        return [self.queue, *self.levels.values(), *backlogs]


def _load(worker: Worker) -> tuple[int, float]:
    return len(worker.in_hand), worker.sent
