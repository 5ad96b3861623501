"""The three dialects: MDP 0.1, MDP 0.2, and our own. Frames are read and written here, and nowhere else.

What is read never raises: a message that makes no sense is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from scale0_core.api import Frames, records

MAX_ENVELOPE = 8
"""Frames in front of a header: the routing ids of so many proxies."""

MAX_NAME = 255
MAX_ID = 64
MAX_OPTIONS = 4096
MAX_TIMEOUT_MS = 86_400_000


class Dialect(Enum):
    """Which words a peer uses."""

    MDP01 = "0.1"
    MDP02 = "0.2"
    OWN = "scale0"


class Side(Enum):
    """What a peer is."""

    CLIENT = "client"
    WORKER = "worker"


HEADERS: Mapping[bytes, tuple[Dialect, Side]] = {
    b"MDPC01": (Dialect.MDP01, Side.CLIENT),
    b"MDPW01": (Dialect.MDP01, Side.WORKER),
    b"MDPC02": (Dialect.MDP02, Side.CLIENT),
    b"MDPW02": (Dialect.MDP02, Side.WORKER),
    b"S0MC01": (Dialect.OWN, Side.CLIENT),
    b"S0MW01": (Dialect.OWN, Side.WORKER),
}


class Word(Enum):
    """What a message says, whatever its dialect."""

    REQUEST = "REQUEST"
    CANCEL = "CANCEL"
    READY = "READY"
    PARTIAL = "PARTIAL"
    FINAL = "FINAL"
    ERROR = "ERROR"
    DRAIN = "DRAIN"
    HEARTBEAT = "HEARTBEAT"
    DISCONNECT = "DISCONNECT"


CLIENT_WORDS: Mapping[Dialect, Mapping[bytes, Word]] = {
    Dialect.MDP02: {b"\x01": Word.REQUEST},
    Dialect.OWN: {b"\x01": Word.REQUEST, b"\x05": Word.CANCEL},
}

WORKER_WORDS: Mapping[Dialect, Mapping[bytes, Word]] = {
    Dialect.MDP01: {
        b"\x01": Word.READY, b"\x02": Word.REQUEST, b"\x03": Word.FINAL, b"\x04": Word.HEARTBEAT,
        b"\x05": Word.DISCONNECT,
    },
    Dialect.MDP02: {
        b"\x01": Word.READY, b"\x02": Word.REQUEST, b"\x03": Word.PARTIAL, b"\x04": Word.FINAL, b"\x05": Word.HEARTBEAT,
        b"\x06": Word.DISCONNECT,
    },
    Dialect.OWN: {
        b"\x01": Word.READY, b"\x02": Word.REQUEST, b"\x03": Word.PARTIAL, b"\x04": Word.FINAL, b"\x05": Word.HEARTBEAT,
        b"\x06": Word.DISCONNECT, b"\x07": Word.ERROR, b"\x09": Word.DRAIN,
    },
}  # fmt: skip
"""No table is shared: the numbers move from one version to the next."""


class Said(NamedTuple):
    """A message that was understood. ``envelope`` is all up to the header, and goes in front of every answer."""

    dialect: Dialect
    side: Side
    word: Word
    envelope: Frames
    ident: bytes = b""
    """A client's id of its request, or the address of the request that a worker speaks of."""
    service: bytes = b""
    options: bytes = b""
    body: Frames = ()


def read(frames: Frames) -> Said | None:
    """Read a message as a ROUTER gives it; None when it makes no sense."""
    for place in range(1, min(len(frames), MAX_ENVELOPE + 2)):
        header = frames[place]
        known = HEADERS.get(header) if type(header) is bytes else None
        if known is None:
            continue
        dialect, side = known
        if place > 1 and max(map(len, frames[1:place])) > MAX_NAME:
            return None  # no routing id is as long
        if dialect is Dialect.MDP01 and (place < 2 or len(frames[place - 1])):
            return None  # 0.1 has an empty frame in front of its header
        return (_client if side is Side.CLIENT else _worker)(dialect, frames[: place + 1], frames[place + 1 :])
    return None


def _client(dialect: Dialect, envelope: Frames, rest: Frames) -> Said | None:
    if dialect is Dialect.MDP01:
        word: Word | None = Word.REQUEST
    else:
        word = CLIENT_WORDS[dialect].get(_word(rest))
        rest = rest[1:]
    if word is Word.CANCEL:
        return Said(dialect, Side.CLIENT, word, envelope, bytes(rest[0])) if _is_id(rest) and len(rest) == 1 else None
    ident = options = b""
    if word is not None and dialect is Dialect.OWN:
        if not _is_id(rest) or len(rest) < 3 or len(rest[2]) > MAX_OPTIONS:
            return None
        ident, options = bytes(rest[0]), bytes(rest[2])
        rest = (rest[1], *rest[3:])
    if word is None or len(rest) < 2 or not 1 <= len(rest[0]) <= MAX_NAME:
        return None
    return Said(dialect, Side.CLIENT, word, envelope, ident, bytes(rest[0]), options, rest[1:])


