"""Reading pipes: as a stream, with acknowledgement, and as a batch, which leaves the pipe as it is."""

# does I/O: it talks to a broker

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from scale0_spark.zpipes.errors import DataLossError, RefusedError
from scale0_spark.zpipes.options import Options
from scale0_spark.zpipes.payloads import events_in, gone
from scale0_spark.zpipes.ranges import Bounds, Offset, Offsets, cut, from_json, shares, to_json
from scale0_spark.zpipes.wire import Pipes, PipeState

LOG = logging.getLogger(__name__)

MOST_TRIES = 3
"""How often a part is tried again without getting on."""

LEASE_MS = 120_000
"""How long the broker keeps the group of a batch query that does not read: longer than a task waits for its turn."""


class Range(InputPartition):
    """The part of a pipe that one task reads."""

    def __init__(self, pipe: str, group: str, start: int, end: int) -> None:
        super().__init__(None)
        self.pipe, self.group, self.start, self.end = pipe, group, start, end


class PipeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of what is written to pipes.

    A group of the broker keeps all that is not yet committed, so that it can be read again. An offset has the number of
    the next chunk of each pipe, and the mark by which the broker tells a pipe from others of the same name.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pipes = Pipes(options.broker, options.timeout)
        self._target: Offsets | None = None
        """Where a query that reads what is available now ends."""
        self._begun: Offsets = {}
        """Where pipes begin of which the checkpoint knows nothing yet."""

    # --- in the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Say where a query without a checkpoint begins; the group is made."""
        return to_json({pipe: self._beginning(pipe) for pipe in self._options.pipes})

    def _beginning(self, pipe: str, *, again: bool = False) -> Offset:
        """Make the group of a pipe, and the pipe itself if nobody has, and give the first number to read.

        `again` is for a batch that was planned before a crash: its group has kept the place at which it began.
        """
        options = self._options
        state = self._pipes.state(pipe)
        is_known = state is not None and options.group in state.groups
        link = self._pipes.link(pipe) if state is None else None
        try:
            first = self._pipes.make_group(pipe, options.group, options.starting)
        except RefusedError as error:
            if error.code == 410:
                raise self._lost(f"pipe {pipe} cannot be read from chunk {options.starting}", str(error)) from None
            raise
        if link is not None:
            self._pipes.unlink(pipe, link)  # from now on it is there for the group's sake
        state = self._state(pipe)
        wanted = first
        if is_known and isinstance(options.starting, int):
            wanted = options.starting
        elif is_known and options.starting == "next" and not again:
            wanted = state.next
        if wanted < first:
            raise self._lost(
                f"pipe {pipe} cannot be read from chunk {wanted}",
                f"the group {options.group} has acknowledged all before {first}",
            )
        return Offset(wanted, state.made)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Say how many rows a batch may have."""
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say how far the next batch goes."""
        begin = self._begin(start)
        latest = self._latest(begin)
        target = self._target or latest
        ends = {pipe: max(begin[pipe].next, min(latest[pipe].next, target[pipe].next)) for pipe in begin}
        if isinstance(limit, ReadMaxRows):
            rows = shares({pipe: ends[pipe] - begin[pipe].next for pipe in begin}, limit.max_rows)
            ends = {pipe: begin[pipe].next + rows[pipe] for pipe in begin}
        return to_json({pipe: Offset(ends[pipe], latest[pipe].made) for pipe in begin})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is available now."""
        states = {pipe: self._pipes.state(pipe) for pipe in self._options.pipes}
        self._target = {
            pipe: Offset(state.next, state.made) if state else Offset(1, 0) for pipe, state in states.items()
        }

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Say how far the pipes go, so that the lag is seen."""
        states = {pipe: self._pipes.state(pipe) for pipe in self._options.pipes}
        return to_json({pipe: Offset(state.next, state.made) for pipe, state in states.items() if state})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut what a batch reads into parts for tasks."""
        options = self._options
        kept, until = self._known(start), self._known(end)
        # a batch that comes again after a crash knows nothing of pipes that were added since: the next one has them
        return [
            Range(pipe, options.group, *part)
            for pipe, offset in until.items()
            for part in cut(
                (kept.get(pipe) or self._begun_at(pipe, again=True)).next,
                offset.next,
                options.partitions,
                options.rows_per_partition,
            )
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Let the broker remove what Spark will not ask for again."""
        for pipe, offset in from_json(end).items():
            if offset.next > 1 and pipe in self._options.pipes:
                try:
                    self._pipes.acknowledge(pipe, self._options.group, offset.next - 1)
                except RefusedError as error:
                    if error.code not in (400, 404):
                        raise
                    raise self._made_anew(pipe, offset, str(error)) from None

    def stop(self) -> None:
        """Close the socket."""
        self._pipes.close()

    def _begin(self, start: dict[str, Any]) -> Offsets:
        """Say where a batch begins; a pipe that is new among the options begins at its beginning."""
        kept = self._known(start)
        return {pipe: kept.get(pipe) or self._begun_at(pipe) for pipe in self._options.pipes}

    def _begun_at(self, pipe: str, *, again: bool = False) -> Offset:
        """Say where a pipe begins of which the checkpoint knows nothing: each time the same, though it grows."""
        if pipe not in self._begun:
            self._begun[pipe] = self._beginning(pipe, again=again)
        return self._begun[pipe]

    def _known(self, kept: dict[str, Any]) -> Offsets:
        """Take offsets from the checkpoint; all are of pipes that this query reads."""
        offsets = from_json(kept)
        unknown = sorted(set(offsets) - set(self._options.pipes))
        if unknown:
            raise self._lost(
                f"the checkpoint is about {', '.join(unknown)}", "which is not among the pipes of this query any more"
            )
        return offsets

    def _latest(self, begin: Offsets) -> Offsets:
        latest = {}
        for pipe, offset in begin.items():
            state = self._state(pipe, offset)
            if state.made != offset.made and not self._is_same(state, offset):
                raise self._made_anew(pipe, offset, "another pipe has its name now")
            latest[pipe] = Offset(state.next, state.made)
        return latest

    def _is_same(self, state: PipeState, offset: Offset) -> bool:
        """Tell whether a pipe with another mark is the one that was read: durable, at a broker that was restarted."""
        group = state.groups.get(self._options.group)
        return state.durable and group is not None and group <= offset.next <= state.next

    def _state(self, pipe: str, offset: Offset | None = None) -> PipeState:
        state = self._pipes.state(pipe)
        if state is None:
            raise self._made_anew(pipe, offset, "there is no such pipe any more")
        return state

    def _made_anew(self, pipe: str, offset: Offset | None, why: str) -> DataLossError:
        place = f" which was read up to before chunk {offset.next}," if offset is not None else ""
        return self._lost(f"pipe {pipe},{place} is gone", why)

    @staticmethod
    def _lost(what: str, why: str) -> DataLossError:
        remedy = "begin anew with another checkpoint and another group; durable pipes survive their broker"
        return DataLossError(what, why, "the query cannot go on from its checkpoint", remedy)

    # --- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        assert isinstance(partition, Range)
        with Pipes(self._options.broker, self._options.timeout) as pipes:
            yield from in_payload(_rows(pipes, partition, self._options), self._options)


