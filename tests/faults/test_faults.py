"""Real processes that are killed, frozen or busy: what callers, workers and the broker make of it."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import Future
from typing import Any

import pytest
import zmq

from scale0_core.client import BrokerLostError, CallError, CallTimedOutError, Client, Reply, Stage
from scale0_core.client.kit.route import Place, Route
from scale0_core.client.session import Task, WorkerSession
from scale0_core.testing.broker import BrokerStarter, ProcessBroker

from .conftest import ClientMaker
from .processes import (
    PATIENCE,
    Crew,
    ask,
    await_state,
    eventually,
    frozen,
    raw_peer,
    start_again,
    workers_of,
)

INTERVAL = 0.3
EXPIRY = 3 * INTERVAL
QUICK = {"network": {"default_heartbeat_interval": int(INTERVAL * 1000), "liveness": 3}, "log": {"level": "debug"}}

LONG = 120.0
"""A deadline that no call here comes near to: what ends sooner has ended by itself."""


def frontend(broker: ProcessBroker) -> str:
    return broker.address("scale0", "frontend")


def who(reply: Reply, task: str) -> str:
    """Give the identity of the worker that answered, and see that it is the answer to this task."""
    assert reply[0].decode() == task
    return reply[1].decode()


def call_echo(caller: Client, *tasks: str) -> set[str]:
    """Make calls one after the other; give who answered."""
    return {who(caller.call("echo", task.encode(), timeout=PATIENCE), task) for task in tasks}


def states_logged(broker: ProcessBroker, identity: str, since: int = 0) -> list[str]:
    """Give the states that the broker's log tells of a worker."""
    return [
        line["state"]
        for line in broker.log[since:]
        if line.get("event") == "worker changed" and line["identity"] == identity
    ]


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_is_killed_with_tasks_in_hand(scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    doomed = crew(frontend(broker), "doomed", concurrency=4).wait_ready()
    calls: dict[str, Future[Reply]] = {
        task: caller.submit("sleep", task.encode(), b"100", b"doomed", timeout=LONG, retry=task.startswith("again"))
        for task in ("again-1", "once-1", "again-2", "once-2")
    }
    doomed.wait_begun(*calls)
    crew(frontend(broker), "spare", concurrency=2).wait_ready()
    killed = time.monotonic()
    doomed.kill()
    for task in ("once-1", "once-2"):
        with pytest.raises(CallTimedOutError) as caught:
            calls[task].result(PATIENCE)
        assert caught.value.code == 408
        assert "is gone" in caught.value.problem.why
        assert crew.executions(task) == ["doomed"]
    for task in ("again-1", "again-2"):
        assert who(calls[task].result(PATIENCE), task) == "spare"
        assert crew.executions(task) == ["doomed", "spare"]
    assert time.monotonic() - killed < LONG / 2
    assert set(workers_of(broker)) == {"spare"}
    assert ask(broker, "state")["counts"]["redispatched"] == 2


def test_a_worker_is_killed_and_comes_back_under_its_name(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    for life in range(3):
        worker = crew(frontend(broker), "phoenix").wait_ready()
        assert call_echo(caller, f"life-{life}") == {"phoenix"}
        worker.kill()
    assert len(workers_of(broker)) <= 1


@pytest.mark.requirement("R14")
def test_a_frozen_worker_gets_nothing_new_and_its_reply_counts(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    ice = crew(frontend(broker), "ice", concurrency=2).wait_ready()
    held = caller.submit("sleep", b"held", b"0.2", timeout=LONG)
    ice.wait_begun("held")
    with frozen(ice.process.pid):
        crew(frontend(broker), "other").wait_ready()
        row = await_state(broker, "ice", "unresponsive")
        assert row["open_tasks"] == 1
        tasks = [f"meanwhile-{number}" for number in range(20)]
        assert call_echo(caller, *tasks) == {"other"}
        assert workers_of(broker)["ice"]["state"] == "unresponsive"
        assert not held.done()
    assert who(held.result(PATIENCE), "held") == "ice"
    await_state(broker, "ice", "ready")
    assert crew.executions("held") == ["ice"]
    # least recently used: of two that are free, both get their turn
    assert call_echo(caller, *(f"after-{number}" for number in range(4))) == {"ice", "other"}
    assert [line["connection"] for line in ice.records("begin")][-1] == ice.records("ready")[0]["connection"]


@pytest.mark.requirement("R14")
def test_a_worker_that_holds_the_gil_is_busy_not_dead(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    for name in ("one", "two"):
        crew(frontend(broker), name, concurrency=4).wait_ready()  # room for more, so that it would get more
    since = len(broker.log)
    began = time.monotonic()
    held = caller.submit("hold", b"hold", b"6", timeout=LONG)
    (holder,) = eventually(lambda: crew.executions("hold"))
    free = ({"one", "two"} - {holder}).pop()
    await_state(broker, holder, "unresponsive")
    assert call_echo(caller, *(f"meanwhile-{number}" for number in range(20))) == {free}
    assert workers_of(broker)[holder]["state"] == "unresponsive"
    assert not held.done()
    assert who(held.result(PATIENCE), "hold") == holder
    assert time.monotonic() - began > 4 * EXPIRY
    await_state(broker, holder, "ready")
    assert crew.executions("hold") == [holder]
    assert "gone" not in states_logged(broker, holder, since)
    assert call_echo(caller, *(f"after-{number}" for number in range(4))) == {holder, free}


def test_a_frozen_worker_keeps_its_task_while_the_configuration_changes(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    """It answers all the broker's questions at once when it wakes, before it has read that it is to negotiate."""
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    ice = crew(frontend(broker), "ice", concurrency=2).wait_ready()
    held = caller.submit("sleep", b"held", b"0.2", timeout=LONG)
    ice.wait_begun("held")
    with frozen(ice.process.pid):
        config = broker.folder / "broker.toml"
        config.write_text(config.read_text().replace("[network]", "[network]\ntask_timeout = 29000"))
        assert ask(broker, "reload_config")["config_version"] == 2
        eventually(lambda: workers_of(broker)["ice"]["age_ms"] > (EXPIRY + 6 * INTERVAL) * 1000)
    assert who(held.result(PATIENCE), "held") == "ice"
    assert eventually(lambda: workers_of(broker)["ice"]["config_version"] == 2)
    assert len({line["connection"] for line in ice.records() if "connection" in line}) == 1


def test_a_task_that_crosses_a_negotiation_is_done() -> None:
    """When the configuration changes, the broker goes on giving tasks: the worker is as ready as it was."""
    tasks: list[Task] = []
    place = Place("ipc:///frontend", "ipc:///backend")
    session = WorkerSession(Route(place), identity="w", begin=tasks.append, wall_time=time.time)
    session.offer(["echo"], 0.0)
    session.start(0.0)
    session.on_linked(0.0)
    for command, options in (
        (b"CONFIGACK", b'{"config_version":1}'),
        (b"READYOK", b'{"hbeatinterval":300,"liveness":3}'),
        (b"FORCENEGOTIATE", b'{"code":426}'),
    ):
        session.receive((b"S0W01", command, options), 1.0)
    session.receive((b"S0W01", b"TASK", b"", b"echo", b"1", b"payload"), 1.0)
    assert [task.payload for task in tasks] == [(b"payload",)]


# --- the broker stands still ------------------------------------------------------------------------------------------


def negotiate(peer: zmq.Socket[bytes], identity: str) -> None:
    """Become a worker, by hand."""
    about: dict[str, Any] = {"identity": identity, "services": ["by hand"]}
    peer.send_multipart([b"S0W01", b"CHECKCONFIG", json.dumps(about).encode()])
    assert peer.recv_multipart()[1] in (b"CONFIG", b"CONFIGACK")
    about = {"services": ["by hand"], "window": 1, "hbeatinterval": 500}
    peer.send_multipart([b"S0W01", b"READY", json.dumps(about).encode()])
    assert peer.recv_multipart()[1] == b"READYOK"


def said(peer: zmq.Socket[bytes], seconds: float = 0.0) -> list[bytes]:
    """Give the commands that have come."""
    found = []
    while peer.poll(int(seconds * 1000)):
        found.append(peer.recv_multipart()[1])
    return found


@pytest.mark.requirement("R14")
def test_nobody_expires_because_the_broker_stood_still(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    settings = {**QUICK, "network": {**QUICK["network"], "default_heartbeat_interval": 500}}
    broker = scale0_broker([], settings)
    caller = client(broker)
    worker = crew(frontend(broker), "at work", interval=0.5, concurrency=2).wait_ready()
    held = {task: caller.submit("sleep", task.encode(), b"3", timeout=LONG) for task in ("one", "two")}
    worker.wait_begun(*held)
    backend = broker.address("scale0", "backend")
    with raw_peer(backend) as silent, raw_peer(backend) as steady:
        negotiate(silent, "silent")
        negotiate(steady, "steady")
        silent.send_multipart([b"S0W01", b"HEARTBEAT", b""])
        assert silent.recv_multipart()[1] == b"HEARTBEAT"
        since = len(broker.log)
        with frozen(broker.process.pid):
            end = time.monotonic() + 4 * 1.5
            beats = 0
            while time.monotonic() < end:  # what is shown is that nothing happens: there is no event to wait for
                steady.send_multipart([b"S0W01", b"HEARTBEAT", b""])
                beats += 1
                time.sleep(0.5)
        silent.send_multipart([b"S0W01", b"HEARTBEAT", b""])
        broker.wait_for("the broker stood still; all deadlines move by as much")
        states = {identity: row["state"] for identity, row in workers_of(broker).items()}
        assert states["silent"] in ("ready", "busy")
        assert states["steady"] in ("ready", "busy")
        assert set(said(silent, 0.2)) == {b"HEARTBEAT"}
        heard = said(steady, 0.2)
        assert set(heard) == {b"HEARTBEAT"}
        assert len(heard) >= beats
        for identity in ("silent", "steady"):
            assert set(states_logged(broker, identity, since)) <= {"ready", "busy"}, broker.text()
    for task, call in held.items():  # a worker with tasks in hand waits for a broker that stands still
        assert who(call.result(PATIENCE), task) == "at work"
        assert crew.executions(task) == ["at work"]
    call_echo(caller, "after")
    assert set(states_logged(broker, "at work", since)) <= {"ready", "busy"}
    assert len({line["connection"] for line in (*worker.records("ready"), *worker.records("begin"))}) == 1


def test_idle_workers_are_back_after_the_broker_stood_still(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    """Those without a task look for their broker anew when it is silent for long; all come back, none twice."""
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    names = {f"idle-{number}" for number in range(3)}
    for name in names:
        crew(frontend(broker), name)
    eventually(lambda: workers_of(broker).keys() == names)
    call_echo(caller, "before")
    with frozen(broker.process.pid):
        once = caller.submit("echo", b"once", timeout=LONG)
        again = caller.submit("echo", b"again", timeout=LONG, retry=True)
        time.sleep(4 * EXPIRY)  # nothing happens, which is the point
    assert who(again.result(PATIENCE), "again") in names
    with contextlib.suppress(CallError):  # 504 when it was handed to a connection that its worker had given up
        assert who(once.result(PATIENCE), "once") in names
    eventually(lambda: {n for n, row in workers_of(broker).items() if row["state"] == "ready"} == names)
    assert len(crew.executions("once")) <= 1


# --- the broker is killed ---------------------------------------------------------------------------------------------


def test_all_are_back_after_the_broker_was_killed(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    """Within three heartbeats of the new broker's start, and no call is left without an answer."""
    settings = {"network": {"default_heartbeat_interval": 3000, "liveness": 3}}
    broker = scale0_broker([], settings)
    names = {f"worker-{number}" for number in range(3)}
    for name in names:
        crew(frontend(broker), name, interval=3.0, concurrency=2)
    eventually(lambda: workers_of(broker).keys() == names)
    clients = [client(broker) for _ in range(3)]
    for number, caller in enumerate(clients):
        call_echo(caller, f"before-{number}")
    versions = [caller.config_version for caller in clients]
    under_way: dict[str, Future[Reply]] = {}
    for number, caller in enumerate(clients):
        for kind, retry in (("again", True), ("once", False)):
            task = f"{kind}-{number}"
            under_way[task] = caller.submit("sleep", task.encode(), b"0.5", timeout=LONG, retry=retry)
    eventually(lambda: all(crew.executions(task) for task in under_way))
    broker.kill()
    for number, caller in enumerate(clients):
        with pytest.raises(BrokerLostError):  # it may have been done: who made the call decides
            under_way[f"once-{number}"].result(PATIENCE)
        under_way[f"new-{number}"] = caller.submit("echo", f"new-{number}".encode(), timeout=LONG, retry=True)
    broker = start_again(scale0_broker, broker, settings)
    ready = time.monotonic()
    for caller in clients:
        caller.ping(PATIENCE)
    eventually(lambda: {n for n, row in workers_of(broker).items() if row["state"] in ("ready", "busy")} == names)
    back = time.monotonic() - ready
    assert back < 3 * 3.0, f"all were back after {back:.1f} s"
    for task, call in under_way.items():
        if task.startswith("once"):
            assert len(crew.executions(task)) == 1
        else:
            assert who(call.result(PATIENCE), task) in names
    assert [caller.config_version for caller in clients] == versions


# --- a disabled broker ------------------------------------------------------------------------------------------------


REQUESTS = [
    [b"S0C01", b"PING", b""],
    [b"S0C01", b"TASK", b"", b"echo", b"1", b"task"],
    [b"S0C01", b"CHECKCONFIG", b'{"identity":"c"}'],
    [b"S0C01", b"NEEDBROKER", b'{"services":[]}'],
    [b"S0C01", b"NONSENSE", b""],
    [b"not of this world"],
]
COMMANDS = (
    "list_clients", "list_services", "list_peers", "list_error_clients", "config", "clear_error_client", "kick",
    "resume", "disable", "reload_config", "nonsense",
)  # fmt: skip
"""What nobody may ask of a disabled broker: all but ``state`` and ``enable``."""


def request(command: str) -> list[bytes]:
    return [b"S0C01", b"MANAGEMENTREQ", json.dumps({"command": command}).encode()]


def assert_silent(broker: ProcessBroker) -> None:
    """Try everything but an ``enable`` that counts: the owner's private socket is told the state, and that is all."""
    with (
        raw_peer(frontend(broker)) as front,
        raw_peer(broker.address("scale0", "backend")) as back,
        raw_peer(broker.address("scale0", "management")) as manager,
    ):
        for frames in (*REQUESTS, *map(request, COMMANDS)):
            for peer in (front, back, manager):
                peer.send_multipart(frames)
        for stranger in (front, back):
            for command in ("state", "enable"):
                stranger.send_multipart(request(command))
        for header in ("CHECKCONFIG", "READY", "HEARTBEAT", "DISCONNECT"):
            back.send_multipart([b"S0W01", header.encode(), b'{"identity":"w","services":["x"]}'])
        for peer in (front, back, manager):
            assert not said(peer, 0.3)
        # asked after all of that, and answered first
        manager.send_multipart(request("state"))
        _, answer, _, told = manager.recv_multipart()
        assert (answer, json.loads(told)["state"]) == (b"MANAGEMENTREP", "disabled")
        for peer in (front, back, manager):
            assert not said(peer, 0.3)


@pytest.mark.requirement("R63")
@pytest.mark.requirement("R66")
@pytest.mark.requirement("R67")
def test_a_disabled_broker_answers_nothing_but_enable_whatever_happens_to_it(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    crew(frontend(broker), "one").wait_ready()
    assert call_echo(caller, "before") == {"one"}
    assert ask(broker, "disable") == {"state": "disabled"}
    assert_silent(broker)
    broker.kill()
    broker = start_again(scale0_broker, broker, QUICK)
    assert_silent(broker)
    with pytest.raises(CallTimedOutError) as caught:
        caller.call("echo", b"never", timeout=1.0)
    assert caught.value.stage in (Stage.BROKER, Stage.CONNECTING)
    assert not crew.executions("never")
    assert ask(broker, "enable") == {"state": "active"}
    caller.ping(PATIENCE)
    await_state(broker, "one", "ready")
    assert call_echo(caller, "after") == {"one"}
    # enabled is kept as well
    broker.kill()
    broker = start_again(scale0_broker, broker, QUICK)
    assert ask(broker, "state")["state"] == "active"


def test_a_call_that_meets_a_disabled_broker_goes_through_when_it_is_enabled(
    scale0_broker: BrokerStarter, crew: Crew, client: ClientMaker
) -> None:
    broker = scale0_broker([], QUICK)
    caller = client(broker)
    crew(frontend(broker), "one").wait_ready()
    call_echo(caller, "before")
    ask(broker, "disable")
    again = caller.submit("echo", b"again", timeout=LONG, retry=True)
    once = caller.submit("echo", b"once", timeout=3 * EXPIRY)
    with pytest.raises(CallError) as caught:
        once.result(PATIENCE)
    assert caught.value.code == 408
    ask(broker, "enable")
    assert who(again.result(PATIENCE), "again") == "one"
    assert not crew.executions("once")
