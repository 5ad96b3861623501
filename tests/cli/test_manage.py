"""Commands against a running broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import zmq

from scale0_core.network.passwords import hash_password

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
        where = ["--broker", broker.address("scale0", "frontend" if user else "management")]
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
    assert ask("status", "-o", "json", code=1)["state"] == "disabled"
    assert "scale0 enable" in ask("services", "--timeout", "0.5", code=75)
    worker.send_multipart([b"S0W01", b"HEARTBEAT", b""])
    assert not worker.poll(300)
    assert ask("enable", "-o", "json")["state"] == "active"
    worker.send_multipart([b"S0W01", b"HEARTBEAT", b""])
    assert worker.recv_multipart()[1] == b"HEARTBEAT"


@pytest.mark.requirement("R51")
def test_reload_makes_a_new_version_and_says_what_took_effect(ask, broker):
    config = broker.folder / "broker.toml"
    told = {"schema": "scale0.reload/1", "read": str(config)}
    nothing = {"changed": False, "took_effect": [], "needs_restart": []}
    assert ask("reload", "-o", "json") == {**told, **nothing, "config_version": 1}
    assert ask("reload") == f"read {config}: version 1, as before\n"
    own = config.read_text()
    config.write_text(
        own.replace("[broker]", "[broker]\nstop_seconds = 2.0") + "\n[network]\nliveness = 4\npeers = []\n"
    )
    keys = {"took_effect": ["network.liveness"], "needs_restart": ["broker.stop_seconds"]}
    assert ask("reload", "-o", "json") == {**told, **keys, "changed": True, "config_version": 2}
    keys["took_effect"] = []
    assert ask("reload", "-o", "json") == {**told, **keys, "changed": False, "config_version": 2}
    config.write_text(
        own + '\n[network]\nliveness = 5\nfrontend_port = "ipc://{runtime}/other"\n[plugin.echo]\nmax_waiting = 9\n'
    )
    words = "in force now: network.liveness\nneeds a restart: network.frontend_port, plugin.echo.max_waiting\n"
    assert ask("reload") == f"read {config}: version 3\n{words}"
    assert ask("status", "-o", "json")["config_version"] == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("\n[network]\nlivness = 4\n", "did you mean liveness?"),
        ("\n[network]\nliveness = \n", "is not TOML"),
        ("\n[plugin.echo]\nbnd = 4\n", "did you mean bind?"),
        ("\n[plugin.ecko]\nx = 4\n", "no plugin of that name is installed"),
    ],
)
def test_a_wrong_configuration_is_told_and_changes_nothing(ask, broker, wrong, words):
    config = broker.folder / "broker.toml"
    config.write_text(config.read_text() + wrong)
    told = ask("reload", code=1)
    assert words in told
    assert "nothing was changed" in told
    assert ask("status", "-o", "json")["config_version"] == 1


def cut(text: str, way: str) -> str:
    return {
        "emptied": "", "blank": "\n \n", "to a line": text[: text.index("[[network.users]]")],
        "in a line": text[: len(text) // 2],
        "to the last line": text.rstrip("\n").rpartition("\n")[0] + "\n",
        "another one in a line": "[broker]\nstop_seconds = 10.2",
    }[way]  # fmt: skip


@pytest.mark.parametrize(
    "way", ["emptied", "blank", "to a line", "in a line", "to the last line", "another one in a line"]
)
def test_a_file_that_is_cut_off_is_refused_and_the_broker_goes_on_as_before(ask, broker, way):
    config = broker.folder / "broker.toml"
    whole = config.read_text()
    config.write_text(cut(whole, way))
    told = ask("reload", code=1)
    assert str(config) in told
    assert "nothing was changed" in told
    assert "401" in ask("status", user="nobody", password="secret", code=77), "there are users still"
    assert ask("status", "-o", "json", user="ada", password="secret")["config_version"] == 1
    config.write_text(whole)
    assert ask("reload", "-o", "json")["changed"] is False


def test_a_file_that_is_meant_to_be_short_is_taken_by_force(ask, broker):
    config = broker.folder / "broker.toml"
    config.write_text("\n")
    assert "--force" in ask("reload", code=1)
    told = ask("reload", "--force", "-o", "json")
    assert (told["changed"], told["took_effect"]) == (True, ["network.users"])
    assert "broker.plugins" in told["needs_restart"]
    assert ask("status", "-o", "json")["identity"] == broker.name, "its name is that with which it was started"


def test_a_file_that_is_gone_is_refused(ask, broker):
    (broker.folder / "broker.toml").unlink()
    assert "No such file" in ask("reload", code=1)
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
    done = scale0("status", "--broker", "nobody-has-this-name")
    assert done.code == 69
    assert "no broker nobody-has-this-name runs on this machine" in done.err
