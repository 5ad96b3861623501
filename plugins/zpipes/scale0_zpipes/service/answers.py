"""What the text dialect answers, and how requests are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from scale0_core.api import Effect, Frames, JobResult, body_at
from scale0_zpipes.service.binary import REPLIES

SOCKET = "pipes"
"""The service's one socket."""

OK = b"OK"
ERROR = b"ERROR"
PONG = b"PONG"
PROBE = b"PROBE"
"""Says nothing; but if it cannot be delivered, the peer is gone."""
SAYS_OK: Frames = (OK,)

MAX_NAME = 255
LONGEST_COMMAND = 16
LONGEST_WAIT_MS = 86_400_000

Answering: TypeAlias = Callable[[JobResult, float], Iterable[Effect]]
"""What is done when the disk has answered."""


class Refusal(Exception):  # noqa: N818 (it is an answer)
    """A request that is answered with ERROR; ``before`` is sent to others first."""

    def __init__(self, code: int, reason: str, before: Iterable[Effect] = ()) -> None:
        super().__init__(code, reason)
        self.frames: Frames = (ERROR, b"%d" % code, reason.encode())
        self.before = before


def command_in(frames: Frames) -> tuple[int, bytes]:
    """Return where the command of a request is, behind a REQ socket's empty frame, and the command; or b""."""
    start = body_at(frames)
    return start, bytes(frames[start]) if len(frames) > start and len(frames[start]) <= LONGEST_COMMAND else b""


def number_in(frame: bytes, what: str, largest: int = 2**63 - 1) -> int:
    """Read a number."""
    digits = bytes(frame) if len(frame) <= 20 else b""
    if not digits.isdigit() or (value := int(digits)) > largest:
        raise Refusal(400, f"{what} is not a number from 0 to {largest}")
    return value


def patience_in(frame: bytes) -> float:
    """Read a time to wait, in seconds."""
    return number_in(frame, "the time to wait", LONGEST_WAIT_MS) / 1000


def name_in(frame: bytes) -> bytes:
    """Read the name of a pipe or a group."""
    if not 1 <= len(frame) <= MAX_NAME:
        raise Refusal(400, f"a name has 1 to {MAX_NAME} bytes, not {len(frame)}")
    return bytes(frame)


def is_chunk(answer: Frames) -> bool:
    """Tell the answer to a READ from all others."""
    last = answer[-1]
    # by identity, since a chunk may have the same bytes
    return len(answer) == (3 if len(answer) > 2 and not len(answer[1]) else 2) and not any(
        last is word for word in (OK, PONG, PROBE, *REPLIES)
    )


def when_safe(envelope: Frames, says: Frames) -> Answering:
    """Answer when the disk has answered: with these frames, or with an error."""

    def answer(result: JobResult, now: float) -> Iterable[Effect]:
        return [(SOCKET, (*envelope, *(says if result.error is None else disk_refused(result.error).frames)))]

    return answer


def disk_refused(error: BaseException) -> Refusal:
    """Say that the disk refused."""
    return Refusal(507, f"the disk refused: {error}")
