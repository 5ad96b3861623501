"""Tasks from frontends to backends and their replies back: queues, deadlines, and what happens when a backend dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

import attrs

from scale0_core.api import Deadlines, Frames, Packing, Send
from scale0_core.config.network import ALL, NetworkConfig
from scale0_core.events import TASK
from scale0_core.network.telling import Telling
from scale0_core.network.workers import ClientKey, Frontend, ServiceQueue, Task, Worker, first_idle
from scale0_core.parts.envelopes import body_at
from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.states import ClientEvent, ClientState

FRONTEND_MEMORY = 60.0
"""Seconds after which a frontend that has nothing open is forgotten."""

MOST_FRONTENDS = 100_000
"""Connections that are remembered; beyond so many, those that have nothing open are forgotten early."""

SECOND_TRY = 1.0
"""Seconds after which a client whose queue was full is told of what it missed."""

MOST_SECOND_TRIES = 10_000
"""Errors that wait for a second try; beyond so many they are given up at once, and counted."""

STEP_MS = 50
"""Milliseconds to which the time left is rounded up that a worker is told, so that few options have to be written."""

HOSTED = "hosted"
"""The socket of workers that are services of the broker itself; what they are told has words of its own."""
TASK_WORD, FORGET = b"TASK", b"FORGET"

QUARANTINED = "quarantined: the service failed too often and is not called"

MOST_SERVICES_KNOWN = 10_000
"""Workers choose the names; beyond so many, those that nobody offers any more are forgotten."""


Terms = tuple[float, bool, bytes]
"""The seconds that a task has, whether it is idempotent, and the options for its worker."""

MOST_TERMS = 1_000
"""Options of tasks whose terms are remembered: most come again and again."""

Told = tuple[ClientKey, bytes, bytes]
"""Whom an answer is for, and to which task: service and id."""


@attrs.define
class DispatchCounts:
    """What the dispatcher let fall, by reason."""

    unknown_replies: int = 0
    forged_replies: int = 0
    redispatched: int = 0
    shared: int = 0
    cancelled: int = 0
    unknown_cancels: int = 0
    abandoned: int = 0
    untold: int = 0


class Dispatcher:
    """Knows all services, workers and open tasks. Methods that change something return what is to be sent.

    Large, since a task touches services, workers, clients and deadlines in every step: a method for each step.
    """

    def __init__(
        self, config: NetworkConfig, changed: Callable[[Worker], None] = lambda worker: None, first_number: int = 1
    ) -> None:
        self.configure(config)
        self.services: dict[bytes, ServiceQueue] = {}
        self.workers: dict[ClientKey, Worker] = {}
        self.frontends: dict[ClientKey, Frontend] = {}
        self.tasks: dict[bytes, Task] = {}
        self.counts = DispatchCounts()
        self.quarantined: set[bytes] = set()
        """Services of plugins that are no longer called."""
        self.closed = False
        """True while the broker is disabled: what comes back from a worker waits."""
        self.telling: Telling | None = None
        """Tells what happens, while somebody observes."""
        self.packing = Packing(TASK)
        self._deadlines: Deadlines[bytes, Task] = Deadlines()
        self._forget: Deadlines[ClientKey, Frontend] = Deadlines(grain=5.0)
        self._second_tries: Deadlines[Told, Send] = Deadlines()
        self._tried_twice: set[Told] = set()
        self._numbers = count(first_number)
        self._changed = changed

    def configure(self, config: NetworkConfig) -> None:
        """Go by a configuration from now on."""
        self.config = config
        self._terms: dict[bytes, Terms] = {}

    # --- tasks ------------------------------------------------------------------------------------------------------

    def submit(self, key: ClientKey, envelope: Frames, options: bytes, body: Frames, now: float) -> Iterable[Send]:
        """Take a task: body is service, id, payload. It goes to a worker, into the queue, or back as an error."""
        name, client_id = body[0], body[1]
        # what is long may be a blob, which no dict takes
        terms = self._terms.get(options) if len(options) <= wire.LONGEST_REMEMBERED else None
        timeout, retry, options = terms or self._read_terms(options)
        frontend = self.frontends.get(key) or self.remember(key, now)
        if frontend is None:
            return (self._refuse(key, envelope, Code.TOO_MANY, body, now),)
        frontend.last_seen = now
        frontend.tasks += 1
        service = self.services.get(name)
        if service is None:
            return (self._refuse(key, envelope, Code.NO_SERVICE, body, now),)
        service.requests += 1
        if len(frontend.open_tasks) >= self.config.client_limit:
            return (self._refuse(key, envelope, Code.TOO_MANY, body, now, service),)
        number = next(self._numbers).to_bytes(8, "big")
        known_as = client_id if client_id not in frontend.open_tasks else (client_id, number)
        task = Task(
            number, frontend, envelope, client_id, service, options, body[2:], now, now + timeout, retry, known_as
        )
        worker = first_idle(service)
        if worker is None:
            if not service.workers:
                return (self._refuse(key, envelope, Code.UNAVAILABLE, body, now, service),)
            if len(service.queue) >= self.config.queue_limit:
                return (self._refuse(key, envelope, Code.TOO_MANY, body, now, service),)
        self.tasks[number] = task
        self._deadlines.set(number, task.deadline, task)
        frontend.open_tasks[known_as] = task
        if worker is None:
            service.queue[number] = task
            return ()
        return (self._hand_over(task, worker, now),)

    def reply(self, key: ClientKey, options: bytes, body: Frames, now: float) -> Iterable[Send]:
        """Take a reply: body is service, the task's number, payload. ``more`` in the options announces another."""
        task = self.tasks.get(body[1])
        if task is None:
            return self._late_reply(key, options, body[1], now)
        worker = task.worker
        if worker is None or worker.key != key:
            worker = self.workers.get(key)
            if worker is None or task.number not in worker.in_hand:
                # forged, or from one that lost its connection while it worked and is back on another: gets nowhere
                self.counts.forged_replies += 1
                return ()
            if task.streamed:  # the answer of the one with whom it shares the task is under way already
                return self._late_reply(key, options, body[1], now)
        more, outcome = False, "ok"
        if options:
            terms = wire.read_options(options)
            more = read.flag(terms, "more")
            if "code" in terms:
                outcome = "error"
                task.service.failed(read.text(terms, "message", longest=10_000))
        forward = (
            task.client.key[0],
            (*task.envelope, wire.FRONTEND, wire.TASKREPLY, options, task.service.name, task.client_id, *body[2:]),
        )
        if more:
            if not task.streamed:
                self._settle(task, worker)
            if self.telling is not None:
                self.telling.part(task, body)
            return (forward,)
        task.service.service_time.add(now - task.sent)
        if self.telling is not None:
            self.telling.answered(task, worker, outcome, body, now)
        self._end(task)
        more_work = self.give_work(worker, now) if worker.finish(task) else ()
        if task.earlier is not None:
            return (forward, *more_work, *self._stop_work(task, now))  # two had it
        return (forward, *more_work)

    def _settle(self, task: Task, worker: Worker) -> None:
        """Take the rest of a stream from the one that began it."""
        task.streamed, task.worker = True, worker
        task.service.queue.pop(task.number, None)

    def give_work(self, worker: Worker, now: float) -> list[Send]:
        """Hand waiting tasks to a worker that has room, the longest waiting first; then it waits in the queues."""
        sends = []
        while worker.ready:
            waiting = [service for service in worker.services if service.queue]
            if not waiting:
                worker.join_queues()
                break
            service = min(waiting, key=lambda entry: next(iter(entry.queue.values())).created)
            sends.append(self._hand_over(service.first_waiting(), worker, now))
        return sends

    def _hand_over(self, task: Task, worker: Worker, now: float) -> Send:
        worker.take(task, now)
        socket, routing_id = worker.key
        if worker.hosted:
            return (socket, (routing_id, TASK_WORD, task.number, *task.payload))
        envelope: Frames = (routing_id, b"") if worker.delimiter else (routing_id,)
        worker.owes_answer = False
        options = task.options
        if (now - task.created) * 1000 >= STEP_MS:
            options = _with_timeout(options, math.ceil((task.deadline - now) * 1000 / STEP_MS) * STEP_MS)
        return (socket, (*envelope, wire.BACKEND, wire.TASK, options, task.service.name, task.number, *task.payload))

    def _read_terms(self, options: bytes) -> Terms:
        terms = wire.read_options(options)
        wanted, retry = read.interval(terms, "timeout"), read.flag(terms, "retry")
        longest = self.config.max_task_timeout
        if wanted is None:  # a worker knows the default from its READYOK
            read_as = (self.config.task_timeout / 1000, retry, options)
        elif wanted * 1000 <= longest:
            read_as = (wanted, retry, options)
        else:
            read_as = (longest / 1000, retry, _with_timeout(options, longest))
        if len(options) <= wire.LONGEST_REMEMBERED:
            if len(self._terms) >= MOST_TERMS:
                self._terms.clear()
            self._terms[options] = read_as
        return read_as

    def _end(self, task: Task) -> None:
        task.done = True
        task.payload = ()
        del task.client.open_tasks[task.name]
        del self.tasks[task.number]
        task.service.queue.pop(task.number, None)
        self._deadlines.remove(task.number)

    def _refuse(
        self,
        key: ClientKey,
        envelope: Frames,
        code: Code,
        body: Frames,
        now: float,
        service: ServiceQueue | None = None,
    ) -> Send:
        """Give a task back that was not taken."""
        reason = _REFUSALS[code]
        if body[0] in self.quarantined and code in (Code.NO_SERVICE, Code.UNAVAILABLE):
            code, reason = Code.UNAVAILABLE, QUARANTINED
        if service is not None:
            service.failed(reason)
        if self.telling is not None:
            self.telling.refused(body[0], now)
        return task_error(key, envelope, code, reason, body)

    def _fail(self, task: Task, code: Code, reason: str, now: float, worker: Worker | None, outcome: str) -> Send:
        if self.telling is not None:
            self.telling.unanswered(task, worker, outcome, now)
        self._end(task)
        task.service.failed(reason)
        return task_error(task.client.key, task.envelope, code, reason, (task.service.name, task.client_id))

    # --- cancelling -------------------------------------------------------------------------------------------------

    def cancel(self, key: ClientKey, service: bytes, client_id: bytes, now: float) -> list[Send]:
        """End a task that its client does not want any more. A client can name its own tasks only."""
        frontend = self.frontends.get(key)
        task = frontend.open_tasks.get(client_id) if frontend is not None else None
        if task is None or task.service.name != service:
            self.counts.unknown_cancels += 1  # of somebody else's, or crossed the reply on the way
            return []
        task.client.last_seen = now
        task.client.cancelled += 1
        self.counts.cancelled += 1
        return self._cancel(task, now)

    def _cancel(self, task: Task, now: float) -> list[Send]:
        """End a task whose answer nobody would get."""
        task.service.cancelled += 1
        if self.telling is not None:
            self.telling.unanswered(task, task.worker or _earlier(task), "cancelled", now)
        self._end(task)
        return self._stop_work(task, now)

    def _stop_work(self, task: Task, now: float) -> list[Send]:
        """Have those who work on a task that is over stop; its slot is free when they have answered.

        One that does not understand CANCEL works to its end, and makes room by its late reply.
        """
        sends: list[Send] = []
        for worker in (task.worker, task.earlier):
            if worker is None or task.number not in worker.in_hand:
                continue
            if worker.hosted:
                sends.append((HOSTED, (worker.key[1], FORGET, task.number)))
                sends += self.give_work(worker, now) if worker.finish(task) else []
            elif worker.cancels and not worker.delimiter:  # a REQ socket would take it for the answer to its READY
                socket, routing_id = worker.key
                sends.append((socket, (routing_id, wire.BACKEND, wire.CANCEL, b"", task.service.name, task.number)))
        return sends

    # --- workers ----------------------------------------------------------------------------------------------------

    def permitted(self, names: Iterable[str]) -> tuple[list[ServiceQueue], list[str]]:
        """Split the services a worker offers into those this broker manages and those it refuses."""
        taken, refused = [], []
        wanted = list(names)
        new = sum(name.encode() not in self.services for name in wanted)
        if new and len(self.services) + new > MOST_SERVICES_KNOWN:
            self._forget_unused()
        for name in wanted:
            service = self._service(name.encode()) if self._manages(name) else None
            if service is None:
                refused.append(name)
            else:
                taken.append(service)
        return taken, refused

    def _manages(self, name: str) -> bool:
        return self.config.services == ALL or name in self.config.services

    def _service(self, name: bytes) -> ServiceQueue | None:
        """Give the service of a name; none when it is new and there are very many."""
        service = self.services.get(name)
        if service is None and len(self.services) < MOST_SERVICES_KNOWN:
            service = self.services[name] = ServiceQueue(name)
        return service

    def _forget_unused(self) -> None:
        for name in [name for name, service in self.services.items() if service.unused]:
            del self.services[name]

    def offer(self, worker: Worker, services: Iterable[ServiceQueue], now: float) -> None:
        """Replace the services that a worker offers."""
        before = worker.services
        worker.offer(services)
        if not before:
            worker.joined = now
        if self.telling is not None:
            self.telling.offers(worker, before, now)

    def announce(self, worker: Worker) -> None:
        """Tell the registry that something about a worker changed."""
        self._changed(worker)

    def lose(self, worker: Worker, event: ClientEvent, now: float) -> list[Send]:
        """Forget a worker; its tasks go to others where that is allowed, and end in an error where not."""
        if self.workers.pop(worker.key, None) is None:
            return []
        worker.happen(event)
        worker.lost = event in (ClientEvent.LOST, ClientEvent.SILENCE)
        if self.telling is not None:
            self.telling.gone(worker, event, now)
        worker.offer(())
        sends: list[Send] = []
        tasks = list(worker.in_hand.values())
        worker.in_hand.clear()
        for task in tasks:
            # one that expired has been answered, and one that another has too is that one's now
            if not task.done and task.worker in (worker, None):
                sends += self._take_back(task, worker, now, delivered=True)
        self._changed(worker)
        return sends

    def withdraw(self, worker: Worker, now: float) -> None:
        """Give nothing more to a worker that cannot be reached; it keeps what it had, for its replies may be unread."""
        if self.telling is not None:
            self.telling.gone(worker, ClientEvent.LOST, now)
        worker.offer(())
        self._hold(worker)

    def _take_back(self, task: Task, lost: Worker, now: float, *, delivered: bool) -> list[Send]:
        """Put a task that its worker cannot finish back at the head of the queue, or fail it."""
        earlier = _earlier(task)
        if earlier is not None and earlier.responsive:
            task.worker = earlier  # it was only silent for a while
            return []
        task.worker = None
        if task.streamed:  # from another worker the first parts would come again
            reason = "the worker that had this task is gone in the middle of its answer"
            return [self._fail(task, Code.DEADLINE, reason, now, lost, "lost")]
        if delivered and not task.retry:
            return [self._fail(task, Code.DEADLINE, "the worker that had this task is gone", now, lost, "lost")]
        self.counts.redispatched += 1
        worker = None if self.closed else first_idle(task.service)
        if worker is not None:
            return [self._hand_over(task, worker, now)]
        if not task.service.workers and not task.retry:
            return [self._fail(task, Code.UNAVAILABLE, _REFUSALS[Code.UNAVAILABLE], now, lost, "lost")]
        task.service.queue[task.number] = task
        task.service.queue.move_to_end(task.number, last=False)
        return []

    def undelivered_task(self, number: bytes, worker: Worker, reason: str, now: float) -> list[Send]:
        """Take back a task that never left the broker; safe to send to another, whatever it is."""
        task = worker.in_hand.pop(number, None)
        if reason == "EAGAIN":
            self._hold(worker)
        else:
            self.withdraw(worker, now)
        if task is None or task.done or task.worker is not worker:
            return []
        return self._take_back(task, worker, now, delivered=False)

    def share(self, worker: Worker, now: float) -> list[Send]:
        """Offer the repeatable tasks of a worker that is silent to others as well; the first answer counts.

        It may be busy or frozen, so it keeps them. Each is shared once, and not when a part of the answer is out.
        """
        sends: list[Send] = []
        for task in list(worker.in_hand.values()):
            if not task.retry or task.done or task.streamed or _earlier(task) is not None:
                continue
            task.earlier, task.worker = worker, None
            self.counts.shared += 1
            other = None if self.closed else first_idle(task.service)
            if other is not None:
                sends.append(self._hand_over(task, other, now))
            else:
                task.service.queue[task.number] = task
                task.service.queue.move_to_end(task.number, last=False)
        return sends

    def heard_again(self, worker: Worker) -> None:
        """Leave to a worker that was silent what nobody else has begun meanwhile."""
        for task in worker.in_hand.values():
            if task.worker is None and not task.done:
                task.service.queue.pop(task.number, None)
                task.worker, task.earlier = worker, None

    def _hold(self, worker: Worker) -> None:
        """Give a worker whose connection is congested no more tasks until it is heard of."""
        worker.leave_queues()
        if worker.state in (ClientState.READY, ClientState.BUSY):
            worker.happen(ClientEvent.SILENCE)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when a task expires or a frontend may be forgotten."""
        tasks, clients, tries = self._deadlines.next(), self._forget.next(), self._second_tries.next()
        first = clients if tasks is None or (clients is not None and clients < tasks) else tasks
        return tries if first is None or (tries is not None and tries < first) else first

    def on_deadline(self, now: float) -> list[Send]:
        """Fail the tasks whose time is up."""
        sends = []
        for task in self._deadlines.take(now):
            task.service.timeouts += 1
            code, reason = _too_late(task)
            self._deadlines.set(task.number, now, task)  # _end removes it
            sends.append(self._fail(task, code, reason, now, task.worker or _earlier(task), "timeout"))
            sends += self._stop_work(task, now)
        for frontend in self._forget.take(now):
            if frontend.open or now - frontend.last_seen < FRONTEND_MEMORY:
                self._forget.set(frontend.key, now + FRONTEND_MEMORY, frontend)
            else:
                self.frontends.pop(frontend.key, None)
        return sends + self._try_again(now)

    def remember(self, key: ClientKey, now: float) -> Frontend | None:
        """Take note of a connection that sends tasks or may do so; None when there are very many already."""
        if len(self.frontends) >= MOST_FRONTENDS and not self._forget_idle():
            return None
        frontend = self.frontends[key] = Frontend(key, now)
        self._forget.set(key, now + FRONTEND_MEMORY, frontend)
        return frontend

    # --- clients that do not read -----------------------------------------------------------------------------------

    def undelivered_answer(self, key: ClientKey, frames: Frames, now: float) -> list[Send]:
        """Have a client whose queue was full told a little later that it missed an answer; once, and in a few bytes."""
        start = body_at(frames)
        if len(frames) < start + 5 or frames[start + 1] not in (wire.TASKREPLY, wire.ERROR):
            return []
        envelope, service, client_id = frames[:start], bytes(frames[start + 3]), bytes(frames[start + 4])
        sends: list[Send] = []
        told: Told = (key, service, client_id)
        if frames[start + 1] == wire.ERROR:
            send: Send = (key[0], frames)
        else:
            if read.flag(wire.read_options(frames[start + 2]), "more"):
                sends = self._break_off(told, now)
            send = task_error(key, envelope, Code.DEADLINE, "the reply found your queue full", (service, client_id))
        if told in self._tried_twice or len(self._second_tries) >= MOST_SECOND_TRIES:
            self.counts.untold += 1
        else:
            self._second_tries.set(told, now + SECOND_TRY, send)
        return sends

    def _break_off(self, told: Told, now: float) -> list[Send]:
        """End a task of whose answer a part was lost: a stream with a hole must not look whole."""
        key, service, client_id = told
        frontend = self.frontends.get(key)
        task = frontend.open_tasks.get(client_id) if frontend is not None else None
        if task is None or task.service.name != service:
            return []
        task.service.failed("the client does not read")
        return self._cancel(task, now)

    def _try_again(self, now: float) -> list[Send]:
        sends = self._second_tries.take(now)
        if sends:
            self._tried_twice = {_told(send) for send in sends}
        return sends

    def frontend_gone(self, key: ClientKey, now: float) -> list[Send]:
        """Cancel what a vanished frontend had open."""
        frontend = self.frontends.pop(key, None)
        self._forget.remove(key)
        sends: list[Send] = []
        for task in list(frontend.open_tasks.values()) if frontend is not None else ():
            self.counts.abandoned += 1
            sends += self._cancel(task, now)
        return sends

    def _forget_idle(self) -> bool:
        idle = [key for key, frontend in self.frontends.items() if not frontend.open]
        for key in idle:
            del self.frontends[key]
            self._forget.remove(key)
        return bool(idle)

    def _late_reply(self, key: ClientKey, options: bytes, number: bytes, now: float) -> list[Send]:
        """Make room in a worker whose task was over before it answered; the reply itself is dropped."""
        worker = self.workers.get(key)
        task = worker.in_hand.get(number) if worker else None
        terms = wire.read_options(options)
        if task is None or terms.get("code") != Code.CANCELLED:
            self.counts.unknown_replies += 1
        if worker is None or task is None or read.flag(terms, "more"):
            return []
        return self.give_work(worker, now) if worker.finish(task) else []


_REFUSALS = {
    Code.NO_SERVICE: "nobody offers this service here",
    Code.TOO_MANY: "too many tasks are open or wait already",
    Code.UNAVAILABLE: "no worker is there any more",
}


def _too_late(task: Task) -> tuple[Code, str]:
    """Say why a task whose time is up was not done."""
    if task.worker is not None or _earlier(task) is not None:
        return Code.DEADLINE, "the worker did not answer in time"
    if not task.service.workers:
        return Code.UNAVAILABLE, _REFUSALS[Code.UNAVAILABLE]
    return Code.DEADLINE, "no worker was free in time"


def _with_timeout(options: bytes, milliseconds: int) -> bytes:
    """Return the options of a task with the time that it has left."""
    write = _write_short if len(options) <= wire.LONGEST_REMEMBERED else _write_timeout
    return write(options, milliseconds)


def _write_timeout(options: bytes, milliseconds: int) -> bytes:
    return wire.write_options(wire.read_options(options), timeout=milliseconds)


_write_short = lru_cache(maxsize=4096)(_write_timeout)


def _earlier(task: Task) -> Worker | None:
    """Give the silent worker from which a task was shared, as long as it has it in its hands."""
    earlier = task.earlier
    return earlier if earlier is not None and task.number in earlier.in_hand else None


def _told(error: Send) -> Told:
    socket, frames = error
    return (socket, frames[0]), bytes(frames[-2]), bytes(frames[-1])


def task_error(key: ClientKey, envelope: Frames, code: Code, reason: str, body: Frames) -> Send:
    """Make the ERROR that a task ends in; body begins with the task's service and id."""
    options = wire.write_options(code=int(code), message=reason, id=body[1].decode("utf-8", "replace"))
    return (key[0], (*envelope, wire.FRONTEND, wire.ERROR, options, body[0], body[1]))


