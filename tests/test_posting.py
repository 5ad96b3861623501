"""`context.post`: a plugin has threads of its own, and their results reach its service like those of jobs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import zmq

from scale0_core.api import BrokerContext, Endpoint, Job, JobResult, PluginInfo, RunningBroker, hookimpl
from scale0_core.testing import Script, SimNetwork

SECONDS = 10.0
INFO = PluginInfo(summary="made in a test", api=(2, 2))
CONTEXT = BrokerContext(name="here", runtime_dir="/run/here", data_dir="/data/here")


def append(path: Path, entry: bytes) -> int:
    """Write an entry, make it safe, and return the size of the file."""
    with path.open("ab") as file:
        file.write(entry)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


class Stores:
    """Hands each entry to the store that it names; answers when that has written it."""

    name = "stores"

    def __init__(self, bind: str, submit: Any) -> None:
        self.endpoints = {"main": Endpoint(kind="ROUTER", bind=bind)}
        self._submit = submit

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        peer, store, entry = frames
        self._submit(store.decode(), entry, (socket, peer))
        return ()

    def on_job(self, result: JobResult, now: float) -> Any:
        socket, peer = result.token
        return [(socket, (peer, str(result.error or result.value).encode()))]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Any:
        return ()


class StoresPlugin:
    """One thread per store; ``slow`` waits for the gate before each entry."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.queues: dict[str, SimpleQueue[Any]] = {"slow": SimpleQueue(), "fast": SimpleQueue()}
        self.threads: list[threading.Thread] = []
        self.context = CONTEXT

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return INFO

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> list[Any]:
        self.context = context
        return [Stores(context.address("ipc://{runtime}/stores"), lambda store, *work: self.queues[store].put(work))]

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        self.threads = [threading.Thread(target=self._work, args=(store,), daemon=True) for store in self.queues]
        for thread in self.threads:
            thread.start()

    @hookimpl
    def scale0_stopping(self, broker: RunningBroker) -> None:
        self.gate.set()
        for queue in self.queues.values():
            queue.put(None)
        for thread in self.threads:
            thread.join(SECONDS)

    def _work(self, store: str) -> None:
        path = Path(self.context.runtime_dir) / store
        while (work := self.queues[store].get()) is not None:
            entry, token = work
            if store == "slow":
                self.gate.wait(SECONDS)
            self.context.post("stores", JobResult(token, append(path, entry)))


@pytest.fixture
def connect() -> Iterator[Any]:
    with zmq.Context() as context:
        opened = []

        def make(address: str) -> zmq.Socket[bytes]:
            socket = context.socket(zmq.DEALER)
            opened.append(socket)
            socket.linger, socket.rcvtimeo = 0, int(SECONDS * 1000)
            socket.connect(address)
            return socket

        yield make
        for socket in opened:
            socket.close()


def test_one_slow_store_does_not_delay_the_fsync_of_another(scale0_broker: Any, connect: Any):
    plugin = StoresPlugin()
    broker = scale0_broker.in_thread(extra={"stores": plugin})
    slow, fast = (connect(broker.address("stores", "main")) for _ in range(2))
    slow.send_multipart([b"slow", b"abc"])
    for size in range(1, 6):
        fast.send_multipart([b"fast", b"x"])
        assert fast.recv() == b"%d" % size
    assert not slow.poll(0)
    plugin.gate.set()
    assert slow.recv() == b"3"


def test_results_posted_while_the_plugins_stop_still_arrive(scale0_broker: Any, connect: Any):
    plugin = StoresPlugin()
    broker = scale0_broker.in_thread(extra={"stores": plugin})
    client = connect(broker.address("stores", "main"))
    client.send_multipart([b"fast", b"x"])
    assert client.recv() == b"1"
    client.send_multipart([b"slow", b"abc"])
    client.send_multipart([b"fast", b"x"])
    assert client.recv() == b"2"  # so the slow store has its entry, too
    broker.stop()  # opens the gate in scale0_stopping
    assert client.recv() == b"3"


class Deaf(Stores):
    """A service that takes no results."""

    name = "deaf"
    on_job = None  # type: ignore[assignment]


class NotingStores(Stores):
    """Hands on what arrives."""

    def __init__(self, address: str, note: Callable[[JobResult, float], Any]) -> None:
        super().__init__(address, None)
        self._note = note

    def on_job(self, result: JobResult, now: float) -> Any:
        return self._note(result, now)


class PosterPlugin:
    """Posts when the broker starts."""

    def __init__(self) -> None:
        self.context = CONTEXT
        self.service = Stores("", None)
        self.arrived = threading.Event()
        self.results: list[JobResult] = []

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return INFO

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> list[Any]:
        self.context = context
        self.service = NotingStores(context.address("ipc://{runtime}/stores"), self.note)
        return [self.service, Deaf(context.address("ipc://{runtime}/deaf"), None)]

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        for service in ("nobody", "deaf", "stores"):
            self.context.post(service, JobResult("early", service))

    def note(self, result: JobResult, now: float) -> Any:
        self.results.append(result)
        self.arrived.set()
        return ()


