"""The service in a real broker, with workers in processes of their own."""

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest
import zmq

from scale0_core.api import API_VERSION, Endpoint, PluginInfo, SocketKind, hookimpl
from scale0_core.client import Client
from scale0_discovery.client.watching import Watch
from scale0_discovery.plugin import DiscoveryPlugin

SETTINGS = {
    "network": {"default_heartbeat_interval": 200},
    "plugin": {"discovery": {"grace": 2.0, "bookmark": 0.5}},
}

WORKER = """
import json, sys, time, zmq
address, identity, *services = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.linger = 0
socket.connect(address)
def send(command, **options):
    socket.send_multipart([b"S0W01", command, json.dumps(options).encode()])
send(b"CHECKCONFIG", identity=identity, services=services)
socket.recv_multipart()
poller = zmq.Poller()
poller.register(socket, zmq.POLLIN)
poller.register(sys.stdin, zmq.POLLIN)
send(b"READY", services=services, window=1, metadata={"version": "1.2.0", "zone": "eu"})
while True:
    ready = dict(poller.poll(50))
    if socket in ready:
        socket.recv_multipart()
    elif sys.stdin.fileno() in ready:
        command, options = json.loads(sys.stdin.readline())
        send(command.encode(), **options)
    else:
        send(b"HEARTBEAT")
"""


class Worker:
    """A program that offers services, written with nothing but ZeroMQ."""

    def __init__(self, broker, identity, *services):
        command = [sys.executable, "-c", WORKER, broker.address("scale0", "backend"), identity, *services]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def say(self, command, **options):
        self.process.stdin.write(json.dumps([command, options]) + "\n")
        self.process.stdin.flush()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.process.kill()
        self.process.wait(timeout=60)
        self.process.stdin.close()


class Site:
    """A broker, its workers, and a client that asks and watches."""

    def __init__(self, broker, context):
        self.broker, self.context = broker, context
        self.workers, self.sockets = [], []
        self.requests = self.socket(zmq.DEALER, "requests")

    def close(self):
        for worker in self.workers:
            worker.end()
        for socket in self.sockets:
            socket.close()

    def socket(self, kind, name):
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.connect(self.broker.address("discovery", name))
        self.sockets.append(socket)
        return socket

    def worker(self, identity, *services):
        self.workers.append(Worker(self.broker, identity, *services))
        return self.workers[-1]

    def ask(self, command, **options):
        self.requests.send_multipart([command.encode(), json.dumps(options).encode()])
        assert self.requests.poll(10_000), self.broker.text()
        answer = self.requests.recv_multipart()
        return int(answer[1]) if answer[0] == b"ERROR" else json.loads(answer[1])

    def rows(self, **options):
        return [
            (row["service"], row["provider"], row["state"])
            for row in self.ask("LIST", **options)["providers"]
            if row["kind"] == "worker"
        ]

    def until(self, condition):
        """Ask again until something holds."""
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, f"{self.rows()}\n{self.broker.text()}"
            time.sleep(0.02)


@pytest.fixture
def around():
    """Give a function that puts a site around a broker, and close it in the end."""
    with contextlib.ExitStack() as stack, zmq.Context() as context:

        def around(broker):
            site = Site(broker, context)
            stack.callback(site.close)
            return site

        yield around
        stack.close()


@pytest.fixture
def site(scale0_broker, around):
    return around(scale0_broker(["discovery"], SETTINGS))


class Watching:
    """Follows the recipe on real sockets; ``told`` holds all that came out."""

    def __init__(self, site, service=None):
        self.site, self.watch = site, Watch(service)
        self.requests, self.news = site.socket(zmq.DEALER, "requests"), None
        self.asked = False
        self.told = []
        self.connect()

    def connect(self):
        self.news = self.site.socket(zmq.SUB, "watch")
        for topic in self.watch.topics:
            self.news.subscribe(topic)

    def disconnect(self):
        self.news.close()

    def turn(self):
        if not self.asked and (request := self.watch.request()) is not None:
            self.requests.send_multipart(request)
            self.asked = True
        if self.requests.poll(10):
            self.asked = False
            self.told += self.watch.answered(tuple(self.requests.recv_multipart()))
        if not self.news.closed and self.news.poll(10):
            self.told += self.watch.published(tuple(self.news.recv_multipart()))

    def kinds(self, provider):
        return [
            (change["kind"], change["provider"]["state"])
            for change in self.told
            if change["provider"]["provider"] == provider
        ]

    def until(self, condition):
        """Take turns until something holds."""
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, f"{self.told}\n{self.site.broker.text()}"
            self.turn()


