"""From what a user says to a session: names, addresses, numbers that must make sense."""

# does I/O: draws the writer's id

from __future__ import annotations

import secrets
from random import Random
from typing import Literal

from scale0_core.client.kit.route import Broker, target
from scale0_zpipes.client.sessions import BATCH_BYTES, BATCH_CHUNKS, WINDOW, ReaderSession, WriterSession

Start = Literal["first", "next"] | int
TIMEOUT = 30.0
MAX_NAME = 255
MAX_LEASE = 86_400


def name_of(name: str | bytes, what: str = "the name of a pipe") -> bytes:
    """Give a name as bytes."""
    found = name.encode() if isinstance(name, str) else bytes(name)
    if not 1 <= len(found) <= MAX_NAME:
        raise ValueError(f"{what} has 1 to {MAX_NAME} bytes, not {len(found)}")
    return found


def writer_session(
    name: str | bytes, *, broker: Broker, timeout: float, batch_bytes: int = BATCH_BYTES,
    batch_chunks: int = BATCH_CHUNKS, window: int = WINDOW, delay: float = 0.05,
) -> WriterSession:  # fmt: skip
    """Make the session of a writer."""
    if min(batch_bytes, batch_chunks, window) < 1 or delay < 0:
        raise ValueError("a batch has at least one byte and one chunk, a window at least one place")
    return WriterSession(
        name_of(name), target(broker, "zpipes", "pipes"), writer=secrets.token_hex(16).encode(), patience=timeout,
        random=Random(), batch_bytes=batch_bytes, batch_chunks=batch_chunks, window=window, delay=delay,  # noqa: S311
    )  # fmt: skip


def reader_session(
    name: str | bytes, *, broker: Broker, timeout: float, group: str | bytes | None, start: Start,
    lease: float | None, auto_ack: bool | None, batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS,
) -> ReaderSession:  # fmt: skip
    """Make the session of a reader; a group acknowledges when it is told to, the pipe's own reader by itself."""
    if min(batch_bytes, batch_chunks) < 1:
        raise ValueError("a batch has at least one byte and one chunk")
    if isinstance(start, str) and start not in ("first", "next"):
        raise ValueError(f"a group starts at 'first', 'next' or a number: {start!r}")
    own = group is None
    if lease is not None and (own or not 0.001 <= lease <= MAX_LEASE):
        raise ValueError(f"a lease is of a group, and has 0.001 to {MAX_LEASE} seconds: {lease}")
    return ReaderSession(
        name_of(name), target(broker, "zpipes", "pipes"), patience=timeout, random=Random(),  # noqa: S311
        group=b"" if group is None else name_of(group, "the name of a group"), start=str(start).encode(),
        lease=lease, auto_ack=own if auto_ack is None else auto_ack, batch_bytes=batch_bytes, batch_chunks=batch_chunks,
    )  # fmt: skip


def as_chunk(data: bytes | bytearray | memoryview) -> bytes:
    """Give bytes that nobody changes while they are on their way."""
    return data if type(data) is bytes else bytes(memoryview(data))
