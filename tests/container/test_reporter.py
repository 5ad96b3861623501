"""The core's own plugin: what it logs, and how often."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from scale0_core.container.host import HostCounts
from scale0_core.container.reporter import INTERVAL, Reporter
from scale0_core.plugin_types import BatchReport, RunningBroker
from scale0_core.service import SendFailure

LOST = SendFailure("front", (b"peer", b"x"), "EHOSTUNREACH")
FULL = SendFailure("front", (b"peer", b"x"), "EAGAIN")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(logging.getLogger("scale0"), "propagate", True)
    caplog.set_level(logging.INFO, "scale0")
    return Lines(caplog)


class Lines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Give what was logged since the last call: events and their fields."""
        taken = [(record.getMessage(), record.__dict__["fields"]) for record in self._caplog.records]
        self._caplog.clear()
        return taken


def report(now: float, *failed: tuple[str, SendFailure]) -> BatchReport:
    return BatchReport(now, 0.001, {"echo": 1}, 1, failed)


def could_not(service: str, reason: str, count: int) -> tuple[str, dict[str, Any]]:
    fields = {"service": service, "socket": "front", "reason": reason, "count": count}
    return "messages could not be sent", fields


def test_every_address_is_logged_and_then_that_the_broker_is_ready(lines: Lines):
    addresses = {"echo": {"requests": ["ipc:///a", "tcp://127.0.0.1:5"]}, "quiet": {}, "pub": {"out": ["ipc:///b"]}}
    Reporter().scale0_started(RunningBroker(name="main", wire="pure", addresses=addresses, counts={}))
    assert lines.take() == [
        ("serving", {"service": "echo", "socket": "requests", "address": "ipc:///a"}),
        ("serving", {"service": "echo", "socket": "requests", "address": "tcp://127.0.0.1:5"}),
        ("serving", {"service": "pub", "socket": "out", "address": "ipc:///b"}),
        ("ready", {"name": "main", "wire": "pure", "services": 3}),
    ]


def test_a_batch_in_which_all_went_well_is_not_logged(lines: Lines):
    reporter = Reporter()
    for now in range(100):
        reporter.scale0_batch(report(float(now)))
    assert lines.take() == []


def test_failed_sends_are_logged_by_service_socket_and_reason(lines: Lines):
    Reporter().scale0_batch(report(5.0, ("echo", LOST), ("echo", FULL), ("echo", LOST), ("other", LOST)))
    assert [
        could_not("echo", "EHOSTUNREACH", 2), could_not("echo", "EAGAIN", 1), could_not("other", "EHOSTUNREACH", 1)
    ] == lines.take()  # fmt: skip


def test_failed_sends_are_logged_at_a_bounded_rate_and_none_is_forgotten(lines: Lines):
    reporter = Reporter()
    reporter.scale0_batch(report(100.0, ("echo", LOST)))
    assert [could_not("echo", "EHOSTUNREACH", 1)] == lines.take()
    for now in (100.1, 105.0, 100.0 + INTERVAL - 0.001):
        reporter.scale0_batch(report(now, ("echo", LOST)))
    assert lines.take() == []
    reporter.scale0_batch(report(100.0 + INTERVAL))
    assert [could_not("echo", "EHOSTUNREACH", 3)] == lines.take()
    reporter.scale0_batch(report(100.0 + 3 * INTERVAL))
    assert lines.take() == []


def test_the_end_tells_what_was_held_back_and_the_totals(lines: Lines):
    reporter = Reporter()
    reporter.scale0_batch(report(100.0, ("echo", LOST)))
    reporter.scale0_batch(report(100.1, ("echo", FULL)))
    lines.take()
    counts = HostCounts(
        received=9, sent=7, errors=1, jobs=3, jobs_failed=2, slow=4,
        undelivered=Counter({("front", "EAGAIN"): 1, ("front", "EHOSTUNREACH"): 1}),
        dropped=Counter({"quarantined": 6}),
    )  # fmt: skip
    reporter.scale0_stopping(RunningBroker(name="main", wire="pure", addresses={}, counts={"echo": counts}))
    totals = {
        "service": "echo", "received": 9, "sent": 7, "errors": 1, "undelivered": 2, "dropped": 6, "jobs": 3,
        "jobs_failed": 2, "slow": 4, "undelivered_by": "front EAGAIN: 1; front EHOSTUNREACH: 1",
        "dropped_by": "quarantined: 6",
    }  # fmt: skip
    assert [could_not("echo", "EAGAIN", 1), ("totals", totals)] == lines.take()


def test_totals_of_a_service_that_lost_nothing_name_no_reasons(lines: Lines):
    Reporter().scale0_stopping(RunningBroker(name="main", wire="pure", addresses={}, counts={"echo": HostCounts()}))
    ((_, totals),) = lines.take()
    assert (totals["dropped"], totals["undelivered"]) == (0, 0)
    assert not {"dropped_by", "undelivered_by"} & set(totals)
