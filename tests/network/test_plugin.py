"""What the broker keeps on disk, and the Scale0 protocol over real sockets, spoken by hand."""

from __future__ import annotations

import json
import os
import socket as system_socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import zmq

from scale0_core.config.network import GroupBroker, GroupConfig, NetworkConfig
from scale0_core.errors import RecordError
from scale0_core.network import plugin as module
from scale0_core.network.passwords import hash_password
from scale0_core.network.plugin import FileStore
from scale0_core.protocol.states import BrokerState

# FileStore


class Written:
    """A configuration file that can be changed."""

    def __init__(self) -> None:
        self.network = NetworkConfig(identity="b1")

    def change(self, **fields: Any) -> None:
        self.network = attrs.evolve(self.network, **fields)

    def __call__(self) -> NetworkConfig:
        return self.network


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def store(tmp_path: Path, written: Written) -> FileStore:
    return FileStore(tmp_path / "network", written, {})


def versions(tmp_path: Path) -> list[int]:
    return [int(path.stem) for path in sorted((tmp_path / "network" / "history").glob("*.json"))]


def test_the_same_configuration_keeps_its_version(store: FileStore, tmp_path: Path):
    first, second = store.load_config(), store.load_config()
    assert (first.version, second.version, first.hash) == (1, 1, second.hash)
    assert store.reload(first) is first
    assert versions(tmp_path) == [1]


def test_versions_grow_with_every_change(store: FileStore, written: Written, tmp_path: Path):
    running = store.load_config()
    found = [running.version]
    for interval in (100, 200, 100):
        written.change(default_heartbeat_interval=interval)
        running = store.reload(running)
        found.append(running.version)
        assert running.network.default_heartbeat_interval == interval
    assert found == versions(tmp_path) == [1, 2, 3, 4]
    assert store.load_config().version == 4
    assert len({json.loads(path.read_text())["hash"] for path in (tmp_path / "network/history").iterdir()}) == 3


def test_the_history_says_what_was_when(store: FileStore, written: Written, tmp_path: Path):
    store.load_config()
    written.change(liveness=7)
    before = time.time()
    store.load_config()
    record = json.loads((tmp_path / "network/history/0000000002.json").read_text())
    assert (record["version"], record["network"]["liveness"]) == (2, 7)
    assert before <= record["time"] <= time.time()


def test_the_history_is_bounded(store: FileStore, written: Written, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "HISTORY_KEPT", 5)
    for number in range(1, 13):
        written.change(liveness=number)
        assert store.load_config().version == number
    assert versions(tmp_path) == [8, 9, 10, 11, 12]


def test_two_reloads_at_once_make_two_versions(store: FileStore, written: Written):
    """Both were asked for with the same version in force; what they found must not have one number."""
    known = store.load_config()
    written.change(liveness=7)
    first = store.reload(known)
    written.change(liveness=8)
    second = store.reload(known)
    third = store.reload(known)
    assert (first.version, second.version, third.version) == (2, 3, 3)
    assert third.network.liveness == 8


def test_a_configuration_that_goes_back_is_a_new_version(store: FileStore, written: Written):
    known = store.load_config()
    written.change(liveness=7)
    store.reload(known)
    written.change(liveness=3)
    assert store.reload(known).version == 3


@pytest.mark.parametrize("torn", ["", "{", '{"version": "x"}', "[]", '{"version": 1', "null", '{"hash": "x"}'])
def test_versions_do_not_go_back_when_the_record_of_the_current_one_is_lost(
    store: FileStore, written: Written, tmp_path: Path, torn: str
):
    for number in range(1, 5):
        written.change(liveness=number)
        store.load_config()
    current = tmp_path / "network" / "current.json"
    current.write_text(torn)
    assert store.load_config().version == 4
    current.write_text(torn)
    written.change(liveness=9)
    assert store.load_config().version == 5
    current.unlink()
    assert store.load_config().version == 5


def test_a_kill_between_the_history_and_the_current_record(store: FileStore, written: Written, tmp_path: Path):
    store.load_config()
    current = tmp_path / "network" / "current.json"
    before = current.read_text()
    written.change(liveness=7)
    store.load_config()
    current.write_text(before)
    assert store.load_config().version == 2
    current.write_text(before)
    written.change(liveness=8)
    assert store.load_config().version == 3


