"""SimNetwork: time, faults, accounting, and that a seed gives the same run."""

from __future__ import annotations

import sys
from random import Random
from typing import ClassVar

import pytest

from scale0_core.container.host import HostLimits
from scale0_core.service import Endpoint, Job
from scale0_core.testing import SimFailure, SimNetwork, Weather

HUB = "tcp://hub:1"


class Echo:
    name = "echo"
    endpoints: ClassVar = {"front": Endpoint(kind="ROUTER", bind=(HUB,))}

    def receive(self, socket, frames, now):
        return [(socket, frames)]

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Client:
    """Sends numbered requests, one every 10 ms, and keeps the answers."""

    name = "client"
    endpoints: ClassVar = {"s": Endpoint(kind="DEALER", connect=(HUB,))}

    def __init__(self, count=100, start=0.0):
        self.due = start
        self.left = count
        self.next = 0
        self.answers = []

    def receive(self, socket, frames, now):
        self.answers.append(int(frames[0]))
        return ()

    def next_deadline(self):
        return self.due if self.left else None

    def on_deadline(self, now):
        self.due = now + 0.01
        self.left -= 1
        self.next += 1
        return [("s", (b"%d" % self.next,))]


def small_network(seed, clients=3, count=100, **weather):
    net = SimNetwork(seed, **weather)
    net.add("hub", lambda node: [Echo()])
    for number in range(clients):
        net.add(f"client{number}", lambda node: [Client(count, node.now)])
    return net


def client(net, number=0):
    return net.nodes[f"client{number}"].services[0]


def play_faults(seed, **options):
    """A second of traffic with every fault, decided by the seed."""
    net = small_network(seed, loss=0.02, duplication=0.02, reordering=0.05, detection=(0.0, 0.2), **options)
    random = Random(seed)
    names = list(net.nodes)
    for _ in range(6):
        victim, start = random.choice(names), random.uniform(0.0, 1.0)
        fault, remedy = random.choice(
            [
                (lambda v=victim: net.kill(v), lambda v=victim: net.restart(v)),
                (lambda v=victim: net.pause(v), lambda v=victim: net.resume(v)),
                (lambda v=victim: net.partition([v], [n for n in names if n != v]), net.heal),
            ]
        )
        net.at(start, fault)
        net.at(start + random.uniform(0.0, 0.3), remedy)
    net.run(3.0)
    return net


def test_without_faults_all_arrives_in_order():
    net = small_network(1)
    net.run(3)
    for number in range(3):
        assert client(net, number).answers == list(range(1, 101))
    assert (net.counts.handed, net.counts.delivered, net.in_flight) == (600, 600, 0)
    assert net.now == 3.0


def test_loss_is_counted():
    net = small_network(1, loss=0.1)
    net.run(3)
    lost = net.counts.dropped["lost"]
    assert 20 < lost < 100
    assert net.counts.delivered == net.counts.handed - lost


def test_duplicates_are_counted():
    net = small_network(1, clients=1, duplication=0.1)
    net.run(3)
    answers = client(net).answers
    assert net.counts.duplicates > 5
    assert len(answers) > 100
    assert set(answers) == set(range(1, 101))


def test_reordering_breaks_the_order_and_loses_nothing():
    net = small_network(1, clients=1, reordering=0.2)
    net.run(3)
    assert client(net).answers != sorted(client(net).answers)
    assert sorted(client(net).answers) == list(range(1, 101))


def test_delay_is_kept():
    net = SimNetwork(delay=(2.0, 3.0), reconnect=(0.0, 0.0))
    net.add("hub", lambda node: [Echo()])
    net.add("client0", lambda node: [Client(1, start=1.0)])
    assert net.run_until(lambda: client(net).answers, limit=20)
    assert 5.0 <= net.now <= 7.0


def test_a_killed_node_forgets_and_a_restarted_one_begins_anew():
    net = small_network(1, clients=1)
    net.run(0.5)
    first = net.nodes["hub"].services[0]
    net.kill("hub")
    assert net.nodes["hub"].services == []
    net.kill("hub")
    answered = len(client(net).answers)
    net.run(0.2)
    assert len(client(net).answers) == answered
    net.restart("hub")
    net.run(2)
    assert net.nodes["hub"].services[0] is not first
    assert net.nodes["hub"].starts == 2
    assert client(net).answers[-1] == 100
    assert len(client(net).answers) + net.counts.dropped["killed"] == 100


