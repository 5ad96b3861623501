"""The command `scale0 telemetry`, as a shell calls it."""

import datetime
import json
import os
import subprocess
import sys

import pytest

from scale0_core.api import events
from scale0_telemetry.observer.columns import Columns
from scale0_telemetry.segments import Segments

pytestmark = pytest.mark.real

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc).timestamp()


def scale0(*arguments, text=""):
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "scale0_core", "telemetry", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False, input=text)


def answer(*arguments):
    done = scale0(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three days of events: each hour a task of echo and one of add, and once a day a join."""
    root = tmp_path_factory.mktemp("events")
    columns, segments = Columns("left", 7), Segments(root, "left", 7)
    told = []
    for hour in range(72):
        told += [(events.TASK, hour * 3600.0, name, "w", None, "ok", 1, 2, hour) for name in ("echo", "add")]
    told += [(events.JOIN, day * 86400.0, "echo", "w", None, 1) for day in range(3)]
    for kind, day, rows in columns.convert([(NOON, [("scale0", told)])]):
        segments.write(kind, datetime.date(1970, 1, 1) + datetime.timedelta(day), rows)
    segments.close()
    return root


def test_lists_what_is_there(folder):
    told = answer("ls", "--events", folder)
    assert told["schema"] == "scale0.telemetry.kinds-stored/1"
    rows = {row["kind"]: row for row in told["items"]}
    assert {kind: row["events"] for kind, row in rows.items()} == {"join": 3, "task": 144}
    assert rows["task"]["first"] == "2026-03-01T12:00:00+00:00"
    assert rows["task"]["last"] == "2026-03-04T11:00:00+00:00"
    single = answer("ls", "--events", folder, "--segments")["items"]
    assert len(single) == 7
    assert {row["date"] for row in single} == {f"2026-03-0{day}" for day in (1, 2, 3, 4)}


def test_shows_the_last_events(folder):
    rows = answer("show", "--events", folder, "--limit", 3)["items"]
    assert [(row["service"], row["bytes"]) for row in rows] == [("add", 70), ("echo", 71), ("add", 71)]
    lines = scale0("show", "--events", folder, "--limit", 2).stdout.splitlines()
    assert lines[0].split()[:3] == ["TS", "KIND", "SERVICE"]
    assert "PEER" in lines[0]
    assert "SUBJECT" not in lines[0]
    assert len(lines) == 3


def test_shows_events_that_fit(folder):
    rows = answer("show", "--events", folder, "--kind", "task", "--service", "echo", "--limit", 1000)["items"]
    assert [row["bytes"] for row in rows] == list(range(72))
    rows = answer(
        "show", "--events", folder, "--since", "2026-03-02T00:00", "--until", "2026-03-02T01:00", "--limit", 1000
    )["items"]
    assert sorted((row["kind"], row["service"], row["bytes"]) for row in rows) == [
        ("task", "add", 12), ("task", "echo", 12),
    ]  # fmt: skip
    assert answer("show", "--events", folder, "--since", "0s")["items"] == []
    assert answer("show", "--events", folder, "--kind", "weather")["items"] == []


def test_lists_kinds_and_columns():
    kinds = {row["kind"]: row["fields"] for row in answer("kinds")["items"]}
    assert kinds == {name: list(kind.fields) for name, kind in events.KINDS.items()}
    columns = {row["column"]: row["type"] for row in answer("columns")["items"]}
    assert (columns["seq"], columns["ts"], columns["date"]) == ("int64", "timestamp[us, tz=UTC]", "date32[day]")


def test_removes_old_segments_after_asking(tmp_path):
    columns, segments = Columns("left", 7), Segments(tmp_path, "left", 7)
    told = [(events.JOIN, day * 86400.0, "echo", "w", None, 1) for day in range(5)]
    for kind, day, rows in columns.convert([(NOON, [("scale0", told)])]):
        segments.write(kind, datetime.date(1970, 1, 1) + datetime.timedelta(day), rows)
    segments.close()
    assert scale0("prune", "--events", tmp_path, "--before", "2026-03-03", text="n\n").returncode != 0
    assert len(list(tmp_path.iterdir())) == 5
    told = answer("prune", "--events", tmp_path, "--before", "2026-03-03", "--yes")
    assert (told["segments"], told["events"], told["left"]) == (2, 2, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"date=2026-03-0{day}" for day in (3, 4, 5)]
    size = next(tmp_path.rglob("*.parquet")).stat().st_size
    assert answer("prune", "--events", tmp_path, "--keep", size + 100, "--yes")["left"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["date=2026-03-05"]
    assert answer("prune", "--events", tmp_path, "--keep", "1g", "--yes")["segments"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ("prune",), ("prune", "--keep", "much"), ("show", "--since", "yesterday"), ("show", "--limit", "0"),
        ("show", "--since", "999999999d"),
    ],
)  # fmt: skip
def test_refuses_wrong_usage(wrong, tmp_path):
    done = scale0(*wrong, "--events", tmp_path)
    assert done.returncode == 64
    assert "Traceback" not in done.stderr


def test_says_that_there_are_no_events(tmp_path):
    done = scale0("ls", "--events", tmp_path / "none", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["what"]) == (1, f"there are no events at {tmp_path / 'none'}")


def test_a_file_that_is_broken_is_told_and_passed_over(folder, tmp_path):
    broken = tmp_path / "date=2026-03-01" / "kind=task"
    broken.mkdir(parents=True)
    (broken / "left-1-1.parquet").write_bytes(b"PAR1")
    done = scale0("show", "--events", tmp_path)
    assert done.returncode == 0
    assert "cannot be read" in done.stderr
    assert answer("ls", "--events", tmp_path)["items"][0]["events"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(
    "words", [["ls"], ["show", "--service", "echo", "--since", "2026-03-02", "--until", "2030-01-01"]]
)
def test_reading_events_leaves_no_threads_that_would_abort_the_process_at_its_exit(folder, words):
    code = (
        "import os, sys\nfrom scale0_telemetry.command import main\nmain(sys.argv[1:], standalone_mode=False)\n"
        "names = [open(f'/proc/self/task/{each}/comm').read().strip() for each in os.listdir('/proc/self/task')]\n"
        "print('threads', sum(name != 'jemalloc_bg_thd' for name in names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--events", str(folder)], capture_output=True, encoding="utf-8",
        timeout=120, check=False, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "threads 1", done.stderr
