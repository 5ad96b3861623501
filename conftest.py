"""For all tests of the repository: no child process keeps a test from ending."""

from __future__ import annotations

import subprocess
import threading
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import pytest

PATIENCE = 60.0
"""Seconds a child has to exit at the end of its ``with`` block."""

_exit = subprocess.Popen.__exit__


def _exit_soon(
    child: subprocess.Popen[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Wait for a child as ``Popen.__exit__`` does, but kill it if the block failed, or if it does not exit in time."""
    if kind is not None:
        child.kill()
    late = threading.Timer(PATIENCE, child.kill)
    late.daemon = True
    late.start()
    try:
        _exit(child, kind, error, trace)
    finally:
        late.cancel()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the setting of the lanes where the core is not installed, since its wheel is tested from outside."""
    if find_spec("scale0_core") is None:
        parser.addini("scale0_lanes", "put tests into lanes", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Limit all such waits, those of tests to come included."""
    patch = pytest.MonkeyPatch()
    patch.setattr(subprocess.Popen, "__exit__", _exit_soon)
    config.add_cleanup(patch.undo)
