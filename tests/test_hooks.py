"""Hooks stay honest: each is documented, has a test of its own name here, and is used by a real plugin.

A hook that nobody in this repository needs is not added.
"""

from __future__ import annotations

import ast
import inspect
import re
import threading
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zmq

from scale0_core import hookspecs
from scale0_core.api import (
    BatchReport,
    BrokerContext,
    Endpoint,
    Event,
    EventKind,
    EventSource,
    PluginInfo,
    RunningBroker,
    hookimpl,
)
from scale0_core.client import Client, Worker
from scale0_core.container.reporter import Reporter
from scale0_core.plugins import PluginSet, installed_plugins

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "hooks.md"

HOOKS = {
    name: hook
    for name, hook in vars(hookspecs).items()
    if isinstance(hook, types.FunctionType) and hasattr(hook, f"{hookspecs.PROJECT}_spec")
}


def test_the_hooks_are_found():
    assert {"scale0_plugin_info", "scale0_services", "scale0_started"} <= set(HOOKS)
    assert [name for name in vars(hookspecs) if name.startswith("scale0_")] == list(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented(name: str):
    text = inspect.getdoc(HOOKS[name]) or ""
    parts = [re.search(rf"^{part}: \S", text, re.MULTILINE) for part in ("When it is called", "Order")]
    assert None not in parts
    described = re.findall(r"^:param (\w+): \S", text, re.MULTILINE)
    assert list(inspect.signature(HOOKS[name]).parameters) == described
    first = text.splitlines()[0]
    assert first.endswith(".")
    assert first[0].isupper()


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_typed(name: str):
    signature = inspect.signature(HOOKS[name])
    annotations = [parameter.annotation for parameter in signature.parameters.values()]
    assert inspect.Signature.empty not in [*annotations, signature.return_annotation]
    returns = signature.return_annotation != "None"
    assert returns == (":return: " in (inspect.getdoc(HOOKS[name]) or ""))


def test_every_hook_stands_in_the_reference():
    assert REFERENCE.exists(), f"{REFERENCE.relative_to(ROOT)} is to be generated from scale0_core/hookspecs.py"
    text = REFERENCE.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ .*?`?(scale0_\w+)", text, re.MULTILINE)
    assert list(HOOKS) == headings
    for name, hook in HOOKS.items():
        section = text[text.index(name) :]
        assert all(parameter in section for parameter in inspect.signature(hook).parameters)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_test_of_its_own_name(name: str):
    functions = [node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.FunctionDef)]
    own = [node for node in functions if node.name == f"test_hook_{name}"]
    assert len(own) == 1
    assert name in ast.unparse(own[0])


def implemented_by(plugin: Any) -> set[str]:
    return {name for name in HOOKS if hasattr(getattr(plugin, name, None), f"{hookspecs.PROJECT}_impl")}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_used_by_a_real_plugin_of_this_repository(name: str):
    plugins = PluginSet()
    ours = [plugin for plugin in installed_plugins() if (ROOT / "plugins" / plugin).is_dir()]
    plugins.load_installed(ours)
    real = {"reporter": Reporter(), **{found.name: found.plugin for found in plugins.plugins.values()}}
    assert [plugin for plugin, made in real.items() if name in implemented_by(made)] != []


# one test for each hook: a plugin that implements it, in a real broker

INFO = PluginInfo(summary="made in a test", api=(2, 2))


class Doubler:
    """Answers with the body twice."""

    name = "doubler"

    def __init__(self, address: str) -> None:
        self.endpoints = {"main": Endpoint(kind="ROUTER", bind=address)}

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        return [(socket, (frames[0], frames[1] * 2))]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Any:
        return ()


DOUBLED = EventKind("doubled", "a message was doubled", ("bytes",))
RESTED = EventKind("rested", "nothing was to be done", ("bytes",))


def _told(reports: Iterable[BatchReport], of: str = "doubler") -> list[tuple[str, EventKind, dict[str, Any]]]:
    """Give the service, the kind and the fields of each event of a service, in order."""
    events = [(service, event) for report in reports for service, events in report.events for event in events]
    return [(service, event[0], event[0].table(event)) for service, event in events if service == of]


class Plugin:
    """A plugin that notes which hooks were called, with what."""

    info: ClassVar[PluginInfo] = INFO

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        self.calls.append(("scale0_plugin_info", None))
        return self.info

    @hookimpl
    def scale0_services(self, settings: Any, context: BrokerContext) -> list[Any]:
        self.calls.append(("scale0_services", (settings, context)))
        return [Doubler(context.address("ipc://{runtime}/doubler"))]

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        self.calls.append(("scale0_started", broker))

    @hookimpl
    def scale0_batch(self, report: BatchReport) -> None:
        self.calls.append(("scale0_batch", report))

    @hookimpl
    def scale0_stopping(self, broker: RunningBroker) -> None:
        self.calls.append(("scale0_stopping", broker))

    def got(self, hook: str) -> list[Any]:
        return [argument for name, argument in self.calls if name == hook]

    def events(self) -> list[Any]:
        return _told(self.got("scale0_batch"))


class Reports:
    """A plugin that keeps reports and does not ask for events."""

    def __init__(self) -> None:
        self.reports: list[BatchReport] = []
        self.rested = threading.Event()

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        return INFO

    @hookimpl
    def scale0_batch(self, report: BatchReport) -> None:
        self.reports.append(report)
        if any(event[0] is RESTED for _, events in report.events for event in events):
            self.rested.set()


def doubled(address: str, body: bytes) -> bytes:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send(body)
        return socket.recv()


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
def run(scale0_broker: Any, plugin: Plugin) -> Any:
    """Run a broker with the plugin, send it one message, and end it."""
    broker = scale0_broker.in_thread(extra={"noting": plugin}, settings={"wire": {"implementation": "pure"}})
    assert doubled(broker.address("doubler", "main"), b"ab") == b"abab"
    broker.stop()
    return broker


@pytest.mark.usefixtures("run")
def test_hooks_are_called_in_the_order_of_a_brokers_life(plugin: Plugin):
    names = [name for name, _ in plugin.calls]
    assert names[:3] == ["scale0_plugin_info", "scale0_services", "scale0_started"]
    assert {"scale0_batch"} == set(names[3:-1])
    assert names[-1] == "scale0_stopping"


def test_hook_scale0_plugin_info(plugin: Plugin):
    plugins = PluginSet()
    plugins.add("noting", plugin)
    assert plugin.got("scale0_plugin_info") == [None]
    assert plugins.plugins["noting"].info == INFO


def test_hook_scale0_services(plugin: Plugin, run: Any):
    context = BrokerContext(name=run.name, runtime_dir=str(run.folder), data_dir=str(run.folder / "data"))
    assert [(None, context)] == plugin.got("scale0_services")


def test_hook_scale0_started(plugin: Plugin, run: Any):
    (broker,) = plugin.got("scale0_started")
    addresses = {"main": (f"ipc://{run.folder}/doubler",)}
    assert (run.name, "pure", addresses) == (broker.name, broker.wire, broker.addresses["doubler"])
    assert sorted(broker.counts) == ["doubler", "scale0"]


@pytest.mark.usefixtures("run")
def test_hook_scale0_batch(plugin: Plugin):
    reports = plugin.got("scale0_batch")
    assert [report.received for report in reports if report.received] == [{"doubler": 1}]
    assert sum(report.sent for report in reports) == 1
    assert [failure for report in reports for failure in report.failed] == []
    assert all(report.seconds >= 0 for report in reports)
    assert sorted(report.now for report in reports) == [report.now for report in reports]


class Telling(Doubler):
    """Tells of each message, and of each deadline: there is one, a moment after a message."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.events: list[Event] | None = None
        self.due: float | None = None

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        self.due = now + 0.01
        self._tell(DOUBLED, now, len(frames[1]))
        return super().receive(socket, frames, now)

    def next_deadline(self) -> float | None:
        return self.due

    def on_deadline(self, now: float) -> Any:
        self.due = None
        self._tell(RESTED, now, 0)
        return ()

    def _tell(self, kind: EventKind, now: float, size: int) -> None:
        if self.events is not None:
            self.events.append((kind, now, size))


class TellingPlugin(Plugin):
    """Hosts a service that tells of events, and perhaps observes them."""

    def __init__(self, observes: bool) -> None:
        super().__init__()
        self.info = PluginInfo(summary="made in a test", api=(2, 2), observes_events=observes)  # type: ignore[misc]

    @hookimpl
    def scale0_services(self, settings: Any, context: BrokerContext) -> list[Any]:
        self.service = Telling(context.address("ipc://{runtime}/doubler"))
        return [self.service]


@pytest.mark.parametrize("wire", ["auto", "pure"])
def test_events_reach_a_plugin_that_observes_them(scale0_broker: Any, wire: str):
    plugin, other = TellingPlugin(observes=True), Reports()
    broker = scale0_broker.in_thread(
        extra={"telling": plugin, "other": other}, settings={"wire": {"implementation": wire}}
    )
    assert isinstance(plugin.service, EventSource)
    assert doubled(broker.address("doubler", "main"), b"ab") == b"abab"
    assert other.rested.wait(30)
    broker.stop()
    expected = [("doubler", DOUBLED, {"bytes": 2}), ("doubler", RESTED, {"bytes": 0})]
    assert plugin.events() == expected
    assert _told(other.reports) == expected
    alone = [report for report in plugin.got("scale0_batch") if _told([report]) == expected[1:]]
    assert [(report.received, report.sent, report.failed) for report in alone] == [({}, 0, [])]
    ((_, (event,)),) = alone[0].events
    assert event[1] == alone[0].now
    assert plugin.service.events == []


def test_the_broker_itself_tells_of_workers_and_tasks(scale0_broker: Any):
    plugin = TellingPlugin(observes=True)
    broker = scale0_broker.in_thread(extra={"telling": plugin}, settings={"network": {"group": "south"}})

    def told(wanted: str) -> list[dict[str, Any]]:
        told = _told(plugin.got("scale0_batch"), "scale0")
        return [table for _, kind, table in told if kind.name == wanted]

    address = broker.address("scale0", "frontend")
    with Worker(address, identity="busy") as worker, Client(address) as client:
        worker.add("echo", lambda text: text)
        worker.wait_ready()
        assert client.call("echo", b"four", retry=True).body == b"four"
    end = time.monotonic() + 60
    while not told("leave") and time.monotonic() < end:  # it is on its way to the broker
        time.sleep(0.01)
    broker.stop()
    worked = {"service": "echo", "peer": "busy", "group": "south"}
    assert told("join")[0] == {**worked, "count": 1}
    task, leave = told("task")[-1], told("leave")[-1]
    assert min(task.pop("queue_us"), task.pop("service_us"), leave.pop("value")) >= 0
    assert task == {**worked, "outcome": "ok", "bytes": 4}
    assert leave == {**worked, "outcome": "left"}


def test_no_events_are_made_while_nobody_observes(scale0_broker: Any):
    plugin = TellingPlugin(observes=False)
    broker = scale0_broker.in_thread(extra={"telling": plugin})
    assert doubled(broker.address("doubler", "main"), b"ab") == b"abab"
    broker.stop()
    assert plugin.service.events is None
    assert plugin.events() == []


class Silent(Telling):
    """Says that it tells of events, and takes no list for them."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "events" and value is not None:
            raise ValueError("no list is wanted here")
        super().__setattr__(name, value)


def test_a_service_that_takes_no_list_for_events_harms_no_other(scale0_broker: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.test_hooks.Telling", Silent)
    plugin = TellingPlugin(observes=True)
    broker = scale0_broker.in_thread(extra={"telling": plugin})
    assert doubled(broker.address("doubler", "main"), b"ab") == b"abab"
    broker.stop()
    (running,) = plugin.got("scale0_stopping")
    assert running.counts["doubler"].errors > 0
    assert plugin.events() == []


@pytest.mark.usefixtures("run")
def test_hook_scale0_stopping(plugin: Plugin):
    (broker,) = plugin.got("scale0_stopping")
    counts = broker.counts["doubler"]
    assert (counts.received, counts.sent, counts.errors) == (1, 1, 0)
    assert "doubler" in broker.addresses  # its sockets are still open
    assert broker.addresses["doubler"]["main"]
