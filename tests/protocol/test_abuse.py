"""Whatever comes: no exception, no growth, and every message counted."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from scale0_core.config.network import User
from scale0_core.container import registry
from scale0_core.network import dispatch, management, offenders
from scale0_core.protocol.states import BrokerState
from scale0_core.testing import check_service
from scale0_core.testing.fuzz import Fuzzer

pytestmark = pytest.mark.usefixtures("quick_passwords")

USERS = (User("ada", "secret", "admin"),)


def sample(socket: str, who: str, command: str, /, *body: str | bytes, req: bool = False, **options: Any):
    header = "S0W01" if socket == "backend" else "S0C01"
    return (socket, (who, *([""] if req else []), header, command, json.dumps(options) if options else "", *body))


def samples() -> Iterator[Any]:
    """Good messages of all commands, from a few clients and workers."""
    for number in range(3):
        who, identity = f"w{number}", f"worker-{number % 2}"
        yield sample("backend", who, "CHECKCONFIG", identity=identity, services=["echo"], config_type="JSON")
        yield sample(
            "backend", who, "READY", services=["echo", "convert"], window=number, hbeatinterval=3000, cancel=number > 0
        )
        yield sample("backend", who, "HEARTBEAT", config_version=1)
        yield sample("backend", who, "TASKREPLY", "echo", number.to_bytes(8, "big"), "done")
        yield sample("backend", who, "TASKREPLY", "echo", (number + 5).to_bytes(8, "big"), "done", more=True)
        yield sample("frontend", f"c{number}", "TASK", "echo", "1", "payload", timeout=100 * number, retry=number > 1)
        yield sample("frontend", f"c{number}", "TASK", "convert", f"{number}", "payload")
        yield sample("frontend", f"c{number}", "CANCEL", "echo", "1")
        yield sample("frontend", f"c{number}", "CANCEL", "convert", f"{number}")
    yield sample("backend", "r", "CHECKCONFIG", req=True, identity="lock-step", config_type="XML", config_version=1)
    yield sample("backend", "r", "READY", req=True, services="echo,other", heartbeat=False, metadata={"version": "1"})
    yield sample("backend", "r", "HEARTBEAT", req=True, time=1_700_000_000)
    yield sample("backend", "r", "DISCONNECT", req=True, reason="bye")
    yield sample("frontend", "c", "CHECKCONFIG", identity="c", services=[], config_version=7)
    yield sample("frontend", "c", "PING", "body", time=1.5)
    yield sample("frontend", "c", "PING", req=True)
    yield sample("frontend", "c", "NEEDBROKER", identity="c", services=["echo"], group="g", unreachable=["b2"])
    yield sample("frontend", "c", "DISCONNECT")
    yield sample("frontend", "c", "MANAGEMENTREQ", command="state", auth_id="ada", auth_password="secret")
    yield sample("frontend", "c", "MANAGEMENTREQ", command="kick", args={"identity": "worker-1"}, auth_id="ada")
    for command in ("state", "list_clients", "list_services", "list_error_clients", "clear_error_client", "enable"):
        yield sample("management", "m", "MANAGEMENTREQ", command=command)
    yield sample("management", "m", "MANAGEMENTREQ", command="reload_config", args={})
    yield sample("management", "m", "MANAGEMENTREQ", command="kick", args={"identity": "worker-0"})


DISABLING = sample("management", "m", "MANAGEMENTREQ", command="disable")


@pytest.mark.seeds(4)
def test_the_broker_keeps_its_contract_whatever_comes(talk, seed: int):
    # a high threshold, or silence would keep most of it away
    report = check_service(
        lambda: talk(users=USERS, error_client_threshold=10_000).broker, messages=5000, seed=seed, samples=samples()
    )
    assert report.messages == 5000
    assert report.sends > 500
    assert report.jobs > 10


@pytest.mark.parametrize("state", list(BrokerState))
def test_the_broker_keeps_its_contract_in_every_state(talk, state: BrokerState):
    check_service(lambda: talk(state=state, users=USERS).broker, messages=2000, samples=[*samples(), DISABLING])


@pytest.mark.real
def test_a_million_messages(talk, monkeypatch: pytest.MonkeyPatch):
    small_bounds(monkeypatch)
    script = talk(users=USERS, error_client_threshold=1000, max_task_timeout=5000)
    fuzzer = Fuzzer(Random(1), script.broker.endpoints, samples())
    # nobody sends to "config", and to "hosted" only the container, for services that it has
    sockets = [name for name in script.broker.endpoints if name not in ("config", dispatch.HOSTED)]
    random = Random(2)
    weights = []
    for number in range(1_000_000):
        socket = random.choice(sockets)
        script.feed(socket, *fuzzer.message(socket))
        if number % 50 == 0:
            script.sleep(0.5)
        if number % 100_000 == 50_000:
            script.sleep(120)
            script.sent.clear()
            script._unexpected.clear()
            weights.append(weigh(script.broker))
    assert script._driver.host.counts.received == 1_000_000
    assert script._driver.host.counts.errors == 0
    assert weights[-1] < 1.5 * weights[1] + 1000, weights


# growth

LEFT_OUT = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def weigh(start: object) -> int:
    """Count all objects that belong to another; keys of a dict that are texts are not among its referents."""
    seen: set[int] = set()
    keys = 0
    stack = [start]
    while stack:
        current = stack.pop()
        if id(current) in seen or isinstance(current, LEFT_OUT):
            continue
        seen.add(id(current))
        keys += len(current) if isinstance(current, dict) else 0
        stack.extend(gc.get_referents(current))
    return len(seen) + keys


def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower all bounds, so that a few hundred messages reach them."""
    monkeypatch.setattr(dispatch, "MOST_FRONTENDS", 50)
    monkeypatch.setattr(dispatch, "MOST_SERVICES_KNOWN", 300)
    monkeypatch.setattr(dispatch, "MOST_SECOND_TRIES", 50)
    monkeypatch.setattr(offenders, "MOST_REMEMBERED", 50)
    monkeypatch.setattr(management, "MOST_REMEMBERED", 50)
    monkeypatch.setattr(registry, "CHANGES_KEPT", 50)


