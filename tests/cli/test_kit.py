"""What commands share."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.cli import kit
from scale0_core.cli.failures import as_text, explained, wants_json
from scale0_core.config.folders import default_runtime_dir
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


def test_the_runtime_folder_is_that_of_the_session_or_a_temporary_one():
    assert str(default_runtime_dir("north", {"XDG_RUNTIME_DIR": "/run/user/7"})) == "/run/user/7/scale0/north"
    # not tried by writing to it: it need not be there
    elsewhere = default_runtime_dir("north", {"TMPDIR": "/var/elsewhere"})
    assert str(elsewhere) == f"/var/elsewhere/scale0-{os.getuid()}/north"
    assert str(default_runtime_dir("north", {})) == f"/tmp/scale0-{os.getuid()}/north"


@pytest.mark.real
def test_a_command_says_what_to_do_when_nobody_is_there(tmp_path):
    with pytest.raises(kit.NotReachedError) as caught:
        kit.ask(f"ipc://{tmp_path}/nobody", [b"x"], 0.1, remedy="start the plugin")
    assert (caught.value.problem.why, caught.value.problem.remedy) == (
        f"connecting: nobody listens at ipc://{tmp_path}/nobody: No such file or directory",
        "start the plugin",
    )
    with pytest.raises(kit.UsageError, match="nowhere is not an address"), kit.connected("nowhere", 0.1):
        pass


# --- times --------------------------------------------------------------------------------------------------------

NOW = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2030-01-30", NOW.replace(day=30, hour=0)),
        ("2030-01-30T06:30", NOW.replace(day=30, hour=6, minute=30)),
        ("2030-01-30 06:30", NOW.replace(day=30, hour=6, minute=30)),
        ("2030-01-30T06:30Z", NOW.replace(day=30, hour=6, minute=30)),
        ("2030-01-30T06:30:05.25Z", NOW.replace(day=30, hour=6, minute=30, second=5, microsecond=250_000)),
        ("2030-01-30T06:30:00+02:00", NOW.replace(day=30, hour=4, minute=30)),
        ("0s", NOW),
        ("90s", NOW - timedelta(seconds=90)),
        ("90m", NOW - timedelta(minutes=90)),
        ("36h", NOW - timedelta(hours=36)),
        ("7d", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
    ],
)
def test_times_are_read_in_utc_or_as_how_long_ago(text, wanted):
    assert kit.moment(text, NOW) == wanted
    assert kit.moment(text, NOW).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "7", "7y", "-1d", "999999999w", "2030-02-30", "2030-01-30T25:00", "0001-01-01T00:00+23:00", "٣d"],
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter, match="is no time"):
        kit.moment(text, NOW)


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=ZONES))
def test_what_python_writes_is_read(when):
    assert kit.moment(when.isoformat(), NOW) == when


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,10}[smhdw]|[0-9]{4}-[0-9]{2}-[0-9]{2}.*", fullmatch=True))
def test_any_text_is_a_time_or_refused(text):
    with contextlib.suppress(click.BadParameter):
        assert kit.moment(text, NOW).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("given", "code"), [("nan", 2), ("inf", 2), ("0", 2), ("86401", 2), ("0.001", 0), ("86400", 0)]
)
def test_a_time_is_a_number_within_its_bounds(given: str, code: int):
    @click.command()
    @click.option("--timeout", type=kit.Seconds())
    def command(timeout: float) -> None:
        click.echo(timeout)

    done = run(command, "--timeout", given)
    assert (done.exit_code, bool(re.search(r"range|number", done.stderr))) == (code, code != 0)


def test_a_name_that_is_none_is_wrong_usage_wherever_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.toml").write_text('[broker]\nname = "we ird"\n', encoding="utf-8")
    with pytest.raises(click.BadParameter, match=r"name in broker.toml: .*'we ird'"):
        kit.chosen_broker(None)
    monkeypatch.setenv("SCALE0_BROKER", "al so")
    with pytest.raises(click.BadParameter, match=r"\$SCALE0_BROKER: .*'al so'"):
        kit.chosen_broker(None)
