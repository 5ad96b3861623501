"""Pipes on disk: what is told to the journal, and what it tells at the start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from itertools import count
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import cast

from scale0_core.api import Backoff, Effect, Job, JobResult, get_logger
from scale0_core.api import journal as journals
from scale0_zpipes.service.answers import Answering
from scale0_zpipes.service.contents import Recovered
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipe import Log, Pipe
from scale0_zpipes.service.records import Acked, Record, Removed
from scale0_zpipes.service.stock import Stock

LOG = get_logger("plugin.zpipes")

NAMELESS = b""
"""What the journal calls the nameless reader, which it keeps like a group."""

REMOVALS_WAIT = 0.005
"""Seconds until the disk is told of chunks that were read, unless something else is written before: many share one
write, and if the broker is killed meanwhile they come again."""

FIRST_REST, LONGEST_REST = 0.05, 1.0
"""Seconds until a disk that refused what frees space is asked again; doubled each time."""

COMPLAIN_EVERY = 60.0
"""Seconds between two lines in the log about a disk that refuses."""

CALM = 1.0
"""Seconds after such a line before the log may say that the disk takes writes again."""

NEVER = float("inf")
NEVER_WRITTEN = (StructError, OverflowError)
"""Errors of records that no disk would take."""


class Keeper:
    """Stands between the pipes and the journal. Without a journal no pipe is kept.

    Two kinds of records go to the disk. Chunks are refused to their writers if the disk refuses them (``store``). All
    others free space or say how far readers are (``tell``): they are kept and repeated until the disk has taken them,
    in order, and until then no chunk is stored.
    """

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
        self._serials = count(1)
        self._told: dict[int, list[Record]] = {}
        """What frees space and is under way, oldest first."""
        self._behind: list[Record] = []
        """What frees space and was refused."""
        self._refused: BaseException | None = None
        """Why what frees space was refused; None when it was not, or was taken since."""
        self._retry_at = NEVER
        self._backoff = Backoff(FIRST_REST, LONGEST_REST)
        self._stopping = False
        self._complaints = {True: Complaints("what was read"), False: Complaints("chunks")}
        """By whether it frees space."""
        self._committer = journals.Committer(journal) if journal is not None else None
        self.due = 0.0 if self.recovering else NEVER
        """When there is something to do; infinity when there is not."""

    def keeps(self, name: bytes) -> bool:
        """Tell whether a pipe of that name is kept on disk."""
        return self._durable is not None and bool(self._durable.fullmatch(name.decode("latin-1")))

    def on_deadline(self, now: float) -> list[Effect]:
        """Begin to read the journal, or tell it what was read."""
        if self.recovering and not self._asked:
            self._asked = True
            self.due = NEVER
            return [Job("journal", _open, self._journal)]
        if self._retry_at <= now:
            return self._retry()
        return self.tell([]) if self.due <= now else []

    def on_stop(self) -> list[Effect]:
        """Tell the disk what it does not know yet."""
        self._stopping = True
        return [*self._retry(), *self.tell([])]

    def removed(self, pipe: Pipe, number: int, now: float) -> None:
        """Note that a chunk is no more; the disk is told soon."""
        self._removals.setdefault(pipe, []).append(number)
        self._tell_soon(now)

    def passed(self, pipe: Pipe, number: int, now: float) -> None:
        """Note that the nameless reader is done with all up to this number, though a group may not be."""
        self._passed[pipe] = number
        self._tell_soon(now)

    def forget(self, pipe: Pipe) -> None:
        """Forget what the disk was to be told of a pipe."""
        self._removals.pop(pipe, None)
        self._passed.pop(pipe, None)

    def store(self, records: list[Record], answer: Answering) -> list[Effect]:
        """Have chunks written; ``answer`` is called when they, and all that was told before, are safe or refused."""
        refused = self._broken or self._refused
        if refused is not None:
            return list(answer(JobResult(None, error=refused), 0.0))
        before = self.tell([]) if self._removals or self._passed else ()
        return [*before, self._job(records, 0, answer)]

    def tell(self, records: list[Record], answer: Answering | None = None) -> list[Effect]:
        """Have records written that are none of chunks, and with them what was removed meanwhile.

        ``answer`` is called when they are safe, or were refused; then they are repeated.
        """
        records += [Removed(pipe.name, numbers) for pipe, numbers in self._removals.items()]
        records += [Acked(pipe.name, NAMELESS, number) for pipe, number in self._passed.items()]
        self._removals, self._passed = {}, {}
        self.due = self._retry_at
        if self._committer is None or not (records or answer):
            return []
        refused = self._broken or (self._refused if self._behind else None)
        if refused is not None:
            self._behind += records if self._broken is None else ()
            return list(answer(JobResult(None, error=refused), 0.0)) if answer is not None else []
        serial = next(self._serials)
        self._told[serial] = records
        return [self._job(records, serial, answer)]

    def _job(self, records: list[Record], serial: int, answer: Answering | None) -> Job:
        assert self._committer is not None
        told = journals.Told(self._epoch, bool(serial), records)
        return Job("journal", self._committer.commit, told, token=(self._epoch, serial, answer), grouped=True)

    def _tell_soon(self, now: float) -> None:
        self.due = min(self.due, now + REMOVALS_WAIT)

    def _retry(self) -> list[Effect]:
        """Tell the disk again what it refused."""
        self._retry_at = NEVER
        behind, self._behind = self._behind, []
        return self.tell(_joined(behind)) if behind else []

    def done(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take what the disk says, and answer."""
        epoch, serial, answer = result.token
        complaints = self._complaints[bool(serial)]
        if result.error is None:
            self._told.pop(serial, None)
            if serial and not self._behind:
                self._refused = None
                self._backoff.reset()
            complaints.no_more(now)
        else:
            self._epoch = max(self._epoch, epoch + 1)
            if serial in self._told:
                self._keep_for_later(serial, result.error, now)
            complaints.note(result.error, now)
        return cast("Answering", answer)(result, now) if answer is not None else ()

    def _keep_for_later(self, serial: int, error: BaseException, now: float) -> None:
        """Keep what frees space and was refused; with it all that was told since, which is refused as well."""
        if self._stopping or isinstance(error, NEVER_WRITTEN):
            LOG.error("durable pipes: disk was not told what was read; it may come again", error=str(error))
            del self._told[serial]
            return
        self._behind = [record for records in self._told.values() for record in records]
        self._told.clear()
        self._refused = error
        self._retry_at = now + self._backoff.next()
        self.due = min(self.due, self._retry_at)

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
            pipe.lost = state.lost
            if state.lost:
                LOG.error("durable pipes: chunks lost to a damaged file", pipe=name, chunks=state.lost)
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


