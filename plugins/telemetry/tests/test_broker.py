"""Telemetry in a real broker, with real clients and workers, and files that pyarrow reads back."""

import importlib.metadata
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zmq

from scale0_core.api import BatchReport, BrokerContext, Packing, RunningBroker, events
from scale0_core.client import Client, Worker
from scale0_telemetry.observer.columns import Columns
from scale0_telemetry.observer.publisher import Publisher
from scale0_telemetry.observer.sink import Sink
from scale0_telemetry.settings import TelemetrySettings

pytestmark = pytest.mark.real

TASK = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)


def settings(**telemetry):
    return {"plugin": {"telemetry": telemetry}}


def segments(broker):
    return sorted((broker.folder / "data" / "telemetry").glob("date=*/kind=*/[!.]*.parquet"))


def stored(broker):
    """Read all events as anybody would."""
    table = ds.dataset(broker.folder / "data" / "telemetry", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["seq"])


def await_tasks(broker, count, seconds=60.0):
    """Wait until so many tasks are in whole segments."""
    end = time.monotonic() + seconds
    while sum(pq.read_metadata(path).num_rows for path in segments(broker) if path.parent.name == "kind=task") < count:
        assert time.monotonic() < end, broker.text()
        time.sleep(0.05)


def do_tasks(broker, count):
    """Have tasks done by a worker of the service upper; the replies have 1, 2, 3... bytes."""
    address, backend = broker.address("scale0", "frontend"), broker.address("scale0", "backend")
    folder = broker.folder / "peers"
    with Worker(address, backend=backend, config_dir=folder) as worker, Client(address, config_dir=folder) as client:
        worker.add("upper", bytes.upper)
        worker.wait_ready(60)
        return [client.call("upper", b"a" * number, timeout=60).body for number in range(1, count + 1)]


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_what_was_done_is_in_the_files(scale0_broker, rate):
    broker = scale0_broker(["telemetry"], settings(sampling={"task": rate}))
    before = time.time()
    do_tasks(broker, 100)
    assert broker.stop() == 0
    rows = stored(broker)
    tasks = [row for row in rows if row["kind"] == "task"]
    assert {row["weight"] for row in tasks} == {1 / rate}
    assert abs(len(tasks) - 100 * rate) <= 5 * math.sqrt(100 * rate * (1 - rate))
    sizes = [row["bytes"] for row in tasks]
    assert sizes == sorted(set(sizes) & set(range(1, 101)))
    assert {(row["service"], row["outcome"], row["broker"]) for row in tasks} == {("upper", "ok", broker.name)}
    assert all(row["queue_us"] >= 0 and row["service_us"] >= 0 for row in tasks)
    assert all(before - 1 <= row["ts"].timestamp() <= time.time() for row in tasks)
    assert {"join", "leave", "load"} <= {row["kind"] for row in rows}
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert len({row["epoch"] for row in rows}) == 1


def test_it_is_off_unless_it_is_enabled(scale0_broker):
    broker = scale0_broker([])
    do_tasks(broker, 1)
    assert broker.stop() == 0
    assert not (broker.folder / "data" / "telemetry").exists()


def test_a_kill_costs_open_segments_alone(scale0_broker):
    broker = scale0_broker(["telemetry"], settings(segment_seconds=0.2, load_interval=0.1))
    do_tasks(broker, 20)
    await_tasks(broker, 20)
    do_tasks(broker, 10)
    broker.kill()
    left = segments(broker)
    counts = [pq.ParquetFile(path).read().num_rows for path in left]
    assert sum(counts) == len(stored(broker))
    tasks = [row["bytes"] for row in stored(broker) if row["kind"] == "task"]
    wanted = [*range(1, 21), *range(1, 11)]
    assert len(tasks) >= 20
    assert tasks == wanted[: len(tasks)], "all that was in whole segments, and no gap in what came later"
    folder = left[0].parent
    (folder / f".{broker.name}-1-1.parquet").write_bytes(b"PAR1 half of a segment")
    (folder / ".another-1-1.parquet").write_bytes(b"PAR1 half of a segment")
    again = scale0_broker(["telemetry"], settings(folder=str(broker.folder / "data" / "telemetry")), name=broker.name)
    again.wait_for("unfinished segments of an earlier run removed")
    assert again.stop() == 0
    assert not list(folder.glob(f".{broker.name}-*"))
    assert list(folder.glob(".another-*"))
    rows = stored(broker)
    assert len({row["epoch"] for row in rows}) == 2
    assert len({(row["epoch"], row["seq"]) for row in rows}) == len(rows)


def test_the_quota_holds_and_is_told(scale0_broker):
    broker = scale0_broker(["telemetry"], settings(segment_seconds=0.1, load_interval=0.1, quota_bytes=20_000))
    broker.wait_for("oldest segments removed to keep the quota", 120)
    count = len(segments(broker))
    assert count >= 1
    assert broker.stop() == 0
    assert sum(path.stat().st_size for path in segments(broker)) <= 20_000