def test_what_a_kill_leaves_half_written_does_no_harm(store: FileStore, written: Written, tmp_path: Path):
    store.load_config()
    store.save_state("disabled")
    folder = tmp_path / "network"
    for path in (folder / "current.new", folder / "state.new", folder / "history" / "0000000002.new"):
        path.write_text('{"state": "act')
    assert (store.load_config().version, store.load_state("active")) == (1, BrokerState.DISABLED)
    written.change(liveness=7)
    assert store.load_config().version == 2
    store.save_state("active")
    assert store.load_state("disabled") is BrokerState.ACTIVE


@pytest.mark.parametrize("at", ["open", "fdatasync", "replace"])
def test_a_write_that_fails_leaves_the_old_record_whole(store: FileStore, monkeypatch, at: str):
    store.save_state("disabled")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path if at == "replace" else os, at, fail)
        with pytest.raises(RecordError, match="No space"):
            store.save_state("active")
    assert store.load_state("active") is BrokerState.DISABLED


def test_everything_is_on_the_disk_before_it_takes_the_place_of_the_old(store: FileStore, monkeypatch):
    steps: list[str] = []
    fsync, replace = os.fdatasync, Path.replace
    monkeypatch.setattr(os, "fdatasync", lambda number: (steps.append("fsync"), fsync(number))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append("replace"), replace(path, to))[1])
    store.save_state("disabled")
    store.save_state("active")
    assert steps == ["fsync", "replace"] * 2


@pytest.mark.requirement("R67")
@pytest.mark.parametrize("state", ["joining", "active", "disabled"])
def test_the_state_survives(store: FileStore, tmp_path: Path, written: Written, state: str):
    store.save_state(state)
    assert FileStore(tmp_path / "network", written, {}).load_state("active") is BrokerState(state)


@pytest.mark.requirement("R64")
def test_without_a_state_on_record_the_configured_one_holds(store: FileStore):
    assert store.load_state("joining") is BrokerState.JOINING


@pytest.mark.requirement("R67")
@pytest.mark.parametrize(
    "torn", [b"", b"{", b"[]", b"{}", b"\xff", b'{"state": "sleeping"}', b'{"state": ["active"]}', b"[" * 100_000]
)
def test_a_damaged_record_never_enables_a_broker(store: FileStore, tmp_path: Path, torn: bytes, caplog):
    store.save_state("disabled")
    (tmp_path / "network" / "state.json").write_bytes(torn)
    assert store.load_state("active") is BrokerState.DISABLED
    (record,) = caplog.records
    assert (record.levelname, "starts disabled" in record.getMessage()) == ("ERROR", True)
    store.save_state("active")
    assert store.load_state("disabled") is BrokerState.ACTIVE


def test_the_folder_is_its_owners_alone(store: FileStore, tmp_path: Path):
    store.load_config()  # the history holds hashes of passwords
    assert (tmp_path / "network" / "history").stat().st_mode & 0o077 == 0


def test_the_own_group_is_the_one_that_is_written(store: FileStore, written: Written):
    group = GroupConfig("g", (GroupBroker("b1"), GroupBroker("b2")))
    written.change(group="g", group_config=(group, GroupConfig("h")))
    assert store.load_config().own_group == group
    written.change(group="other")
    assert store.load_config().own_group == GroupConfig("other")


# real sockets, with nothing but pyzmq


class Peer:
    """A socket that speaks by hand."""

    def __init__(self, context: zmq.Context[Any], kind: int, address: str) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = 30_000
        self.socket.connect(address)

    def say(self, header: bytes, command: bytes, /, *body: bytes, **options: Any) -> None:
        self.socket.send_multipart([header, command, json.dumps(options).encode(), *body])

    def hear(self) -> tuple[bytes, dict[str, Any], list[bytes]]:
        _, command, options, *body = self.socket.recv_multipart()
        return command, json.loads(options) if options else {}, body

    def silent(self, seconds: float = 0.3) -> bool:
        return not self.socket.poll(seconds * 1000)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []
    with zmq.Context() as context:

        def make(kind: int, address: str) -> Peer:
            made.append(Peer(context, kind, address))
            return made[-1]

        yield make
        for each in made:
            each.socket.close()


