"""How what a run computed goes into the table that is there: nothing that the run did not look at is lost.

A table by time has rows for windows. A run computes the windows that its span touches, each as a whole, and they take
the place of the same windows in the table; all others stay. A table that is not by time, such as popularity, cannot
take in a part: it is made anew from all that it was made of before, and the span. So is `capacity`, whose forecasts
depend on all hours.

Telemetry removes the oldest events when its quota is full. What a table tells of windows whose events are gone stays;
and so does the first day that is left, which may be half gone.

Rows of a table that would be missing afterwards for no such reason are a sign of a mistake, such as another folder of
events: then nothing is written unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from scale0_spark.tables import TIME, Coverage
from scale0_spark.transforms.windows import SECONDS

HOUR = timedelta(hours=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)


@attrs.frozen
class Shape:
    """What the rows of a table are, as far as merging depends on it."""

    keys: tuple[str, ...]
    """What rows are told apart by, in the order of the table."""
    every: str | None = None
    """How long the windows are; None for a table that is not by time."""
    whole: bool = False
    """Whether a row depends on all events that the table is made of, and not on those of its window alone."""
    shrinks: bool = False
    """Whether fewer rows are a result like any other: a plan that was carried out, an hour that is usual after all."""
    beyond: timedelta = timedelta()
    """How far behind its last window events are read: a start is told later, and the last hour is left out."""

    def floor(self, moment: datetime | None) -> datetime | None:
        """Return the beginning of the window of a moment."""
        if moment is None or self.every is None:
            return moment
        return moment - (moment - _BEGINNING) % timedelta(seconds=SECONDS[self.every])

    def ceil(self, moment: datetime | None) -> datetime | None:
        """Return the end of the window of a moment; a moment between two windows is one itself."""
        begin = self.floor(moment)
        if moment is None or begin is None or self.every is None or begin == moment:
            return moment
        return begin + timedelta(seconds=SECONDS[self.every])


SHAPES: Mapping[str, Shape] = {
    **{f"trends_{every}": Shape((TIME, "service", "kind"), every) for every in SECONDS},
    "availability": Shape(("broker", "service", "peer"), whole=True),
    "flapping": Shape((TIME, "broker", "service", "peer"), "hour", beyond=HOUR),
    "capacity": Shape(("service", TIME), "hour", whole=True),
    "popularity": Shape(("song",), whole=True),
    "cache_rates": Shape((TIME, "server"), "hour"),
    "replication_plan": Shape(("song", "server"), whole=True, shrinks=True),
    "placement_plan": Shape(("service", "group"), whole=True, shrinks=True),
    "anomalies": Shape((TIME, "service", "kind", "measure"), "hour", shrinks=True, beyond=HOUR),
}
"""The shapes of all tables, by name."""


def reading(shape: Shape, asked: Coverage, before: Coverage | None) -> Coverage:
    """Return what a table is computed of: the span that was asked for, in whole windows, and more where it must be."""
    if shape.whole and before is not None:
        asked = united(asked, before)
    return attrs.evolve(asked, since=shape.floor(asked.since), until=shape.ceil(asked.until))


def united(one: Coverage, other: Coverage) -> Coverage:
    """Return a span that has both, and all that is between them; the first day is the earlier one, if it is known."""
    since = None if one.since is None or other.since is None else min(one.since, other.since)
    until = None if one.until is None or other.until is None else max(one.until, other.until)
    days = [each.first for each in (one, other) if each.first is not None]
    return Coverage(since, until, min(days, default=None))


@attrs.frozen
class Merged:
    """A table as a run would leave it."""

    table: pa.Table
    coverage: Coverage
    kept: int = 0
    """How many rows are from before."""
    lost: int = 0
    """How many rows of the table before have no successor."""
    gone: bool = False
    """Whether events of the table before are stored no longer."""


class NoSuccessorError(ValueError):
    """The table before has other columns, so that nothing can be merged into it."""


def merged(
    shape: Shape,
    before: tuple[pa.Table, Coverage] | None,
    rows: pa.Table,
    read: Coverage,
    compared: timedelta = timedelta(),
) -> Merged:
    """Put the rows of a run into the table before; `read` is what they are of, with the first day that is stored.

    `compared` is how far back an hour is compared with others: without these it is judged no more. Raise
    NoSuccessorError if the two tables do not fit together.
    """
    if before is None:
        return Merged(rows, read)
    old, covered = _fitting(before[0], rows.schema), before[1]
    gone = _gone(shape, old, covered, read)
    since = _whole_from(read.first, compared) if gone else None
    kept = _outside(shape, old, max(filter(None, (read.since, since)), default=None), read.until)
    table = _in_order(shape, _one_of_each(shape, pa.concat_tables([rows, kept]))) if kept.num_rows else rows
    return Merged(table, united(read, covered), kept.num_rows, missing(shape.keys, old, table), gone)


def missing(keys: tuple[str, ...], before: pa.Table, after: pa.Table) -> int:
    """Count the rows of a table whose keys another has not."""
    sides = [
        each.select(list(keys)).append_column("side", pa.array([side] * each.num_rows, pa.int8()))
        for side, each in enumerate((before, after))
    ]
    latest = pa.concat_tables(sides).group_by(list(keys), use_threads=False).aggregate([("side", "max")])
    return int(pc.sum(pc.equal(latest.column("side_max"), 0)).as_py() or 0)


def _fitting(before: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        if set(before.column_names) != set(schema.names):
            raise NoSuccessorError("it has other columns")
        return before.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise NoSuccessorError(str(error).splitlines()[0]) from error


def _gone(shape: Shape, old: pa.Table, covered: Coverage, read: Coverage) -> bool:
    """Tell whether events that the table before was made of are no longer stored."""
    if read.first is None:
        return shape.every is not None
    if covered.first is not None:
        return covered.first < read.first
    if shape.every is None or not old.num_rows:
        return False
    earliest = pc.min(old.column(TIME)).as_py()  # a table of a stream, or of a version that noted nothing
    return earliest is not None and earliest < _midnight(read.first)


def _whole_from(first: date | None, compared: timedelta) -> datetime:
    """Return from when on events are all there, and what they are compared with; the first day may be half gone."""
    if first is None:
        return datetime.max.replace(tzinfo=timezone.utc)
    return _midnight(first) + timedelta(days=1) + compared


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)


def _outside(shape: Shape, old: pa.Table, since: datetime | None, until: datetime | None) -> pa.Table:
    """Return the rows of windows that are not in a span; all rows are, of a table that is not by time."""
    if shape.every is None:
        return old.slice(0, 0)
    starts = old.column(TIME)
    keep = pa.chunked_array([pa.array([False] * old.num_rows, pa.bool_())])
    if since is not None:
        keep = pc.or_(keep, pc.less(starts, pa.scalar(since, starts.type)))
    if until is not None:
        keep = pc.or_(keep, pc.greater_equal(starts, pa.scalar(until, starts.type)))
    return old.filter(keep)


def _one_of_each(shape: Shape, table: pa.Table) -> pa.Table:
    """Keep the last row of each key: of a day that may be half gone there are old rows and new ones."""
    names = list(shape.keys)
    numbered = table.append_column("place", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(names, use_threads=False).aggregate([("place", "max")])
    return table.take(last.column("place_max"))


def _in_order(shape: Shape, table: pa.Table) -> pa.Table:
    """Put rows in the order in which Spark has them, nulls first; Arrow would have them last."""
    order: list[tuple[str, str]] = []
    columns: dict[str, pa.ChunkedArray] = {}
    for name in shape.keys:
        columns |= {f"{name} is there": pc.is_valid(table.column(name)), name: table.column(name)}
        order += [(f"{name} is there", "ascending"), (name, "ascending")]
    return table.take(pc.sort_indices(pa.table(columns), sort_keys=order))
