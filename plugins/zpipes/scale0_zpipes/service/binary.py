"""The messages of the binary dialect, zbroker's ZPIPES, as bytes.

A message is one frame. It begins with two bytes of signature and the number of the message; those three bytes together
are its *kind* here, and a message without a body is nothing but its kind. What follows depends on the kind:

===========================================================  ==================================================
kind                                                         body
===========================================================  ==================================================
`INPUT`, `OUTPUT`                                            the name of a pipe: 1 byte of length and the bytes
`READ`                                                       size and timeout: 4 bytes each
`WRITE`                                                      a chunk, and a timeout of 4 bytes
`READ_OK`                                                    a chunk: 4 bytes of length and the bytes
`INPUT_FAILED`, `OUTPUT_FAILED`, `READ_FAILED`,              a reason: 1 byte of length and the bytes
`WRITE_FAILED`, `CLOSE_FAILED`
all others                                                   none
===========================================================  ==================================================

Integers are unsigned and big endian. Timeouts are milliseconds, and 0 is for ever. Bytes after a complete message are
ignored, as the reference does.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

SIGNATURE = b"\xaa\xa0"

INPUT = SIGNATURE + b"\x01"
INPUT_OK = SIGNATURE + b"\x02"
INPUT_FAILED = SIGNATURE + b"\x03"
OUTPUT = SIGNATURE + b"\x04"
OUTPUT_OK = SIGNATURE + b"\x05"
OUTPUT_FAILED = SIGNATURE + b"\x06"
READ = SIGNATURE + b"\x07"
READ_OK = SIGNATURE + b"\x08"
READ_END = SIGNATURE + b"\x09"
READ_TIMEOUT = SIGNATURE + b"\x0a"
READ_FAILED = SIGNATURE + b"\x0b"
WRITE = SIGNATURE + b"\x0c"
WRITE_OK = SIGNATURE + b"\x0d"
WRITE_TIMEOUT = SIGNATURE + b"\x0e"
WRITE_FAILED = SIGNATURE + b"\x0f"
CLOSE = SIGNATURE + b"\x10"
CLOSE_OK = SIGNATURE + b"\x11"
CLOSE_FAILED = SIGNATURE + b"\x12"
PING = SIGNATURE + b"\x13"
PING_OK = SIGNATURE + b"\x14"
INVALID = SIGNATURE + b"\x15"

NAMES = {
    INPUT: "INPUT", INPUT_OK: "INPUT_OK", INPUT_FAILED: "INPUT_FAILED",
    OUTPUT: "OUTPUT", OUTPUT_OK: "OUTPUT_OK", OUTPUT_FAILED: "OUTPUT_FAILED",
    READ: "READ", READ_OK: "READ_OK", READ_END: "READ_END", READ_TIMEOUT: "READ_TIMEOUT", READ_FAILED: "READ_FAILED",
    WRITE: "WRITE", WRITE_OK: "WRITE_OK", WRITE_TIMEOUT: "WRITE_TIMEOUT", WRITE_FAILED: "WRITE_FAILED",
    CLOSE: "CLOSE", CLOSE_OK: "CLOSE_OK", CLOSE_FAILED: "CLOSE_FAILED",
    PING: "PING", PING_OK: "PING_OK", INVALID: "INVALID",
}  # fmt: skip
"""All kinds of message, by what people call them."""

REQUESTS = (INPUT, OUTPUT, READ, WRITE, CLOSE, PING)
"""What a client may send."""

FIELDS = Struct(">3sII")
"""The kind and two integers: all of a READ, and as many bytes as the shortest WRITE has."""

CHUNK = Struct(">3sI")
"""What comes before the bytes of a chunk."""

TIMEOUT = Struct(">I")

MOST = 2**32 - 1
"""The largest size, timeout, or length of a chunk."""

LONGEST_NAME = 255

_WITH_STRING = frozenset({INPUT, OUTPUT, INPUT_FAILED, OUTPUT_FAILED, READ_FAILED, WRITE_FAILED, CLOSE_FAILED})
_BARE = frozenset(NAMES) - _WITH_STRING - {READ, READ_OK, WRITE}


class Message(NamedTuple):
    """A message that was read: ``body`` is its name, its reason or its chunk."""

    kind: bytes
    body: bytes = b""
    size: int = 0
    timeout: int = 0


def decode(frame: bytes) -> Message | None:
    """Read a message of either side; None when it is not one."""
    kind = frame[:3]
    if kind in _BARE:
        return Message(kind)
    if kind == READ:
        return Message(kind, b"", *FIELDS.unpack_from(frame)[1:]) if len(frame) >= FIELDS.size else None
    if kind == WRITE:
        return _write(frame)
    if kind == READ_OK:
        end = _end_of_chunk(frame)
        return Message(kind, frame[CHUNK.size : end]) if end <= len(frame) else None
    if kind in _WITH_STRING and len(frame) > 3 and len(frame) >= (end := 4 + frame[3]):
        return Message(kind, frame[4:end])
    return None


def _write(frame: bytes) -> Message | None:
    end = _end_of_chunk(frame)
    if end + TIMEOUT.size > len(frame):
        return None
    return Message(WRITE, frame[CHUNK.size : end], 0, TIMEOUT.unpack_from(frame, end)[0])


def _end_of_chunk(frame: bytes) -> int:
    return CHUNK.size + CHUNK.unpack_from(frame)[1] if len(frame) >= CHUNK.size else MOST + CHUNK.size


FAILED = {kind: b"%b\0" % kind for kind in (INPUT_FAILED, OUTPUT_FAILED, READ_FAILED, WRITE_FAILED, CLOSE_FAILED)}
"""Failures without a reason."""

REPLIES = (INVALID, PING_OK, INPUT_OK, OUTPUT_OK, WRITE_OK, CLOSE_OK, READ_END, READ_TIMEOUT, *FAILED.values())
"""Replies that are the same objects each time, so that a chunk of the same bytes is not taken for one."""


def with_string(kind: bytes, text: bytes = b"") -> bytes:
    """Write a message that has a name or a reason; ValueError when it is longer than 255 bytes."""
    if not text and kind in FAILED:
        return FAILED[kind]
    if len(text) > LONGEST_NAME:
        raise ValueError(f"a string has at most {LONGEST_NAME} bytes, not {len(text)}")
    return b"%b%c%b" % (kind, len(text), text)


def read(size: int, timeout: int = 0) -> bytes:
    """Write a READ; ValueError when a number does not fit."""
    _check(size, timeout)
    return FIELDS.pack(READ, size, timeout)


def read_ok(chunk: bytes) -> bytes:
    """Write a READ_OK; ValueError when the chunk is too large."""
    _check(len(chunk))
    return CHUNK.pack(READ_OK, len(chunk)) + chunk


def write(chunk: bytes, timeout: int = 0) -> bytes:
    """Write a WRITE; ValueError when a number does not fit."""
    _check(len(chunk), timeout)
    return b"".join((CHUNK.pack(WRITE, len(chunk)), chunk, TIMEOUT.pack(timeout)))


def encode(message: Message) -> bytes:
    """Write any message; what ``decode`` gave becomes the same bytes again."""
    if message.kind == READ:
        return read(message.size, message.timeout)
    if message.kind == WRITE:
        return write(message.body, message.timeout)
    if message.kind == READ_OK:
        return read_ok(message.body)
    return with_string(message.kind, message.body) if message.kind in _WITH_STRING else message.kind


def _check(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= MOST:
            raise ValueError(f"sizes and timeouts are between 0 and {MOST}, not {number}")
