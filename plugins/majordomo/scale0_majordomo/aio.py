"""Majordomo for programs with asyncio: ``async with Client() as client: await client.call("upper", "hello")``."""

from __future__ import annotations

from scale0_majordomo.client.aio import Client, Stream, Worker
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
