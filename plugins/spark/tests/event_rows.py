"""Events for tests, by hand or by chance, and tables as plain rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from scale0_spark.events import SCHEMA

MONDAY = datetime(2026, 3, 2, tzinfo=timezone.utc)
"""The beginning of time in these tests."""

HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0

Row = dict[str, Any]

ARROW = {"short": pa.int16(), "string": pa.string(), "long": pa.int64(), "double": pa.float64()}
FILE_SCHEMA = pa.schema(
    [
        (field.name, pa.timestamp("us", "UTC") if field.name == "ts" else ARROW[field.dataType.typeName()])
        for field in SCHEMA
        if field.name not in ("kind", "date")
    ]
)


class Log:
    """Events of one broker since it started so many seconds after the beginning, numbered as they come."""

    def __init__(self, broker: str = "b1", started: float = 0.0) -> None:
        self.broker, self.epoch = broker, round((MONDAY.timestamp() + started) * 1e6)
        self.rows: list[Row] = []

    def add(self, kind: str, at: float, weight: float = 1.0, **fields: Any) -> Row:
        """Tell of something that happened so many seconds after the beginning."""
        row: Row = dict.fromkeys(SCHEMA.fieldNames())
        ts = MONDAY + timedelta(seconds=at)
        row |= {"v": 1, "broker": self.broker, "epoch": self.epoch, "seq": len(self.rows) + 1, "ts": ts}
        row |= {"weight": weight, "kind": kind, "date": ts.date(), **fields}
        self.rows.append(row)
        return row


def frame(spark: SparkSession, *rows: Iterable[Row]) -> DataFrame:
    """Make a table of events."""
    names = SCHEMA.fieldNames()
    return spark.createDataFrame([tuple(row[name] for name in names) for some in rows for row in some], SCHEMA)


def seconds(moment: datetime) -> float:
    """Give how long after the beginning a time is; Spark gives times of the local zone, without saying so."""
    return (moment.astimezone(timezone.utc) - MONDAY).total_seconds()


def plain(table: DataFrame) -> list[Row]:
    """Give the rows of a table, with times as seconds since the beginning."""
    return [
        {name: seconds(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}
        for row in table.collect()
    ]


def of_arrow(table: pa.Table) -> list[Row]:
    """Give the rows of a stored table, with times as seconds since the beginning."""
    return [
        {name: seconds(value) if isinstance(value, datetime) else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def store(folder: Path, rows: Iterable[Row], name: str) -> None:
    """Store events as a broker would: a file for each kind and day, complete at once."""
    places: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        places.setdefault((str(row["date"]), row["kind"]), []).append(row)
    for (date, kind), some in places.items():
        place = folder / f"date={date}" / f"kind={kind}"
        place.mkdir(parents=True, exist_ok=True)
        columns = {field: [row[field] for row in some] for field in FILE_SCHEMA.names}
        pq.write_table(pa.table(columns, FILE_SCHEMA), place / f".{name}")
        (place / f".{name}").rename(place / f"{name}.parquet")


def by_chance(seed: int, count: int = 600, days: float = 2.0) -> list[Row]:
    """Give events of all kinds that transforms read, in order of time, from two brokers that start twice or more."""
    chance = random.Random(seed)
    times = sorted(round(chance.uniform(0, days * DAY), 6) for _ in range(count))
    logs: list[Row] = []
    for broker in ("b1", "b2"):
        halves = times[: count // 2], times[count // 2 :]
        for half in halves:
            log = Log(broker, half[0] - 0.5)
            for at in half:
                if chance.random() < 0.5:
                    _one(log, at, chance)
            logs += log.rows
        logs += _in_vain(broker, halves[0][-1], halves[1][0], random.Random(f"{seed} {broker}"))
    return sorted(logs, key=lambda row: (row["ts"], row["broker"], row["seq"]))


def _in_vain(broker: str, after: float, before: float, chance: random.Random) -> Iterator[Row]:
    """Start some times between two lives, and tell of hardly anything each time."""
    for _ in range(chance.randrange(6)):
        at = round(chance.uniform(after, before), 6)
        log = Log(broker, at)
        if chance.random() < 0.3:
            log.add("join", at, service="echo", peer="w0", group="north", count=2)
        log.add("load", at, group="north", value=0.5)
        yield from log.rows


def _one(log: Log, at: float, chance: random.Random) -> None:
    kind = chance.choices(
        ["task", "rpc", "song_search", "song_download", "song_replica", "join", "leave", "heartbeat", "load"],
        [30, 10, 25, 10, 2, 5, 5, 5, 2],
    )[0]
    weight = chance.choice([1.0, 1.0, 1.0, 4.0])
    worker = {"service": chance.choice(["echo", "sum"]), "peer": f"w{chance.randrange(3)}"}
    worker["group"] = chance.choice(["north", "south", None])
    song = {"peer": f"tcp://127.0.0.1:{4400 + chance.randrange(4)}", "subject": chance.choice(["a", "b", "c", None])}
    if kind in ("task", "rpc"):
        outcome = chance.choice(["ok", "ok", "ok", "error", "cancelled", "refused"])
        if outcome == "refused":
            log.add(kind, at, weight, **(worker | {"peer": None}), outcome=outcome, queue_us=chance.randrange(100))
            return
        if kind == "task" and chance.random() < 0.1:  # by a bridge
            worker["peer"] = None
        times = {"queue_us": chance.randrange(10_000), "service_us": chance.randrange(10**9)}
        log.add(kind, at, weight, **worker, outcome=outcome, **times)
    elif kind == "song_search":
        outcome = chance.choice(["hit", "cached", "found", "miss", "timeout"])
        log.add(kind, at, weight, **song, outcome=outcome)
    elif kind == "song_download":
        log.add(kind, at, weight, **song, outcome=chance.choice(["ok", "broken"]))
    elif kind == "song_replica":
        log.add(kind, at, **song, source="tcp://127.0.0.1:4409", outcome="plan")
    elif kind == "join":
        log.add(kind, at, **worker, count=chance.choice([None, 1, 4]))
    elif kind == "leave":
        log.add(kind, at, **worker, outcome=chance.choice(["left", "lost", "silent"]))
        if chance.random() < 0.3:  # its last task is told in the same turn, after it
            log.add("task", at, weight, **worker, outcome="lost", queue_us=1, service_us=chance.randrange(10**6))
        elif chance.random() < 0.3:
            log.add("heartbeat", at, **worker)
    elif kind == "heartbeat":
        log.add(kind, at, **worker)
    else:
        log.add(kind, at, group="north", value=0.5)


def cases(seeds: Iterable[int], count: int, days: float = 2.0) -> list[Row]:
    """Give events for each seed, with names of its own: so Spark has all of them at once, and none meets another."""
    rows = []
    for number, seed in enumerate(seeds):
        for row in by_chance(seed, count, days):
            for name in ("broker", "service", "peer", "subject"):
                row[name] = row[name] and f"{row[name]}/{number}"
            rows.append(row)
    return rows


def in_few_hours(rows: Iterable[Row], span: float) -> list[Row]:
    """Move events to the first hours of their weeks, so that many are at the same hour of several weeks."""
    moved = []
    for row in rows:
        at = seconds(row["ts"])
        ts = MONDAY + timedelta(seconds=at // WEEK * WEEK + at % span)
        moved.append({**row, "ts": ts, "date": ts.date()})
    return moved


def shuffled(rows: list[Row], seed: int) -> Iterator[Row]:
    """Give the same events in another order."""
    again = list(rows)
    random.Random(seed).shuffle(again)
    return iter(again)
