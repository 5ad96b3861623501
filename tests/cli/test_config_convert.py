"""`scale0 config convert`: one configuration in any format, or a sentence that says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOML = """
[broker]
name = "north"

[network]
identity = "broker-a"
frontend_port = 6001
peers = ["tcp://10.0.0.2:6003"]
services = []

[[network.group_config]]
name = "east"
[[network.group_config.brokers]]
identity = "broker-a"
services = ["echo"]
"""
FORMATS = ["json", "xml", "zfl", "toml"]


@pytest.fixture
def broker_toml(scale0):
    return scale0.write("broker.toml", TOML)


def test_every_format_leads_back_to_the_same(scale0, broker_toml):
    first = scale0("config", "convert", "--to", "json")
    assert (first.code, first.err) == (0, "")
    for name in FORMATS:
        text = scale0("config", "convert", str(broker_toml), "--to", name).out
        file = scale0.write(f"again.{name}", text)
        again = scale0("config", "convert", str(file), "--to", "json")
        assert (again.code, again.out) == (0, first.out)


def test_what_it_writes_has_every_setting(scale0, broker_toml):
    table = json.loads(scale0("config", "convert", "broker.toml", "--to", "json").out)["network"]
    assert (table["frontend_port"], table["peers"], table["services"]) == (6001, ["tcp://10.0.0.2:6003"], [])
    assert table["group_config"][0]["brokers"][0]["services"] == ["echo"]
    assert table["liveness"] == 3


def test_a_toml_file_that_it_writes_serves_a_broker(scale0, broker_toml):
    done = scale0("config", "convert", "--to", "TOML", "--out", "new.toml")
    assert (done.code, done.out) == (0, "")
    assert tomllib.loads((scale0.folder / "new.toml").read_text())["network"]["identity"] == "broker-a"
    assert scale0("config", "check", "new.toml").code == 0


def test_without_a_file_the_defaults_are_converted(scale0):
    table = json.loads(scale0("config", "convert", "--to", "json").out)["network"]
    assert table["services"] == ["all"]


def test_a_file_that_says_nothing_of_the_network_has_the_defaults(scale0):
    scale0.write("broker.toml", "[log]\nlevel = 'debug'")
    assert json.loads(scale0("config", "convert", "--to", "json").out)["network"]["liveness"] == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "identity = 'a'"), ("a.json", '{"identity": "a"}'), ("a.zpl", "identity = a"),
        ("a.xml", "<broker identity='a'/>"),
    ],
)  # fmt: skip
def test_bare_files_and_endings(scale0, name, text):
    scale0.write(name, text)
    assert json.loads(scale0("config", "convert", name, "--to", "json").out)["network"]["identity"] == "a"


def test_stdin(scale0):
    command = scale0.command("config", "convert", "-", "--from", "zfl", "--to", "xml")
    done = subprocess.run(
        command, input="identity = é", cwd=scale0.folder, env=scale0.environment, capture_output=True, encoding="utf-8",
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "<identity>é</identity>" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "preferred_broker = 'b'"), ("c.toml", "[client]\nprefered_broker = 'b'"),
        ("c.zfl", "client\n    preferred_broker = b"),
    ],
)  # fmt: skip
def test_what_a_client_was_given(scale0, name, text):
    scale0.write(name, text)
    done = scale0("config", "convert", name, "--schema", "client", "--to", "json")
    assert json.loads(done.out)["client"]["prefered_broker"] == "b"


# what is wrong


def refused(done, code, *words):
    assert (done.code, done.out) == (code, "")
    for word in (*words, "why", "consequence", "next"):
        assert word in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "JSON, line 1: "),
        ("a.xml", "<a>\n<b></a>", "XML, line 2: mismatched tag"),
        ("a.zfl", "a = 1\n  b = 2", "ZFL, line 2: a line is indented by a multiple of four spaces, not by 2"),
        ("a.toml", "a =", "TOML: Invalid value"),
        ("a.toml", "network = 3", "network: must be a table, not 3"),
        ("a.json", '{"network": {"livenes": 1}}', "network.livenes: unknown setting (did you mean liveness?)"),
        ("a.zfl", "liveness = many", "network.liveness: must be a whole number, not 'many'"),
    ],
)  # fmt: skip
def test_wrong_data_exits_with_65_and_says_where(scale0, name, text, words):
    scale0.write(name, text)
    refused(scale0("config", "convert", name, "--to", "toml"), 65, f"{name} has 1 fault", words)


def test_all_faults_are_told_at_once_for_machines_too(scale0):
    scale0.write("a.zfl", "liveness = 0\nstate = sleepy\nx = 1\n")
    done = scale0("config", "convert", "a.zfl", "--to", "json")
    for place in ("network.liveness", "network.state", "network.x"):
        assert place in done.err


def test_what_the_other_format_cannot_express_is_told(scale0):
    scale0.write("a.json", json.dumps({"identity": "two\nlines"}))
    refused(scale0("config", "convert", "a.json", "--to", "zfl"), 65, "ZFL: identity holds the end of a line")
    assert scale0("config", "convert", "a.json", "--to", "xml").code == 0


def test_a_type_that_is_not_installed_is_told_with_those_that_are(scale0):
    refused(scale0("config", "convert", "--to", "yaml"), 78, "YAML are not offered", "installed: JSON, XML, ZFL")


def test_a_format_that_must_be_said(scale0):
    scale0.write("network.conf", "identity = a")
    refused(scale0("config", "convert", "network.conf", "--to", "json"), 64, "--from")
    assert scale0("config", "convert", "network.conf", "--from", "zfl", "--to", "json").code == 0


def test_a_file_that_is_not_there(scale0):
    refused(scale0("config", "convert", "absent.json", "--to", "zfl"), 65, "cannot be read: No such file")


def test_a_client_needs_a_file(scale0):
    refused(scale0("config", "convert", "--schema", "client", "--to", "zfl"), 64, "no FILE was given")


def test_a_file_that_cannot_be_written(scale0):
    refused(scale0("config", "convert", "--to", "zfl", "--out", "no/such/folder"), 64, "cannot be written")
