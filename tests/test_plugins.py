"""The plugin framework: whatever is wrong with one plugin gets a sentence, and the others are not affected."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import stevedore
import zmq

from scale0_core.api import API_VERSION, BatchReport, Endpoint, PluginInfo, hookimpl, setting
from scale0_core.config.files import read_config
from scale0_core.config.settings import BrokerSettings
from scale0_core.container.host import HostCounts
from scale0_core.errors import (
    ConfigError,
    Exit,
    Fault,
    PluginContractError,
    PluginError,
    PluginImportError,
    PluginMissingError,
    PluginStartError,
    PluginVersionError,
)
from scale0_core.io.broker import Broker
from scale0_core.plugin_types import BrokerContext, RunningBroker
from scale0_core.plugins import LEFT_OUT, PluginSet, duplicate_names, installed_plugins

CONTEXT = BrokerContext(name="test", runtime_dir="/run", data_dir="/data")
RUNNING = RunningBroker(name="test", wire="pure", addresses={}, counts={"echo": HostCounts()})
REPORT = BatchReport(1.0, 0.1, {}, 0, [])


class Made:
    """A plugin whose hooks are attributes of the instance."""


def made(**hooks: Any) -> Made:
    """Make a plugin; functions become hooks, and other values the answer of a hook."""
    plugin = Made()
    hooks.setdefault("scale0_plugin_info", PluginInfo(summary="made in a test", api=(2, 2)))
    for name, value in hooks.items():
        setattr(plugin, name, hookimpl(value if callable(value) else lambda value=value: value))
    return plugin


def fail() -> None:
    raise ValueError("on purpose")


class Quiet:
    name = "quiet"
    endpoints: ClassVar[dict[str, Endpoint]] = {}

    def receive(self, socket: str, frames: Any, now: float) -> Any:
        return ()

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Any:
        return ()


def plugin_set(**given: Any) -> PluginSet:
    plugins = PluginSet()
    for name, plugin in given.items():
        plugins.add(name, plugin)
    return plugins


def failure_of(plugins: PluginSet, name: str, kind: type[PluginError]) -> PluginError:
    """Give the failure of a plugin, and see that it is a whole sentence: which, what, why, what follows, what now."""
    error = plugins.failures[name]
    assert kind is type(error)
    assert name == error.plugin
    assert name in error.problem.what
    assert all(attrs.astuple(error.problem))
    assert name not in plugins.plugins
    return error


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Give the errors and warnings logged so far."""
    monkeypatch.setattr(logging.getLogger("scale0"), "propagate", True)

    def lines() -> list[dict[str, Any]]:
        return [
            {"event": record.getMessage(), **record.__dict__["fields"]}
            for record in caplog.records
            if record.levelno >= logging.WARNING and record.name.startswith("scale0")
        ]

    return lines


# what a plugin says of itself


def test_a_good_plugin_is_taken():
    info = PluginInfo(summary="good", api=(2, 2), safe_by_default=True)
    good = made(scale0_plugin_info=info)
    plugins = plugin_set(good=good)
    assert ({}, good, info) == (plugins.failures, plugins.plugins["good"].plugin, plugins.plugins["good"].info)


def test_a_plugin_that_does_not_say_what_it_is():
    plugins = plugin_set(silent=Made())
    problem = failure_of(plugins, "silent", PluginContractError).problem
    assert problem.what == "plugin silent does not say what it is"
    assert problem.why == "it has no hook scale0_plugin_info"
    assert problem.consequence == LEFT_OUT
    assert problem.remedy == "return a PluginInfo from scale0_plugin_info"


@pytest.mark.parametrize("answer", [{"summary": "x"}, "text", PluginInfo])
def test_a_plugin_that_says_it_in_a_wrong_way(answer: object):
    plugins = plugin_set(odd=made(scale0_plugin_info=lambda: answer))
    assert f"scale0_plugin_info gave {answer!r}" == failure_of(plugins, "odd", PluginContractError).problem.why


