"""Reading single options: each function gives a value of the right kind, a default, or a MalformedError."""

from __future__ import annotations

from typing import Any

from scale0_core.protocol.messages import LONGEST_IDENTITY, MalformedError, Options

MOST_SERVICES = 256
LONGEST_SERVICE = 255
LONGEST_INTERVAL_MS = 24 * 3600 * 1000
LARGEST_VERSION = 2**53

Version = int | str
"""Versions are whole numbers that grow; text is compared for equality only."""


def identity(options: Options) -> str:
    """Read the logical name of a client."""
    value = options.get("identity")
    if not isinstance(value, str) or not value or len(value.encode("utf-8", "replace")) > LONGEST_IDENTITY:
        raise MalformedError(f"identity is a text of 1 to {LONGEST_IDENTITY} bytes")
    return value


def services(options: Options) -> tuple[str, ...]:
    """Read a list of services, each once; a text with commas is a list too."""
    value = options.get("services")
    if value is None:
        return ()
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or len(names) > MOST_SERVICES or not all(map(_is_service, names)):
        raise MalformedError(f"services is a list of at most {MOST_SERVICES} names of 1 to {LONGEST_SERVICE} bytes")
    return tuple(dict.fromkeys(names))


def _is_service(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name.encode("utf-8", "replace")) <= LONGEST_SERVICE


def interval(options: Options, name: str = "hbeatinterval") -> float | None:
    """Read milliseconds and give seconds; None when it is not there."""
    value = options.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LONGEST_INTERVAL_MS:
        raise MalformedError(f"{name} is a whole number of milliseconds, at most a day")
    return value / 1000


def time(options: Options) -> float | None:
    """Read the sender's time: seconds since 1970; None when it is not there."""
    value = options.get("time")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise MalformedError("time is a number of seconds since 1970")
    return float(value)


def version(options: Options) -> Version | None:
    """Read the version of the configuration that the sender has; None when it has none."""
    value = options.get("config_version")
    if value is None or (isinstance(value, str) and len(value) <= 64):
        return value or None
    if type(value) is int and 0 <= value <= LARGEST_VERSION:
        return value
    raise MalformedError("config_version is a whole number or a short text")


def flag(options: Options, name: str, default: bool = False) -> bool:
    """Read true or false."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise MalformedError(f"{name} is true or false")
    return value


def whole(options: Options, name: str, default: int, least: int, most: int) -> int:
    """Read a whole number within bounds."""
    value = options.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise MalformedError(f"{name} is a whole number from {least} to {most}")
    return value


def text(options: Options, name: str, default: str = "", longest: int = 1024) -> str:
    """Read a text."""
    value = options.get(name, default)
    if not isinstance(value, str) or len(value) > longest:
        raise MalformedError(f"{name} is a text of at most {longest} characters")
    return value


def texts(options: Options, name: str, most: int = 256) -> tuple[str, ...]:
    """Read a list of texts."""
    value = options.get(name, [])
    if not isinstance(value, list) or len(value) > most or not all(isinstance(entry, str) for entry in value):
        raise MalformedError(f"{name} is a list of at most {most} texts")
    return tuple(value)
