"""A service's place in the broker: what it returns is collected, what it does wrong is counted and stays there."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest

from scale0_core.container.host import STUCK_PAUSE, HostCounts, HostLimits, ServiceHost
from scale0_core.container.outbox import MALFORMED
from scale0_core.service import Endpoint, FastPath, Frames, Job, JobResult, SendFailure

A, B, C = (b"peer", b"a"), (b"peer", b"b"), (b"peer", b"c")


class Plain:
    """Answers each message with itself; ``BAD`` raises."""

    name = "plain"
    endpoints: ClassVar = {"front": Endpoint(kind="ROUTER")}

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.deadline: Any = None

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Any]:
        self.calls.append(("receive", socket, frames, now))
        if frames == BAD:
            raise ValueError("bad message")
        return [(socket, frames)]

    def next_deadline(self) -> float | None:
        if isinstance(self.deadline, Exception):
            raise self.deadline
        return self.deadline  # type: ignore[no-any-return]

    def on_deadline(self, now: float) -> Iterable[Any]:
        self.calls.append(("on_deadline", now))
        self.deadline = None
        return [("front", (b"peer", b"tick"))]


BAD = (b"peer", b"BAD")


class Full(Plain):
    """Has the two optional parts as well."""

    on_result: Callable[[JobResult], Iterable[Any]] = staticmethod(lambda result: [("front", (b"peer", result.value))])

    def on_job(self, result: JobResult, now: float) -> Iterable[Any]:
        self.calls.append(("on_job", result, now))
        return self.on_result(result)

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Any]:
        self.calls.append(("on_undelivered", socket, frames, reason, now))
        if reason == "EPERM":
            raise RuntimeError("cannot take it back")
        return [("front", (b"peer", b"again"))]


def returning(effects: Any) -> Plain:
    service = Full()
    vars(service)["receive"] = lambda socket, frames, now: effects
    return service


def job(key: str = "k", token: object = None) -> Job:
    return Job(key, str, token=token)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("scale0"), "propagate", True)
    return caplog


def events(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(";")[0].partition(":")[0] for record in log.records]


def fields(log: pytest.LogCaptureFixture, number: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = log.records[number].__dict__["fields"]
    return found


# messages in, sends out


def test_each_message_is_given_to_the_service_with_the_time():
    service = Plain()
    host = ServiceHost(service)
    host.receive("front", [A, B], 7.0)
    assert service.calls == [("receive", "front", A, 7.0), ("receive", "front", B, 7.0)]
    assert host.take_sends() == [("front", A), ("front", B)]
    assert HostCounts(received=2) == host.counts


def test_sends_are_taken_once():
    host = ServiceHost(Plain())
    host.receive("front", [A], 0.0)
    assert [host.take_sends(), host.take_sends()] == [[("front", A)], []]


def test_a_generator_is_as_good_as_a_list():
    host = ServiceHost(returning(send for send in [("front", A), ("front", B)]))
    host.receive("front", [C], 0.0)
    assert host.take_sends() == [("front", A), ("front", B)]


def test_what_a_generator_gave_before_it_raised_is_kept():
    def effects() -> Iterable[Any]:
        yield ("front", A)
        raise ValueError

    host = ServiceHost(returning(effects()))
    host.receive("front", [C], 0.0)
    assert (host.take_sends(), host.counts.errors) == ([("front", A)], 1)


@pytest.mark.parametrize("effects", [None, 5, True])
def test_returning_what_cannot_be_gone_through_is_an_error(effects: object):
    host = ServiceHost(returning(effects))
    host.receive("front", [A], 0.0)
    assert (host.counts.errors, host.take_sends(), host.quarantined) == (1, [], False)


# exceptions


def test_an_exception_loses_its_own_message_only():
    host = ServiceHost(Plain())
    host.receive("front", [A, BAD, B], 0.0)
    assert host.take_sends() == [("front", A), ("front", B)]
    assert HostCounts(received=3, errors=1) == host.counts


def test_what_was_done_before_an_interrupt_is_kept():
    """It is not for the host to judge, but messages are answered all the same."""
    service = Plain()
    host = ServiceHost(service)
    answer = service.receive

    def interrupted(socket: str, frames: Frames, now: float) -> Iterable[Any]:
        if frames == BAD:
            raise KeyboardInterrupt
        return answer(socket, frames, now)

    vars(service)["receive"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        host.receive("front", [A, B, BAD, C], 1.0)
    assert host.take_sends() == [("front", A), ("front", B)]


class Sorted(Full):
    """Takes A by a fast path, unless it has been told otherwise."""

    declines = False

    @property
    def fast_paths(self) -> Iterable[FastPath]:
        return (FastPath("front", len(A), 1, A[1], self.take),)

    def take(self, socket: str, frames: Frames, now: float) -> Iterable[Any] | None:
        return None if self.declines else [(socket, (b"fast", *frames[1:]))]


def test_a_message_of_a_declared_shape_goes_to_its_method_and_all_others_to_receive():
    service = Sorted()
    host = ServiceHost(service)
    longer = (*A, b"more")
    host.receive("front", [A, B, longer], 1.0)
    assert host.take_sends() == [("front", (b"fast", *A[1:])), ("front", B), ("front", longer)]
    host.receive("other", [A], 1.0)
    service.declines = True
    host.receive("front", [A], 1.0)
    assert host.take_sends() == [("other", A), ("front", A)]
    assert host.counts.received == 5


def test_after_a_rush_that_failed_the_rest_is_taken_in_order():
    service = Plain()
    host = ServiceHost(service)
    host.sends.append(("front", A))
    host.rushed("front", 3, ValueError("in the rush"), iter([B, C]), 5.0)
    assert host.take_sends() == [("front", A), ("front", B), ("front", C)]
    assert (host.counts.received, host.counts.errors) == (3, 1)
    host.rushed("front", 4, None, iter(()), 6.0)
    assert (host.counts.received, host.counts.errors) == (7, 1)


def test_an_error_is_logged_once_for_each_place_with_who_and_what(log: pytest.LogCaptureFixture):
    host = ServiceHost(Plain(), plugin="third_party")
    host.receive("front", [BAD, BAD, A, BAD], 0.0)
    assert (events(log), host.counts.errors) == (["service raised"], 3)
    told = fields(log)
    assert (told["service"], told["plugin"], told["where"]) == ("plain", "third_party", "receive")
    assert told["error"] == "ValueError('bad message')"
    assert f"{__file__}:" == told["place"].rstrip("0123456789")
    assert "raise ValueError" in told["trace"]
    assert log.records[0].name == "scale0.plugin.third_party"


def test_errors_of_another_kind_are_logged_again(log: pytest.LogCaptureFixture):
    service = Plain()
    host = ServiceHost(service)
    host.receive("front", [BAD], 0.0)
    service.deadline = RuntimeError("no idea")
    host.next_deadline()
    assert [fields(log, number)["where"] for number in range(2)] == ["receive", "next_deadline"]


def test_a_seat_without_a_plugin_is_named_after_its_service():
    assert ServiceHost(Plain()).plugin == "plain"


# the budget


def failing(host: ServiceHost, times: Iterable[float]) -> None:
    for now in times:
        host.receive("front", [BAD], now)


def test_a_service_is_quarantined_when_its_budget_is_used_up(log: pytest.LogCaptureFixture):
    host = ServiceHost(Plain(), plugin="third_party", limits=HostLimits(errors=3, errors_window=60.0))
    failing(host, [0.0, 30.0])
    assert not host.quarantined
    failing(host, [60.0])
    assert host.quarantined
    assert events(log) == ["service raised", "service quarantined"]
    told = fields(log)
    assert (told["service"], told["plugin"], told["errors"], told["within"]) == ("plain", "third_party", 3, "60s")
    assert "scale0 plugins doctor" in told["next"]


def test_the_window_slides():
    host = ServiceHost(Plain(), limits=HostLimits(errors=3, errors_window=60.0))
    failing(host, [0.0, 30.0, 60.1, 90.1, 120.2])
    assert not host.quarantined
    failing(host, [120.3])
    assert (host.quarantined, host.counts.errors) == (True, 6)


def test_a_budget_of_one_forgives_nothing():
    host = ServiceHost(Plain(), limits=HostLimits(errors=1, errors_window=0.0))
    failing(host, [0.0])
    assert host.quarantined


def test_the_rest_of_the_batch_is_dropped_and_counted():
    service = Plain()
    host = ServiceHost(service, limits=HostLimits(errors=2))
    host.receive("front", [A, BAD, BAD, B, C], 0.0)
    host.receive("front", [A, B], 1.0)
    assert [call[2] for call in service.calls] == [A, BAD, BAD]
    assert HostCounts(received=7, errors=2, dropped=Counter(quarantined=4)) == host.counts


def test_what_was_answered_before_the_quarantine_is_still_sent():
    host = ServiceHost(Plain(), limits=HostLimits(errors=1))
    host.receive("front", [A, BAD], 0.0)
    assert host.take_sends() == [("front", A)]


def test_a_quarantined_service_is_not_called_any_more():
    service = Full()
    host = ServiceHost(service, limits=HostLimits(errors=1))
    failing(host, [0.0])
    service.calls.clear()
    service.deadline = 0.5
    assert host.next_deadline() is None
    host.on_deadline(1.0)
    host.job_done(JobResult("t", b"v"), 1.0)
    host.sent(1, [SendFailure("front", A, "EAGAIN")], 1.0)
    assert (service.calls, host.take_sends()) == ([], [])
    assert host.counts.dropped == {"quarantined": 1}
    assert host.counts.undelivered == {("front", "EAGAIN"): 1}


# deadlines


@pytest.mark.parametrize(("deadline", "expected"), [(None, None), (math.inf, None), (5.0, 5.0), (0, 0), (-1.5, -1.5)])
def test_the_deadline_is_the_services(deadline: float | None, expected: float | None):
    service = Plain()
    service.deadline = deadline
    assert expected == ServiceHost(service).next_deadline()


@pytest.mark.parametrize(("now", "calls"), [(4.9, []), (5.0, [("on_deadline", 5.0)]), (9.0, [("on_deadline", 9.0)])])
def test_the_service_is_called_when_it_is_due(now: float, calls: list[Any]):
    service = Plain()
    service.deadline = 5.0
    host = ServiceHost(service)
    host.on_deadline(now)
    assert calls == service.calls
    assert [("front", (b"peer", b"tick"))][: len(calls)] == host.take_sends()


class Stuck(Plain):
    """A deadline that never moves."""

    def on_deadline(self, now: float) -> Iterable[Any]:
        self.calls.append(now)
        return [("front", A)]


def test_a_deadline_that_does_not_move_is_an_error_and_put_off(log: pytest.LogCaptureFixture):
    service = Stuck()
    service.deadline = 5.0
    host = ServiceHost(service)
    host.on_deadline(5.0)
    assert (host.counts.errors, host.next_deadline()) == (1, 5.0 + STUCK_PAUSE)
    host.on_deadline(5.0 + STUCK_PAUSE / 2)
    host.on_deadline(5.0 + STUCK_PAUSE)
    assert service.calls == [5.0, 5.0 + STUCK_PAUSE]
    assert "the deadline of service plain did not move" in fields(log, 0)["error"]
    assert host.take_sends() == [("front", A)] * 2


def test_a_deadline_that_never_moves_ends_in_quarantine():
    service = Stuck()
    service.deadline = 0.0
    host = ServiceHost(service, limits=HostLimits(errors=4))
    now = 0.0
    while (due := host.next_deadline()) is not None:
        assert due >= now
        now = due
        host.on_deadline(now)
    assert (host.quarantined, len(service.calls)) == (True, 4)


def test_a_deadline_that_moves_is_no_error():
    service = Stuck()
    service.deadline = 5.0
    host = ServiceHost(service)
    host.on_deadline(4.0)
    service.deadline = 6.0
    host.on_deadline(5.0)
    assert host.counts.errors == 0


@pytest.mark.parametrize("deadline", [math.nan, "soon", 10**400, RuntimeError("no idea"), [1.0]])
def test_a_deadline_that_is_no_time_is_an_error_and_put_off(deadline: object):
    service = Plain()
    service.deadline = deadline
    host = ServiceHost(service)
    host.receive("front", [A], 3.0)
    assert (host.next_deadline(), host.counts.errors) == (3.0 + STUCK_PAUSE, 1)
    host.on_deadline(3.05)
    assert service.calls == [("receive", "front", A, 3.0)]


@pytest.mark.parametrize("deadline", [math.nan, "soon", RuntimeError("no idea")])
def test_a_deadline_that_is_no_time_after_it_was_due(deadline: object):
    service = Plain()
    host = ServiceHost(service)
    vars(service)["on_deadline"] = lambda now: setattr(service, "deadline", deadline) or ()
    service.deadline = 5.0
    host.on_deadline(5.0)
    assert host.counts.errors == 1


def test_an_exception_in_on_deadline_is_counted_and_waits_a_moment():
    service = Plain()
    service.deadline = 5.0

    def fail(now: float) -> Iterable[Any]:
        raise ValueError

    vars(service)["on_deadline"] = fail
    host = ServiceHost(service)
    host.on_deadline(8.0)
    assert (host.counts.errors, host.next_deadline()) == (1, 8.0 + STUCK_PAUSE)


# jobs


class SpecialJob(Job):
    pass


def test_jobs_are_sorted_out_from_the_sends():
    first, second = job(token=1), job(token=2)
    host = ServiceHost(returning([first, ("front", A), second, ("front", B)]))
    host.receive("front", [C], 0.0)
    assert host.take_sends() == [("front", A), ("front", B)]
    assert (2, [first]) == (host.jobs.in_flight, host.jobs.take())


@pytest.mark.parametrize("effects", [[job()], [SpecialJob("k", str)], [SpecialJob("k", str), job()]])
def test_a_batch_of_jobs_alone_leaves_nothing_to_send(effects: list[Job]):
    host = ServiceHost(returning(effects))
    host.receive("front", [C], 0.0)
    assert ([], len(effects)) == (host.take_sends(), host.jobs.in_flight)


def test_a_job_of_a_service_that_takes_no_results_is_refused_as_a_send():
    service = Plain()
    wrong = job()
    vars(service)["receive"] = lambda socket, frames, now: [wrong]
    host = ServiceHost(service)
    host.receive("front", [A], 0.0)
    assert ([wrong], 0) == (host.take_sends(), host.jobs.in_flight)


@pytest.mark.parametrize(
    ("result", "failed"), [(JobResult("t", b"v"), 0), (JobResult("t", b"v", OSError("disk full")), 1)]
)
def test_the_result_of_a_job_comes_back_with_the_time(result: JobResult, failed: int):
    service = Full()
    host = ServiceHost(service)
    host.job_done(result, 4.0)
    assert [("on_job", result, 4.0)] == service.calls
    assert host.take_sends() == [("front", (b"peer", b"v"))]
    assert HostCounts(jobs=1, jobs_failed=failed) == host.counts


def test_a_result_may_ask_for_the_next_job():
    following = job(token="next")
    service = Full()
    service.on_result = lambda result: [following]
    host = ServiceHost(service)
    host.job_done(JobResult("t"), 4.0)
    assert ([], [following]) == (host.take_sends(), host.jobs.take())


def test_an_exception_in_on_job_is_counted():
    service = Full()
    service.on_result = lambda result: 1 / 0  # type: ignore[assignment,return-value]
    host = ServiceHost(service)
    host.job_done(JobResult("t"), 4.0)
    assert HostCounts(jobs=1, errors=1) == host.counts


def test_a_seat_pauses_while_too_many_jobs_are_in_flight():
    host = ServiceHost(returning([job("a"), job("b")]), limits=HostLimits(jobs=2))
    states = [host.paused]
    host.receive("front", [A], 0.0)
    host.take_sends()
    states.append(host.paused)
    batch = host.jobs.take()
    assert batch is not None
    states.append(host.paused)
    host.jobs.finished(batch)
    states.append(host.paused)
    assert states == [False, True, True, False]


# sends that failed


def test_what_was_sent_is_counted():
    host = ServiceHost(Full())
    host.sent(5, [], 0.0)
    host.sent(3, [SendFailure("front", A, "EAGAIN")], 0.0)
    assert HostCounts(sent=7, undelivered=Counter({("front", "EAGAIN"): 1})) == host.counts


def test_what_was_not_sent_is_handed_back_with_the_reason():
    service = Full()
    host = ServiceHost(service)
    host.sent(2, [SendFailure("front", A, "EHOSTUNREACH"), SendFailure("front", B, "EAGAIN")], 6.0)
    assert service.calls == [
        ("on_undelivered", "front", A, "EHOSTUNREACH", 6.0),
        ("on_undelivered", "front", B, "EAGAIN", 6.0),
    ]
    assert host.take_sends() == [("front", (b"peer", b"again"))] * 2


def test_a_service_that_does_not_ask_is_not_told():
    service = Plain()
    host = ServiceHost(service)
    host.sent(1, [SendFailure("front", A, "EAGAIN")], 6.0)
    assert (service.calls, host.take_sends(), host.counts.errors) == ([], [], 0)


def test_an_exception_in_on_undelivered_is_counted_and_the_others_are_handed_back():
    service = Full()
    host = ServiceHost(service)
    host.sent(2, [SendFailure("front", A, "EPERM"), SendFailure("front", B, "EAGAIN")], 6.0)
    assert (host.counts.errors, [call[2] for call in service.calls]) == (1, [A, B])


def test_a_malformed_send_is_an_error_of_the_service_and_not_handed_back(log: pytest.LogCaptureFixture):
    service = Full()
    host = ServiceHost(service, limits=HostLimits(errors=2))
    host.sent(2, [SendFailure("?", (), MALFORMED)], 6.0)
    assert HostCounts(sent=1, errors=1, undelivered=Counter({("?", MALFORMED): 1})) == host.counts
    assert service.calls == []
    assert "service plain returned a malformed send" in fields(log)["error"]
    host.sent(1, [SendFailure("?", (), MALFORMED)], 7.0)
    assert host.quarantined


def test_a_service_that_calls_exit_does_not_end_the_broker():
    class Quits(Plain):
        def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Any]:
            raise SystemExit(3)

    host = ServiceHost(Quits())
    host.receive("front", [A], 0.0)
    assert host.counts.errors == 1