def test_a_partition_loses_what_is_under_way_until_healed():
    net = small_network(1, clients=2, detection=(0.1, 0.1))
    net.run(0.3)
    net.partition(["hub"], ["client0"])
    answered = len(client(net, 0).answers)
    net.run(0.5)
    assert len(client(net, 0).answers) == answered
    assert net.counts.dropped["partitioned"] >= 9, "until the end of the connection is noticed"
    net.heal()
    net.run(2)
    assert client(net, 0).answers[-1] == 100
    assert len(client(net, 0).answers) + net.counts.dropped["partitioned"] == 100
    assert client(net, 1).answers == list(range(1, 101))


def test_a_partition_keeps_new_connections_out():
    net = SimNetwork(1)
    net.partition(["client0"], ["hub"])
    net.add("hub", lambda node: [Echo()])
    net.add("client0", lambda node: [Client(10)])
    net.run(1)
    assert client(net).answers == []
    net.heal()
    net.run(1)
    assert client(net).answers == list(range(1, 11))


def test_a_paused_node_goes_on_where_it_stood():
    net = small_network(1, clients=1)
    net.run(0.3)
    net.pause("hub")
    answered = len(client(net).answers)
    net.run(2)
    assert len(client(net).answers) - answered <= 2
    assert net.in_flight >= 60
    net.resume("hub")
    net.run(0.1)
    assert client(net).answers == list(range(1, 101))


def test_a_paused_client_fires_its_deadline_late():
    net = small_network(1, clients=1, count=1)
    net.pause("client0")
    net.run(5)
    assert client(net).next == 0
    net.resume("client0")
    net.run(1)
    assert client(net).answers == [1]


def test_weather_can_change():
    net = small_network(1, clients=1)
    net.at(0.5, lambda: setattr(net, "weather", Weather(loss=1.0)))
    net.run(3)
    assert 30 < len(client(net).answers) < 60


@pytest.mark.parametrize("weather", [{"loss": 1.5}, {"delay": (2.0, 1.0)}, {"job_failure": -1.0}])
def test_impossible_weather_is_refused(weather):
    with pytest.raises(ValueError, match=next(iter(weather))):
        SimNetwork(**weather)


def test_a_node_has_one_name_and_a_name_one_node():
    net = small_network(1)
    with pytest.raises(ValueError, match="already"):
        net.add("hub", lambda node: [Echo()])
    with pytest.raises(ValueError, match="no node 'hob'; there are hub, client0"):
        net.kill("hob")


def test_step_and_run_until():
    net = SimNetwork()
    done = []
    net.at(1.0, lambda: done.append(net.now))
    net.at(1.0, lambda: done.append("second"))
    net.at(5.0, lambda: done.append(net.now))
    assert net.step()
    assert done == [1.0]
    assert net.run_until(lambda: len(done) == 2, limit=1)
    assert not net.run_until(lambda: len(done) == 3, limit=1)
    assert net.now == 2.0
    assert net.run_until(lambda: len(done) == 3, limit=10)
    assert done == [1.0, "second", 5.0]
    assert not net.step()


def test_an_invariant_that_breaks_names_seed_and_time():
    net = small_network(7, clients=1)

    def at_most_ten_answers():
        assert len(client(net).answers) <= 10, "eleven"

    net.invariant(at_most_ten_answers)
    with pytest.raises(SimFailure, match=r"at_most_ten_answers: eleven[^\n]*(\n.*)*seed 7, time 0\.\d+") as caught:
        net.run(3)
    assert caught.value.seed == 7
    assert len(client(net).answers) == 11


def test_an_invariant_may_return_false():
    net = small_network(7)
    net.invariant(lambda: net.now < 0.5)
    with pytest.raises(SimFailure, match="does not hold"):
        net.run(3)


def test_a_message_that_is_not_accounted_for_is_noticed():
    net = small_network(1)
    net.run(0.5)
    net.counts.handed += 1
    with pytest.raises(SimFailure, match="under way"):
        net.run(0.5)


class Broken(Echo):
    def receive(self, socket, frames, now):
        raise LookupError("on purpose")


class Malformed(Echo):
    def receive(self, socket, frames, now):
        return [("nowhere", frames), None]


def broken_network(service, **options):
    net = SimNetwork(3, **options)
    net.add("hub", lambda node: [service()])
    net.add("client0", lambda node: [Client(50)])
    return net


@pytest.mark.parametrize(("service", "message"), [(Broken, "LookupError: on purpose"), (Malformed, "no such socket")])
def test_what_a_service_raises_ends_a_strict_run(service, message):
    with pytest.raises(SimFailure, match=f"{message}(.*\n)*.*seed 3"):
        broken_network(service).run(1)


def test_without_strict_the_seat_counts_as_in_a_broker():
    net = broken_network(Broken, strict=False)
    net.run(2)
    host = net.nodes["hub"].service_hosts[0]
    assert host.quarantined
    assert host.counts.errors == 10
    assert host.counts.dropped == {"quarantined": 40}
    assert net.counts.delivered == 50


