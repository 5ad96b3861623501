"""Records from JSON, read strictly: what is not as it should be is one error, whose text says what is wanted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

MAX_TEXT = 1_000
MAX_ITEMS = 1_000

_Item = TypeVar("_Item")


class MalformedError(ValueError):
    """Data from outside are not what they should be; the text says why."""


def from_json(data: bytes | memoryview | str, *, most: int | None = None) -> Any:
    """Read JSON, of at most so many bytes where the socket or file has no bound.

    It is UTF-8 and has neither NaN, nor infinite numbers, nor halves of characters: all of it can be written again.
    """
    if most is not None and len(data) > most:
        raise MalformedError(f"JSON has at most {most} bytes")
    try:
        # decoded here: json would take UTF-16 as well
        text = data if isinstance(data, str) else bytes(data).decode()
        value = _DECODER.decode(text)
        if _HALVES.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise MalformedError("this is not JSON in UTF-8") from None
    return value


def object_from(data: bytes | memoryview | str, *, most: int | None = None) -> dict[str, Any]:
    """Read a JSON object; no bytes at all are an empty one."""
    return table_of(from_json(data, most=most)) if len(data) else {}


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)  # json.loads makes one on every call
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


# --- what is in it ----------------------------------------------------------------------------------------------------


def table_of(value: object) -> dict[str, Any]:
    """Insist on an object."""
    if not isinstance(value, dict):
        raise MalformedError("an object is needed")
    return value


def text_of(
    table: Mapping[str, Any], key: str, default: str | None = None, *, least: int = 0, most: int = MAX_TEXT
) -> str:
    """Read a text."""
    value = table.get(key, default)
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise MalformedError(f"{key} is a text of {least} to {most} characters")
    return value


def whole_of(
    table: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1
) -> int:
    """Read a whole number."""
    value = table.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise MalformedError(f"{key} is a whole number from {least} to {most}")
    return value


def number_of(table: Mapping[str, Any], key: str, default: float | None = None, *, most: float = 1e15) -> float:
    """Read a number that is not negative."""
    value = table.get(key, default)
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise MalformedError(f"{key} is a number from 0 to {most:g}")
    return float(value)


def flag_of(table: Mapping[str, Any], key: str) -> bool:
    """Read a switch, off when it is not there."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise MalformedError(f"{key} is true or false")
    return value


def list_of(
    table: Mapping[str, Any], key: str, read: Callable[[object], _Item], *, most: int = MAX_ITEMS
) -> list[_Item]:
    """Read a list, empty when it is not there."""
    return items_of(table.get(key, []), read, most=most, what=key)


def items_of(value: object, read: Callable[[object], _Item], *, most: int = MAX_ITEMS, what: str = "it") -> list[_Item]:
    """Read all items of a list."""
    if not isinstance(value, list) or len(value) > most:
        raise MalformedError(f"{what} is a list of at most {most} items")
    return [read(item) for item in value]


def or_none(read: Callable[..., _Item], table: Mapping[str, Any], key: str, **bounds: Any) -> _Item | None:
    """Read with one of these functions what may be null or not there."""
    return None if table.get(key) is None else read(table, key, **bounds)
