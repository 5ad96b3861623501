"""Two brokers with every plugin of this repository run in one process, and know nothing of each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from scale0_core.plugins import installed_plugins
from scale0_core.testing import manage
from scale0_core.testing.broker import ThreadBroker

ROOT = Path(__file__).parents[1]
SECONDS = 30.0

REQUESTS: dict[str, tuple[str, list[bytes], Callable[[list[bytes]], bool]]] = {
    "echo": ("requests", [b"ECHO", b"", b"body"], lambda answer: answer == [b"body"]),
    "discovery": ("requests", [b"LIST", b"{}"], lambda answer: answer[0] == b"LIST"),
    "zpipes": ("pipes", [b"PING"], lambda answer: answer == [b"PONG"]),
    "majordomo": ("requests", [b"", b"MDPC01", b"mmi.service", b"nobody"], lambda answer: answer[-1] == b"404"),
    "musicquest-broker": ("clients", [b"", b"hello"], lambda answer: answer[1] in (b"hello", b"bye")),
    "musicquest-server": ("clients", [b"ZMQ01", b"stats", b"s"], lambda answer: answer[0] == b"ZMQ01"),
}
"""For each service of a plugin a socket, a request, and whether an answer is the right one."""


def all_plugins() -> list[str]:
    """List the plugins of this repository, by the folder that each is installed from."""
    folders = {f"scale0-{path.name.replace('_', '-')}" for path in (ROOT / "plugins").iterdir()}
    return [name for name, found in installed_plugins().items() if found.distribution.replace("_", "-") in folders]


@pytest.fixture
def ask() -> Iterator[Any]:
    with zmq.Context() as context:

        def ask(broker: ThreadBroker, service: str) -> None:
            socket_name, request, is_answer = REQUESTS[service]
            with context.socket(zmq.DEALER) as socket:
                socket.linger, socket.rcvtimeo = 0, int(SECONDS * 1000)
                socket.connect(broker.address(service, socket_name))
                socket.send_multipart(request)
                answer = socket.recv_multipart()
            assert is_answer(answer), (service, answer)

        yield ask


def start(scale0_broker: Any, folder: Path) -> ThreadBroker:
    (folder / "music").mkdir(parents=True)
    any_port = ["tcp://127.0.0.1:*"]
    tables = {
        "musicquest-broker": {"bind_servers": any_port, "bind_clients": any_port},
        "musicquest-server": {"music": str(folder / "music"), "clients": any_port, "children": any_port},
        "majordomo": {"bind": ["ipc://{runtime}/majordomo"]},
        "telemetry": {"load_interval": 0.1},
    }
    return scale0_broker.in_thread(all_plugins(), {"plugin": tables})


def told_by(broker: ThreadBroker) -> set[str]:
    """Return the names of brokers in what telemetry has stored."""
    dataset = pytest.importorskip("pyarrow.dataset")
    table = dataset.dataset(broker.folder / "data" / "telemetry", partitioning="hive").to_table()
    return {row["broker"] for row in table.to_pylist()}


def test_two_brokers_with_every_plugin_in_one_process(scale0_broker: Any, ask: Any, tmp_path: Path):
    assert {"echo", "telemetry", "zpipes", "majordomo", "musicquest-server"} <= set(all_plugins())
    before = set(threading.enumerate())
    one, other = (start(scale0_broker, tmp_path / name) for name in ("one", "other"))
    for broker in (one, other):
        assert set(broker.addresses) == {"scale0", *REQUESTS}
    for service in REQUESTS:
        for broker in (one, other):
            ask(broker, service)
    assert [manage(broker, "state")[0] for broker in (one, other)] == [200, 200]
    assert one.stop() == 0
    for service in REQUESTS:
        ask(other, service)
    assert other.stop() == 0
    assert [told_by(broker) for broker in (one, other)] == [{one.name}, {other.name}]
    left = [path.name for broker in (one, other) for path in broker.folder.iterdir() if path.is_socket()]
    assert left == []
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive(), thread.name
