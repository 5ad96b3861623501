"""A service whose broker does not serve: what peers send is dropped, what was taken before is finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from scale0_core.container.container import Container
from scale0_core.container.host import ServiceHost
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


class Binder:
    """Passes on what the hosts of services say."""

    name = "binder"
    endpoints: ClassVar = {"tasks": Endpoint(kind="ROUTER", bind="@tasks")}

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Any]:
        return [(socket, frames)]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Iterable[Any]:
        return ()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def host(shop: Shop) -> ServiceHost:
    return ServiceHost(shop)


def test_what_peers_send_is_dropped_and_counted_by_the_reason(host: ServiceHost, shop: Shop):
    host.suspend("disabled")
    host.receive("front", [ASKED, ASKED], 1.0)
    assert (shop.seen, host.counts.received, host.counts.dropped) == ([], 2, {"disabled": 2})
    host.suspend("")
    host.receive("front", [ASKED], 2.0)
    assert (shop.seen, host.counts.received, host.counts.dropped) == ([ASKED], 3, {"disabled": 2})


@pytest.mark.parametrize(("at", "leaves"), [(10.9, True), (11.0, False)])
def test_what_was_taken_before_is_answered_until_the_drain_is_over(
    host: ServiceHost, shop: Shop, at: float, leaves: bool
):
    host.receive("front", [ASKED], 1.0)
    host.take_sends()
    (job,) = host.jobs.take() or ()
    host.suspend("disabled", 11.0)
    host.job_done(JobResult(job.token, b""), at)
    answer = (b"peer", b"", b"done")
    assert host.take_sends() == ([("front", answer)] if leaves else [])
    assert shop.back == ([] if leaves else [(answer, "EHOSTUNREACH")]), "to the service the peer is gone"
    assert host.counts.undelivered == ({} if leaves else {("front", "disabled"): 1})


def test_deadlines_go_on_and_their_messages_stay_here(host: ServiceHost, shop: Shop):
    host.suspend("disabled")
    shop.due = 5.0
    assert host.next_deadline() == 5.0
    host.on_deadline(5.0)
    assert (host.take_sends(), shop.due) == ([], None)
    assert host.counts.undelivered == {("front", "disabled"): 1}


def test_nothing_is_published_though_answers_still_leave(host: ServiceHost, shop: Shop):
    answer, news = ("front", (b"peer", b"", b"done")), ("news", (b"topic", b"text"))
    host.suspend("disabled", 11.0)
    host.sends += [answer, news]
    assert host.take_sends() == [answer]
    assert (shop.back, host.counts.undelivered) == ([(news[1], "EHOSTUNREACH")], {("news", "disabled"): 1})
    host.suspend("")
    host.sends += [answer, news]
    assert host.take_sends() == [answer, news]


@pytest.mark.parametrize("socket", ["", 7, [], None], ids=repr)
def test_a_send_by_a_socket_that_is_none_is_told_as_ever(host: ServiceHost, socket: object):
    host.suspend("disabled", -1.0)
    host.sends.append((socket, (b"peer",)))  # type: ignore[arg-type]
    host.take_sends()
    assert host.take_sends() == []


@pytest.mark.parametrize(("at", "taken"), [(10.9, True), (11.0, False)])
def test_answers_to_its_own_questions_are_taken_until_the_drain_is_over(
    host: ServiceHost, shop: Shop, at: float, taken: bool
):
    host.suspend("disabled", 11.0)
    host.receive("out", [(b"answer",)], at)
    assert shop.seen == ([(b"answer",)] if taken else [])


@pytest.mark.parametrize(("at", "taken"), [(10.9, True), (11.0, False)])
def test_messages_that_finish_something_are_taken_until_the_drain_is_over(
    host: ServiceHost, shop: Shop, at: float, taken: bool
):
    host.suspend("disabled", 11.0)
    reply = (b"worker", b"", b"reply")
    host.receive("front", [ASKED, reply, ASKED], at)
    assert shop.seen == ([reply] if taken else [])
    assert host.counts.dropped == {"disabled": 2 if taken else 3}
    assert host.counts.received == 3


def test_a_service_that_cannot_tell_what_finishes_something_gets_nothing(host: ServiceHost, shop: Shop):
    shop.confused = True
    host.suspend("disabled", 11.0)
    host.receive("front", [(b"worker", b"", b"reply")], 1.0)
    assert (shop.seen, host.counts.errors, host.counts.dropped) == ([], 1, {"disabled": 1})


def test_a_malformed_send_is_told_as_ever(host: ServiceHost):
    host.suspend("disabled")
    host.sends.append("nonsense")  # type: ignore[arg-type]
    assert host.take_sends() == ["nonsense"]


def test_no_fast_path_while_suspended(host: ServiceHost):
    assert host.may_rush
    host.suspend("joining")
    assert not host.may_rush


def test_tasks_come_from_the_broker_itself_which_knows_its_state(shop: Shop):
    host, broker = ServiceHost(shop), ServiceHost(Binder())
    container = Container()
    for each in (broker, host):
        container.add(each)
    host.suspend("disabled")
    assert host.tasks is not None
    host.tasks.post((b"TASK", b"1", b"hello"))
    host.tasks.deliver(1.0)
    host.take_sends()
    (job,) = host.jobs.take() or ()
    host.job_done(JobResult(job.token, b""), 2.0)
    assert host.take_sends() == []
    (receiver,) = container.ready
    assert (receiver.host, receiver.deliver(3.0)) == (broker, 1)
    assert broker.sends == [("tasks", (b"shop", b"DONE", b"1", b"done"))]
