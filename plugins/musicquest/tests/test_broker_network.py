"""The music broker among servers that die, come back, and hear only part of what is said: one tree in the end."""

from __future__ import annotations

import json
from random import Random

import pytest

from scale0_core.api import Endpoint, SocketKind
from scale0_core.testing import SimNetwork, Weather
from scale0_musicquest.broker.settings import MusicBrokerSettings
from scale0_musicquest.service.broker.service import MusicBroker

LEASE = 3.0
SLOTS = 2
NAMES = [f"s{number}" for number in range(7)]
FAIR = Weather(delay=(0.0, 0.01), detection=(0.0, 0.3))
FOUL = Weather(delay=(0.0, 0.05), detection=(0.0, 0.3), loss=0.2, duplication=0.1, reordering=0.1)


class SimServer:
    """A server with the broker's side of one: it reports, follows, and notices when its father is dead."""

    name = "server"

    def __init__(self, world, node):
        self.world, self.node, self.ident = world, node, node.name
        self.endpoints = {"broker": Endpoint(kind=SocketKind.DEALER, connect=("ipc://servers",))}
        self.father = ""
        self.lost: dict[str, float] = {}
        self.silent = 0
        self.sequence = 0
        self.next_report = node.now + node.random.random() * LEASE / 3
        self.next_look = node.now

    def receive(self, socket, frames, now):
        assert frames[:2] == (b"", b"OK"), frames
        father = json.loads(frames[2])["father"]
        wanted = father["id"] if father else ""
        if wanted and wanted != self.father:
            wanted = self.world.join(self.ident, wanted)
        self.father = wanted
        self.silent = 0
        return []

    def next_deadline(self):
        return min(self.next_report, self.next_look)

    def on_deadline(self, now):
        if self.next_look <= now:
            self.next_look = now + 0.4
            self.lost = {ident: when for ident, when in self.lost.items() if when > now - LEASE}
            self.silent = self.silent + 1 if self.father and self.father not in self.world.servers else 0
            if self.silent > 2:
                self.lost[self.father] = now
                self.father, self.silent = "", 0
                self.next_report = now
        if self.next_report <= now:
            self.next_report = now + LEASE / 3
            return [self.report()]
        return []

    def report(self):
        self.sequence += 1
        told = {
            "id": self.ident, "children_endpoint": f"tcp://{self.ident}:4444", "slots": SLOTS, "wants_father": True,
            "children": self.world.children(self.ident), "father": self.father, "path": self.world.path(self.ident),
            "lost": list(self.lost),
        }  # fmt: skip
        if self.world.net.seed % 2:
            told |= {"epoch": self.node.starts, "sequence": self.sequence}
        return ("broker", (b"", f"tcp://{self.ident}:5556".encode(), json.dumps(told).encode()))


class World:
    """A broker, servers, and the links between servers, which are those of the servers that are up."""

    def __init__(self, seed):
        self.net = SimNetwork(seed, delay=FAIR.delay, detection=FAIR.detection)
        self.random = Random(f"faults/{seed}")
        self.net.add("broker", lambda node: [self.broker()])
        for name in NAMES:
            self.net.add(name, lambda node: [SimServer(self, node)])
        self.net.invariant(self.is_a_forest)

    def broker(self):
        settings = MusicBrokerSettings(lease=LEASE)
        return MusicBroker(settings, ("ipc://servers",), ("ipc://clients",))

    @property
    def servers(self):
        return {name: node.services[0] for name, node in self.net.nodes.items() if name != "broker" and node.up}

    @property
    def fathers(self):
        return {name: server.father for name, server in self.servers.items()}

    def children(self, ident):
        return [name for name, father in self.fathers.items() if father == ident]

    def path(self, ident):
        fathers, path = self.fathers, []
        while (ident := fathers.get(ident, "")) and ident not in path:
            path.append(ident)
        return path

    def join(self, child, father):
        """Become the child of a server, or of one of its children when it is full, as it would say."""
        for candidate in [father, *self.children(father)]:
            if candidate in self.servers and candidate != child and child not in self.path(candidate):
                others = [name for name in self.children(candidate) if name != child]
                if len(others) < SLOTS:
                    return candidate
        return ""

    def do_harm(self):
        who = self.random.choice(["broker", *NAMES])
        fault = self.random.choice([self.net.kill, self.net.restart, self.net.pause, self.part])
        if self.net.nodes[who].up:
            fault(who)

    def part(self, who):
        if who != "broker":
            self.net.partition([who], ["broker"])

    def mend(self, share):
        """Let some of those that are down or stand still go on, and all that are parted."""
        for name, node in self.net.nodes.items():
            if self.random.random() >= share:
                continue
            if not node.up:
                self.net.restart(name)
            elif node.paused:
                self.net.resume(name)
        self.net.heal()

    def is_a_forest(self):
        services = self.net.nodes["broker"].services
        if not services:
            return
        tree = services[0].table.tree
        assert [ident for ident in tree if tree.father(ident) == ""] == ([tree.root] if tree.root in tree else [])
        for ident in tree:
            assert len(tree.children(ident)) <= SLOTS
            above, steps = ident, 0
            while above in tree:
                above, steps = tree.father(above), steps + 1
                assert steps <= len(tree), "a circle"

    def at_the_end(self):
        """Insist that servers and broker agree on one tree of all servers."""
        fathers, tree = self.fathers, self.net.nodes["broker"].services[0].table.tree
        assert set(tree) == set(fathers) == set(NAMES)
        assert fathers == {ident: tree.father(ident) for ident in tree}
        (root,) = [ident for ident, father in fathers.items() if not father]
        assert all(ident == root or self.path(ident)[-1] == root for ident in fathers)
        return fathers


def test_on_a_quiet_day_there_is_one_tree_and_it_stays():
    world = World(1)
    world.net.run(LEASE)
    before = world.at_the_end()
    world.net.run(10 * LEASE)
    assert world.at_the_end() == before


@pytest.mark.seeds(10)
def test_a_restart_of_the_broker_moves_nobody(seed):
    world = World(seed)
    world.net.run(2 * LEASE)
    before = world.at_the_end()
    for _ in range(3):
        world.net.kill("broker")
        world.net.run(world.random.uniform(0.0, 3 * LEASE))
        world.net.restart("broker")
        world.net.run(3 * LEASE)
        assert world.at_the_end() == before


@pytest.mark.requirement("M35")
@pytest.mark.requirement("M41")
@pytest.mark.seeds(10)
def test_when_the_root_dies_the_others_have_one_root_within_two_leases(seed):
    world = World(seed)
    world.net.run(2 * LEASE)
    (root,) = [ident for ident, father in world.at_the_end().items() if not father]
    world.net.kill(root)
    world.net.run(2 * LEASE)
    roots = [ident for ident, father in world.fathers.items() if not father]
    assert len(roots) == 1
    assert all(ident in roots or world.path(ident)[-1] == roots[0] for ident in world.fathers)
    world.net.restart(root)
    world.net.run(2 * LEASE)
    assert world.at_the_end()[root], "it is not the root again"


@pytest.mark.requirement("M41")
@pytest.mark.seeds(25)
def test_after_loss_deaths_restarts_and_partitions_there_is_one_tree_again(seed):
    world = World(seed)
    net, random = world.net, world.random
    net.run(LEASE)
    net.weather = FOUL
    for _ in range(15):
        world.do_harm()
        net.run(random.uniform(0.0, LEASE))
        world.mend(0.5)
    net.weather = FAIR
    world.mend(1.0)
    net.run(6 * LEASE)
    before = world.at_the_end()
    net.run(4 * LEASE)
    assert world.at_the_end() == before
