"""Events as Spark reads them: their columns, where they come from, and each of them once.

The columns are made from what the core says about events, so that there is one list of fields. Events of one kind and
day lie in a folder of their own, and a job reads only those that it asks for.
"""
# does I/O: it lists and reads files of events

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from scale0_core.api import events
from scale0_core.cli.kit import NegativeError
from scale0_spark.columns import COLUMNS, too_new
from scale0_spark.tables import TIME

_TYPES: dict[str, DataType] = {
    "short": ShortType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "date": DateType(),
}

SCHEMA = StructType([StructField(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
"""Columns of events, as they are stored; `kind` and `date` are in the names of the folders."""

ID = ("broker", "epoch", "seq")
"""What tells one event from all others: an event may come twice, but never with another id."""

_PLACE = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/kind=([^/]+)/[^/]+$")

LATE = "1 hour"
"""How late an event may come to a stream, behind the latest one, and still count."""

Repeats = list[tuple[int]]
"""Blocks of events of which some came more than once."""

Earlier = Mapping[str, timedelta | None]
"""Kinds of which events from before a span are read as well, and how far back; None for all."""

MANY_BLOCKS = 50_000
"""With repeats in more blocks than that, looking at all events alike is the cheaper way."""


def read_events(
    spark: SparkSession,
    folder: str,
    kinds: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    earlier: Earlier | None = None,
) -> DataFrame:
    """Read stored events of these kinds, from `since` on and before `until`; repeats are still among them.

    Of the kinds `earlier`, what was before `since` is read as well, as far back as is told there. Events of a later
    version are an error when one is read.
    """
    return chosen(stored_events(spark, folder), kinds, since, until, earlier=earlier)


def stored_events(spark: SparkSession, folder: str) -> DataFrame:
    """Find all stored events. Files that telemetry removes meanwhile, to keep its quota, are passed over."""
    try:
        found = spark.read.schema(SCHEMA).option("ignoreMissingFiles", "true").parquet(folder)
        files = found.inputFiles()
    except AnalysisException as error:
        raise _no_events(folder, str(error).splitlines()[0]) from error
    if not files:
        raise _no_events(folder, "it holds no Parquet file")
    return found


def chosen(
    stored: DataFrame,
    kinds: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    earlier: Earlier | None = None,
) -> DataFrame:
    """Choose among stored events, as `read_events` does; files of other kinds and days are not read."""
    return of_known_versions(between(of_kinds(stored, kinds), since, until, earlier))


def stream_events(
    spark: SparkSession,
    folder: str,
    kinds: Iterable[str] | None = None,
    *,
    files_per_batch: int | None = None,
) -> DataFrame:
    """Read stored events of these kinds as a stream that goes on when files are added.

    A batch takes all files that are new. What is late is decided between batches: with `files_per_batch`, files of one
    time that come in two batches may make the second of them late, however long ago all of it was stored.
    """
    wanted = f"{{{','.join(sorted(kinds))}}}" if kinds is not None else "*"
    found = (
        spark.readStream.schema(SCHEMA)
        .option("basePath", folder)
        .options(**{} if files_per_batch is None else {"maxFilesPerTrigger": files_per_batch})
        # Spark passes over files that are older than this beside the newest: by default a week, without a word
        .option("maxFileAge", "3650d")
        # a batch may name a file that telemetry has removed since, to keep its quota; it would fail for ever
        .option("ignoreMissingFiles", "true")
        .parquet(f"{folder.rstrip('/')}/date=*/kind={wanted}")
    )
    return of_known_versions(found)


def of_known_versions(found: DataFrame) -> DataFrame:
    """Have events of a later version end the query: something in them means another thing than we know."""
    version = F.col("v")
    refused = F.raise_error(F.replace(F.lit(too_new("%")), F.lit("%"), version.cast("string"))).cast("boolean")
    return found.where(F.when(version > F.lit(events.VERSION), refused).otherwise(F.lit(True)))


def of_kinds(found: DataFrame, kinds: Iterable[str] | None) -> DataFrame:
    """Keep events of these kinds, or all."""
    return found if kinds is None else found.where(F.col("kind").isin(*kinds))


def between(
    found: DataFrame, since: datetime | None, until: datetime | None, earlier: Earlier | None = None
) -> DataFrame:
    """Keep events from `since` on, or `earlier` kinds, and before `until`; folders of other days are not read."""
    if since is not None:
        begins = {kind: _before(since, back) for kind, back in (earlier or {}).items()}
        found = found.where(_from("date", since, begins))  # by itself: it chooses folders
        found = found.where(_from("ts", since, begins))
    if until is not None:
        found = found.where((F.col("date") <= F.lit(_utc(until).date())) & (F.col("ts") < F.lit(_utc(until))))
    return found


def windows_between(table: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Leave out what a table tells of other windows: events before and after were read to compare with."""
    if since is not None:
        table = table.where(F.col(TIME) >= F.lit(_utc(since)))
    return table if until is None else table.where(F.col(TIME) < F.lit(_utc(until)))


def first_days(stored: DataFrame) -> dict[str, date]:
    """Return the first day of which events are stored, by kind; the names of the files say so."""
    found: dict[str, date] = {}
    for file in stored.inputFiles():
        if place := _PLACE.search(file):
            kind, day = unquote(unquote(place[2])), date.fromisoformat(place[1])  # in a URL of a path that is escaped
            found[kind] = min(day, found.get(kind, day))
    return found


def _before(since: datetime, back: timedelta | None) -> datetime | None:
    try:
        return None if back is None else since - back
    except OverflowError:  # before the first of all years
        return None


def _from(column: str, since: datetime, begins: Mapping[str, datetime | None]) -> Column:
    def reached(moment: datetime) -> Column:
        return F.col(column) >= F.lit(_utc(moment).date() if column == "date" else _utc(moment))

    kept = reached(since)
    for kind, begin in begins.items():
        of_kind = F.col("kind") == kind
        kept = kept | (of_kind if begin is None else of_kind & reached(begin))
    return kept


def deduplicated(found: DataFrame, late: str = LATE, repeats: Repeats | None = None) -> DataFrame:
    """Keep each event once, though it was stored or sent again.

    A stream remembers the ids of events as long as they may still come again, and drops events that are later than
    that; Spark counts these. In a batch, only events of those blocks are compared in which some came twice: `repeats`
    of these events or of more, which are looked for if they are not given.
    """
    if found.isStreaming:
        return found.withWatermark("ts", late).dropDuplicatesWithinWatermark(list(ID))
    blocks = repeats_in(found) if repeats is None else repeats
    if not blocks:
        return found
    if len(blocks) > MANY_BLOCKS:
        return found.dropDuplicates(list(ID))
    marked = found.withColumn("block", _block())
    again = F.broadcast(found.sparkSession.createDataFrame(blocks, "block long"))
    alone = marked.join(again, "block", "left_anti")
    compared = marked.join(again, "block", "left_semi").dropDuplicates(list(ID))
    return alone.union(compared).drop("block")


def repeats_in(found: DataFrame) -> Repeats:
    """Look for blocks of 64 numbers in which some events came twice; most often there are none.

    That is a small aggregation over three columns; comparing all events would send each of them through a shuffle.
    """
    return [(row["block"],) for row in _blocks_with_repeats(found).limit(MANY_BLOCKS + 1).collect()]


def _block() -> Column:
    # blocks that share a hash by chance are compared without need, and come out right all the same
    return F.xxhash64("broker", "epoch", F.shiftright("seq", 6))


def _blocks_with_repeats(found: DataFrame) -> DataFrame:
    place = F.expr("shiftleft(1L, cast(seq & 63 as int))")
    seen = found.groupBy(_block().alias("block")).agg(
        F.count(F.lit(1)).alias("events"), F.bit_count(F.bit_or(place)).alias("numbers")
    )
    return seen.where(F.col("events") > F.col("numbers")).select("block")


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)


def _no_events(folder: str, why: str) -> NegativeError:
    return NegativeError(
        f"there are no events in {folder}",
        why,
        "nothing was computed",
        "enable the plugin telemetry, or name its folder",
    )
