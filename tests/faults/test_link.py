"""A broker dies while it talks: what it said is read to the end, and whoever listens lives on."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from .processes import PATIENCE, frozen

pytestmark = pytest.mark.real

Program = Callable[..., "subprocess.Popen[str]"]

WORDS = {"client": ("S0C01", "TASKREPLY"), "aio": ("S0C01", "TASKREPLY"), "worker": ("S0W01", "TASK")}


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="s0-") as folder:  # the path of a socket must be short
        yield f"ipc://{folder}/broker"


@pytest.fixture
def program() -> Iterator[Program]:
    """Start a program of this folder: ``program(name, argument, ...)``."""
    with ExitStack() as stack:

        def start(name: str, *arguments: object) -> subprocess.Popen[str]:
            path = Path(__file__).with_name(name)
            process = subprocess.Popen(
                [sys.executable, str(path), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


def wait_read(listener: subprocess.Popen[str], number: int) -> int:
    """Wait until the listener has read so many messages; give how many it has."""
    assert listener.stdout is not None
    end = time.monotonic() + PATIENCE
    while True:
        line = listener.stdout.readline()
        assert line, f"the listener ended: {listener.wait(PATIENCE)}"
        assert time.monotonic() < end, f"the listener has read {line.strip()} of {number} messages"
        if int(line) >= number:
            return int(line)


class Talker:
    """``talker.py``: a broker that only talks."""

    def __init__(self, program: Program, address: str, kind: str, count: int) -> None:
        self.process = program("talker.py", address, *WORDS[kind], count)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def wait_for(self, word: str) -> None:
        """Wait until it says how far it has come."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def talk(self) -> None:
        """Let it say what it has to say, and wait until that has left."""
        assert self.process.stdin is not None
        self.process.stdin.write("talk\n")
        self.process.stdin.flush()
        self.wait_for("said")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.mark.parametrize(("kind", "lives"), [("client", 20), ("aio", 20), ("worker", 6)])
def test_a_broker_that_is_killed_while_it_talks_takes_nobody_with_it(
    address: str, program: Program, tmp_path: Path, kind: str, lives: int
) -> None:
    random = Random(1)
    listener = program("listener.py", kind, address, tmp_path)
    read = wait_read(listener, 0)
    for _ in range(lives):
        talker = Talker(program, address, kind, 0)
        read = wait_read(listener, read + 1)
        time.sleep(random.uniform(0, 0.05))  # the end comes at any moment
        talker.kill()
    last = Talker(program, address, kind, 100)
    last.wait_for("heard")
    read = wait_read(listener, read)
    last.talk()
    wait_read(listener, read + 100)


@pytest.mark.parametrize("kind", WORDS)
def test_what_a_broker_said_is_read_to_the_end_after_it_has_gone(program: Program, tmp_path: Path, kind: str) -> None:
    """More than one batch: all of it comes before the connection counts as broken."""
    talker = Talker(program, "tcp://127.0.0.1:*", kind, 1600)  # on its way it takes more than ipc does
    listener = program("listener.py", kind, talker.address, tmp_path)
    talker.wait_for("heard")
    with frozen(listener.pid):
        talker.talk()
        talker.kill()
    assert wait_read(listener, 1600) == 1600
