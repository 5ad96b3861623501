"""Errors for what brokers of the Scale0 protocol answer; the tree is that of ``kit.errors``."""

from __future__ import annotations

from scale0_core.client.kit.errors import BY_CODE, CallError, CallTimedOutError, Stage, WorkerError
from scale0_core.logs import printable
from scale0_core.protocol.codes import CODES, Code

START = "start the broker: scale0 broker; or wait for it: Client(..., wait_for_broker=True)"

_BY_CODE = {**BY_CODE, int(Code.DEADLINE): CallTimedOutError}


def error_for(code: int, message: str, service: str, address: str) -> CallError:
    """Make the error for what a broker answered to a task; a timeout has the code of all timeouts."""
    kind: type[CallError] = _BY_CODE.get(code, CallError)
    return kind(
        f"the call of {printable(service)} failed with code {code}",
        f"the broker at {address} says: {printable(message, 1000)}",
        "the task was not done" if code in (404, 413, 429) else "",
        _remedy(code),
        service=service,
        stage=Stage.WORKER,
        code=None if kind is CallTimedOutError else code,
    )


def refused(address: str, code: int, message: str) -> WorkerError:
    """Make the error for a broker that does not take a worker."""
    what = f"the broker at {address} refuses this worker with code {code}"
    return WorkerError(what, printable(message, 1000), "it tries again after a while", _remedy(code), code=code)


def _remedy(code: int) -> str:
    return CODES[Code(code)].remedy if code in list(Code) else ""
