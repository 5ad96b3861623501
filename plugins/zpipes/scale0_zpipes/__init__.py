"""Named pipes for Scale0: ``from scale0_zpipes import Pipe``; for asyncio, ``from scale0_zpipes.aio import Pipe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0_zpipes.client import (
        Pipe,
        PipeBusyError,
        PipeClosedError,
        PipeError,
        PipeFullError,
        PipeGoneError,
        PipeLostError,
        PipeReader,
        PipeTimeoutError,
        PipeTooLargeError,
        PipeWriter,
        Stage,
    )

__all__ = [
    "Pipe",
    "PipeBusyError",
    "PipeClosedError",
    "PipeError",
    "PipeFullError",
    "PipeGoneError",
    "PipeLostError",
    "PipeReader",
    "PipeTimeoutError",
    "PipeTooLargeError",
    "PipeWriter",
    "Stage",
]


def __getattr__(name: str) -> Any:
    """Import the client when it is used: a broker that loads the plugin, and `scale0 --help`, have no need of it."""
    if name in __all__:
        from scale0_zpipes import client

        return vars(client)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
