"""The way to and from Scale0's own workers: alone, and in a real broker."""

from __future__ import annotations

import json
import threading
import time

import pytest
import zmq

from scale0_core.api import Endpoint, PluginInfo, Provider, Registry, hookimpl
from scale0_core.client import CallError
from scale0_core.client import Client as Scale0Client
from scale0_core.client import Worker as Scale0Worker
from scale0_core.testing import Script, check_service
from scale0_majordomo import CallTimedOutError, Client, RemoteError, Worker
from scale0_majordomo.service.bridge import Bridge
from scale0_majordomo.service.bridged import BridgedMajordomo
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.settings import MajordomoSettings


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
    script.expect("requests", "o", "S0MC01", "\x04", "id", "upper", "408", "late")  # its timeout, as we say it
    script.feed("tasks", "S0C01", "TASKREPLY", "", service, number, "too late")
    script.expect_nothing()


def scale0_offers(*services):
    """Give a registry in which a worker of Scale0 offers services."""
    registry = Registry()
    for name in services:
        registry.put(Provider(service=name, provider="w", kind="worker", state="responsive"))
    return registry


def scale0_now_offers(script, registry, name):
    """Let a worker of Scale0 come; as in the loop, it is noticed in the next turn, which a message begins."""
    registry.put(Provider(service=name, provider="w", kind="worker", state="responsive"))
    script.feed("requests", "asks", "", "MDPC01", "mmi.service", name)
    script.expect("requests", "asks", "", "MDPC01", "mmi.service", "200")
    script.sleep(0)


def test_a_client_s_own_time_and_wish_for_retries_go_along():
    script = Script(bridged(scale0_offers("upper")), start=1.0)
    script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", '{"timeout":1500,"retry":false}', "x")
    script.expect("tasks", "S0C01", "TASK", '{"timeout": 1500, "retry": false}', "upper", ..., "x")
    script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", "", "again")
    script.expect("requests", "o", "S0MC01", "\x04", "id", "upper", "400", ...)
    script.feed("requests", "o", "S0MC01", "\x01", "other", "upper", '{"timeout":-1}', "x")
    script.expect("requests", "o", "S0MC01", "\x04", "other", "upper", "400", ...)


def test_a_request_that_is_with_scale0_can_be_cancelled():
    script = Script(bridged(scale0_offers("upper")), start=1.0)
    script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", "", "x")
    _, _, _, service, number, _ = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "x")
    script.feed("requests", "o", "S0MC01", "\x05", "id")
    script.expect("tasks", "S0C01", "CANCEL", "", "upper", number)
    script.expect("requests", "o", "S0MC01", "\x04", "id", "upper", "410", "cancelled")
    script.feed("tasks", "S0C01", "TASKREPLY", "", service, number, "too late")
    script.expect_nothing()


@pytest.mark.parametrize("client", ["\0gone", "fixed"])
@pytest.mark.parametrize("said", ["S0MC01 \x01 id upper OPTIONS x", "MDPC02 \x01 upper x"])
def test_requests_with_scale0_are_cancelled_when_their_client_is_gone_for_good(client, said):
    """One with a name of its own may come back for its replies."""
    script = Script(bridged(scale0_offers("upper")), start=1.0)
    script.feed("requests", client, *said.replace("OPTIONS", '{"timeout":600000}').split(" "))
    _, _, _, service, number, _ = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "x")
    script.feed("requests", "\0other", "MDPC02", "\x01", "upper", "other")
    script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "other")
    script.refuse("requests", client)
    script.feed("tasks", "S0C01", "TASKREPLY", '{"more":true}', service, number, "part")
    script.sleep(1.0)
    if client == "fixed":
        script.expect_nothing()
        return
    script.expect("tasks", "S0C01", "CANCEL", "", "upper", number)
    script.feed("tasks", "S0C01", "TASKREPLY", '{"more":true}', service, number, "part")
    script.sleep(1.0)
    script.expect_nothing()
    assert script.service.totals()["abandoned"] == 1


