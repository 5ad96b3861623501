"""How a call can end without a reply.

::

    CallError                    a call failed; has a code, the service and the stage that was reached
    ├── NoServiceError           nobody offers the service (404)
    ├── TooLargeError            a frame is too large, or there are too many (413)
    ├── TooManyError             too many tasks are open (429)
    ├── RemoteError              the worker reported a failure (500, or the code it chose)
    ├── UnavailableError         no worker is there any more, or the broker is not ready (503)
    ├── CallTimedOutError        no reply in time (504)
    ├── NoBrokerError            nobody listens at the broker's address
    ├── BrokerLostError          the connection broke before the reply came
    └── ClosedError              the client was closed

``WorkerError`` is what a worker meets: it cannot be reached or is refused.
"""

from __future__ import annotations

from enum import Enum

from scale0_core.errors import Exit, NotReachedError, Scale0Error, TimedOutError
from scale0_core.logs import printable
from scale0_core.protocol.codes import CODES, Code


class Stage(str, Enum):
    """How far a call came."""

    CONNECTING = "connecting to the broker"
    BROKER = "waiting for the broker"
    WORKER = "waiting for a worker"
    REPLY = "receiving the reply"


class CallError(Scale0Error):
    """A call ended without a reply; ``code`` is 0 where the broker said nothing."""

    exit_code = Exit.NEGATIVE
    code = 0

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *,
        service: str = "", stage: Stage = Stage.BROKER, code: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy)
        self.service, self.stage = service, stage
        if code is not None:
            self.code = code


class NoServiceError(CallError):
    """Nobody offers the service at this broker."""

    code = int(Code.NO_SERVICE)


class TooLargeError(CallError):
    """A message is larger than the broker takes."""

    exit_code = Exit.DATA
    code = int(Code.TOO_LARGE)


class TooManyError(CallError):
    """Too many tasks of this client are open, or wait for this service."""

    exit_code = Exit.TIMEOUT
    code = int(Code.TOO_MANY)


class UnavailableError(CallError):
    """The service is known, but no worker is there; or the broker is not ready."""

    exit_code = Exit.UNREACHED
    code = int(Code.UNAVAILABLE)


class CallTimedOutError(CallError, TimedOutError):
    """No reply came in time; ``stage`` says how far the call came."""

    exit_code = Exit.TIMEOUT
    code = int(Code.DEADLINE)


class BrokerLostError(CallError, NotReachedError):
    """The connection to the broker broke while the call was open; whether it was carried out is not known."""

    exit_code = Exit.UNREACHED


class NoBrokerError(CallError, NotReachedError):
    """Nobody listens at the broker's address on this machine, and there was no connection so far."""

    exit_code = Exit.UNREACHED


class ClosedError(CallError):
    """The client was closed while the call was open, or before it was made."""


class RemoteError(CallError):
    """The worker reported a failure. A service may raise it to choose the code and the message of its reply."""

    code = int(Code.FAILURE)

    def __init__(self, message: str, code: int = int(Code.FAILURE), *, service: str = "") -> None:
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


class WorkerError(NotReachedError):
    """A worker cannot reach its broker, or is refused by it; ``code`` is 0 where the broker said nothing."""

    def __init__(self, what: str, why: str = "", consequence: str = "", remedy: str = "", *, code: int = 0) -> None:
        super().__init__(what, why, consequence, remedy)
        self.code = code


_BY_CODE: dict[int, type[CallError]] = {
    kind.code: kind for kind in (NoServiceError, TooLargeError, TooManyError, UnavailableError, CallTimedOutError)
}


def error_for(code: int, message: str, service: str, address: str) -> CallError:
    """Make the error for what a broker answered to a task."""
    kind = _BY_CODE.get(code, CallError)
    remedy = CODES[Code(code)].remedy if code in list(Code) else ""
    return kind(
        f"the call of {printable(service)} failed with code {code}",
        f"the broker at {address} says: {printable(message, 1000)}",
        "the task was not done" if code in (404, 413, 429) else "",
        remedy,
        service=service,
        stage=Stage.WORKER,
        code=code,
    )


def no_broker(address: str, reason: str) -> NoBrokerError:
    """Make the error for an address where nobody listens."""
    remedy = "start the broker: scale0 broker; or wait for it: Client(..., wait_for_broker=True)"
    return NoBrokerError(f"no broker at {address}", reason, "nothing was sent", remedy, stage=Stage.CONNECTING)


def refused(address: str, code: int, message: str) -> WorkerError:
    """Make the error for a broker that does not take a worker."""
    remedy = CODES[Code(code)].remedy if code in list(Code) else ""
    return WorkerError(
        f"the broker at {address} refuses this worker with code {code}",
        printable(message, 1000),
        "it tries again after a while",
        remedy,
        code=code,
    )
