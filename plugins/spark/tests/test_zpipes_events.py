"""From what a broker does to a table, through a pipe: real tasks, telemetry, a pipe, and the command of the stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from scale0_core.client import Client, Worker
from scale0_core.testing import BrokerStarter
from scale0_spark import command, running, tables
from scale0_spark.zpipes.payloads import EVENT_COLUMNS, chunks_of, events_in
from scale0_spark.zpipes.wire import Pipes

from .zpipes_world import World

PATIENCE = 120.0
NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)


@pytest.fixture
def broker() -> Iterator[Any]:
    settings = {"plugin": {"telemetry": {"pipe": "events", "files": False}}}
    with BrokerStarter() as start:
        yield start(["zpipes", "telemetry"], settings)


def do_tasks(broker: Any, count: int) -> None:
    """Have tasks done by a worker of the service upper."""
    address, backend = broker.address("scale0", "frontend"), broker.address("scale0", "backend")
    folder = broker.folder / "peers"
    with Worker(address, backend=backend, config_dir=folder) as worker, Client(address, config_dir=folder) as client:
        worker.add("upper", bytes.upper)
        worker.wait_ready(PATIENCE)
        for _ in range(count):
            assert client.call("upper", b"a", timeout=PATIENCE).body == b"A"


def wait_for_tasks(address: str, count: int) -> None:
    """Wait until so many are in the pipe."""
    end = time.monotonic() + PATIENCE
    with Pipes(address, PATIENCE) as pipes:
        while in_pipe(pipes) < count:
            assert time.monotonic() < end
            time.sleep(0.1)


def in_pipe(pipes: Pipes) -> int:
    state = pipes.state("events")
    if state is None:
        return 0
    pipes.make_group("events", "test", "first")
    found = (events for *_, rows in pipes.rows("events", "test", 1, state.next) for events in events_in(rows))
    return sum(events.column("kind").to_pylist().count("task") for events in found)


@pytest.fixture
def world() -> Iterator[World]:
    with BrokerStarter() as starter:
        yield World(starter)


def chunk(first: int, count: int, service: str = "upper") -> bytes:
    """Make a chunk of so many tasks."""
    rows = [
        {"v": 1, "broker": "b", "epoch": 1, "seq": seq, "kind": "task", "ts": NOON, "weight": 1.0, "service": service}
        for seq in range(first, first + count)
    ]
    (made,) = chunks_of(pa.RecordBatch.from_pylist(rows, EVENT_COLUMNS), "events").to_pylist()
    return made


def requests(folder: Path) -> float:
    return sum(row["requests"] for row in tables.read(folder, "trends_hour").to_pylist())


def streamed(world: World, pipe: str, out: Path, *more: str) -> list[str]:
    place = ["--pipe", pipe, "--address", world.address, "--out", str(out)]
    return ["stream", *place, "--tables", "trends_hour", "--once", "-o", "json", *more]


@pytest.mark.timeout(600)
def test_chunks_that_hold_no_events_end_a_stream_unless_it_is_told_to_leave_them_out(world, run_here, tmp_path):
    pipe = world.name()
    world.fill(pipe, [chunk(1, 3), b"no events", b"", chunk(4, 2)], group=None)
    words = streamed(world, pipe, tmp_path)
    failure = CliRunner().invoke(command.main, words).exception
    assert isinstance(failure, running.JobError)
    assert f"of pipe {pipe} holds no events" in failure.problem.why
    assert "--skip-bad" in failure.problem.remedy
    assert "failOnDataLoss" not in str(failure)
    done = run_here(*words, "--skip-bad")
    assert requests(tmp_path) == 5
    (told,) = json.loads(done.stdout)["items"]
    assert (told["skipped"], told["too_late"]) == (2, 0)
    assert "2 chunks skipped" in done.stderr
    assert "trends_hour: 2 chunks of the pipe were left out" in done.stderr
    assert "hold no events: 2, 3; " in done.stderr
    world.fill(pipe, [chunk(6, 1)], first=5, group=None)
    (told,) = json.loads(run_here(*words, "--quiet").stdout)["items"]
    assert (requests(tmp_path), told["skipped"]) == (6, 0), "it goes on behind them"


@pytest.mark.timeout(600)
def test_two_streams_of_one_table_on_one_pipe_have_groups_of_their_own(world, run_here, tmp_path):
    pipe = world.name()
    world.fill(pipe, [chunk(1, 3)], group=None)
    groups = {"one": [], "two": ["--group", "two"]}
    with world.pipes() as pipes:
        pipes.make_group(pipe, "two-trends_hour", "first")
    for place in (1, 2):
        for name, words in groups.items():
            run_here(*streamed(world, pipe, tmp_path / name, *words, "--quiet"))
            assert requests(tmp_path / name) == 3 * place
        world.fill(pipe, [chunk(1 + 3 * place, 3)], first=place + 1, group=None)
    with world.pipes() as pipes:
        assert set(pipes.state(pipe).groups) == {"spark-trends_hour", "two-trends_hour"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_broker_does_comes_through_a_pipe_into_tables(broker, run_here, tmp_path):
    address = broker.address("zpipes", "pipes", 1)
    do_tasks(broker, 50)
    wait_for_tasks(address, 50)
    place = ("--pipe", "events", "--address", address, "--out", str(tmp_path))
    done = run_here("stream", *place, "--once", "--tables", "trends_minute,flapping", "--quiet")
    assert done.stderr == ""
    rows = tables.read(tmp_path, "trends_minute").to_pylist()
    assert {(row["service"], row["kind"]) for row in rows} == {("upper", "task")}
    assert sum(row["requests"] for row in rows) == 50
    assert sum(row["errors"] for row in rows) == 0
    peers = [row for row in tables.read(tmp_path, "flapping").to_pylist() if row["peer"] is not None]
    assert sum(row["changes"] for row in peers) >= 2, "the worker came and left"
