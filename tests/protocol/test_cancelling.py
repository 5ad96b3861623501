"""CANCEL: clients that do not want a task any more, and what is told to the worker that has it."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_core.network.service import LAST_WORDS
from scale0_core.protocol.states import BrokerState
from scale0_core.protocol.worker import ProtocolWorker, WorkerCancel, WorkerTask

GRAIN = 0.05


def cancel(script: Any, who: str, service: str = "echo", number: str = "1") -> list[Any]:
    script.say("frontend", who, "CANCEL", service, number)
    return list(script.heard())


def counts(script: Any) -> tuple[int, int]:
    counted = script.broker.dispatcher.counts
    return counted.cancelled, counted.unknown_cancels


# the way of a CANCEL


def test_the_worker_is_told_and_its_answer_makes_room_and_goes_nowhere(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    task = script.given("c", "echo", "1")
    assert script.task("d", "echo", "1") == []  # no room
    (told,) = cancel(script, "c")
    assert (told.socket, told.to, told.header, told.command) == ("backend", "w", "S0W01", "CANCEL")
    assert told.body == (b"echo", task.body[1])
    (following,) = script.reply("w", task, code=410, message="cancelled")
    assert (following.command, following.to) == ("TASK", "w")
    assert counts(script) == (1, 0)
    assert script.broker.dispatcher.counts.unknown_replies == 0
    script.reply("w", following)
    assert (script.broker.dispatcher.tasks, script.state_of("w")) == ({}, "ready")


def test_a_cancel_is_not_answered_not_even_when_the_time_is_up(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    script.given("c", "echo", "1", timeout=1000)
    assert [message.to for message in cancel(script, "c")] == ["w"]
    script.sleep(5)
    assert [message.to for message in script.heard() if message.command != "HEARTBEAT"] == []


def test_a_task_that_waits_is_dropped_from_the_queue(talk):
    script = talk(queue_limit=1)
    script.join("w", "echo", window=1, cancel=True)
    first = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    assert cancel(script, "c", number="2") == []
    assert script.task("d", "echo", "3") == []  # there is room in the queue again
    script.reply("w", first)
    assert script.broker.dispatcher.tasks.keys() == script.broker.dispatcher.workers["backend", b"w"].in_hand.keys()
    assert [task.client_id for task in script.broker.dispatcher.tasks.values()] == [b"3"]


def test_of_two_tasks_with_one_id_each_cancel_ends_one(talk):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    first, second = script.given("c", "echo", "1"), script.given("c", "echo", "1")
    assert [told.body[1] for told in cancel(script, "c")] == [first.body[1]]
    script.reply("w", second)
    assert script.broker.dispatcher.tasks == {}
    assert script.broker.dispatcher.frontends["frontend", b"c"].open == 0


def test_a_client_with_a_req_socket_may_cancel(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    (task,) = script.task("c", "echo", "1", req=True)
    script.say("frontend", "c", "CANCEL", "echo", "1", req=True)
    told = script.one()
    assert (told.to, told.command, told.body[1]) == ("w", "CANCEL", task.body[1])


# races


def test_a_cancel_that_crosses_the_reply_is_counted_and_does_nothing(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    script.reply("w", script.given("c", "echo", "1"))
    assert (cancel(script, "c"), counts(script)) == ([], (0, 1))


def test_a_reply_that_crosses_the_cancel_is_dropped_counted_and_makes_room(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    task = script.given("c", "echo", "1")
    cancel(script, "c")
    assert script.reply("w", task, b"part", more=True) == []
    assert script.state_of("w") == "busy"
    assert script.reply("w", task, b"whole") == []
    assert (script.state_of("w"), script.broker.dispatcher.counts.unknown_replies) == ("ready", 2)
    # its own answer to the CANCEL comes too
    assert script.reply("w", task, code=410) == []
    assert script.state_of("w") == "ready"


@pytest.mark.parametrize(("who", "service", "number"), [("d", "echo", "1"), ("c", "echo", "2"), ("c", "other", "1")])
def test_a_cancel_of_what_is_not_ones_own_is_ignored_and_counted(talk, who: str, service: str, number: str):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    task = script.given("c", "echo", "1")
    assert cancel(script, who, service, number) == []
    assert counts(script) == (0, 1)
    assert script.reply("w", task)[0].to == "c"


def test_a_worker_cannot_cancel_the_task_of_another_by_its_number(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    script.join("v", "other", window=1)
    task = script.given("c", "echo", "1")
    script.say("backend", "v", "CANCEL", b"echo", task.body[1])
    script.say("backend", "w", "CANCEL", b"echo", task.body[1])
    assert (script.heard(), counts(script)) == ([], (0, 2))
    assert script.reply("w", task)[0].to == "c"


@pytest.mark.parametrize("req", [False, True])
def test_a_worker_that_does_not_know_cancel_is_not_told_and_makes_room_by_its_reply(talk, req: bool):
    script = talk()
    script.join("w", "echo", req=req, **({"cancel": True} if req else {"window": 1}))
    task = script.given("c", "echo", "1")
    assert (cancel(script, "c"), counts(script)) == ([], (1, 0))
    assert script.state_of("w") == "busy"
    assert script.reply("w", task, req=req) == []
    if not req:
        assert script.state_of("w") == "ready"


def test_a_cancel_that_cannot_be_delivered_tells_that_the_worker_is_gone(talk):
    script = talk()
    script.join("w", "echo", window=2, cancel=True)
    script.given("c", "echo", "1")
    script.given("d", "echo", "2")
    script.refuse("backend", "w")
    assert cancel(script, "c") == []
    script.sleep(LAST_WORDS)
    lost = script.one()
    assert (lost.to, lost.code, script.state_of("w")) == ("d", 504, None)


@pytest.mark.parametrize("body", [(), ("echo",), ("echo", "1", "more")])
def test_a_cancel_has_a_service_and_an_id(talk, body: tuple[str, ...]):
    script = talk()
    script.say("frontend", "c", "CANCEL", *body)
    assert (script.one().code, script.broker.counts["malformed 400"]) == (400, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture is a class
@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"echo", b"1", b"2"]), max_size=4), st.binary(max_size=9))
def test_whatever_is_in_a_cancel_no_task_but_the_one_it_names_is_harmed(talk, body: list[bytes], options: bytes):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    script.given("c", "echo", "1")
    script.given("d", "echo", "1")
    script.feed("frontend", b"c", "S0C01", "CANCEL", options, *body)
    left = {(task.client.key[1], task.client_id) for task in script.broker.dispatcher.tasks.values()}
    named = body == [b"echo", b"1"] and script.broker.counts["malformed 400"] == 0
    assert left == ({(b"d", b"1")} if named else {(b"c", b"1"), (b"d", b"1")})


def test_a_disabled_broker_passes_on_cancels_as_long_as_replies(talk):
    script = talk()
    script.join("w", "echo", window=2, cancel=True)
    script.given("c", "echo", "1", timeout=60_000)
    script.given("c", "echo", "2", timeout=60_000)
    script.ask("disable")
    script.heard()
    assert [told.command for told in cancel(script, "c")] == ["CANCEL"]
    script.sleep(11)
    script.heard()
    assert cancel(script, "c", number="2") == []
    assert script.broker.state is BrokerState.DISABLED


# what the broker cancels by itself


def test_a_worker_is_told_that_the_time_of_its_task_is_up(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    task = script.given("c", "echo", "1", timeout=1000)
    script.sleep(1.0 + GRAIN)
    error, told = script.heard()
    assert (error.to, error.code) == ("c", 504)
    assert (told.to, told.command, told.body) == ("w", "CANCEL", (b"echo", task.body[1]))
    script.reply("w", task, code=410)
    assert script.state_of("w") == "ready"


def test_all_that_a_client_had_open_is_cancelled_when_it_takes_leave(talk):
    script = talk()
    script.join("w", "echo", window=2, cancel=True)
    tasks = [script.given("c", "echo", number) for number in "12"]
    assert script.task("c", "echo", "3") == []
    script.say("frontend", "c", "DISCONNECT")
    assert [(told.command, told.body[1]) for told in script.heard()] == [("CANCEL", task.body[1]) for task in tasks]
    assert (script.broker.dispatcher.tasks, script.broker.dispatcher.counts.abandoned) == ({}, 3)


def test_all_that_a_client_had_open_is_cancelled_when_its_connection_is_lost(talk):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    task = script.given("c", "echo", "1")
    other = script.given("d", "echo", "1")
    script.sleep(1)
    script.refuse("frontend", "c")
    script.lose_peer("frontend")
    script.sleep(0.3)
    heard = script.heard()
    assert [(told.to, told.body[1]) for told in heard if told.command == "CANCEL"] == [("w", task.body[1])]
    assert {(told.to, told.command) for told in heard} == {("w", "CANCEL"), ("d", "PONG")}  # nobody else is harmed
    assert script.reply("w", other)[0].to == "d"


def test_a_lost_client_does_not_make_others_hear_what_they_cannot_take(talk):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    script.task("req", "echo", "1", req=True)  # a REQ socket hangs up when it gets what it did not ask for
    script.given("busy", "echo", "1")
    script.say("frontend", "idle", "PING")
    script.sleep(1)
    script.heard()
    script.lose_peer("frontend")
    for number in range(100):  # and who is heard of all the time is not the one
        script.task("busy", "echo", f"more {number}")
        script.sleep(0.05)
    assert [(told.to, told.command) for told in script.heard() if told.command == "PONG"] == []


@pytest.mark.parametrize("later", [0.01, 0.1, 1.5])
def test_what_a_killed_client_had_sent_is_cancelled_also_if_it_is_read_after_the_loss(talk, later: float):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    script.say("frontend", "c", "PING")
    script.lose_peer("frontend")
    script.sleep(later)
    script.heard()
    task = script.given("c", "echo", "1")
    script.refuse("frontend", "c")
    script.sleep(2.0)
    assert [(told.to, told.body[1]) for told in script.heard() if told.command == "CANCEL"] == [("w", task.body[1])]
    assert script.broker.dispatcher.tasks == {}


def test_losses_in_a_row_are_looked_into_together(talk):
    script = talk()
    script.join("w", "echo", window=5, cancel=True)
    script.given("c", "echo", "1")
    script.sleep(1)
    script.heard()
    for _ in range(1000):
        script.lose_peer("frontend")
        script.sleep(0.01)
        assert len(script.broker._probes) <= 6
    assert len([told for told in script.heard() if told.command == "PONG"]) <= 150
    script.sleep(3)
    script.heard()
    script.sleep(10)
    assert [told.to for told in script.heard() if told.command == "PONG"] == []


def test_a_stream_whose_client_does_not_read_is_cancelled(talk):
    script = talk()
    script.join("w", "echo", window=1, cancel=True)
    task = script.given("c", "echo", "1")
    script.refuse("frontend", "c", "EAGAIN")
    (told,) = script.reply("w", task, b"part", more=True)
    assert (told.to, told.command) == ("w", "CANCEL")


def test_when_one_of_two_that_share_a_task_has_answered_the_other_is_told(talk):
    script = talk()
    script.join("frozen", "echo", window=1, cancel=True)
    first = script.given("c", "echo", "1", retry=True, timeout=60_000)
    script.join("quick", "echo", window=1, cancel=True)
    (again,) = [message for message in script.beating(8, "quick") if message.command == "TASK"]
    reply, told = script.reply("quick", again)
    assert (reply.to, told.to, told.command, told.body[1]) == ("c", "frozen", "CANCEL", first.body[1])


def test_both_that_share_a_task_are_told_that_it_is_cancelled(talk):
    script = talk()
    script.join("frozen", "echo", window=1, cancel=True)
    script.given("c", "echo", "1", retry=True, timeout=60_000)
    script.join("quick", "echo", window=1, cancel=True)
    script.beating(8, "quick")
    assert sorted(told.to for told in cancel(script, "c")) == ["frozen", "quick"]


# the time that a task has


@pytest.mark.parametrize(
    ("options", "timeout"),
    [
        ({}, None),
        ({"timeout": 700}, 700),
        ({"retry": True}, None),
        ({"timeout": 3_600_000}, 3_600_000),
        ({"timeout": 3_600_001}, 3_600_000),
    ],
)
def test_a_worker_is_told_how_long_it_has(talk, options: dict[str, Any], timeout: int | None):
    script = talk(task_timeout=29_000, max_task_timeout=3_600_000)
    (ready,) = script.join("w", "echo")
    assert ready.options["task_timeout"] == 29_000  # what a task has that names none
    told = script.given("c", "echo", "1", **options).options
    assert told == {**options, **({"timeout": timeout} if timeout else {})}


def test_a_default_that_is_new_goes_by_the_new_configuration(talk):
    script = talk(task_timeout=29_000)
    script.join("w", "echo", window=1)
    script.store.following = attrs.evolve(script.broker.running.network, task_timeout=1000)
    script.ask("reload_config")
    script.given("c", "echo", "1")
    script.sleep(1 + 2 * GRAIN)
    assert script.one().code == 504


@pytest.mark.parametrize("more", [{}, {"trace": "x" * 100}])
def test_the_time_that_a_task_has_waited_is_gone(talk, more: dict[str, str]):
    script = talk()
    script.join("w", "echo", window=1)
    first = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2", timeout=5000, **more) == []
    script.sleep(1.23)
    _, task = script.reply("w", first)
    assert task.options == {"timeout": 3800, **more}  # rounded up


def test_the_time_that_a_task_without_a_timeout_has_waited_is_gone(talk):
    script = talk(task_timeout=5000)
    script.join("w", "echo", window=1)
    first = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    script.sleep(0.06)
    _, task = script.reply("w", first)
    assert task.options == {"timeout": 4950}


# services of the core and of plugins that are workers


def test_a_protocol_worker_says_that_it_takes_cancels_only_if_its_service_does():
    def ready(worker: ProtocolWorker) -> dict[str, Any]:
        worker.offer(["copy"], 0.0)
        ((_, frames),) = worker.receive((b"S0W01", b"CONFIGACK", b'{"config_version":1}'), 0.0)[0]
        return dict(json.loads(frames[2]))

    assert ready(ProtocolWorker("offers", "w", window=1, cancels=True))["cancel"] is True
    assert "cancel" not in ready(ProtocolWorker("offers", "w", window=1))


def test_a_protocol_worker_hands_on_what_is_cancelled_and_counts_what_it_cannot_read():
    worker = ProtocolWorker("offers", "w", window=1, cancels=True)
    task = worker.receive((b"S0W01", b"TASK", b"", b"copy", b"7", b"x"), 0.0)[1]
    assert isinstance(task, WorkerTask)
    assert worker.receive((b"S0W01", b"CANCEL", b"", b"copy", b"7"), 0.0) == ([], WorkerCancel(b"7"))
    assert worker.receive((b"S0W01", b"CANCEL", b"", b"copy"), 0.0) == ([], None)
    assert worker.malformed == 1
