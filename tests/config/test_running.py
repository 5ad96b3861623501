"""Records of brokers that run: whole, current, and believed only where they can be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest

from scale0_core.config.running import FILE, BrokerRecord, RecordFile, record_folder, running_brokers

RECORD = BrokerRecord(
    name="a", pid=7, since="2030-01-31T12:00:00+00:00", state="active", config="/etc/a.toml", runtime_dir="/run/x",
    data_dir="/var/lib/x", addresses={"echo": {"requests": ("ipc:///run/x/echo", "tcp://127.0.0.1:5555")}},
)  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for place in ("user/scale0", "services"):
        (tmp_path / place).mkdir(parents=True, mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "user"), "SCALE0_RUN_DIR": str(tmp_path / "services")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "user" / "scale0" / "a"


def test_a_record_is_found_as_long_as_it_is_held(environment: dict[str, str], folder: Path):
    record = RecordFile(folder)
    record.write(RECORD)
    assert running_brokers(environment) == ([RECORD], [])
    record.write(attrs.evolve(RECORD, state="disabled"))
    assert [found.state for found in running_brokers(environment)[0]] == ["disabled"]
    record.remove()
    record.remove()
    assert running_brokers(environment) == ([], [])
    assert list(folder.iterdir()) == []


def test_a_record_that_nobody_holds_is_stale_whatever_it_says(environment: dict[str, str], folder: Path):
    record = RecordFile(folder)
    record.write(RECORD)
    record._unlock()  # as the kernel does when the process is gone
    assert (folder / FILE).exists()
    assert running_brokers(environment) == ([], [])
    (folder / FILE).write_text("{", encoding="utf-8")
    assert running_brokers(environment) == ([], [])


DAMAGED = [
    b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"name": "a"}',
    json.dumps({**attrs.asdict(RECORD), "addresses": {"echo": ["tcp://x:1"]}}).encode(),
    json.dumps({**attrs.asdict(RECORD), "pid": "7"}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_record_is_told_and_the_others_are_found(environment: dict[str, str], folder: Path, text: bytes):
    damaged, whole = RecordFile(folder), RecordFile(folder.with_name("b"))
    damaged.write(RECORD)
    whole.write(attrs.evolve(RECORD, name="b"))
    (folder / FILE).write_bytes(text)
    records, problems = running_brokers(environment)
    assert [record.name for record in records] == ["b"]
    assert [problem.split(": ")[:2] for problem in problems] == [[str(folder / FILE), "it is damaged"]]


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")


@needs_root
def test_a_record_of_another_user_counts_in_the_place_of_services_alone(
    environment: dict[str, str], folder: Path, tmp_path: Path
):
    mine, service = RecordFile(folder), RecordFile(tmp_path / "services" / "b")
    mine.write(RECORD)
    service.write(attrs.evolve(RECORD, name="b"))
    for path in (folder / FILE, tmp_path / "services" / "b" / FILE, tmp_path / "services" / "b"):
        os.chown(path, 1, 1)
    records, problems = running_brokers(environment)
    assert [record.name for record in records] == ["b"]
    assert problems == [f"{folder / FILE}: it belongs to another user"]


@needs_root
def test_a_place_of_another_user_is_not_believed(environment: dict[str, str], folder: Path):
    RecordFile(folder).write(RECORD)
    os.chown(folder.parent, 1, 1)
    assert running_brokers(environment) == ([], [f"{folder.parent}: another user owns it or may write to it"])


def test_a_place_that_others_may_write_to_is_not_believed(environment: dict[str, str], folder: Path):
    RecordFile(folder).write(RECORD)
    folder.parent.chmod(0o777)
    assert running_brokers(environment) == ([], [f"{folder.parent}: another user owns it or may write to it"])


def test_what_is_no_record_does_not_stop_anybody(environment: dict[str, str], folder: Path, tmp_path: Path):
    folder.mkdir()
    os.mkfifo(folder / FILE)
    (tmp_path / "services" / "file").write_text("", encoding="utf-8")
    (folder.with_name("b") / FILE).mkdir(parents=True)
    records, problems = running_brokers(environment)
    assert records == []
    assert all(str(folder.with_name("b")) in problem for problem in problems)


def test_who_has_one_folder_of_services_cannot_speak_for_another_broker(environment: dict[str, str], tmp_path: Path):
    services = tmp_path / "services"
    liar, service = RecordFile(services / "a"), RecordFile(services / "b")
    service.write(attrs.evolve(RECORD, name="b", pid=7))
    liar.write(attrs.evolve(RECORD, name="b", pid=8))
    records, problems = running_brokers(environment)
    assert [record.pid for record in records] == [7]
    assert problems == [f"{services / 'a' / FILE}: it is of a broker b"]


def test_a_broker_keeps_its_record_in_a_folder_of_its_name(environment: dict[str, str], folder: Path, tmp_path: Path):
    assert record_folder("a", str(tmp_path / "services" / "a"), environment) == tmp_path / "services" / "a"
    for elsewhere in (tmp_path / "services" / "b", tmp_path / "anywhere"):
        assert record_folder("a", str(elsewhere), environment) == folder