def test_what_is_left_of_a_client_s_time_goes_along_when_scale0_offers_the_service_later():
    registry = Registry()
    script = Script(bridged(registry), start=1.0)
    script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", '{"timeout":1500}', "x")
    script.sleep(0.5)
    scale0_now_offers(script, registry, "upper")
    task = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "x")
    assert 980 <= json.loads(task[2])["timeout"] <= 1000
    registry.remove("upper", "w")
    script.feed("requests", "c", "", "MDPC01", "mmi.service", "upper")
    script.expect("requests", "c", "", "MDPC01", "mmi.service", "404")


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
    script.feed("offers", "S0W01", "HEARTBEAT", '{"time":1.0,"config_version":7,"reply_to":0}')
    script.expect_nothing()  # it was the answer, and is not answered in turn
    script.feed("offers", "S0W01", "HEARTBEAT", '{"time":1.0,"config_version":7}')
    script.expect("offers", "S0W01", "HEARTBEAT", '{"config_version":7}')
    script.feed("offers", "S0W01", "FORCENEGOTIATE", "")
    script.sleep(0.01)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("requests", "w", "", "MDPW01", "\x05")
    script.feed("offers", "S0W01", "TASK", "", "echo", "18", "hello")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "18")


def serving(script, *services):
    """Bring the bridge's worker to where it gets tasks."""
    for name in services:
        script.feed("requests", f"w-{name}", "MDPW02", "\x01", name)
    script.sleep(0.1)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("offers", "S0W01", "CONFIGACK", '{"config_version": 7}')
    script.expect("offers", "S0W01", "READY", ...)
    script.feed("offers", "S0W01", "READYOK", '{"hbeatinterval": 100000}')


def given(script, number, service="count", body="3"):
    """Give the bridge a task, and the worker of MDP the request; give its address."""
    script.feed("offers", "S0W01", "TASK", "", service, number, body)
    return script.expect("requests", f"w-{service}", "MDPW02", "\x02", ..., "", body)[3]


def test_parts_of_a_reply_are_passed_on_as_they_come():
    script = Script(bridged(), start=1.0)
    serving(script, "count")
    address = given(script, "17")
    for part in ("0", "1"):
        script.feed("requests", "w-count", "MDPW02", "\x03", address, "", part)
        script.expect("offers", "S0W01", "TASKREPLY", '{"more":true}', "count", "17", part)
    script.feed("requests", "w-count", "MDPW02", "\x04", address, "", "2")
    script.expect("offers", "S0W01", "TASKREPLY", "", "count", "17", "2")
    script.expect_nothing()


@pytest.mark.parametrize("options", ["", '{"retry":false}', '{"retry":true}'])
def test_a_task_reaches_one_worker_of_mdp_unless_it_may_be_repeated(options):
    """``resend`` is for requests of MDP: a client of Scale0 that says nothing is promised that it is done once."""
    script = Script(bridged(), start=1.0)
    serving(script, "count")
    script.feed("requests", "other", "MDPW02", "\x01", "count")
    script.feed("offers", "S0W01", "TASK", options, "count", "17", "3")
    script.expect("requests", "w-count", "MDPW02", "\x02", ..., "", "3")
    script.feed("requests", "w-count", "MDPW02", "\x06")
    if "true" in options:
        script.expect("requests", "other", "MDPW02", "\x02", ..., "", "3")
    else:
        told = script.expect("offers", "S0W01", "TASKREPLY", ..., "count", "17")
        assert b'"code":502' in told[2]
    script.expect_nothing()


