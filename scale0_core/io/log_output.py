"""Where log lines go: to stderr, written by a thread of its own so that a slow terminal never holds the loop."""

from __future__ import annotations

import atexit
import contextlib
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

from scale0_core.config.settings import LogSettings
from scale0_core.logs import ROOT, JsonFormatter, TextFormatter

LONGEST_QUEUE = 10_000

CLOSE_SECONDS = 2.0
"""How long the end of the process waits for somebody to read the last lines."""


class _BoundedHandler(logging.handlers.QueueHandler):
    """Puts records on the writer's queue; a line that finds it full is counted and told of later, never waited for.

    A simple queue, since a signal handler may log while the same thread is in the middle of logging.
    """

    queue: queue.SimpleQueue[logging.LogRecord | None]
    lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # same process: nothing to pickle, and the formatter wants the fields as they are

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() >= LONGEST_QUEUE:
            self.lost += 1
            return
        if self.lost:
            record.msg, record.args = f"{record.getMessage()} (after {self.lost} lines that were lost)", ()
            record.__dict__.pop("event", None)  # or the words would be shown without this
            self.lost = 0
        self.queue.put(record)


class LogOutput:
    """The log of one process, from the moment it is made until ``close``."""

    def __init__(self, settings: LogSettings) -> None:
        self._formatter = JsonFormatter() if settings.format == "json" else TextFormatter()
        self._put = _writer()
        self._lines: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._handler = _BoundedHandler(cast("Any", self._lines))
        self._root = logging.getLogger(ROOT)
        self._root.setLevel(settings.level.upper())
        self._root.propagate = False
        self._root.addHandler(self._handler)
        for plugin, level in settings.levels.items():
            logging.getLogger(f"{ROOT}.plugin.{plugin}").setLevel(level.upper())
        self._thread = threading.Thread(target=self._write, name="scale0-log", daemon=True)
        self._thread.start()
        self._open = True
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is left, and stop; where nobody reads the lines, give up after a moment."""
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        self._root.removeHandler(self._handler)
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._write_line(record)
        if self._handler.lost:
            what = f"the log ends (after {self._handler.lost} lines that were lost)"
            self._write_line(logging.LogRecord(f"{ROOT}.log", logging.WARNING, __file__, 0, what, (), None))

    def _write_line(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # stderr is closed or its reader gone: there is nowhere to complain
            self._put(self._formatter.format(record) + "\n")


def _writer() -> Callable[[str], object]:
    """Give what writes to stderr.

    Straight to the descriptor: at the end of the process Python takes the locks of its streams and of logging's own
    handlers, which a write that hangs would hold.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError):  # a test has put something else in its place
        return sys.stderr.write

    def write(line: str) -> None:
        left = memoryview(line.encode("utf-8", "backslashreplace"))
        while left:
            left = left[os.write(descriptor, left) :]

    return write
