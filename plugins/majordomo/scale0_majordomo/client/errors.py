"""How a call can end without a reply, and what can go wrong with a worker.

::

    CallError                    a call failed; has a code, the service and the stage that was reached
    ├── CallTimedOutError        no reply in time (408)
    ├── CallCancelledError       the call was cancelled (410)
    ├── TooManyError             too many requests wait for this service (429)
    ├── RemoteError              the worker reported a failure (500, or the code it chose)
    ├── WorkerLostError          the workers that had the request died (502)
    ├── UnavailableError         the broker stops (503)
    ├── NoBrokerError            nobody listens at the broker's address
    ├── BrokerLostError          the connection broke before the reply came: the outcome is not known
    └── ClosedError              the client was closed

``WorkerError`` is what a worker meets: it cannot reach its broker, or is sent away by it.
"""

from __future__ import annotations

from enum import Enum

from scale0_core.api import Scale0Error, printable

__all__ = [
    "BrokerLostError", "CallCancelledError", "CallError", "CallTimedOutError", "ClosedError", "NoBrokerError",
    "RemoteError", "Stage", "TooManyError", "UnavailableError", "WorkerError", "WorkerLostError",
]  # fmt: skip

# the exit codes of the command line, which has no other use for plugins
_exit = type(Scale0Error.exit_code)
NEGATIVE, UNREACHED, TIMEOUT = _exit(1), _exit(69), _exit(75)


class Stage(str, Enum):
    """How far a call came."""

    CONNECTING = "connecting to the broker"
    BROKER = "waiting for the broker"
    WORKER = "waiting for a worker"
    REPLY = "receiving the reply"


class CallError(Scale0Error):
    """A call ended without a reply; ``code`` is 0 where nobody gave one."""

    exit_code = NEGATIVE
    code = 0

    def __init__(
        self, what: str, why: str = "", consequence: str = "", remedy: str = "", *,
        service: str = "", stage: Stage = Stage.WORKER, code: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, why, consequence, remedy)
        self.service, self.stage = service, stage
        if code is not None:
            self.code = code


class CallTimedOutError(CallError):
    """No reply came in time; ``stage`` says how far the call came."""

    exit_code = TIMEOUT
    code = 408


class CallCancelledError(CallError):
    """The call was cancelled."""

    code = 410


class TooManyError(CallError):
    """Too many requests wait for this service."""

    exit_code = TIMEOUT
    code = 429


class WorkerLostError(CallError):
    """The workers that had the request died, and it is not to be tried again; it may have been carried out."""

    exit_code = UNREACHED
    code = 502


class UnavailableError(CallError):
    """The broker stops."""

    exit_code = UNREACHED
    code = 503


class BrokerLostError(CallError):
    """The connection to the broker broke while the call was open; whether it was carried out is not known."""

    exit_code = UNREACHED


class NoBrokerError(CallError):
    """Nobody listens at the broker's address on this machine, and there was no connection so far."""

    exit_code = UNREACHED


class ClosedError(CallError):
    """The client was closed while the call was open, or before it was made."""


class RemoteError(CallError):
    """The worker reported a failure. A handler may raise it to choose the code, 500 to 599, and the message."""

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


class WorkerError(Scale0Error):
    """A worker cannot reach its broker, or is sent away by it."""

    exit_code = UNREACHED


_BY_CODE: dict[int, type[CallError]] = {
    kind.code: kind for kind in (CallTimedOutError, CallCancelledError, TooManyError, WorkerLostError, UnavailableError)
}

_OUTCOMES = {
    400: "it was not carried out",
    408: "a worker may have begun it, and was told to stop",
    429: "it was not carried out",
    502: "it may have been carried out",
    503: "it may have been carried out",
}

_REMEDIES = {
    408: "give it more time, or start more workers; see: scale0 majordomo services",
    429: "wait, start more workers, or raise max_queue_bytes of the service",
    502: "look into the workers' logs",
    503: "call again, or use retry=True for services that may be called twice",
}


def error_for(code: int, reason: str, service: str, address: str) -> CallError:
    """Make the error for an ERROR, which is the broker's or a worker's."""
    if 500 <= code <= 599 and code not in _BY_CODE:
        return RemoteError(reason, code, service=service)
    kind = _BY_CODE.get(code, CallError)
    what = f"the call of {printable(service)} failed with code {code}"
    why = f"the broker at {address} says: {printable(reason, 1000)}"
    return kind(what, why, _OUTCOMES.get(code, ""), _REMEDIES.get(code, ""), service=service, code=code)


def no_broker(address: str, reason: str) -> NoBrokerError:
    """Make the error for an address where nobody listens."""
    remedy = "is a broker with the plugin majordomo running at this address? start one: scale0 broker"
    return NoBrokerError(f"no broker at {address}", reason, "nothing was sent", remedy, stage=Stage.CONNECTING)


def closed_error(error: BaseException | None = None) -> ClosedError:
    """Make the error of calls that a closed client cannot make, or one that failed."""
    why = f"it failed: {error!r}" if error else ""
    return ClosedError("the client is closed", why, "the call has no reply", "" if error else "make another Client")
