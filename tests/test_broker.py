"""The whole broker in a process of its own: start, stop, signals, names, files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import zmq

pytestmark = pytest.mark.real

SLEEPY = """
import time
from scale0_core.api import Endpoint, Job, PluginInfo, hookimpl

class Sleepy:
    name = "sleepy"
    def __init__(self, address):
        self.endpoints = {"main": Endpoint(kind="ROUTER", bind=address)}
    def receive(self, socket, frames, now):
        return [(socket, (frames[0], b"asleep")), Job("one", time.sleep, float(frames[1]), (socket, frames[0]))]
    def next_deadline(self):
        return None
    def on_deadline(self, now):
        return ()
    def on_job(self, result, now):
        socket, peer = result.token
        return [(socket, (peer, b"slept"))]

class SleepyPlugin:
    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="sleeps in a job", api=(2, 2))

    @hookimpl
    def scale0_services(self, context):
        return [Sleepy(context.address("ipc://{runtime}/sleepy"))]
"""


@pytest.fixture
def client():
    context = zmq.Context()
    sockets = []

    def connect(address, kind=zmq.DEALER):
        opened = context.socket(kind)
        opened.setsockopt(zmq.RCVTIMEO, 10_000)
        opened.setsockopt(zmq.LINGER, 0)
        opened.connect(address)
        sockets.append(opened)
        return opened

    yield connect
    context.destroy(linger=0)


@pytest.fixture
def sleepy(tmp_path, monkeypatch):
    """A plugin whose job takes as long as it is told."""
    (tmp_path / "sleepy_plugin.py").write_text(SLEEPY)
    about = tmp_path / "scale0_sleepy-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scale0-sleepy\nVersion: 0.1\nSummary: sleeps\n")
    (about / "entry_points.txt").write_text("[scale0.plugins]\nsleepy = sleepy_plugin:SleepyPlugin\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def ask(socket, *frames):
    socket.send_multipart(frames)
    return socket.recv_multipart()


@pytest.mark.requirement("R92")
def test_a_broker_hosts_the_services_of_its_plugins(scale0_broker, client):
    broker = scale0_broker(["echo"], {"plugin": {"echo": {"bind": ["ipc://{runtime}/e", "tcp://127.0.0.1:*"]}}})
    for number in (0, 1):
        address = broker.address("echo", "requests", number)
        assert ask(client(address), b"ECHO", b"", b"hi") == [b"hi"]
        assert ask(client(address, zmq.REQ), b"ECHO", b"", b"hi") == [b"hi"]


@pytest.mark.requirement("R102")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(scale0_broker, client, number):
    broker = scale0_broker(["echo"])
    path = Path(broker.address("echo", "requests").removeprefix("ipc://"))
    assert ask(client(f"ipc://{path}"), b"ECHO", b"", b"hi") == [b"hi"]
    assert path.is_socket()
    assert broker.stop(number) == 0
    assert not path.exists()
    totals = broker.wait_for("totals", service="echo")
    assert (totals["received"], totals["sent"], totals["undelivered"]) == (1, 1, 0)


def test_a_stop_waits_for_jobs_and_their_answers_arrive(scale0_broker, client, sleepy):
    broker = scale0_broker(["sleepy"])
    peer = client(broker.address("sleepy", "main"))
    assert ask(peer, b"0.5") == [b"asleep"]
    assert broker.stop() == 0
    assert peer.recv_multipart() == [b"slept"]


def test_a_job_that_does_not_end_holds_a_stop_up_for_a_while_only(scale0_broker, client, sleepy):
    broker = scale0_broker(["sleepy"], {"broker": {"stop_seconds": 0.2}})
    assert ask(client(broker.address("sleepy", "main")), b"600") == [b"asleep"]
    assert broker.stop() == 0
    assert broker.wait_for("jobs did not end in time and are given up")["jobs"] == 1


def test_a_second_signal_ends_it_at_once(scale0_broker, client, sleepy):
    broker = scale0_broker(["sleepy"], {"broker": {"stop_seconds": 600}})
    assert ask(client(broker.address("sleepy", "main")), b"600") == [b"asleep"]
    broker.process.send_signal(signal.SIGTERM)
    broker.wait_for("stopping")
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(10) == 128 + signal.SIGTERM


def run_broker(*arguments):
    command = [sys.executable, "-m", "scale0_core", "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.requirement("R101")
def test_at_most_one_broker_of_a_name(scale0_broker):
    broker = scale0_broker(["echo"])
    second = run_broker("--config", str(broker.folder / "broker.toml"))
    assert second.returncode == 69
    assert broker.name in second.stderr
    assert str(broker.process.pid) in second.stderr
    other = scale0_broker(["echo"])
    assert other.name != broker.name


@pytest.mark.requirement("R101")
def test_without_arguments_the_name_is_default(tmp_path):
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind("\0scale0/broker/default")  # as a broker of that name does
        holder.listen()
        ended = subprocess.run(
            [sys.executable, "-m", "scale0_core", "broker"], cwd=tmp_path, capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 69
    assert "a broker named default runs already" in ended.stderr
    assert str(os.getpid()) in ended.stderr


def test_after_kill_9_the_same_name_and_path_serve_again(scale0_broker, client):
    settings = {"plugin": {"echo": {"bind": ["ipc://{runtime}/e"]}}}
    first = scale0_broker(["echo"], settings)
    address = first.address("echo", "requests")
    peer = client(address)
    assert ask(peer, b"ECHO", b"", b"1") == [b"1"]
    first.kill()
    assert Path(address.removeprefix("ipc://")).is_socket()
    second = scale0_broker(["echo"], {"plugin": {"echo": {"bind": [address]}}}, name=first.name)
    assert second.address("echo", "requests") == address
    assert ask(peer, b"ECHO", b"", b"2") == [b"2"]


def started_with(folder, *tables):
    """Run a broker that is expected not to start."""
    config = folder / "broker.toml"
    broker = f'name = "no-{os.getpid()}"\nruntime_dir = "{folder}"\ndata_dir = "{folder}/data"'
    config.write_text("\n".join((f"[broker]\n{broker}", *tables)))
    folder.chmod(0o700)
    return run_broker("--config", str(config))


@pytest.mark.parametrize("port", ["frontend_port", "backend_port", "config_pub_port"])
def test_a_broker_does_not_start_without_its_own_service(tmp_path, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        ended = started_with(tmp_path, "plugins = []", "keep_going = true", f"[network]\n{port} = {number}")
    assert ended.returncode == 69
    assert "the broker's own service could not be started" in ended.stderr
    assert f"127.0.0.1:{number}" in ended.stderr
    assert "the broker does not start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_broker_does_not_start_without_a_plugin_it_was_asked_for(tmp_path, scale0_broker):
    address = scale0_broker(["echo"]).address("echo", "requests")
    ended = started_with(tmp_path, 'plugins = ["echo"]', f'[plugin.echo]\nbind = ["{address}"]')
    assert ended.returncode == 69
    assert f"{address} is in use" in ended.stderr
    assert "the broker does not start, since broker.plugins names this plugin" in ended.stderr


def test_a_plugin_whose_address_is_taken_is_left_out_with_a_sentence_if_told_to_go_on(scale0_broker):
    first = scale0_broker(["echo"])
    address = first.address("echo", "requests")
    settings = {"broker": {"keep_going": True}, "plugin": {"echo": {"bind": [address]}}}
    second = scale0_broker(["echo"], settings)
    told = second.wait_for("plugin echo could not be started")
    assert address in told["why"]
    assert told["consequence"] == "the broker runs without it"
    remedy = re.search(r"--set 'plugin\.echo\.bind=(.*?)'", told["next"])
    assert f"bind = {remedy[1]} in [plugin.echo] of broker.toml" in told["next"]
    assert list(second.addresses) == ["scale0"]
    third = scale0_broker(["echo"], arguments=["--set", f"plugin.echo.bind={remedy[1]}"])
    assert third.address("echo", "requests").endswith("/echo")


def test_a_broker_without_plugins_runs(scale0_broker):
    broker = scale0_broker([])
    assert list(broker.addresses) == ["scale0"]
    assert broker.stop() == 0


def test_a_runtime_folder_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    config = tmp_path / "broker.toml"
    config.write_text(f'[broker]\nname = "open-{os.getpid()}"\nplugins = []\nruntime_dir = "{tmp_path}"\n')
    ended = run_broker("--config", str(config))
    assert ended.returncode == 69
    assert "not private" in ended.stderr


def test_a_broker_in_a_thread(scale0_broker, client):
    broker = scale0_broker.in_thread(["echo"])
    assert ask(client(broker.address("echo", "requests")), b"ECHO", b"", b"hi") == [b"hi"]
    assert broker.stop() == 0
    assert not Path(broker.address("echo", "requests").removeprefix("ipc://")).exists()


def test_a_signal_during_the_start_ends_it_cleanly_too():
    folder = Path(tempfile.mkdtemp(prefix="s0-"))
    config = folder / "broker.toml"
    broker = f'name = "early-{os.getpid()}"\nplugins = ["echo"]\nruntime_dir = "{folder}"\ndata_dir = "{folder}/data"'
    config.write_text(f'[broker]\n{broker}\n[plugin.echo]\nbind = ["ipc://{folder}/echo"]\n')
    command = [sys.executable, "-m", "scale0_core", "broker", "--config", str(config)]
    for _ in range(5):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not (folder / "echo").exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0, told
        assert not (folder / "echo").exists()
    shutil.rmtree(folder)
