"""How operations of clients can fail: one tree, of which plugins make subclasses.

::

    ClientError                  has the stage that was reached, and the peer's code or 0
    ├── CallError                an operation failed; has the service
    │   ├── NoServiceError           nobody offers the service (404)
    │   ├── CallTimedOutError        no reply in time (408)
    │   ├── TooLargeError            a frame is too large, or there are too many (413)
    │   ├── TooManyError             too many tasks are open (429)
    │   ├── RemoteError              the worker reported a failure (500, or the code it chose)
    │   ├── UnavailableError         no worker is there any more, or the broker is not ready (503)
    │   ├── NoBrokerError            nobody listens at the broker's address
    │   ├── BrokerLostError          the connection broke before the reply came
    │   └── ClosedError              the client was closed, or belongs to another process
    └── WorkerError              a worker cannot reach its broker, or is refused by it

The root of a plugin's errors subclasses ``CallError``; those that have a meaning here subclass both, as in ``class
PipeTimeoutError(PipeError, CallTimedOutError)``. So ``except CallTimedOutError`` catches the timeouts of every client.
"""

from __future__ import annotations

from enum import Enum

from scale0_core.errors import Exit, NotReachedError, Scale0Error, TimedOutError
from scale0_core.logs import printable

FORKED = "this is a forked child: threads and connections stay in the process that made them"


class AnyStage(str, Enum):
    """How far an operation came; each client names its stages in a subclass."""


class Stage(AnyStage):
    """How far a call came."""

    CONNECTING = "connecting to the broker"
    BROKER = "waiting for the broker"
    WORKER = "waiting for a worker"
    REPLY = "receiving the reply"


class ClientError(Scale0Error):
    """An operation of a client failed; ``code`` is 0 where the peer gave none."""

    exit_code = Exit.NEGATIVE
    code = 0

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *, stage: AnyStage = Stage.BROKER,
        code: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy)
        self.stage = stage
        if code is not None:
            self.code = code


class CallError(ClientError):
    """An operation ended without a result."""

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *, service: str = "",
        stage: AnyStage = Stage.BROKER, code: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy, stage=stage, code=code)
        self.service = service


class NoServiceError(CallError):
    """Nobody offers the service at this broker."""

    code = 404


class CallTimedOutError(CallError, TimedOutError):
    """No reply came in time; ``stage`` says how far the operation came."""

    exit_code = Exit.TIMEOUT
    code = 408


class TooLargeError(CallError):
    """A message is larger than the broker takes."""

    exit_code = Exit.DATA
    code = 413


class TooManyError(CallError):
    """Too many tasks of this client are open, or wait for this service."""

    exit_code = Exit.TIMEOUT
    code = 429


class UnavailableError(CallError):
    """The service is known, but no worker is there; or the broker is not ready."""

    exit_code = Exit.UNREACHED
    code = 503


class BrokerLostError(CallError, NotReachedError):
    """The connection to the broker broke while the call was open; whether it was carried out is not known."""

    exit_code = Exit.UNREACHED


class NoBrokerError(CallError, NotReachedError):
    """Nobody listens at the broker's address on this machine, and there was no connection so far."""

    exit_code = Exit.UNREACHED


class ClosedError(CallError):
    """The client was closed while the operation ran, or before; or it belongs to another process."""


class RemoteError(CallError):
    """The worker reported a failure. A handler may raise it to choose the code and the message of its reply."""

    code = 500

    def __init__(self, message: str, code: int = 500, *, service: str = "") -> None:
        what = f"service {printable(service)} failed" if service else "the service failed"
        super().__init__(
            what,
            printable(message, 2000),
            remedy="look into the worker's log",
            service=service,
            stage=Stage.REPLY,
            code=code,
        )
        self.message = message


class WorkerError(ClientError, NotReachedError):
    """A worker cannot reach its broker, or is refused by it; ``code`` is 0 where the broker gave none."""

    exit_code = Exit.UNREACHED


BY_CODE: dict[int, type[CallError]] = {
    kind.code: kind for kind in (NoServiceError, TooLargeError, TooManyError, UnavailableError, CallTimedOutError)
}
"""The error for a code that a peer gives."""


def no_broker(address: str, reason: str, remedy: str) -> NoBrokerError:
    """Make the error for an address at which nobody listens."""
    return NoBrokerError(f"no broker at {address}", reason, "nothing was sent", remedy, stage=Stage.CONNECTING)


def closed_error(error: BaseException | None = None) -> ClosedError:
    """Make the error of operations on a client that was closed, or that failed."""
    why = f"it failed: {error!r}" if error else ""
    return ClosedError("the client is closed", why, "the call has no reply", "" if error else "make another Client")


def forked_error() -> ClosedError:
    """Make the error of operations in a forked child."""
    remedy = "make another Client after the fork"
    return ClosedError("the client belongs to another process", FORKED, "the call has no reply here", remedy)
