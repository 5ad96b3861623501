"""The envelope of a message on a ROUTER socket: what stands before the request, and before its answer as well."""

from __future__ import annotations

from collections.abc import Sequence

from scale0_core.service import Frames


def body_at(frames: Sequence[bytes], routed: int = 1) -> int:
    """Return where the body begins: behind the routing id, and the empty frame that a REQ socket puts there."""
    return routed + 1 if len(frames) > routed and not len(frames[routed]) else routed


def split_envelope(frames: Frames) -> tuple[Frames, Frames]:
    """Split a message into its envelope and its body."""
    start = body_at(frames)
    return frames[:start], frames[start:]
