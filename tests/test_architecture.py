"""The invariants of the architecture, read from the sources.

1. I/O is where the folder says so.            5. Transition tables draw the diagrams in the docs.
2. Plugins import the api and nothing else.    6. Modules and functions stay readable.
3. No plugin imports another; their shape.     7. Nothing from a peer is run, looked up or unpickled.
4. Hooks and settings are documented:
   test_hooks.py, config/test_settings.py.

Beyond those: one module imports stevedore, packages are typed, versions move in lock-step, plugins have one shape.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import scale0_core
from scale0_core.protocol.states import draw
from scale0_core.pytest_plugin import LANES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CORE = ROOT / "scale0_core"
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))

COMMANDS_ONLY = {"spark": "Spark never runs in the broker's process"}
"""Plugins that add commands and nothing to a broker, and why."""

NOT_SOURCE = {"__pycache__", "build", "template"}


def sources(*folders: Path) -> list[Path]:
    found = [path for folder in folders for path in folder.rglob("*.py")]
    return sorted(path for path in found if not NOT_SOURCE & set(path.relative_to(ROOT).parts))


def package(plugin: Path) -> Path:
    return plugin / f"scale0_{plugin.name}"


CORE_SOURCES = sources(CORE)
PLUGIN_SOURCES = sources(*(package(plugin) for plugin in PLUGINS))
PLUGIN_TESTS = sources(*(plugin / "tests" for plugin in PLUGINS))
ALL_SOURCES = CORE_SOURCES + PLUGIN_SOURCES + PLUGIN_TESTS


class Trees(dict[Path, ast.Module]):
    """Parsed modules; each is parsed when a test asks for it."""

    def __missing__(self, path: Path) -> ast.Module:
        self[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self[path]


TREES = Trees()


def name_of(path: Path) -> str:
    """Give the dotted name of a module, such as ``scale0_core.io.loop``."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "plugins":
        parts = parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Give all that a module imports, at its top or later: ``a.b`` for ``import a.b``, ``a.b.c`` for a name from it."""
    found: set[str] = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(path, node)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _base(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = name_of(path).split(".")
    keep = len(here) - node.level + (path.name == "__init__.py")
    return ".".join([*here[:keep], *([node.module] if node.module else [])])


def is_in(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def breaches(paths: list[Path], modules: set[str]) -> list[str]:
    found = ((path, name) for path in paths for name in sorted(imports(path)) if is_in(name, modules))
    return [f"{name_of(path)} imports {name}" for path, name in found]


def test_the_sources_are_found():
    names = {name_of(path) for path in ALL_SOURCES}
    assert {"scale0_core.io.loop", "scale0_core", "scale0_core.cli", "scale0_echo.service"} <= names
    assert "scale0_core.container.host.ServiceHost" in imports(CORE / "io" / "loop.py")
    assert "zmq" in imports(CORE / "io" / "loop.py")


# 1. where I/O is

DOES_IO = {
    "zmq", "time", "threading", "socket", "asyncio", "subprocess", "selectors", "select", "multiprocessing",
    "concurrent.futures", "_thread", "socketserver", "http", "urllib.request", "signal", "sched",
    "datetime", "random", "uuid", "secrets", "tempfile",
}  # fmt: skip
"""Sockets, threads, processes, clocks, and all else that gives another answer the next time, such as chance."""

NO_IO = {"random.Random", "datetime.timedelta"}
"""A generator gives the same numbers for the same seed; that it gets one is looked at below. A length of time is no
clock."""

IO_EXCEPTIONS = {
    "scale0_discovery.plugin imports secrets": "a mark of this start, drawn once; the service is handed it",
    **{
        f"scale0_spark.merging imports datetime.{name}": "computes with moments that it is handed; asks no clock"
        for name in ("date", "datetime", "timezone")
    },
    "scale0_musicquest.server.plugin imports secrets": "the server's id of this start, drawn once; it is handed in",
}
"""Imports that are meant, and why."""

UNSEEDED = {
    ("scale0_core.client.frontend", "__init__"): "spreads retries of many clients; a test hands in its own",
    ("scale0_core.client.session", "__init__"): "spreads reconnects of many workers; a test hands in its own",
}
"""Functions outside io/ that may make a generator without a seed, and why."""

IO_FOLDERS = (CORE / "io", CORE / "client", CORE / "cli")
PURE_CLIENT = [
    CORE / "client" / f"{name}.py"
    for name in ("frontend", "session", "errors", "kit/calls", "kit/errors", "kit/flows", "kit/sessions")
]
MARK = re.compile(r"^# does I/O: \S", re.MULTILINE)


def may_do_io(path: Path) -> bool:
    return any(folder in path.parents for folder in IO_FOLDERS) or bool(MARK.search(path.read_text(encoding="utf-8")))


def io_of(paths: list[Path]) -> list[str]:
    """List the imports that do I/O, but for those that are meant."""
    harmless = tuple(f" imports {name}" for name in NO_IO)
    return [line for line in breaches(paths, DOES_IO) if not line.endswith(harmless) and line not in IO_EXCEPTIONS]


def test_only_code_that_says_so_does_io():
    assert io_of([path for path in CORE_SOURCES + PLUGIN_SOURCES if not may_do_io(path)]) == []


def test_the_clients_state_machines_do_no_io():
    assert io_of(PURE_CLIENT) == []


def test_exceptions_that_are_no_longer_needed_are_taken_off_the_list():
    assert set(IO_EXCEPTIONS) <= set(breaches(CORE_SOURCES + PLUGIN_SOURCES, DOES_IO))
    assert set(UNSEEDED) == set(unseeded_generators())


def unseeded_generators() -> dict[tuple[str, str], int]:
    """Find generators of random numbers, made outside io/ and without a seed."""
    pure = [path for path in CORE_SOURCES + PLUGIN_SOURCES if not may_do_io(path)]
    return {
        (name_of(path), inside): node.lineno
        for path in (*pure, *PURE_CLIENT)
        for inside, node in calls(path)
        if last_name(node.func) in {"Random", "default_rng"} and not node.args
    }


def test_random_numbers_come_from_a_seed():
    assert {place: line for place, line in unseeded_generators().items() if place not in UNSEEDED} == {}


def test_code_that_says_so_really_does_io():
    """A mark that is no longer needed is taken out, or it would cover what comes later."""
    marked = [path for path in CORE_SOURCES + PLUGIN_SOURCES if MARK.search(path.read_text(encoding="utf-8"))]
    assert marked
    # files are opened without an import; who tells people what is wrong with them imports what applications have
    others = {"scale0_core.cli", *(f"scale0_core.client.kit.{name}" for name in ("drivers", "loop", "link"))}
    assert [name_of(path) for path in marked if not io_of([path]) and not breaches([path], others)] == []


def test_services_and_settings_of_plugins_never_do_io():
    pure = [path for path in PLUGIN_SOURCES if path.name in ("service.py", "settings.py", "plugin.py")]
    assert len(pure) >= 3
    assert io_of(pure) == []
    assert breaches(pure, {"scale0_core.client", "scale0_core.cli"}) == []


# 2. and 3. what plugins import

ANY_CODE = {"scale0_core.api"}
APPLICATIONS = {"scale0_core.client", "scale0_core.cli.kit"}
PURE_KIT = {f"scale0_core.client.kit.{name}" for name in ("calls", "errors", "flows", "sessions")}
"""What sessions, codecs and flows of plugins' clients stand on."""
IN_TESTS = {"scale0_core.testing"}


