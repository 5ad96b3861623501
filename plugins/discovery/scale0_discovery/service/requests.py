"""Reading requests: an optional empty frame, a command, and options as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scale0_core.api import KIB, Frames, records
from scale0_discovery.service.versions import RangeError, VersionRange

SMALL = 64 * KIB
"""Bytes of a request, unless it is ADVISE."""
MOST_ROWS = 10_000
ROWS = 1000
"""Rows in one answer, unless the request says another number."""

Options = Mapping[str, Any]


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def read_options(request: Frames, allowed: frozenset[str]) -> Options:
    """Read the options of a request; those that the command does not have are refused: they are typing errors."""
    if len(request) > 2:
        raise RefusedError(400, "a request has a command and one frame of options")
    if len(request) < 2 or not request[1]:
        return {}
    try:
        options = records.object_from(request[1])
    except records.MalformedError:
        raise RefusedError(400, "options are one JSON object in UTF-8") from None
    unknown = sorted(options.keys() - allowed)
    if unknown:
        known = ", ".join(sorted(allowed)) or "none"
        raise RefusedError(400, f"unknown option {_short(unknown[0])}; there are: {known}")
    return options


def _short(text: str) -> str:
    return ascii(text[:64])


def text(options: Options, name: str) -> str | None:
    """Read a text; None when it is not there."""
    return records.or_none(records.text_of, options, name, most=SMALL)


def texts(options: Options, name: str) -> Mapping[str, str]:
    """Read an object of texts."""
    value = options.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise RefusedError(400, f"{name} is an object of texts")
    return value


def version_range(options: Options, name: str) -> VersionRange | None:
    """Read a range of versions; None when it is not there."""
    value = text(options, name)
    try:
        return None if value is None else VersionRange(value)
    except RangeError as error:
        raise RefusedError(400, f"{name}: {error}") from None


def place(options: Options, name: str) -> tuple[str, str, str] | None:
    """Read where a list is to go on: the ``more`` of the answer before; None when it is not there."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(entry, str) for entry in value):
        raise RefusedError(400, f"{name} is what the answer before had as more")
    return (value[0], value[1], value[2])