@pytest.mark.requirement("R6")
@pytest.mark.requirement("R7")
def test_a_worker_appears_with_what_it_says_of_itself(site):
    assert site.ask("PING", service="sum") == 404
    site.worker("w1", "sum", "product")
    site.until(lambda: len(site.rows()) == 2)
    assert site.rows(service="sum", version=">=1.2,<2", metadata={"zone": "eu"}) == [("sum", "w1", "responsive")]
    assert site.rows(service="sum", version="<1.2") == []
    assert site.ask("PING", service="product")["alive"]
    (row,) = site.ask("INFO", service="sum")["providers"]
    assert (row["version"], row["metadata"]) == ("1.2.0", {"version": "1.2.0", "zone": "eu"})


@pytest.mark.requirement("R8")
def test_a_worker_changes_its_services_in_real_time(site):
    watching = Watching(site)
    worker = site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    worker.say("READY", services=["product"], window=1, metadata={"version": "2.0"})
    watching.until(lambda: len(watching.kinds("w1")) == 3)
    changes = [(change["kind"], change["provider"]["service"]) for change in watching.told[-2:]]
    assert changes == [("removed", "sum"), ("added", "product")]
    assert site.rows() == [("product", "w1", "responsive")]
    assert site.rows(version=">=2") == [("product", "w1", "responsive")]
    assert [row["service"] for row in site.ask("LIST", gone=True)["providers"]] == ["sum"]


class Clumsy:
    """A service that can be found and does nothing right."""

    name = "early"

    def __init__(self, bind):
        self.endpoints = {"requests": Endpoint(kind=SocketKind.ROUTER, bind=bind)}

    def receive(self, socket, frames, now):
        raise ValueError("it cannot do anything")

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Early:
    """A plugin that hosts it."""

    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="clumsy", api=(API_VERSION, API_VERSION))

    @hookimpl
    def scale0_services(self, context):
        return [Clumsy(context.address("ipc://{runtime}/early"))]


@pytest.mark.requirement("R6")
@pytest.mark.requirement("R9")
def test_hosted_services_are_found_like_workers(scale0_broker, around):
    """The plugins' services and the broker's own stand in the same list."""
    site = around(scale0_broker.in_thread(extra={"early": Early(), "discovery": DiscoveryPlugin}))
    rows = {row["service"]: row for row in site.ask("LIST")["providers"]}
    assert {"scale0", "early", "discovery"} <= set(rows)
    assert rows["early"]["kind"] == "hosted"
    assert rows["early"]["endpoints"] == [site.broker.address("early", "requests")]
    assert rows["discovery"]["state"] == "responsive"
    assert site.ask("PING", service="early")["alive"]
    before = site.ask("STATS", service="discovery")["stats"]["hosted"]["requests"]
    assert site.ask("STATS", service="discovery")["stats"]["hosted"]["requests"] > before


def test_who_says_goodbye_goes_at_once_and_leaves_a_trace(site):
    watching = Watching(site, "sum")
    worker = site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    worker.say("DISCONNECT")
    watching.until(lambda: len(watching.kinds("w1")) > 1)
    assert watching.kinds("w1")[1] == ("removed", "responsive")
    (gone,) = site.ask("LIST", gone=True)["providers"]
    assert (gone["provider"], gone["removed"]) == ("w1", watching.told[1]["revision"])


def test_who_dies_vanishes(site):
    watching = Watching(site)
    worker = site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    worker.signal(signal.SIGKILL)
    watching.until(lambda: watching.kinds("w1")[-1][0] == "removed")
    assert site.rows() == []
    assert not site.ask("PING", service="sum")["alive"]


def test_who_dies_is_waited_for_and_a_quick_restart_is_a_change(site):
    watching = Watching(site, "sum")
    worker = site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    worker.signal(signal.SIGKILL)
    watching.until(lambda: watching.kinds("w1")[-1] == ("changed", "lost"))
    site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1")[-1] == ("changed", "responsive"))
    assert "removed" not in dict(watching.kinds("w1"))
    assert site.ask("LIST", gone=True)["providers"] == []


