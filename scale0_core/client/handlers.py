"""What both kinds of worker share: the functions behind the services, and what they may return."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import attrs

from scale0_core.client.calls import LARGEST_FRAME, MOST_PAYLOAD_FRAMES
from scale0_core.client.errors import RemoteError
from scale0_core.client.session import Task
from scale0_core.logs import get_logger
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import CODES, Code
from scale0_core.protocol.options import LONGEST_SERVICE, MOST_SERVICES
from scale0_core.service import Frames

LOG = get_logger("worker")

Part = bytes | bytearray | memoryview | str
Result = Part | tuple[Part, ...] | list[Part] | None
Handler = Callable[..., Any]
"""Takes the payload, a frame each, as bytes; returns a Result, or yields several, or does so asynchronously."""

LONGEST_MESSAGE = 2000

WORKING_ON: ContextVar[Task | None] = ContextVar("scale0_task", default=None)
"""The task whose handler runs in this thread or coroutine."""


def cancelled() -> bool:
    """Return whether nobody waits for the task any more that the calling handler works on.

    A plain function that runs for long looks at it now and then, and returns. Generators are closed, and coroutines
    are cancelled, without a look.
    """
    task = WORKING_ON.get()
    return task is not None and task.over != 0


def time_left() -> float:
    """Return the seconds until the deadline of the task that the calling handler works on; infinity without one."""
    task = WORKING_ON.get()
    return math.inf if task is None else task.deadline - time.monotonic()


@attrs.frozen
class Answer:
    """A TASKREPLY: its options and its payload."""

    options: bytes = b""
    frames: Frames = ()


def frames_of(result: Any) -> Frames:
    """Make frames of what a function returned."""
    if result is None:
        return ()
    parts = tuple(result) if isinstance(result, tuple | list) else (result,)
    frames = tuple(_frame(part) for part in parts)
    if len(frames) > MOST_PAYLOAD_FRAMES or any(len(frame) > LARGEST_FRAME for frame in frames):
        limit = f"a reply has at most {MOST_PAYLOAD_FRAMES} frames of at most {LARGEST_FRAME} bytes"
        raise RemoteError(f"{limit}; yield larger ones in parts", 413)
    return frames


def _frame(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    raise TypeError(f"a service returns bytes, text, a tuple of these, or None, but not {type(part).__name__}")


def part_of(result: Any, seq: int) -> Answer:
    """Make a reply that others follow; they are counted, so that the caller notices when one is missing."""
    return Answer(wire.write_options(more=True, seq=seq), frames_of(result))


def end_of_parts(seq: int) -> Answer:
    """Make the last reply of several, which has no payload."""
    return Answer(wire.write_options(seq=seq))


def failure(task: Task, error: BaseException) -> Answer:
    """Make the reply for a function that raised; what it raised is logged, unless the task was over already."""
    if task.over:
        return ended(task)
    if isinstance(error, RemoteError):
        return Answer(wire.write_options(code=int(error.code), message=error.message[:LONGEST_MESSAGE]))
    LOG.failure("service raised", error, service=task.service, task=task.number.hex())
    message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    return Answer(wire.write_options(code=500, message=message.encode("utf-8", "replace").decode()))


def ended(task: Task) -> Answer:
    """Make the reply to a task that nobody waits for any more; it frees the task's slot."""
    return Answer(wire.write_options(code=int(task.over), message=CODES[Code(task.over)].meaning))


def not_here(task: Task) -> Answer:
    """Make the reply to a task for a service that was withdrawn while the task was on its way."""
    service = task.service.decode("utf-8", "replace")
    return Answer(wire.write_options(code=404, message=f"this worker does not offer {service} any more"))


class Handlers:
    """The functions behind the services of one worker."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._by_name: dict[str, Handler] = {}

    def __getitem__(self, name: bytes) -> Handler | None:
        return self._by_name.get(name.decode("utf-8", "replace"))

    @property
    def names(self) -> Iterable[str]:
        """The services there are."""
        return tuple(self._by_name)

    def add(self, name: str, function: Handler) -> None:
        """Have a function serve; one that was there under this name is replaced."""
        if not 0 < len(name.encode()) <= LONGEST_SERVICE:
            raise ValueError(f"the name of a service has 1 to {LONGEST_SERVICE} bytes: {name!r}")
        if len(self._by_name) >= MOST_SERVICES:
            raise ValueError(f"a worker has at most {MOST_SERVICES} services")
        if not callable(function):
            raise TypeError(f"a service is a function, not {type(function).__name__}")
        waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if waits and not self._asynchronous:
            raise TypeError(f"{name} is served by an async function: use scale0_core.client.aio.Worker")
        self._by_name[name] = function

    def remove(self, name: str) -> None:
        """Take a service away."""
        if name not in self._by_name:
            raise KeyError(f"there is no service {name}")
        del self._by_name[name]
