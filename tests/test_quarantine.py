"""A service in quarantine: who sees it, what callers get, and how it comes out again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zmq

from scale0_core.api import API_VERSION, BrokerContext, Endpoint, PluginInfo, hookimpl
from scale0_core.client import CallError, Client
from scale0_core.errors import ServiceFaultError
from scale0_core.network.service import BrokerService
from scale0_core.testing import manage


class Fragile:
    """Echoes tasks; ``BAD`` raises."""

    name = "glass"

    def __init__(self, address: str) -> None:
        self.endpoints = {"main": Endpoint(kind="ROUTER", bind=address, tasks=True)}

    def receive(self, socket: str, frames: Any, now: float) -> Iterable[Any]:
        if frames[-1] == b"BAD":
            raise ValueError("on purpose")
        return [(socket, frames)]

    def next_deadline(self) -> None:
        return None

    def on_deadline(self, now: float) -> tuple[()]:
        return ()


class FragilePlugin:
    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return PluginInfo(summary="breaks", api=(API_VERSION, API_VERSION))

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> list[Fragile]:
        return [Fragile(context.address("ipc://{runtime}/glass"))]


@pytest.fixture
def broker(scale0_broker: Any) -> Any:
    return scale0_broker.in_thread(settings={"limits": {"errors": 2}}, extra={"fragile": FragilePlugin})


@pytest.fixture
def scale0(broker: Any) -> Callable[..., Any]:
    def run(*arguments: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "scale0_core", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "json" in arguments else done.stdout + done.stderr

    return run


def failure(client: Client, payload: bytes = b"hello") -> tuple[int | None, str]:
    with pytest.raises(CallError) as caught:
        client.call("glass", payload, timeout=10)
    return getattr(caught.value, "code", None), str(caught.value)


def test_a_quarantined_service_is_seen_by_all_and_can_be_resumed(broker: Any, scale0: Any):
    where = ("--broker", broker.address("scale0", "management"))
    with Client(broker.address("scale0", "frontend")) as client:
        assert client.call("glass", b"hello", timeout=10) == (b"hello",)
        for _ in range(2):
            failure(client, b"BAD")
        code, words = failure(client)
        assert (code, "quarantined" in words) == (503, True)

        (row,) = scale0("status", *where, "-o", "json")["quarantined"]
        assert (row["service"], row["plugin"], row["errors"]) == ("glass", "fragile", 2)
        assert "on purpose" in row["last_error"]
        assert "glass" in scale0("status", *where)
        rows = {row["service"]: row for row in scale0("services", *where, "-o", "json")["items"]}
        assert (rows["glass"]["state"], "on purpose" in rows["glass"]["last_error"]) == ("quarantined", True)
        told = scale0("plugins", "doctor", "--config", str(broker.folder / "broker.toml"), code=1)
        assert "the service glass is quarantined" in told
        assert "scale0 plugins resume fragile" in told

        assert scale0("plugins", "resume", "fragile", *where, "-o", "json")["resumed"] == ["glass"]
        assert client.call("glass", b"hello", timeout=10) == (b"hello",)
        assert manage(broker, "state")[1]["quarantined"] == []
        assert {row["state"] for row in manage(broker, "list_services")[1] if row["service"] == "glass"} == {
            "responsive"
        }
        failure(client, b"BAD")
        assert client.call("glass", b"hello", timeout=10) == (b"hello",), "its budget is whole again"
    assert "no service of fragile is quarantined" in scale0("plugins", "resume", "fragile", *where, code=1)


def test_its_own_socket_serves_again_and_an_address_that_is_taken_is_told(broker: Any):
    address = broker.address("glass", "main")
    path = Path(address.removeprefix("ipc://"))
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer, socket.socket(socket.AF_UNIX) as other:
        peer.linger = 0
        peer.connect(address)
        for _ in range(2):
            peer.send_multipart([b"", b"BAD"])
        while not manage(broker, "state")[1]["quarantined"]:
            pass
        other.bind(str(path))
        other.listen()
        code, reason = manage(broker, "resume", name="glass")
        assert (code, "in use" in reason) == (500, True)
        assert manage(broker, "state")[1]["quarantined"], "it stays where it was"
        other.close()
        path.unlink()
        assert manage(broker, "resume", name="glass") == (200, {"resumed": ["glass"]})
        peer.send_multipart([b"", b"hello"])
        assert peer.poll(20_000)
        assert peer.recv_multipart() == [b"", b"hello"]


def test_a_broker_whose_own_service_fails_too_often_ends_with_an_error(scale0_broker: Any, monkeypatch: Any):
    broker = scale0_broker.in_thread(settings={"limits": {"errors": 2}})
    monkeypatch.setattr(BrokerService, "_ping", lambda *_: 1 / 0)
    frontend = broker.address("scale0", "frontend")
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(frontend)
        broker.broker.loop._slow_after = 60
        service = broker.broker.loop.stations[0].host.service
        service._handlers[b"PING"] = service._ping
        for _ in range(2):
            peer.send_multipart([b"S0C01", b"PING", b""])
        broker._thread.join(20)
    assert not broker._thread.is_alive()
    error, broker._error = broker._error, None
    assert isinstance(error, ServiceFaultError)
    assert "the broker's own service failed too often" in str(error)
    assert "ZeroDivisionError" in str(error)
