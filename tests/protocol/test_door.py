"""Services of plugins as workers of the broker: the door between a seat and the backend, on virtual time.

The broker's own service and the seat of the service are real; messages between them take no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.broker.door import DOOR, WINDOW, DoorPlan, SeatWithDoor, make_seat, task_socket
from scale0_core.broker.inner_worker import LARGEST_FRAME, MOST_FRAMES, RETRY_AFTER
from scale0_core.broker.registry import Provider
from scale0_core.broker.seat import Seat, SeatLimits
from scale0_core.protocol.states import BrokerState
from scale0_core.service import Effect, Endpoint, Frames, Job, JobResult, Send
from scale0_core.testing.virtual import Driver

PLAN = DoorPlan(backend="inproc://backend", identity="b1.shop", secret=b"secret", task_timeout=30.0)


class Shop:
    """Does what the first frame of a request says."""

    name = "shop"

    def __init__(self) -> None:
        self.endpoints = {"requests": Endpoint(kind="ROUTER", bind="inproc://shop", max_message=10_000, tasks=True)}
        self.asked: list[Frames] = []
        self.given_back: list[tuple[Frames, str]] = []
        self.later: list[tuple[float, Send]] = []

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        self.asked.append(frames)
        envelope, (word, *rest) = frames[:2], frames[2:] or (b"ECHO",)
        answer: Send = (socket, (*envelope, *rest))
        if word == b"RAISE":
            raise RuntimeError("broken")
        if word == b"LATER":
            self.later.append((now + int(rest[0]), answer))
            return []
        return {
            b"SILENT": [],
            b"JOB": [Job("jobs", bytes.upper, rest[0] if rest else b"", token=(socket, envelope))],
            b"TWICE": [answer, answer],
            b"BARE": [(socket, (frames[0], *rest))],
            b"MANY": [(socket, (*envelope, *[b"x"] * (MOST_FRAMES + 1)))],
            b"HUGE": [(socket, (*envelope, bytes(LARGEST_FRAME + 1)))],
            b"ODD": ["odd", answer],
        }.get(word, [answer])  # type: ignore[return-value]

    def next_deadline(self) -> float | None:
        return min((due for due, _ in self.later), default=None)

    def on_deadline(self, now: float) -> Iterable[Effect]:
        due = [send for when, send in self.later if when <= now]
        self.later = [entry for entry in self.later if entry[0] > now]
        return due

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        socket, envelope = result.token
        return [(socket, (*envelope, result.value))]

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        self.given_back.append((frames, reason))
        return []


class Link:
    """A seat with a door, tied to a broker to talk to."""

    def __init__(self, broker: Any, limits: SeatLimits | None = None) -> None:
        self.shop = Shop()
        self.seat = make_seat(self.shop, PLAN, limits=limits)
        self.broker = broker
        self.to_peers: list[Frames] = []
        self.said: list[Frames] = []
        self.refuses = ""
        broker.registry.put(Provider(service="shop", provider="b1", kind="hosted", state="responsive"))
        self._pass_on, broker._driver._send = broker._driver._send, self._from_broker
        self.driver = Driver(self.seat, broker._agenda, self._from_seat)
        self.driver.settle()
        broker.sleep(0)
        broker.heard()

    def _from_broker(self, send: Send) -> str:
        socket, frames = send
        if (socket, frames[0]) != ("backend", b"door"):
            return str(self._pass_on(send))
        if self.seat.quarantined:
            return "EHOSTUNREACH"
        self.at(partial(self.driver.receive, DOOR, frames[1:]))
        return ""

    def _from_seat(self, send: Send) -> str:
        if type(send) is not tuple:
            return "malformed"
        socket, frames = send
        if socket != DOOR:
            known = frames[0] == b"peer"
            self.to_peers += [frames] if known else []
            return "" if known else "EHOSTUNREACH"
        if self.refuses:
            return self.refuses
        self.said.append(frames)
        self.at(partial(self.broker._driver.receive, "backend", (b"door", *frames)))
        return ""

    def at(self, action: Any) -> None:
        self.broker._agenda.at(self.broker.now, action)

    def commands(self) -> list[bytes]:
        said, self.said = self.said, []
        return [frames[1] for frames in said]

    @property
    def takes_tasks(self) -> bool:
        (entry,) = [entry for entry in self.broker.registry.providers() if entry.service == "shop"]
        return bool(entry.tasks)


@pytest.fixture
def broker(talk):
    return talk()


@pytest.fixture
def link(broker):
    return Link(broker)


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_a_request_and_its_answer_the_reply(broker, link):
    (reply,) = broker.task("c", "shop", "7", b"ECHO", b"hello", b"you")
    assert (reply.command, reply.to, reply.number, reply.body[2:]) == ("TASKREPLY", "c", "7", (b"hello", b"you"))
    ticket, empty, *body = link.shop.asked[0]
    assert (ticket[:1], empty, body) == (b"\0", b"", [b"ECHO", b"hello", b"you"])
    assert PLAN.secret in ticket
    assert (link.seat.counts.received, link.seat.counts.sent) == (1, 1)


def test_peers_and_tasks_are_served_side_by_side(broker, link):
    broker.task("c", "shop", "1", b"LATER", b"5", b"task")
    link.driver.receive("requests", (b"peer", b"", b"ECHO", b"to a peer"))
    assert link.to_peers == [(b"peer", b"", b"to a peer")]
    (quick,) = broker.task("c", "shop", "2", b"ECHO", b"quick")
    assert quick.number == "2"
    broker.sleep(5)
    assert [message.body[1:] for message in broker.heard() if message.command == "TASKREPLY"] == [(b"1", b"5", b"task")]


def test_a_job_answers_a_task(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"JOB", b"loud")
    assert reply.body[2:] == (b"LOUD",)


def test_an_answer_without_frames_is_an_answer(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"ECHO")
    assert (reply.command, reply.body[2:], reply.code) == ("TASKREPLY", (), None)


def test_a_second_answer_goes_to_nobody(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"TWICE", b"x")
    assert reply.body[2:] == (b"x",)
    assert [reason for _, reason in link.shop.given_back] == ["EHOSTUNREACH"]


@pytest.mark.parametrize(("word", "code"), [(b"RAISE", 500), (b"BARE", 500), (b"MANY", 413), (b"HUGE", 413)])
def test_what_the_service_does_wrong_is_an_error_of_the_task(broker, link, word, code):
    (reply,) = broker.task("c", "shop", "1", word, b"x")
    assert (reply.command, reply.code, reply.number) == ("TASKREPLY", code, "1")
    (fine,) = broker.task("c", "shop", "2", b"ECHO", b"x")
    assert fine.body[2:] == (b"x",)


def test_what_is_no_send_at_all_is_counted_and_harms_no_task(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"ODD", b"x")
    assert (reply.body[2:], link.seat.counts.errors) == ((b"x",), 1)


def test_a_task_larger_than_the_service_takes_is_refused(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"ECHO", bytes(10_001))
    assert (reply.code, link.shop.asked) == (413, [])


def test_a_task_that_cannot_be_read_is_answered_if_its_number_can(broker, link):
    link.commands()
    for frames in ((b"S0W01", b"TASK", b"{", b"shop", b"9"), (b"S0W01", b"TASK", b"", b"shop"), (b"",), ()):
        link.driver.receive(DOOR, frames)
    assert [frames[1:2] + frames[3:] for frames in link.said] == [(b"TASKREPLY", b"shop", b"9")]
    assert link.shop.asked == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_task_ends_in_time_and_a_late_answer_goes_to_nobody(broker, link):
    assert broker.task("c", "shop", "1", b"LATER", b"20", b"x", timeout=1000) == []
    broker.sleep(1.2)
    (error,) = [message for message in broker.heard() if message.to == "c"]
    assert (error.command, error.code) == ("ERROR", 504)
    assert link.seat._open == {}
    assert [len(worker.in_hand) for worker in broker.broker.dispatcher.workers.values()] == [0]  # there is room again
    broker.sleep(20)
    assert [message for message in broker.heard() if message.to == "c"] == []
    assert [reason for _, reason in link.shop.given_back] == ["EHOSTUNREACH"]


@pytest.mark.parametrize(("options", "seconds"), [({}, 30.0), ({"timeout": 1}, 0.0), ({"timeout": 86_400_000}, 3600.0)])
def test_a_task_is_forgotten_when_the_broker_has_given_up_on_it(broker, link, options, seconds):
    broker.task("c", "shop", "1", b"SILENT", **options)
    broker.sleep(max(seconds - 0.1, 0))
    assert len(link.seat._open) == 1
    broker.sleep(0.3)
    assert link.seat._open == {}


def test_a_service_has_only_so_many_tasks_in_hand(broker, link):
    for number in range(WINDOW + 5):
        broker.task("c", "shop", str(number), b"SILENT", timeout=5000)
    assert (len(link.seat._open), len(link.shop.asked)) == (WINDOW, WINDOW)
    broker.sleep(5.2)
    assert broker.task("c", "shop", "again", b"ECHO", b"x")[-1].body[2:] == (b"x",)


def test_it_shows_that_it_lives_for_as_long_as_the_broker_does(broker, link):
    broker.sleep(3600)
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[-1].body[2:] == (b"x",)
    assert set(link.commands()) == {b"CHECKCONFIG", b"READY", b"HEARTBEAT", b"TASKREPLY"}


# --- coming and going -------------------------------------------------------------------------------------------------


def test_the_service_stands_in_the_registry_once(broker, link):
    assert [(entry.kind, entry.provider, entry.tasks) for entry in broker.registry.providers()] == [
        ("hosted", "b1", True)
    ]
    broker.task("c", "shop", "1", b"ECHO", b"x")
    (row,) = broker.ask("list_services").result
    assert (row["service"], row["kind"], row["tasks"], row["workers"], row["idle"]) == ("shop", "hosted", True, 1, 1)
    (client, *_) = broker.ask("list_clients").result
    assert (client["identity"], client["services"]) == ("b1.shop", ["shop"])


def test_workers_of_the_same_name_take_their_share_and_have_a_row(broker, link):
    broker.join("w", "shop")
    kinds = [(entry.kind, entry.provider) for entry in broker.registry.providers()]
    assert kinds == [("hosted", "b1"), ("worker", "w")]
    rows = broker.ask("list_services").result
    assert [(row["kind"], row["workers"]) for row in rows] == [("worker", 2), ("hosted", 1)]
    answers = [broker.task("c", "shop", str(number), b"ECHO", b"x")[0].command for number in range(2)]
    assert sorted(answers) == ["TASK", "TASKREPLY"]


def test_a_worker_that_takes_a_doors_name_hides_nothing_of_what_it_offers(broker, link):
    broker.say("backend", "other", "CHECKCONFIG", identity="b1.else")
    broker.heard()
    broker.ready("other", "else", "shop")
    found = [(entry.service, entry.kind, entry.provider) for entry in broker.registry.providers()]
    assert found == [("else", "worker", "b1.else"), ("shop", "hosted", "b1"), ("shop", "worker", "b1.else")]


def test_it_negotiates_again_when_told_to(broker, link):
    link.commands()
    link.driver.receive(DOOR, (b"S0W01", b"FORCENEGOTIATE", b""))
    broker.sleep(0)
    assert link.commands() == [b"CHECKCONFIG", b"READY"]
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[-1].body[2:] == (b"x",)


def test_a_broker_that_never_agrees_is_asked_once_in_a_while(broker, link):
    link.commands()
    for _ in range(50):
        link.driver.receive(DOOR, (b"S0W01", b"FORCENEGOTIATE", b""))
    assert link.commands() == [b"CHECKCONFIG"]


def test_an_open_task_outlives_negotiations(broker, link):
    broker.task("c", "shop", "1", b"LATER", b"3", b"x")
    broker.store.following = broker.broker.running.network
    broker.ask("reload_config")  # a new version: heartbeats of the old one are answered with FORCENEGOTIATE
    broker.sleep(4)
    assert [message.body[2:] for message in broker.heard() if message.command == "TASKREPLY"] == [(b"3", b"x")]
    assert link.commands().count(b"CHECKCONFIG") == 2


def test_it_comes_back_after_it_was_kicked(broker, link):
    assert broker.ask("kick", {"identity": "b1.shop"}).result == {"kicked": 1}
    assert not link.takes_tasks
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].code == 503
    broker.sleep(RETRY_AFTER + 0.1)
    assert link.takes_tasks
    broker.heard()
    assert broker.task("c", "shop", "2", b"ECHO", b"x")[0].body[2:] == (b"x",)


def test_a_broker_that_joins_or_is_disabled_keeps_its_rules(talk):
    broker = talk(state=BrokerState.JOINING)
    link = Link(broker)
    assert not link.takes_tasks
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].code == 503
    broker.ask("reload_config")
    broker.store.following = broker.broker.running.network
    broker.ask("reload_config")
    broker.sleep(RETRY_AFTER + 0.1)
    broker.heard()
    assert broker.task("c", "shop", "2", b"ECHO", b"x")[0].body[2:] == (b"x",)
    broker.ask("disable")
    broker.sleep(20)
    broker.heard()
    assert broker.task("c", "shop", "3", b"ECHO", b"x") == []
    broker.sleep(3600)
    broker.ask("enable")
    broker.sleep(RETRY_AFTER + 0.1)
    broker.heard()
    assert broker.task("c", "shop", "4", b"ECHO", b"x")[0].body[2:] == (b"x",)


def test_a_broker_that_does_not_manage_the_service_gives_it_no_tasks(talk):
    broker = talk(services=("other",))
    link = Link(broker)
    assert not link.takes_tasks
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].code == 404


def test_a_quarantined_service_ends_its_tasks_and_leaves(talk):
    broker = talk()
    link = Link(broker, SeatLimits(errors=2))
    broker.task("c", "shop", "1", b"SILENT")
    assert broker.task("c", "shop", "2", b"RAISE")[0].code == 500
    ends = {message.number: message.code for message in broker.task("c", "shop", "3", b"RAISE")}
    assert ends == {"1": 503, "3": 503}
    assert (link.seat.quarantined, link.takes_tasks, broker.state_of("b1.shop")) == (True, False, None)
    assert broker.task("c", "shop", "4", b"ECHO", b"x")[0].code == 503
    assert link.seat.next_deadline() is None


# --- what cannot be sent ----------------------------------------------------------------------------------------------


def test_a_reply_that_cannot_be_sent_is_an_error_a_moment_later(broker, link):
    link.refuses = "EAGAIN"
    assert broker.task("c", "shop", "1", b"ECHO", b"x") == []
    link.refuses = ""
    broker.sleep(0.1)
    (error,) = broker.heard()
    assert (error.command, error.code, link.seat.counts.undelivered) == ("TASKREPLY", 503, {(DOOR, "EAGAIN"): 1})
    assert link.shop.given_back == []


# --- which services have a door ---------------------------------------------------------------------------------------


def test_only_what_takes_tasks_has_a_door():
    shop = Shop()
    assert task_socket(shop) == "requests"
    assert type(make_seat(shop, None)) is Seat
    assert set(make_seat(shop, PLAN).endpoints) == {"requests", DOOR}
    shop.endpoints = {"requests": Endpoint(kind="ROUTER")}
    assert type(make_seat(shop, PLAN)) is Seat


def test_one_router_takes_tasks():
    with pytest.raises(ValueError, match="only a ROUTER"):
        Endpoint(kind="REP", tasks=True)
    shop = Shop()
    for name in ("second", DOOR):
        shop.endpoints = {"requests": Endpoint(kind="ROUTER", tasks=True), name: Endpoint(kind="ROUTER", tasks=True)}
        with pytest.raises(ValueError, match="one socket takes tasks"):
            make_seat(shop, PLAN)


# --- anything at all --------------------------------------------------------------------------------------------------

WORDS = (
    b"", b"S0W01", b"S0C01", b"TASK", b"READYOK", b"CONFIG", b"CONFIGACK", b"HEARTBEAT", b"FORCENEGOTIATE", b"ERROR",
    b"DISCONNECTERROR", b"CHANGEBROKER", b"{", b'{"hbeatinterval":-1}', b'{"refused":3}', b'{"timeout":"x"}', b"shop",
    b'{"config_version":[]}', b"{}", b"RAISE", b"SILENT", b"\xff",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(WORDS) | st.binary(max_size=9), max_size=8).map(tuple), max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_through_the_door_is_survived(messages):
    seat = make_seat(Shop(), PLAN, limits=SeatLimits(errors=1000))
    assert isinstance(seat, SeatWithDoor)
    seat.on_deadline(0.0)
    for moment, frames in enumerate(messages):
        seat.receive(DOOR, [frames], float(moment))
        seat.on_deadline(float(moment))
        for socket, sent in seat.take_sends():
            assert socket in (DOOR, "requests")
            assert all(isinstance(frame, bytes) for frame in sent)
        due = seat.next_deadline()
        assert due is not None
        assert due > moment
    assert len(seat._open) <= len(messages)


@pytest.mark.parametrize("seed", range(5))
def test_every_task_ends_exactly_once(talk, seed):
    random, broker = Random(seed), talk()
    link = Link(broker, SeatLimits(errors=10_000))
    words = (b"ECHO", b"LATER", b"JOB", b"RAISE", b"SILENT", b"TWICE", b"BARE", b"MANY", b"ODD")
    numbers = [str(number) for number in range(300)]
    heard = []
    for number in numbers:
        options = {"timeout": random.choice((0, 500, 5000))} if random.random() < 0.7 else {}
        body = (random.choice(words), b"%d" % random.randint(0, 9), b"x")
        heard += broker.task(f"c{random.randint(0, 3)}", "shop", number, *body, **options)
        if random.random() < 0.02:
            link.driver.receive(DOOR, (b"S0W01", b"FORCENEGOTIATE", b""))
        link.refuses = random.choice(("", "", "", "EAGAIN"))
        broker.sleep(random.choice((0, 0, 0.1, 1.0)))
    link.refuses = ""
    broker.sleep(60)
    heard += broker.heard()
    ends = [message.number for message in heard if message.command in ("TASKREPLY", "ERROR")]
    assert sorted(ends, key=int) == numbers
    assert link.seat._open == {}
    assert {len(worker.in_hand) for worker in broker.broker.dispatcher.workers.values()} == {0}