def _rows(pipes: Pipes, part: Range, options: Options, lease_ms: int = 0) -> Iterator[pa.RecordBatch]:
    """Read a part of a pipe; what is gone is an error, unless the user has said that it is none.

    Gone is what the broker says is gone. Numbers that are missing in between were never used, or the nameless reader
    took them before the group came.
    """
    start, tries = part.start, 0
    while start < part.end:
        before = start
        try:
            for _, start, batch in pipes.rows(part.pipe, part.group, start, part.end):  # noqa: B007, B020 (an error comes after it)
                yield batch
        except (RefusedError, DataLossError) as error:
            there = _after_loss(pipes, part, start, error, lease_ms)
            if there > start and options.fail_on_data_loss:
                raise _gone(part, str(error)) from None
            if there > start:
                upto = min(there, part.end)
                LOG.warning("chunks %d to %d of pipe %s are gone, and left out", start, upto - 1, part.pipe)
                if options.mark_skipped:
                    yield gone(part.pipe, start, upto)
            tries = 0 if max(start, there) > before else tries + 1
            if tries >= MOST_TRIES:
                raise
            start = max(start, there)


def _after_loss(pipes: Pipes, part: Range, start: int, error: RefusedError | DataLossError, lease_ms: int) -> int:
    """Say where to go on: at the same number if nothing is lost, behind the part if there is nothing left of it."""
    code = error.code if isinstance(error, RefusedError) else 404
    if code not in (404, 410):
        raise error
    if code == 404 and lease_ms and pipes.state(part.pipe) is not None:
        # the task waited for its turn longer than the group was kept
        return _hold(pipes, part.pipe, part.group, start, lease_ms)
    state = pipes.state(part.pipe)
    group = state.groups.get(part.group) if state is not None else None
    if state is None or group is None or state.next < part.end:
        return part.end
    return max(state.first, group)


