"""A whole broker in the simulated network: the same plugins and the same services as in a process."""

from __future__ import annotations

import json

import pytest

from scale0_core.errors import ConfigError, PluginContractError
from scale0_core.service import Endpoint, SocketKind
from scale0_core.testing import SimBroker, SimClient, SimNetwork, SimWorker
from scale0_discovery.plugin import DiscoveryPlugin
from scale0_echo.plugin import EchoPlugin

FRONTEND = "ipc:///run/b1/frontend"
PLUGINS = {"discovery": DiscoveryPlugin, "echo": EchoPlugin}


class Asker:
    """Sends requests when it is told to, and keeps the answers."""

    name = "asker"

    def __init__(self, node, address):
        self.endpoints = {"s": Endpoint(kind=SocketKind.DEALER, connect=[address])}
        self.node, self.due, self.answers = node, [], []

    def ask(self, *frames):
        self.due.append(frames)
        self.node.wake()

    def receive(self, socket, frames, now):
        self.answers.append(frames)
        return ()

    def next_deadline(self):
        return self.node.now if self.due else None

    def on_deadline(self, now):
        due, self.due = self.due, []
        return [("s", frames) for frames in due]


def play(*settings, plugins=None, address=FRONTEND):
    """Start a broker and somebody who asks at an address of it."""
    net = SimNetwork(3)
    net.add("b1", SimBroker("network.config_service=false", *settings, plugins=PLUGINS if plugins is None else plugins))
    asker = net.add("asker", lambda node: [Asker(node, address)]).services[0]
    net.run(1.0)
    return net, asker


def manage(net, asker, command, **arguments):
    asker.answers.clear()
    asker.ask(b"S0C01", b"MANAGEMENTREQ", json.dumps({"command": command, "args": arguments}).encode())
    net.run(1.0)
    _, _, options, result = asker.answers[-1]
    assert json.loads(options)["code"] == 200, options
    return json.loads(result)


def test_services_of_plugins_are_hosted_and_registered():
    net, asker = play(address="ipc:///run/b1/discovery")
    asker.ask(b"LIST")
    net.run(1.0)
    rows = json.loads(asker.answers[-1][1])["providers"]
    assert {row["service"]: row["kind"] for row in rows} == {
        "scale0": "hosted", "discovery": "hosted", "echo": "hosted",
    }  # fmt: skip
    assert {row["provider"] for row in rows} == {"b1"}


def test_a_service_exists_once():
    with pytest.raises(PluginContractError, match="a service that exists already"):
        play(plugins={"echo": EchoPlugin, "other": EchoPlugin})


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"plugin\.echo\.bnd"):
        play("plugin.echo.bnd=1")


def test_a_hosted_service_answers_on_its_own_socket_also_after_a_restart():
    net, asker = play("plugin.echo.bind=['ipc://{runtime}/echo']", address="ipc:///run/b1/echo")
    for lives in (1, 2):
        asker.ask(b"ECHO", b"", b"hello")
        net.run(1.0)
        assert asker.answers == lives * [(b"hello",)]
        net.restart("b1")
        net.run(1.0)


def test_workers_and_clients_find_each_other():
    def work(worker, task):
        worker.reply(task, task.payload[0].upper())

    net, _ = play(plugins={})
    net.add("w", lambda node: [SimWorker(node, FRONTEND, ["up"], work)])
    (client,) = net.add("c", lambda node: [SimClient(node, FRONTEND)]).services
    outcomes = []
    client.at(2.0, lambda: client.call("up", b"hello", ended=outcomes.append))
    net.run(3.0)
    assert [outcome.reply or str(outcome.error) for outcome in outcomes] == [(b"HELLO",)]


def test_the_state_of_a_broker_outlives_a_restart():
    net, asker = play(address="ipc:///run/b1/management")
    assert manage(net, asker, "state")["state"] == "active"
    manage(net, asker, "disable")
    net.restart("b1")
    net.run(2.0)
    assert manage(net, asker, "state")["state"] == "disabled"
    manage(net, asker, "enable")
    assert manage(net, asker, "state")["state"] == "active"


def test_clients_reach_a_hosted_service_by_its_name():
    net, _ = play()
    (client,) = net.add("c", lambda node: [SimClient(node, FRONTEND)]).services
    outcomes = []
    client.at(1.5, lambda: client.call("echo", b"ECHO", b"", b"hello", ended=outcomes.append))
    net.run(2.0)
    assert [outcome.reply or str(outcome.error) for outcome in outcomes] == [(b"hello",)]


@pytest.mark.parametrize("setting", ["disabled", "joining"])
def test_services_of_a_broker_that_does_not_serve_are_silent(setting):
    net, asker = play(f"network.state={setting}", address="ipc:///run/b1/discovery")
    owner = net.add("owner", lambda node: [Asker(node, "ipc:///run/b1/management")]).services[0]
    (client,) = net.add("c", lambda node: [SimClient(node, FRONTEND)]).services
    outcomes = []
    client.at(1.5, lambda: client.call("echo", b"ECHO", b"", b"hello", timeout=1.0, ended=outcomes.append))
    asker.ask(b"LIST")
    net.run(2.0)
    assert asker.answers == []
    assert [outcome.error is None for outcome in outcomes] == [False]
    assert manage(net, owner, "state")["state"] == setting
    if setting == "joining":
        return  # only a configuration lets it serve
    manage(net, owner, "enable")
    asker.ask(b"LIST")
    net.run(1.0)
    assert len(asker.answers) == 1


@pytest.mark.parametrize("seed", range(10))
def test_hosted_tasks_end_and_are_done_once_while_the_broker_dies_and_is_disabled(seed):
    net = SimNetwork(seed, detection=(0.0, 0.3), job_delay=(0.0, 0.05))
    net.add("b1", SimBroker("network.config_service=false", plugins=PLUGINS))
    owner = net.add("owner", lambda node: [Asker(node, "ipc:///run/b1/management")]).services[0]
    clients = [net.add(f"c{n}", lambda node: [SimClient(node, FRONTEND)]).services[0] for n in range(3)]
    outcomes = []
    for number in range(60):
        client, command = clients[number % 3], (b"ECHO", b"DIGEST", b"LATER")[number % 5 % 3]
        options = b"700" if command == b"LATER" else b""
        outcomes.append(None)

        def call(client=client, command=command, options=options, number=number):
            outcomes[number] = client.call("echo", command, options, b"%d" % number, timeout=3.0, retry=number % 2)

        client.at(1.0 + number * 0.1, call)
    for time in (2.0, 4.0, 6.0):
        net.at(time + net.nodes["b1"].random.random(), lambda: net.restart("b1"))
        net.at(time + 0.3, lambda: net.partition(["c1"], ["b1"]))
        net.at(time + 0.9, net.heal)
    for time, command in ((3.0, "disable"), (3.5, "enable")):
        request = json.dumps({"command": command}).encode()
        net.at(time, lambda request=request: owner.ask(b"S0C01", b"MANAGEMENTREQ", request))
    net.run(15.0)
    assert all(outcome.ended and outcome.ended <= outcome.call.deadline for outcome in outcomes)
    assert sum(outcome.reply is not None for outcome in outcomes) > 30