def test_a_hosted_service_that_is_put_out_shows_as_such(scale0_broker, around):
    settings = {"limits": {"errors": 3}}
    site = around(scale0_broker.in_thread(settings=settings, extra={"early": Early(), "discovery": DiscoveryPlugin}))
    (row,) = site.ask("LIST", service="discovery")["providers"]
    assert row["sockets"]["watch"] == [site.broker.address("discovery", "watch")]
    clumsy = site.context.socket(zmq.DEALER)
    site.sockets.append(clumsy)
    clumsy.linger = 0
    clumsy.connect(site.broker.address("early", "requests"))
    for _ in range(3):
        clumsy.send(b"hello")
    site.until(lambda: not site.ask("PING", service="early")["alive"])
    info = site.ask("INFO", service="early")
    assert info["providers"][0]["state"] == "quarantined"
    assert "it cannot do anything" in info["stats"]["hosted"]["last_error"]


def test_who_is_silent_shows_as_unresponsive_until_it_is_heard_of(site):
    watching = Watching(site, "sum")
    worker = site.worker("w1", "sum")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    worker.signal(signal.SIGSTOP)
    watching.until(lambda: watching.kinds("w1")[-1] == ("changed", "unresponsive"))
    assert not site.ask("PING", service="sum")["alive"]
    worker.signal(signal.SIGCONT)
    watching.until(lambda: watching.kinds("w1")[-1] == ("changed", "responsive"))
    assert site.ask("PING", service="sum")["alive"]


def test_a_watch_has_no_gap_over_a_reconnect(site):
    watching = Watching(site)
    worker = site.worker("w1", "s0")
    watching.until(lambda: watching.kinds("w1") == [("added", "responsive")])
    for number in range(1, 60):
        if number % 20 == 5:
            watching.disconnect()  # and hears nothing
        if number % 20 == 15:
            watching.connect()
        worker.say("READY", services=[f"s{number}"], window=1)
        site.until(lambda number=number: site.rows() == [(f"s{number}", "w1", "responsive")])
        watching.turn()
    watching.connect()
    watching.until(lambda: watching.watch.revision == site.ask("LIST")["revision"])
    changes = [(change["kind"], change["provider"]["service"]) for change in watching.told]
    mine = [change for change in changes if change[1].startswith("s") and change[1][1:].isdigit()]
    wanted = [("added", "s0")]
    for number in range(1, 60):
        wanted += [("removed", f"s{number - 1}"), ("added", f"s{number}")]
    assert mine == wanted
    revisions = [change["revision"] for change in watching.told if change["revision"] > 10]
    assert revisions == sorted(set(revisions))


def test_a_watch_goes_on_after_a_restart_of_the_broker(scale0_broker, around):
    broker = scale0_broker(["discovery"], SETTINGS)
    watching = Watching(around(broker))
    watching.until(lambda: "discovery" in {change["provider"]["service"] for change in watching.told})
    first, known = watching.watch.epoch, len(watching.watch.known)
    broker.kill()
    same_place = {**SETTINGS, "broker": {"runtime_dir": str(broker.folder)}}
    again = scale0_broker(["discovery"], same_place, name=broker.name)
    assert again.address("discovery", "requests") == broker.address("discovery", "requests")
    watching.until(lambda: watching.watch.epoch != first and watching.watch.request() is None)
    assert len(watching.watch.known) == known


def test_advice_is_kept_in_memory_and_watchers_hear_of_it(site):
    """As much of it as is allowed comes through real sockets; a task reaches it as well."""
    news = site.socket(zmq.SUB, "watch")
    news.subscribe(b"advice/")
    news.subscribe(b"bookmark/")
    assert news.poll(20_000)
    assert news.recv_multipart()[0] == b"bookmark/", "it is heard from now on"
    rows = [
        {
            "service": f"s{number}", "group": "eu", "workers_now": 1, "workers_wanted": 2, "utilisation": 0.9,
            "share": 1.0, "advice": "add", "reason": "busy",
        }
        for number in range(2000)
    ]  # fmt: skip
    assert site.ask("ADVISE", as_of="2026-01-31T12:00:00Z", rows=rows)["rows"] == 2000
    while True:
        assert news.poll(20_000)
        topic, body = news.recv_multipart()
        if topic == b"advice/":
            break
    assert (json.loads(body)["kind"], json.loads(body)["rows"]) == ("advised", 2000)
    assert site.ask("ADVICE")["rows"] == rows
    with Client(site.broker.address("scale0", "frontend"), timeout=20) as client:
        told = json.loads(client.call("discovery", b"ADVICE", b'{"service":"s7"}')[1])
    assert told["rows"] == [rows[7]]
