"""The broker's own service: its sockets, and that it can be made and looked at without doing anything.

What it says to whom is in ``tests/protocol``: conversations, abuse and the simulated network.
"""

from __future__ import annotations

import pytest

from scale0_core.config.network import GroupConfig, NetworkConfig
from scale0_core.container.container import Container
from scale0_core.container.registry import Registry
from scale0_core.network.negotiation import RunningConfig
from scale0_core.network.service import BrokerService, Reloaded
from scale0_core.network.sockets import NetworkSockets
from scale0_core.service import JobResult, LaterResults, PeerWatcher, SocketKind, Undelivered
from scale0_core.testing.contract import endpoint_faults


class NoStore:
    def save_state(self, state: str) -> None:
        raise AssertionError

    def reload(self, known: RunningConfig, *, force: bool = False) -> Reloaded:
        raise AssertionError


def made(**sockets: tuple[str, ...]) -> BrokerService:
    addresses = {"frontend": ("ipc://f",), "backend": ("ipc://b",), "config": ("ipc://c",), "management": ("ipc://m",)}
    running = RunningConfig(NetworkConfig(identity="b1"), 1, "hash", GroupConfig(), {})
    return BrokerService(
        running,
        NetworkSockets(**{**addresses, **sockets}),
        store=NoStore(),
        registry=Registry(),
        wall_time=lambda: 1e9,
        services=Container(),
    )


@pytest.mark.requirement("R58")
@pytest.mark.requirement("R59")
@pytest.mark.requirement("R60")
def test_it_listens_where_it_is_told_to():
    service = made(frontend=("tcp://127.0.0.1:1", "ipc://f"))
    kinds = {name: (endpoint.kind, endpoint.bind) for name, endpoint in service.endpoints.items()}
    assert kinds == {
        "frontend": (SocketKind.ROUTER, ("tcp://127.0.0.1:1", "ipc://f")),
        "backend": (SocketKind.ROUTER, ("ipc://b",)),
        "config": (SocketKind.XPUB, ("ipc://c",)),
        "management": (SocketKind.ROUTER, ("ipc://m",)),
        "in_process": (SocketKind.ROUTER, ("@scale0",)),
        "hosted": (SocketKind.ROUTER, ("@tasks",)),
    }
    assert endpoint_faults(service) == []


def test_a_socket_without_an_address_is_not_opened():
    assert set(made(config=(), backend=()).endpoints) == {"frontend", "management", "in_process", "hosted"}


def test_connections_are_watched_where_work_is_done():
    watched = {name for name, endpoint in made().endpoints.items() if endpoint.watch_peers}
    assert watched == {"frontend", "backend", "in_process"}


def test_it_takes_all_that_the_core_can_tell():
    service = made()
    assert isinstance(service, LaterResults)
    assert isinstance(service, Undelivered)
    assert isinstance(service, PeerWatcher)


def test_it_wants_nothing_before_somebody_speaks():
    service = made()
    assert service.next_deadline() is None
    assert list(service.on_deadline(5.0)) == []
    assert service.registry.providers() == []


def test_subscriptions_to_configurations_are_no_messages():
    service = made()
    assert list(service.receive("config", (b"\x01CONFIG/",), 0.0)) == []
    assert service.counts == {}


def test_messages_without_frames_do_no_harm():
    service = made()
    assert list(service.receive("frontend", (), 0.0)) == []
    assert list(service.on_undelivered("frontend", (b"c", b"x"), "EHOSTUNREACH", 0.0)) == []
    assert service.counts == {"malformed 400": 1, "undelivered EHOSTUNREACH": 1}


def test_a_job_that_nobody_waits_for_does_no_harm():
    assert list(made().on_job(JobResult("what", error=OSError("disk")), 0.0)) == []


def test_the_registry_is_given_figures_of_services_that_exist():
    service = made()
    assert service.registry.stats("echo", "worker").requests == 0
    service.dispatcher.permitted(["echo"])
    service.dispatcher.services[b"echo"].requests = 7
    assert service.registry.stats("echo", "worker").requests == 7
