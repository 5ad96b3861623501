"""From what a broker does to a table, through a pipe: real tasks, telemetry, a pipe, and the command of the stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from scale0_core.client import Client, Worker
from scale0_core.testing import BrokerStarter
from scale0_spark import tables
from scale0_spark.zpipes.payloads import events_in
from scale0_spark.zpipes.wire import Pipes

PATIENCE = 120.0


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
