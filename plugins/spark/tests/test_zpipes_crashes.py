"""A query that is killed by KILL, with its Java, in mid-batch and between batches: nothing is lost, nothing doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0_core.testing import BrokerStarter

from .zpipes_copy import BATCH, copy
from .zpipes_world import World, numbered

COPY = Path(__file__).with_name("zpipes_copy.py")
PATIENCE = 280.0


@pytest.fixture
def world() -> Iterator[World]:
    with BrokerStarter() as starter:
        yield World(starter)


class Copy:
    """The query's process, and all that it started."""

    def __init__(self, address: str, source: str, target: str, folder: Path, where: str) -> None:
        self._place = folder / where
        self._said = folder / "said"  # a file: what it started may hold a pipe open after its end
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(COPY), address, source, target, str(folder), where],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    def kill_there(self) -> None:
        """Let it run until it waits at its place, and kill it."""
        try:
            end = time.monotonic() + PATIENCE
            while not self._place.exists():
                assert self.process.poll() is None, self._said.read_text()
                assert time.monotonic() < end, self._said.read_text()
                time.sleep(0.02)
        finally:
            self.kill()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_that_is_killed_again_and_again_copies_each_chunk_once(spark, world, tmp_path):
    source, target = world.name("source"), world.name("target")
    chunks = numbered(3 * BATCH)
    world.fill(source, chunks)
    arguments = (world.address, source, target, tmp_path)

    Copy(*arguments, "staged").kill_there()
    assert staged(world) > 0
    assert sorted(world.content(target)) == chunks[:BATCH], "nothing of the second batch is seen"
    Copy(*arguments, "moved").kill_there()
    assert sorted(world.content(target)) == chunks[: 2 * BATCH], "it is there, and Spark does not know"
    # the last start, in the session of the tests: another process would cost seconds, and show nothing more
    copy(spark, world.address, source, target, str(tmp_path))
    assert sorted(world.content(target)) == chunks


def staged(world: World) -> int:
    """Count the chunks that tasks have staged."""
    with world.pipes() as pipes:
        pipes._send((b"LIST", b"spark-staging-"))
        answer = pipes._received(PATIENCE)
    return sum(row["chunks"] for row in json.loads(bytes(answer[1]))["pipes"])
