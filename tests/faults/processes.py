"""Real workers and brokers that tests stop, wake, kill and start again; all are ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import zmq

from scale0_core.testing.broker import BrokerStarter, ProcessBroker

PROGRAM = Path(__file__).with_name("worker.py")

PATIENCE = 30.0
"""Seconds for things that take a moment on a quiet machine."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """Wait until something is true, and give it."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.01)


# --- workers ----------------------------------------------------------------------------------------------------------


class WorkerProcess:
    """``worker.py`` in a process of its own."""

    def __init__(
        self, address: str, identity: str, folder: Path, *,
        interval: float = 0.3, concurrency: int = 1, prefetch: int = 0,
    ) -> None:  # fmt: skip
        self.identity = identity
        self.path = folder / "records.jsonl"
        numbers = [str(interval), str(concurrency), str(prefetch)]
        command = [sys.executable, str(PROGRAM), address, identity, str(self.path), str(folder), *numbers]
        with (folder / "workers.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self) -> WorkerProcess:
        """Wait until the broker has taken it."""
        eventually(lambda: self.records("ready"), what=f"worker {self.identity} ready")
        return self

    def wait_begun(self, *tasks: str) -> None:
        """Wait until it has these tasks in hand."""
        eventually(lambda: set(tasks) <= {line["task"] for line in self.records("begin")}, what=f"begin of {tasks}")

    def records(self, event: str = "") -> list[dict[str, Any]]:
        """Give what this process has written down."""
        return [
            line for line in read_records(self.path) if line["pid"] == self.process.pid and event in ("", line["event"])
        ]

    def freeze(self) -> None:
        """Stop it, and wait until it stands still."""
        freeze(self.process.pid)

    def wake(self) -> None:
        """Let it go on."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word; a process that stands still too."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it politely, by force when that takes long."""
        self.wake()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read what workers wrote down; the last line may be under way."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def freeze(pid: int) -> None:
    """Stop a process, and wait until the kernel says that it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what=f"process {pid} stopped")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Have a process stand still for a while."""
    freeze(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Crew:
    """The workers of one test or run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "records.jsonl"
        self._workers: list[WorkerProcess] = []

    def __call__(self, address: str, identity: str, **options: Any) -> WorkerProcess:
        """Start a worker."""
        worker = WorkerProcess(address, identity, self.folder, **options)
        self._workers.append(worker)
        return worker

    def executions(self, task: str) -> list[str]:
        """Give the identities of those who got a task."""
        return [
            line["identity"]
            for line in read_records(self.path)
            if line["event"] == "begin" and line["task"] == task
        ]  # fmt: skip

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()


# --- brokers ----------------------------------------------------------------------------------------------------------


class NoAnswerError(AssertionError):
    """The broker did not answer a management request."""


def ask(broker: ProcessBroker, command: str, *, seconds: float = PATIENCE) -> Any:
    """Send a management request over the broker's own socket; give the answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(broker.address("scale0", "management"))
        socket.send_multipart([b"S0C01", b"MANAGEMENTREQ", json.dumps({"command": command}).encode()])
        if not socket.poll(int(seconds * 1000)):
            raise NoAnswerError(f"no answer to {command} in {seconds:g} s")
        _, answer, options, body = socket.recv_multipart()
    assert (answer, json.loads(options)["code"]) == (b"MANAGEMENTREP", 200), options
    return json.loads(body)


def workers_of(broker: ProcessBroker) -> dict[str, dict[str, Any]]:
    """Give what the broker knows of its workers, by identity."""
    return {row["identity"]: row for row in ask(broker, "list_clients") if row["role"] == "backend"}


def cancelled_by_clients(broker: ProcessBroker) -> dict[str, int]:
    """Give how many open tasks each client has taken back."""
    return {row["identity"]: row["cancelled"] for row in ask(broker, "list_clients") if row["role"] == "frontend"}


def await_state(broker: ProcessBroker, identity: str, *states: str) -> dict[str, Any]:
    """Wait until the broker holds a worker for this or that."""

    def look() -> dict[str, Any]:
        row = workers_of(broker).get(identity, {})
        return row if row.get("state") in states else {}

    return eventually(look, what=f"{identity} is {' or '.join(states)}")


def settings_for(base: Mapping[str, Any], broker: ProcessBroker) -> dict[str, Any]:
    """Give the settings with which a broker takes the place of another one: its sockets, and what it keeps."""
    folders = {"runtime_dir": str(broker.folder), "data_dir": str(broker.folder / "data")}
    return {**base, "broker": {**base.get("broker", {}), **folders}}


def start_again(starter: BrokerStarter, broker: ProcessBroker, base: Mapping[str, Any]) -> ProcessBroker:
    """Start a broker in the place of one that has ended."""
    return starter([], settings_for(base, broker), name=broker.name)


@contextmanager
def raw_peer(address: str) -> Iterator[zmq.Socket[bytes]]:
    """Give a bare socket to a broker, to speak the protocol by hand."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvtimeo = int(PATIENCE * 1000)
        socket.connect(address)
        yield socket
    finally:
        with contextlib.suppress(zmq.ZMQError):
            context.destroy(linger=0)
