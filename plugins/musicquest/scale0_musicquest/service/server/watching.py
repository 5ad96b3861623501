"""The folder is looked at again and again, so that songs may come and go while the server runs."""

from __future__ import annotations

from collections.abc import Callable

from scale0_core.api import Effect, Job, JobResult, get_logger
from scale0_musicquest.service.server.shelf import Scan, Shelf
from scale0_musicquest.songs import Song

LOG = get_logger("plugin.musicquest-server")

REST = 20
"""How many times as long as a look at the folder took nothing is done afterwards."""

SHORTEST_REST = 1.0
"""Seconds between two looks at the least, whoever says that something is not as it was."""

Changed = Callable[[list[Song], list[str]], None]


class Watch:
    """Looks at one folder, in jobs. ``changed`` is told what has come and what has gone."""

    def __init__(self, shelf: Shelf, rescan: float, changed: Changed) -> None:
        self._shelf = shelf
        self._rescan = rescan
        self._changed = changed
        self.due = 0.0
        self._rested = 0.0
        self.complete = False
        """Whether all that is there has been looked at."""
        self._problem = ""

    def on_deadline(self, now: float) -> list[Effect]:
        """Look at the folder if it is time."""
        if self.due > now:
            return []
        self.due = float("inf")
        return [Job(("scan", id(self)), _scan, self._shelf, token=self._scanned)]

    def soon(self, now: float) -> None:
        """Look again, at once or after a rest: something is not as it was."""
        if self.due != float("inf"):
            self.due = min(self.due, max(now, self._rested))

    def _scanned(self, result: JobResult, now: float) -> list[Effect]:
        if result.error is not None:
            self.due = now + self._rescan
            if self._problem != str(result.error):
                self._problem = str(result.error)
                LOG.error("the folder with the songs cannot be read", error=self._problem)
            return []
        self._problem = ""
        scan: Scan = result.value
        for problem in scan.problems:
            LOG.warning("a file is not served", problem=problem)
        if scan.added or scan.removed:
            self._changed(scan.added, scan.removed)
        self.complete = scan.complete
        self._rested = now + max(SHORTEST_REST, REST * scan.seconds)
        # what is not complete goes on at once: a large new song is read in parts
        self.due = now + (max(self._rescan, REST * scan.seconds) if scan.complete else 0.001)
        return []


def _scan(shelf: Shelf) -> Scan:
    return shelf.scan()
