"""What INFO, LIST and GROUPS say of pipes and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scale0_zpipes.service.pipe import Log, Pipe

ACTIVE = 10.0
"""Seconds for which a pipe that was written to counts as having a writer."""


def pipe_row(pipe: Pipe, max_chunk: int, blocked: int, now: float) -> dict[str, Any]:
    """Describe a pipe, and note that somebody looked at it."""
    log = pipe.log
    written = pipe.written - pipe.recovered
    read = max(0, pipe.written - pipe.depth - pipe.gone_before)
    then, written_then, read_then = pipe.looked or (now, written, read)
    seconds = max(now - then, 0.001)
    rates = (written - written_then) / seconds, (read - read_then) / seconds
    if pipe.looked is None or seconds >= 0.5:
        pipe.looked = (now, written, read)
    return {
        "name": _text(pipe.name),
        "id": pipe.name.hex(),
        "made": pipe.made,
        "chunks": pipe.depth,
        "bytes": pipe.bytes,
        "first": pipe.first,
        "next": pipe.following,
        "links": pipe.links,
        "writers": len(pipe.turns) if pipe.turns else int(bool(pipe.queue) or now - pipe.wrote < ACTIVE),
        "readers": len(pipe.waiting or ()) + (len(log.fetching) if log else 0),
        "blocked": blocked,
        "max_chunk": max_chunk,
        "durable": bool(log and log.kept),
        "lost": pipe.lost,
        "written": written,
        "read": read,
        "write_rate": round(rates[0], 1),
        "read_rate": round(max(0.0, rates[1]), 1),
        "idle": round(max(0.0, now - max(pipe.heard, pipe.wrote)), 3),
        "groups": {_text(group): {"next": upto + 1} for group, upto in log.groups.items()} if log else {},
    }


def group_row(log: Log, group: bytes, chunks: int, size: int) -> dict[str, Any]:
    """Describe a group, for which so much waits."""
    return {
        "name": _text(group),
        "id": group.hex(),
        "next": log.groups[group] + 1,
        "chunks": chunks,
        "bytes": size,
        "lease": log.leases.get(group),
    }


def stream_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a pipe of the binary dialect."""
    return {**row, "name": _text(row["name"]), "id": row["name"].hex()}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
