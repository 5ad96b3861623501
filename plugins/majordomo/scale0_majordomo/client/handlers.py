"""What both kinds of worker share: the functions behind the services, and what they may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from scale0_core.api import Frames, get_logger
from scale0_majordomo.client.errors import RemoteError
from scale0_majordomo.client.serving import Request
from scale0_majordomo.client.words import body_frames, service_name, write_options

LOG = get_logger("majordomo.worker")

Part = bytes | bytearray | memoryview | str
Result = Part | tuple[Part, ...] | list[Part] | None
Handler = Callable[[Request], Any]
"""Takes a Request; returns a Result, or yields several, or does so asynchronously."""

LONGEST_MESSAGE = 2000
MAX_CREDIT = 10_000
MOST_THREADS = 64


class Answer(NamedTuple):
    """How a request ends: a reply, or an error where there is a code."""

    frames: Frames = ()
    options: bytes = b""
    code: int = 0
    reason: str = ""


def frames_of(result: Any) -> Frames:
    """Make frames of what a function returned."""
    if result is None:
        return body_frames(())
    return body_frames(result if isinstance(result, tuple | list) else (result,))


def reply(result: Any) -> Answer:
    """Make the reply of a function."""
    return Answer(frames_of(result))


def part_options(seq: int) -> bytes:
    """Give the options of a part; they are counted, so that the caller notices when one is missing."""
    return b'{"seq":%d}' % seq


def end_of_parts(seq: int, result: Any) -> Answer:
    """Make the end of a streamed reply, which says when there is nothing in it."""
    return Answer(frames_of(result), write_options(seq=seq, empty=result is None or None))


def failure(request: Request, error: BaseException) -> Answer:
    """Make the error for a function that raised; what it raised is logged."""
    if isinstance(error, RemoteError):
        code = error.code if 500 <= error.code <= 599 else 500
        return Answer(code=code, reason=error.message[:LONGEST_MESSAGE])
    if request.cancelled:
        return CANCELLED
    LOG.failure("service raised", error, service=request.service, request=request.address.hex())
    return Answer(code=500, reason=f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE])


CANCELLED = Answer(code=410, reason="cancelled")


class Offer(NamedTuple):
    """A service on offer."""

    name: str
    handler: Handler
    credit: int
    threads: int


def make_offer(name: str, handler: Handler, credit: int, threads: int | None, *, asynchronous: bool) -> Offer:
    """Make an offer, or raise what is wrong with it."""
    service_name(name)
    if name.startswith("mmi."):
        raise ValueError(f"services that begin with mmi. are the broker's own: {name}")
    if not callable(handler):
        raise TypeError(f"a service is a function, not {type(handler).__name__}")
    waits = inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler)
    if waits and not asynchronous:
        raise TypeError(f"{name} is served by an async function: use scale0_majordomo.aio.Worker")
    if not 1 <= credit <= MAX_CREDIT:
        raise ValueError(f"a worker takes 1 to {MAX_CREDIT} requests at once: {credit}")
    if threads is not None and threads < 1:
        raise ValueError(f"a worker has at least one thread: {threads}")
    return Offer(name, handler, credit, min(credit, MOST_THREADS) if threads is None else threads)