def foreign(path: Path, allowed: set[str]) -> list[str]:
    """List what a plugin imports from the core beside what it may."""
    core = {name for name in imports(path) if is_in(name, {"scale0_core"})}
    return [f"{name_of(path)} imports {name}" for name in sorted(core) if not is_in(name, allowed)]


def test_plugins_import_the_api_alone():
    outside = [
        path for plugin in PLUGINS for name in ("client", *PROGRAMS.get(plugin.name, ())) for path in part(plugin, name)
    ]
    found = []
    for path in PLUGIN_SOURCES:
        # what runs outside a broker may use the client layer's parts without I/O in modules without I/O
        pure = ANY_CODE | PURE_KIT if path in outside else ANY_CODE
        found += foreign(path, ANY_CODE | APPLICATIONS if may_do_io(path) else pure)
    assert found == []


def test_tests_of_plugins_import_the_api_and_the_testing_kit():
    assert [line for path in PLUGIN_TESTS for line in foreign(path, ANY_CODE | APPLICATIONS | IN_TESTS)] == []


def test_no_plugin_imports_another():
    """Commands, programs and observers may use another plugin's client, if their pyproject.toml says so."""
    found = []
    for plugin in PLUGINS:
        others = {package(other).name for other in PLUGINS if other != plugin}
        halves = [path for half in ("service", "client") for path in part(plugin, half)]
        rest = [path for path in sources(package(plugin), plugin / "tests") if path not in halves]
        found += breaches(halves, others)
        clients = {f"scale0_{needed}.client" for needed in needs(plugin)}
        found += [line for line in breaches(rest, others) if not is_in(line.rpartition(" ")[2], clients)]
    assert found == []


