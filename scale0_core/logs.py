"""Structured logging: an event and its fields, as key=value for people or as JSON, to stderr.

Bytes that came from a peer are escaped and cut before they reach a terminal or a file.
"""

from __future__ import annotations

import json
import logging
from typing import Any

ROOT = "scale0"
LONGEST_VALUE = 200

TRACE_FIELD = "trace"
"""The one field that may hold several lines; shown below the line for people."""


class Logger:
    """A logger whose calls take an event and fields: ``log.info("peer joined", identity=b"x")``."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        """Log what only a developer wants to see."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log what an operator wants to see in normal life."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log what an operator should look at some time."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log what an operator should look at now."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"fields": fields})


def get_logger(name: str = "") -> Logger:
    """Give the logger of a part of Scale0, such as ``plugin.echo``."""
    return Logger(logging.getLogger(f"{ROOT}.{name}" if name else ROOT))


def printable(value: object, longest: int = LONGEST_VALUE) -> str:
    """Make any value safe to print: bytes as text where they are text, hex otherwise; control characters escaped; cut."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = _printable_bytes(bytes(value[: longest + 1]))
    text = str(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: longest + 1])
    return text if len(text) <= longest else text[:longest] + "…"


def _printable_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() else "0x" + value.hex()


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Turn a record into a line, with a traceback below it where there is one."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = [
            self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            f"{record.levelname.lower():7}",
            record.name,
            printable(record.getMessage(), 1000),
            *(f"{key}={_quoted(value)}" for key, value in fields.items() if key != TRACE_FIELD),
        ]
        trace = fields.get(TRACE_FIELD) or (self.formatException(record.exc_info) if record.exc_info else "")
        return " ".join(line) + (f"\n{trace.rstrip()}" if trace else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Turn a record into a JSON object."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        entry: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry.update((key, value if key == TRACE_FIELD else _plain(value)) for key, value in fields.items())
        if record.exc_info:
            entry[TRACE_FIELD] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=printable)


def _quoted(value: object) -> str:
    text = printable(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | list | tuple | dict) or value is None else printable(value)
