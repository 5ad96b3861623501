"""How the use of a pipe can fail: subclasses of the errors that all clients have.

::

    PipeError                    has the pipe's name, the stage that was reached, and the broker's code or 0
    ├── PipeTimeoutError         the time was over: a CallTimedOutError, with the code of all of them, 408
    │   └── PipeFullError            ...and the pipe was full
    ├── PipeLostError            the broker cannot be reached: a BrokerLostError
    │   └── PipeNoBrokerError        ...since nobody listens at its address: a NoBrokerError
    ├── PipeBusyError            another reader is at the pipe
    ├── PipeGoneError            chunks were asked for that are there no more
    ├── PipeTooLargeError        a chunk is larger than the broker takes: a TooLargeError
    └── PipeClosedError          the pipe was closed by its user, or belongs to another process: a ClosedError
"""

from __future__ import annotations

from scale0_core.api import printable
from scale0_core.client.kit.errors import (
    FORKED,
    AnyStage,
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoBrokerError,
    TooLargeError,
)

__all__ = [
    "PipeBusyError", "PipeClosedError", "PipeError", "PipeFullError", "PipeGoneError", "PipeLostError",
    "PipeNoBrokerError", "PipeTimeoutError", "PipeTooLargeError", "Stage",
]  # fmt: skip


class Stage(AnyStage):
    """How far something came."""

    CONNECTING = "connecting to the broker"
    OPENING = "opening the pipe"
    PLACE = "waiting for another reader to leave"
    CHUNK = "waiting for a chunk"
    ROOM = "waiting for room in the pipe"
    ANSWER = "waiting for the broker's answer"
    CLOSED = "closed"


class PipeError(CallError):
    """A pipe could not be used as asked."""

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *,
        pipe: bytes = b"", stage: Stage = Stage.ANSWER, code: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy, service="zpipes", stage=stage, code=code)
        self.pipe = pipe
        self.others: tuple[PipeError, ...] = ()
        """Where several chunks were refused: the errors of the others."""


class PipeTimeoutError(PipeError, CallTimedOutError):
    """The time was over; ``stage`` says how far it came."""


class PipeFullError(PipeTimeoutError):
    """The pipe was full until the time was over."""


class PipeLostError(PipeError, BrokerLostError):
    """The broker could not be reached for longer than the pipe's ``timeout``."""


class PipeNoBrokerError(PipeLostError, NoBrokerError):
    """Nobody listens at the broker's address on this machine, and there was no connection so far."""


class PipeBusyError(PipeError):
    """Another reader is at the pipe, which has one at a time."""

    code = 409


class PipeGoneError(PipeError):
    """Chunks were asked for that are acknowledged, so there no more."""

    code = 410


class PipeTooLargeError(PipeError, TooLargeError):
    """A chunk is larger than the broker takes; it was not written."""


class PipeClosedError(PipeError, ClosedError):
    """The pipe was closed, so it cannot be read or written; or it belongs to another process."""


_BY_CODE: dict[int, type[PipeError]] = {
    408: PipeFullError, 409: PipeBusyError, 410: PipeGoneError, 413: PipeTooLargeError, 429: PipeFullError,
}  # fmt: skip

_REMEDIES = {
    409: "end the other reader, or read as a group of your own: Pipe.open(name, 'r', group='mine')",
    410: "begin later",
    413: "write smaller chunks, or raise plugin.zpipes.max_message and max_pipe_bytes",
    429: "read the pipe, or raise its limits in [plugin.zpipes]",
    507: "look at the disk that has the broker's data folder",
}


def refused(pipe: bytes, code: int, reason: str, stage: Stage, consequence: str = "") -> PipeError:
    """Make the error for what a broker refused."""
    kind = _BY_CODE.get(code, PipeError)
    what = f"pipe {printable(pipe)}: the broker refuses with code {code}"
    remedy = _REMEDIES.get(code, "scale0 zpipes info shows the pipe")
    own = None if issubclass(kind, PipeTimeoutError) else code  # all timeouts have one code
    return kind(what, printable(reason, 1000), consequence, remedy, pipe=pipe, stage=stage, code=own)


def too_large(pipe: bytes, size: int, limit: int, consequence: str = "it was not written") -> PipeTooLargeError:
    """Make the error for a chunk that the broker would refuse."""
    what = f"pipe {printable(pipe)}: a chunk of {size} bytes is too large"
    why = f"the broker takes at most {limit} bytes"
    remedy = "write smaller chunks, or raise plugin.zpipes.max_message and max_pipe_bytes"
    return PipeTooLargeError(what, why, consequence, remedy, pipe=pipe)


def inherited(pipe: bytes) -> PipeClosedError:
    """Make the error for a pipe that was opened before this process was forked."""
    what = f"pipe {printable(pipe)} was opened before a fork, by the parent process"
    remedy = "open the pipe in the child, after the fork"
    return PipeClosedError(what, FORKED, "nothing was read or written", remedy, pipe=pipe, stage=Stage.CLOSED)


def nobody_there(pipe: bytes, address: str, reason: str) -> PipeNoBrokerError:
    """Make the error for a local address at which nobody listens."""
    what = f"pipe {printable(pipe)}: the broker at {address} cannot be reached"
    why = f"{Stage.CONNECTING.value}: {reason}"
    remedy = "start a broker with the plugin zpipes: scale0 broker"
    return PipeNoBrokerError(what, why, "the pipe is not opened", remedy, pipe=pipe, stage=Stage.CONNECTING)


def closed(pipe: bytes) -> PipeClosedError:
    """Make the error for a pipe that was closed."""
    what = f"pipe {printable(pipe)} is closed here"
    return PipeClosedError(what, "", "nothing was read or written", "open it again", pipe=pipe, stage=Stage.CLOSED)