@pytest.mark.parametrize(
    ("parts", "options", "end", "body"),
    [
        (("0", "1"), '{"seq":2,"empty":true}', "", ()),
        (("0",), '{"seq":1}', "end", ("end",)),
        (("0",), '{"seq":1}', "", ("",)),
        ((), '{"seq":0,"empty":true}', "", ()),
        ((), "", "", ("",)),
        (("0",), '{"empty":', "", ("",)),
    ],
)
def test_the_end_of_a_generator_of_ours_is_no_part_for_clients_of_scale0_and_of_mdp(parts, options, end, body):
    script = Script(bridged(), start=1.0)
    script.feed("requests", "own", "S0MW01", "\x01", "count", "")
    script.sleep(0.1)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("offers", "S0W01", "CONFIGACK", '{"config_version": 7}')
    script.expect("offers", "S0W01", "READY", ...)
    script.feed("offers", "S0W01", "READYOK", '{"hbeatinterval": 100000}')
    script.feed("offers", "S0W01", "TASK", "", "count", "17", "3")
    address = script.expect("requests", "own", "S0MW01", "\x02", ..., "count", "", "3")[3]
    for part in parts:
        script.feed("requests", "own", "S0MW01", "\x03", address, "", part)
        script.expect("offers", "S0W01", "TASKREPLY", '{"more":true}', "count", "17", part)
    script.feed("requests", "own", "S0MW01", "\x04", address, options, end)
    script.expect("offers", "S0W01", "TASKREPLY", "", "count", "17", *body)
    script.feed("requests", "c", "", "MDPC01", "count", "3")
    address = script.expect("requests", "own", "S0MW01", "\x02", ..., "count", "", "3")[3]
    for part in parts:
        script.feed("requests", "own", "S0MW01", "\x03", address, "", part)
    script.feed("requests", "own", "S0MW01", "\x04", address, options, end)
    script.expect("requests", "c", "", "MDPC01", "count", *((*parts, *body) or ("",)))
    script.expect_nothing()


def test_a_worker_that_dies_between_two_parts_ends_the_task_in_an_error():
    """It is not given to another one: the client would get the first parts twice."""
    script = Script(bridged(), start=1.0)
    serving(script, "count")
    script.feed("requests", "other", "MDPW02", "\x01", "count")
    address = given(script, "17")
    script.feed("requests", "w-count", "MDPW02", "\x03", address, "", "0")
    script.expect("offers", "S0W01", "TASKREPLY", '{"more":true}', "count", "17", "0")
    script.feed("requests", "w-count", "MDPW02", "\x06")
    told = script.expect("offers", "S0W01", "TASKREPLY", ..., "count", "17")
    assert b'"code":502' in told[2]


def test_a_stream_with_a_part_that_could_not_be_sent_ends_in_an_error_and_never_looks_whole():
    script = Script(bridged(), start=1.0)
    serving(script, "count")
    address = given(script, "17")
    script.refuse("offers", reason="EAGAIN")
    script.feed("requests", "w-count", "MDPW02", "\x03", address, "", "0")
    script.accept("offers")
    script.feed("requests", "w-count", "MDPW02", "\x03", address, "", "1")
    script.feed("requests", "w-count", "MDPW02", "\x04", address, "", "2")
    script.expect_nothing()
    script.sleep(0.1)
    told = script.expect("offers", "S0W01", "TASKREPLY", ..., "count", "17")
    assert b'"code":503' in told[2]
    script.expect_nothing()


def test_replies_and_requests_that_are_too_large_for_the_broker_are_errors_and_nothing_worse():
    registry = Registry()
    registry.put(Provider(service="upper", provider="w", kind="worker", state="responsive"))
    script = Script(bridged(registry), start=1.0)
    serving(script, "count")
    for number, body in (("17", [b"x"] * 30), ("18", [bytes(1024 * 1024 + 1)])):
        address = given(script, number)
        script.feed("requests", "w-count", "MDPW02", "\x04", address, "", *body)
        told = script.expect("offers", "S0W01", "TASKREPLY", ..., "count", number)
        assert b'"code":413' in told[2]
        script.feed("requests", "o", "S0MC01", "\x01", "id", "upper", "", *body)
        script.expect("requests", "o", "S0MC01", "\x04", "id", "upper", "413", "too large for a task")


