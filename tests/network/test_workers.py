"""Workers and the queues they wait in."""

from __future__ import annotations

import pytest

from scale0_core.network.workers import Frontend, ServiceQueue, Task, Worker, first_idle
from scale0_core.protocol.states import ClientEvent, ClientState, LocalProtocolError

CLIENT = Frontend(("frontend", b"c"), 0.0)


def worker(name: str, *services: ServiceQueue, window: int | None = None, limit: int = 1) -> Worker:
    made = Worker(("backend", name.encode()), name, 0.0, 2.5, window=window, limit=limit)
    made.happen(ClientEvent.CHECKCONFIG)
    made.happen(ClientEvent.READY)
    made.offer(services)
    made.join_queues()
    return made


def task(number: int, service: ServiceQueue, created: float = 0.0) -> Task:
    return Task(b"%d" % number, CLIENT, (), b"", service, b"", (), created, created + 30, retry=False)


def names(service: ServiceQueue) -> list[str]:
    return [each.identity for each in service.idle]


def test_who_joins_waits_at_the_end_and_keeps_the_place():
    echo = ServiceQueue(b"echo")
    one, two = worker("one", echo), worker("two", echo)
    one.join_queues()
    assert (names(echo), first_idle(echo)) == (["one", "two"], one)
    one.rejoin_queues()
    assert (names(echo), first_idle(echo)) == (["two", "one"], two)
    one.leave_queues()
    one.leave_queues()
    assert names(echo) == ["two"]
    assert first_idle(ServiceQueue(b"none")) is None


def test_offering_other_services_leaves_the_old_ones():
    old, new = ServiceQueue(b"old"), ServiceQueue(b"new")
    one = worker("one", old)
    one.offer([new])
    assert (names(old), old.workers, names(new), new.workers) == ([], set(), [], {one})
    assert old.unused
    assert not new.unused


def test_a_worker_that_is_full_leaves_all_queues():
    a, b = ServiceQueue(b"a"), ServiceQueue(b"b")
    one = worker("one", a, b, window=2, limit=2)
    other = worker("other", a)
    one.take(task(1, a), 0.5)
    assert (one.state, names(a), names(b)) == (ClientState.READY, ["other", "one"], ["one"])
    one.take(task(2, b), 0.5)
    assert (one.state, one.ready, names(a), names(b)) == (ClientState.BUSY, False, ["other"], [])
    with pytest.raises(LocalProtocolError):
        one.take(task(3, b), 0.5)
    assert other.ready


def test_finishing_makes_room_where_there_is_a_window():
    echo = ServiceQueue(b"echo")
    one = worker("one", echo, window=1, limit=1)
    first = task(1, echo)
    one.take(first, 1.0)
    assert (first.worker, first.sent, echo.wait_time.count) == (one, 1.0, 1)
    assert one.finish(first) is True
    assert one.ready
    assert one.finish(first) is False


def test_finishing_makes_no_room_where_each_ready_brings_one():
    echo = ServiceQueue(b"echo")
    one = worker("one", echo)
    first = task(1, echo)
    one.take(first, 1.0)
    assert one.finish(first) is False
    assert (one.state, one.limit) == (ClientState.BUSY, 0)
    one.finish(first)
    assert one.limit == 0


def test_tasks_wait_in_their_order_and_may_leave_it():
    echo = ServiceQueue(b"echo")
    tasks = [task(number, echo) for number in range(4)]
    for each in tasks:
        echo.queue[each.number] = each
    del echo.queue[b"1"]
    assert (echo.waiting(), [echo.first_waiting() for _ in range(3)]) == (3, [tasks[0], tasks[2], tasks[3]])


def test_errors_are_counted_with_the_last_reason():
    echo = ServiceQueue(b"echo")
    echo.failed("one")
    echo.failed("two")
    assert (echo.errors, echo.last_error) == (2, "two")
