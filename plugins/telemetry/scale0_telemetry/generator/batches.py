"""Generated events as record batches, in order of time and a bounded number at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from scale0_core.api import events
from scale0_telemetry.generator.columns import DRAWS, KINDS, MAKERS, Coded, Columns, Day, Numbers, Rows, make_day
from scale0_telemetry.generator.plan import DAY_US, MINUTE_US, MINUTES, Plan, parts_of
from scale0_telemetry.generator.schedule import Scheduled, schedule_of
from scale0_telemetry.generator.world import World, make_world
from scale0_telemetry.schema import FILE_SCHEMA, TIMESTAMP

PART_ROWS = 1_000_000
"""Events that are made at once."""
ALL_KINDS = (*KINDS, "join", "leave", "config_change", "song_replica")
TELLERS = {
    "pipe_write": "zpipes", "pipe_read": "zpipes", "song_search": "musicquest-server",
    "song_download": "musicquest-server", "song_replica": "musicquest-server",
    "config_change": "scale0", "load": "telemetry",
}  # fmt: skip
"""The service that tells of a kind whose events name no other."""


@attrs.frozen(eq=False)
class Batch:
    """Events of one kind, day and start of a broker, in order."""

    kind: str
    day: int
    broker: str
    epoch: int
    rows: Any


@attrs.frozen(eq=False)
class Part:
    """Events of a stretch of time; what is ``delayed`` comes after the next part: late events, and duplicates."""

    batches: tuple[Batch, ...]
    delayed: tuple[Batch, ...]
    late: int
    copies: int


def parts(plan: Plan) -> Iterator[Part]:
    """Make all events of a plan, a part at a time."""
    maker = _Maker(plan)
    for number in range(plan.days):
        yield from maker.day(number)


@attrs.frozen(eq=False)
class _Ids:
    """What all events of a part have: the day, and for each of them broker, epoch, number and time."""

    day: int
    names: tuple[str, ...]
    brokers: np.ndarray
    epochs: np.ndarray
    seqs: np.ndarray
    ts: np.ndarray


@attrs.frozen(eq=False)
class _Table:
    """The events of one kind: their places in the part, and what they tell."""

    kind: str
    places: np.ndarray
    columns: Columns


def _columns_of(kind: str, scheduled: list[Scheduled]) -> Rows:
    """Give the columns of scheduled events."""
    mine = [event for event in scheduled if event.kind == kind]
    columns: dict[str, Coded | Numbers] = {}
    for name in mine[0].fields:
        values = [event.fields[name] for event in mine]
        missing = np.array([value is None for value in values])
        if any(isinstance(value, str) for value in values):
            words, codes = np.unique(values, return_inverse=True)
            columns[name] = Coded(codes, words.tolist())
        else:
            columns[name] = Numbers(np.array([value or 0 for value in values]), missing)
    return np.array([event.broker for event in mine], dtype=np.uint8), columns


def _batches(ids: _Ids, table: _Table, rows: np.ndarray) -> Iterator[Batch]:
    """Give the chosen rows of a table, which are in order of brokers, one batch for each start of a broker."""
    if not len(rows):
        return
    places = table.places[rows]
    brokers, epochs = ids.brokers[places], ids.epochs[places]
    batch = _record_batch(ids, table, rows)
    edges = np.flatnonzero((np.diff(brokers) != 0) | (np.diff(epochs) != 0)) + 1
    for first, last in zip([0, *edges], [*edges, len(rows)], strict=True):
        broker, epoch = ids.names[brokers[first]], int(epochs[first])
        yield Batch(table.kind, ids.day, broker, epoch, batch.slice(first, last - first))


def _record_batch(ids: _Ids, table: _Table, rows: np.ndarray) -> Any:
    places, count = table.places[rows], len(rows)
    known: dict[str, Any] = {
        "v": pa.repeat(pa.scalar(events.VERSION, pa.int16()), count),
        "broker": Coded(ids.brokers[places], ids.names).arrow(),
        "epoch": pa.array(ids.epochs[places]),
        "seq": pa.array(ids.seqs[places]),
        "ts": pa.array(ids.ts[places]).cast(TIMESTAMP),
        "weight": pa.repeat(1.0, count),
    }
    if table.kind in TELLERS:
        known["service"] = pa.repeat(TELLERS[table.kind], count)
    known.update((name, column.at(rows).arrow()) for name, column in table.columns.items())
    arrays = [known[field.name] if field.name in known else pa.nulls(count, field.type) for field in FILE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


class _Maker:
    """Makes one part after the other; knows how many events each broker has told of."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._world: World = make_world(plan)
        self._schedule = schedule_of(self._world)
        self._times = np.array([event.ts for event in self._schedule], dtype=np.int64)
        weights = np.array([self._world.intensity(day).sum() for day in range(plan.days)])
        self._rows = parts_of(plan.originals - len(self._schedule), weights)
        self._told = {(broker, epoch): 0 for broker, starts in enumerate(self._world.epochs) for epoch in starts}
        self._made = 0

    def day(self, number: int) -> Iterator[Part]:
        day = make_day(self._world, number)
        count = max(1, -(-int(self._rows[number]) // PART_ROWS))
        edges = np.concatenate([[0.0], np.cumsum(day.intensity)])
        edges /= edges[-1]
        clock = day.midnight + np.arange(MINUTES + 1) * float(MINUTE_US)
        for part, rows in enumerate(parts_of(int(self._rows[number]), np.ones(count))):
            chance = self._plan.chance(5, number, part)
            ends = np.interp([part / count, (part + 1) / count], edges, clock).astype(np.int64)
            ends[0] = ends[0] if part else day.midnight
            ends[1] = ends[1] if part < count - 1 else day.midnight + DAY_US
            gaps = np.cumsum(chance.standard_exponential(int(rows) + 1))
            ts = np.interp((part + gaps[:-1] / gaps[-1]) / count, edges, clock).astype(np.int64)
            first, last = np.searchsorted(self._times, ends)
            yield self._part(day, ts, self._schedule[first:last], chance)

    def _part(self, day: Day, ts: np.ndarray, scheduled: list[Scheduled], chance: np.random.Generator) -> Part:
        """Make the events of the given times, and those that were scheduled."""
        hour = (ts - day.midnight) // (60 * MINUTE_US)
        kinds = day.kinds[hour, chance.integers(0, DRAWS, len(ts), dtype=np.uint16)]
        if scheduled:
            where = np.searchsorted(ts, [event.ts for event in scheduled])
            ts = np.insert(ts, where, [event.ts for event in scheduled])
            kinds = np.insert(kinds, where, [ALL_KINDS.index(event.kind) for event in scheduled])
        brokers = np.empty(len(ts), dtype=np.uint8)
        tables: list[_Table] = []
        for code, kind in enumerate(ALL_KINDS):
            places = np.flatnonzero(kinds == code)
            if len(places):
                make = MAKERS.get(kind)
                made = make(day, kind, ts[places], chance) if make else _columns_of(kind, scheduled)
                brokers[places], columns = made
                tables.append(_Table(kind, places, columns))
        self._wake(brokers, ts)
        epochs, seqs = self._number(brokers, ts)
        return self._assemble(_Ids(day.number, self._world.brokers, brokers, epochs, seqs, ts), tables, chance)

    def _assemble(self, ids: _Ids, tables: list[_Table], chance: np.random.Generator) -> Part:
        """Put the rows into batches, some of them later than they happened, and some of them twice."""
        count = len(ids.ts)
        late = chance.random(count, dtype=np.float32) < self._plan.late if self._plan.late else np.zeros(count, bool)
        extra = np.zeros(count, dtype=np.int8)
        copies = self._copies(count)
        if copies:
            extra[chance.choice(count, copies, replace=False, shuffle=False)] = 1
        punctual: list[Batch] = []
        delayed: list[Batch] = []
        for table in tables:
            order = np.argsort(ids.brokers[table.places], kind="stable")
            places = table.places[order]
            punctual += _batches(ids, table, order[~late[places]])
            if late.any() or copies:
                delayed += _batches(ids, table, np.repeat(order, late[places] + extra[places]))
        return Part(tuple(punctual), tuple(delayed), int(late.sum()), copies)

    def _copies(self, count: int) -> int:
        """Give how many of the next events come twice, such that there are as many in all as planned."""
        before, self._made = self._made, self._made + count
        originals, copies = self._plan.originals, self._plan.copies
        return self._made * copies // originals - before * copies // originals

    def _wake(self, brokers: np.ndarray, ts: np.ndarray) -> None:
        """Let the next broker tell of what happened while one was down."""
        for down in self._world.downs() if len(self._world.brokers) > 1 else ():
            some = brokers[np.searchsorted(ts, down.start) : np.searchsorted(ts, down.end)]
            some[some == down.whom] = (down.whom + 1) % len(self._world.brokers)

    def _number(self, brokers: np.ndarray, ts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give each event the start of its broker, and its number since then."""
        epochs, seqs = np.empty(len(ts), dtype=np.int64), np.empty(len(ts), dtype=np.int64)
        for broker, starts in enumerate(self._world.epochs):
            places = np.flatnonzero(brokers == broker)
            cuts = [0, *np.searchsorted(ts[places], starts[1:]), len(places)]
            for epoch, first, last in zip(starts, cuts[:-1], cuts[1:], strict=True):
                some, told = places[first:last], self._told[broker, epoch]
                epochs[some] = epoch
                seqs[some] = np.arange(told + 1, told + 1 + len(some))
                self._told[broker, epoch] = told + len(some)
        return epochs, seqs
