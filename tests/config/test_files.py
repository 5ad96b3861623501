"""Finding and reading broker.toml."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.config.files import (
    EMBEDDED,
    BrokerConfig,
    find_config,
    read_config,
    unknown_tables,
)
from scale0_core.config.settings import BrokerSettings, CoreSettings, LogSettings, WireSettings
from scale0_core.errors import ConfigError, Exit, Fault


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "broker.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def faults_of(path: Path | None, *overrides: str) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        read_config(path, overrides)
    return caught.value.faults


# which file


def test_the_file_given_comes_first(here: Path):
    written(here, "")
    assert Path("given.toml") == find_config("given.toml", {"SCALE0_CONFIG": "environment.toml"})


def test_the_environment_comes_before_the_file_here(here: Path):
    written(here, "")
    assert Path("environment.toml") == find_config(None, {"SCALE0_CONFIG": "environment.toml"})


@pytest.mark.parametrize("environment", [{}, {"SCALE0_CONFIG": ""}])
def test_broker_toml_here_is_taken_when_nothing_is_said(here: Path, environment: dict[str, str]):
    written(here, "")
    assert Path("broker.toml") == find_config(None, environment)


@pytest.mark.usefixtures("here")
def test_without_a_file_there_are_the_embedded_defaults():
    assert find_config(None, {}) is None
    assert BrokerConfig(EMBEDDED, CoreSettings(), {}) == read_config(None)


@pytest.mark.requirement("R101")
def test_a_broker_without_arguments_is_named_default():
    assert read_config(None).core.broker.name == "default"


# what is in it


def test_a_whole_file(here: Path):
    path = written(
        here,
        """
        [broker]
        name = "main"
        plugins = ["echo"]
        stop_seconds = 2
        [wire]
        implementation = "pure"
        batch = 64
        [log]
        levels.echo = "debug"
        [plugin.echo]
        bind = ["tcp://127.0.0.1:*"]
        """,
    )
    core = CoreSettings(
        broker=BrokerSettings(name="main", plugins=("echo",), stop_seconds=2.0),
        wire=WireSettings(implementation="pure", batch=64),
        log=LogSettings(levels={"echo": "debug"}),
    )
    assert BrokerConfig(str(path), core, {"echo": {"bind": ["tcp://127.0.0.1:*"]}}, path) == read_config(path)


def test_all_faults_of_a_file_and_of_the_command_line_come_at_once(here: Path):
    path = written(here, "plugin.echo = 1\n[broker]\nnam = 'x'\n[wire]\nbatch = 0\n[logs]\n")
    with pytest.raises(ConfigError) as caught:
        read_config(path, ["nonsense", "limits.errors=none"])
    expected = (
        Fault("--set nonsense", "must look like table.key=value", "for example wire.batch=64"),
        Fault("plugin.echo", "must be a table, not 1"),
        Fault("broker.nam", "unknown setting", "did you mean name?"),
        Fault("wire.batch", "must be >= 1: 0"),
        Fault("logs", "unknown setting", "did you mean log?"),
        Fault("limits.errors", "must be a whole number, not 'none'"),
    )
    assert expected == caught.value.faults
    assert f"{path} has 6 faults" == caught.value.problem.what
    assert [str(fault) for fault in expected] == caught.value.problem.why.splitlines()
    assert caught.value.exit_code == Exit.CONFIG


def test_plugin_must_hold_tables(here: Path):
    (fault,) = faults_of(written(here, "plugin = 5"))
    assert Fault("plugin", "must hold tables such as [plugin.echo], not 5") == fault


@pytest.mark.parametrize(
    "content",
    [b"[broker", b"name = ", b"a = 1\na = 2", b"\xff\xfe", b"broker = '\x80'", b"\x00", b"a = " + b"[" * 5000,
     b"a = " + b"9" * 5000],
)  # fmt: skip
def test_what_is_not_toml_is_one_fault(here: Path, content: bytes):
    path = written(here, content)
    (fault,) = faults_of(path)
    assert str(path) == fault.place
    assert fault.message.startswith("is not TOML: ")


@pytest.mark.parametrize(
    "content",
    [
        "[broker.name." + ".".join("a" * 3000) + "]",
        "broker.name = 0x" + "f" * 5000,
        "broker.stop_seconds = " + "9" * 400,
        "broker.stop_seconds = inf",
        "plugin = 0x" + "f" * 5000,
        "wire.batch = " + "9" * 20,
    ],
)
def test_values_beyond_all_bounds_are_faults(here: Path, content: str):
    (fault,) = faults_of(written(here, content))
    assert len(str(fault)) < 300


def test_a_file_that_is_not_there(tmp_path: Path):
    path = tmp_path / "none.toml"
    assert (Fault(str(path), "cannot be read: No such file or directory"),) == faults_of(path)


def test_a_folder_is_no_file(tmp_path: Path):
    assert (Fault(str(tmp_path), "cannot be read: Is a directory"),) == faults_of(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:  # not by chmod, since root may read everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = written(tmp_path, "")
    monkeypatch.setattr(Path, "open", refuse)
    assert (Fault(str(path), "cannot be read: Permission denied"),) == faults_of(path)


def test_a_path_that_no_file_can_have():
    (fault,) = faults_of(Path("a\0b"))
    assert fault.message.startswith("cannot be read: embedded null")


@pytest.mark.parametrize("name", ["default", "a", "A-1_x.y", "x" * 64, "-x", "_x"])
def test_names_of_brokers(name: str):
    assert name == read_config(None, [f'broker.name="{name}"']).core.broker.name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a b", "x" * 65, "é", "名" * 60, "x\\n", "\\u0000"])
def test_names_that_no_broker_has(name: str):
    assert [fault.place for fault in faults_of(None, f'broker.name="{name}"')] == ["broker.name"]


# the command line's overrides


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("wire.batch=64", CoreSettings(wire=WireSettings(batch=64))),
        (" wire.batch = 64 ", CoreSettings(wire=WireSettings(batch=64))),
        ("wire.insecure=true", CoreSettings(wire=WireSettings(insecure=True))),
        ("broker.name=other", CoreSettings(broker=BrokerSettings(name="other"))),
        ('broker.name="other"', CoreSettings(broker=BrokerSettings(name="other"))),
        ("broker.plugins=[]", CoreSettings(broker=BrokerSettings(plugins=()))),
        ('broker.plugins=["a", "b"]', CoreSettings(broker=BrokerSettings(plugins=("a", "b")))),
        ("broker.data_dir=", CoreSettings()),
        ("broker.data_dir=/a=b", CoreSettings(broker=BrokerSettings(data_dir="/a=b"))),
        ("log.levels.echo=debug", CoreSettings(log=LogSettings(levels={"echo": "debug"}))),
    ],
)
def test_an_override(override: str, expected: CoreSettings):
    assert expected == read_config(None, [override]).core


def test_overrides_lie_over_the_file_and_the_last_one_wins(here: Path):
    path = written(here, "[wire]\nbatch = 1\nlinger_ms = 5\n[plugin.echo]\nmax_waiting = 1\n")
    config = read_config(path, ["wire.batch=2", "wire.batch=3", "plugin.echo.max_message=9"])
    assert WireSettings(batch=3, linger_ms=5) == config.core.wire
    assert config.plugin_tables == {"echo": {"max_waiting": 1, "max_message": 9}}


@pytest.mark.parametrize("override", ["", "=", "x", "batch=1", "wire.=1", ".batch=1", "wire..batch=1", "wire.batch"])
def test_an_override_of_the_wrong_form(override: str):
    expected = Fault(f"--set {override}", "must look like table.key=value", "for example wire.batch=64")
    assert (expected,) == faults_of(None, override)


def test_an_override_into_what_is_no_table(here: Path):
    path = written(here, "[broker]\nname = 'x'\n")
    assert (Fault("--set broker.name.first=y", "name is not a table"),) == faults_of(path, "broker.name.first=y")


def test_an_override_with_a_huge_number_is_a_fault():
    assert [fault.place for fault in faults_of(None, "wire.batch=" + "9" * 5000)] == ["wire.batch"]


# tables of plugins


def test_tables_of_no_plugin():
    expected = [Fault("plugin.eco", "no plugin of that name is installed", "did you mean echo?")]
    assert expected == unknown_tables({"eco": {}, "zpipes": {}}, ["echo", "zpipes"])


# anything at all

words = st.sampled_from(
    ["[", "]", "[[", "]]", "broker", "wire", "log", "limits", "plugin", "name", "batch", "levels", ".", "=",
     "\n", "'x'", '"', "{", "}", ",", "1", "1e400", "inf", "nan", "true", "1979-05-27", "0x", "#", "é", "\x00"]
)  # fmt: skip
almost_toml = st.lists(words, max_size=40).map(lambda parts: "".join(parts).encode())


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "broker.toml"


@settings(deadline=None, max_examples=200)
@given(content=st.binary() | almost_toml, overrides=st.lists(st.text() | almost_toml.map(bytes.decode), max_size=2))
def test_any_bytes_give_a_config_or_a_config_error(one_file: Path, content: bytes, overrides: list[str]):
    one_file.write_bytes(content)
    try:
        outcome: object = read_config(one_file, overrides)
    except ConfigError as error:
        outcome = error.faults
    assert isinstance(outcome, BrokerConfig | tuple)
    assert outcome
