"""Call services and offer them: ``Client`` and ``Worker``; for asyncio, the same names in ``scale0_core.client.aio``.

::

    with Client() as client:
        print(client.call("echo", b"hello").text)
"""

from scale0_core.client.kit.calls import Reply
from scale0_core.client.kit.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClientError,
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
from scale0_core.client.kit.flows import Stream
from scale0_core.client.kit.serving import cancelled, time_left
from scale0_core.client.sync import Client, Worker

__all__ = [
    "BrokerLostError",
    "CallError",
    "CallTimedOutError",
    "Client",
    "ClientError",
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
