"""Several brokers to choose from: what follows from which of them is talked to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0_core.client.frontend import ClientSession
from scale0_core.client.kit.route import Place, Route
from scale0_core.client.session import WorkerSession
from scale0_core.client.storage import Stored
from scale0_core.config.network import ClientConfig, GroupBroker, GroupConfig
from scale0_core.config.running import BrokerRecord, RecordFile

A, B = "tcp://hosta:5555", "tcp://hostb:5555"
EVERYWHERE = ClientConfig(
    identity="me",
    group_config=(GroupConfig("", (GroupBroker("one", frontend="tcp://0.0.0.0:5555", backend="tcp://0.0.0.0:5556"),)),),
    prefered_broker="one",
)


@pytest.mark.parametrize(("reached", "backend"), [(A, "tcp://hosta:5556"), (B, "tcp://hostb:5556")])
def test_a_backend_on_every_interface_is_at_the_broker_that_was_reached(reached: str, backend: str):
    route = Route(Place(f"{A} | {B}"), EVERYWHERE)
    route.linked(reached)
    assert route.backend() == backend


def test_before_anything_was_reached_the_first_broker_counts():
    assert Route(Place(f"{A} | {B}"), EVERYWHERE).backend() == "tcp://hosta:5556"


def test_the_backend_is_beside_the_frontend_that_was_reached():
    route = Route(Place("scale0/frontend@a | scale0/frontend@b"))
    route.linked("scale0/frontend@b")
    assert route.backend() == "scale0/backend@b"


def test_another_broker_that_was_reached_is_none_of_those_that_were_named():
    route = Route(Place(f"{A} | {B}"), EVERYWHERE)
    route.linked(B)
    route.here = Place("tcp://hostc:1")
    route.linked("tcp://hostc:1")
    assert route.backend() == "tcp://hostb:5556"


def test_a_worker_looks_for_its_backend_where_its_configuration_came_from():
    session = WorkerSession(
        Route(Place(f"{A} | {B}")), identity="me", begin=lambda task: None, wall_time=lambda: 0.0,
        stored=Stored(1, EVERYWHERE),
    )  # fmt: skip
    session.start(0.0)
    session.reached = B
    session.on_linked(0.0)
    session.receive((b"S0C01", b"CONFIGACK", b'{"config_version":1}'), 0.0)
    assert session.address == "tcp://hostb:5556"


# --- going elsewhere --------------------------------------------------------------------------------------------------


def sent_to(*frontends: str) -> dict[str, object]:
    return {"brokers": [{"frontend": frontend, "identity": "x"} for frontend in frontends]}


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have a broker of this name run, and return where it is."""
    monkeypatch.setenv("SCALE0_RUN_DIR", str(tmp_path))
    address = f"ipc://{tmp_path}/main/frontend"
    file = RecordFile(tmp_path / "main")
    (tmp_path / "main").mkdir()
    file.write(
        BrokerRecord(
            name="main",
            pid=os.getpid(),
            since="",
            state="running",
            config="",
            runtime_dir="",
            data_dir="",
            addresses={"scale0": {"frontend": (address,)}},
        )
    )
    yield address
    file.remove()


@pytest.mark.parametrize("told", ["scale0/frontend@main", "scale0/frontend@other | scale0/frontend@main"])
def test_one_who_is_sent_to_where_he_is_stays(main: str, told: str):
    session = ClientSession(Route(Place(told)), identity="me")
    session.start(0.0)
    session.reached = "scale0/frontend@main"
    session.on_linked(0.0)
    session.receive((b"S0C01", b"CHANGEBROKER", json.dumps(sent_to(main)).encode()), 0.0)
    assert session.connection == 1
    session.receive((b"S0C01", b"CHANGEBROKER", json.dumps(sent_to("tcp://hostb:1")).encode()), 0.0)
    assert (session.connection, session.address) == (2, "tcp://hostb:1")


def test_one_is_sent_to_every_interface_of_the_broker_at_hand():
    route = Route(Place(f"{A} | {B}"))
    route.linked(B)
    assert not route.sent_to(sent_to("tcp://0.0.0.0:5555"))
    assert route.sent_to(sent_to("tcp://0.0.0.0:6666"))
    assert route.here.frontend == "tcp://hostb:6666"
