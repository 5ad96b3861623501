"""How the use of a pipe can fail.

::

    PipeError                    has the pipe's name, the stage that was reached, and the broker's code or 0
    ├── PipeTimeoutError         the time was over
    │   └── PipeFullError            ...and the pipe was full
    ├── PipeLostError            the broker cannot be reached
    ├── PipeBusyError            another reader is at the pipe
    ├── PipeGoneError            chunks were asked for that are there no more
    ├── PipeTooLargeError        a chunk is larger than the broker takes
    └── PipeClosedError          the pipe was closed by its user
"""

from __future__ import annotations

from enum import Enum

from scale0_core.api import Scale0Error, printable

# the exit codes of the command line, which has no other use for plugins
_exit = type(Scale0Error.exit_code)
NEGATIVE, DATA, UNREACHED, TIMEOUT = _exit(1), _exit(65), _exit(69), _exit(75)


class Stage(str, Enum):
    """How far something came."""

    CONNECTING = "connecting to the broker"
    OPENING = "opening the pipe"
    PLACE = "waiting for another reader to leave"
    CHUNK = "waiting for a chunk"
    ROOM = "waiting for room in the pipe"
    ANSWER = "waiting for the broker's answer"
    CLOSED = "closed"


class PipeError(Scale0Error):
    """A pipe could not be used as asked."""

    exit_code = NEGATIVE

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *,
        pipe: bytes = b"", stage: Stage = Stage.ANSWER, code: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy)
        self.pipe, self.stage, self.code = pipe, stage, code
        self.others: tuple[PipeError, ...] = ()
        """Where several chunks were refused: the errors of the others."""


class PipeTimeoutError(PipeError):
    """The time was over; ``stage`` says how far it came."""

    exit_code = TIMEOUT


class PipeFullError(PipeTimeoutError):
    """The pipe was full until the time was over."""


class PipeLostError(PipeError):
    """The broker could not be reached for longer than the pipe's ``timeout``."""

    exit_code = UNREACHED


class PipeBusyError(PipeError):
    """Another reader is at the pipe, which has one at a time."""


class PipeGoneError(PipeError):
    """Chunks were asked for that are acknowledged, so there no more."""


class PipeTooLargeError(PipeError):
    """A chunk is larger than the broker takes; it was not written."""

    exit_code = DATA


class PipeClosedError(PipeError):
    """The pipe was closed, so it cannot be read or written."""


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
    return kind(what, printable(reason, 1000), consequence, remedy, pipe=pipe, stage=stage, code=code)


def too_large(pipe: bytes, size: int, limit: int, consequence: str = "it was not written") -> PipeTooLargeError:
    """Make the error for a chunk that the broker would refuse."""
    what = f"pipe {printable(pipe)}: a chunk of {size} bytes is too large"
    why = f"the broker takes at most {limit} bytes"
    remedy = "write smaller chunks, or raise plugin.zpipes.max_message and max_pipe_bytes"
    return PipeTooLargeError(what, why, consequence, remedy, pipe=pipe, code=413)


def inherited(pipe: bytes) -> PipeError:
    """Make the error for a pipe that was opened before this process was forked."""
    what = f"pipe {printable(pipe)} was opened before a fork, by the parent process"
    why = "its connection and its threads are the parent's"
    remedy = "open the pipe in the child, after the fork"
    return PipeError(what, why, "nothing was read or written", remedy, pipe=pipe, stage=Stage.CLOSED)


def nobody_there(pipe: bytes, address: str, reason: str) -> PipeLostError:
    """Make the error for a local address at which nobody listens."""
    what = f"pipe {printable(pipe)}: the broker at {address} cannot be reached"
    why = f"{Stage.CONNECTING.value}: {reason}"
    remedy = "start a broker with the plugin zpipes: scale0 broker"
    return PipeLostError(what, why, "the pipe is not opened", remedy, pipe=pipe, stage=Stage.CONNECTING)


def closed(pipe: bytes) -> PipeClosedError:
    """Make the error for a pipe that was closed."""
    what = f"pipe {printable(pipe)} is closed here"
    return PipeClosedError(what, "", "nothing was read or written", "open it again", pipe=pipe, stage=Stage.CLOSED)
