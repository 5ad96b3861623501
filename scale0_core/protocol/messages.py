"""Messages of the Scale0 protocol as frames.

::

    message   = [ delimiter ] header command options *body
    delimiter = an empty frame, there when the sender is a REQ socket
    header    = "S0C01" (frontend dialog) / "S0W01" (backend dialog) / "S0P01" (peer dialog)
    command   = a word in ASCII capitals
    options   = one JSON object in UTF-8; an empty frame stands for {}
    body      = opaque frames; TASK, TASKREPLY and CANCEL begin it with the service and the task's id

Bytes from outside are only ever read here and in ``options.py``; whatever is wrong with them is a ``MalformedError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs

from scale0_core.parts import records
from scale0_core.parts.envelopes import body_at
from scale0_core.protocol.codes import Code
from scale0_core.service import KIB, Frames

FRONTEND = b"S0C01"
BACKEND = b"S0W01"
PEER = b"S0P01"
HEADERS = frozenset((FRONTEND, BACKEND, PEER))

CHECKCONFIG = b"CHECKCONFIG"
CONFIGACK = b"CONFIGACK"
CONFIG = b"CONFIG"
READY = b"READY"
READYOK = b"READYOK"
HEARTBEAT = b"HEARTBEAT"
PING = b"PING"
PONG = b"PONG"
TASK = b"TASK"
TASKREPLY = b"TASKREPLY"
CANCEL = b"CANCEL"
NEEDBROKER = b"NEEDBROKER"
CHANGEBROKER = b"CHANGEBROKER"
MANAGEMENTREQ = b"MANAGEMENTREQ"
MANAGEMENTREP = b"MANAGEMENTREP"
FORCENEGOTIATE = b"FORCENEGOTIATE"
ERROR = b"ERROR"
DISCONNECTERROR = b"DISCONNECTERROR"
DISCONNECT = b"DISCONNECT"

LONGEST_OPTIONS = 64 * KIB
LONGEST_REMEMBERED = 40
"""Options that come again and again are short; those with a time in them are longer, and never come again."""
MOST_FRAMES = 32
LONGEST_IDENTITY = 255

Options = Mapping[str, Any]
NO_OPTIONS: Options = MappingProxyType({})


class MalformedError(Exception):
    """A message that does not follow the protocol; ``code`` and ``reason`` go back to whoever sent it."""

    def __init__(self, reason: str, code: Code = Code.MALFORMED) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@attrs.define
class Message:
    """A message that was read: the frames of its envelope, and what it says."""

    envelope: Frames
    header: bytes
    command: bytes
    options: Options
    body: Frames


def read_message(frames: Frames, *, routed: bool = True) -> Message:
    """Read the frames of a message; ``routed`` when a ROUTER put a routing id in front."""
    if len(frames) > MOST_FRAMES:
        raise MalformedError(f"a message has at most {MOST_FRAMES} frames", Code.TOO_LARGE)
    start = body_at(frames, 1 if routed else 0)
    envelope, parts = frames[:start], frames[start:]
    if len(parts) < 2:
        raise MalformedError("a message has a header, a command and options")
    if not is_header(parts[0]):
        raise MalformedError("the header is S0C01, S0W01 or S0P01")
    options = read_options(parts[2]) if len(parts) > 2 else NO_OPTIONS
    return Message(envelope, bytes(parts[0]), bytes(parts[1]), options, parts[3:])


def is_header(frame: bytes) -> bool:
    """Tell whether a frame names a dialog; a frame of another length may be a blob, which no set takes."""
    return len(frame) == len(FRONTEND) and frame in HEADERS


def read_options(frame: bytes) -> Options:
    """Read an options frame; the same bytes give the same object, which nobody may change."""
    if not frame:
        return NO_OPTIONS
    if len(frame) > LONGEST_OPTIONS:
        raise MalformedError(f"options have at most {LONGEST_OPTIONS} bytes", Code.TOO_LARGE)
    return _read_short(frame) if len(frame) <= LONGEST_REMEMBERED else _read_json(bytes(frame))


@lru_cache(maxsize=1024)
def _read_short(frame: bytes) -> Options:
    # most options come again and again: {"timeout": 5000}, {"more": true}
    return _read_json(frame)


def _read_json(frame: bytes) -> Options:
    try:
        return MappingProxyType(records.object_from(frame))
    except records.MalformedError:
        raise MalformedError("options are one JSON object in UTF-8") from None


# made once: json.dumps makes a new one on every call that has options
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def write_options(options: Options | None = None, **more: object) -> bytes:
    """Write options as a frame; those that are None are left out."""
    both = {**(options or {}), **more}
    kept = {key: value for key, value in both.items() if value is not None}
    return _ENCODER.encode(kept).encode() if kept else b""


# most heartbeats say the time and the version, and nothing else: they are read and answered without JSON's machinery
_HEARTBEAT = re.compile(
    rb'\{"time": ?((?:0|[1-9][0-9]{0,10})(?:\.[0-9]{1,18})?), ?"config_version": ?([0-9]|[1-9][0-9]{1,14})\}'
)
HEARTBEAT_ANSWER = b'{"time":%.6f,"config_version":%d,"reply_to":%b}'


def read_heartbeat(frame: bytes) -> tuple[float, int, bytes] | None:
    """Read the options of an ordinary heartbeat: its time, its version, and the time as it was written."""
    found = _HEARTBEAT.fullmatch(frame)
    if found is None:
        return None
    time, version = found.groups()
    return float(time), int(version), time
