"""What the express and the rest of the service both work on; ``_express.c`` has the same in C."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from scale0_core.api import Effect, Frames
from scale0_majordomo.service.queues import NEVER, FairQueue, Line, Share

if TYPE_CHECKING:
    from scale0_majordomo.dialects import Dialect
    from scale0_majordomo.service.desk import Parts, Request, Service, Worker

__all__ = ["NEVER", "Inside", "Outcome", "RequestBase", "ServiceBase", "WorkerBase"]


class Outcome(NamedTuple):
    """How a request ended: with a reply, or with an error if there is a code."""

    body: Frames
    code: int = 0
    reason: str = ""


Inside = Callable[[Outcome, float], Iterable["Effect"]]


class RequestBase:
    """What a client asked for."""

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


class WorkerBase:
    """Somebody who offers a service."""

    __slots__ = ("credit", "dialect", "head", "heard", "in_hand", "queued", "sent", "service")

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


class ServiceBase:
    """A name, those who offer it, and what waits for them."""

    __slots__ = (
        "expiry", "held", "max_bytes", "max_waiting", "next_due", "queue", "queue_bytes", "quick", "ready", "replies",
        "requests", "shares", "simple", "waiting",
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
