"""Kill -9 a real broker right after an acknowledgement, again and again, and check that it kept what it acknowledged.

A round: a step does something durable and returns when it was acknowledged; the broker is killed before it can do
anything else; another one starts on the same data, and a check looks for what was acknowledged. The disk is slow (see
`SlowDisk`), so a broker that acknowledges too early is caught with what it has not written yet.
"""

# does I/O: kills and starts real brokers

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scale0_core.testing.broker import BrokerStarter, ProcessBroker, Settings
from scale0_core.testing.slowdisk import SlowDisk

T = TypeVar("T")

Step = Callable[[ProcessBroker, int, contextlib.ExitStack], T]
"""Does something durable in a round of this number and returns what was acknowledged; what it puts on the stack is
called after the kill, such as closing its sockets."""

Check = Callable[[ProcessBroker, T], None]
"""Raises AssertionError if the broker that was started anew has not what was acknowledged."""


class KilledBroker:
    """A broker on a slow disk that is killed and started again on the same data; ``broker`` is the one that runs.

    ``plant`` is Python source that runs in the broker's process before the broker starts: it plants a defect, such as
    the behaviour of an older version, that a test must catch. No product code knows of it. A write takes 5 ms longer;
    with a plant 200 ms, so that KILL comes before the write even on a busy machine.
    """

    def __init__(
        self,
        plugins: Sequence[str],
        settings: Settings | None = None,
        *,
        write_ms: float | None = None,
        sync_ms: float = 5.0,
        capacity: int | None = None,
        plant: str = "",
    ) -> None:
        self._plugins, self._settings = plugins, settings or {}
        self._cleanup = contextlib.ExitStack()
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="s0-kill-")))
        if write_ms is None:
            write_ms = 200.0 if plant else 5.0
        disk = SlowDisk(folder / "disk", write_ms=write_ms, sync_ms=sync_ms, capacity=capacity)
        self.disk = self._cleanup.enter_context(disk)
        self._environment = dict(disk.environment)
        if plant:
            self._environment |= _planted(folder / "plant", plant)
        self._name = f"kill-{uuid.uuid4().hex[:12]}"
        # last, so that it ends first: a broker that still writes would keep its folder from being removed
        self._start_broker = self._cleanup.enter_context(BrokerStarter())
        self.broker = self.start()

    def __enter__(self) -> KilledBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def start(self) -> ProcessBroker:
        """Start the broker anew, on the data that is there."""
        settings: dict[str, Any] = {**self._settings}
        settings["broker"] = {**settings.get("broker", {}), "data_dir": str(self.disk.folder)}
        self.broker = self._start_broker(self._plugins, settings, name=self._name, environment=self._environment)
        return self.broker

    def kill(self) -> None:
        """End the broker by KILL; ``start`` comes next."""
        self.broker.kill()

    def round(self, number: int, step: Step[T], check: Check[T]) -> None:
        """Take a step, kill the broker as soon as it was acknowledged, start it anew, and check."""
        with contextlib.ExitStack() as after:
            acknowledged = step(self.broker, number, after)
            self.kill()
        broker = self.start()
        try:
            check(broker, acknowledged)
        except AssertionError as error:
            raise AssertionError(f"round {number}: {error}") from error

    def rounds(self, count: int, step: Step[T], check: Check[T]) -> None:
        """Do so many rounds, numbered from 1 on."""
        for number in range(1, count + 1):
            self.round(number, step, check)


def _planted(folder: Path, source: str) -> Mapping[str, str]:
    """Have Python run a source when it starts."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
