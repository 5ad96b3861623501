"""What a service is: a state machine without I/O.

Frames and a time go in; frames, jobs and a next deadline come out. A service never opens a socket, reads a clock or
blocks: the core does that for it. This is what makes services fast, easy to test and possible to simulate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from scale0_core.events import Event
from scale0_core.packing import Packing

Frames: TypeAlias = tuple[bytes, ...]
"""A whole multipart message. On a ROUTER socket the first frame is the peer's routing id."""

Send: TypeAlias = tuple[str, Frames]
"""One message to send: the name of one of the service's sockets, and the frames."""


class SocketKind(str, Enum):
    """The kinds of ZeroMQ socket that a service may ask for."""

    ROUTER = "ROUTER"
    DEALER = "DEALER"
    REQ = "REQ"
    REP = "REP"
    PUB = "PUB"
    XPUB = "XPUB"
    SUB = "SUB"
    PUSH = "PUSH"
    PULL = "PULL"
    PAIR = "PAIR"


REFUSED_OPTIONS = {
    "IMMEDIATE": "libzmq aborts the process when a connection breaks between the frames of a message",
    "ROUTER_HANDOVER": "any peer could take the place of another by its routing id",
}
"""Options of ZeroMQ that no socket may have, and why."""

KIB = 1024
MIB = 1024 * KIB


