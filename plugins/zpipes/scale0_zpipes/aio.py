"""Pipes for programs with asyncio: ``async with Pipe.open("jobs", "w") as pipe: await pipe.write(b"hello")``."""

from __future__ import annotations

from scale0_zpipes.client.aio import Pipe, PipeReader, PipeWriter
from scale0_zpipes.client.errors import (
    PipeBusyError,
    PipeClosedError,
    PipeError,
    PipeFullError,
    PipeGoneError,
    PipeLostError,
    PipeTimeoutError,
    PipeTooLargeError,
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
