"""The broker's records: damaged in any way, on a full disk, and after kill -9 right after an acknowledgement."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scale0_core.config.network import NetworkConfig
from scale0_core.errors import RecordError
from scale0_core.network.plugin import HIGHEST_VERSION, FileStore
from scale0_core.protocol.states import BrokerState
from scale0_core.testing import SlowDisk, manage
from scale0_core.testing.broker import ProcessBroker
from scale0_core.testing.killing import KilledBroker

RECORDS = ("state.json", "current.json", "history/0000000001.json")
NASTY = [
    b"", b"\0" * 4096, b"\xff\xfe", b"[" * 100_000, b'{"version":' * 20_000, b"{}", b"[]", b"null", b"NaN", b'"text"',
    b"9" * 5000, b'{"version": 1e999}', b'{"version": -1}', b'{"version": true, "hash": "x"}', b'{"state": 1}',
    b'{"version": ' + b"9" * 400 + b', "hash": "x"}', b'{"version": 1, "hash": {"a": []}}', b'{"state": "active"',
    b'{"version": 1, "hash": "\\ud800"}', b'{"state": null}', b'{"state": {"a": 1}}', "{\u2028}".encode("utf-16"),
]  # fmt: skip


def a_store(folder: Path, liveness: int = 3) -> FileStore:
    return FileStore(folder, lambda: NetworkConfig(identity="b1", liveness=liveness), {})


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A folder with all records of a broker that is disabled."""
    store = a_store(tmp_path / "network")
    store.load_config()
    store.save_state("disabled")
    return tmp_path / "network"


def random_bytes(seed: int, old: bytes) -> bytes:
    """Return bytes that may be anything, or the old ones with something wrong."""
    random = Random(seed)
    kind = random.randrange(4)
    if kind == 0:
        return random.randbytes(random.randrange(200))
    if kind == 1:
        return old[: random.randrange(len(old))]
    changed = bytearray(old)
    for _ in range(random.randrange(1, 5)):
        changed[random.randrange(len(changed))] = random.randrange(256) if kind == 2 else random.choice(b'{}[]",:0-')
    return bytes(changed)


@pytest.mark.parametrize("name", RECORDS)
def test_any_bytes_in_a_record_give_a_broker_that_starts_and_no_version_comes_twice(records: Path, name: str):
    old = (records / name).read_bytes()
    for number, damage in enumerate([*NASTY, *(random_bytes(seed, old) for seed in range(300))]):
        (records / name).write_bytes(damage)
        store = a_store(records, liveness=number % 7 + 4)
        state, running = store.load_state("active"), store.load_config()
        assert running.version > number, (number, damage)
        if name == "state.json" and state is not BrokerState.DISABLED:
            assert json.loads(damage)["state"] == state, "only what is whole is believed"


def test_a_record_of_a_version_that_cannot_be_is_ignored(records: Path):
    for version, expected in ((HIGHEST_VERSION + 1, 2), (HIGHEST_VERSION - 1, HIGHEST_VERSION)):
        (records / "current.json").write_text(json.dumps({"version": version, "hash": "x"}))
        (records / "history" / f"{HIGHEST_VERSION + 1}.json").write_text("{}")
        assert a_store(records, liveness=9).load_config().version == expected


@pytest.mark.parametrize("place", ["network", "network/history", "network/current.json"])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, place: str):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix:
        path.mkdir()
    else:
        path.write_text("a file where a folder should be")
    with pytest.raises(RecordError, match="cannot be written"):
        a_store(tmp_path / "network").load_config()
    assert not list(tmp_path.glob("network/history/*.json")), "a version that is not in force leaves no record"


# real brokers