def test_a_plugin_that_raises_when_asked():
    plugins = plugin_set(bad=made(scale0_plugin_info=fail), good=made())
    error = failure_of(plugins, "bad", PluginStartError)
    assert error.problem.why == "scale0_plugin_info: ValueError: on purpose"
    assert "scale0 plugins doctor bad" in error.problem.remedy
    assert list(plugins.plugins) == ["good"]


@pytest.mark.parametrize(("hook", "meant"), [("scale0_servces", "scale0_services"), ("scale0_start", "scale0_started")])
def test_a_misspelt_hook_is_told_with_the_nearest_name(hook: str, meant: str):
    plugins = plugin_set(typo=made(**{hook: lambda: None}), good=made())
    problem = failure_of(plugins, "typo", PluginContractError).problem
    assert problem.what == "plugin typo has a hook that does not exist"
    assert f"'{hook}'" in problem.why
    assert problem.why.endswith(f"did you mean {meant}?")
    assert list(plugins.plugins) == ["good"]


def test_a_hook_with_a_parameter_that_does_not_exist_is_another_sentence():
    def services(setings: Any) -> None:
        pass

    plugins = plugin_set(typo=made(scale0_services=services), good=made())
    problem = failure_of(plugins, "typo", PluginContractError).problem
    assert problem.what == "plugin typo has a hook scale0_services of the wrong shape"
    assert "setings" in problem.why
    assert list(plugins.plugins) == ["good"]


@pytest.mark.parametrize(
    ("api", "wanted", "remedy"),
    [
        ((API_VERSION + 1, API_VERSION + 1), f"{API_VERSION + 1}", "pip install --upgrade scale0-core"),
        ((API_VERSION + 1, API_VERSION + 3), f"{API_VERSION + 1} to {API_VERSION + 3}",
         "pip install --upgrade scale0-core"),
        ((API_VERSION - 1, API_VERSION - 1), f"{API_VERSION - 1}", "pip install --upgrade scale0-other"),
    ],
)  # fmt: skip
def test_a_plugin_for_another_version(api: tuple[int, int], wanted: str, remedy: str):
    plugins = plugin_set(other=made(scale0_plugin_info=PluginInfo(summary="x", api=api)))
    problem = failure_of(plugins, "other", PluginVersionError).problem
    assert problem.what == "plugin other was made for another version of Scale0"
    assert f"it works with API_VERSION {wanted}, and this core has {API_VERSION}" == problem.why
    assert remedy == problem.remedy


@pytest.mark.parametrize("api", [(0, API_VERSION), (API_VERSION, API_VERSION), (API_VERSION, 99)])
def test_a_plugin_for_this_version_among_others(api: tuple[int, int]):
    assert plugin_set(fits=made(scale0_plugin_info=PluginInfo(summary="x", api=api))).failures == {}


class NotAttrs:
    pass


@attrs.frozen
class Unresolved:
    x: Nowhere = 5  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("cls", [NotAttrs, Unresolved])
def test_a_plugin_whose_settings_no_table_could_be_read_into(cls: type):
    plugins = plugin_set(odd=made(scale0_plugin_info=PluginInfo(summary="x", api=(2, 2), settings=cls)))
    assert "settings that cannot be read" in failure_of(plugins, "odd", PluginContractError).problem.what


def test_a_second_plugin_of_a_name_does_not_put_out_the_first():
    first = made()
    plugins = plugin_set(twin=first)
    plugins.add("twin", made())
    assert PluginContractError is type(plugins.failures["twin"])
    assert first is plugins.plugins["twin"].plugin


# settings


@attrs.frozen
class OneSettings:
    size: int = setting(1, "How large.", validator=attrs.validators.ge(1))


@attrs.frozen
class TwoSettings:
    address: str = attrs.field(metadata={"help": "Where."})