def _worker(dialect: Dialect, envelope: Frames, rest: Frames) -> Said | None:
    word = WORKER_WORDS[dialect].get(_word(rest))
    rest = rest[1:]
    if word is None:
        return None
    if word is Word.READY:
        most = 2 if dialect is Dialect.OWN else 1
        if not 1 <= len(rest) <= most or not 1 <= len(rest[0]) <= MAX_NAME or len(rest[-1]) > MAX_OPTIONS:
            return None
        options = bytes(rest[1]) if len(rest) > 1 else b""
        return Said(dialect, Side.WORKER, word, envelope, b"", bytes(rest[0]), options)
    if word in (Word.PARTIAL, Word.FINAL, Word.ERROR):
        if len(rest) < 3 or not _is_id(rest) or (dialect is not Dialect.OWN and len(rest[1])):
            return None
        if len(rest[1]) > MAX_OPTIONS:
            return None
        return Said(dialect, Side.WORKER, word, envelope, bytes(rest[0]), b"", bytes(rest[1]), rest[2:])
    if word is Word.DRAIN:
        if not all(1 <= len(address) <= MAX_ID for address in rest):
            return None
        return Said(dialect, Side.WORKER, word, envelope, body=tuple(map(bytes, rest)))
    return Said(dialect, Side.WORKER, word, envelope)


def _word(rest: Frames) -> bytes:
    return bytes(rest[0]) if rest and len(rest[0]) == 1 else b""


def _is_id(rest: Frames) -> bool:
    return bool(rest) and 1 <= len(rest[0]) <= MAX_ID


def read_options(text: bytes) -> dict[str, Any] | None:
    """Read options; None when they make no sense."""
    try:
        return records.object_from(text)
    except records.MalformedError:
        return None


def stands_for_nothing(options: bytes) -> bool:
    """Return whether the options of a reply say that its body is none: in MDP each has at least one frame."""
    return b"empty" in options and (read_options(bytes(options)) or {}).get("empty") is True


class Terms(NamedTuple):
    """What a client wants of its request."""

    timeout: float | None = None
    """Seconds."""
    priority: int = 0
    key: bytes = b""
    retry: bool | None = None


@lru_cache(maxsize=1024)
def read_terms(text: bytes) -> Terms | str:
    """Read the options of a request, or say what is wrong with them."""
    options = read_options(text)
    if options is None:
        return "options are a JSON object"
    timeout, priority = options.get("timeout"), options.get("priority", 0)
    key, retry = options.get("key", ""), options.get("retry")
    if not (timeout is None or (type(timeout) in (int, float) and 0 < timeout <= MAX_TIMEOUT_MS)):
        return "timeout is a number of milliseconds, at most a day"
    if type(priority) is not int or abs(priority) > 2**31 or type(key) is not str:
        return "priority is a whole number, and key a text"
    if not (retry is None or type(retry) is bool):
        return "retry is true or false"
    seconds = None if timeout is None else timeout / 1000
    return Terms(seconds, priority, key.encode("utf-8", "surrogatepass"), retry)


# --- what the broker says ---------------------------------------------------------------------------------------------

PARTIAL, FINAL, ERROR = b"\x02", b"\x03", b"\x04"
"""The commands to clients; 0.1 has none of them, and 0.2 has no ERROR."""


def final_head(dialect: Dialect, envelope: Frames, ident: bytes, service: bytes) -> Frames:
    """Give the frames of a final reply up to its options or body."""
    if dialect is Dialect.MDP01:
        return (*envelope, service)
    if dialect is Dialect.MDP02:
        return (*envelope, FINAL, service)
    return (*envelope, FINAL, ident, service)


def final(dialect: Dialect, head: Frames, options: bytes, body: Frames) -> Frames:
    """Write the one reply, or the last one, to a client."""
    return (*head, options, *body) if dialect is Dialect.OWN else (*head, *body)


def partial(dialect: Dialect, head: Frames, options: bytes, body: Frames) -> Frames:
    """Write one of many replies, for a client of which the head of its final reply is known; not for 0.1."""
    if dialect is Dialect.OWN:
        return (*head[:-3], PARTIAL, *head[-2:], options, *body)
    return (*head[:-2], PARTIAL, head[-1], *body)


def error(head: Frames, code: int, reason: str) -> Frames:
    """Write ERROR to a client of our own dialect, of which the head of its final reply is known."""
    return (*head[:-3], ERROR, *head[-2:], b"%d" % code, reason.encode())


def answer(
    dialect: Dialect, envelope: Frames, word: Word, ident: bytes, service: bytes, options: bytes, body: Frames
) -> Frames:
    """Write PARTIAL or FINAL to a client; a 0.1 client knows no PARTIAL."""
    head = final_head(dialect, envelope, ident, service)
    return (partial if word is Word.PARTIAL else final)(dialect, head, options, body)


TO_WORKER: Mapping[Dialect, Mapping[Word, bytes]] = {
    dialect: {word: command for command, word in words.items()} for dialect, words in WORKER_WORDS.items()
}


def worker_head(dialect: Dialect, envelope: Frames) -> Frames:
    """Give the frames in front of a request's address, for a worker."""
    return (*envelope, TO_WORKER[dialect][Word.REQUEST])


def to_worker(dialect: Dialect, envelope: Frames, word: Word) -> Frames:
    """Write HEARTBEAT or DISCONNECT to a worker."""
    return (*envelope, TO_WORKER[dialect][word])


CANCEL = b"\x08"
"""The command by which the broker tells a worker of our own dialect that nobody waits for a reply any more."""
