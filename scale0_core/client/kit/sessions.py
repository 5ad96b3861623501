"""What a session must provide, and the limits of its connections. Without I/O, for plugins' sessions too.

A session is a state machine: it says where to connect and what to send, is told what happens, and asks no clock. An
engine runs it and keeps these promises:

- ``start`` comes first, once. Then ``on_linked`` when a connection came about, ``receive`` for each message on it, and
  ``on_unlinked`` when it broke; always in this order, and no message of a connection comes after its ``on_unlinked``.
- To leave a connection and have another, a session increments ``connection`` (and changes ``address``, if it wants
  another place). What it then has in ``out`` is sent on the old connection, as its last words: a session that does not
  want that clears ``out`` first. No message of the old connection comes any more, and no ``on_unlinked``.
- ``address`` is "" while a session rests: there is no connection then. It increments ``connection`` to begin again.
- When a connection breaks, or does not come about, the engine tries again by itself, with backoff: short for local
  addresses, at most a second. What a session puts into ``out`` without a connection is dropped, so it waits for
  ``on_linked``; what it sent on a connection that broke never reaches the next.
- ``on_nobody`` comes when nobody listens at a local address and there was no connection before.
- ``on_deadline`` comes when ``next_deadline`` has come, and after the messages of the same turn.
- ``stop`` ends it: open operations fail, last words go into ``out``, and ``ended`` is True; it may end by itself, too.

``out`` and the list behind it stay the same object: a session appends to it and clears it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import attrs

from scale0_core.service import MIB, Frames


@attrs.frozen
class Limits:
    """Bounds of one connection; 0 for a queue and -1 for a size mean none."""

    max_message: int = MIB
    """Bytes that a frame may have which the peer sends; who sends more is disconnected."""
    send_queue: int = 10_000
    receive_queue: int = 100_000
    """Messages; what the broker cannot deliver here is lost, so there is room."""
    batch: int = 500
    """Messages taken in one turn, so that deadlines and sends have theirs."""
    linger_ms: int = 200
    """What was sent has so long to leave when the link is closed; nothing when the connection broke."""
    zero_copy: bool = False
    """Hand large frames to ZeroMQ without copying them; slower for small ones."""
    views: bool = False
    """Take frames without copying them, as memoryviews; slower for small ones."""
    report_failures: bool = False
    """Call ``on_nobody`` after every attempt to connect that failed, at remote addresses too."""
    reconnect: bool = False
    """Let ZeroMQ connect again by itself: for links without an engine, of requests that may go to a successor."""
    topics: tuple[bytes, ...] | None = None
    """Subscribe to these, in this order: the socket is a SUB; otherwise it is a DEALER."""


class Answer(NamedTuple):
    """How a task of a worker ends: a reply, the end of one in parts, or an error where there is a code."""

    result: Any = None
    """What the handler returned, or a generator at its end."""
    parts: int = -1
    """How many parts were sent before; -1 if it is a reply in one piece."""
    code: int = 0
    message: str = ""
    frames: Frames = ()
    """The result as frames."""


class Payload(tuple[bytes, ...]):
    """A tuple of frames; ``body`` is all of it in one piece, ``text`` the same decoded."""

    @property
    def body(self) -> bytes:
        """All frames, one after the other."""
        return b"".join(self)

    @property
    def text(self) -> str:
        """All frames as text in UTF-8."""
        return self.body.decode()


def frames_of(payload: Any) -> Frames:
    """Make frames of bytes, text, or several of these; None is no frame."""
    if type(payload) is bytes:
        return (payload,)
    if payload is None:
        return ()
    parts = payload if isinstance(payload, tuple | list) else (payload,)
    return tuple([part if type(part) is bytes else _frame(part) for part in parts])


def _frame(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    raise TypeError(f"a payload is bytes, text, a tuple of these, or None, but not {type(part).__name__}")


class Session(Protocol):
    """One side of one connection, without I/O; see above for what the engine promises."""

    connection: int
    out: list[Frames]
    reached: str
    """Which of the targets in ``address`` there is a connection to; the engine sets it before ``on_linked``."""

    @property
    def address(self) -> str:
        """Where to connect, a target or an address (see ``route``); empty for nowhere."""

    @property
    def limits(self) -> Limits:
        """The bounds of its connections; an attribute of the class will do."""

    @property
    def ended(self) -> bool:
        """Whether nothing is to be done any more."""

    def start(self, now: float) -> None:
        """Begin."""

    def on_linked(self, now: float) -> None:
        """Note that there is a connection."""

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone."""

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens at a local address, and that there was no connection so far."""

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""

    def next_deadline(self) -> float | None:
        """Return when something is due, or None."""

    def on_deadline(self, now: float) -> None:
        """Do what is due; nothing may be."""

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End; with what ended it, if that was a failure of the driver. May be called twice."""


class BaseSession:
    """A session that does nothing, for those that need little; without an address it has deadlines only."""

    limits = Limits()

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.connection = 0
        self.ended = False
        self.out: list[Frames] = []
        self.reached = ""

    def start(self, now: float) -> None:
        """Begin."""

    def on_linked(self, now: float) -> None:
        """Note that there is a connection."""

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone."""

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens there."""

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""

    def next_deadline(self) -> float | None:
        """Return when something is due, or None."""
        return None

    def on_deadline(self, now: float) -> None:
        """Do what is due."""

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End."""
        self.ended = True
