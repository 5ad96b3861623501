"""A real broker for tests, in a process or in a thread, that always goes away again."""

# does I/O: a real broker has real sockets, threads and processes

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w

from scale0_core.config.files import read_config
from scale0_core.config.folders import default_runtime_dir
from scale0_core.io.broker import Broker
from scale0_core.parts import records
from scale0_core.plugins import PluginSet, format_plugins, installed_plugins

START_SECONDS = 20.0
STOP_SECONDS = 20.0

STARTED = ("ready", "disabled", "joining")
"""What a broker logs when it has started, by its state."""

Settings = Mapping[str, Any]


class RealBroker(ABC):
    """A broker that runs: where its services are reached, and how to end it."""

    name: str
    folder: Path
    addresses: Mapping[str, Mapping[str, Sequence[str]]]

    def address(self, service: str, socket: str, number: int = 0) -> str:
        """Give an address of a service's socket."""
        return self.addresses[service][socket][number]

    @abstractmethod
    def stop(self) -> int:
        """End the broker as a TERM signal does, wait for it, and give its exit code."""


class ThreadBroker(RealBroker):
    """A broker in a thread of the test's own process; ``broker`` is the object itself, to look into."""

    def __init__(self, config: Path, name: str, folder: Path, extra: Mapping[str, Any]) -> None:
        self.name, self.folder = name, folder
        plugins = PluginSet()
        for plugin, made in extra.items():
            plugins.add(plugin, made)
        self.broker = Broker(read_config(config), plugins)
        self.addresses = self.broker.open().addresses
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"broker {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.broker.run()
        except BaseException as error:
            self._error = error  # told by ``stop``, where the test sees it

    def stop(self) -> int:
        """End the broker and wait for it."""
        self.broker.stop()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise AssertionError(f"the broker {self.name} did not stop within {STOP_SECONDS:g} s")
        if self._error is not None:
            raise AssertionError(f"the broker {self.name} broke down") from self._error
        return 0


class ProcessBroker(RealBroker):
    """A broker in a process of its own, started as a user would; ``log`` holds what it wrote, one dict a line."""

    def __init__(
        self, name: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.folder = name, folder
        self.log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "scale0_core", "broker", "--name", name, "--set", "log.format=json", *arguments],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"log of broker {name}", daemon=True)
        self._reader.start()
        try:
            self.wait_for(STARTED, START_SECONDS)
        except AssertionError:
            self.kill()
            raise
        self.addresses = self._addresses()

    def wait_for(
        self, event: str | Collection[str], seconds: float = START_SECONDS, **fields: object
    ) -> dict[str, Any]:
        """Wait until the log has a line with this event, or one of these, and these fields; return it."""
        wanted = (event,) if isinstance(event, str) else event
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.log:
                    if line.get("event") in wanted and all(line.get(key) == value for key, value in fields.items()):
                        return line
                left = end - time.monotonic()
                if self._ended or left <= 0:
                    what = "ended" if self._ended else f"did not do so within {seconds:g} s"
                    raise AssertionError(
                        f"the broker {self.name} never logged {event!r} {fields}; it {what}:\n{self.text()}"
                    )
                self._changed.wait(left)

    def text(self) -> str:
        """Give the log as text, for the message of a failing test."""
        return "\n".join(str(line) for line in self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the broker by a signal, wait for it, and give its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"the broker {self.name} did not stop within {STOP_SECONDS:g} s:\n{self.text()}"
            ) from None
        self._close()
        return code

    def kill(self) -> None:
        """End the broker by KILL: it has no time to tidy up."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self._close()

    def _close(self) -> None:
        self._reader.join(STOP_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            try:
                line = records.from_json(text)
            except ValueError:
                line = {"event": text.rstrip()}  # a traceback, or an error told to a person
            with self._changed:
                self.log.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _addresses(self) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {}
        for line in self.log:
            if line.get("event") == "serving":
                found.setdefault(line["service"], {}).setdefault(line["socket"], []).append(line["address"])
        return found


class BrokerStarter:
    """Starts brokers for one test and ends them all afterwards; the pytest fixture ``scale0_broker`` is one."""

    def __init__(self) -> None:
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> BrokerStarter:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def __call__(
        self,
        plugins: Sequence[str] = (),
        settings: Settings | None = None,
        *,
        name: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ProcessBroker:
        """Start a broker in a process of its own; ``settings`` are like the tables of broker.toml.

        ``plugins`` are started, and with them the installed formats of configurations; ``broker.plugins`` in the
        settings is taken as it is.
        ``environment`` is added to the variables of the process, such as those of a `SlowDisk`.
        """
        config, name, folder = self._prepare("process", plugins, settings, name)
        broker = ProcessBroker(name, folder, ["--config", str(config), *arguments], environment)
        self._cleanup.callback(broker.stop)
        return broker

    def in_thread(
        self,
        plugins: Sequence[str] = (),
        settings: Settings | None = None,
        *,
        name: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> ThreadBroker:
        """Start a broker in a thread; ``extra`` are plugins that are not installed: classes, or instances of them."""
        config, name, folder = self._prepare("thread", plugins, settings, name)
        broker = ThreadBroker(config, name, folder, extra or {})
        self._cleanup.callback(broker.stop)
        return broker

    def _prepare(
        self, kind: Literal["process", "thread"], plugins: Sequence[str], settings: Settings | None, name: str | None
    ) -> tuple[Path, str, Path]:
        # not pytest's tmp_path: a unix socket's path has about 100 characters in all
        folder = Path(tempfile.mkdtemp(prefix="s0-"))
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        name = name or f"test-{kind}-{uuid.uuid4().hex[:12]}"
        # the record of a broker that was killed
        self._cleanup.callback(shutil.rmtree, default_runtime_dir(name, os.environ), ignore_errors=True)
        own = {
            "broker": {
                "name": name,
                "plugins": [*plugins, *_formats(plugins)],
                "runtime_dir": str(folder),
                "data_dir": str(folder / "data"),
            }
        }
        config = folder / "broker.toml"
        config.write_text(tomli_w.dumps(_merged(own, settings or {})), encoding="utf-8")
        return config, name, folder


def _formats(plugins: Sequence[str]) -> list[str]:
    """List the installed plugins for formats of configurations, with which clients find brokers and workers."""
    installed = installed_plugins()
    return [name for name in format_plugins().values() if name in installed and name not in plugins]


def _merged(base: Settings, over: Settings) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both_tables else value
    return merged
