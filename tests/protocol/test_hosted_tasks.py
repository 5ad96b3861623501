"""Services of plugins as workers of the broker, on virtual time.

The broker's own service and the host of the service are real; messages between them take no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import attrs
import pytest

from scale0_core.container.container import Container
from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.container.registry import Provider
from scale0_core.network.hosting import WINDOW
from scale0_core.protocol.states import BrokerState
from scale0_core.protocol.worker import LARGEST_FRAME, MOST_FRAMES
from scale0_core.service import Effect, Endpoint, Frames, Job, JobResult, Send
from scale0_core.testing.virtual import Driver, InProcess

SECRET = b"secret"
"""That of the container of ``talk``."""


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
            b"FRAMES": [(socket, (*envelope, 17))],
            b"BUFFERS": [(socket, (*envelope, bytearray(b"a"), memoryview(b"xbx")[1:2]))],
            b"LIST": [(socket, [*envelope, *rest])],
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


class HostedShop:
    """A service that takes tasks, in the process of a broker to talk to."""

    def __init__(self, broker: Any, limits: HostLimits | None = None) -> None:
        self.shop, self.broker = Shop(), broker
        self.to_peers: list[Frames] = []
        broker.registry.put(Provider(service="shop", provider="b1", kind="hosted", state="responsive"))
        both = InProcess()
        both.container = broker.services
        self.host = ServiceHost(self.shop, limits=limits)
        self.driver = Driver(self.host, broker._agenda, self._from_host, settled=both.deliver)
        broker._driver._settled = both.deliver
        for driver in (broker._driver, self.driver):
            both.add(driver)
        both.start(broker.now)
        broker.heard()

    def _from_host(self, send: Send) -> str:
        if type(send) is not tuple or type(send[1]) is not tuple:
            return "malformed"
        _, frames = send
        known = frames[0] == b"peer"
        self.to_peers += [frames] if known else []
        return "" if known else "EHOSTUNREACH"

    @property
    def open_tasks(self) -> int:
        return len(self.host.tasks.open)

    @property
    def takes_tasks(self) -> bool:
        (entry,) = [entry for entry in self.broker.registry.providers() if entry.service == "shop"]
        return bool(entry.tasks)


@pytest.fixture
def broker(talk):
    return talk()


@pytest.fixture
def link(broker):
    return HostedShop(broker)


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_a_request_and_its_answer_the_reply(broker, link):
    (reply,) = broker.task("c", "shop", "7", b"ECHO", b"hello", b"you")
    assert (reply.command, reply.to, reply.number, reply.body[2:]) == ("TASKREPLY", "c", "7", (b"hello", b"you"))
    ticket, empty, *body = link.shop.asked[0]
    assert (ticket[:1], empty, body) == (b"\0", b"", [b"ECHO", b"hello", b"you"])
    assert SECRET in ticket
    assert (link.host.counts.received, link.host.counts.sent) == (1, 1)


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


@pytest.mark.parametrize(
    ("word", "code"), [(b"RAISE", 500), (b"BARE", 500), (b"FRAMES", 500), (b"MANY", 413), (b"HUGE", 413)]
)
def test_what_the_service_does_wrong_is_an_error_of_the_task(broker, link, word, code):
    (reply,) = broker.task("c", "shop", "1", word, b"x")
    assert (reply.command, reply.code, reply.number) == ("TASKREPLY", code, "1")
    (fine,) = broker.task("c", "shop", "2", b"ECHO", b"x")
    assert fine.body[2:] == (b"x",)


def test_what_is_no_send_at_all_is_counted_and_harms_no_task(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"ODD", b"x")
    assert (reply.body[2:], link.host.counts.errors) == ((b"x",), 1)


def test_whatever_can_be_sent_is_an_answer(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"BUFFERS")
    assert reply.body[2:] == (b"a", b"b")


def test_what_is_malformed_is_the_services_fault_and_the_task_ends_in_time(broker, link):
    assert broker.task("c", "shop", "1", b"LIST", timeout=1000) == []
    broker.sleep(1.2)
    assert (broker.heard()[0].code, link.host.counts.errors) == (504, 1)


def test_a_task_larger_than_the_service_takes_is_refused(broker, link):
    (reply,) = broker.task("c", "shop", "1", b"ECHO", bytes(10_001))
    assert (reply.code, link.shop.asked) == (413, [])


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_task_ends_in_time_and_a_late_answer_goes_to_nobody(broker, link):
    assert broker.task("c", "shop", "1", b"LATER", b"20", b"x", timeout=1000) == []
    broker.sleep(1.2)
    (error,) = [message for message in broker.heard() if message.to == "c"]
    assert (error.command, error.code) == ("ERROR", 504)
    assert link.open_tasks == 0
    assert [len(worker.in_hand) for worker in broker.broker.dispatcher.workers.values()] == [0]  # there is room again
    broker.sleep(20)
    assert [message for message in broker.heard() if message.to == "c"] == []
    assert [reason for _, reason in link.shop.given_back] == ["EHOSTUNREACH"]


@pytest.mark.parametrize(("options", "seconds"), [({}, 30.0), ({"timeout": 1}, 0.0), ({"timeout": 86_400_000}, 3600.0)])
def test_a_task_is_forgotten_when_the_broker_has_given_up_on_it(broker, link, options, seconds):
    broker.task("c", "shop", "1", b"SILENT", **options)
    broker.sleep(max(seconds - 0.1, 0))
    assert link.open_tasks == 1
    broker.sleep(0.3)
    assert link.open_tasks == 0


def test_a_service_has_only_so_many_tasks_in_hand(broker, link):
    for number in range(WINDOW + 5):
        broker.task("c", "shop", str(number), b"SILENT", timeout=5000)
    assert (link.open_tasks, len(link.shop.asked)) == (WINDOW, WINDOW)
    broker.sleep(5.2)
    assert broker.task("c", "shop", "again", b"ECHO", b"x")[-1].body[2:] == (b"x",)


# --- coming and going -------------------------------------------------------------------------------------------------


def test_the_service_stands_in_the_registry_once(broker, link):
    assert [(entry.kind, entry.provider, entry.tasks) for entry in broker.registry.providers()] == [
        ("hosted", "b1", True)
    ]
    broker.task("c", "shop", "1", b"ECHO", b"x")
    (row,) = broker.ask("list_services").result
    assert (row["service"], row["kind"], row["tasks"], row["workers"], row["idle"]) == ("shop", "hosted", True, 1, 1)
    assert [row["role"] for row in broker.ask("list_clients").result] == ["frontend"]
    assert broker.ask("state").result["workers"] == 0


def test_workers_of_the_same_name_take_their_share_and_have_a_row(broker, link):
    broker.join("w", "shop")
    kinds = [(entry.kind, entry.provider) for entry in broker.registry.providers()]
    assert kinds == [("hosted", "b1"), ("worker", "w")]
    rows = broker.ask("list_services").result
    assert [(row["kind"], row["workers"]) for row in rows] == [("worker", 2), ("hosted", 1)]
    answers = [broker.task("c", "shop", str(number), b"ECHO", b"x")[0].command for number in range(2)]
    assert sorted(answers) == ["TASK", "TASKREPLY"]


def test_a_broker_that_joins_or_is_disabled_keeps_its_rules(talk):
    broker = talk(state=BrokerState.JOINING)
    link = HostedShop(broker)
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].code == 503
    broker.store.following = broker.broker.running.network
    broker.ask("reload_config")
    assert broker.task("c", "shop", "2", b"ECHO", b"x")[0].body[2:] == (b"x",)
    broker.task("c", "shop", "3", b"LATER", b"3", b"slow")
    broker.ask("disable")
    broker.sleep(5)
    assert [message.number for message in broker.heard()] == ["3"]  # what was open ends
    assert broker.task("c", "shop", "4", b"ECHO", b"x") == []
    broker.sleep(3600)
    broker.ask("enable")
    assert broker.task("c", "shop", "5", b"ECHO", b"x")[0].body[2:] == (b"x",)
    assert link.takes_tasks


def test_what_is_for_workers_with_a_connection_is_not_for_it(broker, link):
    broker.task("c", "shop", "1", b"LATER", b"5", b"x")
    broker.lose_peer("backend")
    broker.sleep(1)
    assert broker.request("kick", {"identity": "b1.shop"})[0].code == 404
    broker.join("w", "other")
    assert [message.to for message in (broker.request("disable"), broker.others)[1]] == ["w", "c"]


def test_an_identity_like_its_own_is_free_for_a_worker(broker, link):
    broker.say("backend", "w", "CHECKCONFIG", identity="b1.shop")
    broker.heard()
    broker.ready("w", "else", "shop")
    found = [(entry.service, entry.kind, entry.provider) for entry in broker.registry.providers()]
    assert found == [("else", "worker", "b1.shop"), ("shop", "hosted", "b1"), ("shop", "worker", "b1.shop")]


def test_tasks_that_may_be_repeated_go_to_others_when_it_is_put_out(talk):
    broker = talk()
    link = HostedShop(broker, HostLimits(errors=1))
    broker.join("w", "shop", window=9)
    taken = [broker.task("c", "shop", str(number), b"RAISE", retry=True) for number in range(2)]
    assert sorted(messages[0].command for messages in taken) == ["TASK", "TASKREPLY"]
    assert link.host.quarantined
    assert {broker.given("c", "shop", str(number)).to for number in range(5, 9)} == {"w"}


def test_it_takes_tasks_when_a_new_configuration_has_it_managed(talk):
    broker = talk(services=("other",))
    link = HostedShop(broker)
    broker.store.following = attrs.evolve(broker.broker.running.network, services=("shop",))
    broker.ask("reload_config")
    assert link.takes_tasks
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].body[2:] == (b"x",)
    broker.store.following = attrs.evolve(broker.broker.running.network, services=("other",))
    broker.ask("reload_config")
    assert not link.takes_tasks
    assert broker.task("c", "shop", "2", b"ECHO", b"x")[0].code == 503


def test_a_broker_that_does_not_manage_the_service_gives_it_no_tasks(talk):
    broker = talk(services=("other",))
    link = HostedShop(broker)
    assert not link.takes_tasks
    assert broker.task("c", "shop", "1", b"ECHO", b"x")[0].code == 404


def test_a_quarantined_service_ends_its_tasks_and_leaves(talk):
    broker = talk()
    link = HostedShop(broker, HostLimits(errors=2))
    broker.task("c", "shop", "1", b"SILENT")
    assert broker.task("c", "shop", "2", b"RAISE")[0].code == 500
    ends = {message.number: message.code for message in broker.task("c", "shop", "3", b"RAISE")}
    assert ends == {"1": 503, "3": 503}
    assert (link.host.quarantined, link.takes_tasks, broker.state_of("b1.shop")) == (True, False, None)
    assert broker.task("c", "shop", "4", b"ECHO", b"x")[0].code == 503


# --- which services take tasks ----------------------------------------------------------------------------------------


def test_one_router_takes_tasks():
    with pytest.raises(ValueError, match="only a ROUTER"):
        Endpoint(kind="REP", tasks=True)
    shop = Shop()
    shop.endpoints = {name: Endpoint(kind="ROUTER", tasks=True) for name in ("first", "second")}
    with pytest.raises(ValueError, match="only one socket"):
        Container().add(ServiceHost(shop))
    shop.endpoints = {"requests": Endpoint(kind="ROUTER")}
    Container().add(host := ServiceHost(shop))
    assert host.tasks is None


# --- anything at all --------------------------------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_every_task_ends_exactly_once(talk, seed):
    random, broker = Random(seed), talk()
    link = HostedShop(broker, HostLimits(errors=10_000))
    words = (
        b"ECHO",
        b"LATER",
        b"JOB",
        b"RAISE",
        b"SILENT",
        b"TWICE",
        b"BARE",
        b"MANY",
        b"ODD",
        b"FRAMES",
        b"LIST",
        b"",
        b"\xff",
    )
    numbers = [str(number) for number in range(300)]
    heard = []
    for number in numbers:
        options = {"timeout": random.choice((0, 500, 5000))} if random.random() < 0.7 else {}
        body = (random.choice(words), b"%d" % random.randint(0, 9), b"x")
        heard += broker.task(f"c{random.randint(0, 3)}", "shop", number, *body, **options)
        broker.sleep(random.choice((0, 0, 0.1, 1.0)))
    broker.sleep(60)
    heard += broker.heard()
    ends = [message.number for message in heard if message.command in ("TASKREPLY", "ERROR")]
    assert sorted(ends, key=int) == numbers
    assert link.open_tasks == 0
    assert {len(worker.in_hand) for worker in broker.broker.dispatcher.workers.values()} == {0}


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_a_cancelled_task_of_a_hosted_service_makes_room_and_its_answer_goes_nowhere(broker, link):
    for number in range(WINDOW):
        broker.task("c", "shop", str(number), b"LATER", b"5", b"late")
    broker.task("c", "shop", "waits", b"ECHO", b"hello")
    assert (link.open_tasks, len(link.shop.asked)) == (WINDOW, WINDOW)
    broker.say("frontend", "c", "CANCEL", "shop", "0")
    (reply,) = [message for message in broker.heard() if message.command == "TASKREPLY"]
    assert (reply.number, reply.body[2:]) == ("waits", (b"hello",))
    broker.sleep(6)
    numbers = [message.number for message in broker.heard() if message.command == "TASKREPLY"]
    assert sorted(map(int, numbers)) == list(range(1, WINDOW))
    assert (link.open_tasks, broker.broker.dispatcher.tasks) == (0, {})


def test_what_a_lost_client_had_open_at_a_hosted_service_is_let_go(broker, link):
    broker.task("c", "shop", "1", b"SILENT")
    broker.say("frontend", "c", "DISCONNECT")
    assert (link.open_tasks, broker.broker.dispatcher.tasks) == (0, {})
    assert link.takes_tasks


def test_a_task_that_is_cancelled_before_it_is_passed_in_never_is(broker, link):
    frames = (b"c", b"S0C01", b"TASK", b"", b"shop", b"1", b"SILENT")
    broker._driver.host.receive("frontend", [frames, (b"c", b"S0C01", b"CANCEL", b"", b"shop", b"1")], broker.now)
    broker._driver.settle()
    broker.sleep(0)
    assert (link.shop.asked, link.open_tasks) == ([], 0)


def test_the_log_of_a_service_that_raised_has_the_task_and_the_traceback(broker, link, caplog):
    broker.task("c", "shop", "1", b"ECHO", b"fine")
    broker.task("c", "shop", "2", b"RAISE")
    (record,) = [record for record in caplog.records if "service raised" in record.getMessage()]
    fields = record.__dict__["fields"]
    assert (fields["service"], bytes.fromhex(fields["task"])[-1]) == ("shop", link.shop.asked[-1][0][-1])
    assert 'raise RuntimeError("broken")' in fields["trace"]


def test_the_log_of_a_service_that_raised_over_a_request_of_a_peer_names_no_task(broker, link, caplog):
    broker.task("c", "shop", "1", b"ECHO", b"fine")
    link.driver.receive("requests", (b"peer", b"", b"RAISE"))
    (record,) = [record for record in caplog.records if "service raised" in record.getMessage()]
    assert "task" not in record.__dict__["fields"]
