"""Connections break between the frames of a message, a thousand times: no client and no service ends with them.

libzmq aborts the process there (fq.cpp: !_more) when a socket has IMMEDIATE.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scale0_core.testing import BrokerStarter

from .breaker import Breaker
from .processes import eventually
from .unlucky import KINDS

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

TIMES = 1000
WORDS = {"worker": (b"S0W01", b"TASK"), "majordomo": (b"", b"MDPC02"), "majordomo_worker": (b"", b"MDPW02", b"\2")}
PATIENCE = 90.0


def unlucky(kind: str, folder: Path, *plant: str) -> int:
    """Break the connections of many clients; give how their process ended."""
    words = *WORDS.get(kind, (b"S0C01", b"TASKREPLY")), *[b"frame"] * 10
    with Breaker(*words) as breaker:
        command = [
            sys.executable,
            str(Path(__file__).with_name("unlucky.py")),
            kind,
            breaker.address,
            str(folder),
            *plant,
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                eventually(lambda: breaker.broken >= TIMES or process.poll() is not None, PATIENCE)
                said = process.communicate(timeout=30)[0] if process.poll() is None else b""
            finally:
                process.kill()
        assert process.returncode != 0 or said.split() == [b"started", b"lives"]
        return process.returncode


@pytest.mark.parametrize("kind", ["core_aio", *KINDS])
def test_no_client_aborts(tmp_path: Path, kind: str) -> None:
    assert unlucky(kind, tmp_path) == 0


def test_one_that_has_immediate_is_caught(tmp_path: Path) -> None:
    assert unlucky("core", tmp_path, "plant") == -signal.SIGABRT


def test_no_service_that_connects_aborts(scale0_broker: BrokerStarter, tmp_path: Path) -> None:
    """The music server is the one that does; one alone would take a minute."""
    here = ["tcp://127.0.0.1:*"]
    with Breaker(*[b"frame"] * 10) as breaker:
        wanted = {"broker": breaker.address, "father": breaker.address, "clients": here, "children": here}
        brokers = []
        for number in range(4):
            (music := tmp_path / f"music-{number}").mkdir()
            table = {"plugin": {"musicquest-server": {"music": str(music), **wanted}}}
            brokers.append(scale0_broker(["musicquest-server"], table))
        eventually(lambda: breaker.broken >= TIMES, PATIENCE)
        assert [broker.stop() for broker in brokers] == [0] * 4
