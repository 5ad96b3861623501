"""Reading stored events: which there are, of which kinds and times, and each once."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from scale0_core.api import events as core
from scale0_core.cli.kit import NegativeError
from scale0_spark import events as module
from scale0_spark.columns import COLUMNS
from scale0_spark.events import SCHEMA, between, deduplicated, read_events
from scale0_spark.jobs import JOBS, Options, reach, run
from scale0_spark.streaming import STREAMS
from scale0_spark.transforms.anomalies import Anomalies
from scale0_spark.zpipes.payloads import EVENT_COLUMNS

from .event_rows import DAY, MONDAY, Log, by_chance, frame, plain, store

TABLES = {
    "trends_second", "trends_minute", "trends_hour", "trends_day", "availability", "flapping", "capacity", "popularity",
    "cache_rates", "replication_plan", "placement_plan", "anomalies",
}  # fmt: skip


def test_telemetry_stores_the_columns_that_are_read():
    stored = pytest.importorskip("scale0_telemetry.schema")
    assert EVENT_COLUMNS.equals(stored.SCHEMA)
    assert [(field.name, field.dataType.typeName()) for field in SCHEMA] == [
        (name, kind) for name, kind in COLUMNS.items()
    ]


def test_every_field_of_the_core_has_a_column():
    assert SCHEMA.fieldNames() == [
        "v", "broker", "epoch", "seq", "ts", "weight", *core.FIELDS, "details", "kind", "date"
    ]  # fmt: skip


def test_jobs_make_all_tables_of_kinds_that_there_are():
    assert {table for job in JOBS.values() for table in job.tables} == TABLES
    assert set(STREAMS) < TABLES
    told = {kind for job in JOBS.values() for kind in job.kinds} | {
        kind for one in STREAMS.values() for kind in one.kinds
    }
    assert told <= set(core.KINDS)


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_events_is_named(spark: SparkSession, tmp_path: Path, there: bool):
    folder = tmp_path / "events"
    if there:
        folder.mkdir()
    with pytest.raises(NegativeError, match="there are no events in"):
        read_events(spark, str(folder))


def test_events_are_read_by_kind_and_time_as_they_were_stored(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log = Log()
    for day in range(3):
        log.add("task", day * DAY + 5.5, service="echo", outcome="ok", queue_us=1, service_us=2, weight=2.0)
        log.add("join", day * DAY + 6.5, service="echo", peer="w", group="north", count=3)
    store(tmp_path, log.rows, "some")
    (tmp_path / "date=2026-03-02" / "kind=task" / ".open.parquet").write_bytes(b"not yet complete")
    assert sorted(plain(read_events(spark, str(tmp_path))), key=lambda row: row["seq"]) == plain(frame(spark, log.rows))
    since, until = MONDAY + timedelta(days=1), MONDAY + timedelta(days=2, seconds=5.5)
    found = read_events(spark, str(tmp_path), ["task"], since, until)
    assert [(row["seq"], row["ts"], row["kind"]) for row in plain(found)] == [(3, DAY + 5.5, "task")]
    found.explain()
    (filters,) = re.findall(r"PartitionFilters: \[(.*?)\]", capsys.readouterr().out)
    assert "date" in filters
    assert "kind" in filters


def test_of_some_kinds_earlier_events_are_read_as_well(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log = Log()
    log.add("join", 5.0, service="echo", peer="w", group="north", count=4)
    for day in range(3):
        log.add("task", day * DAY + 6.0, service="echo", peer="w", outcome="ok", queue_us=1, service_us=36 * 10**8)
    log.add("heartbeat", 2 * DAY + 3600.0, service="other", peer="w")  # the hour is over
    store(tmp_path, log.rows, "some")
    job = JOBS["capacity"]
    found = read_events(
        spark, str(tmp_path), job.kinds, MONDAY + timedelta(days=1, seconds=9), earlier=dict.fromkeys(job.earlier)
    )
    told = sorted((row["kind"], row["ts"]) for row in plain(found) if row["kind"] != "heartbeat")
    assert told == [("join", 5.0), ("task", 2 * DAY + 6.0)]
    assert {row["service"]: row["utilisation"] for row in plain(run(job, found)["capacity"])}["echo"] == 0.25
    found.explain()
    (filters,) = re.findall(r"PartitionFilters: \[(.*?)\]", capsys.readouterr().out)
    assert "date" in filters


def test_jobs_together_read_each_kind_from_when_the_first_of_them_needs_it(spark: SparkSession):
    options, weeks, none = Options(anomalies=Anomalies(weeks=2)), timedelta(weeks=2), timedelta()
    assert JOBS["anomalies"].reach(options) == {"task": weeks, "rpc": weeks, "load": weeks}
    together = reach([JOBS[name] for name in ("trends", "anomalies", "availability", "capacity")], options)
    assert together == {"task": weeks, "rpc": weeks, "load": weeks, "join": None, "leave": none, "heartbeat": none}
    log = Log()
    for kind in ("task", "heartbeat", "join"):
        for days in (-16, -13, 1):
            log.add(kind, days * DAY, service="echo", peer="w")
    found = between(frame(spark, log.rows), MONDAY, MONDAY + timedelta(days=2), together)
    wanted = [(kind, days * DAY) for kind, days in (("heartbeat", 1), ("join", -16), ("join", -13), ("join", 1))]
    assert sorted((row["kind"], row["ts"]) for row in plain(found)) == [*wanted, ("task", -13 * DAY), ("task", DAY)]


def test_weeks_before_the_first_of_all_years_are_all():
    assert module._before(datetime.min + timedelta(days=1), timedelta(weeks=4)) is None


def test_events_of_a_later_version_are_refused(spark: SparkSession, tmp_path: Path):
    rows = by_chance(8, 20)
    rows[3]["v"] = core.VERSION + 1
    store(tmp_path, rows, "some")
    with pytest.raises(PySparkException, match=f"events of version {core.VERSION + 1}, and this scale0-spark knows"):
        read_events(spark, str(tmp_path)).count()
    others = [row for row in rows if row["kind"] != rows[3]["kind"]]
    assert read_events(spark, str(tmp_path), {row["kind"] for row in others}).count() == len(others)


def test_repeats_in_very_many_blocks_are_found_as_well(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    rows = by_chance(6, 400)
    monkeypatch.setattr(module, "MANY_BLOCKS", 1)
    assert deduplicated(frame(spark, rows, rows)).count() == len(rows)
