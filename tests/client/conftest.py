"""Both kinds of Client and Worker behind one face, so that one test serves both."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0_core import testing
from scale0_core.client import Client, Worker, aio
from scale0_core.testing import BrokerStarter
from scale0_core.testing.broker import ProcessBroker

QUICK = {"network": {"default_heartbeat_interval": 200}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until something is true, and give it."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found or time.monotonic() > end:
            assert found
            return found
        time.sleep(0.01)


# --- services ---------------------------------------------------------------------------------------------------------


def echo(*frames: bytes):
    return frames


def count(number: bytes):
    for value in range(int(number)):
        yield str(value)


def slow(seconds: bytes):
    time.sleep(float(seconds))
    return b"after " + seconds


# --- both flavours ----------------------------------------------------------------------------------------------------


class Flavour(testing.Flavour):
    """Makes clients and workers of one flavour; all of them end with the test."""

    def client(self, address: str, **options) -> Any:
        return self.make(Client, aio.Client, address, **options)

    def idle_worker(self, address: str, services: dict[str, Any] | None = None, **options) -> Any:
        options = {"heartbeat_interval": 0.2, **options}
        worker = self.make(Worker, aio.Worker, address, close=lambda worker: worker.stop(), **options)
        for name, function in (services or {}).items():
            worker.add(name, function)
        return worker

    def worker(self, address: str, services: dict[str, Any] | None = None, **options) -> Any:
        worker = self.idle_worker(address, services, **options)
        worker.start()
        worker.wait_ready()
        return worker


@pytest.fixture(params=["sync", "aio"])
def flavour(real: None, request: pytest.FixtureRequest) -> Iterator[Flavour]:
    with contextlib.ExitStack() as stack:
        yield Flavour(request.param, stack)


@pytest.fixture
def address(scale0_broker: BrokerStarter) -> str:
    """Where a broker with quick heartbeats is reached."""
    return scale0_broker.in_thread([], QUICK).address("scale0", "frontend")


class Programs:
    """Runs Python programs, and ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def __call__(self, text: str, *arguments: str) -> subprocess.Popen[str]:
        path = self._folder / f"program{len(self._running)}.py"
        path.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def close(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.communicate(timeout=60)


@pytest.fixture
def programs(real: None, tmp_path: Path) -> Iterator[Programs]:
    running = Programs(tmp_path)
    yield running
    running.close()


@pytest.fixture
def restart(real: None) -> Iterator[Callable[[ProcessBroker], ProcessBroker]]:
    """Start a broker again that was killed: the same name, the same folder."""
    with contextlib.ExitStack() as stack:

        def again(broker: ProcessBroker) -> ProcessBroker:
            started = ProcessBroker(broker.name, broker.folder, ["--config", str(broker.folder / "broker.toml")])
            stack.callback(started.stop)
            return started

        yield again
