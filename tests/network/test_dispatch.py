"""The dispatcher against random work: every task ends once, and nothing is left behind."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scale0_core.config.network import NetworkConfig
from scale0_core.events import TASK, Event
from scale0_core.network import dispatch
from scale0_core.network.dispatch import Dispatcher, service_rows
from scale0_core.network.telling import Telling
from scale0_core.network.workers import Worker
from scale0_core.protocol.states import ClientEvent, ClientState
from scale0_core.service import Frames, Send

WORKERS = st.integers(0, 3)
SERVICES = ("a", "b", "c")


class DispatchMachine(RuleBasedStateMachine):
    """Workers come, take, reply, fall silent and die; clients ask; time passes."""

    def __init__(self) -> None:
        super().__init__()
        config = NetworkConfig(identity="b", queue_limit=3, client_limit=6)
        self.dispatcher = Dispatcher(config)
        self.events: list[Event] = []
        self.telling = self.dispatcher.telling = Telling(self.events, "g", self.dispatcher.packing)
        self.now = 1000.0
        self.asked: set[bytes] = set()
        self.ended: Counter[bytes] = Counter()
        self.marked: set[bytes] = set()
        self.given: Counter[bytes] = Counter()
        self.client_ids: dict[bytes, bytes] = {}
        self.numbers = 0

    def note(self, sends: list[Send] | tuple[Send, ...]) -> None:
        for socket, frames in sends:
            if socket == "frontend":
                assert frames[2] in (b"TASKREPLY", b"ERROR")
                self.ended[frames[5]] += 1
            elif frames[2] == b"CANCEL":
                worker = self.dispatcher.workers[socket, frames[0]]
                assert worker.cancels
                assert worker.in_hand[frames[5]].done, "only what is over is cancelled"
            else:
                assert frames[2] == b"TASK"
                assert (
                    0 < json.loads(frames[3])["timeout"] <= 5050
                    or self.dispatcher.tasks[frames[5]].deadline <= self.now
                )
                self.given[self.dispatcher.tasks[frames[5]].client_id] += 1

    def worker(self, number: int) -> Worker | None:
        return self.dispatcher.workers.get(("backend", b"%d" % number))

    @rule(number=WORKERS, services=st.sets(st.sampled_from(SERVICES)), window=st.integers(0, 3))
    def ready(self, number: int, services: set[str], window: int) -> None:
        key = ("backend", b"%d" % number)
        worker = self.dispatcher.workers.get(key)
        if worker is None:
            worker = self.dispatcher.workers[key] = Worker(key, str(number), self.now, 2.5, cancels=number < 3)
            worker.happen(ClientEvent.CHECKCONFIG)
        if not worker.responsive:
            self.dispatcher.heard_again(worker)
        for done in [task for task in worker.in_hand.values() if task.done]:
            del worker.in_hand[done.number]
        worker.window, worker.limit = window or None, window or len(worker.in_hand) + 1
        worker.offer(self.dispatcher.permitted(sorted(services))[0])
        worker.happen(ClientEvent.READY)
        if len(worker.in_hand) >= worker.limit:
            worker.happen(ClientEvent.FULL)
        self.note(self.dispatcher.give_work(worker, self.now))

    @rule(
        client=st.integers(0, 2),
        service=st.sampled_from(SERVICES),
        timeout=st.integers(0, 5000),
        retry=st.booleans(),
    )
    def ask(self, client: int, service: str, timeout: int, retry: bool) -> None:
        self.numbers += 1
        name = b"%d" % self.numbers
        self.asked.add(name)
        if retry:
            self.marked.add(name)
        options = json.dumps({"timeout": timeout, "retry": retry}).encode()
        key = ("frontend", b"c%d" % client)
        self.note(self.dispatcher.submit(key, (key[1],), options, (service.encode(), name, b"x"), self.now))

    @rule(number=WORKERS, place=st.integers(0, 5), more=st.booleans())
    def reply(self, number: int, place: int, more: bool) -> None:
        worker = self.worker(number)
        if worker is None or not worker.in_hand:
            return
        task = list(worker.in_hand.values())[place % len(worker.in_hand)]
        options = b'{"more":true}' if more else b""
        sends = list(self.dispatcher.reply(worker.key, options, (task.service.name, task.number, b"y"), self.now))
        self.note([send for send in sends if not (more and send[0] == "frontend")])

    @rule(number=WORKERS, other=WORKERS)
    def forge(self, number: int, other: int) -> None:
        worker, thief = self.worker(number), self.worker(other)
        if worker is None or thief is None or thief is worker or not worker.in_hand:
            return
        task = next(iter(worker.in_hand.values()))
        if task.number in thief.in_hand:
            return  # they share it
        assert list(self.dispatcher.reply(thief.key, b"", (b"a", task.number), self.now)) == []

    @rule(number=WORKERS)
    def fall_silent(self, number: int) -> None:
        worker = self.worker(number)
        if worker is not None and worker.responsive:
            worker.leave_queues()
            worker.happen(ClientEvent.SILENCE)
        if worker is not None:
            self.note(self.dispatcher.share(worker, self.now))

    @rule(number=WORKERS)
    def speak(self, number: int) -> None:
        worker = self.worker(number)
        if worker is None or worker.responsive:
            return
        self.dispatcher.heard_again(worker)
        worker.happen(ClientEvent.SIGN)
        if len(worker.in_hand) < worker.limit:
            worker.happen(ClientEvent.FREE)
            self.note(self.dispatcher.give_work(worker, self.now))

    @rule(number=WORKERS)
    def lose(self, number: int) -> None:
        worker = self.worker(number)
        if worker is not None:
            self.note(self.dispatcher.lose(worker, ClientEvent.LOST, self.now))

    @rule(number=WORKERS, reason=st.sampled_from(["EAGAIN", "EHOSTUNREACH"]))
    def undeliver(self, number: int, reason: str) -> None:
        worker = self.worker(number)
        if worker is not None and worker.in_hand:
            task = list(worker.in_hand.values())[-1]
            if not task.done:
                self.given[task.client_id] -= 1
            self.note(self.dispatcher.undelivered_task(task.number, worker, reason, self.now))
            if reason != "EAGAIN":
                self.note(self.dispatcher.lose(worker, ClientEvent.LOST, self.now))

    @rule(client=st.integers(0, 2))
    def leave(self, client: int) -> None:
        for task in self.dispatcher.tasks.values():
            if task.client.key[1] == b"c%d" % client:
                self.asked.discard(task.client_id)  # nobody is there to be told
        self.note(self.dispatcher.frontend_gone(("frontend", b"c%d" % client), self.now))

    @rule(client=st.integers(0, 2), place=st.integers(0, 5))
    def cancel(self, client: int, place: int) -> None:
        if not self.dispatcher.tasks:
            return
        task = list(self.dispatcher.tasks.values())[place % len(self.dispatcher.tasks)]
        own = task.client.key[1] == b"c%d" % client
        before = self.dispatcher.counts.cancelled, self.dispatcher.counts.unknown_cancels
        key = ("frontend", b"c%d" % client)
        self.note(self.dispatcher.cancel(key, task.service.name, task.client_id, self.now))
        after = self.dispatcher.counts.cancelled, self.dispatcher.counts.unknown_cancels
        assert (after[0] - before[0], after[1] - before[1]) == (own, not own)
        assert task.done is own
        if own:
            self.asked.discard(task.client_id)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.dispatcher.on_deadline(self.now))
        following = self.dispatcher.next_deadline()
        assert following is None or following > self.now

    @invariant()
    def each_ends_once(self) -> None:
        assert all(count == 1 for count in self.ended.values())

    @invariant()
    def each_is_told_once_it_is_over(self) -> None:
        told = self.dispatcher.packing.told(self.events)
        tasks = [event[0].table(event) for event in told if event[0] is TASK]
        assert len(tasks) == self.numbers - len(self.dispatcher.tasks)
        assert all((task["peer"] is None) == (task["service_us"] is None) for task in tasks)
        assert all((task["queue_us"] or 0) >= 0 and (task["service_us"] or 0) >= 0 for task in tasks)
        assert self.telling._parts.keys() <= self.dispatcher.tasks.keys()

    @invariant()
    def at_most_one_worker_unless_marked(self) -> None:
        assert all(count <= 1 for name, count in self.given.items() if name not in self.marked)

    @invariant()
    def tables_agree(self) -> None:
        dispatcher = self.dispatcher
        for worker in dispatcher.workers.values():
            for service in dispatcher.services.values():
                assert (worker in service.workers) == (service in worker.services)
                assert worker not in service.idle or (worker.ready and service in worker.services)
            if worker.ready:
                assert len(worker.in_hand) < worker.limit
                assert not any(service.queue for service in worker.services), "work waits for one that is free"
        held = {number for worker in dispatcher.workers.values() for number in worker.in_hand}
        queued = {number for service in dispatcher.services.values() for number in service.queue}
        assert set(dispatcher.tasks) <= held | queued
        assert queued <= set(dispatcher.tasks)
        assert all(dispatcher.tasks[number].earlier is not None for number in held & queued)
        for task in dispatcher.tasks.values():
            assert (task.worker is None) == (task.number in queued)
            assert task.worker is None or task.worker.in_hand[task.number] is task
            holders = [worker for worker in dispatcher.workers.values() if task.number in worker.in_hand]
            assert task.retry or len(holders) <= 1
        assert all(task.done for worker in dispatcher.workers.values() for number, task in worker.in_hand.items()
                   if number not in dispatcher.tasks)  # fmt: skip
        for frontend in dispatcher.frontends.values():
            assert frontend.open == sum(task.client is frontend for task in dispatcher.tasks.values())

    def teardown(self) -> None:
        self.wait(3600.0)
        self.wait(3600.0)
        assert self.dispatcher.tasks == {}
        assert self.dispatcher.frontends == {}
        assert all(self.ended[name] == 1 for name in self.asked)
        assert len(self.dispatcher._deadlines) == len(self.dispatcher._forget) == 0


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


# bounds


def task(dispatcher: Dispatcher, client: int, now: float = 0.0, service: bytes = b"a") -> list[bytes]:
    key = ("frontend", b"%d" % client)
    body: Frames = (service, b"1", b"x")
    return [frames[2] for _, frames in dispatcher.submit(key, (key[1],), b"", body, now)]


def with_worker(window: int = 10_000) -> Dispatcher:
    dispatcher = Dispatcher(NetworkConfig(identity="b"))
    worker = dispatcher.workers["backend", b"w"] = Worker(("backend", b"w"), "w", 0.0, 2.5, window=window, limit=window)
    worker.state = ClientState.READY
    worker.offer(dispatcher.permitted(["a"])[0])
    worker.join_queues()
    return dispatcher


def test_ever_new_clients_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "MOST_FRONTENDS", 50)
    dispatcher = with_worker()
    for number in range(1000):
        task(dispatcher, number, service=b"nothing")
        assert len(dispatcher.frontends) <= 50
        assert len(dispatcher._forget) <= 50


def test_when_all_clients_have_something_open_a_new_one_is_told_429(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "MOST_FRONTENDS", 50)
    dispatcher = with_worker()
    assert [task(dispatcher, number) for number in range(52)] == [[b"TASK"]] * 50 + [[b"ERROR"]] * 2
    assert task(dispatcher, 3) == [b"TASK"]


def test_ever_new_services_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "MOST_SERVICES_KNOWN", 50)
    dispatcher = with_worker()
    worker = next(iter(dispatcher.workers.values()))
    for number in range(1000):
        services, refused = dispatcher.permitted(["a", *(f"{number}/{part}" for part in range(10))])
        worker.offer(services)
        assert (len(services), refused) == (11, [])
        assert len(dispatcher.services) <= 50
        assert all(dispatcher.services[service.name] is service for service in services)


def test_services_beyond_the_bound_are_refused_when_all_are_in_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "MOST_SERVICES_KNOWN", 3)
    dispatcher = with_worker()
    services, refused = dispatcher.permitted(["a", "b", "c", "d"])
    assert ([service.name for service in services], refused) == ([b"a", b"b", b"c"], ["d"])


def test_rows_of_services():
    dispatcher = with_worker()
    task(dispatcher, 1)
    (row,) = service_rows(dispatcher.services)
    assert (row["service"], row["workers"], row["idle"], row["requests"]) == ("a", 1, 1, 1)
