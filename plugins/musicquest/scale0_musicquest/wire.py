"""Messages as frames: the original words, and the extended form behind the header ``ZMQ01``.

An extended message is the header, a word, a tag that its answer repeats, and the rest. A REQ socket puts an empty
frame before its request, which stands before the answer as well. ``split`` takes a message apart; what is wrong with
bytes from outside is found here and in ``songs``.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from scale0_core.api import Frames, records, split_envelope

HEADER = b"ZMQ01"
MAX_TAG = 64
MAX_JSON = 1024 * 1024

OK, ERROR, NOT_FOUND = b"OK", b"ERROR", b"NF"
HELLO, HUGZ, BYE = b"hello", b"hugz", b"bye"
SEARCH, FOUND, STALE = b"search", b"found", b"stale"
STAT, FETCH, DATA = b"stat", b"fetch", b"data"
LIST, TOP, STATS, PLAN, SERVERS = b"list", b"top", b"stats", b"plan", b"servers"
ADD, FULL, REPLICATE = b"add", b"full", b"replicate"
ADVERT = b"adver"

write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
"""Writes JSON as a text; made once, as making it takes longer than writing most messages."""


class Message(NamedTuple):
    """A message on a ROUTER socket, taken apart."""

    envelope: Frames
    """The routing id, and a REQ socket's empty frame: what stands before the answer."""
    extended: bool
    word: bytes
    tag: bytes
    rest: Frames


def split(frames: Frames) -> Message:
    """Take a message of a ROUTER socket apart; a word that is missing is empty."""
    envelope, body = split_envelope(frames)
    if not body:
        return Message(envelope, False, b"", b"", ())
    if bytes(body[0][: len(HEADER) + 1]) != HEADER:
        return Message(envelope, False, short(body[0]), b"", body[1:])
    word = short(body[1]) if len(body) > 1 else b""
    tag = short(body[2]) if len(body) > 2 else b""
    return Message(envelope, True, word, tag, body[3:])


def short(frame: bytes) -> bytes:
    """Give a frame that should be short; empty when it is not."""
    return bytes(frame) if len(frame) <= MAX_TAG else b""


def check_tag(message: Message, frames: Frames) -> None:
    """Refuse a tag that is too long to be repeated: an answer without it could not be told from others."""
    place = len(message.envelope) + 2
    if message.extended and len(frames) > place and len(frames[place]) > MAX_TAG:
        raise records.MalformedError(f"a tag has at most {MAX_TAG} bytes")


def answer(message: Message, word: bytes, *rest: bytes) -> Frames:
    """Write an answer in the extended form."""
    return (*message.envelope, HEADER, word, message.tag, *rest)


def error(message: Message, code: int, reason: str) -> Frames:
    """Write an error, in the form of its question."""
    if message.extended:
        return answer(message, ERROR, b"%d" % code, reason.encode())
    return (*message.envelope, ERROR, reason.encode())


def extended(word: bytes, tag: bytes, *rest: bytes) -> Frames:
    """Write a message in the extended form, for a DEALER socket."""
    return (HEADER, word, tag, *rest)


def to_json(value: object) -> bytes:
    """Write a frame of JSON."""
    return write_json(value).encode()


def from_json(frame: bytes) -> Any:
    """Read a frame of JSON; nothing at all is an empty object."""
    return records.from_json(frame, most=MAX_JSON) if len(frame) else {}


def one_json(message: Message) -> Any:
    """Read the one frame of JSON that a message has; without it, an empty object."""
    if len(message.rest) > 1:
        raise records.MalformedError("one frame of JSON is enough")
    return from_json(message.rest[0]) if message.rest else {}


def number(value: int) -> bytes:
    """Write an offset or a size: eight bytes."""
    return value.to_bytes(8, "big")


def read_number(frame: bytes) -> int:
    """Read an offset or a size."""
    if len(frame) != 8:
        raise records.MalformedError("an offset or a size has eight bytes")
    return int.from_bytes(frame, "big")


def text(frame: bytes, longest: int = 1_000) -> str:
    """Read a text."""
    if len(frame) > longest:
        raise records.MalformedError(f"a text has at most {longest} bytes")
    try:
        return bytes(frame).decode()
    except UnicodeDecodeError as error:
        raise records.MalformedError("a text is UTF-8") from error