# the shape of a plugin

FACE = {"__init__.py", "py.typed", "plugin.py", "settings.py", "command.py", "format.py", "aio.py"}
"""Hooks, settings, commands and formats; ``aio.py`` is the public name of the client for asyncio."""

HALVES = {"service", "service.py", "client"}

SHARED = {
    "zpipes": {"batches.py"},
    "majordomo": {"dialects.py"},
    "musicquest": {"wire.py", "songs.py", "names.py", "download.py"},
    "telemetry": {"schema.py", "segments.py"},
}
"""What both halves of a plugin use, such as a codec."""

OBSERVERS = {"telemetry": {"observer"}}
"""What runs in the broker's process on a thread of its own, and is no service."""

PROGRAMS = {
    "musicquest": {"player", "web", "tunes.py"},
    "telemetry": {"generator"},
    "spark": {path.name for path in (ROOT / "plugins" / "spark" / "scale0_spark").iterdir()} - FACE - NOT_SOURCE,
}
"""Parts of a command."""


def part(plugin: Path, name: str) -> list[Path]:
    """List the modules of one name at the root of a package, such as all of ``service/``, or ``service.py``."""
    root, stem = package(plugin), name.removesuffix(".py")
    return [path for path in sources(root) if path.relative_to(root).parts[0] in (stem, f"{stem}.py")]


def needs(plugin: Path) -> set[str]:
    """Give the names of the plugins that a plugin's distribution depends on."""
    names = (re.match(r"scale0-([\w-]+)", line) for line in project(plugin)["dependencies"])
    return {name[1].replace("-", "_") for name in names if name} - {"core"}


def roles(plugin: Path) -> set[str]:
    """Give the folders of a distribution of several plugins, with the face of each."""
    return {path.parent.name for path in package(plugin).glob("*/plugin.py")}


def root_names(plugin: Path) -> set[str]:
    return {path.name for path in package(plugin).iterdir()} - NOT_SOURCE


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_nothing_but_the_shape_stands_at_the_root_of_a_plugin(plugin: Path):
    more = [table.get(plugin.name, set()) for table in (SHARED, OBSERVERS, PROGRAMS)]
    assert root_names(plugin) - FACE - HALVES - roles(plugin) - set().union(*more) == set()
    assert set().union(*more) <= root_names(plugin), "a name that is no longer there is taken off the list"
    for role in roles(plugin):
        assert {path.name for path in (package(plugin) / role).iterdir()} - NOT_SOURCE <= FACE


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_the_halves_of_a_plugin_know_nothing_of_each_other(plugin: Path):
    own = package(plugin).name
    tables = (OBSERVERS, PROGRAMS)
    around = {f"{own}.{name.removesuffix('.py')}" for table in tables for name in table.get(plugin.name, set())}
    around |= {f"{own}.command", f"{own}.plugin", *(f"{own}.{role}.plugin" for role in roles(plugin))}
    client = {f"{own}.client", f"{own}.aio", "scale0_core.client", "scale0_core.cli"}
    service = {f"{own}.service"}
    assert breaches(part(plugin, "service"), around | client) == []
    assert breaches(part(plugin, "client"), around | service) == []
    programs = [path for name in PROGRAMS.get(plugin.name, ()) for path in part(plugin, name)]
    assert breaches(programs, service) == []
    shared = [path for name in SHARED.get(plugin.name, ()) for path in part(plugin, name)]
    assert breaches(shared, around | client | service) == []