def _texts(values: str | Iterable[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _topics(values: bytes | Iterable[bytes]) -> tuple[bytes, ...]:
    return (values,) if isinstance(values, bytes) else tuple(values)


def _is_hashable(job: object, field: attrs.Attribute[Hashable], value: Hashable) -> None:
    hash(value)


@attrs.frozen(kw_only=True)
class Endpoint:
    """One socket that a service wants; the core opens, polls and closes it.

    ``bind`` and ``connect`` may hold several addresses each. Every limit has a value of its own here, none is left to
    ZeroMQ's defaults: ``max_message`` is the bytes of one frame, and a message of more than ``max_frames`` frames is
    dropped and counted. ``blob_over`` is for services that pass large frames on unread: a frame of more bytes than that
    arrives as a *blob*, which ``len()``, ``bytes()`` and ``memoryview()`` accept and which is sent without a copy.
    The address ``@name`` is in-process: a ROUTER that binds to it and DEALERs of other services that connect to it
    exchange messages as over a socket, without one; the broker itself is at ``@scale0``.
    ``watch_peers`` has ``on_peer_lost`` called when a connection ends. ``tasks`` is a promise: a request with an empty
    frame after the routing id gets exactly one answer, to the same routing id and with an empty frame. Then clients of
    the broker may reach the service by a TASK with its name as well; one ROUTER of a service may say so.
    """

    kind: SocketKind = attrs.field(converter=SocketKind)
    bind: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    connect: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    subscribe: tuple[bytes, ...] = attrs.field(default=(), converter=_topics)
    high_water: int = 4096
    max_message: int = MIB
    max_frames: int = 1024
    blob_over: int | None = None
    watch_peers: bool = False
    tasks: bool = attrs.field(default=False)
    options: Mapping[str, int | bytes] = attrs.field(factory=dict)

    @property
    def in_process(self) -> str:
        """The in-process address, or an empty text."""
        return next((address for address in (*self.bind, *self.connect) if address[:1] == "@"), "")

    def __attrs_post_init__(self) -> None:
        """Refuse an in-process address beside others, and other kinds of socket there."""
        if self.in_process:
            kind = SocketKind.ROUTER if self.bind else SocketKind.DEALER
            if len((*self.bind, *self.connect)) > 1 or self.kind is not kind:
                raise ValueError(
                    f"{self.in_process} is the only address of a ROUTER that binds or a DEALER that connects"
                )

    @options.validator
    def _no_dangerous_options(self, field: attrs.Attribute[object], value: Mapping[str, int | bytes]) -> None:
        for name in REFUSED_OPTIONS.keys() & value.keys():
            raise ValueError(f"option {name} must not be set: {REFUSED_OPTIONS[name]}")

    @tasks.validator
    def _only_routers_take_tasks(self, field: attrs.Attribute[bool], value: bool) -> None:
        if value and self.kind is not SocketKind.ROUTER:
            raise ValueError(f"only a ROUTER can take tasks, and this is a {self.kind.value}")


@attrs.frozen
class Job:
    """Work that blocks (disk, hashing), run on a thread; its outcome comes back through ``on_job``.

    Jobs of one service with an equal ``key`` run one after the other, in the order they were returned. ``function`` is
    called with ``argument``. When ``grouped`` is true, all jobs that wait under the key with the same function are run
    in one call, ``function([argument, ...])``, which returns one value for each: so that one fsync serves many answers.
    ``token`` comes back untouched in the result.
    """

    key: Hashable = attrs.field(validator=_is_hashable)
    function: Callable[[Any], Any]
    argument: Any = None
    token: Any = None
    grouped: bool = False


@attrs.frozen
class JobResult:
    """How a job ended: with a ``value``, or with an ``error``."""

    token: Any
    value: Any = None
    error: BaseException | None = None


@attrs.frozen
class Connect:
    """Connect one of the service's sockets to one more address; what is sent in the same turn can go there already.

    On a ROUTER, ``routing_id`` is the name by which the service sends to that peer, at once and whether it is there
    yet or not: messages wait for it, as many as ``high_water`` says. Without one, the peer's own name counts, and it is
    known once the peer has sent something. ZeroMQ bears no name twice, not even for a moment: on a socket that binds as
    well, choose names that no peer would choose or guess.

    Connecting again to the same address changes nothing. What is refused comes back through ``on_refused``.
    """

    socket: str
    address: str
    routing_id: bytes = b""


@attrs.frozen
class Disconnect:
    """End what ``Connect``, or ``connect`` of an endpoint, began; nothing happens if there is no such connection.

    Messages queued for that peer are not given back: ZeroMQ tries to deliver them for as long as ``wire.linger_ms``
    says, then drops them, and so it does at once with what came from the peer and was not taken yet. None of them
    goes to another peer. Later sends come back through ``on_undelivered``: with ``EHOSTUNREACH`` from a ROUTER, with
    ``EAGAIN`` from a socket that has nobody left. The routing id can be used again
    ten seconds after the linger time, not before.
    """

    socket: str
    address: str


Effect: TypeAlias = Send | Job | Connect | Disconnect
"""What a service may return: a message to send, a job to run, a connection to make or to end."""


class Service(Protocol):
    """What every service has. ``LaterResults``, ``Undelivered``, ``Delayed`` and others below add to it."""

    @property
    def name(self) -> str:
        """The service's name, unique in the broker."""

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The sockets to open, by the names used in ``receive`` and in sends."""

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take one message. ``now`` is monotonic seconds, the only clock a service knows."""

    def next_deadline(self) -> float | None:
        """Say when ``on_deadline`` is due; None when nothing is waiting for time to pass."""

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due at ``now``. Afterwards the next deadline lies later than ``now``."""


@attrs.frozen
class FastPath:
    """A shape of message that comes often, and the method that takes it.

    A message on ``socket`` has this shape if it has ``frames`` frames, and the one at ``place`` is ``word``. Then the
    host calls ``take`` as it would call ``receive``. If ``take`` returns None, it has changed nothing, and ``receive``
    gets the message. Both do the same with any message: ``check_service`` compares them.
    """

    socket: str
    frames: int | range
    place: int
    word: bytes
    take: Callable[[str, Frames, float], Iterable[Effect] | None]


@runtime_checkable
class FastPaths(Protocol):
    """A service that declares fast paths for its commonest messages has this as well."""

    @property
    def fast_paths(self) -> Iterable[FastPath]:
        """Return the fast paths. Read once when the service starts, and again when it is told to emit events."""


@runtime_checkable
class LaterResults(Protocol):
    """A service that returns jobs has this as well."""

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take the outcome of a job."""


@runtime_checkable
class Undelivered(Protocol):
    """A service that wants to know which of its messages could not be sent has this as well."""

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Take back a message that was not sent.

        ``reason`` is ``EAGAIN`` (the peer's queue is full), ``EHOSTUNREACH`` (the peer is gone) or another errno.
        """


@runtime_checkable
class Finishing(Protocol):
    """A service whose peers finish what it took from others has this as well: workers, whose replies are awaited."""

    def finishes(self, socket: str, frames: Frames) -> bool:
        """Return whether a message is part of an answer to somebody who asked before.

        Asked for ten seconds after the broker was disabled, of messages on sockets that bind: those that finish
        something are still received, all others are dropped.
        """


@runtime_checkable
class Connecting(Protocol):
    """A service that connects its sockets at run time has this as well."""

    def on_refused(self, effect: Connect | Disconnect, reason: str, now: float) -> Iterable[Effect]:
        """Take back a connection that was not made, or not ended.

        ``reason`` is one of those in ``scale0_core/container/connections.py``, such as ``malformed address`` or
        ``not local`` (other machines have the address, and ``wire.insecure`` is off), or the name of an errno.
        """


@runtime_checkable
class Delayed(Protocol):
    """A service that must know when its messages really leave has this as well, beside ``Undelivered``."""

    def on_delayed(self, socket: str, frames: Frames, now: float) -> None:
        """Take note that a message waits, since the peer's queue is full.

        Later comes ``on_sent`` for it, or ``on_undelivered``. For the first message of a peer it is called again after
        each retry in vain, at least every 0.25 s. What is neither delayed nor undelivered when the turn is over has
        left.
        """

    def on_sent(self, socket: str, frames: Frames, now: float) -> None:
        """Take note that a message that had to wait has left."""


@runtime_checkable
class PeerWatcher(Protocol):
    """A service with a socket that says ``watch_peers`` has this as well."""

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Effect]:
        """Take note that one or more connections of a socket were lost.

        ZeroMQ does not say whose they were: to find out, send something to those that matter. What cannot be delivered
        comes back through ``on_undelivered`` with the reason ``EHOSTUNREACH``. For a moment a ROUTER may still
        take messages for a connection that is gone, so ask a little later, and again.
        """


@runtime_checkable
class Stopping(Protocol):
    """A service that has last words when the broker stops has this as well."""

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Give the last messages and jobs; no more messages will come, but the outcomes of jobs may."""


@runtime_checkable
class EventSource(Protocol):
    """A service that tells of events has this as well.

    ``events`` is None while nobody observes: then none need to be made. Otherwise it is a list to append tuples to,
    ``(kind, now, *values)`` as in ``scale0_core.events``. It is emptied after each turn of the loop, and stays the same
    list. The service sets it to None when it is made, and never again.
    """

    events: list[Event] | None


@runtime_checkable
class PackedEventSource(EventSource, Protocol):
    """A service that tells of so many events that it packs some of them has this as well; it is always the same."""

    @property
    def packing(self) -> Packing:
        """Say what the packed events among the others mean."""


@attrs.frozen
class SendFailure:
    """A message that was not sent, and why."""

    socket: str
    frames: Frames
    reason: str
