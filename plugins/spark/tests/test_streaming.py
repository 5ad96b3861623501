"""Tables from streams are those of batches, over late events, repeats and crashes."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from scale0_spark import running, tables
from scale0_spark.checkpoints import check_checkpoint
from scale0_spark.events import deduplicated, read_events, stream_events
from scale0_spark.jobs import JOBS, Options, run
from scale0_spark.progress import Missed, Progress, StreamWatch
from scale0_spark.running import Store
from scale0_spark.streaming import STREAMS, recent, start, upserted
from scale0_spark.transforms.anomalies import Anomalies
from scale0_spark.transforms.replication import Replication

from .event_rows import Row, by_chance, of_arrow, plain, store

JOB_OF = {
    **dict.fromkeys(("trends_minute", "trends_hour", "trends_day"), "trends"),
    "popularity": "popularity",
    "cache_rates": "caches",
    "flapping": "availability",
    "availability": "availability",
    "capacity": "capacity",
    "replication_plan": "replication",
    "placement_plan": "placement",
    "anomalies": "anomalies",
}
BY_THEMSELVES = ("anomalies", "replication_plan")
"""Tables that have tests of their own below."""


def pieces(seed: int, count: int, number: int) -> list[list[Row]]:
    """Cut five hours of events into pieces, in which some come late and some again."""
    chance = random.Random(seed)
    rows = by_chance(seed, count, days=5 / 24)
    cut: list[list[Row]] = [[] for _ in range(number)]
    for place, row in enumerate(rows):
        piece = place * number // len(rows)
        later = min(number - 1, piece + 1)
        cut[later if chance.random() < 0.1 else piece].append(row)
        if chance.random() < 0.1:
            cut[later].append(row)
    for piece in cut:
        chance.shuffle(piece)
    return cut


def same(got: list[Row], wanted: list[Row]) -> None:
    def key(row: Row) -> tuple[str, ...]:
        names = ("window_start", "broker", "service", "kind", "measure", "group", "peer", "server", "song")
        return tuple(str(row.get(name)) for name in names)

    assert len(got) == len(wanted)
    assert {key(row) for row in got} == {key(row) for row in wanted}
    expected = {key(row): row for row in wanted}
    for row in got:
        for name, value in expected[key(row)].items():
            exact = value is None or isinstance(value, str)
            assert row[name] == (value if exact else pytest.approx(value, rel=1e-9)), (key(row), name)


def test_each_event_counts_once_however_often_it_was_stored(spark: SparkSession, tmp_path: Path):
    rows = by_chance(5, 300)
    store(tmp_path, rows, "first")
    once = deduplicated(read_events(spark, str(tmp_path)))
    assert once.count() == len(rows)
    store(tmp_path, [row for row in rows if row["seq"] % 10 == 0], "again")
    store(tmp_path, rows[:2], "and-again")
    events = read_events(spark, str(tmp_path))
    assert events.count() > len(rows)
    ids = [(row.broker, row.epoch, row.seq) for row in deduplicated(events).select("broker", "epoch", "seq").collect()]
    assert sorted(ids) == sorted((row["broker"], row["epoch"], row["seq"]) for row in rows)


def test_a_stream_of_late_and_repeated_events_gives_the_tables_of_a_batch(spark: SparkSession, tmp_path: Path):
    events, tables = tmp_path / "events", Store(str(tmp_path / "tables"))
    cut = pieces(11, 500, 10)
    streams = {name: stream for name, stream in STREAMS.items() if name not in BY_THEMSELVES}
    for number, some in enumerate((cut[:5], cut[5:])):
        for place, piece in enumerate(some):
            store(events, piece, f"piece-{number}-{place}")
        queries = [
            start(
                stream,
                stream_events(spark, str(events), stream.kinds),
                tables,
                str(tmp_path / "checkpoints" / name),
                late="2 hours",
                trigger={"availableNow": True},
            )
            for name, stream in streams.items()
        ]
        for query in queries:
            assert query.awaitTermination(600)
    stored = deduplicated(read_events(spark, str(events))).cache()
    for table, job in JOB_OF.items():
        if table in BY_THEMSELVES:
            continue
        wanted = plain(run(JOBS[job], stored)[table])
        assert wanted, table
        got = tables.read(table)
        assert got is not None
        same(of_arrow(got), wanted)
    stored.unpersist()


def test_a_stream_finds_the_anomalies_of_a_batch(spark: SparkSession, tmp_path: Path):
    """Weeks go by in some batches; an hour is compared with those that came in others."""
    options = Options(anomalies=Anomalies(deviation=1.5))
    rows, tables = (
        [row for row in by_chance(6, 3000, days=35) if row["kind"] == "task"],
        Store(str(tmp_path / "tables")),
    )
    for part in range(3):
        store(tmp_path / "events", rows[part * len(rows) // 3 : (part + 1) * len(rows) // 3], f"part-{part}")
        run_once(spark, "anomalies", tmp_path / "events", tables, tmp_path / "checkpoint", options)
    wanted = plain(run(JOBS["anomalies"], read_events(spark, str(tmp_path / "events")), options)["anomalies"])
    assert wanted
    got = tables.read("anomalies")
    assert got is not None
    same(of_arrow(got), wanted)


def test_rows_take_the_place_of_those_with_the_same_keys():
    before = pa.table({"a": ["x", None, "y"], "b": [1, 2, 3]})
    after = upserted(before, pa.table({"a": ["z", None], "b": [4, 5]}), ["a"])
    assert after.to_pylist() == [{"a": "x", "b": 1}, {"a": "y", "b": 3}, {"a": "z", "b": 4}, {"a": None, "b": 5}]
    assert upserted(after, after, ["a"]) == after


# --- stored history ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weeks of events in many files, of several brokers and kinds, that were written in no order of time."""
    folder, chance = tmp_path_factory.mktemp("history"), random.Random(4)
    rows = [row | {"weight": 1.0} for row in by_chance(21, 1000, days=20) if row["kind"] in STREAMS["trends_day"].kinds]
    for row in rows:
        row["broker"] += f"-{row['seq'] % 2}"
    for broker in {row["broker"] for row in rows}:
        store(folder, [row for row in rows if row["broker"] == broker], broker)
    files = sorted(folder.glob("*/*/*.parquet"))
    assert len(files) > 128
    for path in files:
        written = 1_800_000_000 + chance.randrange(10**6)
        os.utime(path, (written, written))
    return folder


