"""Services from the shell, against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real

SCALE0 = [sys.executable, "-m", "scale0_core"]


@pytest.fixture
def broker(scale0_broker):
    return scale0_broker([], {"log": {"level": "debug"}})


@pytest.fixture
def call(broker, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [*SCALE0, "call", "--broker", broker.address("scale0", "frontend"), *arguments],
            input=stdin, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture
def serve(broker, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    running = []

    def start(service: str, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*SCALE0, "serve", service, "--broker", broker.address("scale0", "frontend"), "--", *command],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        broker.wait_for("worker changed", services=service, state="ready")
        return process

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0, told


def test_call_and_serve(call, serve):
    serve("upper", "tr", "a-z", "A-Z")
    assert call("upper", "hello") == "HELLO"
    assert call("upper", stdin="from stdin") == "FROM STDIN"
    told = json.loads(call("upper", "hello", "-o", "json"))
    assert (told["schema"], told["reply"]) == ("scale0.call/1", ["HELLO"])


def test_a_command_that_fails_is_told_to_the_caller(call, serve):
    serve("fails", "sh", "-c", "echo no good >&2; exit 3")
    told = call("fails", "x", code=1)
    assert "ended with 3: no good" in told


def test_a_service_that_nobody_offers(call):
    assert "404" in call("nobody", "x", code=1) or "nobody offers" in call("nobody", "x", code=1)


def test_nobody_at_the_address():
    done = subprocess.run(
        [*SCALE0, "call", "--broker", "ipc:///tmp/no-such-broker", "--timeout", "0.5", "x", "y"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 69
    assert "nobody listens at ipc:///tmp/no-such-broker" in done.stderr


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [("call", "", 64), ("call", "x" * 256, 64), ("call", "x" * 255, 69), ("serve", "", 64), ("serve", "x" * 256, 64)],
)
def test_the_name_of_a_service_is_checked(command: str, name: str, code: int):
    words = [*SCALE0, command, "--broker", "ipc:///dev/null/nowhere", name, "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "1 to 255 bytes" in done.stderr) == (code, code == 64), done.stderr
