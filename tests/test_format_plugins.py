"""Formats of configurations are found by stevedore; whatever is wrong with one gets a sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import stevedore
import zmq

from scale0_core.config.tree import Node
from scale0_core.errors import (
    Exit,
    FormatError,
    FormatMissingError,
    PluginContractError,
    PluginError,
    PluginImportError,
)
from scale0_core.plugins import format_plugins, installed_formats, load_format

GOOD = """
class Good:
    name = "MADE"
    read = write = print
FORMAT = Good()
"""

Install = Callable[[str], None]


def forget_what_stevedore_saw() -> None:
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()
    stevedore._cache._c._internal.clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a format of the type MADE whose module has this text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    about = tmp_path / "scale0_config_made-0.1.dist-info"

    def write(code: str) -> None:
        (tmp_path / "made_format.py").write_text(code)
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scale0-config-made\nVersion: 0.1\n")
        (about / "entry_points.txt").write_text("[scale0.formats]\nMADE = made_format:FORMAT\n")

    forget_what_stevedore_saw()
    yield write
    forget_what_stevedore_saw()
    sys.modules.pop("made_format", None)


def failure(name: str, kind: type[PluginError]) -> PluginError:
    """Give the failure to load a format, and see that it has all four parts."""
    with pytest.raises(kind) as caught:
        load_format(name)
    assert kind is type(caught.value)
    assert all(attrs.astuple(caught.value.problem))
    return caught.value


def test_the_formats_of_this_repository_are_found():
    assert {"JSON", "XML", "ZFL"} <= set(installed_formats())
    for name in ("JSON", "XML", "ZFL"):
        assert load_format(name).name == name


def test_a_type_may_be_given_in_small_letters():
    assert load_format("json") is load_format("JSON")


def test_a_format_of_another_plugin_is_found_and_not_imported_before_it_is_loaded(install: Install):
    install(GOOD)
    assert "MADE" in installed_formats()
    assert "made_format" not in sys.modules
    assert load_format("made").name == "MADE"


def test_a_format_that_was_installed_after_stevedore_looked(install: Install):
    failure("MADE", FormatMissingError)
    install(GOOD)
    assert load_format("MADE").name == "MADE"


def test_a_missing_type_is_told_with_those_that_are_installed():
    error = failure("YAML", FormatMissingError)
    assert isinstance(error, FormatMissingError)
    assert error.offered == tuple(installed_formats())
    assert error.problem.what == "configurations of the type YAML are not offered"
    assert error.problem.why == f"installed: {', '.join(installed_formats())}"
    assert error.exit_code is Exit.CONFIG


def test_a_missing_type_of_this_repository_can_be_installed():
    error = FormatMissingError("XML", ())
    assert error.problem.why == "no plugin for a type of configuration is installed"
    assert error.problem.remedy.endswith("pip install scale0-config-xml")


@pytest.mark.parametrize(
    "code",
    ["import no_such_module", "1 / 0", "raise SystemExit(3)", "assert False, 'no'", "def (", "FORMATT = 1"],
)  # fmt: skip
def test_a_format_that_cannot_be_imported(install: Install, code: str):
    install(code)
    error = failure("MADE", PluginImportError)
    assert error.problem.what == "the plugin for the type MADE cannot be imported"
    assert "made_format:FORMAT" in error.problem.why


@pytest.mark.parametrize(
    "code", ["FORMAT = None", GOOD.replace("MADE", "OTHER"), GOOD.replace("read = ", "read = None; ")]
)
def test_what_is_no_format_is_refused(install: Install, code: str):
    install(code)
    assert failure("MADE", PluginContractError).problem.what == "what is installed for the type MADE is no format"


def test_a_format_error_is_a_value_error_with_a_line():
    error = FormatError("no good", 7)
    assert isinstance(error, ValueError)
    assert (error.reason, error.line, error.exit_code) == ("no good", 7, Exit.DATA)
    assert error.problem.what == "line 7: no good"
    assert FormatError("no good").problem.what == "no good"


@pytest.mark.parametrize("name", ["JSON", "XML", "ZFL"])
def test_a_node_is_written_with_its_name_and_read_as_the_child_of_one_without(name: str):
    node = Node("network", None, (Node("a", "1"), Node("b", None, (Node("c", "2"),))))
    found = load_format(name)
    assert found.read(found.write(node)) == Node("", None, (node,))
    assert found.write(Node("", None, (node,))) == found.write(node)


# which formats a broker uses


@pytest.mark.parametrize(
    ("plugins", "types"),
    [(["config_xml"], ["XML"]), (["config_zfl", "config_json"], ["JSON", "ZFL"]), ([], []), (None, None)],
)
def test_a_broker_offers_the_formats_whose_plugins_are_enabled(scale0_broker, plugins, types):
    broker = scale0_broker(settings={"broker": {"plugins": plugins}} if plugins is not None else {})
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(broker.address("scale0", "frontend"))
        for kind in ("JSON", "XML", "ZFL"):
            peer.send_multipart([b"S0C01", b"CHECKCONFIG", json.dumps({"identity": "c", "config_type": kind}).encode()])
            assert peer.poll(20_000)
            _, command, options, *_ = peer.recv_multipart()
            if types is None or kind in types:
                assert command == b"CONFIG"
            else:
                assert (command, json.loads(options)["code"], json.loads(options)["types"]) == (b"ERROR", 415, types)
    warned = [line for line in broker.log if line["event"].startswith("no format of configurations is enabled")]
    assert bool(warned) == (types == [])


def test_formats_are_of_the_plugin_of_their_distribution():
    found = format_plugins()
    assert {name: found[name] for name in ("JSON", "XML", "ZFL")} == {
        "JSON": "config_json", "XML": "config_xml", "ZFL": "config_zfl"
    }  # fmt: skip
