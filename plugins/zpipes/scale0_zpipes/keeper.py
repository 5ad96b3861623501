"""Pipes on disk: what is told to the journal, and what it tells at the start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import cast

from scale0_core.api import Effect, Job, JobResult, get_logger
from scale0_zpipes.answers import Answering
from scale0_zpipes.journal import Acked, Journal, Record, Recovered, Removed
from scale0_zpipes.pipe import Log, Pipe
from scale0_zpipes.stock import Stock

LOG = get_logger("plugin.zpipes")

NAMELESS = b""
"""What the journal calls the nameless reader, which it keeps like a group."""

REMOVALS_WAIT = 0.05
"""Seconds until the disk is told of chunks that were read: nobody waits for that, so many share one write."""


class Keeper:
    """Stands between the pipes and the journal. Without a journal no pipe is kept."""

    def __init__(self, stock: Stock, patterns: Iterable[str], journal: Journal | None) -> None:
        self._stock = stock
        names = "|".join(map(translate, patterns))
        self._durable = re.compile(names) if names and journal is not None else None
        self._journal = journal
        self.recovering = journal is not None
        """Whether the pipes on disk are not known yet."""
        self._asked = False
        self._broken: BaseException | None = None
        self._removals: dict[Pipe, list[int]] = {}
        self._passed: dict[Pipe, int] = {}
        self._epoch = 0
        self._committer = Committer(journal) if journal is not None else None
        self.due = 0.0 if self.recovering else float("inf")
        """When there is something to do; infinity when there is not."""

    def keeps(self, name: bytes) -> bool:
        """Tell whether a pipe of that name is kept on disk."""
        return self._durable is not None and bool(self._durable.fullmatch(name.decode("latin-1")))

    def on_deadline(self, now: float) -> list[Effect]:
        """Begin to read the journal, or tell it what was read."""
        if self.recovering and not self._asked:
            self._asked = True
            self.due = float("inf")
            return [Job("journal", _open, self._journal)]
        return self.tell([]) if self.due <= now else []

    def removed(self, pipe: Pipe, number: int, now: float) -> None:
        """Note that a chunk is no more; the disk is told soon."""
        self._removals.setdefault(pipe, []).append(number)
        self.due = min(self.due, now + REMOVALS_WAIT)

    def passed(self, pipe: Pipe, number: int, now: float) -> None:
        """Note that the nameless reader is done with all up to this number, though a group may not be."""
        self._passed[pipe] = number
        self.due = min(self.due, now + REMOVALS_WAIT)

    def forget(self, pipe: Pipe) -> None:
        """Forget what the disk was to be told of a pipe."""
        self._removals.pop(pipe, None)
        self._passed.pop(pipe, None)

    def tell(self, records: list[Record], answer: Answering | None = None) -> list[Effect]:
        """Have records written, and with them what was removed meanwhile; ``answer`` is called when they are safe."""
        records += [Removed(pipe.name, numbers) for pipe, numbers in self._removals.items()]
        records += [Acked(pipe.name, NAMELESS, number) for pipe, number in self._passed.items()]
        self._removals, self._passed = {}, {}
        self.due = float("inf")
        if self._committer is None or not (records or answer):
            return []
        if self._broken is not None:
            return list(answer(JobResult(None, error=self._broken), 0.0)) if answer is not None else []
        return [
            Job("journal", self._committer.commit, (self._epoch, records), token=(self._epoch, answer), grouped=True)
        ]

    def done(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take what the disk says, and answer."""
        epoch, answer = result.token
        if result.error is not None:
            self._epoch = max(self._epoch, epoch + 1)
        if answer is not None:
            return cast("Answering", answer)(result, now)
        if result.error is not None:
            LOG.error("the disk was not told what was read; it may come again", error=str(result.error))
        return ()

    def recovered(self, result: JobResult, now: float) -> None:
        """Take over the pipes that were found on disk."""
        self.recovering = False
        if result.error is not None:
            self._broken = result.error
            LOG.error("the pipes on disk cannot be read; durable pipes refuse to be written", error=str(result.error))
            return
        found: Recovered = result.value
        for problem in found.problems:
            LOG.warning("a file of the durable pipes was not whole", problem=problem)
        for name, state in found.pipes.items():
            pipe = self._stock.pipes[name] = Pipe(name, now)
            pipe.written = pipe.recovered = state.next_number - 1
            pipe.producers = dict(state.writers) or None
            log = pipe.log = Log(state.chunks[0][0] if state.chunks else state.next_number, kept=True)
            log.chunks = dict(state.chunks)
            log.last = pipe.written
            log.purged = state.purged
            log.groups = dict(state.groups)
            passed = log.groups.pop(NAMELESS, None)
            log.floor = min(log.groups.values(), default=0)
            pipe.was_read = passed is not None
            log.open = pipe.was_read or not log.groups
            log.passed = passed or 0
            log.taken = {number for number in log.chunks if number <= log.passed}
            if log.open:
                pipe.comes_first(number for number in log.chunks if number not in log.taken)
            pipe.gone_before = pipe.written - len(log.chunks)
            self._stock.account(pipe, len(log.chunks), sum(map(len, log.chunks.values())))
        if found.pipes:
            chunks, size = self._stock.depth, self._stock.bytes
            LOG.info("durable pipes are back", pipes=len(found.pipes), chunks=chunks, bytes=size)


class Committer:
    """Writes to the journal, on its thread. When a write fails, those that were under way by then fail as well.

    Otherwise the second of two writes might be kept and the first not.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._failed = -1
        """All up to this epoch fail."""

    def commit(self, groups: Sequence[tuple[int, list[Record]]]) -> list[Exception | None]:
        """Write several lots of records at once; give for each None, or why it was not written."""
        good = [records for epoch, records in groups if epoch > self._failed]
        outcomes = iter(self._journal.commit(good)) if good else iter(())
        results = [
            next(outcomes) if epoch > self._failed else OSError("a write before this one failed") for epoch, _ in groups
        ]
        if any(results):
            self._failed = max(epoch for epoch, _ in groups)
        return results


def _open(journal: Journal) -> Recovered:
    return journal.open()