def test_the_tables_of_several_plugins_are_read_and_all_faults_told_at_once():
    plugins = plugin_set(
        one=made(scale0_plugin_info=PluginInfo(summary="1", api=(2, 2), settings=OneSettings)),
        two=made(scale0_plugin_info=PluginInfo(summary="2", api=(2, 2), settings=TwoSettings)),
        bare=made(),
    )
    _, faults = plugins.settings({"one": {"size": 0, "sise": 1}, "bare": {"x": 1}, "unknown": {"y": 1}})
    assert [
        Fault("plugin.one.size", "must be >= 1: 0"),
        Fault("plugin.one.sise", "unknown setting", "did you mean size?"),
        Fault("plugin.two.address", "is missing: a string"),
        Fault("plugin.bare.x", "the plugin has no settings"),
    ] == faults
    expected = {"one": OneSettings(5), "two": TwoSettings("here"), "bare": None}
    assert (expected, []) == plugins.settings({"one": {"size": 5}, "two": {"address": "here"}})


# services


def test_services_get_the_settings_and_the_context():
    got: list[Any] = []
    service = Quiet()

    def services(settings: Any, context: BrokerContext) -> Iterator[Any]:
        got.extend((settings, context))
        yield service

    plugins = plugin_set(one=made(scale0_services=services))
    assert [service] == plugins.services("one", "settings", CONTEXT)
    assert got == ["settings", CONTEXT]


@pytest.mark.parametrize("answer", [None, [], ()])
def test_a_plugin_may_have_no_services(answer: Any):
    assert plugin_set(one=made(scale0_services=lambda: answer)).services("one", None, CONTEXT) == []


def test_a_plugin_without_the_hook_has_no_services():
    assert plugin_set(one=made()).services("one", None, CONTEXT) == []


def test_only_the_plugin_that_is_asked_makes_services():
    plugins = plugin_set(bad=made(scale0_services=fail), good=made(scale0_services=lambda: [Quiet()]))
    assert len(plugins.services("good", None, CONTEXT)) == 1
    with pytest.raises(PluginStartError) as caught:
        plugins.services("bad", None, CONTEXT)
    assert caught.value.problem.what == "plugin bad raised at start"
    assert caught.value.problem.why == "scale0_services: ValueError: on purpose"
    assert all(attrs.astuple(caught.value.problem))


def test_a_generator_of_services_that_raises_midway():
    def services() -> Iterator[Any]:
        yield Quiet()
        raise ValueError("on purpose")

    with pytest.raises(PluginStartError, match="on purpose"):
        plugin_set(bad=made(scale0_services=services)).services("bad", None, CONTEXT)


@pytest.mark.parametrize("answer", [5, [5], ["echo"], [Quiet]])
def test_what_is_no_service_is_refused_at_start_and_not_at_the_first_message(answer: Any):
    class Deaf(Quiet):
        receive = property()  # type: ignore[assignment]

    plugins = plugin_set(bad=made(scale0_services=lambda: [Deaf()] if answer == [Quiet] else answer))
    with pytest.raises(PluginError) as caught:
        plugins.services("bad", None, CONTEXT)
    assert all(attrs.astuple(caught.value.problem))


# the other hooks


@pytest.mark.parametrize("hook", ["started", "stopping"])
def test_a_plugin_that_raises_in_a_hook_keeps_no_other_from_being_called(
    hook: str, told: Callable[[], list[dict[str, Any]]]
):
    calls: list[tuple[str, Any]] = []

    def noting(name: str) -> Made:
        return made(**{f"scale0_{hook}": lambda broker: calls.append((name, broker))})

    plugins = plugin_set(a=noting("a"), bad=made(**{f"scale0_{hook}": fail}), b=noting("b"))
    getattr(plugins, hook)(RUNNING)
    assert calls == [("a", RUNNING), ("b", RUNNING)]
    (line,) = told()
    assert ("bad", f"scale0_{hook}", "ValueError('on purpose')") == (line["plugin"], line["hook"], line["error"])


def test_hooks_are_called_in_the_order_of_the_plugins():
    order: list[str] = []
    names = ["m", "z", "a", "k"]
    plugins = plugin_set(**{
        name: made(
            scale0_plugin_info=lambda name=name: order.append(f"info {name}") or PluginInfo(summary="x", api=(2, 2)),
            scale0_started=lambda name=name: order.append(f"started {name}"),
            scale0_stopping=lambda name=name: order.append(f"stopping {name}"),
            scale0_batch=lambda name=name: order.append(f"batch {name}"),
        )
        for name in names
    })  # fmt: skip
    plugins.started(RUNNING)
    for observe in plugins.batch_observers():
        observe(REPORT)
    plugins.stopping(RUNNING)
    assert [f"{what} {name}" for what in ("info", "started", "batch", "stopping") for name in names] == order


