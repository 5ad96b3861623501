"""The thread that stores events: nothing waits for it, and what it cannot take is counted."""

import math
import threading
import time
from collections import Counter

import attrs
import pyarrow.dataset as ds
import pytest

from scale0_core.api import BatchReport, BrokerContext, EventKind, Packing, RunningBroker, events
from scale0_core.api import packing as forms
from scale0_telemetry.observer.load import Gauge, memory_bytes
from scale0_telemetry.observer.sink import Sink
from scale0_telemetry.settings import TelemetrySettings

RECORD = forms.RECORD

TASK = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)


@attrs.define
class Counts:
    """As much of a host's counts as is looked at."""

    received: int = 0
    dropped: Counter = attrs.field(factory=Counter)
    undelivered: Counter = attrs.field(factory=Counter)


def running(**counts):
    return RunningBroker(name="left", wire="native", addresses={}, counts=counts)


@pytest.fixture
def sink(tmp_path):
    """Give a function that makes a sink; its thread is not started."""

    def make(broker=None, **settings):
        context = BrokerContext(name="left", runtime_dir=str(tmp_path), data_dir=str(tmp_path), group="north")
        return Sink(TelemetrySettings(**settings), context, broker or running())

    return make


def report(*told, now=1.5, seconds=0.25):
    return BatchReport(now, seconds, {}, 0, (), [("scale0", list(told))] if told else ())


def stored(folder):
    rows = ds.dataset(folder / "telemetry", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: row["seq"])


def test_all_that_was_offered_is_stored_at_the_end(sink, tmp_path):
    one = sink()
    one.start()
    before = time.time()
    for _ in range(100):
        one.offer(report(*[TASK] * 50))
    one.stop(60)
    tasks = [row for row in stored(tmp_path) if row["kind"] == "task"]
    assert len(tasks) == 5000
    # the turn began a quarter of a second before it was told of
    assert all(before - 0.26 <= row["ts"].timestamp() <= time.time() - 0.24 for row in tasks)
    assert {row["epoch"] for row in tasks} == {row["epoch"] for row in stored(tmp_path)}


def test_whole_batches_are_dropped_and_counted_when_the_thread_is_behind(sink, tmp_path):
    one = sink(max_queue=100)
    for _ in range(5):
        one.offer(report(*[TASK] * 30))
    one.start()
    one.stop(60)
    rows = stored(tmp_path)
    assert sum(row["kind"] == "task" for row in rows) == 90
    [drop] = [row for row in rows if row["kind"] == "drop"]
    assert (drop["service"], drop["outcome"], drop["count"]) == ("telemetry", "queue", 60)


def test_packed_events_are_stored_or_counted_too(sink, tmp_path):
    one, packing = sink(max_queue=100), Packing(events.TASK)
    record = RECORD.pack(1.5, 1.0, 1.25, 100, packing.number({}, "", ("echo", "worker", "g", "ok")))
    for _ in range(5):
        one.offer(BatchReport(1.5, 0.25, {}, 0, (), [("scale0", packing.told([bytearray(record * 29), TASK]))]))
    one.start()
    one.stop(60)
    rows = stored(tmp_path)
    tasks = [row for row in rows if row["kind"] == "task"]
    assert Counter(row["service_us"] for row in tasks) == {250_000: 87, 20: 3}
    [drop] = [row for row in rows if row["kind"] == "drop"]
    assert (drop["service"], drop["outcome"], drop["count"]) == ("telemetry", "queue", 60)


def test_a_turn_without_events_costs_no_place(sink, tmp_path):
    one = sink(max_queue=1)
    for _ in range(10):
        one.offer(report(seconds=0.5))
    one.offer(report(TASK, seconds=2.0))
    one.start()
    one.stop(60)
    [load] = [row for row in stored(tmp_path) if row["kind"] == "load"]
    assert (load["service_us"], load["queue_us"]) == (7_000_000, 2_000_000)
    assert load["bytes"] > 1_000_000
    assert load["group"] == "north"


