"""Both kinds of Client and Worker behind one face, so that one test serves both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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


# --- both kinds -------------------------------------------------------------------------------------------------------


class BlockingClient:
    """An asyncio client whose loop runs on another thread."""

    def __init__(self, loop: Loop, *arguments, **options) -> None:
        self._loop = loop
        self.inner = loop.run(_made(aio.Client, *arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, *arguments, **options):
        return self._loop.begin(self.inner.call(*arguments, **options))

    def call(self, *arguments, **options):
        return self.submit(*arguments, **options).result(60)

    def ping(self, *arguments, **options):
        return self._loop.run(self.inner.ping(*arguments, **options))

    def stream(self, *arguments, **options):
        stream = self._loop.run(_called(self.inner.stream, *arguments, **options))
        return _Iterator(self._loop, stream)

    def map(self, *arguments, **options):
        return _Iterator(self._loop, self.inner.map(*arguments, **options))

    def close(self) -> None:
        self._loop.run(self.inner.close())


class _Iterator:
    def __init__(self, loop: Loop, inner) -> None:
        self._loop, self._inner = loop, inner

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._loop.run(_next(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self._loop.run(self._inner.close())


class BlockingWorker:
    """An asyncio worker whose loop runs on another thread."""

    def __init__(self, loop: Loop, *arguments, **options) -> None:
        self._loop = loop
        self.inner = loop.run(_made(aio.Worker, *arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def add(self, name: str, function) -> None:
        self._loop.run(_called(self.inner.add, name, function))

    def remove(self, name: str) -> None:
        self._loop.run(_called(self.inner.remove, name))

    def start(self) -> None:
        self._loop.run(self.inner.start())

    def stop(self) -> None:
        self._loop.run(self.inner.stop())

    def drain(self, timeout: float = 30.0) -> bool:
        return self._loop.run(self.inner.drain(timeout))

    def wait_ready(self, timeout: float = 10.0) -> None:
        self._loop.run(self.inner.wait_ready(timeout))


async def _made(kind, *arguments, **options):
    return kind(*arguments, **options)


async def _called(function, *arguments, **options):
    return function(*arguments, **options)


async def _next(iterator):
    return await iterator.__anext__()


class Loop:
    """An asyncio loop on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine):
        return self.begin(coroutine).result(60)

    def close(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Flavour:
    """Makes clients and workers of one kind; all of them end with the test."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.name = name
        self._stack = stack
        self._loop = Loop() if name == "aio" else None
        if self._loop is not None:
            stack.callback(self._loop.close)

    def client(self, address: str, **options) -> Any:
        client = Client(address, **options) if self._loop is None else BlockingClient(self._loop, address, **options)
        self._stack.callback(client.close)
        return client

    def idle_worker(self, address: str, services: dict[str, Any] | None = None, **options) -> Any:
        options = {"heartbeat_interval": 0.2, **options}
        worker = Worker(address, **options) if self._loop is None else BlockingWorker(self._loop, address, **options)
        for name, function in (services or {}).items():
            worker.add(name, function)
        self._stack.callback(worker.stop)
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