def service_rows(services: Mapping[bytes, ServiceQueue]) -> list[dict[str, object]]:
    """Describe all services for people and programs."""
    rows = []
    for service in services.values():
        p50, p95, p99 = service.service_time.percentiles()
        rows.append(
            {
                "service": service.name.decode("utf-8", "replace"),
                "workers": len(service.workers),
                "idle": len(service.idle),
                "waiting": service.waiting(),
                "requests": service.requests,
                "errors": service.errors,
                "timeouts": service.timeouts,
                "cancelled": service.cancelled,
                "last_error": service.last_error,
                "p50_ms": round(p50 * 1000, 3),
                "p95_ms": round(p95 * 1000, 3),
                "p99_ms": round(p99 * 1000, 3),
            }
        )
    return rows


def client_rows(dispatcher: Dispatcher, now: float) -> list[dict[str, Any]]:
    """Describe all clients for people and programs: workers elsewhere, then frontends."""
    workers: list[dict[str, Any]] = [
        {
            "identity": worker.identity, "role": "backend", "state": worker.state.value,
            "services": [service.name.decode("utf-8", "replace") for service in worker.services],
            "age_ms": round((now - worker.last_seen) * 1000), "interval_ms": round(worker.granted * 1000),
            "config_version": worker.config_version, "open_tasks": len(worker.in_hand),
            "window": worker.window or 1, "skew_ms": round(worker.skew * 1000),
        }
        for worker in dispatcher.workers.values()
        if not worker.hosted
    ]  # fmt: skip
    frontends: list[dict[str, Any]] = [
        {
            "identity": client.identity or client.key[1].hex(), "role": "frontend", "state": "known",
            "services": [], "age_ms": round((now - client.last_seen) * 1000), "open_tasks": client.open,
            "tasks": client.tasks, "cancelled": client.cancelled,
        }
        for client in dispatcher.frontends.values()
    ]  # fmt: skip
    return [*workers, *frontends]