def test_results_for_nobody_are_logged_or_counted(
    scale0_broker: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger("scale0"), "propagate", True)
    plugin = PosterPlugin()
    broker = scale0_broker.in_thread(extra={"poster": plugin})
    assert plugin.arrived.wait(SECONDS)
    assert plugin.results == [JobResult("early", "stores")]
    assert "result posted to an unknown service" in caplog.messages
    assert broker.broker.running().counts["deaf"].dropped == {"no on_job": 1}
    broker.stop()
    plugin.context.post("stores", JobResult("late"))  # in vain
    assert len(plugin.results) == 1


def test_without_a_broker_nothing_can_be_posted():
    with pytest.raises(RuntimeError, match="posted to stores, and no broker runs"):
        CONTEXT.post("stores", JobResult("token"))


class Slow:
    """A service whose jobs wait for a gate, each under a key of its own."""

    name = "slow"

    def __init__(self, bind: str, gate: threading.Event, started: threading.Semaphore) -> None:
        self.endpoints = {"main": Endpoint(kind="ROUTER", bind=bind)}
        self.gate, self.started = gate, started

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        return [Job(frames[1], self.wait, None, (socket, frames[0]))]

    def wait(self, _: None) -> bool:
        self.started.release()
        return self.gate.wait(SECONDS)

    def on_job(self, result: JobResult, now: float) -> Any:
        socket, peer = result.token
        return [(socket, (peer, str(result.error or result.value).encode()))]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Any:
        return ()


class Safe(Slow):
    """A service that writes each message to a file, in a job."""

    name = "safe"

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        path = Path(self.endpoints["main"].bind[0].removeprefix("ipc://")).parent / "entries"
        return [Job("file", lambda entry: append(path, entry), frames[1], (socket, frames[0]))]


class JobsPlugin:
    def __init__(self) -> None:
        self.gate, self.started = threading.Event(), threading.Semaphore(0)

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return INFO

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> list[Any]:
        return [
            made(context.address(f"ipc://{{runtime}}/{made.name}"), self.gate, self.started) for made in (Slow, Safe)
        ]


def test_jobs_of_one_service_do_not_delay_the_fsync_of_another(scale0_broker: Any, connect: Any):
    plugin = JobsPlugin()
    broker = scale0_broker.in_thread(settings={"limits": {"job_threads": 2}}, extra={"jobs": plugin})
    slow, safe = connect(broker.address("slow", "main")), connect(broker.address("safe", "main"))
    for number in range(10):
        slow.send(b"%d" % number)
    for _ in range(2):  # both of its threads
        assert plugin.started.acquire(timeout=SECONDS)
    safe.send(b"abc")
    assert safe.recv() == b"3"
    assert not plugin.started.acquire(blocking=False)
    plugin.gate.set()
    assert [slow.recv() for _ in range(10)] == [b"True"] * 10


# on virtual time


def test_a_script_posts_results():
    handed: list[Any] = []
    script = Script(Stores("ipc:///x", lambda *work: handed.append(work)))
    script.feed("main", "client", "slow", "abc")
    script.expect_nothing()
    ((store, entry, token),) = handed
    script.post(JobResult(token, len(entry)))
    script.expect("main", "client", "3")
    assert store == "slow"


class Client:
    """Connects, and keeps what comes."""

    name = "client"

    def __init__(self) -> None:
        self.endpoints = {"out": Endpoint(kind="DEALER", connect="ipc:///x")}
        self.got: list[Any] = []
        self.due: float | None = 0.0

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        self.got.append((now, frames))
        return ()

    def next_deadline(self) -> float | None:
        return self.due

    def on_deadline(self, now: float) -> Any:
        self.due = now + 1.0
        return [("out", (b"store", b"abc"))]


def simulated(**weather: Any) -> tuple[SimNetwork, Client]:
    """Make a network with a store that takes half a second."""
    net, client = SimNetwork(seed=7, **weather), Client()

    def stores(node: Any) -> list[Any]:
        post = node.post

        def submit(store: str, entry: bytes, token: Any) -> None:
            net.at(net.now + 0.5, lambda: post("stores", JobResult(token, len(entry))))

        return [Stores("ipc:///x", submit)]

    net.add("stores", stores)
    net.add("client", lambda node: [client])
    return net, client


def test_nodes_of_a_simulated_network_post_results():
    net, client = simulated(delay=(0.0, 0.0))
    net.run(3.0)
    assert [frames for _, frames in client.got] == [(b"3",)] * len(client.got)
    assert len(client.got) >= 2
    assert min(now for now, _ in client.got) >= 0.5


def test_what_was_under_way_when_a_node_was_killed_is_not_posted_to_the_next():
    net, client = simulated(delay=(0.0, 0.0))
    assert net.run_until(lambda: client.got)
    assert net.run_until(lambda: net.counts.delivered == 3)  # asked again, and not yet answered
    net.restart("stores")
    net.run(0.6)
    assert len(client.got) == 1
    assert net.run_until(lambda: len(client.got) == 2)


def test_a_paused_node_takes_posted_results_when_it_goes_on():
    net, client = simulated(delay=(0.0, 0.0))
    assert net.run_until(lambda: net.counts.delivered == 1)
    net.pause("stores")
    net.run(5.0)
    assert client.got == []
    net.resume("stores")
    assert net.run_until(lambda: client.got, limit=0.1)
