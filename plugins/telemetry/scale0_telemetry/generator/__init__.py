"""Generates events of a network that does not exist: realistic shapes, the same for the same seed.

Used by tests, benchmarks and demos::

    from scale0_telemetry.generator import generate

    generate("events", rows=1_000_000, seed=7)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0_telemetry.generator.writing import Summary

__all__ = ["generate"]


def generate(folder: Path | str, *, rows: int, seed: int = 0, **options: Any) -> Summary:
    """Write generated events into a folder; the same numbers give the same events.

    :param options: ``days``, ``start``, ``brokers``, ``late``, ``duplicates`` as the command has them, ``force``,
        ``append``, and ``progress``, which is called with how far it is.
    """
    from scale0_telemetry.generator.writing import generate as write  # numpy is imported when it is needed

    return write(folder, rows=rows, seed=seed, **options)
