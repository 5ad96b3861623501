"""Call services and offer them: ``Client`` and ``Worker``; for asyncio, the same names in ``scale0_core.client.aio``.

::

    with Client() as client:
        print(client.call("echo", b"hello").text)
"""

from scale0_core.client.calls import Reply
from scale0_core.client.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoBrokerError,
    NoServiceError,
    RemoteError,
    Stage,
    TooLargeError,
    TooManyError,
    UnavailableError,
    WorkerError,
)
from scale0_core.client.handlers import cancelled, time_left
from scale0_core.client.sync import Client, Stream, Worker

__all__ = [
    "BrokerLostError",
    "CallError",
    "CallTimedOutError",
    "Client",
    "ClosedError",
    "NoBrokerError",
    "NoServiceError",
    "RemoteError",
    "Reply",
    "Stage",
    "Stream",
    "TooLargeError",
    "TooManyError",
    "UnavailableError",
    "Worker",
    "WorkerError",
    "cancelled",
    "time_left",
]