def worker_ready(peer: Callable[..., Peer], address: str, identity: str = "w1") -> Peer:
    worker = peer(zmq.DEALER, address)
    worker.say(b"S0W01", b"CHECKCONFIG", identity=identity, services=["upper"], config_type="JSON")
    assert worker.hear()[0] == b"CONFIG"
    worker.say(b"S0W01", b"READY", services=["upper"], window=1)
    assert worker.hear()[0] == b"READYOK"
    return worker


def free_port() -> int:
    with system_socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.mark.requirement("R2")
@pytest.mark.requirement("R4")
@pytest.mark.requirement("R10")
@pytest.mark.requirement("R58")
@pytest.mark.requirement("R59")
def test_a_worker_and_a_client_written_by_hand_know_one_address_each(scale0_broker, peer):
    ports = {"frontend_port": free_port(), "backend_port": free_port()}
    broker = scale0_broker(settings={"network": {**ports, "identity": "b1"}})
    frontend, backend = (f"tcp://127.0.0.1:{number}" for number in ports.values())
    assert (broker.address("scale0", "frontend"), broker.address("scale0", "backend")) == (frontend, backend)

    worker = worker_ready(peer, backend)
    for kind in (zmq.DEALER, zmq.REQ):
        client = peer(kind, frontend)
        client.say(b"S0C01", b"CHECKCONFIG", identity="c1", config_type="JSON")
        command, options, (text,) = client.hear()
        (own,) = json.loads(text)["client"]["group_config"][0]["brokers"]
        assert (command, own["identity"], own["frontend"], own["backend"]) == (b"CONFIG", "b1", frontend, backend)
        client.say(b"S0C01", b"CHECKCONFIG", identity="c1", config_version=options["config_version"])
        assert client.hear()[0] == b"CONFIGACK"
        client.say(b"S0C01", b"TASK", b"upper", b"1", b"hello", timeout=5000)
        command, _, (service, number, payload) = worker.hear()
        assert (command, service, payload) == (b"TASK", b"upper", b"hello")
        worker.say(b"S0W01", b"TASKREPLY", service, number, payload.upper())
        assert client.hear() == (b"TASKREPLY", {}, [b"upper", b"1", b"HELLO"])


def test_a_lock_step_worker_with_a_req_socket(scale0_broker, peer):
    broker = scale0_broker.in_thread()
    worker = peer(zmq.REQ, broker.address("scale0", "backend"))
    worker.socket.req_relaxed = True
    client = peer(zmq.DEALER, broker.address("scale0", "frontend"))
    manager = peer(zmq.DEALER, broker.address("scale0", "management"))

    def states() -> list[str]:
        manager.say(b"S0C01", b"MANAGEMENTREQ", command="list_clients")
        return [row["state"] for row in json.loads(manager.hear()[2][0]) if row["identity"] == "w1"]

    worker.say(b"S0W01", b"CHECKCONFIG", identity="w1")
    assert worker.hear()[0] == b"CONFIG"
    for number in (b"1", b"2", b"3"):
        worker.say(b"S0W01", b"READY", services=["upper"], heartbeat=False)
        while states() != ["ready"]:  # READY and TASK come over different connections
            pass
        client.say(b"S0C01", b"TASK", b"upper", number, b"x")
        command, _, (service, task, payload) = worker.hear()
        assert command == b"TASK"
        worker.say(b"S0W01", b"TASKREPLY", service, task, payload.upper())
        assert client.hear() == (b"TASKREPLY", {}, [b"upper", number, b"X"])


@pytest.mark.requirement("R60")
def test_a_new_configuration_is_published_where_it_says(scale0_broker, peer):
    broker = scale0_broker(settings={"network": {"group": "g"}})
    listener = peer(zmq.SUB, broker.address("scale0", "config"))
    listener.socket.subscribe(b"CONFIG/g/")
    manager = peer(zmq.DEALER, broker.address("scale0", "management"))
    config = broker.folder / "broker.toml"
    config.write_text(config.read_text() + "\n", encoding="utf-8")
    deadline = time.monotonic() + 30
    for number in range(1, 100):
        text = config.read_text().replace("[network]", f"[network]\nliveness = {number + 3}", 1)
        lines = (line for line in text.splitlines() if line != f"liveness = {number + 2}")
        config.write_text("\n".join(lines) + "\n")
        manager.say(b"S0C01", b"MANAGEMENTREQ", command="reload_config")
        command, options, body = manager.hear()
        assert (command, options["code"], json.loads(body[0])["config_version"]) == (
            b"MANAGEMENTREP", 200, number + 1
        )  # fmt: skip
        if not listener.silent():
            break
        assert time.monotonic() < deadline, "a subscription takes a moment, but not so long"
    topic, header, command, options = listener.socket.recv_multipart()[:4]
    assert (topic, header, command) == (b"CONFIG/g/", b"S0P01", b"CONFIG")
    assert json.loads(options)["config_version"] == number + 1


