"""Commands against a running broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import zmq

from scale0_core.broker.passwords import hash_password

SETTINGS = {
    "network": {
        "users": [
            {"name": "ada", "password": hash_password("secret", b"0123456789abcdef"), "role": "admin"},
            {"name": "vic", "password": hash_password("viewer", b"0123456789abcdef"), "role": "viewer"},
        ]
    }
}


@pytest.fixture
def broker(scale0_broker):
    return scale0_broker(["echo"], SETTINGS)


@pytest.fixture
def ask(broker):
    """Run a command against the broker: over its own socket, or over the frontend with a user."""

    def run(*arguments: str, user: str = "", password: str = "", code: int = 0):
        where = ["--address", broker.address("scale0", "frontend" if user else "management")]
        who = ["--user", user] if user else []
        command = [sys.executable, "-m", "scale0_core", *arguments, *where, *who]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "SCALE0_PASSWORD": password},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "-o" in arguments and done.stdout else done.stdout + done.stderr

    return run


@pytest.fixture
def worker(broker):
    """A worker that has been accepted."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.rcvtimeo = 5000
    socket.connect(broker.address("scale0", "backend"))
    for request in (
        [b"S0W01", b"CHECKCONFIG", b'{"identity":"w1","services":["sum"]}'],
        [b"S0W01", b"READY", b'{"services":["sum"],"window":1}'],
    ):
        socket.send_multipart(request)
        answer = socket.recv_multipart()
    assert answer[1] == b"READYOK"
    yield socket
    context.destroy(linger=0)


@pytest.mark.requirement("R25")
def test_status(ask, broker):
    told = ask("status", "-o", "json")
    assert (told["schema"], told["identity"], told["state"]) == ("scale0.status/1", broker.name, "active")
    assert "active" in ask("status")


@pytest.mark.requirement("R24")
def test_services(ask, worker):
    rows = {row["service"]: row for row in ask("services", "-o", "json")["items"]}
    assert (rows["sum"]["kind"], rows["sum"]["workers"], rows["sum"]["idle"]) == ("worker", 1, 1)
    assert (rows["echo"]["kind"], rows["echo"]["workers"]) == ("hosted", 1)


@pytest.mark.requirement("R23")
def test_clients(ask, worker):
    (row,) = [row for row in ask("clients", "-o", "json")["items"] if row["role"] == "backend"]
    assert (row["identity"], row["state"], row["services"]) == ("w1", "ready", ["sum"])


def test_kick(ask, worker):
    assert ask("kick", "w1", "-o", "json")["kicked"] == 1
    assert worker.recv_multipart()[1] == b"DISCONNECTERROR"
    assert "there is no worker w1" in ask("kick", "w1", code=1)


@pytest.mark.requirement("R51")
@pytest.mark.requirement("R67")
def test_disable_and_enable(ask, worker):
    assert ask("disable", "-o", "json")["state"] == "disabled"
    assert worker.recv_multipart()[1] == b"CHANGEBROKER"
    assert "scale0 enable" in ask("status", "--timeout", "0.5", code=75)
    worker.send_multipart([b"S0W01", b"HEARTBEAT", b""])
    assert not worker.poll(300)
    assert ask("enable", "-o", "json")["state"] == "active"
    worker.send_multipart([b"S0W01", b"HEARTBEAT", b""])
    assert worker.recv_multipart()[1] == b"HEARTBEAT"


@pytest.mark.requirement("R51")
def test_reload_makes_a_new_version(ask, broker):
    config = broker.folder / "broker.toml"
    assert ask("reload", "-o", "json") == {"schema": "scale0.reload/1", "config_version": 1, "changed": False}
    config.write_text(config.read_text() + "\n[network]\nliveness = 4\n")
    assert ask("reload", "-o", "json") == {"schema": "scale0.reload/1", "config_version": 2, "changed": True}
    assert ask("status", "-o", "json")["config_version"] == 2


def test_a_wrong_configuration_is_told_and_changes_nothing(ask, broker):
    config = broker.folder / "broker.toml"
    config.write_text(config.read_text() + "\n[network]\nlivness = 4\n")
    assert "did you mean liveness?" in ask("reload", code=1)
    assert ask("status", "-o", "json")["config_version"] == 1


@pytest.mark.requirement("R48")
@pytest.mark.requirement("R49")
@pytest.mark.requirement("R50")
def test_over_the_network_a_user_and_a_password_are_needed(ask):
    assert ask("status", "-o", "json", user="ada", password="secret")["state"] == "active"
    assert "401" in ask("status", user="ada", password="wrong", code=77)
    assert "401" in ask("status", user="nobody", password="secret", code=77)


def test_a_role_allows_so_much_and_no_more(ask):
    assert ask("status", "-o", "json", user="vic", password="viewer")["state"] == "active"
    assert "needs the role admin" in ask("disable", user="vic", password="viewer", code=77)


def test_the_hash_of_a_password_is_made_from_stdin(broker):
    done = subprocess.run(
        [sys.executable, "-m", "scale0_core", "password"],
        input="secret\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.startswith("scrypt$")
    empty = subprocess.run(
        [sys.executable, "-m", "scale0_core", "password"],
        input="\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert empty.returncode == 64


def test_silenced_connections_are_listed_and_forgiven(ask, broker):
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.rcvtimeo = 5000
    socket.connect(broker.address("scale0", "frontend"))
    for _ in range(5):
        socket.send(b"nonsense")
        assert socket.recv_multipart()[1] == b"DISCONNECTERROR"
    socket.send(b"nonsense")
    assert not socket.poll(300)
    (row,) = ask("silenced", "-o", "json")["items"]
    assert row["errors"] == 5
    assert ask("silenced", "--clear", "-o", "json")["cleared"] == 1
    socket.send_multipart([b"S0C01", b"PING", b""])
    assert socket.recv_multipart()[1] == b"PONG"
    context.destroy(linger=0)


def test_nobody_there(scale0):
    done = scale0("status", "--name", "nobody-has-this-name")
    assert done.code == 69
    assert "there is no such socket" in done.err
