"""Where log lines go: to stderr, written by a thread of its own so that a slow terminal never holds the loop."""

from __future__ import annotations

import atexit
import logging
import logging.handlers
import queue
import sys

from scale0_core.config.settings import LogSettings
from scale0_core.logs import ROOT, JsonFormatter, TextFormatter

LONGEST_QUEUE = 10_000


class _BoundedHandler(logging.handlers.QueueHandler):
    """Puts records on the writer's queue; a line that finds it full is counted and told of later, never waited for."""

    queue: queue.Queue[logging.LogRecord]
    lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # same process: nothing to pickle, and the formatter wants the fields as they are

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.lost:
                record.msg, record.args = f"{record.getMessage()} (after {self.lost} lines that were lost)", ()
            self.queue.put_nowait(record)
            self.lost = 0
        except queue.Full:
            self.lost += 1


class LogOutput:
    """The log of one process, from the moment it is made until ``close``."""

    def __init__(self, settings: LogSettings) -> None:
        writer = logging.StreamHandler(sys.stderr)
        writer.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
        lines: queue.Queue[logging.LogRecord] = queue.Queue(LONGEST_QUEUE)
        self._handler = _BoundedHandler(lines)
        self._listener = logging.handlers.QueueListener(lines, writer)
        self._root = logging.getLogger(ROOT)
        self._root.setLevel(settings.level.upper())
        self._root.propagate = False
        self._root.addHandler(self._handler)
        for plugin, level in settings.levels.items():
            logging.getLogger(f"{ROOT}.plugin.{plugin}").setLevel(level.upper())
        self._listener.start()
        self._open = True
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is left, and stop."""
        if self._open:
            self._open = False
            self._root.removeHandler(self._handler)
            self._listener.stop()
            atexit.unregister(self.close)
