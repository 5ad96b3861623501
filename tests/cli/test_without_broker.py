"""Commands that talk to a broker end soon, with 69, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

LIMIT = 15.0
"""Far below the timeouts that are given, far above what a busy machine needs to start Python."""


def run(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "scale0_core", *arguments], capture_output=True, text=True, timeout=100, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done, time.monotonic() - began


@pytest.mark.parametrize(
    "arguments",
    [
        ("call", "echo", "x", "--timeout", "60", "--broker"),
        ("serve", "upper", "--broker"),
        ("status", "--timeout", "60", "--broker"),
        ("services", "--timeout", "60", "-b"),
        ("disable", "--timeout", "60", "--address"),
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("place", ["ipc://{}/nobody", "tcp://127.0.0.1:1"], ids=["ipc", "tcp"])
def test_without_a_broker_a_command_ends_soon_with_69(arguments: tuple[str, ...], place: str, tmp_path: Path):
    more = ["--", "tr", "a-z", "A-Z"] if arguments[0] == "serve" else []
    done, seconds = run(*arguments, place.format(tmp_path), *more)
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert "nobody listens" in done.stderr
    assert seconds < LIMIT


def test_without_a_broker_call_does_not_wait_for_the_end_of_its_input(tmp_path: Path):
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scale0_core", "call", "echo", "--broker", f"ipc://{tmp_path}/nobody"],
            capture_output=True, text=True, timeout=100, check=False, stdin=reader,
        )  # fmt: skip
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (69, "")
    assert "nobody listens" in done.stderr