@pytest.mark.requirement("R66")
@pytest.mark.requirement("R67")
def test_a_disabled_broker_is_disabled_after_kill_9_and_says_nothing(scale0_broker, peer):
    users = [{"name": "ada", "password": hash_password("secret", b"0123456789abcdef"), "role": "admin"}]
    folder = None
    for life in range(2):
        broker = scale0_broker(settings={"network": {"users": users}}) if life == 0 else again(scale0_broker, folder)
        folder = broker.folder
        client = peer(zmq.DEALER, broker.address("scale0", "frontend"))
        manager = peer(zmq.DEALER, broker.address("scale0", "management"))
        if life == 0:
            manager.say(b"S0C01", b"MANAGEMENTREQ", command="disable")
            assert manager.hear()[1]["code"] == 200
            broker.kill()
            continue
        client.say(b"S0C01", b"PING")
        client.say(b"S0C01", b"MANAGEMENTREQ", command="enable", auth_id="ada", auth_password="wrong")
        manager.say(b"S0C01", b"MANAGEMENTREQ", command="list_clients")
        assert client.silent(1.0)
        assert manager.silent()
        assert [line["event"] for line in broker.log][-1] == "disabled", "it is not ready"
        manager.say(b"S0C01", b"MANAGEMENTREQ", command="state")
        assert json.loads(manager.hear()[2][0])["state"] == "disabled", "its owner may know"
        client.say(b"S0C01", b"MANAGEMENTREQ", command="enable", auth_id="ada", auth_password="secret")
        assert client.hear()[1]["code"] == 200
        client.say(b"S0C01", b"PING")
        assert client.hear()[0] == b"PONG"


def again(starter: Any, folder: Path) -> Any:
    """Start a broker on the files of one that was killed."""
    from scale0_core.testing.broker import ProcessBroker

    name = next(line.split("=")[1].strip(' "') for line in (folder / "broker.toml").read_text().splitlines()
                if line.startswith("name"))  # fmt: skip
    broker = ProcessBroker(name, folder, ["--config", str(folder / "broker.toml")])
    starter._cleanup.callback(broker.stop)
    return broker


def test_a_worker_that_is_killed_is_noticed_at_once(scale0_broker, peer):
    """The socket tells that a connection is gone; those with tasks are asked, and one is not there."""
    broker = scale0_broker.in_thread()
    worker = worker_ready(peer, broker.address("scale0", "backend"))
    client = peer(zmq.DEALER, broker.address("scale0", "frontend"))
    client.say(b"S0C01", b"TASK", b"upper", b"1", b"x", timeout=30_000)
    assert worker.hear()[0] == b"TASK"
    began = time.monotonic()
    worker.socket.close()
    command, options, _ = client.hear()
    assert (command, options["code"]) == (b"ERROR", 504)
    assert time.monotonic() - began < 15.0


@pytest.mark.requirement("R29")
def test_a_port_that_others_reach_takes_no_password_unless_it_is_allowed(scale0_broker, peer):
    users = [{"name": "ada", "password": hash_password("secret", b"0123456789abcdef"), "role": "admin"}]
    for consent in (False, True):
        port = free_port()
        network = {"bind_address": "0.0.0.0", "frontend_port": port, "users": users, "management_insecure": consent}
        scale0_broker.in_thread(settings={"network": network, "wire": {"insecure": True}})
        client = peer(zmq.DEALER, f"tcp://127.0.0.1:{port}")
        client.say(b"S0C01", b"MANAGEMENTREQ", command="state", auth_id="ada", auth_password="secret")
        assert client.hear()[1]["code"] == (200 if consent else 403)
