"""How a call can end without a reply, and what can go wrong with a worker: the errors of all clients, and two more.

``CallCancelledError`` (410) and ``WorkerLostError`` (502) are our own; all others are those of ``scale0_core.client``,
so what catches a ``CallError`` or a timeout there catches Majordomo's.
"""

from __future__ import annotations

from scale0_core.api import printable
from scale0_core.client.kit.errors import BY_CODE as COMMON
from scale0_core.client.kit.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoBrokerError,
    RemoteError,
    Stage,
    TooManyError,
    UnavailableError,
    WorkerError,
)

__all__ = [
    "BrokerLostError", "CallCancelledError", "CallError", "CallTimedOutError", "ClosedError", "NoBrokerError",
    "RemoteError", "Stage", "TooManyError", "UnavailableError", "WorkerError", "WorkerLostError",
]  # fmt: skip

START = "is a broker with the plugin majordomo running at this address? start one: scale0 broker"


class CallCancelledError(CallError):
    """The call was cancelled."""

    code = 410


class WorkerLostError(CallError):
    """The workers that had the request died, and it is not to be tried again; it may have been carried out."""

    exit_code = UnavailableError.exit_code
    code = 502


_BY_CODE = {**COMMON, **{kind.code: kind for kind in (CallCancelledError, WorkerLostError)}}

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
    return kind(
        what, why, _OUTCOMES.get(code, ""), _REMEDIES.get(code, ""), service=service, stage=Stage.WORKER, code=code
    )
