"""The same tables from streams: always up to date, and exact over any number of crashes.

Spark keeps the state of each window or song, and hands on the rows that a batch changed, each with its new and whole
value. They take the place of the old ones in the table. After a crash a batch comes again, from the same events and
the same state: it replaces the same rows by the same values. So nothing needs to be remembered beside Spark's own
checkpoint, and a table is never half a batch ahead or behind for long.

What does not add up by itself is finished from sums that do: forecasts and the placement from what workers did by hour,
anomalies from trends. Availability and the plan for replicas depend on the order of single events, which may come late:
their sums are the events themselves, of the few kinds that they read. They grow with time, as their tables do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from scale0_spark.events import ID, LATE, deduplicated, of_kinds
from scale0_spark.jobs import Options
from scale0_spark.merging import SHAPES, missing
from scale0_spark.tables import SUMS, TIME, RowsLostError
from scale0_spark.transforms import (
    anomalies,
    availability,
    caches,
    capacity,
    placement,
    popularity,
    replication,
    trends,
    worker_hours,
)


class Store(Protocol):
    """Where tables are kept."""

    def read(self, name: str) -> pa.Table | None:
        """Give a table, or None if it was never written."""

    def write(self, name: str, table: pa.Table) -> None:
        """Put a table in the place of the one that is there; whole, or not at all."""

    def locked(self) -> AbstractContextManager[None]:
        """Have the tables to oneself, to read one and write it anew."""


@attrs.frozen
class StreamedTable:
    """How a table is made from a stream of events."""

    table: str
    kinds: tuple[str, ...]
    keys: tuple[str, ...]
    """What rows of the sums are told apart by."""
    sums: Callable[[DataFrame, Options], DataFrame]
    """What Spark keeps the state of."""
    finish: Callable[[DataFrame, Options], DataFrame] | None = None
    """Makes the table from all sums, where the sums are not the table already."""


def _trends(every: str) -> StreamedTable:
    def sums(events: DataFrame, options: Options) -> DataFrame:
        return trends.trends(events, every, accuracy=options.accuracy)

    return StreamedTable(f"trends_{every}", trends.KINDS, trends.KEYS, sums)


def _kept(events: DataFrame, options: Options) -> DataFrame:
    """Keep the events themselves, as far as those tables read them that need each of them."""
    return events.select(*ID, "ts", "kind", "weight", "service", "peer", "group", "outcome", "subject")


def _hours(events: DataFrame, options: Options) -> DataFrame:
    """Sum up what services and workers did by hour."""
    return worker_hours.worker_hours(events)


_ALL = (
    _trends("minute"),
    _trends("hour"),
    _trends("day"),
    StreamedTable(
        "popularity",
        popularity.KINDS,
        popularity.KEYS,
        lambda events, options: popularity.totals(events, options.popularity),
        lambda sums, options: popularity.ranked(sums, options.popularity).orderBy("rank"),
    ),
    StreamedTable("cache_rates", caches.KINDS, caches.KEYS, lambda events, options: caches.cache_rates(events)),
    StreamedTable(
        "flapping",
        availability.FLAPPING_KINDS,
        availability.FLAPPING_KEYS,
        lambda events, options: availability.changes(events),
        lambda sums, options: availability.flaps(sums, options.availability),
    ),
    StreamedTable(
        "availability", availability.KINDS, ID, _kept, lambda events, options: availability.availability(events)
    ),
    StreamedTable(
        "capacity",
        capacity.KINDS,
        worker_hours.KEYS,
        _hours,
        lambda sums, options: capacity.of_hours(sums, options.capacity),
    ),
    StreamedTable(
        "anomalies",
        anomalies.KINDS,
        trends.KEYS,
        lambda events, options: anomalies.told_hours(events),
        lambda sums, options: anomalies.unusual(sums, options.anomalies),
    ),
    StreamedTable(
        "replication_plan",
        replication.KINDS,
        ID,
        _kept,
        lambda events, options: replication.replication_plan(events, options.replication),
    ),
    StreamedTable(
        "placement_plan",
        placement.KINDS,
        worker_hours.KEYS,
        _hours,
        lambda sums, options: placement.of_hours(sums, options.placement),
    ),
)

STREAMS: Mapping[str, StreamedTable] = {stream.table: stream for stream in _ALL}
"""The tables that can be made from streams."""


def start(
    stream: StreamedTable,
    events: DataFrame,
    store: Store,
    checkpoint: str,
    *,
    options: Options | None = None,
    late: str = LATE,
    keep: timedelta | None = None,
    trigger: Mapping[str, str | bool] | None = None,
    replace: bool = False,
) -> StreamingQuery:
    """Start the query that keeps a table up to date.

    `checkpoint` is a folder for this table alone, in which Spark remembers how far it is. `keep` is how far back
    windows are kept. `trigger` is what Spark's `trigger` takes, such as `{"processingTime": "10 seconds"}` or
    `{"availableNow": True}`. `replace` allows the first batch to leave out rows of the table that is there.
    """
    chosen = options or Options()
    once = deduplicated(of_kinds(events, stream.kinds), late)

    def put(changed: DataFrame, batch: int) -> None:
        with store.locked():
            _put(stream, changed, store, chosen, keep, begins=batch == 0, replace=replace)

    writer = (
        stream.sums(once, chosen)
        .writeStream.queryName(stream.table)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(put)
    )
    if trigger:
        writer = writer.trigger(**trigger)  # type: ignore[arg-type]
    return writer.start()


def _put(
    stream: StreamedTable, changed: DataFrame, store: Store, options: Options, keep: timedelta | None, *, begins: bool,
    replace: bool,
) -> None:  # fmt: skip
    rows = changed.toArrow()
    name = f"{SUMS}{stream.table}" if stream.finish else stream.table
    # with a new checkpoint Spark counts from nothing: the table of another one would be mixed with the new sums
    before = None if begins else store.read(name)
    if not rows.num_rows and before is not None:
        return
    sums = recent(upserted(before, rows, stream.keys), keep)
    if begins and not replace:
        _check_losses(name, stream.keys, store.read(name), sums, keep)
    if stream.finish is None:
        store.write(name, sums)
        return
    finished = stream.finish(changed.sparkSession.createDataFrame(sums), options).toArrow()
    if begins and not replace and not SHAPES[stream.table].shrinks:
        _check_losses(stream.table, SHAPES[stream.table].keys, store.read(stream.table), finished, keep)
    store.write(name, sums)
    store.write(stream.table, finished)


def _check_losses(
    name: str, keys: tuple[str, ...], before: pa.Table | None, after: pa.Table, keep: timedelta | None
) -> None:
    """Refuse to put a table in the place of one that has more rows; windows that are not kept anyway do not count."""
    if before is None or not set(keys) <= set(before.column_names):
        return
    both = pa.concat_tables([before.select(keys), after.select(keys).cast(before.select(keys).schema)])
    expected = recent(both, keep)
    lost = missing(keys, expected, after)
    if lost:
        raise RowsLostError(
            f"{name} would lose {lost} of {before.num_rows} rows", "a stream with a new checkpoint makes it anew",
            "no table was changed", "give it another folder for --out, or add --replace",
        )  # fmt: skip


def upserted(before: pa.Table | None, rows: pa.Table, keys: Iterable[str]) -> pa.Table:
    """Put rows in the place of those with the same keys, or beside them; the result is in the order of its keys."""
    names = list(keys)
    old = [] if before is None else [before.select(rows.column_names).cast(rows.schema)]
    both = pa.concat_tables([*old, rows])
    numbered = both.append_column("place", pa.array(range(both.num_rows), pa.int64()))
    last = numbered.group_by(names, use_threads=False).aggregate([("place", "max")])
    return both.take(last.column("place_max")).sort_by([(name, "ascending") for name in names])


def recent(rows: pa.Table, keep: timedelta | None) -> pa.Table:
    """Leave out windows that began longer before the newest one than `keep`; rows without a window all stay.

    The newest window is the measure, not the clock: a crash and a second try leave the same rows.
    """
    if keep is None or TIME not in rows.column_names or not rows.num_rows:
        return rows
    starts = rows.column(TIME)
    newest = pc.max(starts).as_py()
    return rows.filter(pc.greater(starts, pa.scalar(newest - keep, starts.type)))