@pytest.fixture(scope="module")
def trends(spark: SparkSession, history: Path) -> list[Row]:
    """What the job makes of the history."""
    return plain(run(JOBS["trends"], read_events(spark, str(history)))["trends_hour"])


ALL = timedelta(days=1000)


@pytest.mark.parametrize(
    ("trigger", "keep"),
    [({"availableNow": True}, None), ({"processingTime": "1 second"}, timedelta(days=6))],
    ids=["once", "on and on"],
)
def test_a_stream_over_stored_history_counts_every_event_of_the_time_that_is_kept(
    spark: SparkSession, history: Path, trends: list[Row], tmp_path: Path, trigger: Any, keep: timedelta | None
):
    tables, stream = Store(str(tmp_path / "tables")), STREAMS["trends_hour"]
    source = stream_events(spark, str(history), stream.kinds)
    query = start(stream, source, tables, str(tmp_path / "checkpoint"), trigger=trigger, keep=keep)
    try:
        query.processAllAvailable()
        watch = StreamWatch([query])
        watch.count()
    finally:
        query.stop()
    got = tables.read("trends_hour")
    assert got is not None
    since = max(row["window_start"] for row in trends) - (keep or ALL).total_seconds()
    same(of_arrow(got), [row for row in trends if row["window_start"] > since])
    assert watch.missed() == {"trends_hour": Missed()}


