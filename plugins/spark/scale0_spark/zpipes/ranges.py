"""Offsets of a stream, and ranges of numbers. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from scale0_spark.zpipes.errors import OptionError

LEAST_ROWS = 1000
"""A range is not cut into parts smaller than this: a task costs more than it saves."""


@attrs.frozen
class Offset:
    """How far a pipe was read: the number of the next chunk, and which pipe of that name it was."""

    next: int
    made: float


Offsets = dict[str, Offset]


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Make of offsets what Spark keeps in its checkpoint."""
    return {pipe: {"next": offset.next, "made": offset.made} for pipe, offset in sorted(offsets.items())}


def from_json(kept: Mapping[str, Any]) -> Offsets:
    """Take offsets out of a checkpoint."""
    try:
        return {str(pipe): Offset(int(each["next"]), float(each["made"])) for pipe, each in kept.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OptionError(
            f"the checkpoint holds {str(kept)[:100]}", "that is not an offset of pipes", "",
            "give the query a checkpoint of its own",
        ) from None  # fmt: skip


def shares(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide at most so many rows among pipes: what one does not need the others may have."""
    left, result = most, {}
    for place, (pipe, rows) in enumerate(sorted(available.items(), key=lambda item: (item[1], item[0]))):
        result[pipe] = min(rows, -(-left // (len(available) - place)))
        left -= result[pipe]
    return result


def cut(start: int, end: int, partitions: int, rows_per_partition: int | None) -> Iterator[tuple[int, int]]:
    """Cut a range into parts of about the same size."""
    rows = end - start
    if rows <= 0:
        return
    if rows_per_partition is not None:
        parts = -(-rows // rows_per_partition)
    else:
        parts = max(1, min(partitions, rows // LEAST_ROWS))
    for part in range(parts):
        yield start + rows * part // parts, start + rows * (part + 1) // parts


@attrs.frozen
class Bounds:
    """What filters leave of the numbers of a pipe: from one up to before another."""

    start: int = 0
    end: int = 2**63 - 1

    def within(self, start: int, end: int) -> Bounds:
        """Narrow it down."""
        return Bounds(max(self.start, start), min(self.end, end))