def test_clients_of_plugins_leave_sockets_to_the_kit():
    clients = [path for plugin in PLUGINS for path in part(plugin, "client")]
    assert len(clients) > 10
    assert breaches(clients, {"zmq"}) == []


OPENS_SOCKETS = {"scale0_core.io.sockets", "scale0_core.client.kit.link"}
DANGEROUS = re.compile(
    r"zmq\.(IMMEDIATE|ROUTER_HANDOVER)|\.(immediate|router_handover)\b|['\"](IMMEDIATE|ROUTER_HANDOVER)['\"]: *\d"
    r"|(RECONNECT_IVL['\"]?|\breconnect_ivl)\]? *[:,=] *-"
)


def opens_sockets(tree: ast.AST) -> bool:
    """Return whether code opens a ZeroMQ socket: by a context, or by the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func.value if isinstance(node.func, ast.Subscript) else node.func  # Socket[bytes](...)
            if ast.unparse(function) == "socket.socket":
                continue
            if last_name(function) in ("Socket", "shadow") or (
                last_name(function) == "socket" and isinstance(function, ast.Attribute)
            ):
                return True
    return False


@pytest.mark.parametrize("code", [
    "context.socket(1)", "zmq.Context.instance().socket(1)", "ctx.socket(1)", "zmq.Socket(ctx, 1)",
    "zmq.Socket[bytes](ctx, 1)", "zmq.asyncio.Socket(ctx, 1)", "zmq.Socket.shadow(address)",
])  # fmt: skip
def test_code_that_opens_sockets_is_found(code: str):
    assert opens_sockets(ast.parse(code))
    assert not opens_sockets(ast.parse("link.socket.send(b'x'); socket.socket(socket.AF_UNIX)"))


def test_options_of_sockets_are_set_in_one_place_for_brokers_and_one_for_clients():
    # the testing kit plays peers of any kind, hostile ones too
    paths = [path for path in [*CORE_SOURCES, *PLUGIN_SOURCES] if CORE / "testing" not in path.parents]
    assert {name_of(path) for path in paths if opens_sockets(TREES[path])} == OPENS_SOCKETS


def test_options_that_abort_the_process_or_let_peers_be_replaced_are_set_nowhere():
    others = sources(ROOT / "examples", ROOT / "bench")
    assert [
        path.name for path in [*CORE_SOURCES, *PLUGIN_SOURCES, *others] if DANGEROUS.search(path.read_text("utf-8"))
    ] == []
    for line in (
        "socket.immediate = True", "{zmq.IMMEDIATE: 0}", 'options={"ROUTER_HANDOVER": 1}', "{zmq.RECONNECT_IVL: -1}",
        '"RECONNECT_IVL": -1', "set(zmq.RECONNECT_IVL, -1)", "socket.reconnect_ivl = -1", "opts[zmq.RECONNECT_IVL]=-1",
    ):  # fmt: skip
        assert DANGEROUS.search(line)


RESERVED = {
    "heapq": "Deadlines", "json.loads": "records", "json.load": "records", "json.JSONDecoder": "records",
    "os.fsync": "files", "os.fdatasync": "files", "os.replace": "files", "os.rename": "files", "os.link": "files",
    "shutil.move": "files", "Path.replace": "files", "Path.rename": "files", "Path.hardlink_to": "files",
}  # fmt: skip
"""What only scale0_core/parts does, and what of it others use: so it is done once, and means the same everywhere."""

NOT_OF_PARTS = {
    "scale0_config_json.format uses json.loads": "a format: numbers stay texts, and errors have a line and a column",
    "scale0_core.testing.virtual uses heapq": "the agenda of a simulation holds nothing but moments, and must be fast",
    "scale0_musicquest.service.broker.table uses heapq": "servers in the order of their load, which is no time",
}
"""Exceptions, and why. There should be none."""


def method_of_path(node: ast.Call) -> str:
    """Name the method of a path that a call looks like; replace of a text has two arguments, that of a time names."""
    if isinstance(node.func, ast.Attribute) and len(node.args) == 1 and ast.unparse(node.func.value) != "os":
        return f"Path.{node.func.attr}"
    return ""


@pytest.mark.parametrize(
    ("code", "name"),
    [("a.with_name('b').replace(c)", "Path.replace"), ("a.rename(b)", "Path.rename"), ("a.replace('b', 'c')", ""),
     ("a.replace(tzinfo=b)", "")],
)  # fmt: skip
def test_methods_of_paths_are_told_from_those_of_texts(code: str, name: str):
    (node,) = (node for node in [ast.parse(code, mode="eval").body] if isinstance(node, ast.Call))
    assert method_of_path(node) == name


def test_what_parts_does_is_done_nowhere_else():
    found = set()
    for path in [*CORE_SOURCES, *PLUGIN_SOURCES]:
        if CORE / "parts" not in path.parents:
            dotted = [ast.unparse(node) for node in ast.walk(TREES[path]) if isinstance(node, ast.Attribute)]
            methods = [method_of_path(node) for _, node in calls(path)]
            used = {name for name in RESERVED for other in (*imports(path), *dotted, *methods) if is_in(other, {name})}
            found |= {f"{name_of(path)} uses {name}" for name in used}
    assert sorted(found - set(NOT_OF_PARTS)) == [], "use scale0_core.parts, in plugins by the api"
    assert sorted(set(NOT_OF_PARTS) - found) == [], "an exception that is no longer needed is taken off the list"


def test_the_core_imports_no_plugin():
    assert breaches(CORE_SOURCES, {package(plugin).name for plugin in PLUGINS}) == []


def test_the_sans_io_parts_of_the_core_do_not_import_io():
    folders = {CORE, CORE / "container", CORE / "network", CORE / "parts", CORE / "protocol", CORE / "config"}
    entry_points = {"__main__.py", "pytest_plugin.py"}  # the command line and the fixture, on top of everything
    pure = [path for path in CORE_SOURCES if path.parent in folders and path.name not in entry_points]
    assert len(pure) > 10
    assert breaches(pure, {"scale0_core.io", "scale0_core.client", "scale0_core.cli", "scale0_core.testing"}) == []


def test_the_container_knows_nothing_of_the_scale0_protocol():
    container = sources(CORE / "container")
    assert len(container) > 5
    assert breaches(container, {"scale0_core.network", "scale0_core.protocol"}) == []


BEYOND_THE_API = {
    "errors.ConfigDataError", "errors.ConfigError", "errors.Fault", "errors.PluginError", "errors.RecordError",
    "plugins.load_format",
}  # fmt: skip
"""What the built-in plugin uses of the core beside what any plugin may use; this list can only shrink."""


def test_the_network_plugin_uses_what_any_plugin_may_use():
    """Its own rooms are the protocol and the configuration; of the rest of the core it has the api."""
    own = {"scale0_core.api", "scale0_core.network", "scale0_core.protocol", "scale0_core.config", "scale0_core.parts"}
    own |= {"scale0_core.events", "scale0_core.packing"}  # modules that the api exports whole
    found = {name for path in sources(CORE / "network") for name in imports(path) if is_in(name, {"scale0_core"})}
    assert {name for name in found if not is_in(name, own)} == {f"scale0_core.{name}" for name in BEYOND_THE_API}


def test_the_api_needs_no_network():
    assert breaches([CORE / "api.py"], {"scale0_core.network"}) == []


def test_only_the_plugins_module_imports_stevedore():
    importing = [name_of(path) for path in ALL_SOURCES if breaches([path], {"stevedore"})]
    assert importing == ["scale0_core.plugins"]


# 5. transition tables


def transition_tables() -> dict[str, Mapping[tuple[Enum, Enum], Enum]]:
    """Find every table of (state, event) to state in the parts of the core that do no I/O."""
    found = {}
    for path in CORE_SOURCES:
        if path.parent.name in ("protocol", "container", "network", "client"):
            module = importlib.import_module(name_of(path))
            found.update(
                {f"{module.__name__}.{name}": value for name, value in vars(module).items() if is_table(value)}
            )
    return found


def is_table(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, Enum) for part in (*key, following))
            for key, following in value.items()
        )
    )


def test_every_transition_table_is_drawn_in_the_docs():
    tables = transition_tables()
    assert {"scale0_core.protocol.states.CLIENT", "scale0_core.protocol.states.BROKER"} <= set(tables)
    docs = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [name for name, table in tables.items() if f"```mermaid\n{draw(table)}\n```" not in docs] == []


# 6. sizes

LONGEST_MODULE = 750
MEDIAN_FUNCTION = 13


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_module_is_too_long_to_read():
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_SOURCES}
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}


def test_functions_are_short():
    lengths = [length(node) for path in CORE_SOURCES for node in functions(TREES[path])]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION
    assert [count for count in lengths if count > 80] == []


# 7. nothing from a peer is run, looked up or unpickled

UNSAFE_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "yaml",
    "xml", "lxml", "xmlrpc", "code", "codeop", "runpy",
}  # fmt: skip
"""XML comes from outside through defusedxml, which is not among these."""

UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}

LOOKUPS = {
    ("scale0_core.cli", "_imported"): "the core's own table of commands",
    ("scale0_core.cli.failures", "as_text"): "a constant of this module",
    ("scale0_core.cli.plugins", "_hooks"): "the names in hookspecs",
    ("scale0_core.io.sockets", "open_socket"): "an enum's value, and the options that a plugin's author wrote",
    ("scale0_core.testing.flavours", "__getattr__"): "passes on what a test asks for",
}
"""Functions that may look up an attribute by a name that is not written there, and where the name comes from."""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Give every call with the name of the function it stands in."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.Call]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.name
        if isinstance(node, ast.Call):
            yield inside, node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return walk(TREES[path], "")


def last_name(node: ast.expr) -> str:
    """Give the name of what is called, without where it is from."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def test_nothing_is_unpickled_and_no_xml_is_parsed_by_an_unhardened_parser():
    assert breaches(CORE_SOURCES + PLUGIN_SOURCES, UNSAFE_MODULES) == []


