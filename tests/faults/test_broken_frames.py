"""Connections break between the frames of a message, a thousand times: no client and no service ends with them.

libzmq aborts the process there (fq.cpp: !_more) when a socket has IMMEDIATE.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from scale0_core.testing import BrokerStarter

from .breaker import TIMES, Breaker, break_clients
from .processes import eventually
from .unlucky import BLOCKING, IN_A_LOOP

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PATIENCE = 90.0
SPARK = {"spark_pipes"}
"""Those that need PySpark; they are tested with it."""


@pytest.mark.parametrize("kind", sorted({*BLOCKING, *IN_A_LOOP} - SPARK))
def test_no_client_aborts(tmp_path: Path, kind: str) -> None:
    assert break_clients(kind, tmp_path) == 0


def test_one_that_has_immediate_is_caught(tmp_path: Path) -> None:
    assert break_clients("core", tmp_path, "plant") == -signal.SIGABRT


@pytest.mark.parametrize("plugin", ["musicquest-server", "majordomo"])
def test_no_service_that_connects_aborts(scale0_broker: BrokerStarter, tmp_path: Path, plugin: str) -> None:
    """The music server does, and Majordomo's bridge to another broker; one alone would take a minute."""
    here = ["tcp://127.0.0.1:*"]
    with Breaker(*[b"frame"] * 10) as breaker:
        at = breaker.address
        brokers = []
        for number in range(4):
            (music := tmp_path / f"music-{number}").mkdir()
            wanted = {
                "musicquest-server": {
                    "music": str(music), "broker": at, "father": at, "clients": here, "children": here,
                },
                "majordomo": {
                    "bind": ["ipc://{runtime}/majordomo"], "bridge": True, "bridge_frontend": at, "bridge_backend": at,
                },
            }  # fmt: skip
            brokers.append(scale0_broker([plugin], {"plugin": {plugin: wanted[plugin]}}))
        eventually(lambda: breaker.broken >= TIMES, PATIENCE)
        assert [broker.stop() for broker in brokers] == [0] * 4
