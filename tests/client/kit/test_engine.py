"""Engines: what they hold, and what they give to a link."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import zmq

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.link import CONTEXT
from scale0_core.client.kit.sessions import BaseSession

pytestmark = pytest.mark.real


class Unwilling(BaseSession):
    def start(self, now: float) -> None:
        raise ValueError("a fault of the session")


def test_an_engine_whose_session_does_not_start_holds_nothing(real: None, tmp_path: Path):
    engine = Engine(Unwilling(f"ipc://{tmp_path}/x"))
    with pytest.raises(ValueError, match="a fault"):
        engine.start()
    assert CONTEXT._context is None


class Reaching(BaseSession):
    found = ""

    def on_linked(self, now: float) -> None:
        self.found = self.reached


def test_a_session_is_told_which_of_several_brokers_it_is_linked_to(real: None, tmp_path: Path):
    there = f"ipc://{tmp_path}/there"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(there)
        session = Reaching(f"ipc://{tmp_path}/nobody | {there}")
        engine = Engine(session)
        engine.start()
        end = time.monotonic() + 20
        while not session.found:
            assert time.monotonic() < end
            engine.turn()
            time.sleep(0.005)
        engine.close()
    assert session.found == there