def test_nothing_is_evaluated():
    found = [
        f"{name_of(path)}:{node.lineno} calls {called(node)}"
        for path in CORE_SOURCES + PLUGIN_SOURCES
        for _, node in calls(path)
        if called(node) in UNSAFE_CALLS
    ]
    assert found == []


def free_lookups() -> dict[tuple[str, str], int]:
    """Find getattr, setattr, delattr and attrgetter with a name that is not written there."""
    found = {}
    for path in CORE_SOURCES + PLUGIN_SOURCES:
        for inside, node in calls(path):
            name = node.args[1] if called(node) in ("getattr", "setattr", "delattr") else None
            if called(node) in ("attrgetter", "methodcaller"):
                name = node.args[0]
            if name is not None and not isinstance(name, ast.Constant):
                found[name_of(path), inside] = node.lineno
    return found


def test_no_attribute_is_looked_up_by_a_name_that_could_come_from_a_peer():
    found = free_lookups()
    assert {place: line for place, line in found.items() if place not in LOOKUPS} == {}
    assert set(LOOKUPS) == set(found), "a place that is no longer there is taken off the list"


def test_no_method_is_replaced_at_run_time():
    """Fast paths are declared; the host looks them up. What tests patch for a while is patched by pytest."""
    mark = re.compile(r"type: ignore\[[^]]*method-assign")
    rest = [ROOT / "conftest.py", *sources(ROOT / "tests", ROOT / "bench", ROOT / "examples", ROOT / "docs")]
    everything = [*ALL_SOURCES, *rest]
    assert {ROOT / "conftest.py", CORE / "testing" / "lanes.py", Path(__file__)} <= set(everything)
    assert [name_of(path) for path in everything if mark.search(path.read_text("utf-8"))] == []
    assert [f"{name_of(path)}:{line}" for path in everything for line in replaced(TREES[path])] == []