def test_a_hosted_service_is_reached_when_it_takes_tasks():
    registry = Registry()
    hosted = Provider(service="shop", provider="here", kind="hosted", state="responsive")
    registry.put(hosted)
    script = Script(bridged(registry), start=1.0)
    script.feed("requests", "c", "", "MDPC01", "mmi.service", "shop")
    script.expect("requests", "c", "", "MDPC01", "mmi.service", "404")
    registry.set_tasks("shop", "here", tasks=True)
    script.feed("requests", "c", "", "MDPC01", "mmi.service", "shop")
    script.expect("requests", "c", "", "MDPC01", "mmi.service", "200")
    script.feed("requests", "c", "MDPC02", "\x01", "shop", "hello")
    number = script.expect("tasks", "S0C01", "TASK", ..., "shop", ..., "hello")[4]
    script.feed("tasks", "S0C01", "TASKREPLY", "", "shop", number, "HELLO")
    script.expect("requests", "c", "MDPC02", "\x03", "shop", "HELLO")


def test_requests_that_came_too_early_go_to_scale0_when_it_has_the_service():
    registry = Registry()
    script = Script(bridged(registry), start=1.0)
    script.feed("requests", "c1", "", "MDPC01", "upper", "first")
    script.feed("requests", "c2", "S0MC01", "\x01", "id", "upper", "", "second")
    script.expect_nothing()
    registry.put(Provider(service="upper", provider="w", kind="worker", state="responsive"))
    script.feed("requests", "c3", "MDPC02", "\x01", "upper", "third")
    script.sleep(0)
    numbers = {}
    for _ in range(3):
        task = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., ...)
        numbers[task[5]] = task[4]
    for body in (b"first", b"second", b"third"):
        script.feed("tasks", "S0C01", "TASKREPLY", "", "upper", numbers[body], body.upper())
    script.expect("requests", "c1", "", "MDPC01", "upper", "FIRST")
    script.expect("requests", "c2", "S0MC01", "\x03", "id", "upper", ..., "SECOND")
    script.expect("requests", "c3", "MDPC02", "\x03", "upper", "THIRD")


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


class Reverse:
    """A service that a plugin hosts, and which takes tasks."""

    name = "reverse"

    def __init__(self, address):
        self.endpoints = {"requests": Endpoint(kind="ROUTER", bind=address, tasks=True)}

    def receive(self, socket, frames, now):
        return [(socket, (*frames[:2], *(frame[::-1] for frame in frames[2:])))]

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return []


class ReversePlugin:
    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="reverses", api=(2, 2))

    @hookimpl
    def scale0_services(self, context):
        return [Reverse(context.address("ipc://{runtime}/reverse"))]


@pytest.mark.requirement("R94")
def test_in_a_real_broker_mdp_clients_reach_what_plugins_host(scale0_broker):
    settings = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}
    broker = scale0_broker.in_thread(["majordomo"], settings, extra={"reverse": ReversePlugin()})
    mdp = broker.address("majordomo", "requests")
    with Client(mdp, timeout=20) as client:  # it waits if the broker does not offer the plugin's service yet
        assert client.call("reverse", b"abc", b"xy") == (b"cba", b"yx")
    for kind, asked, answered in (
        (zmq.REQ, [b"MDPC01", b"reverse", b"abc"], [b"MDPC01", b"reverse", b"cba"]),
        (zmq.DEALER, [b"MDPC02", b"\x01", b"reverse", b"abc"], [b"MDPC02", b"\x03", b"reverse", b"cba"]),
        (zmq.REQ, [b"MDPC01", b"mmi.service", b"reverse"], [b"MDPC01", b"mmi.service", b"200"]),
    ):
        with zmq.Context() as context, context.socket(kind) as socket:
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(mdp)
            socket.send_multipart(asked)
            assert socket.recv_multipart() == answered


@pytest.mark.requirement("R94")
def test_in_a_real_broker_a_streamed_reply_reaches_a_scale0_client_in_parts(broker):
    mdp, frontend = broker.address("majordomo", "requests"), broker.address("scale0", "frontend")
    worker = Worker(mdp)
    read = threading.Event()

    @worker.service("count")
    def count(request):
        yield b"first"
        read.wait(20)  # goes on only when the first part has been read, while the reply is under way
        yield b"second"

    with worker, Scale0Client(frontend, timeout=40) as client:
        worker.wait_ready()
        parts = []
        for part in stream_when_there(client, "count"):
            parts.append(part.body)
            read.set()
        assert parts == [b"first", b"second"]


