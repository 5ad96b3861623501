"""The service itself: a state machine without I/O.

A request has an optional empty frame (a REQ socket puts it there), a command, an options frame, and a body of at
least one frame:

=========  ====================  =========================================================
command    options               answer
=========  ====================  =========================================================
`ECHO`     empty                 the body, at once
`LATER`    milliseconds          the body, when the time has passed
`DIGEST`   empty                 the SHA-256 of the body, in hexadecimal digits
=========  ====================  =========================================================

Anything else is answered with the frames `ERROR`, a code and a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import count

from scale0_core.api import KIB, Deadlines, Effect, Endpoint, Frames, Job, JobResult, Send, SocketKind, split_envelope
from scale0_echo.settings import EchoSettings

LONGEST_DELAY_MS = 3_600_000


class EchoService:
    """Sends back what it gets."""

    name = "echo"

    def __init__(self, settings: EchoSettings | None = None, bind: Iterable[str] = ("inproc://echo",)) -> None:
        self._settings = settings or EchoSettings()
        self._waiting: Deadlines[int, Send] = Deadlines(0)
        self._numbers = count()
        self.endpoints: Mapping[str, Endpoint] = {
            "requests": Endpoint(
                kind=SocketKind.ROUTER,
                bind=bind,
                max_message=self._settings.max_message,
                blob_over=8 * KIB,
                tasks=True,
            )
        }

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Answer one request."""
        if len(frames) == 4 and frames[1] == b"ECHO" and not frames[2]:  # the common case, worth a path of its own
            return ((socket, (frames[0], frames[3])),)
        envelope, request = split_envelope(frames)
        if len(request) < 3:
            return [_error(socket, envelope, b"400", b"a request has a command, options and a body")]
        command, options, body = bytes(request[0]), bytes(request[1]), request[2:]
        if command == b"ECHO" and not options:
            return [(socket, envelope + body)]
        if command == b"LATER":
            return self._later(socket, envelope, options, body, now)
        if command == b"DIGEST" and not options:
            return [Job(key=envelope[0], function=_digest, argument=body, token=(socket, envelope))]
        return [_error(socket, envelope, b"501", b"commands are ECHO, LATER and DIGEST")]

    def next_deadline(self) -> float | None:
        """Say when the next message is to be sent back."""
        return self._waiting.next()

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Send back all that is due."""
        return self._waiting.take(now)

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Send the digest that a thread has made."""
        socket, envelope = result.token
        if result.error is not None:
            return [_error(socket, envelope, b"500", str(result.error).encode())]
        return [(socket, (*envelope, result.value))]

    def _later(self, socket: str, envelope: Frames, options: bytes, body: Frames, now: float) -> Iterable[Effect]:
        if not options.isdigit() or len(options) > 7 or int(options) > LONGEST_DELAY_MS:
            return [_error(socket, envelope, b"400", b"LATER takes milliseconds, at most 3600000")]
        if len(self._waiting) >= self._settings.max_waiting:
            return [_error(socket, envelope, b"429", b"too many messages wait already")]
        self._waiting.set(next(self._numbers), now + int(options) / 1000, (socket, envelope + body))
        return []


def _digest(body: Frames) -> bytes:
    digest = hashlib.sha256()
    for frame in body:
        digest.update(frame)
    return digest.hexdigest().encode()


def _error(socket: str, envelope: Frames, code: bytes, reason: bytes) -> Send:
    return (socket, (*envelope, b"ERROR", code, reason))