def replaced(tree: ast.AST) -> list[int]:
    """Find special methods that are assigned to, which ``Any`` hides from the types."""
    targets = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    special = ("__init__", "__new__", "__call__", "__enter__", "__exit__", "__del__")
    return [target.lineno for target in targets if isinstance(target, ast.Attribute) and target.attr in special]


def test_methods_that_are_replaced_are_found():
    assert replaced(ast.parse("kind.__init__ = other")) == [1]


# packages


def project(folder: Path) -> dict[str, Any]:
    tree: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tree


@pytest.mark.parametrize("folder", [CORE, *map(package, PLUGINS)], ids=lambda folder: folder.name)
def test_every_package_is_typed(folder: Path):
    assert (folder / "py.typed").exists()


def test_versions_move_in_lock_step():
    assert {scale0_core.__version__} == {project(folder)["version"] for folder in [ROOT, *PLUGINS]}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_a_plugin_asks_for_the_core_it_was_made_with(plugin: Path):
    major, minor, _ = (int(part) for part in scale0_core.__version__.split("."))
    assert f"scale0-core>={major}.{minor},<{major}.{minor + 1}" in project(plugin)["dependencies"]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_has_the_same_shape(plugin: Path):
    wanted = {"pyproject.toml", "README.md", f"scale0_{plugin.name}", "tests"}
    assert wanted <= {path.name for path in plugin.iterdir()}
    assert {"__init__.py", "py.typed"} <= {path.name for path in package(plugin).iterdir()}
    assert list(package(plugin).rglob("plugin.py")) or plugin.name in COMMANDS_ONLY
    assert sources(plugin / "tests")
    assert (plugin / "README.md").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_a_plugin_has_one_stem_in_four_places(plugin: Path):
    about = project(plugin)
    stem = plugin.name
    assert f"scale0-{stem}".replace("_", "-") == about["name"].replace("_", "-")
    if stem in COMMANDS_ONLY:
        assert about["entry-points"] == {"scale0.commands": {stem: f"scale0_{stem}.command:main"}}
        return
    # the name of the entry point is the name in broker.plugins and the name of the table, [plugin.echo]; a distribution
    # of several plugins has a folder for each
    names = sorted(roles(plugin))
    wanted = {f"{stem}-{role}": f"scale0_{stem}.{role}.plugin" for role in names} or {stem: f"scale0_{stem}.plugin"}
    named = about["entry-points"]["scale0.plugins"]
    assert wanted == {name: value.partition(":")[0] for name, value in named.items()}
    assert [value for value in named.values() if not re.fullmatch(r"[\w.]+:\w+Plugin", value)] == []