def test_a_stream_tells_what_came_too_late_for_it(
    spark: SparkSession, history: Path, trends: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With few files in a batch, those of one day come in several."""
    monkeypatch.setattr(running, "session", lambda *_: contextlib.nullcontext(spark))
    said = io.StringIO()
    too_late = running.run_streams(
        ["trends_day"], running.Span(history), tmp_path, running.Place("local"), Progress(said), files_per_batch=40
    )
    counted = of_arrow(tables.read(tmp_path, "trends_day"))
    missed = sum(row["requests"] for row in trends) - sum(row["requests"] for row in counted)
    assert missed > 0
    assert too_late == {"trends_day": Missed(too_late=missed)}
    assert f"{missed:.0f} too late" in said.getvalue()
    assert f"trends_day: {missed:.0f} events are not in it" in said.getvalue()


def test_windows_are_kept_by_their_distance_from_the_newest():
    def windows(*days: int) -> pa.Table:
        starts = [datetime(2030, 1, day, tzinfo=timezone.utc) for day in days]
        return pa.table({"window_start": pa.array(starts, pa.timestamp("us", "UTC")), "n": list(days)})

    table = windows(3, 9, 10, 1)
    assert recent(table, timedelta(days=7))["n"].to_pylist() == [9, 10]
    assert recent(table, timedelta(days=8))["n"].to_pylist() == [3, 9, 10]
    songs = pa.table({"song": ["a"]})
    assert (recent(table, None), recent(songs, timedelta(1))) == (table, songs)
    assert recent(windows(), timedelta(1)).num_rows == 0


def run_once(
    spark: SparkSession, name: str, events: Path, tables: Store, checkpoint: Path, options: Options | None = None,
    *, replace: bool = False,
) -> None:  # fmt: skip
    """Take in what is there."""
    stream = STREAMS[name]
    source = stream_events(spark, str(events), stream.kinds)
    trigger: dict[str, str | bool] = {"availableNow": True}
    query = start(stream, source, tables, str(checkpoint), options=options, trigger=trigger, replace=replace)
    assert query.awaitTermination(600)


@pytest.mark.parametrize("name", ["trends_hour", "replication_plan"])
def test_with_a_new_checkpoint_a_table_begins_anew(spark: SparkSession, tmp_path: Path, name: str):
    options = Options(replication=Replication(wanted=1.0))
    tables, (before, after) = Store(str(tmp_path / "tables")), pieces(13, 300, 2)
    store(tmp_path / "one", before, "piece")
    run_once(spark, name, tmp_path / "one", tables, tmp_path / "checkpoint", options)
    store(tmp_path / "two", after, "piece")
    run_once(spark, name, tmp_path / "two", tables, tmp_path / "another", options, replace=True)
    got = tables.read(name)
    assert got is not None
    stored = deduplicated(read_events(spark, str(tmp_path / "two")))
    wanted = plain(run(JOBS[JOB_OF[name]], stored, options)[name])
    assert wanted
    same(of_arrow(got), wanted)


def test_a_stream_that_was_killed_while_it_planned_its_first_batch_begins_again(spark: SparkSession, tmp_path: Path):
    checkpoint, tables = tmp_path / "checkpoint", Store(str(tmp_path / "tables"))
    store(tmp_path / "events", by_chance(5, 50), "piece")
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.f3b0.tmp", "..0.f3b0.tmp.crc"):
        (offsets / name).write_bytes(b"v1")
    note = {"folder": str(tmp_path / "events")}
    check_checkpoint(checkpoint, note)
    run_once(spark, "popularity", tmp_path / "events", tables, checkpoint)
    assert tables.read("popularity") is not None
    left = {path.name for path in offsets.iterdir()}
    assert "0" in left
    check_checkpoint(checkpoint, note)  # of a stream that has begun nothing is removed
    assert {path.name for path in offsets.iterdir()} == left


class Broken(Store):
    """Cannot write."""

    def write(self, name: str, table: pa.Table) -> None:
        raise OSError("no space left")


def test_a_batch_that_names_a_file_which_is_gone_by_now_goes_on_without_it(spark: SparkSession, tmp_path: Path):
    events, folder = tmp_path / "events", str(tmp_path / "tables")
    gone, stays = pieces(14, 100, 2)
    store(events, gone, "gone")
    store(events, stays, "stays")
    with pytest.raises(StreamingQueryException, match="no space left"):
        run_once(spark, "cache_rates", events, Broken(folder), tmp_path / "checkpoint")
    planned = read_events(spark, str(events), ["song_search"])
    for path in events.glob("*/*/gone.parquet"):
        path.unlink()
    assert planned.count() == sum(row["kind"] == "song_search" for row in stays)
    run_once(spark, "cache_rates", events, Store(folder), tmp_path / "checkpoint")
    got = Store(folder).read("cache_rates")
    assert got is not None
    same(of_arrow(got), plain(run(JOBS["caches"], deduplicated(read_events(spark, str(events))))["cache_rates"]))


# --- kill -9 ----------------------------------------------------------------------------------------------------------

SCALE0 = str(Path(sys.executable).with_name("scale0"))
NAMES = ("trends_minute", "popularity")
PATIENCE = 300.0


class Killed:
    """The command that keeps tables up to date, until it is killed."""

    def __init__(self, folder: Path) -> None:
        self.out, self.checkpoints = folder / "out", folder / "checkpoints"
        self.words = [
            SCALE0, "spark", "stream", "--events", str(folder / "events"), "--out", str(self.out), "--checkpoints",
            str(self.checkpoints), "--master", "local[2]", "--quiet", "--conf", "spark.driver.memory=512m",
            "--conf", "spark.sql.shuffle.partitions=1", "--every", "0.1",
        ]  # fmt: skip
        # it is killed, and what it leaves should not stay: its temporary files, and a library that Java unpacks
        self.environment = os.environ | {"TMPDIR": str(folder), "ROCKSDB_SHAREDLIB_DIR": str(folder)}

    def traces(self, moment: str) -> set[tuple[str, int]]:
        """Give the files that show how often it came to a moment: each has a new name, or is a new file."""
        found = {
            "planned": self.checkpoints.glob("*/offsets/[0-9]*"),
            "ended": self.checkpoints.glob("*/commits/[0-9]*"),
            "sums": self.out.glob("sums_of_popularity/*.parquet"),
            "table": self.out.glob("[!s]*/*.parquet"),
        }[moment]
        return {(str(path), path.stat().st_ino) for path in found}

    def live(self, names: Sequence[str], moments: list[str], meanwhile: Callable[[], None], pause: float) -> None:
        """Start it, wait for one moment after the other, and kill it; `meanwhile` is done before the last."""
        words = [*self.words, "--tables", ",".join(names)]
        process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, env=self.environment)
        try:
            for place, moment in enumerate(moments):
                known = self.traces(moment)
                if place == len(moments) - 1:
                    meanwhile()
                ends = time.monotonic() + PATIENCE
                while self.traces(moment) <= known:
                    assert process.poll() is None, "it ended by itself"
                    assert time.monotonic() < ends, f"it never came to {moment}"
                    time.sleep(0.02)
            time.sleep(pause)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # Python and Java die together
            process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_query_that_is_killed_ten_times_makes_the_tables_of_an_undisturbed_one(spark: SparkSession, tmp_path: Path):
    chance, events, killed = random.Random(3), tmp_path / "events", Killed(tmp_path)
    cut = iter(enumerate(pieces(7, 600, 32)))

    def come(count: int) -> None:
        for number, piece in list(islice(cut, count)):
            store(events, piece, f"piece-{number:03}")

    for turn in range(10):
        come(2)
        last = ("planned", "sums", "table", "ended")[turn % 4]
        moments = [last] if turn < 5 else ["ended", last]  # in its first batch after a start, or in a later one
        names = NAMES if turn % 5 == 0 else NAMES[1:]  # the second is killed ten times, the first two times
        killed.live(names, moments, lambda: come(1), chance.choice([0.0, 0.02, 0.2]))
    come(2)
    undisturbed = Store(str(tmp_path / "undisturbed"))
    for name in NAMES:
        # the last start, in the session of the tests: another process would cost seconds, and show nothing more
        run_once(spark, name, events, Store(str(killed.out)), killed.checkpoints / name)
        run_once(spark, name, events, undisturbed, tmp_path / "other" / name)
        got, wanted = Store(str(killed.out)).read(name), undisturbed.read(name)
        assert got is not None
        assert wanted is not None
        same(of_arrow(got), of_arrow(wanted))
    stored = deduplicated(read_events(spark, str(events)))
    same(of_arrow(wanted), plain(run(JOBS["popularity"], stored)["popularity"]))
