"""What only the Client and Worker on threads have to show."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from scale0_core.client import CallError, Client, Worker, aio
from scale0_core.client.kit.drivers import ThreadDriver
from scale0_core.testing import BrokerStarter

from .conftest import QUICK, eventually


def test_one_client_serves_many_threads(address: str):
    with Worker(address, concurrency=4) as worker, Client(address) as client:
        worker.add("echo", lambda text: text)
        worker.wait_ready()

        def talk(name: int) -> list[bytes]:
            return [client.call("echo", b"%d.%d" % (name, number), retry=True).body for number in range(50)]

        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(talk, range(8)))
    assert replies == [[b"%d.%d" % (name, number) for number in range(50)] for name in range(8)]


def test_a_task_that_comes_while_the_worker_starts_is_answered(address: str, monkeypatch: pytest.MonkeyPatch):
    with Client(address) as client:
        begin = ThreadDriver.start

        def start_and_call(driver: ThreadDriver) -> None:
            begin(driver)
            assert client.call("echo", b"x", retry=True, timeout=60).body == b"x"

        monkeypatch.setattr(ThreadDriver, "start", start_and_call)
        worker = Worker(address)
        worker.add("echo", lambda text: text)
        worker.start()
        worker.stop()


def test_a_client_nobody_refers_to_is_closed(address: str):
    before = threading.active_count()
    client = Client(address)
    client.ping()
    assert threading.active_count() == before + 1
    del client
    gc.collect()
    eventually(lambda: threading.active_count() == before)


def test_a_client_may_be_closed_from_a_callback(address: str):
    client = Client(address)
    closed = threading.Event()
    future = client.submit("nothing")
    future.add_done_callback(lambda _: (client.close(), closed.set()))
    assert closed.wait(10)
    with pytest.raises(CallError):
        future.result(1)
    assert not future.cancel()


def test_async_functions_need_the_other_worker(address: str):
    worker = Worker(address)

    async def later() -> None: ...

    with pytest.raises(TypeError, match=r"aio\.Worker"):
        worker.add("later", later)
    with pytest.raises(TypeError, match="a service is a function"):
        worker.add("number", 3)  # type: ignore[arg-type]


def test_both_kinds_have_the_same_names():
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Client) == public(aio.Client)
    assert public(Worker) == public(aio.Worker)


@pytest.mark.requirement("R73")
def test_workers_take_turns(address: str):
    """The least recently used one is next."""
    workers = [Worker(address) for _ in range(3)]
    for number, worker in enumerate(workers):
        worker.add("who", lambda number=number: str(number))
        worker.start()
        worker.wait_ready()
    with Client(address) as client:
        answers = Counter(client.call("who").text for _ in range(30))
    for worker in workers:
        worker.stop()
    assert answers == {"0": 10, "1": 10, "2": 10}


def test_calls_are_quick(scale0_broker: BrokerStarter):
    """A loose bound: this machine may be busy. A tenth of it is usual."""
    broker = scale0_broker([], QUICK)
    address = broker.address("scale0", "frontend")
    with Worker(address, concurrency=8, prefetch=100) as worker, Client(address) as client:
        worker.add("echo", lambda text: text)
        worker.wait_ready()
        client.call("echo", b"warm", retry=True)
        times = []
        for _ in range(200):
            began = time.perf_counter()
            client.call("echo", b"x")
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        assert sum(1 for _ in client.map("echo", [b"x"] * 2000)) == 2000
        whole = time.perf_counter() - began
    assert min(times) < 0.01
    assert whole < 20


# --- more than one broker ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("R81")
@pytest.mark.requirement("R83")
def test_when_its_broker_is_gone_clients_go_to_another(scale0_broker: BrokerStarter):
    other = scale0_broker.in_thread([], QUICK)
    known = {
        "identity": "other",
        "frontend": other.address("scale0", "frontend"),
        "backend": other.address("scale0", "backend"),
    }
    network = {
        **QUICK["network"],
        "identity": "first",
        "group": "own",
        "fallback_groups": ["more"],
        "group_config": [{"name": "more", "brokers": [known]}],
    }
    first = scale0_broker.in_thread([], {"network": network})
    address = first.address("scale0", "frontend")
    with Worker(address, heartbeat_interval=0.2) as worker, Client(address) as client:
        worker.add("echo", lambda text: text)
        worker.wait_ready()
        assert client.call("echo", b"here", retry=True) == (b"here",)
        first.stop()
        assert client.call("echo", b"there", timeout=20, retry=True) == (b"there",)
        assert client.address == known["frontend"]


def test_ports_that_change_with_a_restart_are_found_out(scale0_broker: BrokerStarter, tmp_path):
    """The version of the configuration is the same, and yet the backend is elsewhere."""
    broker = scale0_broker.in_thread([], {"network": {**QUICK["network"], "backend_port": 0}})
    address = broker.address("scale0", "frontend")
    with Worker(address, identity="me", config_dir=tmp_path) as worker:
        worker.wait_ready()
    (path,) = tmp_path.iterdir()
    port = broker.address("scale0", "backend").rpartition(":")[2]
    path.write_text(path.read_text().replace(f":{port}", ":1"))
    with Worker(address, identity="me", config_dir=tmp_path) as worker:
        worker.wait_ready()
    assert f":{port}" in path.read_text()
