"""A service whose broker does not serve: what peers send is dropped, what was taken before is finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from scale0_core.container.host import Seat
from scale0_core.network.door import make_seat
from scale0_core.service import Endpoint, Frames, Job, JobResult

ASKED = (b"peer", b"", b"asked")


class Shop:
    """Answers in a job; asks others on a socket of its own; its workers answer for it."""

    name = "shop"

    def __init__(self) -> None:
        self.endpoints = {
            "front": Endpoint(kind="ROUTER", bind="ipc:///tmp/front", tasks=True),
            "out": Endpoint(kind="DEALER", connect="ipc:///tmp/other"),
            "news": Endpoint(kind="XPUB", bind="ipc:///tmp/news"),
        }
        self.seen: list[Frames] = []
        self.back: list[tuple[Frames, str]] = []
        self.due: float | None = None
        self.confused = False

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Any]:
        self.seen.append(frames)
        return [Job("k", bytes, b"", frames)] if socket == "front" else ()

    def on_job(self, result: JobResult, now: float) -> Iterable[Any]:
        return [("front", (*result.token[:2], b"done"))]

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Any]:
        self.back.append((frames, reason))
        return ()

    def finishes(self, socket: str, frames: Frames) -> bool:
        if self.confused:
            raise ValueError("no idea")
        return frames[0] == b"worker"

    def next_deadline(self) -> float | None:
        return self.due

    def on_deadline(self, now: float) -> Iterable[Any]:
        self.due = None
        return [("front", (b"peer", b"tick"))]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def seat(shop: Shop) -> Seat:
    return Seat(shop)


def test_what_peers_send_is_dropped_and_counted_by_the_reason(seat: Seat, shop: Shop):
    seat.suspend("disabled")
    seat.receive("front", [ASKED, ASKED], 1.0)
    assert (shop.seen, seat.counts.received, seat.counts.dropped) == ([], 2, {"disabled": 2})
    seat.suspend("")
    seat.receive("front", [ASKED], 2.0)
    assert (shop.seen, seat.counts.received, seat.counts.dropped) == ([ASKED], 3, {"disabled": 2})


@pytest.mark.parametrize(("at", "leaves"), [(10.9, True), (11.0, False)])
def test_what_was_taken_before_is_answered_until_the_drain_is_over(seat: Seat, shop: Shop, at: float, leaves: bool):
    seat.receive("front", [ASKED], 1.0)
    seat.take_sends()
    (job,) = seat.jobs.take() or ()
    seat.suspend("disabled", 11.0)
    seat.job_done(JobResult(job.token, b""), at)
    answer = (b"peer", b"", b"done")
    assert seat.take_sends() == ([("front", answer)] if leaves else [])
    assert shop.back == ([] if leaves else [(answer, "EHOSTUNREACH")]), "to the service the peer is gone"
    assert seat.counts.undelivered == ({} if leaves else {("front", "disabled"): 1})


def test_deadlines_go_on_and_their_messages_stay_here(seat: Seat, shop: Shop):
    seat.suspend("disabled")
    shop.due = 5.0
    assert seat.next_deadline() == 5.0
    seat.on_deadline(5.0)
    assert (seat.take_sends(), shop.due) == ([], None)
    assert seat.counts.undelivered == {("front", "disabled"): 1}


def test_nothing_is_published_though_answers_still_leave(seat: Seat, shop: Shop):
    answer, news = ("front", (b"peer", b"", b"done")), ("news", (b"topic", b"text"))
    seat.suspend("disabled", 11.0)
    seat.sends += [answer, news]
    assert seat.take_sends() == [answer]
    assert (shop.back, seat.counts.undelivered) == ([(news[1], "EHOSTUNREACH")], {("news", "disabled"): 1})
    seat.suspend("")
    seat.sends += [answer, news]
    assert seat.take_sends() == [answer, news]


@pytest.mark.parametrize("socket", ["", 7, [], None], ids=repr)
def test_a_send_by_a_socket_that_is_none_is_told_as_ever(seat: Seat, socket: object):
    seat.suspend("disabled", -1.0)
    seat.sends.append((socket, (b"peer",)))  # type: ignore[arg-type]
    seat.take_sends()
    assert seat.take_sends() == []


@pytest.mark.parametrize(("at", "taken"), [(10.9, True), (11.0, False)])
def test_answers_to_its_own_questions_are_taken_until_the_drain_is_over(seat: Seat, shop: Shop, at: float, taken: bool):
    seat.suspend("disabled", 11.0)
    seat.receive("out", [(b"answer",)], at)
    assert shop.seen == ([(b"answer",)] if taken else [])


@pytest.mark.parametrize(("at", "taken"), [(10.9, True), (11.0, False)])
def test_messages_that_finish_something_are_taken_until_the_drain_is_over(
    seat: Seat, shop: Shop, at: float, taken: bool
):
    seat.suspend("disabled", 11.0)
    reply = (b"worker", b"", b"reply")
    seat.receive("front", [ASKED, reply, ASKED], at)
    assert shop.seen == ([reply] if taken else [])
    assert seat.counts.dropped == {"disabled": 2 if taken else 3}
    assert seat.counts.received == 3


def test_a_service_that_cannot_tell_what_finishes_something_gets_nothing(seat: Seat, shop: Shop):
    shop.confused = True
    seat.suspend("disabled", 11.0)
    seat.receive("front", [(b"worker", b"", b"reply")], 1.0)
    assert (shop.seen, seat.counts.errors, seat.counts.dropped) == ([], 1, {"disabled": 1})


def test_a_malformed_send_is_told_as_ever(seat: Seat):
    seat.suspend("disabled")
    seat.sends.append("nonsense")  # type: ignore[arg-type]
    assert seat.take_sends() == ["nonsense"]


def test_no_fast_path_while_suspended(seat: Seat):
    assert seat.may_rush
    seat.suspend("joining")
    assert not seat.may_rush


def test_tasks_come_from_the_broker_itself_which_knows_its_state(shop: Shop):
    seat = make_seat(shop, b"s" * 16)
    answers: list[Frames] = []
    seat.answer = lambda frames, now: answers.append(frames)  # type: ignore[attr-defined]
    seat.suspend("disabled")
    seat.take_task((b"shop", b"S0W01", b"TASK", b"", b"shop", b"1", b"hello"), 1.0)  # type: ignore[attr-defined]
    seat.take_sends()
    (job,) = seat.jobs.take() or ()
    seat.job_done(JobResult(job.token, b""), 2.0)
    assert (seat.take_sends(), [frames[-1] for frames in answers]) == ([], [b"done"])
