"""Frames as tests like to write them, as sockets deliver them, and as people like to read them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from scale0_core.service import Frames

Text: TypeAlias = str | bytes
"""A frame as a test may write it: text is encoded as UTF-8."""

LONGEST_SHOWN = 60
MOST_SHOWN = 12


def as_frames(frames: Iterable[Text]) -> Frames:
    """Make a message of frames given as text or bytes."""
    return tuple(frame.encode() if isinstance(frame, str) else frame for frame in frames)


def as_delivered(frames: Frames, blob_over: int | None) -> Frames:
    """Turn large frames into blobs, as the core does for an endpoint with ``blob_over``."""
    if blob_over is None or all(len(frame) <= blob_over for frame in frames):
        return frames
    # an array can do what a blob can (len, bytes, memoryview), and not what only bytes can (decode, split, ==)
    return tuple(cast("bytes", array("B", bytes(f))) if len(f) > blob_over else f for f in frames)


def show_frames(frames: Sequence[object]) -> str:
    """Write a message for people: long frames and long messages are cut, and say how long they were."""
    shown = [_show_frame(frame) for frame in frames[:MOST_SHOWN]]
    if len(frames) > MOST_SHOWN:
        shown.append(f"... {len(frames)} frames")
    return "(" + ", ".join(shown) + ")"


def _show_frame(frame: object) -> str:
    if frame is ...:
        return "..."
    if not isinstance(frame, bytes) or len(frame) <= LONGEST_SHOWN:
        return repr(frame)
    return f"{frame[:LONGEST_SHOWN]!r}... {len(frame)} bytes"
