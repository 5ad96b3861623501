"""The command `scale0 majordomo`, as a shell calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from scale0_majordomo import CallTimedOutError, Client, RemoteError, Worker

pytestmark = pytest.mark.real

BIND = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "scale0_core", "majordomo", *arguments]


def run(*arguments, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    return subprocess.run(command(*arguments), input=data, capture_output=True, timeout=60, check=False)


@pytest.fixture
def here(scale0_broker) -> str:
    return scale0_broker.in_thread(["majordomo"], BIND).address("majordomo", "requests")


@pytest.fixture
def use(here):
    """Give a function that runs a command at the broker."""
    return lambda name, *arguments, data=b"": run(name, "--broker", here, *arguments, data=data)


@pytest.fixture
def worker(here):
    with Worker(here, credit=4) as running:
        running.add("upper", lambda request: tuple(frame.upper() for frame in request))

        @running.service("count")
        def count(request):
            for number in range(int(request.text)):
                yield b"%d\n" % number

        @running.service("bad")
        def bad(request):
            raise ValueError("no")

        running.wait_ready()
        yield running
        running.stop()


def test_call_writes_the_reply(worker, use):
    assert use("call", "upper", "hello").stdout == b"HELLO"
    assert use("call", "upper", "a", "b").stdout == b"AB"
    assert use("call", "upper", data=b"from stdin\n").stdout == b"FROM STDIN\n"
    assert use("call", "upper", "-", data=b"dash").stdout == b"DASH"
    assert use("call", "count", "3").stdout == b"0\n1\n2\n"
    assert use("call", "count", "3", "--stream").stdout == b"0\n1\n2\n"


def test_call_writes_json(worker, use):
    told = json.loads(use("call", "upper", "a", "b", "-o", "json").stdout)
    assert (told["schema"], told["reply"]) == ("scale0.majordomo.reply/1", ["A", "B"])
    lines = use("call", "count", "2", "--stream", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["part"] for line in lines] == [["0\n"], ["1\n"]]


def test_what_goes_wrong_has_an_exit_code(worker, use, here):
    done = use("call", "bad", "x")
    assert done.returncode == 1
    assert b"ValueError: no" in done.stderr
    done = use("call", "nobody", "x", "--timeout", "0.3")
    assert done.returncode == 75
    assert b"408" in done.stderr
    done = run("call", "upper", "x", "--broker", here + "x")
    assert done.returncode == 69
    assert b"nobody is at" in done.stderr
    assert use("call", "upper", "x", "--traceparent", "mine").returncode == 64
    assert use("call", "x" * 256, "x").returncode == 64
    assert run("worker", "mmi.x", "--broker", here, "--", "cat").returncode == 64


def test_without_a_broker_call_does_not_wait_for_the_end_of_its_input(tmp_path):
    reader, writer = os.pipe()
    try:
        words = command("call", "upper", "--address", f"ipc://{tmp_path}/nobody")
        done = subprocess.run(words, stdin=reader, capture_output=True, timeout=100, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 69


def test_services_and_workers_are_listed(worker, use):
    rows = {row["service"]: row for row in json.loads(use("services", "-o", "json").stdout)["items"]}
    assert set(rows) == {"upper", "count", "bad"}
    assert rows["upper"]["workers"] == 1
    assert use("services").stdout.splitlines()[0].startswith(b"SERVICE")
    rows = json.loads(use("workers", "-o", "json").stdout)["items"]
    assert {(row["service"], row["credit"]) for row in rows} == {("upper", 4), ("count", 4), ("bad", 4)}
    assert b"upper" in use("workers", "upper").stdout
    assert use("workers", "nobody").returncode == 1


@pytest.fixture
def shell_worker(here):
    """Give a function that starts a worker of a shell command, and ends it afterwards."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command("worker", "--broker", here, *arguments), stderr=subprocess.PIPE)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stderr.close()


def test_a_command_serves(shell_worker, here):
    shell_worker("upper", "--", "tr", "a-z", "A-Z")
    shell_worker("fails", "--", "sh", "-c", "echo why >&2; exit 3")
    shell_worker("slow", "--timeout", "0.2", "--", "sleep", "30")
    with Client(here, timeout=20) as client:
        assert client.call("upper", "hello").text == "HELLO"
        with pytest.raises(RemoteError, match="sh ended with 3: why") as caught:
            client.call("fails")
        assert caught.value.code == 500
        with pytest.raises(RemoteError, match=r"0\.2 s are over"):
            client.call("slow")


def test_a_command_is_killed_when_its_caller_gives_up(shell_worker, here, tmp_path):
    began, ended = tmp_path / "began", tmp_path / "ended"
    shell_worker("slow", "--", "sh", "-c", f"touch {began}; sleep 20; touch {ended}")
    with Client(here, timeout=20) as client:
        future = client.submit("slow")
        end = time.monotonic() + 20
        while not began.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        future.cancel()
        while client.workers("slow")[0]["in_hand"]:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert not ended.exists()


def test_bench_tells_how_fast_it_is(use, worker):
    told = json.loads(use("bench", "-n", "300", "--window", "50", "-o", "json").stdout)
    assert (told["requests"], told["window"], told["size"]) == (300, 50, 100)
    assert told["req_per_s"] > 0
    assert 0 < told["p50_ms"] <= told["p99_ms"]
    assert b"req_per_s" in use("bench", "upper", "-n", "10").stdout


@pytest.mark.parametrize("name", ["call", "services", "workers", "worker", "bench"])
def test_help_has_examples(name):
    done = run(name, "--help")
    assert done.returncode == 0
    assert b"Examples:" in done.stdout


def test_a_call_that_is_interrupted_is_cancelled(here):
    begun, cancelled = threading.Event(), threading.Event()
    with Worker(here) as worker:

        @worker.service("slow")
        def slow(request):
            begun.set()
            while not request.cancelled:
                time.sleep(0.01)
            cancelled.set()

        with subprocess.Popen(command("call", "slow", "x", "--broker", here), stderr=subprocess.DEVNULL) as process:
            assert begun.wait(20)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        assert cancelled.wait(20)


def test_a_call_that_is_late_says_at_which_stage(here):
    with Client(here) as client:
        assert not client.offers("nobody")  # it is connected
        with pytest.raises(CallTimedOutError, match="waited for a worker"):
            client.call("nobody", timeout=1)