@pytest.fixture
def folder() -> Iterator[Path]:
    # not pytest's tmp_path: a unix socket's path has about 100 characters in all
    made = Path(tempfile.mkdtemp(prefix="s0-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.real
def test_a_broker_that_cannot_keep_records_does_not_start(folder: Path):
    (folder / "data").write_text("a file where a folder should be")
    config = folder / "broker.toml"
    config.write_text(
        f'[broker]\nname = "no-{os.getpid()}"\nplugins = []\nkeep_going = true\nruntime_dir = "{folder}"\n'
        f'data_dir = "{folder}/data"\n'
    )
    command = [sys.executable, "-m", "scale0_core", "broker", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 65
    assert "the broker's own service could not be started" in ended.stderr
    assert f"{folder}/data/network" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", RECORDS)
def test_a_broker_with_a_damaged_record_has_its_service_and_no_traceback(scale0_broker: Any, folder: Path, name: str):
    record = folder / "network" / name
    record.parent.mkdir(parents=True)
    record.write_bytes(b"[" * 100_000)
    broker = scale0_broker(settings={"broker": {"data_dir": str(folder)}})
    assert manage(broker, "state")[1]["state"] == ("disabled" if name == "state.json" else "active")
    assert [line["path"] for line in broker.log if line.get("level") == "error"] == [str(record)]
    assert "Traceback" not in broker.text()


def test_on_a_full_disk_the_state_and_the_configuration_stay_as_they_were(scale0_broker: Any, folder: Path):
    with SlowDisk(folder) as disk:
        settings = {"broker": {"data_dir": str(disk.folder)}}
        broker = scale0_broker(["echo"], settings, environment=disk.environment)
        config = broker.folder / "broker.toml"
        written = {path: path.read_bytes() for path in disk.folder.rglob("*") if path.is_file()}
        disk.change(capacity=disk.used)
        config.write_text(config.read_text() + "\n[network]\nliveness = 4\n")
        for command in ("disable", "reload_config"):
            code, reason = manage(broker, command)
            assert code == 500
            assert "No space left on device" in reason
            assert manage(broker, "state")[1]["state"] == "active"
            assert manage(broker, "state")[1]["config_version"] == 1
            assert {path: path.read_bytes() for path in disk.folder.rglob("*") if path.is_file()} == written
        disk.make_room()
        assert manage(broker, "reload_config")[1]["config_version"] == 2
        assert manage(broker, "disable")[0] == 200
        disk.change(capacity=disk.used)
        assert manage(broker, "enable")[0] == 500
        assert manage(broker, "state")[1]["state"] == "disabled"


# kill -9 right after an acknowledgement

COMMANDS = ("disable", "enable", "reload_config")


class Acknowledged:
    """Changes a broker, and knows all that it acknowledged."""

    def __init__(self, disk: SlowDisk) -> None:
        self._history = disk.folder / "network" / "history"
        self._state = "active"
        self._versions: dict[int, int] = {}

    def step(self, broker: ProcessBroker, number: int, after: contextlib.ExitStack) -> str:
        command = COMMANDS[number % len(COMMANDS)]
        if command == "reload_config":
            config = broker.folder / "broker.toml"
            config.write_text(config.read_text().replace("liveness = 3", f"liveness = {number + 3}"))
        code, told = manage(broker, command)
        assert code == 200, told
        if command == "reload_config":
            self._versions[told["config_version"]] = number + 3
        else:
            self._state = told["state"]
        return command

    def check(self, broker: ProcessBroker, command: str) -> None:
        assert manage(broker, "state")[1]["state"] == self._state, command
        for version, liveness in list(self._versions.items())[-50:]:  # the history has a hundred
            record = json.loads((self._history / f"{version:010}.json").read_text())
            assert (record["version"], record["network"]["liveness"]) == (version, liveness)
        assert manage(broker, "state")[1]["config_version"] > max(self._versions, default=0), "the file went back"


def campaign(rounds: int, plant: str = "") -> None:
    with KilledBroker([], {"network": {"liveness": 3}}, write_ms=200 if plant else 20, plant=plant) as killed:
        acknowledged = Acknowledged(killed.disk)
        killed.rounds(rounds, acknowledged.step, acknowledged.check)


@pytest.mark.real
def test_every_change_that_was_acknowledged_is_there_after_kill_9():
    campaign(3)


@pytest.mark.soak
def test_every_change_that_was_acknowledged_is_there_after_kill_9_at_length():
    campaign(200)


EARLY = """
import threading
from scale0_core.network import plugin as network
write = network.FileStore._write
def early(*arguments):
    if "state.json" in str(arguments[1]) or "history" in str(arguments[1]):
        threading.Thread(target=write, args=arguments, daemon=True).start()
    else:
        write(*arguments)
network.FileStore._write = early
"""


@pytest.mark.real
def test_a_broker_that_acknowledges_before_the_record_is_safe_is_caught():
    with pytest.raises(AssertionError, match=r"round [1-5]:"):
        campaign(5, EARLY)