def test_telemetry_can_do_without_files(sink, tmp_path):
    one = sink(files=False)
    one.start()
    one.offer(report(TASK))
    one.stop(60)
    assert list(tmp_path.iterdir()) == []


def test_sampling_is_as_the_settings_say(sink, tmp_path):
    one = sink(sampling={"task": 0.1})
    one.start()
    one.offer(report(*[TASK] * 1000))
    one.stop(60)
    tasks = [row for row in stored(tmp_path) if row["kind"] == "task"]
    assert {row["weight"] for row in tasks} == {10.0}
    assert abs(len(tasks) - 100) <= 5 * math.sqrt(1000 * 0.1 * 0.9)


def test_a_loop_that_never_rests_does_not_keep_segments_open(sink, tmp_path):
    """What comes while a round stores is for the next one: load is told, and old segments are finished, meanwhile."""
    one = sink(segment_seconds=0.2, load_interval=0.1)
    one.start()
    enough = threading.Event()

    def offer():
        while not enough.is_set():
            one.offer(report(*[TASK] * 5))
            time.sleep(0)

    loop = threading.Thread(target=offer)
    loop.start()
    try:
        end = time.monotonic() + 60
        for kind in ("load", "task"):
            while len(list(tmp_path.glob(f"telemetry/date=*/kind={kind}/[!.]*.parquet"))) < 2:
                assert time.monotonic() < end, f"no segment of {kind} was finished"
                time.sleep(0.02)
    finally:
        enough.set()
        loop.join()
        one.stop(60)
    rows = stored(tmp_path)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_folder_that_cannot_be_looked_at_does_not_end_the_thread(sink, tmp_path, monkeypatch):
    one = sink()
    monkeypatch.setattr(one._segments, "clean", refuse)
    one.start()
    one.offer(report(TASK))
    one.stop(60)
    assert [row["kind"] for row in stored(tmp_path)] == ["task", "load"]


def refuse():
    raise OSError("input/output error")


def test_an_error_is_told_again_after_all_was_well(sink, caplog):
    one = sink(files=False)
    for work in (refuse, refuse, lambda: None, refuse):
        one._guarded(work)
    assert [record.getMessage() for record in caplog.records] == ["telemetry failed; it goes on"] * 2


def test_an_error_does_not_end_the_thread(sink, tmp_path):
    one = sink()
    one.offer(report((EventKind("odd", "has no fields", None), 0.0), TASK))
    one.start()
    one.stop(60)
    [drop] = [row for row in stored(tmp_path) if row["kind"] == "drop"]
    assert (drop["outcome"], drop["count"]) == ("failed", 2)


def test_drops_of_the_core_are_told_once():
    counts = Counts(dropped=Counter({"closed": 2}), undelivered=Counter({("a", "EAGAIN"): 3, ("b", "EAGAIN"): 1}))
    gauge = Gauge(running(echo=counts))

    def drops():
        return sorted(event[2:] for event in gauge.events(0.0) if event[0] is events.DROP)

    assert drops() == [("echo", "EAGAIN", 4), ("echo", "closed", 2)]
    assert drops() == []
    counts.dropped["closed"] += 5
    assert drops() == [("echo", "closed", 5)]


def test_load_is_of_the_time_since_the_last_one():
    counts = Counts(received=10)
    gauge = Gauge(running(echo=counts), "north")
    gauge.turn(0.5)
    gauge.turn(0.25)

    def load():
        return events.LOAD.table(next(event for event in gauge.events(0.0) if event[0] is events.LOAD))

    first = load()
    assert (first["count"], first["service_us"], first["queue_us"]) == (10, 750_000, 500_000)
    counts.received = 17
    second = load()
    assert (second["count"], second["service_us"], second["queue_us"]) == (7, 0, 0)
    assert second["value"] >= 0
    gauge.turn(0.125)
    third = load()
    assert (third["service_us"], third["queue_us"]) == (125_000, 125_000)
    assert third["group"] == "north"
    assert memory_bytes() > 1_000_000