def stream_when_there(client, service):
    """Call a service that the broker hears of in a moment, for a reply in parts."""
    end = time.monotonic() + 20
    while True:
        try:
            stream = client.stream(service, b"", timeout=40)
            yield next(iter(stream))
            break
        except CallError as error:
            if error.code != 404 or time.monotonic() > end:
                raise
            time.sleep(0.05)
    yield from stream


def call_when_there(client, service, body, until=lambda error: False):
    """Call a service that the broker hears of in a moment."""
    end = time.monotonic() + 20
    while True:
        try:
            return client.call(service, body, timeout=5).body
        except Exception as error:
            if time.monotonic() > end or until(error):
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("parts", [(), ("a", "b")])
def test_a_reply_without_a_body_has_an_empty_frame_for_clients_of_mdp(parts):
    """A worker of Scale0 that returns nothing, or is a generator, ends so; stock clients insist on a frame."""
    script = Script(bridged(scale0_offers("upper")), start=1.0)
    for peer, head in (("c1", ("", "MDPC01")), ("c2", ("MDPC02", "\x01")), ("own", ("S0MC01", "\x01", "id"))):
        more = ("upper", "") if peer == "own" else ("upper",)
        script.feed("requests", peer, *head, *more, "x")
        number = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "x")[4]
        for part in parts:
            script.feed("tasks", "S0C01", "TASKREPLY", '{"more":true}', "upper", number, part)
        script.feed("tasks", "S0C01", "TASKREPLY", "", "upper", number)
        if peer == "c1":
            script.expect("requests", "c1", "", "MDPC01", "upper", *(parts or ("",)))
            continue
        for part in parts:
            script.expect("requests", peer, head[0], "\x02", *head[2:], *more, part)
        end = ("id", "upper", '{"empty":true}') if peer == "own" else ("upper",)
        script.expect("requests", peer, head[0], "\x03", *end, "")


def test_a_stream_that_is_too_large_for_one_reply_ends_in_an_error_and_takes_no_memory():
    service = bridged(scale0_offers("upper"))
    script = Script(service, start=1.0)
    script.feed("requests", "c", "", "MDPC01", "upper", "x")
    number = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "x")[4]
    for _ in range(17):
        script.feed("tasks", "S0C01", "TASKREPLY", '{"more":true}', "upper", number, bytes(1024 * 1024))
    assert not service._abroad
    assert service.totals()["errors"] == 1


def test_what_happened_to_a_task_reaches_its_client():
    """What a worker said, that its time was over, that it died: each with its code."""
    script = Script(bridged(), start=1.0)
    script.feed("requests", "w", "S0MW01", "\x01", "count")
    serving(script)
    script.feed("offers", "S0W01", "TASK", "", "count", "1", "x")
    address = script.expect("requests", "w", "S0MW01", "\x02", ..., "count", "", "x")[3]
    script.feed("requests", "w", "S0MW01", "\x07", address, "555", "out of paper")
    told = script.expect("offers", "S0W01", "TASKREPLY", ..., "count", "1")
    assert json.loads(told[2]) == {"code": 555, "message": "out of paper"}
    script.feed("offers", "S0W01", "TASK", "", "count", "2", "x")
    script.expect("requests", "w", "S0MW01", "\x02", ..., "count", "", "x")
    script.feed("offers", "S0W01", "TASK", "", "count", "3", "x")
    for _ in range(31):
        script.sleep(2.0)
        script.feed("requests", "w", "S0MW01", "\x05")
    told = [frames for socket, frames in script.sent if socket == "offers" and frames[1] == b"TASKREPLY"][-1]
    assert told[4] == b"3"
    assert json.loads(told[2]) == {"code": 504, "message": "nobody took it within 60 s"}


