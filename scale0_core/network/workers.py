"""Backends and the least-recently-used queues in which they wait for tasks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import ClassVar

import attrs

from scale0_core.api import Frames, printable
from scale0_core.parts.histogram import Histogram
from scale0_core.protocol.states import CLIENT, ClientEvent, ClientState, step

LONGEST_LABEL = 1_000
"""Characters of a name as events tell it: what no name has, however much of it had to be escaped."""

BRIDGED = "protocol"
"""What a worker names in its metadata if it hands tasks on to workers of another protocol."""

ClientKey = tuple[str, bytes]
"""A connection: the name of the broker's socket, and the routing id there."""

TaskName = bytes | tuple[bytes, bytes]
"""By what a task is known among those of its client."""


@attrs.define(eq=False)
class Task:
    """A task on its way: who asked, for what, until when, and who works on it."""

    number: bytes
    client: Frontend
    envelope: Frames
    client_id: bytes
    service: ServiceQueue
    options: bytes
    payload: Frames
    created: float
    deadline: float
    retry: bool
    name: TaskName = b""
    sent: float = 0.0
    worker: Worker | None = None
    earlier: Worker | None = None
    """A worker that fell silent with the task in its hands, so that it was offered to another as well."""
    streamed: bool = False
    done: bool = False


@attrs.define(eq=False)
class Frontend:
    """A connection that sends tasks."""

    key: ClientKey
    last_seen: float
    identity: str = ""
    open_tasks: dict[TaskName, Task] = attrs.field(factory=dict)
    """By the client's id; a second task of an id that is taken has the broker's number in its name as well."""
    tasks: int = 0
    cancelled: int = 0

    @property
    def open(self) -> int:
        """How many of its tasks are open."""
        return len(self.open_tasks)

    @property
    def takes_probes(self) -> bool:
        """Whether it has tasks open and can be sent what it did not ask for; a REQ socket would hang up."""
        return any(len(task.envelope) == 1 for task in self.open_tasks.values())


@attrs.define(eq=False)
class ServiceQueue:
    """One service: the backends that have room, in the order they are to be used, and the tasks that wait."""

    name: bytes
    idle: OrderedDict[Worker, None] = attrs.field(factory=OrderedDict)
    workers: set[Worker] = attrs.field(factory=set)
    queue: OrderedDict[bytes, Task] = attrs.field(factory=OrderedDict)
    """By number, so that a task that ends while it waits leaves nothing behind."""
    requests: int = 0
    errors: int = 0
    timeouts: int = 0
    cancelled: int = 0
    last_error: str = ""
    wait_time: Histogram = attrs.field(factory=Histogram)
    service_time: Histogram = attrs.field(factory=Histogram)
    label: str = attrs.field(init=False)
    """The name as events tell it."""

    def __attrs_post_init__(self) -> None:
        """Write the name once, and not for each task."""
        self.label = printable(self.name, LONGEST_LABEL)

    @property
    def unused(self) -> bool:
        """Tell whether nobody offers it and nothing waits for it."""
        return not self.workers and not self.queue

    def first_waiting(self) -> Task:
        """Take the task that has waited longest."""
        return self.queue.popitem(last=False)[1]

    def waiting(self) -> int:
        """Count the tasks that wait."""
        return len(self.queue)

    def failed(self, reason: str) -> None:
        """Count a task that ended in an error."""
        self.errors += 1
        self.last_error = reason