STATEFUL = re.compile(
    r"(\w+\.)*(dict|list|set|deque|Counter|defaultdict|WeakValueDictionary|WeakSet|R?Lock|Condition|Event|local|count|"
    r"Queue|SimpleQueue|ThreadPoolExecutor|Context)\(\)|\{\}|\[\]"
)


def state_of(tree: ast.Module) -> Iterator[int]:
    """Yield the lines where a module keeps something that changes: for one broker, and seen by all of the process."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and STATEFUL.fullmatch(ast.unparse(node.value)):
            yield node.lineno
    for inner in ast.walk(tree):
        match inner:
            case ast.Global():
                yield inner.lineno
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()) if name in classes:
                yield inner.lineno


@pytest.mark.parametrize(("text", "lines"), [
    ("x = {}\ny: deque[int] = deque()\nz = {1: 2}", [1, 2]),
    ("class A:\n    b = None\ndef f():\n    A.b = 1\n    a.b = 2", [4]),
    ("def f():\n    global x\n    x = 1", [2]),
])  # fmt: skip
def test_state_in_a_module_is_found(text: str, lines: list[int]):
    assert list(state_of(ast.parse(text))) == lines


def test_no_module_keeps_state():
    """Several brokers run in one process, each with instances of its own of everything."""
    paths = [path for folder in (CORE, *map(package, PLUGINS)) for path in sources(folder)]
    found = [
        f"{path.relative_to(ROOT)}:{line}" for path in paths for line in state_of(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_every_folder_of_plugins_is_a_distribution():
    folders = [path for path in (ROOT / "plugins").iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
    assert sorted(folders) == PLUGINS


def test_lanes_alone_decide_which_tests_run_and_none_is_tried_again():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert (options["scale0_lanes"], options["timeout"]) == (True, 300)
    assert not {"-m", "-k"} & set(options["addopts"])
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    assert {"py", "spark", "wheels"} <= set(re.split(r"[,\s]+", tox["tox"]["env_list"]))
    for lane in LANES:
        assert f"pytest --lane {lane} " in tox[f"testenv:{lane}"]["commands"]
    everything = "\n".join(value for section in tox.values() for value in section.values())
    assert "reruns" not in everything
    assert not re.search(r"pytest .*-m ", tox["testenv:py"]["commands"])


def endless_waits(tree: ast.AST) -> Iterator[str]:
    """Find waits for child processes without a time limit."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        owner, name = ast.unparse(call.func.value), call.func.attr
        child = owner.rpartition(".")[2]
        runs = owner == "subprocess" and name in ("run", "call", "check_call", "check_output")
        communicates = name == "communicate" and len(call.args) < 2
        waits = name in ("wait", "join") and not call.args and ("process" in child.lower() or child in CHILDREN)
        if (runs or communicates or waits) and not {"timeout", None} & {word.arg for word in call.keywords}:
            yield f"{call.lineno}: {owner}.{name}"


