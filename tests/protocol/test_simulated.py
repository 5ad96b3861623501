"""One broker with workers and clients on the simulated network: kills, restarts, pauses and partitions, many seeds.

No message is lost on a connection that stands. Checked: (a) every call ends in exactly one reply or error before its
deadline plus one step of the broker's clock, as far as its client and the broker stay connected; (b) a task reaches at
most one worker unless it is marked; and at the end the broker's tables are empty.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import attrs
import pytest

from scale0_core.service import Effect, Endpoint, Frames, SocketKind
from scale0_core.testing import SimNetwork, SimNode

GRAIN = 0.05
CALL_SECONDS = 4.0
INTERVAL = 0.5


@attrs.define
class History:
    """What happened to every call, seen from outside the broker."""

    asked: dict[str, float] = attrs.field(factory=dict)
    marked: set[str] = attrs.field(factory=set)
    outcomes: dict[str, list[tuple[float, str]]] = attrs.field(factory=dict)
    received: Counter[str] = attrs.field(factory=Counter)
    """By call: how many workers had it in their hands."""

    def ended(self, call: str, now: float, how: str) -> None:
        self.outcomes.setdefault(call, []).append((now, how))


class SimWorker:
    """A worker: negotiates, says READY, beats, works for a while, replies; starts anew when told to or unanswered."""

    name = "worker"

    def __init__(self, node: SimNode, history: History, services: tuple[str, ...], window: int) -> None:
        self.endpoints = {"broker": Endpoint(kind=SocketKind.DEALER, connect=("ipc://backend",))}
        self.node, self.history, self.services, self.window = node, history, services, window
        self.random = node.random
        self.work: list[tuple[float, Frames]] = []
        self.next_beat = node.now + self.random.random() * 0.2
        self.heard = node.now
        self.ready = False

    def say(self, command: str, *body: bytes, **options: Any) -> Effect:
        return ("broker", (b"S0W01", command.encode(), json.dumps(options).encode(), *body))

    def hello(self) -> Effect:
        self.ready = False
        # with every other seed an identity of its own for each life; else the older connection is asked first
        life = f"-{self.node.starts}" if self.node.net.seed % 2 else ""
        return self.say("CHECKCONFIG", identity=f"{self.node.name}{life}", config_type="JSON")

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        _, command, _, *body = frames
        self.heard = now
        if command in (b"CONFIG", b"CONFIGACK"):
            self.ready = True
            return [self.say("READY", services=list(self.services), window=self.window, hbeatinterval=500)]
        if command == b"TASK":
            self.history.received[body[2].decode()] += 1
            self.work.append((now + self.random.choice((0.0, 0.05, 0.3, 1.0, 6.0)), tuple(body)))
            self.work.sort(key=lambda entry: entry[0])
        elif command in (b"FORCENEGOTIATE", b"DISCONNECTERROR"):
            return [self.hello()]
        return []

    def next_deadline(self) -> float | None:
        return min([self.next_beat, *(due for due, _ in self.work[:1])])

    def on_deadline(self, now: float) -> Iterable[Effect]:
        effects: list[Effect] = []
        while self.work and self.work[0][0] <= now:
            _, (service, number, *payload) = self.work.pop(0)
            if self.random.random() < 0.2:
                effects.append(self.say("TASKREPLY", service, number, b"part", more=True))
            effects.append(self.say("TASKREPLY", service, number, *payload))
            if not self.window:
                effects.append(self.say("READY", services=list(self.services), hbeatinterval=500))
        if self.next_beat <= now:
            self.next_beat = now + INTERVAL
            silent = now - self.heard > 3 * INTERVAL
            effects.append(self.say("HEARTBEAT") if self.ready and not silent else self.hello())
        return effects


class SimClient:
    """A client: asks now and then, and gives up on its own when nothing came in time."""

    name = "client"

    def __init__(self, node: SimNode, history: History, until: float) -> None:
        self.endpoints = {"broker": Endpoint(kind=SocketKind.DEALER, connect=("ipc://frontend",))}
        self.node, self.history, self.until = node, history, until
        self.random = node.random
        self.calls = 0
        self.next_call = node.now + 0.2 + 0.5 * self.random.random()  # when it is connected
        self.open: dict[str, float] = {}

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        _, command, options, *body = frames
        if command not in (b"TASKREPLY", b"ERROR"):
            return []
        call = body[1].decode()
        terms = json.loads(options) if options else {}
        if call in self.open and not terms.get("more"):
            del self.open[call]
            self.history.ended(call, now, "reply" if command == b"TASKREPLY" else str(terms["code"]))
            assert command == b"ERROR" or body[2] == body[1], "the answer to another call"
        elif call not in self.open:
            self.history.ended(call, now, "again")
        return []

    def next_deadline(self) -> float | None:
        return self.next_call if self.next_call < self.until else None

    def on_deadline(self, now: float) -> Iterable[Effect]:
        self.calls += 1
        self.next_call = now + self.random.expovariate(5.0)
        call = f"{self.node.name}/{self.node.starts}/{self.calls}"
        retry = self.random.random() < 0.3
        self.open[call] = now
        self.history.asked[call] = now
        if retry:
            self.history.marked.add(call)
        options = json.dumps({"timeout": round(CALL_SECONDS * 1000), "retry": retry}).encode()
        service = self.random.choice((b"a", b"a", b"b", b"nobody"))
        return [("broker", (b"S0C01", b"TASK", options, service, call.encode(), call.encode()))]


class World:
    """A broker, workers and clients, and what is known of them."""

    def __init__(self, talk: Any, seed: int, seconds: float) -> None:
        self.history = History()
        self.net = SimNetwork(seed, delay=(0.0, 0.01), detection=(0.0, 0.3))
        self.random = Random(f"faults/{seed}")
        self.net.add("broker", lambda node: [self.broker(talk)])
        for number in range(4):
            services, window = (("a",), ("a", "b"), ("b",), ("a",))[number], (0, 3, 1, 10)[number]
            self.net.add(f"w{number}", self.worker(services, window))
        for number in range(3):
            self.net.add(f"c{number}", lambda node: [SimClient(node, self.history, seconds)])
        self.net.invariant(self.each_ends_once)
        self.net.invariant(self.at_most_one_worker)

    def broker(self, talk: Any) -> Any:
        return talk(
            default_heartbeat_interval=500, max_silence=10_000, max_clock_skew=0, queue_limit=50, sockets=SOCKETS,
            started=self.net.now,
        ).broker  # fmt: skip

    def worker(self, services: tuple[str, ...], window: int) -> Callable[[SimNode], list[SimWorker]]:
        return lambda node: [SimWorker(node, self.history, services, window)]

    @property
    def service(self) -> Any:
        (service,) = self.net.nodes["broker"].services
        return service

    def each_ends_once(self) -> None:
        for call, outcomes in self.history.outcomes.items():
            assert len(outcomes) == 1, (call, outcomes)

    def at_most_one_worker(self) -> None:
        for call, count in self.history.received.items():
            assert count <= 1 or call in self.history.marked, (call, count)

    def at_the_end(self) -> None:
        dispatcher, negotiator = self.service.dispatcher, self.service.negotiator
        assert dispatcher.tasks == {}
        assert len(dispatcher._deadlines) == 0
        assert all(not service.queue for service in dispatcher.services.values())
        assert all(frontend.open == 0 for frontend in dispatcher.frontends.values())
        assert negotiator.claims == {}
        in_hand = [task for worker in dispatcher.workers.values() for task in worker.in_hand.values()]
        assert all(task.done for task in in_hand)
        assert all(len(worker.in_hand) < 20 for worker in dispatcher.workers.values())


class Sockets:
    frontend, backend, config, management = ("ipc://frontend",), ("ipc://backend",), (), ("ipc://management",)


SOCKETS = Sockets()


def late(history: History) -> dict[str, float]:
    """Give the calls that ended later than they may: the way to the broker and back takes up to 20 ms."""
    limit = CALL_SECONDS + 2 * GRAIN + 0.02
    ends = {call: outcomes[0][0] - history.asked[call] for call, outcomes in history.outcomes.items()}
    return {call: seconds for call, seconds in ends.items() if seconds > limit}


def test_on_a_quiet_day_every_call_is_answered(talk):
    world = World(talk, 0, 20.0)
    world.net.run(30.0)
    history = world.history
    assert len(history.asked) > 150
    assert set(history.outcomes) == set(history.asked)
    assert late(history) == {}
    kinds = Counter(how for ((_, how),) in history.outcomes.values())
    assert set(kinds) <= {"reply", "404", "504"}
    assert kinds["reply"] > 80
    world.at_the_end()


@pytest.mark.requirement("R5")
@pytest.mark.seeds(30)
def test_workers_die_come_back_stand_still_and_are_cut_off(talk, seed: int):
    """Clients and the broker stay connected, so that every call ends, and in time."""
    world = World(talk, seed, 20.0)
    net, random = world.net, world.random
    workers = [f"w{number}" for number in range(4)]
    for _ in range(12):
        when, who = random.uniform(1.0, 18.0), random.choice(workers)
        fault = random.choice(("kill", "restart", "pause", "partition"))
        later = when + random.uniform(0.1, 4.0)
        if fault == "kill":
            net.at(when, lambda who=who: net.kill(who))
            net.at(later, lambda who=who: net.restart(who))
        elif fault == "restart":
            net.at(when, lambda who=who: net.restart(who))
        elif fault == "pause":
            net.at(when, lambda who=who: net.pause(who))
            net.at(later, lambda who=who: net.resume(who))
        else:
            net.at(when, lambda who=who: net.partition([who], ["broker"]))
            net.at(later, net.heal)
    net.at(23.0, net.heal)
    for who in workers:
        net.at(23.0, lambda who=who: net.resume(who) if net.nodes[who].up else net.restart(who))
    net.run(40.0)
    history = world.history
    assert len(history.asked) > 100
    assert set(history.outcomes) == set(history.asked), set(history.asked) - set(history.outcomes)
    assert late(history) == {}
    world.at_the_end()
    assert len(world.service.dispatcher.workers) == 4, "all are back"


@pytest.mark.requirement("R5")
@pytest.mark.seeds(20)
def test_everything_dies_comes_back_and_is_cut_off(talk, seed: int):
    """Calls may be lost with the broker or the connection; then nothing comes, but never two answers."""
    world = World(talk, 1000 + seed, 20.0)
    net, random = world.net, world.random
    names = list(net.nodes)
    for _ in range(15):
        when, who = random.uniform(1.0, 19.0), random.choice(names)
        later = when + random.uniform(0.1, 3.0)
        if random.random() < 0.6:
            net.at(when, lambda who=who: net.kill(who))
            net.at(later, lambda who=who: net.restart(who))
        else:
            others = [name for name in names if name != who]
            net.at(when, lambda who=who, others=others: net.partition([who], others))
            net.at(later, net.heal)
    net.at(23.0, net.heal)
    for who in names:
        net.at(23.0, lambda who=who: None if net.nodes[who].up else net.restart(who))
    net.run(40.0)
    # what a client asked while it was cut off reached the broker later, and its time began then
    assert len(world.history.outcomes) > 0.5 * len(world.history.asked)
    world.at_the_end()
    assert len(world.service.dispatcher.workers) == 4, "all are back"
