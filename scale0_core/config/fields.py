"""How a field of a settings class is made: a default, a help text, a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
from attrs import validators

T = TypeVar("T")


def setting(default: T, help: str, *, validator: Callable[..., Any] | None = None) -> T:  # noqa: A002
    """Make a field of a settings class: a default, a help text that the command line and the docs show, a check."""
    return attrs.field(default=default, metadata={"help": help}, validator=validator)


LARGEST = 2**31 - 1
"""No number is larger: ZeroMQ and the operating system take 32 bits."""

at_least_1 = validators.and_(validators.ge(1), validators.le(LARGEST))
not_negative = validators.and_(validators.ge(0), validators.le(LARGEST))