def test_malformed_sends_are_counted():
    net = broken_network(Malformed, strict=False)
    net.run(2)
    assert net.counts.dropped["malformed"] >= 10
    assert net.nodes["hub"].service_hosts[0].quarantined


class Slow(Echo):
    """Echoes by way of a job."""

    def receive(self, socket, frames, now):
        return [Job("disk", self.work, frames, token=frames[0])]

    def work(self, frames):
        return frames[1:]

    def on_job(self, result, now):
        return [("front", (result.token, *(result.value or (b"-1",))))]


def test_jobs_take_time_and_keep_the_order_of_their_key():
    net = SimNetwork(1, job_delay=(0.05, 0.2))
    net.add("hub", lambda node: [Slow()])
    net.add("client0", lambda node: [Client(10)])
    net.run(0.2)
    assert net.nodes["hub"].service_hosts[0].jobs.in_flight > 0
    net.run(5)
    assert client(net).answers == list(range(1, 11))


def test_jobs_fail():
    net = SimNetwork(1, job_failure=0.3)
    net.add("hub", lambda node: [Slow()])
    net.add("client0", lambda node: [Client(100)])
    net.run(5)
    failed = net.nodes["hub"].service_hosts[0].counts.jobs_failed
    assert 10 < failed < 60
    assert client(net).answers.count(-1) == failed


def test_jobs_of_a_killed_node_do_not_go_on():
    net = SimNetwork(1, job_delay=(1.0, 1.0))
    ran = []

    class Counting(Slow):
        def work(self, frames):
            ran.append(frames)

    net.add("hub", lambda node: [Counting()])
    net.add("client0", lambda node: [Client(10)])
    net.run(0.5)
    assert net.nodes["hub"].hosts[0].running
    net.kill("hub")
    torn = len(ran)
    assert torn <= 1
    net.run(5)
    assert len(ran) == torn


def test_a_seat_with_too_many_jobs_gets_no_messages_meanwhile():
    most = 0
    net = SimNetwork(1, job_delay=(0.1, 0.1))
    net.add("hub", lambda node: [Slow()], limits=HostLimits(jobs=2))
    net.add("client0", lambda node: [Client(20)])

    def few_jobs():
        nonlocal most
        most = max(most, net.nodes["hub"].service_hosts[0].jobs.in_flight)

    net.invariant(few_jobs)
    net.run(0.5)
    assert net.in_flight > 10
    net.run(5)
    assert most == 2
    assert client(net).answers == list(range(1, 21))


def test_the_same_seed_gives_the_same_run():
    runs = [play_faults(seed, trace=True) for seed in (5, 5, 6)]
    assert len(runs[0].trace) > 500
    assert runs[0].trace == runs[1].trace
    assert runs[0].counts == runs[1].counts
    assert runs[0].trace != runs[2].trace


def test_every_message_is_accounted_for_under_all_faults():
    dropped = set()
    for seed in range(40):
        net = play_faults(seed)
        counts = net.counts
        assert counts.handed + counts.duplicates == counts.delivered + net.in_flight + sum(counts.dropped.values())
        dropped.update(counts.dropped)
    assert dropped >= {"lost", "killed", "partitioned", "EHOSTUNREACH"}


def test_nodes_have_a_randomness_of_their_own():
    def numbers(**others):
        net = SimNetwork(4)
        for name in others:
            net.add(name, lambda node: [])
        return net.add("one", lambda node: []).random.random()

    assert numbers() == numbers(two=None)


def calls_per_step(nodes, steps=3000):
    """Count the Python calls of a step, which is its cost on a machine of any speed; some nodes come and go."""
    net = small_network(1, clients=nodes, count=10_000)
    net.run(0.2)
    for number in range(5):
        name = f"client{number}"
        net.at(net.now + 0.001 * number, lambda name=name: net.partition([name], ["hub"]))
        net.at(net.now + 0.005 * number, lambda name=name: (net.heal(), net.restart(name)))
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(steps):
            net.step()
    finally:
        sys.setprofile(None)
    return calls / steps


def test_a_step_costs_the_same_in_a_network_of_any_size():
    assert calls_per_step(400) < 1.1 * calls_per_step(20)


def test_messages_are_counted_where_they_are_on_demand():
    net = small_network(1)
    net.run(3)
    net.check()
    net.nodes["hub"].sockets[0].inbox.append((None, (b"from nowhere",)))
    with pytest.raises(SimFailure, match=r"1 messages are under way.*all was well at step \d+"):
        net.check()


@pytest.mark.seeds(100)
def test_echo_comes_to_rest_whatever_the_seed(seed: int):
    net = play_faults(seed)
    assert net.run_until(lambda: net.in_flight == 0, limit=10)
