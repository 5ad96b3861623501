"""Call services and offer them: ``Client`` and ``Worker``; for asyncio, the same names in ``scale0_majordomo.aio``.

::

    with Client() as client:
        print(client.call("upper", "hello").text)
"""

from scale0_majordomo.client.calls import CallOptions, Reply
from scale0_majordomo.client.errors import (
    BrokerLostError,
    CallCancelledError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoBrokerError,
    RemoteError,
    Stage,
    TooManyError,
    UnavailableError,
    WorkerError,
    WorkerLostError,
)
from scale0_majordomo.client.serving import Request
from scale0_majordomo.client.sync import Client, Stream, Worker

__all__ = [
    "BrokerLostError",
    "CallCancelledError",
    "CallError",
    "CallOptions",
    "CallTimedOutError",
    "Client",
    "ClosedError",
    "NoBrokerError",
    "RemoteError",
    "Reply",
    "Request",
    "Stage",
    "Stream",
    "TooManyError",
    "UnavailableError",
    "Worker",
    "WorkerError",
    "WorkerLostError",
]