def test_a_plugin_that_raises_on_a_batch_is_told_once_and_not_called_again(told: Callable[[], list[dict[str, Any]]]):
    reports: list[BatchReport] = []
    attempts: list[int] = []

    def fail_again() -> None:
        attempts.append(1)
        raise ValueError("on purpose")

    def note(report: BatchReport) -> None:
        reports.append(report)

    plugins = plugin_set(bad=made(scale0_batch=fail_again), good=made(scale0_batch=note))
    observers = plugins.batch_observers()
    for observe in observers * 3:
        observe(REPORT)
    assert (len(attempts), reports) == (1, [REPORT] * 3)
    (line,) = told()
    assert (line["plugin"], line["hook"]) == ("bad", "scale0_batch")


def test_only_plugins_that_observe_batches_are_called_for_them():
    plugins = plugin_set(one=made(), two=made(scale0_batch=lambda: None), three=made(scale0_started=lambda: None))
    assert [observer.name for observer in plugins.batch_observers()] == ["two"]


def test_a_plugin_that_was_dropped_is_called_no_more():
    calls: list[str] = []
    plugins = plugin_set(one=made(scale0_started=lambda: calls.append("one")), two=made())
    plugins.drop("one")
    plugins.started(RUNNING)
    assert (calls, list(plugins.plugins)) == ([], ["two"])


# installed plugins


class Site:
    """A folder on sys.path into which a test installs distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self, name: str, code: str, *, distribution: str = "", module: str = "", attribute: str = ":Plugin"
    ) -> str:
        module = module or f"scale0_made_{name}"
        distribution = distribution or f"scale0-{name}"
        (self.folder / f"{module}.py").write_text(textwrap.dedent(code))
        about = self.folder / f"{distribution.replace('-', '_')}-0.1.dist-info"
        about.mkdir(exist_ok=True)
        header = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\nSummary: {name}!\n"
        (about / "METADATA").write_text(header)
        (about / "entry_points.txt").write_text(f"[scale0.plugins]\n{name} = {module}{attribute}\n")
        return module


def forget_what_stevedore_saw() -> None:
    """Start as a new process does: stevedore remembers entry points by group, and again by sys.path."""
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()
    stevedore._cache._c._internal.clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    forget_what_stevedore_saw()
    yield Site(folder)
    forget_what_stevedore_saw()
    for name in set(sys.modules) - before:
        if name.startswith(("scale0_made", "moved_")):
            del sys.modules[name]


GOOD = """
from scale0_core.api import PluginInfo, hookimpl

class Plugin:
    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="good", api=(2, 2))
