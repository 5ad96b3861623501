"""A broker that dies again and again: clients and workers are there as soon as it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import zmq

from scale0_core.client.kit.engine import Engine

from .test_link import Notes

pytestmark = pytest.mark.real

UP, DOWN = 0.15, 1.15


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_a_broker_that_is_up_for_a_moment_is_found_each_time(tmp_path: Path, rounds: int):
    """Every 1.3 s it is there for 0.15 s, less than the pause between two attempts once was."""
    engine = Engine(Notes(f"ipc://{tmp_path}/router"))
    engine.start()
    context = zmq.Context()

    def turn_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            engine.turn()
            time.sleep(0.005)

    try:
        for _ in range(rounds):
            router = context.socket(zmq.ROUTER)
            router.bind(engine.session.address)
            turn_for(UP)
            router.close(0)
            turn_for(DOWN)
    finally:
        engine.close()
        context.term()
    assert isinstance(engine.session, Notes)
    assert engine.session.events.count("linked") >= rounds * 0.6


def test_pauses_grow_with_the_time_without_a_connection(tmp_path: Path):
    engine = Engine(Notes(f"ipc://{tmp_path}/nobody"))
    for address, without, longest in (
        ("ipc:///run/x", 0.0, 0.1),
        ("ipc:///run/x", 10.0, 0.1),
        ("tcp://127.0.0.1:1", 50.0, 0.5),
        ("ipc:///run/x", 1000.0, 1.0),
        ("tcp://192.0.2.1:1", 5.0, 0.5),
        ("tcp://192.0.2.1:1", 1000.0, 1.0),
    ):
        engine._unlinked_since = time.monotonic() - without
        engine._pause(address)
        pause = engine.next_deadline() - time.monotonic()
        assert longest * 0.45 < pause <= longest * 1.01, (address, without)
    engine.close()
