"""The way to and from Scale0's own workers: alone, and in a real broker."""

from __future__ import annotations

import time

import pytest
import zmq

from scale0_core.api import Provider, Registry
from scale0_core.client import Client as Scale0Client
from scale0_core.client import Worker as Scale0Worker
from scale0_core.testing import Script, check_service
from scale0_majordomo import Client, Worker
from scale0_majordomo.bridge import Bridge
from scale0_majordomo.bridged import BridgedMajordomo
from scale0_majordomo.settings import MajordomoSettings
from scale0_majordomo.titanic_store import Store


def bridged(registry: Registry | None = None) -> BridgedMajordomo:
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    return BridgedMajordomo(MajordomoSettings(), ("inproc://majordomo",), None, bridge, registry or Registry())


def test_a_request_goes_to_a_scale0_worker_and_back():
    registry = Registry()
    registry.put(Provider(service="upper", provider="w", kind="worker", state="responsive"))
    script = Script(bridged(registry), start=1.0)
    script.feed("requests", "c", "", "MDPC01", "mmi.service", "upper")
    script.expect("requests", "c", "", "MDPC01", "mmi.service", "200")
    script.feed("requests", "c", "", "MDPC01", "upper", "hello")
    _, _, _, service, number, body = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "hello")
    script.feed("tasks", "S0C01", "TASKREPLY", '{"more":true}', service, number, "HEL")
    script.feed("tasks", "S0C01", "TASKREPLY", "", service, number, "LO")
    script.expect("requests", "c", "", "MDPC01", "upper", "HEL", "LO")
    script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", "", body)
    _, _, _, service, number, _ = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "hello")
    script.feed("tasks", "S0C01", "ERROR", '{"code":504,"message":"late"}', service, number)
    script.expect("requests", "o", "S0MC01", "\x04", "id", "upper", "504", "late")
    script.feed("tasks", "S0C01", "TASKREPLY", "", service, number, "too late")
    script.expect_nothing()


def test_mdp_services_are_offered_and_tasks_carried_out():
    script = Script(bridged(), start=1.0)
    script.feed("requests", "w", "", "MDPW01", "\x01", "echo")
    script.sleep(0.1)
    script.expect("offers", "S0W01", "CHECKCONFIG", '{"identity":"here.majordomo","services":["echo"]}')
    script.feed("offers", "S0W01", "CONFIGACK", '{"config_version": 7}')
    ready = script.expect("offers", "S0W01", "READY", ...)
    assert b'"config_version":7' in ready[2]
    script.feed("offers", "S0W01", "READYOK", '{"hbeatinterval": 1000}')
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    request = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")
    script.feed("requests", "w", "", "MDPW01", "\x03", request[4], "", "HELLO")
    script.expect("offers", "S0W01", "TASKREPLY", "", "echo", "17", "HELLO")
    script.sleep(1.0)
    script.expect("offers", "S0W01", "HEARTBEAT", '{"config_version":7}')
    script.feed("offers", "S0W01", "FORCENEGOTIATE", "")
    script.sleep(0.01)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("requests", "w", "", "MDPW01", "\x05")
    script.feed("offers", "S0W01", "TASK", "", "echo", "18", "hello")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "18")


def test_a_service_that_both_worlds_offer_is_nobodys_alone(tmp_path):
    """Workers of MDP are let in, and requests go to them first; with Titanic as well."""
    registry = Registry()
    registry.put(Provider(service="echo", provider="w", kind="worker", state="responsive"))
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    store = Store(tmp_path / "titanic.sqlite")
    service = BridgedMajordomo(MajordomoSettings(), ("inproc://majordomo",), store, bridge, registry)
    script = Script(service, start=1.0)
    script.feed("requests", "w", "", "MDPW01", "\x01", "echo")
    script.feed("requests", "c", "", "MDPC01", "echo", "hello")
    script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")
    script.feed("requests", "c", "MDPC02", "\x01", "echo", "waits")
    script.expect_nothing()


def test_conformance():
    check_service(bridged)


@pytest.fixture
def broker(scale0_broker):
    return scale0_broker(["majordomo"], {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}})


@pytest.mark.requirement("R94")
def test_in_a_real_broker_each_side_reaches_the_other(broker):
    mdp, frontend = broker.address("majordomo", "requests"), broker.address("scale0", "frontend")
    worker = Worker(mdp)

    @worker.service("lower")
    def lower(request):
        return request.body.lower()

    with Scale0Worker(frontend) as scale0_worker, worker, Client(mdp, timeout=20) as client:
        scale0_worker.add("upper", bytes.upper)
        scale0_worker.wait_ready()
        worker.wait_ready()
        assert client.call("upper", b"hello").body == b"HELLO"
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(mdp)
            socket.send_multipart([b"MDPC01", b"upper", b"stock"])
            assert socket.recv_multipart() == [b"MDPC01", b"upper", b"STOCK"]
        with Scale0Client(frontend, timeout=20) as scale0_client:
            assert call_when_there(scale0_client, "lower", b"HELLO") == b"hello"


def call_when_there(client, service, body):
    """Call a service that the broker hears of in a moment."""
    end = time.monotonic() + 20
    while True:
        try:
            return client.call(service, body, timeout=5).body
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
