"""What one thread writes to a journal for many, in the order in which they asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from scale0_core.parts.journal.journal import Journal
from scale0_core.parts.journal.segments import R


class Told(NamedTuple, Generic[R]):
    """Records that go to the disk together; those that free space may use its reserve."""

    epoch: int
    frees: bool
    records: list[R]


class Committer(Generic[R]):
    """Writes to the journal, on its thread. When a write fails, those that were under way by then fail as well.

    Otherwise the second of two writes might be kept and the first not. What frees space does not depend on what
    was refused, but all depends on that.
    """

    def __init__(self, journal: Journal[R, Any]) -> None:
        self._journal = journal
        self._failed = self._failed_to_free = -1
        """All up to this epoch fail."""

    def commit(self, lots: Sequence[Told[R]]) -> list[Exception | None]:
        """Write several lots of records at once; give for each None, or why it was not written."""
        outcomes: list[Exception | None] = [
            OSError("a write before this one failed")
            if lot.epoch <= (self._failed_to_free if lot.frees else self._failed)
            else None
            for lot in lots
        ]
        good = [place for place, outcome in enumerate(outcomes) if outcome is None and lots[place].records]
        self._write(self._journal.commit, good, lots, outcomes)
        if any(isinstance(outcomes[place], OSError) for place in good):
            self._write(self._journal.free, [place for place in good if lots[place].frees], lots, outcomes)
        self._note_failures(lots, outcomes)
        return outcomes

    def _write(
        self,
        write: Callable[[Sequence[Sequence[R]]], list[Exception | None]],
        places: list[int],
        lots: Sequence[Told[R]],
        outcomes: list[Exception | None],
    ) -> None:
        if not places:
            return
        try:
            written = write([lots[place].records for place in places])
        except Exception as error:  # nobody thought of it; but what comes after it must fail as well
            written = [error] * len(places)
        for place, outcome in zip(places, written, strict=True):
            outcomes[place] = outcome

    def _note_failures(self, lots: Sequence[Told[R]], outcomes: list[Exception | None]) -> None:
        """Have all fail that come after one that failed; also those without records, which wait for others."""
        for place, (lot, outcome) in enumerate(zip(lots, outcomes, strict=True)):
            if outcome is not None:
                self._failed = max(self._failed, lot.epoch)
                if lot.frees:
                    self._failed_to_free = max(self._failed_to_free, lot.epoch)
            elif not lot.records and lot.epoch <= (self._failed_to_free if lot.frees else self._failed):
                outcomes[place] = OSError("a write before this one failed")