def junk(script, number: int) -> None:
    script.feed("frontend", f"{number}", "junk", "x")


def unknown_services(script, number: int) -> None:
    script.task(f"{number}", f"service-{number}", f"{number}")


def open_tasks(script, number: int) -> None:
    script.task(f"{number}", "echo", f"{number}", timeout=100)


def one_client_many_tasks(script, number: int) -> None:
    script.task("c", "echo", f"{number}", timeout=100)


def identities(script, number: int) -> None:
    script.say("backend", f"{number}", "CHECKCONFIG", identity=f"worker-{number}")


def workers(script, number: int) -> None:
    identities(script, number)
    script.ready(f"{number}", f"service-{number}", hbeatinterval=24 * 3600 * 1000)
    script.refuse("backend", f"{number}")  # and it leaves


def services(script, number: int) -> None:
    script.ready("w2", *(f"service-{number}-{part}" for part in range(20)))


def metadata(script, number: int) -> None:
    script.ready("w2", "echo", metadata={f"key-{number}": "x"})


def claims(script, number: int) -> None:
    script.say("backend", f"{number}", "CHECKCONFIG", identity="worker-1")


def replies(script, number: int) -> None:
    script.reply(f"{number}", f"number-{number}")


def user_names(script, number: int) -> None:
    script.request("state", socket="frontend", who=f"{number}", auth_id=f"user-{number}", auth_password="x")


def commands(script, number: int) -> None:
    script.say("frontend", f"{number}", f"COMMAND{number}")


def frontends(script, number: int) -> None:
    script.say("frontend", f"{number}", "CHECKCONFIG", identity=f"client-{number}")


def deaf_clients(script, number: int) -> None:
    script.refuse("frontend", f"{number}", "EAGAIN")
    script.task(f"{number}", f"service-{number}", f"{number}")


def pings(script, number: int) -> None:
    script.say("frontend", f"{number}", "PING", f"{number}")


ATTACKS = [
    junk, unknown_services, open_tasks, one_client_many_tasks, identities, workers, services, metadata, claims,
    replies, user_names, commands, frontends, deaf_clients, pings,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_ever_new_names_do_not_make_the_broker_grow(talk, attack: Callable[..., None], monkeypatch):
    small_bounds(monkeypatch)
    script = talk(users=USERS, queue_limit=20, client_limit=20)
    script.join("w1", "echo", heartbeat=False, identity="worker-1")
    script.check("w2")
    script.ready("w2")
    weights = []
    for number in range(3000):
        attack(script, number)
        if number % 10 == 9:
            script.sleep(1)
            script.beat("w2")
        if number % 500 == 499:
            script.sleep(70)
            script.beat("w2")
            script.heard()
            weights.append(weigh(script.broker))
    assert max(weights[2:]) <= weights[1] * 1.1 + 300, weights


def test_a_growing_thing_would_be_seen(talk):
    script = talk()
    before = weigh(script.broker)
    script.broker.counts.update({f"name-{number}": 1 for number in range(1000)})
    assert weigh(script.broker) > before + 900
