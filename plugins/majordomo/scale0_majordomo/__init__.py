"""Majordomo for Scale0: ``from scale0_majordomo import Client, Worker``; for asyncio, from ``scale0_majordomo.aio``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0_majordomo.client import (
        BrokerLostError,
        CallCancelledError,
        CallError,
        CallOptions,
        CallTimedOutError,
        Client,
        ClosedError,
        NoBrokerError,
        RemoteError,
        Reply,
        Request,
        Stage,
        Stream,
        TooManyError,
        UnavailableError,
        Worker,
        WorkerError,
        WorkerLostError,
    )

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


def __getattr__(name: str) -> Any:
    """Import the client when it is used: a broker that loads the plugin, and `scale0 --help`, have no need of it."""
    if name in __all__:
        from scale0_majordomo import client

        return vars(client)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