"""
SAFE = GOOD.replace('"good"', '"good", safe_by_default=True')


def loaded(names: list[str] | None) -> PluginSet:
    plugins = PluginSet()
    plugins.load_installed(names)
    return plugins


def test_installed_plugins_are_found_without_importing_them(site: Site):
    site.install("zz", "raise RuntimeError")
    found = installed_plugins()
    assert sorted(found) == list(found)
    assert attrs.astuple(found["zz"]) == ("zz", "scale0_made_zz:Plugin", "scale0-zz", "0.1", "zz!")
    assert "echo" in found


def test_plugins_are_loaded_by_name_in_that_order_and_once(site: Site):
    for name in ("aa", "bb", "cc"):
        site.install(name, GOOD)
    plugins = loaded(["cc", "aa", "cc", "bb"])
    assert (list(plugins.plugins), plugins.failures) == (["cc", "aa", "bb"], {})


def test_without_names_only_those_that_are_safe_by_default_are_taken(site: Site):
    site.install("aa", SAFE)
    site.install("bb", GOOD)
    plugins = PluginSet()
    plugins.add("by_hand", made())
    plugins.load_installed(None)
    assert {"by_hand", "aa", "echo"} <= set(plugins.plugins)
    assert "bb" not in plugins.plugins
    assert plugins.failures == {}


def test_a_plugin_that_is_named_need_not_be_safe_by_default(site: Site):
    site.install("bb", GOOD)
    assert list(loaded(["bb"]).plugins) == ["bb"]


def test_a_missing_plugin_is_told_with_the_nearest_name(site: Site):
    site.install("mailbox", GOOD)
    plugins = loaded(["mailbx", "mailbox"])
    problem = failure_of(plugins, "mailbx", PluginMissingError).problem
    assert problem.what == "there is no plugin mailbx"
    assert problem.why == "did you mean mailbox?"
    assert "pip install scale0-mailbx" in problem.remedy
    assert list(plugins.plugins) == ["mailbox"]


IMPORT_FAILURES = {
    "import no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    "raise ValueError('broken')": "ValueError: broken",
    "assert 1 == 2, 'a check'": "AssertionError: a check",
    "raise SystemExit(3)": "SystemExit: 3",
    "def": "SyntaxError: ",
}


@pytest.mark.parametrize("code", IMPORT_FAILURES)
def test_a_plugin_that_cannot_be_imported(site: Site, code: str):
    site.install("bad", code)
    site.install("good", GOOD)
    plugins = loaded(["bad", "good"])
    problem = failure_of(plugins, "bad", PluginImportError).problem
    assert problem.what == "plugin bad cannot be imported"
    assert problem.why.startswith(f"scale0_made_bad:Plugin: {IMPORT_FAILURES[code]}")
    assert list(plugins.plugins) == ["good"]


MODULE = """
from scale0_core.api import PluginInfo, hookimpl

@hookimpl
def scale0_plugin_info():
    return PluginInfo(summary="of version 1", api=(1, 1))
"""


@pytest.mark.parametrize(
    ("code", "attribute", "what"),
    [
        (MODULE, "", "the module scale0_made_old"),
        (GOOD, "", "the module scale0_made_old"),
        (GOOD + "made = Plugin()", ":made", "Plugin <scale0_made_old.Plugin object at "),
        (MODULE, ":scale0_plugin_info", "function scale0_plugin_info"),
    ],
    ids=["version 1", "class forgotten", "instance", "function"],
)
def test_an_entry_point_that_names_no_class(site: Site, code: str, attribute: str, what: str):
    site.install("old", code, attribute=attribute)
    problem = failure_of(loaded(["old"]), "old", PluginVersionError).problem
    assert problem.what == "plugin old was made for another version of Scale0"
    assert problem.why.startswith(f"its entry point names {what}")
    assert problem.why.endswith("since API_VERSION 2 it names a class, as in scale0_echo.plugin:EchoPlugin")
    assert problem.remedy == "pip install --upgrade scale0-old, or name the class if the plugin is yours"


def test_a_plugin_whose_class_cannot_be_made(site: Site):
    site.install("bad", GOOD + "    def __init__(self):\n        raise ValueError('on purpose')\n")
    problem = failure_of(loaded(["bad"]), "bad", PluginStartError).problem
    assert problem.why == "__init__: ValueError: on purpose"


def test_each_broker_has_an_instance_of_its_own(site: Site):
    site.install("aa", GOOD)
    one, other = (loaded(["aa"]).plugins["aa"].plugin for _ in range(2))
    assert type(one) is type(other)
    assert one is not other


def test_two_distributions_with_one_plugin_name(site: Site, told: Callable[[], list[dict[str, Any]]]):
    site.install("twin", GOOD, distribution="first-twin", module="scale0_made_first")
    site.install("twin", GOOD, distribution="second-twin", module="scale0_made_second")
    assert duplicate_names() == ["twin"]
    assert list(loaded(["twin"]).plugins) == ["twin"]
    assert [line["plugin"] for line in told()] == ["twin"]


def test_one_distribution_seen_twice_is_no_duplicate(site: Site):
    site.install("twin", GOOD, distribution="first-twin")
    site.install("twin", GOOD, distribution="second-twin")
    assert duplicate_names() == []


def test_a_plugin_that_was_installed_after_stevedore_looked(site: Site):
    failure_of(loaded(["late"]), "late", PluginMissingError)
    site.install("late", GOOD)  # stevedore remembers what it saw on this sys.path
    plugins = loaded(["late"])
    assert (list(plugins.plugins), plugins.failures) == (["late"], {})


def test_a_plugin_that_was_installed_after_stevedore_looked_and_is_broken(site: Site):
    loaded(["late"])
    site.install("late", "raise ValueError('broken')")
    assert "broken" in failure_of(loaded(["late"]), "late", PluginImportError).problem.why


def test_a_plugin_whose_module_moved_after_stevedore_looked(site: Site):
    old = site.install("mover", GOOD, module="moved_from_here")
    loaded(["mover"])
    (site.folder / f"{old}.py").unlink()
    del sys.modules[old]
    site.install("mover", GOOD, module="moved_to_there")
    plugins = loaded(["mover"])
    assert plugins.failures == {}
    assert type(plugins.plugins["mover"].plugin).__module__ == "moved_to_there"


def test_a_plugin_that_became_a_class_after_stevedore_looked(site: Site):
    module = site.install("old", MODULE, attribute="")
    failure_of(loaded(["old"]), "old", PluginVersionError)
    del sys.modules[module]
    site.install("old", GOOD)
    assert (list(loaded(["old"]).plugins), loaded(["old"]).failures) == (["old"], {})


def test_a_plugin_that_was_removed_after_stevedore_looked(site: Site):
    old = site.install("gone", GOOD)
    loaded(["gone"])
    (site.folder / f"{old}.py").unlink()
    (site.folder / "scale0_gone-0.1.dist-info" / "entry_points.txt").unlink()
    del sys.modules[old]
    failure_of(loaded(["gone"]), "gone", PluginImportError)


# whole brokers

SERVICE = """
import time
from scale0_core.api import Endpoint, PluginInfo, hookimpl