class Complaints:
    """Says in the log that the disk refuses: at once, then now and then, and when it does so no more."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._next = float("-inf")

    def note(self, error: BaseException, now: float) -> None:
        """Note that the disk refused."""
        self._count += 1
        if now >= self._next:
            self._next = now + COMPLAIN_EVERY
            LOG.error("durable pipes: disk refuses", what=self._what, error=str(error), refused=self._count)

    def no_more(self, now: float) -> None:
        """Note that the disk took something; a disk that does so by turns is not told about each time."""
        if self._count and now >= self._next - COMPLAIN_EVERY + CALM:
            LOG.info("durable pipes: disk takes writes again", what=self._what, refused=self._count)
            self._count = 0


def _joined(records: Sequence[Record]) -> list[Record]:
    """Make one record of all numbers that were removed from a pipe in a row of such records, which may be many."""
    joined: list[Record] = []
    removed: dict[bytes, list[int]] = {}
    for record in records:
        if isinstance(record, Removed):
            if record.pipe not in removed:
                removed[record.pipe] = []
                joined.append(Removed(record.pipe, removed[record.pipe]))
            removed[record.pipe] += record.numbers
        else:
            removed.clear()
            joined.append(record)
    return joined


def _open(journal: Journal) -> Recovered:
    return journal.open()
