"""What the broker's own service tells while somebody observes: workers, tasks, configurations."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from scale0_core.events import KINDS
from scale0_core.network.dispatch import HOSTED
from scale0_core.network.telling import BEAT_EVERY
from scale0_core.protocol.states import BrokerState
from scale0_core.service import EventSource

GRAIN = 0.05


class Told:
    """Observes a broker."""

    def __init__(self, script: Any) -> None:
        self.script = script
        self.events: list[tuple[Any, ...]] = []
        script.broker.events = self.events

    def all(self, *kinds: str) -> list[tuple[Any, ...]]:
        """Give what was told since the last look: kind and values, without service_us and queue_us of tasks."""
        events, self.events[:] = list(self.script.broker.packing.told(self.events)), []
        for kind, now, *values in events:
            assert KINDS[kind.name] is kind
            assert len(values) == len(kind.fields)
            assert now <= self.script.now
        return [(kind.name, *values) for kind, _, *values in events if not kinds or kind.name in kinds]

    def tables(self) -> list[dict[str, Any]]:
        return [event[0].table(event) for event in self.script.broker.packing.told(self.events)]


@pytest.fixture
def observed(talk):
    def make(**settings: Any) -> tuple[Any, Told]:
        script = talk(group="south", **settings)
        return script, Told(script)

    return make


def test_nothing_is_told_while_nobody_observes(talk):
    script = talk()
    assert isinstance(script.broker, EventSource)
    script.join("w", "echo")
    script.reply("w", script.given("c", "echo"))
    script.beat("w")
    assert script.broker.events is None
    assert script.broker.dispatcher.telling is None


def test_who_observes_may_stop(observed):
    script, told = observed()
    script.broker.events = None
    script.join("w", "echo")
    assert told.all() == []


# workers


def test_a_worker_joins_with_each_service_and_leaves_with_each(observed):
    script, told = observed()
    script.join("w", "echo", "sum", window=5)
    joins = [("join", "echo", "w", "south", 5), ("join", "sum", "w", "south", 5)]
    assert told.all() == joins
    script.ready("w", "echo", "sum", window=5)  # the same again
    assert told.all() == []
    script.sleep(2)
    script.ready("w", "echo", "mul", window=5)
    assert told.all() == [("leave", "sum", "w", "south", "left", 2.0), ("join", "mul", "w", "south", 5)]
    script.sleep(1.5)
    script.say("backend", "w", "DISCONNECT")
    assert told.all() == [
        ("leave", "echo", "w", "south", "left", 3.5),
        ("leave", "mul", "w", "south", "left", 3.5),
    ]


def test_a_worker_that_says_ready_before_each_task_joins_once(observed):
    script, told = observed()
    script.join("w", "echo", req=True)
    assert told.all() == [("join", "echo", "w", "south", 1)]
    task = script.given("c", "echo")
    script.reply("w", task, req=True)
    script.ready("w", "echo", req=True)
    assert told.all("join", "leave") == []


@pytest.mark.parametrize("reason", ["lost", "silent", "refused"])
def test_it_is_told_why_a_worker_is_gone(observed, reason: str):
    script, told = observed(max_silence=60_000)
    script.join("w", "echo")
    told.all()
    if reason == "lost":
        script.refuse("backend", "w")
        script.sleep(8)
    elif reason == "silent":
        script.sleep(70)
    else:
        script.ask("kick", {"identity": "w"})
    ((_, *values, seconds),) = told.all("leave")
    assert values == ["echo", "w", "south", reason]
    assert (seconds > 10, seconds > 0) == (reason == "silent", reason != "refused")


def test_a_worker_that_never_offered_anything_is_not_told_of(observed):
    script, told = observed()
    script.check("w")
    script.say("backend", "w", "DISCONNECT")
    assert told.all() == []


@pytest.mark.parametrize("quick", [True, False])
def test_heartbeats_are_told_for_each_service_and_not_too_often(observed, quick: bool):
    script, told = observed()
    script.join("w", "echo", "sum")
    told.all()
    beats = [("heartbeat", "echo", "w", "south"), ("heartbeat", "sum", "w", "south")]
    for _ in range(3):
        more = {"time": script.wall, "config_version": 1} if quick else {}
        script.beat("w", **more)
        assert told.all() == beats
        script.sleep(BEAT_EVERY / 2)
        script.beat("w", **more)
        assert told.all() == []
        script.sleep(BEAT_EVERY / 2)


def test_bridges_and_services_of_the_broker_itself_are_not_told_of_as_workers(observed):
    script, told = observed()
    script.join("bridge", "echo", window=10_000, metadata={"protocol": "MDP"})
    script.ready("bridge", "echo", "sum", window=10_000, metadata={"protocol": "MDP"})
    script.beat("bridge")
    script.reply("bridge", script.given("c", "echo"), b"four")
    script.say("backend", "bridge", "DISCONNECT")
    assert told.all() == [task("ok", None, 0, 0, 4)]

    dispatcher, hosting, now = script.broker.dispatcher, script.broker.hosting, script.now
    hosting.host("echo", now)
    client = ("frontend", b"c")
    dispatcher.submit(client, (b"c",), b"", (b"echo", b"1", b"work"), now)
    (number,) = dispatcher.tasks
    dispatcher.reply((HOSTED, b"echo"), b"", (b"echo", number, b"four"), now)
    dispatcher.submit(client, (b"c",), b"", (b"echo", b"2", b"work"), now)
    hosting.leave("echo", now)
    assert told.all() == [task("ok", None, 0, 0, 4), task("lost", None, 0, 0)]


def test_a_worker_keeps_its_name_as_long_as_it_offers_something(observed):
    script, told = observed()
    script.join("w", "echo", metadata={"version": "1"})
    script.ready("w", "echo", metadata={"protocol": "MDP"})
    script.say("backend", "w", "DISCONNECT")
    assert [kind for kind, *_ in told.all()] == ["join", "leave"]


# tasks


def task(
    outcome: str, peer: str | None, queue_us: int | None, service_us: int | None, size: int = 0
) -> tuple[Any, ...]:
    return "task", "echo", peer, "south", outcome, queue_us, service_us, size


def test_a_task_is_told_with_its_times_and_the_bytes_of_its_reply(observed):
    script, told = observed()
    script.join("w", "echo", window=1)
    first = script.given("c", "echo", "1")
    script.sleep(0.25)
    script.task("c", "echo", "2")
    script.sleep(0.5)
    _, second = script.reply("w", first, b"four")
    script.sleep(0.125)
    script.reply("w", second, b"four", b"", b"more")
    assert told.all("task") == [task("ok", "w", 0, 750_000, 4), task("ok", "w", 500_000, 125_000, 8)]


def test_the_parts_of_an_answer_are_counted_together(observed):
    script, told = observed()
    script.join("w", "echo", window=2)
    given = script.given("c", "echo")
    for _ in range(3):
        script.reply("w", given, b"part", more=True)
    script.reply("w", given, b"end")
    assert told.all("task") == [task("ok", "w", 0, 0, 15)]
    assert not script.broker.dispatcher.telling._parts


def test_an_error_of_the_worker_is_told(observed):
    script, told = observed()
    script.join("w", "echo")
    script.reply("w", script.given("c", "echo"), code=500, message="it did not work")
    assert told.all("task") == [task("error", "w", 0, 0, 4)]


def test_tasks_that_are_not_taken_are_told(observed):
    script, told = observed(queue_limit=1, client_limit=3)
    script.task("c", "echo")
    assert told.all() == [task("refused", None, None, None)]
    script.join("w", "echo")
    for number in range(4):  # one is worked on, one waits
        script.task("c", "echo", str(number))
    assert told.all("task") == [task("refused", None, None, None)] * 2
    script.say("backend", "w", "DISCONNECT")
    told.all()
    script.task("c", "echo")
    assert told.all() == [task("refused", None, None, None)]


def test_a_broker_without_a_configuration_tells_what_it_refuses(observed):
    script, told = observed(state=BrokerState.JOINING)
    script.task("c", "echo")
    assert told.all() == [task("refused", None, None, None)]


def test_the_names_of_services_nobody_offers_may_be_any_bytes(observed):
    script, told = observed()
    script.feed("frontend", "c", "S0C01", "TASK", "", b"\xff\x00\n", "1", "x")
    ((_, service, *_),) = told.all()
    service.encode()
    assert service.isprintable()


def test_tasks_whose_time_is_over_are_told_with_their_worker_if_they_had_one(observed):
    script, told = observed()
    script.join("w", "echo", window=1)
    script.task("c", "echo", "1", timeout=1000)
    script.task("c", "echo", "2", timeout=1000)
    script.sleep(1 + GRAIN)
    (given, waiting) = told.all("task")
    assert given[:6] == task("timeout", "w", 0, 0)[:6]
    assert given[6] == pytest.approx(1_000_000, abs=60_000)
    assert waiting[:5] == task("timeout", None, 0, 0)[:5]
    assert waiting[5] == pytest.approx(1_000_000, abs=60_000)
    assert waiting[6] is None


def test_tasks_of_a_worker_that_is_gone_are_told_when_nobody_else_may_have_them(observed):
    script, told = observed()
    script.join("w", "echo", window=3)
    script.task("c", "echo", "1")
    script.task("c", "echo", "2", retry=True)
    streamed = script.given("c", "echo", "3", retry=True)
    script.reply("w", streamed, b"part", more=True)
    script.join("v", "echo")
    script.sleep(0.5)
    script.say("backend", "w", "DISCONNECT")
    assert told.all("task") == [task("lost", "w", 0, 500_000), task("lost", "w", 0, 500_000, 4)]
    (again,) = [message for message in script.heard() if message.command == "TASK"]
    script.sleep(0.5)
    script.reply("v", again)
    assert told.all("task") == [task("ok", "v", 500_000, 500_000, 4)]


def test_tasks_of_a_client_that_is_gone_are_told_as_cancelled(observed):
    script, told = observed()
    script.join("w", "echo", window=1)
    script.task("c", "echo", "1")
    script.task("c", "echo", "2")
    script.sleep(0.5)
    script.say("frontend", "c", "DISCONNECT")
    assert told.all("task") == [task("cancelled", "w", 0, 500_000), task("cancelled", None, 500_000, None)]


def test_a_task_that_is_cancelled_is_told_as_that_and_not_as_a_timeout_or_an_error(observed):
    script, told = observed()
    script.join("w", "echo", window=1, cancel=True)
    given = script.given("c", "echo", "1")
    script.task("c", "echo", "2")
    script.sleep(0.5)
    script.say("frontend", "c", "CANCEL", "echo", "1")
    script.say("frontend", "c", "CANCEL", "echo", "2")
    script.reply("w", given, code=410, message="cancelled")
    script.sleep(60)
    assert told.all("task") == [task("cancelled", "w", 0, 500_000), task("cancelled", None, 500_000, None)]
    (row,) = script.ask("list_services").result
    assert (row["cancelled"], row["errors"], row["timeouts"]) == (2, 0, 0)


def test_each_task_is_told_once_whatever_happens(observed):
    """A shared task whose two workers both answer."""
    script, told = observed()
    script.join("w", "echo", window=1)
    given = script.given("c", "echo", "1", retry=True, timeout=100_000)
    script.join("v", "echo", window=1)
    script.beating(20, "v")
    script.reply("v", given)
    script.reply("w", given)
    ((_, _, peer, _, outcome, *_),) = told.all("task")
    assert (peer, outcome) == ("v", "ok")


# configuration


def test_new_configurations_and_states_are_told(observed):
    script, told = observed()
    script.store.following = attrs.evolve(script.broker.running.network, group="north")
    script.sleep(1)
    script.ask("reload_config")
    assert [event[:2] for event in script.broker.events] == [(KINDS["config_change"], script.now)]
    assert told.all() == [("config_change", "config", "applied", 2)]
    script.join("w", "echo", config_version=2)
    assert told.all() == [("join", "echo", "w", "north", 1)]
    script.ask("disable")
    script.ask("enable")
    script.ask("enable")
    assert told.all("config_change") == [
        ("config_change", "state", "disabled", None),
        ("config_change", "state", "active", None),
    ]