def test_a_name_that_workers_of_mdp_have_served_stays_theirs_for_a_while():
    registry = scale0_offers("echo")
    script = Script(bridged(registry), start=1.0)
    script.feed("requests", "w", "", "MDPW01", "\x01", "echo")
    script.feed("requests", "w", "", "MDPW01", "\x05")
    script.feed("requests", "c", "", "MDPC01", "mmi.service", "echo")
    script.expect("requests", "c", "", "MDPC01", "mmi.service", "404")
    script.feed("requests", "c", "", "MDPC01", "echo", "for a worker")
    scale0_offers_again = Provider(service="echo", provider="v", kind="worker", state="responsive")
    registry.put(scale0_offers_again)
    script.sleep(1.0)
    script.expect_nothing()
    script.feed("requests", "w2", "", "MDPW01", "\x01", "echo")
    script.expect("requests", "w2", "", "MDPW01", "\x02", ..., "", "for a worker")
    script.feed("requests", "w2", "", "MDPW01", "\x05")
    script.sleep(599.0)
    script.sent.clear()
    script.feed("requests", "c", "", "MDPC01", "echo", "waits")
    assert not [frames for socket, frames in script.sent if socket == "tasks"]
    script.sleep(1.1)  # nobody came back: now it is Scale0's
    assert [frames[5] for socket, frames in script.sent if socket == "tasks"] == [b"waits"]


@pytest.mark.requirement("R94")
def test_in_a_real_broker_the_bridge_follows_the_broker_to_tcp(scale0_broker):
    settings = {
        "network": {"frontend_port": 0, "backend_port": 0},
        "plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}},
    }
    broker = scale0_broker(["majordomo"], settings)
    mdp, frontend = broker.address("majordomo", "requests"), broker.address("scale0", "frontend")
    assert frontend.startswith("tcp://")
    backend = broker.address("scale0", "backend")  # no format of configurations may be installed
    with Scale0Worker(frontend, backend=backend) as worker, Client(mdp, timeout=20) as client:
        worker.add("nothing", lambda body: None)
        worker.add("parts", lambda body: iter([b"a", b"b"]))
        worker.wait_ready()
        assert client.call("nothing", b"x").body == b""
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(mdp)
            socket.send_multipart([b"MDPC01", b"nothing", b"x"])
            assert socket.recv_multipart() == [b"MDPC01", b"nothing", b""]


@pytest.mark.requirement("R94")
def test_in_a_real_broker_errors_and_timeouts_pass_the_bridge(broker):
    mdp, frontend = broker.address("majordomo", "requests"), broker.address("scale0", "frontend")
    worker = Worker(mdp)

    @worker.service("broken")
    def broken(request):
        raise RemoteError("out of paper", 555)

    with worker, Scale0Worker(frontend) as scale0_worker, Client(mdp, timeout=20) as client:
        release = threading.Event()
        scale0_worker.add("slow", lambda body: release.wait(20) and b"")
        scale0_worker.wait_ready()
        worker.wait_ready()
        with pytest.raises(CallTimedOutError):
            client.call("slow", b"x", timeout=0.5)
        release.set()
        with Scale0Client(frontend, timeout=20) as scale0_client, pytest.raises(CallError) as told:
            call_when_there(scale0_client, "broken", b"", until=lambda error: error.code == 555)
        assert "out of paper" in str(told.value)


def test_titanic_carries_out_requests_for_services_of_scale0(tmp_path):
    registry = Registry()
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    store = Store(tmp_path / "titanic.sqlite")
    service = BridgedMajordomo(MajordomoSettings(), ("inproc://majordomo",), store, bridge, registry)
    script = Script(service, start=1.0)
    script.feed("requests", "c", "", "MDPC01", "titanic.request", "upper", "hello")
    script.sleep(1.0)
    *_, ident = script.expect("requests", "c", "", "MDPC01", "titanic.request", "200", ...)
    scale0_now_offers(script, registry, "upper")
    number = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "hello")[4]
    script.feed("tasks", "S0C01", "ERROR", '{"code":503}', "upper", number)  # it is tried again
    script.sleep(30.0)
    number = script.expect("tasks", "S0C01", "TASK", ..., "upper", ..., "hello")[4]
    script.feed("tasks", "S0C01", "TASKREPLY", "", "upper", number, "HELLO")
    script.sleep(1.0)
    script.feed("requests", "c", "", "MDPC01", "titanic.reply", ident)
    script.sleep(1.0)
    script.expect("requests", "c", "", "MDPC01", "titanic.reply", "200", "HELLO")
