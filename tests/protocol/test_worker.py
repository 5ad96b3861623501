"""The worker's side of the protocol for services: with the broker's own service, on virtual time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.container.host import ServiceHost
from scale0_core.protocol.states import BrokerState
from scale0_core.protocol.worker import LARGEST_FRAME, MOST_FRAMES, RETRY_AFTER, ProtocolWorker, WorkerTask
from scale0_core.service import Endpoint, Frames, Send, SocketKind
from scale0_core.testing.virtual import Driver


class Copier:
    """A service that is a worker of the broker: answers each task with its own payload, or not at all."""

    name = "copier"

    def __init__(self) -> None:
        self.worker = ProtocolWorker("offers", "copier", window=10, metadata={"version": "1.5"})
        self.endpoints = {"offers": ProtocolWorker.endpoint("inproc://backend")}
        self.tasks: list[WorkerTask] = []
        self.wanted = ["copy"]
        self.answers = True

    def receive(self, socket: str, frames: Frames, now: float) -> list[Send]:
        sends, task = self.worker.receive(frames, now)
        if task is None:
            return sends
        self.tasks.append(task)
        return [*sends, *self.worker.reply(task, task.body)] if self.answers else sends

    def next_deadline(self) -> float | None:
        return 0.0 if self.wanted else None if self.worker.due == float("inf") else self.worker.due

    def on_deadline(self, now: float) -> list[Send]:
        wanted, self.wanted = self.wanted, []
        sends = self.worker.offer(wanted, now) if wanted else []
        return [*sends, *self.worker.on_deadline(now)] if self.worker.due <= now else sends

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> list[Send]:
        self.worker.undelivered(frames, now)
        return []


class HostedCopier:
    """The copier, tied to a broker to talk to."""

    def __init__(self, broker: Any) -> None:
        self.copier, self.broker = Copier(), broker
        self.said: list[Frames] = []
        self.refuses = ""
        self._pass_on, broker._driver._send = broker._driver._send, self._from_broker
        self.driver = Driver(ServiceHost(self.copier), broker._agenda, self._from_copier)
        self.driver.settle()
        broker.sleep(0)
        broker.heard()

    def _from_broker(self, send: Send) -> str:
        if (send[0], send[1][0]) != ("backend", b"copier"):
            return str(self._pass_on(send))
        self.at(partial(self.driver.receive, "offers", send[1][1:]))
        return ""

    def _from_copier(self, send: Send) -> str:
        if not self.refuses:
            self.said.append(send[1])
            self.at(partial(self.broker._driver.receive, "backend", (b"copier", *send[1])))
        return self.refuses

    def at(self, action: Any) -> None:
        self.broker._agenda.at(self.broker.now, action)

    def hear(self, *frames: bytes) -> None:
        self.driver.receive("offers", frames)
        self.broker.sleep(0)

    def commands(self) -> list[bytes]:
        said, self.said = self.said, []
        return [frames[1] for frames in said]

    def offer(self, *services: str) -> None:
        self.copier.wanted = list(services)
        self.driver.settle()
        self.broker.sleep(0)


@pytest.fixture
def broker(talk):
    return talk()


@pytest.fixture
def link(broker):
    return HostedCopier(broker)


def copies(broker: Any, number: str = "1", service: str = "copy") -> bool:
    """Tell whether a task is answered, and rightly."""
    broker.heard()
    said = broker.task("c", service, number, b"x", b"y")
    return [(message.command, message.body[2:]) for message in said if message.to == "c"] == [
        ("TASKREPLY", (b"x", b"y"))
    ]


def test_it_offers_its_services_and_gets_tasks(broker, link):
    assert link.commands() == [b"CHECKCONFIG", b"READY"]
    assert copies(broker)
    (entry,) = broker.registry.providers()
    assert (entry.service, entry.provider, entry.version, entry.tasks) == ("copy", "copier", "1.5", True)
    endpoint = ProtocolWorker.endpoint("inproc://backend")
    assert (type(endpoint), endpoint.kind) == (Endpoint, SocketKind.DEALER)


def test_it_shows_that_it_lives_and_comes_to_rest_in_between(broker, link):
    link.commands()
    broker.sleep(100)
    beats = link.commands()
    assert set(beats) == {b"HEARTBEAT"}
    assert len(beats) == 40
    assert copies(broker)


def test_it_answers_a_question_and_no_answer(broker, link):
    link.commands()
    link.hear(b"S0W01", b"HEARTBEAT", b'{"reply_to":0}')
    assert link.commands() == []
    link.hear(b"S0W01", b"HEARTBEAT", b"")
    assert link.commands() == [b"HEARTBEAT"]


def test_services_come_and_go(broker, link):
    link.offer("copy", "more")
    assert copies(broker, service="more")
    assert [entry.service for entry in broker.registry.providers()] == ["copy", "more"]
    link.driver.host.service.worker.offer([], broker.now)
    for send in [*link.copier.worker.offer(["again"], broker.now)]:
        link._from_copier(send)
    broker.sleep(0)
    assert copies(broker, "2", "again")


def test_it_leaves_when_it_has_nothing_to_offer(broker, link):
    for send in link.copier.worker.offer([], broker.now):
        link._from_copier(send)
    broker.sleep(0)
    assert (list(broker.registry.providers()), link.copier.worker.due) == ([], float("inf"))
    assert link.copier.worker.leave() == []


def test_it_negotiates_again_when_told_to(broker, link):
    link.commands()
    link.hear(b"S0W01", b"FORCENEGOTIATE", b"")
    assert link.commands() == [b"CHECKCONFIG", b"READY"]
    assert copies(broker)


def test_a_new_configuration_is_taken_without_a_gap(broker, link):
    link.copier.answers = False
    broker.task("c", "copy", "1", b"x", timeout=60_000)
    broker.store.following = broker.broker.running.network
    broker.ask("reload_config")  # heartbeats with the old version are answered with FORCENEGOTIATE
    broker.sleep(4)
    assert link.commands().count(b"CHECKCONFIG") == 2
    broker.heard()
    for send in link.copier.worker.reply(link.copier.tasks[0], (b"late",)):
        link._from_copier(send)
    broker.sleep(0)
    assert broker.one().body[2:] == (b"late",)


def test_a_broker_that_never_agrees_is_asked_once_in_a_while(broker, link):
    link.refuses = "EAGAIN"  # what it says gets nowhere
    for _ in range(50):
        link.hear(b"S0W01", b"FORCENEGOTIATE", b"")
    link.refuses = ""
    link.commands()
    broker.sleep(RETRY_AFTER + 0.1)
    assert link.commands()[:2] == [b"CHECKCONFIG", b"READY"]
    assert copies(broker)


def test_it_comes_back_after_it_was_kicked(broker, link):
    assert broker.ask("kick", {"identity": "copier"}).result == {"kicked": 1}
    assert broker.task("c", "copy", "1", b"x")[0].code == 503
    broker.sleep(RETRY_AFTER + 0.1)
    assert copies(broker, "2")


@pytest.mark.parametrize("state", [BrokerState.JOINING, BrokerState.DISABLED])
def test_it_waits_for_a_broker_that_does_not_serve_yet(talk, state):
    broker = talk(state=state)
    link = HostedCopier(broker)
    broker.sleep(60)
    assert set(link.commands()) == {b"CHECKCONFIG"}
    broker.store.following = broker.broker.running.network
    broker.ask("enable" if state is BrokerState.DISABLED else "reload_config")
    broker.sleep(RETRY_AFTER + 0.1)
    assert copies(broker)


def test_a_service_that_the_broker_does_not_manage_is_refused(talk):
    broker = talk(services=("other",))
    link = HostedCopier(broker)
    assert link.commands() == [b"CHECKCONFIG", b"READY"]
    assert broker.task("c", "copy")[0].code == 404


def test_parts_and_errors(broker, link):
    link.copier.answers = False
    broker.task("c", "copy", "1")
    (task,) = link.copier.tasks
    worker = link.copier.worker
    for send in (*worker.reply(task, (b"a",), more=True), *worker.reply(task, (), code=545, reason="no more")):
        link._from_copier(send)
    broker.sleep(0)
    part, end = broker.heard()
    assert (part.options, part.body[2:], end.code, end.options["message"]) == ({"more": True}, (b"a",), 545, "no more")


@pytest.mark.parametrize("body", [(b"",) * (MOST_FRAMES + 1), (bytes(LARGEST_FRAME + 1),)])
@pytest.mark.parametrize("more", [True, False])
def test_a_reply_that_is_too_large_is_an_error_and_ends_the_task(link, body, more):
    worker, task = link.copier.worker, WorkerTask(b"copy", b"7", {}, ())
    ((_, frames),) = worker.reply(task, body, more=more)
    assert b'"code":413' in frames[2]
    if more:
        assert worker.reply(task, (b"next",), more=True) == []
        assert worker.reply(task, (b"last",)) == []


def test_what_cannot_be_sent_is_an_error_a_moment_later_and_no_stream_has_a_hole(broker, link):
    link.copier.answers = False
    broker.task("c", "copy", "1")
    worker, (task,) = link.copier.worker, link.copier.tasks
    for _, frames in worker.reply(task, (b"a",), more=True):
        worker.undelivered(frames, broker.now)
    assert worker.reply(task, (b"b",), more=True) == worker.reply(task, (b"c",)) == []
    link.driver.settle()
    broker.sleep(0.1)
    assert broker.one().code == 503


WORDS = (
    b"", b"S0W01", b"S0C01", b"TASK", b"READYOK", b"CONFIG", b"CONFIGACK", b"HEARTBEAT", b"FORCENEGOTIATE", b"ERROR",
    b"DISCONNECTERROR", b"CHANGEBROKER", b"{", b'{"hbeatinterval":-1}', b'{"refused":3}', b'{"timeout":"x"}', b"copy",
    b'{"config_version":[]}', b"{}", b'{"hbeatinterval":0}', b'{"reply_to":1}', b"\xff",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(WORDS) | st.binary(max_size=9), max_size=8).map(tuple), max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_the_broker_says_is_survived(messages):
    worker = ProtocolWorker("offers", "w", window=10)
    worker.offer(["copy"], 0.0)
    for moment, frames in enumerate(messages, 1):
        sends, task = worker.receive(frames, float(moment))
        sends += worker.reply(task, task.body) if task is not None else []
        assert all(socket == "offers" and all(isinstance(part, bytes) for part in sent) for socket, sent in sends)
        if worker.due <= moment:
            sends = worker.on_deadline(float(moment))
        assert worker.due > moment


def test_a_task_that_cannot_be_read_is_answered_if_its_number_can(link):
    link.commands()
    link.hear(b"S0W01", b"TASK", b"{", b"copy", b"9")
    link.hear(b"S0W01", b"TASK", b"", b"copy")
    link.hear()
    assert link.commands() == [b"TASKREPLY"]
    assert (link.copier.tasks, link.copier.worker.malformed) == ([], 3)