class Service:
    name = "{name}"
    def __init__(self, address):
        self.endpoints = {{"main": Endpoint(kind="ROUTER", bind=address)}}
    def receive(self, socket, frames, now):
        {receive}
        return [(socket, frames)]
    def next_deadline(self):
        return None
    def on_deadline(self, now):
        return ()

class Plugin:
    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="made in a test", api=(2, 2))

    @hookimpl
    def scale0_services(self, context):
        return [Service(context.address("ipc://{{runtime}}/{name}"))]
"""
WRONG_VERSION = GOOD.replace("api=(2, 2)", f"api=({API_VERSION + 1}, {API_VERSION + 1})")
RAISES_AT_START = GOOD + "    @hookimpl\n    def scale0_services(self):\n        raise ValueError('on purpose')\n"
RAISES_ON_A_MESSAGE = SERVICE.format(name="raiser", receive="raise ValueError('on purpose')")
SLOW = SERVICE.format(name="slow", receive="end = time.monotonic() + 0.03\n        while time.monotonic() < end: pass")

BROKEN = {
    "unimportable": ("import no_such_module", "plugin unimportable cannot be imported", "no_such_module"),
    "newer": (WRONG_VERSION, "plugin newer was made for another version of Scale0", f"API_VERSION {API_VERSION + 1}"),
    "starter": (RAISES_AT_START, "plugin starter raised at start", "ValueError: on purpose"),
}


@pytest.fixture
def client() -> Iterator[Callable[[str], zmq.Socket[bytes]]]:
    context = zmq.Context()
    kept = []  # so that none is collected while it is open

    def connect(address: str) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        kept.append(socket)
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.connect(address)
        return socket

    yield connect
    context.destroy(linger=0)


def echoed(socket: zmq.Socket[bytes]) -> list[bytes]:
    socket.send_multipart([b"ECHO", b"", b"body"])
    return socket.recv_multipart()


@pytest.mark.requirement("R92")
def test_a_broker_told_to_go_on_runs_without_the_plugins_that_are_broken(site: Site, scale0_broker: Any, client: Any):
    for name, (code, _, _) in BROKEN.items():
        site.install(name, code)
    names = [*BROKEN, "absent", "echo"]
    tables = {"plugin": {"absent": {"x": 1}, "unimportable": {"x": 1}}}
    broker = scale0_broker(names, {"broker": {"keep_going": True}, **tables})
    expected = {name: (what, why) for name, (_, what, why) in BROKEN.items()}
    expected["absent"] = ("there is no plugin absent", "")
    for name, (what, why) in expected.items():
        (line,) = [line for line in broker.log if line.get("plugin") == name]
        assert ("error", what, LEFT_OUT) == (line["level"], line["event"], line["consequence"])
        assert why in line["why"]
        assert line["next"]
    assert list(broker.addresses) == ["scale0", "echo"]
    assert echoed(client(broker.address("echo", "requests"))) == [b"body"]
    assert broker.stop() == 0


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    command = [sys.executable, "-m", "scale0_core", "broker", "--name", name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.real
@pytest.mark.parametrize("name", [*BROKEN, "absent"])
@pytest.mark.parametrize(
    ("told", "by"),
    [(["--set=broker.required=['{name}']", "--set=broker.keep_going=true"], "required"), ([], "plugins")],
    ids=["required", "named"],
)
def test_a_broker_does_not_start_without_a_plugin_that_it_needs(
    site: Site, tmp_path: Path, name: str, told: list[str], by: str
):
    if name in BROKEN:
        site.install(name, BROKEN[name][0])
    done = run_broker(
        f"--set=broker.plugins=['echo', '{name}']", f"--set=broker.runtime_dir={tmp_path}",
        *(setting.format(name=name) for setting in told),
    )  # fmt: skip
    assert done.returncode == Exit.CONFIG
    assert name in done.stderr
    assert f"the broker does not start, since broker.{by} names this plugin" in done.stderr
    assert ("broker.keep_going=true" in done.stderr) == (by == "plugins")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("echo")) == []


@pytest.mark.parametrize("plugins", ["broker.plugins=[]", "log.level=info"])
def test_a_plugin_that_is_required_and_not_enabled_is_not_forgotten(site: Site, plugins: str):
    site.install("unsafe", GOOD)
    broker = Broker(read_config(None, [plugins, "broker.required=['unsafe']"]))
    with pytest.raises(PluginError, match="the required plugin unsafe is not enabled") as caught:
        broker.open()
    assert (caught.value.plugin, caught.value.exit_code) == ("unsafe", Exit.CONFIG)


def test_safe_mode_starts_without_any_plugin(site: Site, scale0_broker: Any):
    site.install("unimportable", "import no_such_module")
    wrong = {"broker": {"required": ["unimportable"]}, "plugin": {"echo": {"wrong": 1}, "nobody": {}}}
    broker = scale0_broker(["echo", "unimportable"], wrong, arguments=["--safe-mode"])
    assert (list(broker.addresses), [line for line in broker.log if line["level"] == "error"]) == (["scale0"], [])
    assert broker.stop() == 0


def test_all_faults_in_the_settings_of_plugins_are_told_and_the_broker_does_not_start(site: Site):
    site.install("bare", GOOD)
    overrides = ["broker.plugins=['echo', 'bare']", "plugin.echo.bnd=1", "plugin.bare.x=1", "plugin.ech.x=1"]
    with pytest.raises(ConfigError) as caught:
        Broker(read_config(None, overrides)).open()
    assert (
        Fault("plugin.echo.bnd", "unknown setting", "did you mean bind?"),
        Fault("plugin.bare.x", "the plugin has no settings"),
        Fault("plugin.ech", "no plugin of that name is installed", "did you mean echo?"),
    ) == caught.value.faults


@pytest.mark.requirement("R92")
def test_a_service_that_raises_too_often_is_put_out_and_the_others_go_on(site: Site, scale0_broker: Any, client: Any):
    site.install("raiser", RAISES_ON_A_MESSAGE)
    broker = scale0_broker(["raiser", "echo"], {"limits": {"errors": 3}})
    echo, raiser = client(broker.address("echo", "requests")), client(broker.address("raiser", "main"))
    socket_file = broker.folder / "raiser"
    assert socket_file.exists()
    raiser.send_multipart([b"1"])
    line = broker.wait_for("service raised; further errors of this kind are only counted", plugin="raiser")
    assert (line["service"], line["where"], line["error"]) == ("raiser", "receive", "ValueError('on purpose')")
    assert "scale0_made_raiser.py" in line["place"]
    assert echoed(echo) == [b"body"]
    raiser.send_multipart([b"2"])
    raiser.send_multipart([b"3"])
    quarantined = "service quarantined: it raised too often and is no longer called; the other services go on"
    line = broker.wait_for(quarantined, plugin="raiser")
    assert (line["errors"], line["within"]) == (3, "60s")
    assert line["next"]
    assert echoed(echo) == [b"body"]  # at least one more turn of the loop has ended
    assert not socket_file.exists()
    assert sum(line["event"].startswith("service raised") for line in broker.log) == 1
    assert broker.stop() == 0
    totals = broker.wait_for("totals", service="raiser")
    assert (totals["received"], totals["errors"]) == (3, 3)


def test_a_service_that_takes_long_is_logged_by_name(site: Site, scale0_broker: Any, client: Any):
    site.install("slow", SLOW)
    broker = scale0_broker(["slow", "echo"], {"limits": {"slow_call_ms": 10}})
    slow = client(broker.address("slow", "main"))
    slow.send_multipart([b"x"])
    assert slow.recv_multipart() == [b"x"]
    line = broker.wait_for("service held the loop for long; work that blocks belongs in a job", plugin="slow")
    assert (line["service"], line["level"], line["times"]) == ("slow", "warning", 1)
    assert line["ms"] >= 30


def test_two_services_of_one_name(scale0_broker: Any, told: Callable[[], list[dict[str, Any]]]):
    def one() -> Made:
        return made(scale0_services=lambda: [Quiet()])

    broker = scale0_broker.in_thread(extra={"first": one(), "second": one()})
    assert sorted(broker.addresses) == ["quiet", "scale0"]
    (line,) = told()
    assert (line["plugin"], line["why"]) == ("second", "its name is quiet")


def test_a_plugin_is_left_out_whole_when_one_of_its_services_cannot_be_opened(
    scale0_broker: Any, told: Callable[[], list[dict[str, Any]]], tmp_path: Path
):
    class Opened(Quiet):
        name = "opened"
        endpoints: ClassVar = {"main": Endpoint(kind="PULL", bind=f"ipc://{tmp_path}/o")}

    class Wrong(Quiet):
        name = "wrong"
        endpoints: ClassVar = {"main": Endpoint(kind="PULL", bind="nonsense")}

    broker = scale0_broker.in_thread(extra={"half": made(scale0_services=lambda: [Opened(), Wrong()]), "good": made()})
    assert list(broker.addresses) == ["scale0"]
    assert list(tmp_path.iterdir()) == []
    (line,) = told()
    assert (line["plugin"], line["event"]) == ("half", "plugin half could not be started")
    assert "nonsense" in line["why"]


def test_a_broker_does_not_run_without_what_raised_when_it_was_started(
    scale0_broker: Any, monkeypatch: pytest.MonkeyPatch
):
    stopped: list[str] = []
    good = made(scale0_stopping=lambda: stopped.append("good"))
    broker = scale0_broker.in_thread(extra={"bad": made(scale0_started=fail), "good": good})
    broker.stop()
    assert stopped == ["good"], "nobody asked for the bad one"
    monkeypatch.setattr(BrokerSettings, "needed_by", lambda self, name: "broker.required")
    with pytest.raises(PluginStartError, match="bad raised at start") as caught:
        scale0_broker.in_thread(extra={"bad": made(scale0_started=fail), "good": good})
    assert "broker.required names this plugin" in caught.value.problem.consequence
    assert stopped == ["good", "good"], "what the others have begun is ended"