def test_a_disk_that_refuses_does_not_stop_the_broker(scale0_broker, tmp_path):
    blocked = tmp_path / "events"
    blocked.write_text("in the way")
    broker = scale0_broker(["telemetry"], settings(folder=str(blocked), segment_seconds=0.1, load_interval=0.1))
    broker.wait_for("events cannot be written; it is tried again", 60)
    assert do_tasks(broker, 3)
    blocked.unlink()
    end = time.monotonic() + 60
    while not list(blocked.glob("date=*/kind=task/[!.]*.parquet")):
        assert time.monotonic() < end, broker.text()
        time.sleep(0.05)
    assert broker.stop() == 0
    kinds = ds.dataset(blocked, partitioning="hive").to_table().column("kind").to_pylist()
    assert kinds.count("task") == 3


def test_wrong_rates_are_a_fault_of_the_configuration(scale0_broker):
    with pytest.raises(AssertionError, match="rates from 0 to 1, not task = 2"):
        scale0_broker(["telemetry"], settings(sampling={"task": 2.0}))


def test_a_sample_of_states_is_a_fault_that_is_told_with_all_others(tmp_path):
    (tmp_path / "broker.toml").write_text(
        '[broker]\nplugins = ["telemetry"]\n'
        "[plugin.telemetry]\nload_interval = 0.0\n[plugin.telemetry.sampling]\njoin = 0.1\ntask = 0.1\nleave = 0.0\n"
    )
    command = [sys.executable, "-m", "scale0_core", "config", "check", str(tmp_path / "broker.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "plugin.telemetry.sampling" in said
    assert "must leave join, leave out" in said
    assert "plugin.telemetry.load_interval" in said


# --- into a pipe ----------------------------------------------------------------------------------------------

needs_pipes = pytest.mark.skipif(
    not importlib.metadata.entry_points(group="scale0.plugins", name="zpipes"), reason="the plugin zpipes is not here"
)


def ask(socket, *frames):
    socket.send_multipart(frames)
    assert socket.poll(60_000)
    return socket.recv_multipart()


def rows_in_pipe(address, want, seconds=60):
    """Read chunks of the pipe until so many tasks are there; without removing them."""
    rows, numbers = [], []
    end = time.monotonic() + seconds
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        while ask(socket, b"GROUP", b"events", b"reader", b"first")[0] != b"OK":
            assert time.monotonic() < end
            time.sleep(0.05)
        start = b"1"
        while sum(row["kind"] == "task" for row in rows) < want:
            assert time.monotonic() < end, f"{len(rows)} rows came"
            word, start, batch = ask(socket, b"FETCH", b"events", b"reader", start, b"100", b"1000000", b"1000")
            assert word == b"BATCH"
            while batch:
                size = int.from_bytes(batch[8:12], "big")
                numbers.append(int.from_bytes(batch[:8], "big"))
                with pa.ipc.open_stream(batch[12 : 12 + size]) as reader:
                    rows += reader.read_all().to_pylist()
                batch = batch[12 + size :]
    assert numbers == list(range(1, len(numbers) + 1))
    return rows


@needs_pipes
@pytest.mark.parametrize("files", [True, False])
def test_events_are_published_to_a_pipe_of_the_broker_itself(scale0_broker, files):
    broker = scale0_broker(["zpipes", "telemetry"], settings(pipe="events", files=files))
    do_tasks(broker, 50)
    rows = rows_in_pipe(broker.address("zpipes", "pipes", 1), 50)
    assert sum(row["kind"] == "task" for row in rows) == 50
    assert len({(row["epoch"], row["seq"]) for row in rows}) == len(rows)
    assert {row["broker"] for row in rows} == {broker.name}
    start = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - start < 30
    assert bool(segments(broker)) == files


@needs_pipes
@pytest.mark.requirement("R26")
def test_events_of_several_brokers_are_published_to_the_pipe_of_another(scale0_broker):
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    table = settings(pipe="events", pipe_broker=address, files=False)
    brokers = [scale0_broker(["telemetry"], table) for _ in range(2)]
    for count, broker in enumerate(brokers, 10):
        do_tasks(broker, count)
    tasks = [row for row in rows_in_pipe(address, 21) if row["kind"] == "task"]
    assert Counter(row["broker"] for row in tasks) == {broker.name: count for count, broker in enumerate(brokers, 10)}
    assert {(row["service"], row["outcome"], row["weight"]) for row in tasks} == {("upper", "ok", 1.0)}
    assert all(broker.stop() == 0 for broker in brokers)
    assert not any(segments(broker) for broker in brokers)


@needs_pipes
@pytest.mark.requirement("R26")
def test_the_broker_of_the_pipe_may_come_later_and_be_killed(scale0_broker):
    pipes = scale0_broker(["zpipes"], {"plugin": {"zpipes": {"durable": ["events"]}}})
    address = pipes.address("zpipes", "pipes", 1)
    broker = scale0_broker(["telemetry"], settings(pipe="events", pipe_broker=address, files=False))
    do_tasks(broker, 20)
    rows_in_pipe(address, 20)
    pipes.kill()
    do_tasks(broker, 30)
    table = {"plugin": {"zpipes": {"durable": ["events"], "bind": [address]}}}
    table["broker"] = {"data_dir": str(pipes.folder / "data")}
    scale0_broker(["zpipes"], table, name=pipes.name)
    rows = rows_in_pipe(address, 50, seconds=120)
    assert sum(row["kind"] == "task" for row in rows) == 50
    assert len({(row["epoch"], row["seq"]) for row in rows}) == len(rows)
    assert broker.stop() == 0


def told_of(address):
    """Ask for all about the pipe; nothing if it is not there."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        word, *answer = ask(socket, b"INFO", b"events")
        return json.loads(answer[0]) if word == b"INFO" else {}


def numbers_in_pipe(address, want, seconds=60):
    """Read the pipe until so many events are there, and give their numbers."""
    numbers = []
    end = time.monotonic() + seconds
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        ask(socket, b"OPEN", b"events")
        ask(socket, b"GROUP", b"events", b"reader", b"first")
        start = b"1"
        while len(numbers) < want:
            assert time.monotonic() < end, f"{len(numbers)} events came"
            _, start, batch = ask(socket, b"FETCH", b"events", b"reader", start, b"100", b"1000000", b"1000")
            while batch:
                size = int.from_bytes(batch[8:12], "big")
                with pa.ipc.open_stream(batch[12 : 12 + size]) as reader:
                    numbers += reader.read_all().column("seq").to_pylist()
                batch = batch[12 + size :]
            ask(socket, b"ACK", b"events", b"reader", b"%d" % (int(start) - 1))
    return numbers


@needs_pipes
@pytest.mark.parametrize("packed", [True, False])
def test_a_burst_of_events_reaches_the_pipe(scale0_broker, tmp_path, packed):
    """More at once than a pipe takes in one message, and than may wait here."""
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    context = BrokerContext(name="left", runtime_dir=str(tmp_path), data_dir=str(tmp_path), group="north")
    running = RunningBroker(name="left", wire="native", addresses={}, counts={})
    sink = Sink(TelemetrySettings(files=False, pipe="events", pipe_broker=address), context, running)
    told = [(events.TASK, 1.5, "echo", "worker" * 20, "north", "ok", 10, 20, 100)] * 150_000
    if packed:
        packing = Packing(events.TASK)
        about = packing.number({}, 0, ("echo", "worker" * 20, "north", "ok"))
        records = []
        for _ in told:
            packing.add(records, 1.5, 1.0, 1.25, 100, about)
        told = packing.told(records)
    sink.offer(BatchReport(1.5, 0.25, {}, 0, (), [("scale0", told)]))
    sink.start()
    assert numbers_in_pipe(address, 150_000)[:150_000] == list(range(1, 150_001))
    sink.stop(60)
    assert told_of(address)["links"] == 1, "that of the reader above, which did not close it"


@needs_pipes
def test_a_publisher_has_one_link_however_often_it_connects(scale0_broker):
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    publisher = Publisher(address, b"events", b"me", 1 << 20)
    columns = Columns("left", 7)

    def publish():
        chunks = told_of(address).get("chunks", 0)
        publisher.put(columns.convert([(1772366400.0, [("scale0", [TASK])])]))
        end = time.monotonic() + 60
        while told_of(address).get("chunks", 0) == chunks:
            assert time.monotonic() < end
            publisher.step()

    for _ in range(3):
        publish()
        assert told_of(address)["links"] == 1
        publisher.session.reconnect()
    publish()
    publisher.close(60)
    assert told_of(address)["links"] == 0


@needs_pipes
def test_an_empty_pipe_is_forgotten_with_the_broker_that_published_to_it(scale0_broker):
    pipes = scale0_broker(["zpipes"])
    address = pipes.address("zpipes", "pipes", 1)
    for _ in range(2):
        broker = scale0_broker(["telemetry"], settings(pipe="events", pipe_broker=address, load_interval=0.1))
        end = time.monotonic() + 60
        while told_of(address).get("links") != 1:
            assert time.monotonic() < end, broker.text()
            time.sleep(0.05)
        assert broker.stop() == 0
        assert told_of(address)["links"] == 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        ask(socket, b"PURGE", b"events")
    assert told_of(address) == {}


def test_a_broker_that_was_asked_for_telemetry_does_not_run_without(tmp_path):
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no such library')")
    config = tmp_path / "broker.toml"
    config.write_text(
        f'[broker]\nname = "no-{os.getpid()}"\nplugins = ["telemetry"]\nruntime_dir = "{tmp_path}"\n'
        f'data_dir = "{tmp_path}/data"\n[network]\nfrontend_port = 0\nbackend_port = 0\nconfig_pub_port = 0\n'
    )
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "scale0_core", "broker", "--config", str(config)]
    broken = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=broken)
    assert ended.returncode not in (0, -15)
    assert "no such library" in ended.stderr
    assert "the broker does not start, since broker.plugins names this plugin" in ended.stderr
    assert "Traceback" not in ended.stderr
