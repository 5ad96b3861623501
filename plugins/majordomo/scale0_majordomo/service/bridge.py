"""The way to and from the Scale0 protocol: MDP services as one worker of it, its services as services of MDP.

Without I/O, like the rest. The bridge is a frontend (socket ``tasks``) and a worker (socket ``offers``) of the broker
in its own process, or of another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

from scale0_core.api import Effect, Endpoint, Frames, ProtocolWorker, Send, SocketKind
from scale0_majordomo import dialects

TASKS, OFFERS = "tasks", "offers"
OWN_BROKER = "@scale0"

CLIENT = b"S0C01"
WINDOW = 10_000
LARGEST_FRAME, MOST_FRAMES = 1024 * 1024, 26
"""What the broker takes in a task; it would end the bridge's connection, or silence it, for more."""


class Answer(NamedTuple):
    """What came back for a task; with a code it is an error."""

    number: bytes
    body: Frames
    more: bool = False
    code: int = 0
    reason: str = ""


TIMED_OUT = {408: 504}
"""Codes of Majordomo, as the Scale0 protocol has them."""
FROM_SCALE0 = {code: own for own, code in TIMED_OUT.items()}


class Bridge:
    """Speaks the Scale0 protocol for all services of MDP."""

    def __init__(self, identity: str, frontend: str = OWN_BROKER, backend: str = OWN_BROKER) -> None:
        self.identity = identity
        self.worker = ProtocolWorker(OFFERS, identity, window=WINDOW, metadata={"protocol": "MDP"}, cancels=True)
        self.endpoints: Mapping[str, Endpoint] = {
            TASKS: Endpoint(kind=SocketKind.DEALER, connect=frontend, blob_over=8192),
            OFFERS: self.worker.endpoint(backend),
        }
        self._numbers = count(1)

    def offer(self, services: Iterable[bytes], now: float) -> list[Send]:
        """Let the broker know which services there are."""
        return self.worker.offer(sorted(name.decode() for name in services if _is_text(name)), now)

    def call(self, service: bytes, body: Frames, timeout: float, *, retry: bool) -> tuple[bytes, Effect]:
        """Write a task for a service of Scale0; give its number, and what to send."""
        number = b"%d" % next(self._numbers)
        options = json.dumps({"timeout": max(1, round(timeout * 1000)), "retry": retry}).encode()
        return number, (TASKS, (CLIENT, b"TASK", options, service, number, *body))

    def cancel(self, service: bytes, number: bytes) -> Effect:
        """Write that nobody waits for a task any more."""
        return (TASKS, (CLIENT, b"CANCEL", b"", service, number))

    def answer(self, frames: Frames) -> Answer | None:
        """Read what the broker says about a task; None when it is about none."""
        if len(frames) < 5 or frames[1] not in (b"TASKREPLY", b"ERROR"):
            return None
        options = dialects.read_options(frames[2]) or {}
        number, body = bytes(frames[4]), frames[5:]
        if frames[1] == b"ERROR":
            return Answer(number, (), False, _code(options.get("code")), str(options.get("message", "")))
        if "code" in options:
            return Answer(number, body, False, _code(options["code"]), str(options.get("message", "")))
        return Answer(number, body, bool(options.get("more")))


def fits(body: Frames) -> bool:
    """Tell whether a request can be a task."""
    return len(body) <= MOST_FRAMES and all(len(frame) <= LARGEST_FRAME for frame in body)


def _code(value: object) -> int:
    return FROM_SCALE0.get(value, value) if type(value) is int and value > 0 else 500


def _is_text(name: bytes) -> bool:
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False
