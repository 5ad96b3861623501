"""What a song may be called: the name of a file in a folder, and nothing that leads out of it."""

from __future__ import annotations

import re

MAX_NAME_BYTES = 255

_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]").search


def name_fault(name: str) -> str:
    """Say what is wrong with a song's name; nothing when it is fine."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name is valid Unicode"
    if not name:
        return "a name is not empty"
    if size > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes"
    if name.startswith("."):
        return "a name does not begin with a dot"
    if _FORBIDDEN(name):
        return "a name has no separators and no control characters"
    return ""


def read_name(frame: bytes) -> str | None:
    """Read a song's name from a frame; None when no song can be called so."""
    if len(frame) > MAX_NAME_BYTES:
        return None
    try:
        name = bytes(frame).decode()
    except UnicodeDecodeError:
        return None
    return None if name_fault(name) else name