@attrs.define(eq=False)
class Worker:
    """A backend: what it offers, how much room it has, and when it was last heard of.

    Large, since all that the protocol lets a worker say of itself is noted here, and nowhere else.
    """

    hosted: ClassVar[bool] = False
    key: ClientKey
    identity: str
    last_seen: float
    granted: float
    state: ClientState = ClientState.UNKNOWN
    services: tuple[ServiceQueue, ...] = ()
    in_hand: dict[bytes, Task] = attrs.field(factory=dict)
    window: int | None = None
    """Tasks it takes at once; None means one for each READY."""
    limit: int = 0
    heartbeats: bool = True
    cancels: bool = False
    """Whether it understands CANCEL."""
    delimiter: bool = False
    owes_answer: bool = False
    config_version: int | str | None = None
    mismatches: int = 0
    mismatched: float = -math.inf
    """When an outdated configuration was last counted."""
    skew: float = 0.0
    metadata: dict[str, str] = attrs.field(factory=dict)
    lost: bool = False
    """Gone without a word, and perhaps back soon."""
    joined: float = 0.0
    """When it last began to offer something."""
    beat_told: float = -math.inf
    """When those who observe were last told that it lives."""
    abouts: dict[object, int] = attrs.field(factory=dict)
    """Numbers of what events say of it, by service and outcome: see ``Packing``."""
    label: str | None = attrs.field(init=False)
    """The identity as events tell it; None for one that only stands for others, and is no worker to be counted."""

    def __attrs_post_init__(self) -> None:
        """Write the identity once, and not for each task."""
        self.label = printable(self.identity, LONGEST_LABEL)

    def describe(self, metadata: dict[str, str]) -> None:
        """Note what it says of itself; a bridge says for which protocol it stands."""
        if not self.services and metadata != self.metadata:  # who has joined keeps its name until it leaves
            self.label = None if BRIDGED in metadata else printable(self.identity, LONGEST_LABEL)
            self.abouts.clear()
        self.metadata = metadata

    @property
    def ready(self) -> bool:
        """Tell whether it may be given a task."""
        return self.state is ClientState.READY

    @property
    def responsive(self) -> bool:
        """Tell whether it is not silent at the moment."""
        return self.state is not ClientState.UNRESPONSIVE

    def happen(self, event: ClientEvent) -> None:
        """Go to the state that follows."""
        self.state = step(CLIENT, self.state, event)

    def offer(self, services: Iterable[ServiceQueue]) -> None:
        """Replace the services it offers; it goes to the end of their queues when it is next free."""
        self.leave_queues()
        for service in self.services:
            service.workers.discard(self)
        self.services = tuple(services)
        for service in self.services:
            service.workers.add(self)

    def join_queues(self) -> None:
        """Wait at the end of the queue of every service it offers; where it waits already, it keeps its place."""
        for service in self.services:
            service.idle[self] = None

    def rejoin_queues(self) -> None:
        """Go to the end of the queue of every service it offers."""
        for service in self.services:
            service.idle[self] = None
            service.idle.move_to_end(self)

    def leave_queues(self) -> None:
        """Wait nowhere."""
        for service in self.services:
            service.idle.pop(self, None)

    def take(self, task: Task, now: float) -> None:
        """Put a task into its hands; the least recently used are those that got one longest ago."""
        self.in_hand[task.number] = task
        task.worker, task.sent = self, now
        task.service.wait_time.add(now - task.created)
        if len(self.in_hand) >= self.limit:
            self.happen(ClientEvent.FULL)
            if len(self.services) == 1:
                self.services[0].idle.pop(self, None)
            else:
                self.leave_queues()
        else:
            self.rejoin_queues()

    def finish(self, task: Task) -> bool:
        """Take a task out of its hands; tell whether that made room for another."""
        self.in_hand.pop(task.number, None)
        if self.window is None:
            self.limit = max(self.limit - 1, 0)
            return False
        if self.state is ClientState.BUSY and len(self.in_hand) < self.limit:
            self.happen(ClientEvent.FREE)
            return True
        return False


@attrs.define(eq=False)
class HostedWorker(Worker):
    """A service of the broker itself: it has no connection that could be lost."""

    hosted: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        """Have no name in events: nobody can add such a worker, or take it away."""
        self.label = None


def first_idle(service: ServiceQueue) -> Worker | None:
    """Give the backend that is next in the queue of a service, without taking it out."""
    return next(iter(service.idle), None)
