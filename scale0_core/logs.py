"""Structured logging: an event and its fields, as key=value for people or as JSON, to stderr.

Bytes that came from a peer are escaped and cut before they reach a terminal or a file.
"""

from __future__ import annotations

import codecs
import json
import logging
import math
import traceback
from collections.abc import Mapping
from typing import Any

ROOT = "scale0"
LONGEST_VALUE = 200
LONGEST_LINE = 1000
DEEPEST = 4

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

    def failure(self, event: str, error: BaseException, **fields: object) -> None:
        """Log an error with the traceback of the exception behind it; for code that runs in programs of others.

        Their formatters know nothing of fields, and would not make a traceback safe to print: so all is in the message.
        """
        if self._logger.isEnabledFor(logging.ERROR):
            trace = "".join(traceback.format_exception(error))
            text = " ".join([event, *_shown(fields)]) + _below(trace)
            self._logger.error("%s", text, extra={"fields": {**fields, TRACE_FIELD: trace}, "event": event})

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"fields": fields})


def get_logger(name: str = "") -> Logger:
    """Give the logger of a part of Scale0, such as ``plugin.echo``."""
    return Logger(logging.getLogger(f"{ROOT}.{name}" if name else ROOT))


def printable(value: object, longest: int = LONGEST_VALUE) -> str:
    """Make any value safe to print: bytes as text where they are text, else hex; control characters escaped; cut."""
    try:
        text = _printable_bytes(value, longest) if isinstance(value, bytes | bytearray | memoryview) else str(value)
    except Exception as error:  # the __str__ of somebody else's class, or a number too large to write
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: longest + 1])
    return text if len(text) <= longest else text[:longest] + "…"


def _printable_bytes(value: bytes | bytearray | memoryview, longest: int) -> str:
    start = bytes(value[: 4 * (longest + 1)])  # a character of UTF-8 has up to 4 bytes
    try:
        # a character that the cut has split in two is no fault of the text
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(value))
    except UnicodeDecodeError:
        return "0x" + start[: longest + 1].hex()
    return text if text.isprintable() else "0x" + start[: longest + 1].hex()


def _lines(text: str) -> list[str]:
    """Split a text of several lines, each made safe to print."""
    return [printable(line, LONGEST_LINE) for line in text.rstrip().split("\n")]


def _below(trace: str) -> str:
    """Return a traceback as it stands below a line: indented, so that no line of it can pass for a line of the log."""
    return "".join(f"\n    {part}" for part in _lines(trace))


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Turn a record into a line, with a traceback below it where there is one."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = [
            self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            f"{record.levelname.lower():7}",
            record.name,
            _event(record),
            *_shown(fields),
        ]
        trace = _trace(self, record, fields)
        return " ".join(line) + (_below(trace) if trace else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Turn a record into a JSON object."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        entry: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _event(record),
        }
        for key, value in fields.items():
            # a field of the same name as one of the four does not hide it
            entry[f"{key}_" if key in entry else printable(key)] = _plain(value)
        trace = _trace(self, record, fields)
        if trace:
            entry[TRACE_FIELD] = "\n".join(_lines(trace))
        return json.dumps(entry, ensure_ascii=False, allow_nan=False)


def _event(record: logging.LogRecord) -> str:
    return printable(getattr(record, "event", None) or record.getMessage(), LONGEST_LINE)


def _shown(fields: Mapping[str, object]) -> list[str]:
    return [f"{printable(key)}={_quoted(value)}" for key, value in fields.items() if key != TRACE_FIELD]


def _trace(formatter: logging.Formatter, record: logging.LogRecord, fields: dict[str, Any]) -> str:
    trace = fields.get(TRACE_FIELD)
    if trace is None:
        return formatter.formatException(record.exc_info) if record.exc_info else ""
    return trace if isinstance(trace, str) else printable(trace)


def _quoted(value: object) -> str:
    text = printable(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def _plain(value: object, depth: int = 0) -> object:
    """Give what JSON can hold: numbers and containers as they are, anything else as safe text."""
    if value is None or isinstance(value, bool):
        return value
    if (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {printable(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth < DEEPEST:
        return [_plain(inner, depth + 1) for inner in value]
    return printable(value)
