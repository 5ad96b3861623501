"""Read and write pipes: ``Pipe``; for asyncio, the same names in ``scale0_zpipes.aio``.

::

    with Pipe.open("jobs", "w") as pipe:
        pipe.write(b"hello")
"""

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
from scale0_zpipes.client.sync import Pipe, PipeReader, PipeWriter

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
