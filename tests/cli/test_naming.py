"""One way to name a broker, in commands and in Python: brokers are found where they really are."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from scale0_core.cli import kit
from scale0_core.client import Client, NoBrokerError, Worker
from scale0_core.config.running import BrokerRecord, RecordFile
from scale0_core.testing import ProcessBroker

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"network": {"frontend_port": "tcp://127.0.0.1:*", "backend_port": "tcp://127.0.0.1:*"}}


@pytest.fixture
def start(scale0, scale0_broker):
    """Start a broker of the shell's user, with sockets elsewhere: in another folder, or on TCP."""

    def run(*plugins: str, **more) -> ProcessBroker:
        return scale0_broker(["echo", *plugins], ELSEWHERE, environment=scale0.environment, **more)

    return run


@pytest.fixture
def same_user(scale0, monkeypatch):
    """Have this process find brokers as the shell's user does."""
    for name in ("XDG_RUNTIME_DIR", "SCALE0_RUN_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, scale0.environment[name])


def test_commands_find_a_broker_by_its_name_wherever_its_sockets_are(scale0, start):
    broker = start()
    start()
    assert str(broker.folder) in broker.address("echo", "requests")
    assert broker.address("scale0", "frontend").startswith("tcp://")
    assert scale0("echo", "-b", broker.name, "hello").out == "hello\n"
    assert scale0("call", "-b", broker.name, "echo", "ECHO", "", "hello").out == "hello"
    assert scale0("status", "--broker", broker.name, "-o", "json").json["identity"] == broker.name
    told = scale0("echo", "-b", broker.name, "-o", "json", "hello").json
    assert told["address"] == broker.address("echo", "requests")


def test_the_only_broker_that_runs_is_meant_without_a_word(scale0, start):
    for words in (("echo", "hello"), ("status",), ("call", "echo", "x")):
        none = scale0(*words)
        assert none.code == 69
        assert "no broker runs on this machine" in none.err
        assert "scale0 broker" in none.err
    broker = start()
    assert scale0("echo", "hello").out == "hello\n"
    other = start()
    several = scale0("echo", "hello")
    assert several.code == 64
    assert ", ".join(sorted((broker.name, other.name))) in several.err
    assert scale0("status", "-o", "json", SCALE0_BROKER=other.name).json["identity"] == other.name
    address = broker.address("scale0", "management")
    assert scale0("status", "-o", "json", SCALE0_BROKER=address).json["identity"] == broker.name
    scale0.write("broker.toml", f'[broker]\nname = "{broker.name}"\n')
    assert scale0("status", "-o", "json").json["identity"] == broker.name
    assert scale0("status", "-o", "json", SCALE0_BROKER=other.name).json["identity"] == other.name
    assert scale0("status", "-o", "json", "-b", other.name).json["identity"] == other.name


def test_a_broker_toml_without_a_name_says_nothing_and_a_wrong_one_is_told(scale0, start):
    broker = start()
    scale0.write("broker.toml", "[wire]\nbatch = 64\n")
    assert scale0("status", "-o", "json").json["identity"] == broker.name
    scale0.write("broker.toml", "[broker\n")
    assert scale0("status").code == 78
    scale0.write("broker.toml", '[broker]\nname = "gone"\n')
    assert "no broker gone runs on this machine" in scale0("status").err


def test_ps_lists_the_brokers_that_run(scale0, start):
    brokers = [start() for _ in range(3)]

    def listed() -> dict[str, dict]:
        rows = scale0("ps", "-o", "json").json["items"]
        return {row["name"]: row for row in rows if row["state"] != "unknown"}

    rows = listed()
    assert set(rows) == {broker.name for broker in brokers}
    for broker in brokers:
        row = rows[broker.name]
        assert (row["pid"], row["state"]) == (broker.process.pid, "active")
        assert row["config"] == str(broker.folder / "broker.toml")
        assert (row["runtime_dir"], row["data_dir"]) == (str(broker.folder), str(broker.folder / "data"))
        assert row["addresses"]["echo"]["requests"] == [broker.address("echo", "requests")]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", row["since"])
    killed, disabled, stopped = brokers
    killed.kill()
    assert scale0("disable", "-b", disabled.name).code == 0
    assert stopped.stop() == 0
    rows = listed()
    assert {name: row["state"] for name, row in rows.items()} == {disabled.name: "disabled"}
    assert scale0("enable").code == 0
    lines = scale0("ps").out.splitlines()
    assert lines[0].split() == ["NAME", "PID", "STATE", "SINCE", "CONFIG", "ADDRESSES"]
    (line,) = (line.split() for line in lines if disabled.name in line)
    assert line[2] == "active"
    assert "no broker" in scale0("echo", "-b", killed.name, "x").err


def test_a_broker_whose_record_is_gone_or_damaged_is_listed_with_what_is_known(scale0, start):
    broker = start()
    path = Path(scale0.environment["XDG_RUNTIME_DIR"]) / "scale0" / broker.name / "broker.json"
    path.write_text("{", encoding="utf-8")
    done = scale0("ps", "-o", "json")
    (row,) = (row for row in done.json["items"] if row["name"] == broker.name)
    assert (row["pid"], row["state"], row["addresses"]) == (broker.process.pid, "unknown", {})
    assert f"{path}: it is damaged" in done.err
    refused = scale0("echo", "-b", broker.name, "x")
    assert refused.code == 69
    assert f"{path}: it is damaged" in refused.err
    assert f"{path}: it is damaged" in scale0("echo", "x").err
    path.unlink()
    assert broker.stop() == 0


@pytest.mark.parametrize("name", ["../x", "a b", "no/where", "ü", "a@b", ".a", "x" * 65, "a\nb", "a | b"])
def test_what_is_no_name_and_no_address_is_refused(scale0, name):
    for words in (("status",), ("call", "x"), ("echo", "x")):
        done = scale0(*words, "-b", name)
        assert done.code == 64
        assert "by its name or by an address" in done.err
    assert scale0("echo", "x", SCALE0_BROKER=name).code == 64


def test_older_spellings_work_and_are_not_shown(scale0, start):
    broker = start()
    start()
    assert scale0("echo", "--name", broker.name, "hello").out == "hello\n"
    assert scale0("echo", "--address", broker.address("echo", "requests"), "hello").out == "hello\n"
    assert scale0("status", "-n", broker.name, "-o", "json").json["identity"] == broker.name
    shown = scale0("echo", "--help").out + scale0("status", "--help").out
    assert "--broker" in shown
    assert not re.search(r"--name|--address", shown)


def test_the_shell_completes_names_of_brokers(scale0, start):
    broker = start()
    words = {"_SCALE0_COMPLETE": "bash_complete", "COMP_WORDS": "scale0 echo -b te", "COMP_CWORD": "3"}
    code = "from scale0_core.cli import main; main()"
    done = subprocess.run(
        ["python", "-c", f"import sys; sys.argv[0] = 'scale0'; {code}"], env={**scale0.environment, **words},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [f"plain,{broker.name}"]


def test_the_layout_of_a_service_works_by_name_alone(scale0):
    """As docs/how-to/run-as-a-service.md has it; the unit's user has no folder of a session."""
    page = (ROOT / "docs" / "how-to" / "run-as-a-service.md").read_text(encoding="utf-8")
    (unit,) = re.findall(r"^```ini\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (file,) = re.findall(r"^```toml\n# /etc/scale0/main.toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert "RuntimeDirectory=scale0/%i\n" in unit
    services = Path(scale0.environment["SCALE0_RUN_DIR"])
    name = f"s-{uuid.uuid4().hex[:8]}"
    (services / name).mkdir(parents=True, mode=0o700)
    services.chmod(0o755)
    file = file.replace("/run/scale0/main", str(services / name)).replace("/var/lib", str(scale0.folder))
    path = scale0.write("main.toml", file)
    environment = {key: value for key, value in scale0.environment.items() if not key.startswith("XDG")}
    broker = ProcessBroker(name, services / name, ["--config", str(path)], {**environment, "XDG_RUNTIME_DIR": ""})
    try:
        assert (services / name / "broker.json").exists()
        assert scale0("status", "-b", name, "-o", "json").json["identity"] == name
        assert scale0("echo", "-b", name, "hello").out == "hello\n"
        (row,) = (row for row in scale0("ps", "-o", "json").json["items"] if row["name"] == name)
        assert (row["state"], row["config"]) == ("active", str(path))
    finally:
        assert broker.stop() == 0
    assert not (services / name / "broker.json").exists()


def test_a_broker_that_cannot_write_its_record_runs_without_it(scale0, scale0_broker):
    file = scale0.write("taken", "")
    broker = scale0_broker(["echo"], environment={**scale0.environment, "XDG_RUNTIME_DIR": str(file)})
    assert broker.wait_for("record not written: clients and commands do not find this broker by its name")
    assert scale0("echo", "-b", broker.address("echo", "requests"), "hello").out == "hello\n"


# --- Python -----------------------------------------------------------------------------------------------------------


def test_clients_find_a_broker_by_its_name_and_again_at_another_address(start, same_user):
    broker = start()
    name, first = broker.name, broker.address("scale0", "frontend")
    with Client(name, timeout=30) as client, Worker(name) as worker:
        worker.add("upper", bytes.upper)
        worker.wait_ready(30)
        assert client.address == first
        assert client.call("upper", b"a").body == b"A"
        broker.kill()
        again = start(name=name)
        assert again.address("scale0", "frontend") != first
        assert client.call("upper", b"b", retry=True).body == b"B"
        assert client.address == again.address("scale0", "frontend")


def test_of_several_brokers_the_first_that_is_there_is_taken(start, same_user):
    broker = start()
    with Client(["gone", "tcp://127.0.0.1:1", broker.name], timeout=30) as client:
        assert client.call("echo", b"ECHO", b"", b"x").body == b"x"
    with Client(["gone", "tcp://127.0.0.1:1"]) as client, pytest.raises(NoBrokerError) as caught:
        client.call("echo", b"x")
    assert "no broker gone runs on this machine" in caught.value.problem.why
    assert "nobody listens at tcp://127.0.0.1:1" in caught.value.problem.why


def test_a_client_may_wait_for_a_broker_that_is_started_later(start, same_user):
    name = f"later-{uuid.uuid4().hex[:8]}"
    with Client(name, timeout=60, wait_for_broker=True) as client:
        reply = client.submit("echo", b"ECHO", b"", b"x", retry=True)
        start(name=name)
        assert reply.result(60).body == b"x"


def test_the_data_of_a_broker_is_found_by_its_name_whether_it_runs_or_not(monkeypatch, tmp_path):
    for name in ("XDG_RUNTIME_DIR", "SCALE0_RUN_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALE0_BROKER", raising=False)
    assert kit.data_dir(None) == tmp_path / "XDG_STATE_HOME" / "scale0" / "default"
    place = tmp_path / "XDG_RUNTIME_DIR" / "scale0"
    place.mkdir(parents=True, mode=0o700)
    record = RecordFile(place / "a")
    about = BrokerRecord(
        name="a", pid=os.getpid(), since="", state="active", config="", runtime_dir="", data_dir="/var/lib/a",
        addresses={"zpipes": {"pipes": ("ipc:///run/a/pipes", "tcp://127.0.0.1:5555")}},
    )  # fmt: skip
    record.write(about)
    assert kit.data_dir("a") == kit.data_dir(None) == Path("/var/lib/a")
    assert kit.data_dir("tcp://127.0.0.1:5555") == Path("/var/lib/a")
    monkeypatch.setenv("SCALE0_BROKER", "tcp://127.0.0.1:5555")
    assert kit.data_dir(None) == Path("/var/lib/a")
    with pytest.raises(kit.UsageError, match=r"127\.0\.0\.1:6666") as refused:
        kit.data_dir("tcp://127.0.0.1:6666")
    assert refused.value.problem.why == "brokers that run here: a"
    assert "--broker NAME" in refused.value.problem.remedy
    record.remove()
    assert kit.data_dir("a") == tmp_path / "XDG_STATE_HOME" / "scale0" / "a"
    with pytest.raises(kit.UsageError, match="no broker that runs on this machine"):
        kit.data_dir(None)


def test_the_data_of_a_broker_is_found_by_an_address_of_the_environment(scale0, scale0_broker):
    broker = scale0_broker(["telemetry"], ELSEWHERE, environment=scale0.environment)
    address = broker.address("scale0", "frontend")
    for done in (scale0("telemetry", "ls", SCALE0_BROKER=address), scale0("telemetry", "ls", "-b", address)):
        assert done.code == 1, "there are no events yet"
        assert str(broker.folder / "data" / "telemetry") in done.err
    refused = scale0("telemetry", "ls", SCALE0_BROKER="tcp://127.0.0.1:1")
    assert refused.code == 64
    assert "give its name: --broker NAME" in refused.err


def test_doctor_takes_what_all_others_take(scale0, start):
    broker = start()

    def looked_at(*words: str, **environment: str) -> str:
        rows = scale0("doctor", *words, "-o", "json", **environment).json["items"]
        return next(row["found"] for row in rows if row["name"] == "broker")

    runs, address = f"{broker.name} runs as process {broker.process.pid}", broker.address("scale0", "frontend")
    assert looked_at("-b", broker.name) == looked_at("-b", address) == runs
    assert looked_at("--name", broker.name) == runs
    assert looked_at(SCALE0_BROKER=broker.name) == looked_at(SCALE0_BROKER=address) == runs
    assert looked_at("-b", "gone", SCALE0_BROKER=broker.name) == "gone does not run"
    file = scale0.write("other.toml", '[broker]\nname = "other"\n')
    assert looked_at("--config", str(file), SCALE0_BROKER=broker.name) == "other does not run"
    assert scale0("doctor", "-b", "tcp://127.0.0.1:1").code == 64