CHILDREN = ("child", "program", "job", "victim", "proc")
"""What variables of processes are called, beside process."""

WAITING = sources(ROOT / "tests", ROOT / "bench", ROOT / "examples", *(plugin / "tests" for plugin in PLUGINS))


@pytest.mark.parametrize("path", WAITING, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_wait_for_a_child_process_is_without_a_time_limit(path: Path):
    assert list(endless_waits(TREES[path])) == []


@pytest.mark.parametrize(
    "code",
    ["subprocess.run(x)", "subprocess.check_output(x)", "a.process.wait()", "child.wait()", "p.communicate(b'x')",
     "self.process.join()"],
)  # fmt: skip
def test_such_waits_are_found(code: str):
    assert len(list(endless_waits(ast.parse(code)))) == 1
    limited = code[:-1] + ("" if code.endswith("()") else ", ") + "timeout=9)"
    assert list(endless_waits(ast.parse(limited))) == []


@pytest.mark.real
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_children_of_tests_heed_signals_also_under_nohup(name: str):
    code = (
        f"import os, signal; signal.signal(signal.{name}, signal.SIG_IGN)\n"
        "from scale0_core.pytest_plugin import heed_signals; heed_signals()\n"
        "import subprocess, sys\n"
        f"show = 'import signal; print(signal.getsignal(signal.{name}) is signal.SIG_IGN)'\n"
        "subprocess.run([sys.executable, '-c', show], timeout=60)\n"
        "os.kill(os.getpid(), signal.SIGHUP) if 'HUP' in sys.argv[1] else None\n"
        "print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["False", "goes on"]


@pytest.mark.real
def test_a_test_that_fails_beside_a_child_ends_and_so_does_the_child(tmp_path: Path):
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys\n"
        "def test_it():\n"
        "    with subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']) as child:\n"
        "        print('child', child.pid)\n"
        "        raise AssertionError\n"
    )
    words = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(re.search(r"child (\d+)", done.stdout)[1]), 0)


@pytest.mark.real
@pytest.mark.parametrize("module", ["scale0_core", "scale0_core.cli", "scale0_core.__main__"])
def test_the_command_line_starts_without_the_large_modules(module: str):
    large = ["zmq", "attr", "attrs", "stevedore", "rich", "pluggy", "asyncio"]
    code = f"import sys, {module}; print(*(name for name in {large} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []


def test_parquet_is_read_without_threads_of_arrow():
    """Threads that let go of Python's objects while a process exits abort it, after all of its output."""
    found = [(name_of(path), last_name(node.func), node) for path in PLUGIN_SOURCES for _, node in calls(path)]
    assert [name for name, call, _ in found if call in ("read_table", "ParquetDataset", "dataset")] == []
    files = [node for _, call, node in found if call == "ParquetFile"]
    assert files
    assert all(any(option.arg == "pre_buffer" for option in node.keywords) for node in files)
