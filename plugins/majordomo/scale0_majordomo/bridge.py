"""The way to and from the Scale0 protocol: MDP services as one worker of it, its workers as services of MDP.

Without I/O, like the rest. The bridge is a frontend (socket ``tasks``) and a worker (socket ``offers``) of the broker
it lives in, or of another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from scale0_core.api import Effect, Endpoint, Frames, SocketKind

TASKS, OFFERS = "tasks", "offers"

CLIENT, WORKER = b"S0C01", b"S0W01"
WINDOW = 10_000
MOST_SERVICES = 256
"""A worker of the Scale0 protocol may offer so many."""
RETRY_AFTER = 5.0
"""Seconds after which what was not answered is said again."""
FIRST_INTERVAL = 2.5


class Answer(NamedTuple):
    """What came back from a worker of the Scale0 protocol; with a code it is an error."""

    number: bytes
    body: Frames
    more: bool = False
    code: int = 0
    reason: str = ""


class Task(NamedTuple):
    """A task for a service of MDP."""

    service: bytes
    number: bytes
    options: Mapping[str, Any]
    body: Frames


class Bridge:
    """Speaks the Scale0 protocol for all services of MDP."""

    def __init__(self, identity: str, frontend: str, backend: str) -> None:
        self.identity = identity
        self.endpoints: Mapping[str, Endpoint] = {
            TASKS: Endpoint(kind=SocketKind.DEALER, connect=frontend, blob_over=8192),
            OFFERS: Endpoint(kind=SocketKind.DEALER, connect=backend, blob_over=8192),
        }
        self._numbers = count(1)
        self._services: tuple[str, ...] = ()
        self._version: Any = None
        self._ready = False
        self._interval = FIRST_INTERVAL
        self.due = float("inf")
        """When there is something to say; infinity when there is not."""

    # --- a frontend ---------------------------------------------------------------------------------------------------

    def call(self, service: bytes, body: Frames, timeout: float, *, retry: bool) -> tuple[bytes, Effect]:
        """Write a task for a service of a Scale0 worker; give its number, and what to send."""
        number = b"%d" % next(self._numbers)
        options = json.dumps({"timeout": max(1, round(timeout * 1000)), "retry": retry}).encode()
        return number, (TASKS, (CLIENT, b"TASK", options, service, number, *body))

    def answer(self, frames: Frames) -> Answer | None:
        """Read what the broker says about a task; None when it is about none."""
        if len(frames) < 5 or frames[1] not in (b"TASKREPLY", b"ERROR"):
            return None
        options = _options(frames[2])
        number, body = bytes(frames[4]), frames[5:]
        if frames[1] == b"ERROR":
            return Answer(number, (), False, _whole(options.get("code"), 500), str(options.get("message", "")))
        if "code" in options:
            return Answer(number, body, False, _whole(options["code"], 500), str(options.get("message", "")))
        return Answer(number, body, bool(options.get("more")))

    # --- a worker -----------------------------------------------------------------------------------------------------

    def offer(self, services: Iterable[bytes], now: float) -> list[Effect]:
        """Let the broker know which services there are."""
        wanted = tuple(sorted(name.decode() for name in services if _is_text(name))[:MOST_SERVICES])
        if wanted == self._services:
            return []
        known, self._services = self._services, wanted
        if self._ready and wanted:
            return [self._say_ready()]
        if self._ready:
            self._ready = False
            self.due = float("inf")
            return [self._say(b"DISCONNECT", {})]
        return [] if known and wanted else self._negotiate(now)

    def _negotiate(self, now: float) -> list[Effect]:
        """Begin anew: without services there is nothing to offer."""
        self._ready = False
        self.due = now + RETRY_AFTER if self._services else float("inf")
        options = {"identity": self.identity, "services": list(self._services)}
        return [self._say(b"CHECKCONFIG", options)] if self._services else []

    def receive(self, frames: Frames, now: float) -> tuple[list[Effect], Task | None]:
        """Take what the broker says to its worker: something to say in turn, or a task."""
        if len(frames) < 3:
            return [], None
        command = frames[1]
        if command == b"TASK" and len(frames) >= 5:
            return [], Task(bytes(frames[3]), bytes(frames[4]), _options(frames[2]), frames[5:])
        if command in (b"CONFIG", b"CONFIGACK"):
            self._version = _options(frames[2]).get("config_version")
            return [self._say_ready()], None
        if command == b"READYOK":
            self._ready = True
            self._interval = _whole(_options(frames[2]).get("hbeatinterval"), 2500) / 1000
            self.due = now + self._interval
        elif command in (b"FORCENEGOTIATE", b"DISCONNECTERROR"):
            self._ready = False
            self.due = now + (0.0 if command == b"FORCENEGOTIATE" else RETRY_AFTER)
        elif command == b"HEARTBEAT" and "reply_to" not in _options(frames[2]) and self._ready:
            return [self._beat(now)], None
        return [], None

    def reply(self, task: Task, body: Frames, *, more: bool = False, code: int = 0, reason: str = "") -> Effect:
        """Answer a task."""
        options: dict[str, Any] = {"more": True} if more else {}
        if code:
            options |= {"code": code, "message": reason}
        return (OFFERS, (WORKER, b"TASKREPLY", _written(options), task.service, task.number, *body))

    def on_deadline(self, now: float) -> list[Effect]:
        """Send a heartbeat, or say again what was not answered."""
        if now < self.due:
            return []
        return [self._beat(now)] if self._ready else self._negotiate(now)

    def leave(self) -> list[Effect]:
        """Take leave of the broker."""
        return [self._say(b"DISCONNECT", {})] if self._ready else []

    def _beat(self, now: float) -> Effect:
        self.due = now + self._interval
        return self._say(b"HEARTBEAT", self._versioned({}))

    def _say_ready(self) -> Effect:
        metadata = {"protocol": "MDP"}
        return self._say(
            b"READY", self._versioned({"services": list(self._services), "window": WINDOW, "metadata": metadata})
        )

    def _versioned(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self._version is None else options | {"config_version": self._version}

    def _say(self, command: bytes, options: Mapping[str, Any]) -> Effect:
        return (OFFERS, (WORKER, command, _written(options)))


def _written(options: Mapping[str, Any]) -> bytes:
    return json.dumps(options).encode() if options else b""


def _options(frame: bytes) -> dict[str, Any]:
    try:
        options = json.loads(bytes(frame)) if len(frame) else {}
    except (ValueError, RecursionError):
        return {}
    return options if isinstance(options, dict) else {}


def _whole(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default


def _is_text(name: bytes) -> bool:
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False
