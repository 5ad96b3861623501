"""Services of plugins that are called by tasks, in real brokers over sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import zmq

from scale0_core.client import CallError, Client, Worker
from scale0_core.hookspecs import hookimpl
from scale0_core.plugin_types import BrokerContext, PluginInfo
from scale0_core.service import Effect, Endpoint, Frames

PATIENCE = 20.0


class Moody:
    """Answers with what it gets; ``RAISE`` raises."""

    name = "moody"

    def __init__(self, address: str) -> None:
        self.endpoints = {"requests": Endpoint(kind="ROUTER", bind=address, blob_over=1000, tasks=True)}

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        if frames[-1:] == (b"RAISE",):
            raise RuntimeError("in a bad mood")
        return [(socket, frames)]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Iterable[Effect]:
        return []


class MoodyPlugin:
    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return PluginInfo(summary="answers as it likes", api=(2, 2))

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> list[Any]:
        return [Moody(context.address("ipc://{runtime}/moody"))]


@pytest.fixture
def moody(scale0_broker):
    def start(**settings: Any) -> Any:
        return scale0_broker.in_thread((), settings, extra={"moody": MoodyPlugin()})

    return start


def connect(broker: Any) -> Client:
    return Client(broker.address("scale0", "frontend"), timeout=PATIENCE)


def test_plugins_answer_tasks(scale0_broker):
    broker = scale0_broker(["echo", "discovery"])
    with connect(broker) as client:
        assert client.call("echo", b"ECHO", b"", b"hello") == (b"hello",)
        assert client.call("echo", b"LATER", b"50", b"hello") == (b"hello",)
        assert len(client.call("echo", b"DIGEST", b"", b"hello")[0]) == 64
        assert client.call("echo", b"WHAT", b"", b"")[:2] == (b"ERROR", b"501")
        listed = json.loads(client.call("discovery", b"LIST", b'{"service": "echo"}')[1])
    assert [(row["kind"], row["tasks"]) for row in listed["providers"]] == [("hosted", True)]
    assert broker.stop() == 0
    assert broker.wait_for("totals", service="echo")["undelivered"] == 0


def test_many_tasks_and_peers_at_once(moody):
    broker = moody()
    with connect(broker) as client, zmq.Context() as context, context.socket(zmq.REQ) as peer:
        peer.linger, peer.rcvtimeo = 0, round(PATIENCE * 1000)
        peer.connect(broker.address("moody", "requests"))
        assert client.call("moody", b"first") == (b"first",)
        futures = [client.submit("moody", b"%d" % number, bytes(number * 10)) for number in range(1500)]
        for number in range(100):
            peer.send(b"%d" % number)
            assert peer.recv() == b"%d" % number
        for number, future in enumerate(futures):
            assert future.result(PATIENCE) == (b"%d" % number, bytes(number * 10))


def test_a_worker_of_the_same_name_shares_the_tasks(moody):
    broker = moody()
    with connect(broker) as client, Worker(broker.address("scale0", "frontend")) as worker:
        assert client.call("moody", b"x") == (b"x",)
        worker.add("moody", lambda body: b"the worker's " + body)
        worker.wait_ready()
        answers = {client.call("moody", b"x").body for _ in range(10)}
    assert answers == {b"x", b"the worker's x"}


@pytest.mark.parametrize("port", [0, ""])
def test_it_needs_no_backend(moody, port):
    broker = moody(network={"backend_port": port})
    with connect(broker) as client:
        assert client.call("moody", b"x") == (b"x",)


def test_a_service_that_fails_tells_its_callers_until_it_is_put_out(moody):
    broker = moody(limits={"errors": 3})
    with connect(broker) as client:
        assert client.call("moody", b"x") == (b"x",)
        codes = []
        for _ in range(4):
            with pytest.raises(CallError) as caught:
                client.call("moody", b"RAISE")
            codes.append(caught.value.code)
    assert codes == [500, 500, 503, 503]


def scale0(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "scale0_core", *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_on_the_command_line_it_is_one_service_for_all(scale0_broker):
    broker = scale0_broker(["echo", "majordomo"], {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}})
    with connect(broker) as client:
        client.call("echo", b"ECHO", b"", b"hello")
    assert scale0("call", "echo", "-b", broker.address("scale0", "frontend"), "ECHO", "", "hello") == "hello"
    mdp = broker.address("majordomo", "requests")
    assert scale0("majordomo", "call", "--broker", mdp, "echo", "ECHO", "", "hello").strip() == "hello"
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, round(PATIENCE * 1000)
        socket.connect(broker.address("scale0", "management"))
        socket.send_multipart([b"S0C01", b"MANAGEMENTREQ", b'{"command": "list_services"}'])
        rows = json.loads(socket.recv_multipart()[-1])
    assert [(row["service"], row["kind"], row["tasks"]) for row in rows] == [
        ("echo", "hosted", True),
        ("majordomo", "hosted", False),
        ("scale0", "hosted", False),
    ]
