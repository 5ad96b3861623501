"""Requests, workers, and the services at which they meet: who gets what next."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, count
from zlib import crc32

from scale0_core.api import Frames, printable
from scale0_majordomo.dialects import Dialect, worker_head
from scale0_majordomo.express import RequestBase, ServiceBase, WorkerBase
from scale0_majordomo.records import NEVER
from scale0_majordomo.settings import ServiceSettings

DRAINING = -1
"""The credit of a worker that takes no more requests: it is there, and never has room."""
SPARE = 64
"""So many dead entries are left where they stand, before a tidy-up is worth it."""

LONGEST_LABEL = 1_000
"""Characters of a name as events tell it: what no name has, however much of it had to be escaped."""

COUNTS = ("retried", "expired", "refused", "errors", "cancelled", "failed", "abandoned", "late")
"""What is counted of a service beside ``requests`` and ``replies``.

Of its requests each ends as one of ``replies``, ``errors`` (its worker said so), ``expired``, ``refused`` (no room),
``cancelled``, ``failed`` (its workers died) or ``abandoned`` (its client is gone). ``late`` are replies that nobody
waited for any more, ``retried`` are repetitions.
"""


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


class Request(RequestBase):
    """What a client asked for; it is kept until it is answered."""

    __slots__ = ()

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


class Worker(WorkerBase):
    """Somebody who offers a service."""

    __slots__ = ("backlog", "beat_told", "envelope", "joined", "label", "peer", "point")

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
        self.label = printable(peer, LONGEST_LABEL)
        """The routing id as events tell it."""
        self.joined = self.heard = self.sent = now
        self.beat_told = -NEVER
        """When those who observe were last told that it lives."""
        self.queued = False
        self.backlog: deque[Request] = deque()
        """Requests that are to go to this worker and no other."""

    def request(self, request: Request) -> Frames:
        """Write a request for this worker."""
        if self.dialect is Dialect.OWN:
            return (*self.head, request.address, request.service.name, request.options, *request.body)
        return (*self.head, request.address, b"", *request.body)


class Service(ServiceBase):
    """A name, those who offer it, and what waits for them.

    A request waits in one of four places: ``queue``; ``again``, before it, when its worker died; ``urgent``, instead
    of both, where requests have priorities; or the backlog of the one worker that is to have it. One that ends there
    is left standing as dead: it is ``done``, and has no body.
    """

    __slots__ = (
        "_numbers", "assigned", "counts", "draining", "label", "name", "settings", "sticky", "urgent", "workers",
    )  # fmt: skip

    def __init__(self, name: bytes, settings: ServiceSettings) -> None:
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
        self.queue = deque()
        self.again = deque()
        self.urgent: list[tuple[int, int, Request]] = []
        self.waiting = 0
        self.assigned = 0
        """How many of those that wait stand in backlogs."""
        self.queue_bytes = 0
        self.next_due = NEVER
        self.requests = 0
        self.replies = 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self.dead = 0
        self._numbers = count()

    @property
    def unused(self) -> bool:
        """Whether it may be forgotten."""
        return not (self.workers or self.waiting or self.draining)

    # --- workers ------------------------------------------------------------------------------------------------------

    def add(self, worker: Worker) -> None:
        """Let a worker in; it gets the requests whose keys are its own now."""
        others = list(self.workers.values())
        self.workers[worker.peer] = worker
        if not self.sticky or not self.waiting:
            return
        for other in others:
            moved = [request for request in other.backlog if self._owner(request.key) is worker]
            if moved:
                other.backlog = deque(request for request in other.backlog if self._owner(request.key) is not worker)
                worker.backlog.extend(moved)
        keyed = [request for request in chain(self.again, self.queue) if request.key]
        self.again = deque(request for request in self.again if not request.key)
        self.queue = deque(request for request in self.queue if not request.key)
        for request in keyed:
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
        if self.waiting > self.assigned and not first:
            return None
        if self.settings.scheduling == "least":
            free = [worker for worker in self.workers.values() if len(worker.in_hand) < worker.credit]
            return min(free, key=_load, default=None)
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

    def wait(self, request: Request, due: float, *, first: bool = False) -> None:
        """Let a request wait, at the end or at the head."""
        self.waiting += 1
        self.queue_bytes += request.size
        request.due = due
        if self.simple and not first:
            self.queue.append(request)
        else:
            self._stand(request, first=first)

    def _stand(self, request: Request, *, first: bool) -> None:
        place = self.again if first else self.queue
        if self.sticky and request.key and self.workers:
            place = self._owner(request.key).backlog
            if not request.done:
                request.assigned = True
                self.assigned += 1
        elif self.settings.scheduling == "priority":
            number = next(self._numbers)
            heappush(self.urgent, (-request.priority, -number if first else number, request))
            return
        if first:
            place.appendleft(request)
        else:
            place.append(request)

    def take_request(self, worker: Worker) -> Request | None:
        """Give the next request for a worker, its own first; None when there is none."""
        while True:
            if self.simple and self.queue and not self.again:
                request = self.queue.popleft()
                if not request.done:
                    self.waiting -= 1
                    self.queue_bytes -= request.size
                    return request
            elif worker.backlog:
                request = worker.backlog.popleft()
            elif self.again:
                request = self.again.popleft()
            elif self.queue:
                request = self.queue.popleft()
            elif self.urgent:
                request = heappop(self.urgent)[2]
            else:
                return None
            if request.done:
                self.dead -= 1
                continue
            self.unwait(request)
            return request

    def unwait(self, request: Request) -> None:
        """Note that a request waits no longer."""
        self.waiting -= 1
        self.queue_bytes -= request.size
        if request.assigned:
            request.assigned = False
            self.assigned -= 1

    def drop(self, request: Request) -> None:
        """End a request where it waits."""
        self.unwait(request)
        request.done = True
        request.body = ()
        self.dead += 1
        if self.dead > SPARE and self.dead > self.waiting:
            self._bury()

    def _bury(self) -> None:
        self.queue = _alive(self.queue)
        self.again = _alive(self.again)
        self.urgent = [entry for entry in self.urgent if not entry[2].done]
        heapify(self.urgent)
        for worker in self.workers.values():
            worker.backlog = _alive(worker.backlog)
        self.dead = 0

    def take_backlog(self, worker: Worker) -> list[Request]:
        """Take over what stands in the backlog of a worker that is gone."""
        found = [request for request in worker.backlog if not request.done]
        self.dead -= len(worker.backlog) - len(found)
        worker.backlog.clear()
        for request in found:
            self.unwait(request)
        return found

    def all_waiting(self) -> Iterator[Request]:
        """Give all requests that wait."""
        return (request for request in chain(self.queue, self._elsewhere()) if not request.done)

    def expired(self, now: float) -> list[Request]:
        """Give the requests that have waited for too long, and note when the next ones will have."""
        found = []
        self.next_due = NEVER
        for request in self.queue:
            if request.done:
                continue
            if request.due <= now:
                found.append(request)
            elif request.due < self.next_due:
                self.next_due = request.due
                if self.simple:  # the others came later
                    break
        for request in self._elsewhere():
            if request.done:
                continue
            if request.due <= now:
                found.append(request)
            elif request.due < self.next_due:
                self.next_due = request.due
        return found

    def _elsewhere(self) -> Iterable[Request]:
        backlogs = [worker.backlog for worker in self.workers.values() if worker.backlog] if self.sticky else []
        return chain(self.again, (entry[2] for entry in self.urgent), *backlogs)


def _alive(requests: deque[Request]) -> deque[Request]:
    return deque(request for request in requests if not request.done)


def _load(worker: Worker) -> tuple[int, float]:
    return len(worker.in_hand), worker.sent
