"""The command `scale0 echo`, as a shell calls it."""

import hashlib
import json
import subprocess
import sys

import pytest
import zmq

pytestmark = pytest.mark.real


def scale0(*arguments):
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "scale0_core", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)


@pytest.fixture
def address(scale0_broker):
    return scale0_broker(["echo"]).address("echo", "requests")


def test_prints_the_answer(address):
    done = scale0("echo", "--broker", address, "hello", "world")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello world\n", "")


def test_prints_a_digest_and_waits_for_later(address):
    digest = scale0("echo", "--broker", address, "--digest", "hello")
    assert hashlib.sha256(b"hello").hexdigest() == digest.stdout.strip()
    later = json.loads(scale0("echo", "--broker", address, "--later", "100", "-o", "json", "hello").stdout)
    assert (later["schema"], later["answer"]) == ("scale0.echo/1", ["hello"])
    assert later["ms"] >= 100


def test_says_at_which_stage_there_is_no_broker(tmp_path):
    done = scale0("echo", "--broker", f"ipc://{tmp_path}/nobody", "--timeout", "0.2", "-o", "json", "hello")
    error = json.loads(done.stderr)
    assert (done.returncode, error["exit"]) == (69, 69)
    assert f"{tmp_path}/nobody" in error["what"]
    assert error["why"].startswith("connecting")
    assert error["remedy"]


def test_says_when_nobody_answers():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        done = scale0("echo", "--broker", f"tcp://127.0.0.1:{port}", "--timeout", "0.2", "-o", "json", "hello")
    assert (done.returncode, json.loads(done.stderr)["why"].startswith("waiting for the answer")) == (75, True)


@pytest.mark.parametrize("wrong", [("--digest", "--later", "1", "x"), (), ("--broker", "no/where", "x")])
def test_refuses_wrong_usage(wrong):
    assert scale0("echo", *wrong).returncode == 64


def test_an_answer_of_another_service_is_no_success(scale0_broker):
    broker = scale0_broker(["echo"])
    asked = scale0("echo", "--broker", broker.address("scale0", "frontend"), "hello")
    assert (asked.returncode, asked.stdout) == (65, "")
    assert "makes no sense" in asked.stderr
    status = scale0("status", "--broker", broker.address("echo", "requests"))
    assert (status.returncode, "makes no sense" in status.stderr) == (65, True), status.stderr
    assert "scale0 ps" in status.stderr
