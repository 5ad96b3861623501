"""The sessions of real clients and workers on the simulated network, between brokers: many seeds of kills and cuts.

Checked: (a) every call ends in one reply or one error before its deadline, as long as its client lives; (b) a task that
is not idempotent is never executed twice; (c) at the end all workers serve again and every call is answered.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import attrs
import pytest

from scale0_core.client.kit.errors import NoBrokerError
from scale0_core.config.network import GroupBroker, GroupConfig
from scale0_core.network.sockets import NetworkSockets
from scale0_core.testing import SimClient, SimNetwork, SimWorker
from scale0_core.testing.simclient import Outcome

CALL_SECONDS = 4.0
RECOVERY = 45.0
"""Seconds until all is well again: a worker with tasks in hand keeps a connection for 30 s on which nothing comes."""


@attrs.define
class History:
    """What happened to every call, seen by clients and workers."""

    calls: dict[str, Outcome] = attrs.field(factory=dict)
    executed: Counter[str] = attrs.field(factory=Counter)

    def executed_twice(self):
        return [call for call, times in self.executed.items() if times > 1 and not self.calls[call].call.retry]

    def late(self):
        return [name for name, outcome in self.calls.items() if outcome.ended > outcome.call.deadline]

    def kinds(self, calls=None):
        ended = [self.calls[call] for call in calls or self.calls if self.calls[call].ended]
        return Counter(type(outcome.error or outcome.reply).__name__ for outcome in ended)


class Caller(SimClient):
    """Calls services now and then until a time."""

    def __init__(self, node, broker, history, until):
        super().__init__(node, broker)
        self.history, self.until, self.count = history, until, 0
        self.at(node.now + node.random.random(), self.next_call)

    def next_call(self):
        random = self.node.random
        if self.node.now < self.until:
            self.ask(random.choice(("a", "a", "b", "nobody")), retry=random.random() < 0.4)
            self.at(self.node.now + random.expovariate(4.0), self.next_call)

    def ask(self, service, *, retry=False):
        self.count += 1
        name = f"{self.node.name}/{self.node.starts}/{self.count}"
        self.history.calls[name] = self.call(
            service, name.encode(), timeout=CALL_SECONDS, retry=retry, ended=lambda outcome: self.check(name, outcome)
        )
        return name

    def check(self, name, outcome):
        whole = (name.encode(), b"done")
        assert outcome.error or outcome.reply == whole, "the answer to another call, or a part of it"


def worker(node, broker, history, services, window):
    """Make a worker; a task takes from no time to longer than anybody waits, and some answers come in parts."""
    random = node.random

    def begin(worker, task):
        history.executed[task.payload[0].decode()] += 1
        (seconds,) = random.choices((0.0, 0.05, 0.3, 1.0, 6.0), (30, 30, 30, 8, 2))
        worker.at(node.now + seconds, partial(end, worker, task))

    def end(worker, task):
        if random.random() < 0.3:
            worker.reply(task, *task.payload, options=b'{"more":true,"seq":0}', more=True)
            worker.reply(task, b"done", options=b'{"seq":1}')
        else:
            worker.reply(task, *task.payload, b"done")

    return [SimWorker(node, broker, services, begin, window=window, interval=0.5)]


class World:
    """Brokers of one group, and workers and clients of each."""

    def __init__(self, talk, seed, seconds, brokers=1, **options):
        self.talk, self.history = talk, History()
        self.net = SimNetwork(seed, delay=(0.0, 0.01), detection=(0.0, 0.3), **options)
        self.random = Random(f"faults/{seed}")
        self.group = GroupConfig(
            "g", tuple(GroupBroker(f"b{n}", frontend=f"tcp://10.0.0.{n}:1", backend=f"tcp://10.0.0.{n}:2")
                       for n in range(brokers))
        )  # fmt: skip
        for number, known in enumerate(self.group.brokers):
            self.net.add(known.identity, partial(self.broker, known))
            for which, (services, window) in enumerate(((("a",), 1), (("a", "b"), 3), (("b",), 10))):
                factory = partial(worker, broker=known.frontend, history=self.history, services=services, window=window)
                self.net.add(f"w{number}.{which}", factory)
            for client in range(3):
                self.net.add(
                    f"c{number}.{client}", lambda node, b=known.frontend: [Caller(node, b, self.history, seconds)]
                )

    def broker(self, known, node):
        sockets = NetworkSockets(
            frontend=(known.frontend,), backend=(known.backend,), config=(), management=(f"ipc://{known.identity}",)
        )
        made = self.talk(
            identity=known.identity, group="g", group_config=(self.group,), default_heartbeat_interval=500,
            max_silence=10_000, max_clock_skew=0, queue_limit=50, sockets=sockets, started=node.now,
        )  # fmt: skip
        return [made.broker]

    def sessions(self, kind):
        return [node.services[0] for name, node in self.net.nodes.items() if name[0] == kind]

    def alive(self, call):
        """Whether the client that made a call still lives the life in which it made it."""
        name, life, _ = call.split("/")
        return self.net.nodes[name].starts == int(life) and self.net.nodes[name].up

    def cut(self, who, until):
        """Break all connections of a node, and let them come back when it is healed."""
        self.net.partition([who], [name for name in self.net.nodes if name != who])
        self.net.at(until, self.net.heal)

    def storm(self, kinds, count, end):
        """Plan faults: kills with a restart, broken connections, partitions."""
        net, random = self.net, self.random
        names = [name for name in net.nodes if name[0] in kinds]
        for _ in range(count):
            when, who = random.uniform(1.0, end), random.choice(names)
            fault = random.choice(("kill", "restart", "break", "partition"))
            if fault == "kill":
                net.at(when, partial(net.kill, who))
            if fault in ("kill", "restart"):
                net.at(when + random.uniform(0.05, 3.0) * (fault == "kill"), partial(net.restart, who))
            else:
                net.at(when, partial(self.cut, who, when + (0.01 if fault == "break" else random.uniform(0.1, 4.0))))

    def check_calls(self):
        calls = self.history.calls
        assert len(calls) > 50
        assert self.history.executed_twice() == []
        assert [call for call, outcome in calls.items() if not outcome.ended and self.alive(call)] == []
        assert self.history.late() == []

    def all_serve(self):
        return all(worker.serves for worker in self.sessions("w"))

    def check_recovered(self):
        """All workers serve again, and each client gets answers from its broker."""
        assert self.net.run_until(self.all_serve, RECOVERY)
        asked = []
        for client in self.sessions("c"):
            client.at(self.net.now, lambda client=client: asked.extend(client.ask("a", retry=True) for _ in range(2)))
        self.net.run(CALL_SECONDS + 1.0)
        assert len(asked) == 2 * len(self.sessions("c"))
        ends = self.history.kinds(asked)
        known = {"Reply", "CallTimedOutError"}  # a task may take longer than its caller waits
        if len(self.group.brokers) > 1:
            known |= {"UnavailableError", "NoServiceError"}  # all workers may have gone to the other broker
        assert set(ends) <= known, ends
        assert ends["Reply"] > len(asked) / 3
        self.check_calls()


def test_on_a_quiet_day_every_call_is_answered(talk):
    world = World(talk, 0, 20.0)
    world.net.run(30.0)
    world.check_calls()
    kinds = world.history.kinds()
    assert set(kinds) == {"Reply", "NoServiceError", "CallTimedOutError"}
    assert kinds["Reply"] > len(world.history.calls) / 2
    world.check_recovered()


@pytest.mark.requirement("R5")
@pytest.mark.parametrize("seed", range(12))
def test_workers_die_and_are_cut_off(talk, seed):
    world = World(talk, seed, 10.0)
    world.storm("w", 10, 10.0)
    world.net.run(14.0)
    world.check_recovered()
    assert world.history.kinds()["BrokerLostError"] == 0, "the broker and the clients stayed connected"


@pytest.mark.requirement("R5")
@pytest.mark.parametrize("seed", range(12))
def test_brokers_workers_and_clients_die_and_are_cut_off(talk, seed):
    world = World(talk, 100 + seed, 10.0, brokers=1 + seed % 2)
    world.storm("bwc", 12, 10.0)
    world.net.run(14.0)
    world.check_recovered()


def test_clients_of_a_dead_broker_go_to_another_and_come_back(talk):
    world = World(talk, 3, 20.0, brokers=2)
    net, addresses = world.net, [known.frontend for known in world.group.brokers]
    net.run(3.0)
    assert {client.session.address for client in world.sessions("c")} == set(addresses)
    net.kill("b0")
    net.run(10.0)
    assert {client.session.address for client in world.sessions("c")} == {addresses[1]}
    assert world.all_serve()
    net.restart("b0")
    net.kill("b1")
    net.run(10.0)
    assert {client.session.address for client in world.sessions("c")} == {addresses[0]}
    net.restart("b1")
    world.check_recovered()


def test_what_was_sent_to_a_broker_that_died_does_not_reach_its_successor(talk):
    world = World(talk, 4, 0.0)
    net, (client, *_) = world.net, world.sessions("c")
    net.run(3.0)
    net.weather = attrs.evolve(net.weather, delay=(0.2, 0.2))
    client.at(net.now, lambda: client.ask("a"))
    net.at(net.now + 0.1, partial(net.restart, "b0"))
    net.run(CALL_SECONDS + 1)
    assert world.history.kinds() == {"BrokerLostError": 1}
    assert not world.history.executed


def test_a_client_of_nobody_is_told_so_immediately():
    net = SimNetwork(5)
    (client,) = net.add("client", lambda node: [SimClient(node, "ipc:///run/nobody/frontend")]).services
    outcomes = []
    client.at(0.0, lambda: client.call("a", ended=outcomes.append))
    net.run(0.5)
    assert [type(outcome.error) for outcome in outcomes] == [NoBrokerError]


def test_the_same_seed_gives_the_same_run_of_sessions(talk):
    def play():
        world = World(talk, 7, 5.0, brokers=2, trace=True)
        world.storm("bwc", 10, 5.0)
        world.net.run(8.0)
        return world.net

    first, second = play(), play()
    assert len(first.trace) > 500
    assert first.trace == second.trace