def _hold(pipes: Pipes, pipe: str, group: str, start: int, lease_ms: int) -> int:
    """Let the broker keep chunks for a while; give the number of the first that it keeps."""
    try:
        return pipes.make_group(pipe, group, start, lease_ms)
    except RefusedError as error:
        if error.code != 410:
            raise
        return pipes.make_group(pipe, group, "first", lease_ms)


def _gone(part: Range, why: str) -> DataLossError:
    return DataLossError(
        f"chunks {part.start} to {part.end - 1} of pipe {part.pipe} cannot all be read", why, "the query was stopped",
        "go on without them with failOnDataLoss false, or begin anew with another checkpoint and group",
    )  # fmt: skip


def in_payload(batches: Iterable[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    """Give chunks as they are, or the events in them."""
    for batch in batches:
        if options.payload == "chunks":
            yield batch
        else:
            yield from events_in(batch, skip_bad=not options.fail_on_data_loss, mark=options.mark_skipped)


class PipeReader(DataSourceReader):
    """What is in pipes now. Nothing is removed; filters on the sequence decide what is fetched."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take filters on the sequence; give back those that Spark still has to apply."""
        for each in filters:
            narrowed = _bounds(each, self._bounds)
            if narrowed is not None:
                self._bounds = narrowed
            if narrowed is None or isinstance(each, In):
                yield each

    def partitions(self) -> Sequence[InputPartition]:
        """Hold on to what is there, and cut it into parts."""
        options = self._options
        parts: list[InputPartition] = []
        with Pipes(options.broker, options.timeout) as pipes:
            for pipe in options.pipes:
                state = pipes.state(pipe)
                if state is None:
                    raise DataLossError(f"there is no pipe {pipe} at {options.broker}", "", "", "write to it first")
                first = options.starting if isinstance(options.starting, int) else state.first
                wanted = self._bounds.within(state.next if options.starting == "next" else first, state.next)
                if wanted.start >= wanted.end:
                    continue
                group = f"spark-batch-{secrets.token_hex(8)}"
                # others may have read the pipe since we looked: what is held now is what is read
                start = max(wanted.start, _hold(pipes, pipe, group, wanted.start, LEASE_MS))
                ranges = cut(start, wanted.end, options.partitions, options.rows_per_partition)
                parts += [Range(pipe, group, *each) for each in ranges]
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        if isinstance(partition, Range):  # Spark makes a part of its own when there is none
            with Pipes(self._options.broker, self._options.timeout) as pipes:
                yield from in_payload(_rows(pipes, partition, self._options, LEASE_MS), self._options)
        else:
            yield from ()


def _bounds(wanted: Filter, bounds: Bounds) -> Bounds | None:
    """Narrow bounds by a filter; None if it is not about the sequence."""
    match wanted:
        case EqualTo(attribute=("sequence",), value=int(value)):
            return bounds.within(value, value + 1)
        case GreaterThan(attribute=("sequence",), value=int(value)):
            return bounds.within(value + 1, bounds.end)
        case GreaterThanOrEqual(attribute=("sequence",), value=int(value)):
            return bounds.within(value, bounds.end)
        case LessThan(attribute=("sequence",), value=int(value)):
            return bounds.within(bounds.start, value)
        case LessThanOrEqual(attribute=("sequence",), value=int(value)):
            return bounds.within(bounds.start, value + 1)
        case In(attribute=("sequence",), value=values) if values and all(isinstance(each, int) for each in values):
            return bounds.within(min(values), max(values) + 1)
    return None
