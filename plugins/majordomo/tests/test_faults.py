"""Real workers that are killed, and malformed messages; ``bench/majordomo_faults.py`` has the full numbers of both."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from . import killing, torture

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the workers are forked")


@pytest.fixture
def folder():
    # short, since a unix socket's path has about 100 characters in all
    path = Path(tempfile.mkdtemp(prefix="s0-"))
    yield path
    shutil.rmtree(path)


def start(scale0_broker, settings):
    settings = {"bind": ["ipc://{runtime}/majordomo"], **settings}
    return scale0_broker(["majordomo"], {"plugin": {"majordomo": settings}})


@pytest.mark.seeds(1)
def test_no_request_is_lost_or_answered_twice_when_its_worker_is_killed(scale0_broker, folder, seed):
    broker = start(scale0_broker, killing.SETTINGS)
    outcome = killing.run(broker.address("majordomo", "requests"), rounds=40, seed=seed, folder=folder)
    assert (sum(outcome.faults().values()), outcome.notes) == (0, [])
    assert (outcome.kills, outcome.requests, outcome.answers) == (40, 4 * 41, 4 * 41)
    assert outcome.books["retried"] >= 40
    assert outcome.racing_kills > 0
    assert len(outcome.killed) == 3


def test_requests_that_are_lost_would_be_noticed(scale0_broker, folder, monkeypatch):
    """Where the service repeats nothing, each death is a request that is lost."""
    monkeypatch.setattr(killing, "PATIENCE", 3.0)
    broker = start(scale0_broker, {**killing.SETTINGS, "default": {"resend": False}})
    outcome = killing.run(broker.address("majordomo", "requests"), rounds=2, seed=0, folder=folder)
    assert outcome.lost + outcome.wrong >= 2
    assert outcome.books["failed"] >= 2
    assert len(outcome.notes) >= 2


@pytest.mark.parametrize("kind", torture.KINDS)
@pytest.mark.seeds(4)
def test_malformed_messages_are_counted_and_leave_nothing(tmp_path, kind, seed):
    outcome = torture.torture(kind, 3000, seed, tmp_path)
    assert (outcome.messages, outcome.uncounted) == (3000, 0)
    assert outcome.malformed > 300


def test_a_real_broker_answers_after_any_number_of_malformed_messages(scale0_broker):
    broker = start(scale0_broker, torture.FLOOD_SETTINGS)
    with torture.Flood(broker.address("majordomo", "requests"), seed=3) as flood:
        flood.send(10_000)
        flood.wait_until_forgotten()
    assert broker.stop() == 0
    assert broker.wait_for("totals", service="majordomo")["errors"] == 0
