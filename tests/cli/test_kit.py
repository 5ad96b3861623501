"""What commands share."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from scale0_core.cli import kit
from scale0_core.cli.failures import as_text, explained, wants_json
from scale0_core.errors import ConfigError, Exit, Fault, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = [{"name": "one", "size": 1, "more": None}, {"name": "a long name " * 20, "size": 2, "more": [True, False]}]


def emitting(data, **options):
    @click.command()
    @kit.output_option
    def command():
        kit.emit("scale0.things/1", data, **options)

    return command


def run(command, *arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_json_is_one_object_with_its_schema():
    told = json.loads(run(emitting(ROWS), "-o", "json").stdout)
    assert told == {"schema": "scale0.things/1", "items": ROWS}
    assert json.loads(run(emitting({"a": 1}), "-o", "json").stdout) == {"schema": "scale0.things/1", "a": 1}


def test_jsonl_is_one_object_a_line():
    lines = run(emitting(ROWS), "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"schema": "scale0.things/1", **row} for row in ROWS]


def test_a_table_in_a_pipe_is_plain_and_whole():
    out = run(emitting(ROWS, columns={"name": "name", "more": "more of it"})).stdout
    heading, first, second = out.splitlines()
    assert heading.split() == ["NAME", "MORE", "OF", "IT"]
    assert re.fullmatch(r"one +-", first)
    assert second == ("a long name " * 20).strip() + "  yes, no"


def test_one_object_is_a_list_of_fields():
    assert run(emitting({"name": "x", "size": 3})).stdout == "name  x\nsize  3\n"


def test_an_empty_list_is_no_error():
    assert run(emitting([], columns={"name": "name"})).stdout == "NAME\n"
    assert json.loads(run(emitting([]), "-o", "json").stdout)["items"] == []


def test_an_unknown_format_is_wrong_usage():
    assert run(emitting([]), "-o", "xml").exit_code == 2  # click's own; main makes 64 of it


def on_terminal(scale0, *arguments, **environment):
    """Run a command with a terminal of 60 columns as its stdout, and give what it wrote there."""
    ours, theirs = pty.openpty()
    environment = scale0.environment | {"COLUMNS": "60", "TERM": "xterm"} | environment
    with subprocess.Popen(scale0.command(*arguments), stdout=theirs, stderr=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        written = []
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while some := os.read(ours, 65536):
                written.append(some)
    os.close(ours)
    return b"".join(written).decode()


def test_a_table_on_a_terminal_has_colours_and_loses_nothing(scale0):
    out = on_terminal(scale0, "plugins", "ls")
    assert "\x1b[32mok" in out
    assert "…" not in out
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()) for line in out.splitlines()) <= 60


def test_no_color_is_respected(scale0):
    assert "\x1b[3" not in on_terminal(scale0, "plugins", "ls", NO_COLOR="1")
    assert "\x1b[" not in on_terminal(scale0, "doctor", NO_COLOR="1")
    assert "\x1b[" not in on_terminal(scale0, "plugins", "show", "echo", NO_COLOR="1")
    assert "\x1b[" in on_terminal(scale0, "plugins", "show", "echo")


def test_a_problem_is_written_in_four_parts():
    text = click.unstyle(as_text(Problem("it broke", "for two reasons:\nthis and that", "no answer", "try again")))
    assert text == (
        "error: it broke\n"
        "  why          for two reasons:\n"
        "               this and that\n"
        "  consequence  no answer\n"
        "  next         try again"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (kit.NegativeError("x"), Exit.NEGATIVE),
        (kit.UsageError("x"), Exit.USAGE),
        (click.UsageError("x"), Exit.USAGE),
        (click.ClickException("x"), Exit.NEGATIVE),
        (kit.NotReachedError("x"), Exit.UNREACHED),
        (kit.TimedOutError("x"), Exit.TIMEOUT),
        (PermissionError("x"), Exit.PERMISSION),
        (ConfigError("x", (Fault("a", "b"),)), Exit.CONFIG),
        (ZeroDivisionError("x"), Exit.BUG),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_has_an_exit_code(error, code):
    assert explained(error)[1] == code


@pytest.mark.parametrize("line", ["-o json", "-ojson", "--output json", "--output=jsonl", "echo -o jsonl x"])
def test_json_errors_are_asked_for_with_the_output(line):
    assert wants_json(line.split())


@pytest.mark.parametrize("line", ["", "-o table", "echo -- -o json", "json", "-o"])
def test_errors_are_for_people_otherwise(line):
    assert not wants_json(line.split())


@pytest.mark.parametrize("name", ["1", "true", 'a"b', "ü"])
def test_a_broker_may_have_any_name(name):
    (override,) = kit.overrides_of(name, ())
    assert tomllib.loads(override)["broker"]["name"] == name


def test_the_runtime_folder_is_the_brokers(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert str(kit.runtime_dir("north")) == "/run/user/7/scale0/north"


def test_without_a_folder_of_the_session_it_is_in_the_temporary_one(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/var/elsewhere")  # not tried by writing to it: it need not be there
    assert str(kit.runtime_dir("north")) == f"/var/elsewhere/scale0-{os.getuid()}/north"
    monkeypatch.delenv("TMPDIR")
    assert str(kit.runtime_dir("north")) == f"/tmp/scale0-{os.getuid()}/north"


def test_a_command_says_what_to_do_when_nobody_is_there(tmp_path):
    with pytest.raises(kit.NotReachedError) as caught:
        kit.ask(f"ipc://{tmp_path}/nobody", [b"x"], 0.1, remedy="start the plugin")
    assert (caught.value.problem.why, caught.value.problem.remedy) == (
        "connecting: there is no such socket",
        "start the plugin",
    )
    with pytest.raises(kit.UsageError, match="nowhere is not an address"), kit.connected("nowhere", 0.1):
        pass
