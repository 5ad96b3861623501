"""Log lines: safe to print whatever a peer sent, one a line, and never in the loop's way."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.config.settings import LogSettings
from scale0_core.io import log_output
from scale0_core.io.log_output import LogOutput
from scale0_core.logs import (
    LONGEST_LINE,
    LONGEST_VALUE,
    JsonFormatter,
    TextFormatter,
    get_logger,
    printable,
)


def record(event: str = "event", level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("scale0.part", level, __file__, 1, "%s", (event,), None)
    made.fields = fields
    made.created, made.msecs = 1000000000.25, 250.0
    return made


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Sneaky:
    def __str__(self) -> str:
        return "a\x1b[2Jb\nc"


# values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"), (b"plain", "plain"), (bytearray(b"plain"), "plain"), (memoryview(b"plain"), "plain"),
        ("grün ✓", "grün ✓"), ("grün ✓".encode(), "grün ✓"), (5, "5"), (None, "None"), (b"", ""), ("", ""),
        ("a\nb", "a\\nb"), ("a\rb", "a\\rb"), ("\x1b[31m", "\\x1b[31m"), ("\x9b31m", "\\x9b31m"), ("\x7f", "\\x7f"),
        ("\u202e", "\\u202e"), ("\u2028", "\\u2028"), ("\ud800", "\\ud800"), ("\0", "\\x00"),
        (Sneaky(), "a\\x1b[2Jb\\nc"),
        (b"\xff\x00", "0xff00"), (b"\x1b[31m", "0x1b5b33316d"), (b"a\nb", "0x610a62"),
        (Broken(), "<Broken that cannot be shown: RuntimeError>"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, str | bytes) else type(value).__name__,
)  # fmt: skip
def test_printable(value: object, text: str):
    assert text == printable(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 10, "x" * 10), ("x" * 11, "x" * 10 + "…"), (b"x" * 11, "x" * 10 + "…"), ("\n" * 10, "\\n" * 5 + "…"),
        ("é".encode() * 11, "é" * 10 + "…"), ("✓✓✓✓".encode() * 11, "✓" * 10 + "…"), (b"\xff" * 100, "0xffffffff…"),
    ],
)  # fmt: skip
def test_a_long_value_is_cut_and_stays_what_it_is(value: object, text: str):
    assert text == printable(value, 10)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.binary().map(bytearray)
    | st.binary().map(memoryview) | st.complex_numbers() | st.sampled_from([Broken(), Sneaky(), LogSettings]),
    lambda inner: st.lists(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.binary() | st.integers() | st.tuples(st.integers()), inner),
    max_leaves=4,
)  # fmt: skip
field_names = st.text() | st.sampled_from(["time", "level", "logger", "trace", "a"])
any_fields = st.dictionaries(field_names.filter(lambda name: name != "event"), anything, max_size=5)


def is_safe(text: str) -> bool:
    return text.isprintable() and "\n" not in text


@settings(deadline=None, max_examples=60)
@given(value=anything | st.text(min_size=150) | st.binary(min_size=150), longest=st.integers(1, 300))
def test_any_value_is_printable_on_one_line_and_bounded(value: object, longest: int):
    text = printable(value, longest)
    assert is_safe(text)
    assert len(text) <= longest + 1


# lines for people


def test_a_line_for_people():
    line = TextFormatter().format(record("peer joined", identity=b"x y", count=3, empty="", path="/a=b", quote='"'))
    when, _, rest = line.partition(" ")
    assert rest == 'info    scale0.part peer joined identity="x y" count=3 empty="" path="/a=b" quote="\\""'
    assert when.endswith(".250")


def test_a_trace_stands_below_the_line_and_cannot_pass_for_a_line():
    trace = "Traceback:\n  File x\nValueError: bad\x1b[2J\n2026-01-01T00:00:00.000 error forged\r\n"
    first, *below = TextFormatter().format(record("service raised", trace=trace)).split("\n")
    assert first.endswith("info    scale0.part service raised")
    assert below == [
        "    Traceback:", "      File x", "    ValueError: bad\\x1b[2J", "    2026-01-01T00:00:00.000 error forged",
    ]  # fmt: skip


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_is_shown(formatter: logging.Formatter):
    try:
        raise ValueError("secret\x9breason")
    except ValueError:
        made = record()
        made.exc_info = sys.exc_info()
    text = formatter.format(made)
    assert "Traceback" in text
    assert "ValueError: secret\\x9breason" in text.replace("\\\\", "\\")
    assert "\x9b" not in text


@settings(deadline=None, max_examples=60)
@given(event=st.text(), fields=any_fields.filter(lambda fields: "trace" not in fields))
def test_any_fields_are_one_line_for_people(event: str, fields: dict[str, Any]):
    made = record(event)
    made.fields = fields
    assert is_safe(TextFormatter().format(made))


# lines for machines


def parsed(line: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    entry: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return entry


def test_a_line_for_machines():
    line = JsonFormatter().format(record("peer joined", level=logging.ERROR, peer=b"\xff", count=3, ok=True, no=None))
    assert parsed(line) == {
        "time": 1000000000.25, "level": "error", "logger": "scale0.part", "event": "peer joined", "peer": "0xff",
        "count": 3, "ok": True, "no": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({b"k": 1, (1, 2): 2, None: 3}, {"k": 1, "(1, 2)": 2, "None": 3}),
        ([b"\xff", {"x": b"y"}, ("\x9b",)], ["0xff", {"x": "y"}, ["\\x9b"]]),
        (float("nan"), "nan"), ([float("inf"), 1.5], ["inf", 1.5]),
        (2**63, str(2**63)),
        (Broken(), "<Broken that cannot be shown: RuntimeError>"), ({1, }, "{1}"), ("\x1b", "\\x1b"),
    ],
)  # fmt: skip
def test_values_that_json_does_not_know(value: object, expected: object):
    assert expected == parsed(JsonFormatter().format(record(value=value)))["value"]


def test_a_number_too_large_to_write_does_no_harm():
    huge = 16**5000
    told = "<int that cannot be shown: ValueError>"
    assert (told, told) == (printable(huge), parsed(JsonFormatter().format(record(value=huge)))["value"])


def test_a_list_that_holds_itself_comes_to_an_end():
    endless: list[Any] = []
    endless.append(endless)
    assert "[...]" in JsonFormatter().format(record(value=endless))


def test_a_field_does_not_hide_what_every_line_has():
    entry = parsed(JsonFormatter().format(record(level_=1, time="mine", logger="mine")))
    assert (
        entry["level"], entry["logger"], entry["time_"], entry["logger_"]
    ) == ("info", "scale0.part", "mine", "mine")  # fmt: skip


def test_a_trace_keeps_its_lines():
    assert parsed(JsonFormatter().format(record(trace="a\n  b\x1b\n")))["trace"] == "a\n  b\\x1b"


@settings(deadline=None, max_examples=60)
@given(event=st.text(), fields=any_fields)
def test_any_fields_are_one_line_of_json(event: str, fields: dict[str, Any]):
    made = record(event)
    made.fields = fields
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert line.isprintable()
    entry = parsed(line)
    assert (entry["level"], entry["logger"]) == ("info", "scale0.part")
    assert printable(event, LONGEST_LINE) == entry["event"]


# loggers


@pytest.fixture
def scale0_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Put back what a LogOutput changes for the whole process."""
    root = logging.getLogger("scale0")
    monkeypatch.setattr(root, "propagate", root.propagate)
    level = root.level
    yield root
    root.setLevel(level)
    for name in ("scale0.plugin.echo", "scale0.plugin.other"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_logger_takes_an_event_and_fields(scale0_log: logging.Logger, caplog: pytest.LogCaptureFixture):
    scale0_log.propagate = True
    caplog.set_level(logging.DEBUG, "scale0")
    log = get_logger("plugin.echo")
    log.debug("a %s", x=1)
    log.info("b", name="taken", msg="too", args=())
    log.warning("c")
    log.error("d", trace="t")
    assert [(made.name, made.levelname, made.getMessage(), made.__dict__["fields"]) for made in caplog.records] == [
        ("scale0.plugin.echo", "DEBUG", "a %s", {"x": 1}),
        ("scale0.plugin.echo", "INFO", "b", {"name": "taken", "msg": "too", "args": ()}),
        ("scale0.plugin.echo", "WARNING", "c", {}),
        ("scale0.plugin.echo", "ERROR", "d", {"trace": "t"}),
    ]


# where they go


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [parsed(line) for line in capfd.readouterr().err.splitlines()]


@pytest.mark.usefixtures("scale0_log")
def test_lines_go_to_stderr_in_order_and_are_written_at_the_end(capfd: pytest.CaptureFixture[str]):
    output = LogOutput(LogSettings(format="json"))
    for number in range(500):
        get_logger("x").info("line", number=number, peer=b"\x1b[31m")
    output.close()
    output.close()
    get_logger("x").info("after the end")
    lines = lines_of(capfd)
    assert list(range(500)) == [line["number"] for line in lines]
    assert {"0x1b5b33316d"} == {line["peer"] for line in lines}


@pytest.mark.usefixtures("scale0_log")
def test_lines_for_people_are_the_default(capfd: pytest.CaptureFixture[str]):
    output = LogOutput(LogSettings())
    get_logger("x").info("hello", who="you")
    output.close()
    assert capfd.readouterr().err.endswith(" info    scale0.x hello who=you\n")


@pytest.mark.usefixtures("scale0_log")
def test_levels_of_their_own_for_plugins(capfd: pytest.CaptureFixture[str]):
    output = LogOutput(LogSettings(level="warning", format="json", levels={"echo": "debug", "other": "error"}))
    for part in ("plugin.echo", "plugin.other", "plugin.third", "broker"):
        for level in ("debug", "info", "warning", "error"):
            getattr(get_logger(part), level)("said")
    output.close()
    assert [(line["logger"].removeprefix("scale0."), line["level"]) for line in lines_of(capfd)] == [
        ("plugin.echo", "debug"), ("plugin.echo", "info"), ("plugin.echo", "warning"), ("plugin.echo", "error"),
        ("plugin.other", "error"),
        ("plugin.third", "warning"), ("plugin.third", "error"),
        ("broker", "warning"), ("broker", "error"),
    ]  # fmt: skip


def test_a_full_queue_loses_lines_and_the_next_one_tells_how_many(monkeypatch: pytest.MonkeyPatch):
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(log_output, "LONGEST_QUEUE", 2)
    handler = log_output._BoundedHandler(lines)  # type: ignore[arg-type]
    for number in range(5):
        handler.emit(record(f"line {number}"))
    assert [lines.get_nowait().getMessage() for _ in range(2)] == ["line 0", "line 1"]
    handler.emit(record("line 5"))
    handler.emit(record("line 6"))
    assert [lines.get_nowait().getMessage() for _ in range(2)] == ["line 5 (after 3 lines that were lost)", "line 6"]


FLOOD = f"""
import sys
from scale0_core.io import log_output
log_output.CLOSE_SECONDS = 0.2
from scale0_core.config.settings import LogSettings
from scale0_core.logs import get_logger
output = log_output.LogOutput(LogSettings(format="json"))
for number in range(int(sys.argv[1])):
    get_logger("x").info("line", number=number, padding="x" * {LONGEST_VALUE})
print("done", output._handler.lost, flush=True)
sys.stdin.read()
output.close()
"""
"""Writes more than a pipe and the queue hold."""


@pytest.mark.real
def test_a_reader_that_does_not_read_blocks_neither_the_loop_nor_the_end():
    flood = 3 * log_output.LONGEST_QUEUE
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(flood)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdin is not None
        word, lost = child.stdout.readline().split()
        assert word == "done"
        assert 0 < int(lost) < flood
        child.stdin.close()
        assert child.wait(20) == 0  # nobody has read a single line


@pytest.mark.real
def test_a_reader_that_reads_late_gets_every_line_that_was_not_lost():
    flood = 2 * log_output.LONGEST_QUEUE
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD.replace("= 0.2", "= 20.0"), str(flood)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stderr is not None
        lost = int(child.stdout.readline().split()[1])
        child.stdin.close()
        lines = [parsed(line) for line in child.stderr]
        assert child.wait(20) == 0
    numbers = [line["number"] for line in lines if "number" in line]
    assert sorted(numbers) == numbers
    # the writer may have made room in between: then a line told of those that were lost up to it
    pattern = r"\(after (\d+) lines that were lost\)"
    told = [int(count) for line in lines for count in re.findall(pattern, line["event"])]
    assert flood - sum(told) == len(numbers)
    assert f"the log ends (after {lost} lines that were lost)" == lines[-1]["event"]


@pytest.mark.real
def test_a_closed_stderr_does_no_harm():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", FLOOD, "50"], stdin=subprocess.DEVNULL, stderr=writer, check=False, timeout=300
        )
    finally:
        os.close(writer)
    assert done.returncode == 0


# --- failures in programs of others -----------------------------------------------------------------------------------


def failing() -> Exception:
    try:
        raise ValueError("no \x1b[31m colours \udc80")
    except ValueError as error:
        return error


def test_a_failure_shows_its_fields_and_its_traceback_to_any_formatter(caplog: pytest.LogCaptureFixture):
    get_logger("worker").failure("service raised", failing(), service=b"echo", task="0a")
    (record,) = caplog.records
    shown = logging.Formatter("%(levelname)s %(message)s").format(record)
    first, *below = shown.split("\n")
    assert first == "ERROR service raised service=echo task=0a"
    assert 'raise ValueError("no' in shown
    assert all(line.startswith("    ") for line in below)
    assert ("\x1b" in shown, "\udc80" in shown) == (False, False)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_failure_shows_nothing_twice_to_our_own_formatters(formatter, caplog: pytest.LogCaptureFixture):
    get_logger("worker").failure("service raised", failing(), service=b"echo", task="0a")
    (record,) = caplog.records
    shown = formatter.format(record)
    assert [shown.count(text) for text in ("service raised", "echo", "0a", "in failing")] == [1, 1, 1, 1]
    assert "\x1b" not in shown
