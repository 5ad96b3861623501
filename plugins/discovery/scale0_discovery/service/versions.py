"""Ranges of versions, such as ``>=1.2,<2``.

A version is numbers with dots, as in ``1.10.2``; what is missing counts as 0. What follows after a ``-`` or a letter
makes it a pre-release: ``2.0-rc.1`` and ``2.0rc1`` come before ``2.0``. What follows a ``+`` does not count.

A pre-release is in a range only when the range names one too, so that ``<2`` does not give ``2.0-rc.1``. A text that
does not begin with a number is no version: it is found only word for word, as in ``==nightly``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

LONGEST_RANGE = 256
MOST_CONDITIONS = 16

_VERSION = re.compile(
    r"v?([0-9]+(?:\.[0-9]+)*)"
    r"(?:-([0-9A-Za-z][0-9A-Za-z._-]*)|[_.]?([A-Za-z][0-9A-Za-z._-]*))?"
    r"(?:\+.*)?"
)
_CONDITION = re.compile(r"\s*(==|!=|>=|<=|>|<)?\s*([^\s,<>=!]+)\s*")
_PART = re.compile(r"[0-9]+|[A-Za-z]+")

Version: TypeAlias = tuple[tuple[int, ...], int, tuple[tuple[int, int, str], ...]]
"""Numbers, 0 for a pre-release and 1 for a release, and the parts of the pre-release. Compared as it is."""


@lru_cache(maxsize=4096)
def parse(text: str) -> Version | None:
    """Read a version; None when the text is none."""
    found = _VERSION.fullmatch(text) if len(text) <= LONGEST_RANGE else None
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    suffix = found[2] or found[3] or ""
    return (tuple(numbers), 0 if suffix else 1, tuple(map(_part, _PART.findall(suffix))))


def _part(text: str) -> tuple[int, int, str]:
    # as in semantic versioning: numbers are compared as such, and come before words
    return (0, int(text), "") if text.isdigit() else (1, 0, text.lower())


class RangeError(ValueError):
    """A text that is not a range of versions."""


class VersionRange:
    """What a version must fulfil: all of a few comparisons."""

    def __init__(self, text: str) -> None:
        pieces = text.split(",")
        if len(text) > LONGEST_RANGE or len(pieces) > MOST_CONDITIONS:
            raise RangeError(f"a range has at most {MOST_CONDITIONS} conditions and {LONGEST_RANGE} characters")
        self._conditions = [_condition(piece) for piece in pieces]
        self._pre_releases = any(version is not None and not version[1] for _, _, version in self._conditions)

    def __contains__(self, text: str) -> bool:
        version = parse(text)
        if version is not None and not version[1] and not self._pre_releases:
            return False
        return all(_fulfils(text, version, *condition) for condition in self._conditions)


def _condition(text: str) -> tuple[str, str, Version | None]:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise RangeError("a range is written like >=1.2,<2")
    sign, wanted = found[1] or "==", found[2]
    version = parse(wanted)
    if version is None and sign not in ("==", "!="):
        raise RangeError("only versions can be compared by size, such as >=1.2")
    return sign, wanted, version


def _fulfils(text: str, version: Version | None, sign: str, wanted: str, limit: Version | None) -> bool:
    if version is None or limit is None:
        # not comparable: the same text, or another one
        return (text == wanted) == (sign == "==") and sign in ("==", "!=")
    if sign == "==":
        return version == limit
    if sign == "!=":
        return version != limit
    if sign == ">=":
        return version >= limit
    if sign == "<=":
        return version <= limit
    return version > limit if sign == ">" else version < limit
