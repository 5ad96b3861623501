"""The command: what it refuses before Spark starts, what it shows without Spark, and a stream from start to end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException

from scale0_core.cli.kit import NegativeError, NotReachedError, UsageError
from scale0_spark import checkpoints, command, jobs, running, streaming, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)
SCALE0 = shutil.which("scale0", path=str(Path(sys.executable).parent)) or "scale0"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command.main, arguments)


def test_help_does_not_import_spark():
    code = (
        "import sys; from click.testing import CliRunner; from scale0_spark.command import main\n"
        "for words in (['--help'], ['stream', '--help'], ['apply', '--help'], ['tables', '--out', 'nowhere']):\n"
        "    assert CliRunner().invoke(main, words).exit_code == 0, words\n"
        "print(*(name for name in ('pyspark', 'pandas', 'matplotlib', 'numpy') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []


def test_every_job_and_every_stream_has_its_place_in_the_command():
    assert set(command.JOBS) <= set(jobs.JOBS)
    assert set(command.JOBS) <= set(command.main.commands)
    assert {*command.STREAMED, *command.FINISHED} == set(streaming.STREAMS)
    assert not set(command.STREAMED) & set(command.FINISHED)
    assert set(streaming.STREAMS) == set(tables.TABLES) - {"trends_second"}
    assert {table for job in jobs.JOBS.values() for table in job.tables} == set(tables.TABLES)


@pytest.mark.parametrize(
    "words",
    [
        ["trends", "--master", "local[x]"],
        ["trends", "--remote", "http://x"],
        ["trends", "--since", "2030-01-02", "--until", "2030-01-01"],
        ["stream", "--since", "7d"],
        ["stream", "--address", "tcp://127.0.0.1:1"],
        ["stream", "--pipe", "events", "--files-per-batch", "9"],
        ["stream", "--group", "mine"],
        ["stream", "--skip-bad"],
        ["replication", "--wait", "3"],
        ["placement", "--discovery", "tcp://127.0.0.1:1"],
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(words: list[str], tmp_path: Path):
    assert isinstance(call(*words, "--events", str(tmp_path), "--out", str(tmp_path)).exception, UsageError)


@pytest.mark.parametrize(
    "words",
    [["--since", "yesterday"], ["--conf", "x"], ["--conf", "a=b"], ["--half-life", "0"], ["--since", "999999w"]],
)
def test_options_that_cannot_be_read_are_refused(words: list[str], tmp_path: Path):
    assert call("popularity", *words, "--events", str(tmp_path)).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--keep", "2030-01-01"], ["--keep", "long"], ["--files-per-batch", "0"], ["--late", "soon"],
        ["--late", "1 hour"], ["--late", "2030-01-01"], ["--pipe", "p", "--group", ""],
        ["--pipe", "p", "--group", "x" * 201],
    ],
)  # fmt: skip
def test_options_of_a_stream_that_cannot_be_read_are_refused(words: list[str], tmp_path: Path):
    assert call("stream", *words, "--events", str(tmp_path)).exit_code == 2


def test_tables_that_no_stream_makes_are_refused():
    assert call("stream", "--tables", "trends_second").exit_code == 2
    assert call("stream", "--tables", " , ").exit_code == 2


@pytest.mark.parametrize("words", [["trends"], ["stream"], ["stream", "--once"]])
def test_a_folder_of_events_that_is_not_there_is_named_before_spark_starts(words: list[str], tmp_path: Path):
    failure = call(*words, "--events", str(tmp_path / "nowhere"), "--out", str(tmp_path), "--quiet").exception
    assert isinstance(failure, NegativeError)
    assert "nowhere" in failure.problem.what
    assert "--events" in failure.problem.remedy


def test_a_pipe_that_nobody_serves_is_named_before_spark_starts(tmp_path: Path):
    failure = call(
        "stream", "--pipe", "events", "--address", f"ipc://{tmp_path}/nobody", "--out", str(tmp_path)
    ).exception
    assert isinstance(failure, NotReachedError)


@pytest.mark.parametrize(
    ("offset", "words", "was"),
    [
        ('{"logOffset":0}', ["--pipe", "events", "--address", "tcp://127.0.0.1:1"], "files"),
        ('{"events":{"next":2,"made":1.5}}', [], "the pipe events"),
        ('{"events":{"next":2,"made":1.5}}', ["--pipe", "others", "--address", "tcp://127.0.0.1:1"], "the pipe events"),
    ],
)
def test_a_checkpoint_of_another_source_is_told_before_spark_starts(
    offset: str, words: list[str], was: str, tmp_path: Path
):
    offsets = tmp_path / ".checkpoints" / "popularity" / "offsets"
    offsets.mkdir(parents=True)
    for number in (9, 10):
        (offsets / str(number)).write_text(f"v1\n{{}}\n{offset}")
    (offsets / ".10.crc").write_bytes(b"x")
    place = ("--events", str(tmp_path), "--out", str(tmp_path))
    failure = call("stream", *words, *place, "--tables", "trends_day,popularity").exception
    assert isinstance(failure, UsageError)
    assert failure.problem.what.endswith(f"is of {was}")
    assert "--checkpoints" in failure.problem.remedy


HERE = ("--pipe", "events", "--address", "tcp://127.0.0.1:1")


def noted(
    folder: Path, table: str, note: dict[str, Any] | None, offset: str = '{"events":{"next":2,"made":1.5}}'
) -> Path:
    """Make a checkpoint that has a batch, and perhaps a note."""
    checkpoint = folder / ".checkpoints" / table
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")
    if note is not None:
        (checkpoint / checkpoints.NOTE).write_text(json.dumps(note))
    return checkpoint


@pytest.mark.parametrize(
    ("note", "words", "remedy"),
    [
        ({"pipe": "events", "address": "tcp://127.0.0.1:1", "group": "spark"}, [*HERE, "--group", "mine"], "--out"),
        ({"pipe": "others", "address": "tcp://127.0.0.1:1", "group": "spark"}, [*HERE], "--out"),
        ({"pipe": "events", "address": "tcp://127.0.0.1:2", "group": "spark"}, [*HERE], "another address, write that"),
        ({"folder": "/another/folder"}, [], "--out"),
        ({"folder": "/another/folder"}, [*HERE], "--out"),
    ],
)
def test_a_checkpoint_that_is_noted_as_of_another_source_is_refused_before_spark_starts(
    note: dict[str, Any], words: list[str], remedy: str, tmp_path: Path
):
    noted(tmp_path, "trends_day", note, '{"logOffset":0}' if "folder" in note else '{"events":{"next":2,"made":1.5}}')
    place = ("--events", str(tmp_path), "--out", str(tmp_path))
    failure = call("stream", *words, *place, "--tables", "popularity,trends_day").exception
    assert isinstance(failure, UsageError)
    assert failure.problem.what.endswith(f"is of {checkpoints.in_words(note)}")
    assert remedy in failure.problem.remedy


def test_sums_of_another_half_life_are_not_added_to(tmp_path: Path):
    note = {"folder": str(tmp_path.resolve()), "half_life_days": 7.0}
    noted(tmp_path, "popularity", note, '{"logOffset":0}')
    place = ("--events", str(tmp_path), "--out", str(tmp_path), "--tables", "popularity")
    failure = call("stream", *place, "--half-life", "2").exception
    assert isinstance(failure, UsageError)
    assert "half-life of 7.0 days" in failure.problem.what


def test_sums_without_a_note_are_of_the_half_life_that_there_was(tmp_path: Path):
    checkpoint = noted(tmp_path, "popularity", None, '{"logOffset":0}')
    with pytest.raises(UsageError, match=r"half-life of 7\.0 days"):
        checkpoints.check_checkpoint(checkpoint, {"folder": "/here", "half_life_days": 2.0})


@pytest.mark.parametrize("offset", ["", "7", "[]", "null", "{"])
def test_a_checkpoint_that_cannot_be_read_is_left_to_spark(tmp_path: Path, offset: str):
    checkpoint = noted(tmp_path, "popularity", None, offset)
    (checkpoint / "offsets" / "0").write_text(offset)
    checkpoints.check_checkpoint(checkpoint, {"folder": "/here", "half_life_days": 7.0})


def test_a_checkpoint_goes_on_with_what_it_is_of_and_one_without_a_batch_is_of_nothing_yet(tmp_path: Path):
    note = {"folder": "/here", "half_life_days": 7.0}
    checkpoint = noted(tmp_path, "popularity", None, '{"logOffset":0}')
    checkpoints.check_checkpoint(checkpoint, note)  # of a version that made no notes
    checkpoints.note_down(checkpoint, {"folder": "/here"})
    checkpoints.check_checkpoint(checkpoint, note)
    checkpoints.note_down(checkpoint, note)
    checkpoints.check_checkpoint(checkpoint, note)
    empty = tmp_path / "empty"
    checkpoints.note_down(empty, {"folder": "/elsewhere"})
    checkpoints.check_checkpoint(empty, note)
    assert sorted(path.name for path in empty.iterdir()) == [checkpoints.NOTE]


@pytest.mark.parametrize("name", ["PayloadError", "DataLossError"])
def test_what_to_do_about_bad_chunks_is_said_in_options_of_the_command(name: str):
    told = f"scale0_spark.zpipes.errors.{name}: chunk 3 of pipe p is bad; why; it ends; go on with failOnDataLoss false"
    with pytest.raises(running.JobError) as failure, running.explained("the stream"):
        raise PySparkException(f"[STREAM_FAILED]\n{told}\n")
    problem = failure.value.problem
    assert problem.why == "chunk 3 of pipe p is bad; why; it ends"
    assert "--skip-bad" in problem.remedy
    assert "--group" in problem.remedy
    assert "failOnDataLoss" not in str(problem)


def test_a_stream_that_cannot_go_on_says_so_in_words_of_the_command():
    told = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n  File x\n"
        "scale0_spark.zpipes.errors.DataLossError: pipe events is gone; another has its name; from its checkpoint\n"
        " SQLSTATE: 38000\n=== Streaming Query ==="
    )
    with pytest.raises(running.JobError) as failure, running.explained("the stream"):
        raise PySparkException(told)
    problem = failure.value.problem
    assert problem.why == "pipe events is gone; another has its name; from its checkpoint"
    assert "--checkpoints" in problem.remedy


# --- what tables depend on --------------------------------------------------------------------------------------------

TUNED = {
    "trends": {"accuracy"}, "popularity": {"half_life"}, "anomalies": {"weeks", "deviation"},
    "replication": {"half_life", "per_server"}, "placement": {"utilisation"},
}  # fmt: skip


def tuning_of(name: str) -> dict[str, Any]:
    """Give the options of a command that its tables depend on, with their defaults."""
    return {each.name: each.default for each in command.main.commands[name].params if each.name in command._TUNING}


def test_each_command_takes_what_its_tables_depend_on():
    assert {name: set(tuning_of(name)) for name in TUNED} == TUNED
    assert set(tuning_of("run")) == set(tuning_of("stream")) == set().union(*TUNED.values())
    defaults = tuning_of("run")
    assert command._options(command._changed(defaults)) == jobs.Options(), "nothing is told that is so by itself"


@pytest.mark.parametrize("words", [("run",), ("stream", "--late", "90m")])
def test_what_tables_depend_on_comes_to_the_jobs_and_to_streams(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told: dict[str, Any] = {}
    monkeypatch.setattr(running, "run_jobs", lambda *given, **_: told.update(options=given[-1]) or [])
    monkeypatch.setattr(running, "run_streams", lambda *_, **given: told.update(given) or {})
    some, others = ("--accuracy", "50", "--half-life", "2", "--weeks", "6"), ("--deviation", "3", "--per-server", "5")
    done = call(*words, *some, *others, "--utilisation", "0.5", "--events", str(tmp_path), "--out", str(tmp_path))
    assert done.exit_code == 0, done.exception
    found = told["options"]
    assert (found.accuracy, found.popularity.half_life_days, found.replication.half_life_days) == (50, 2, 2)
    assert (found.anomalies.weeks, found.anomalies.deviation) == (6, 3)
    assert (found.replication.per_server, found.placement.utilisation) == (5, 0.5)
    assert told.get("late", timedelta(minutes=90)) == timedelta(minutes=90)


@pytest.mark.parametrize("plan", ["replication", "placement"])
def test_a_plan_that_is_not_there_cannot_be_sent(plan: str, tmp_path: Path):
    failure = call("apply", plan, "--out", str(tmp_path)).exception
    assert isinstance(failure, NegativeError)
    assert f"{plan}_plan" in failure.problem.what


# --- tables -----------------------------------------------------------------------------------------------------------


def test_folders_are_those_of_the_broker_unless_others_are_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    failure = call("trends", "--quiet", "-n", "mine").exception
    assert isinstance(failure, NegativeError)
    assert str(tmp_path / "scale0" / "mine" / "telemetry") in failure.problem.what


def test_tables_are_listed_and_shown(tmp_path: Path):
    tables.write(tmp_path, "popularity", pa.table({"song": ["a", "b"], "score": [1.5, 2.0]}), NOW)
    tables.write(tmp_path, "sums_of_popularity", pa.table({"song": ["a"]}), NOW)
    listed = json.loads(call("tables", "--out", str(tmp_path), "-o", "json").output)
    assert [(item["table"], item["rows"]) for item in listed["items"]] == [("popularity", 2)]
    shown = json.loads(call("tables", "popularity", "--limit", "1", "--out", str(tmp_path), "-o", "json").output)
    assert shown["items"] == [{"song": "a", "score": 1.5}]
    assert "SCORE" in call("tables", "popularity", "--out", str(tmp_path)).output
    assert isinstance(call("tables", "capacity", "--out", str(tmp_path)).exception, NegativeError)


# --- a stream ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stream_ends_in_order_at_a_signal_and_goes_on_when_it_is_started_again(
    spark: SparkSession, run_here: Callable[..., Result], tmp_path: Path
):
    from scale0_spark.events import deduplicated, read_events

    events, out = tmp_path / "events", tmp_path / "out"
    generate(events, "--seed", "1", "--force")
    words = ["stream", "--events", str(events), "--out", str(out), "--tables", "popularity"]
    place = ("--master", "local[1]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2")
    started = subprocess.Popen(
        [SCALE0, "spark", *words, *place, "--every", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert started.stderr is not None
        for line in started.stderr:  # progress lines tell of the batch
            if "popularity: batch" in line and (out / "popularity.json").exists():
                break
        started.send_signal(signal.SIGTERM)
        output, complaints = started.communicate(timeout=400)
    finally:
        started.kill()
    assert started.returncode == 0, complaints
    assert "popularity" in output

    generate(events, "--seed", "2", "--start", "2026-01-07", "--append")
    others = ["stream", "--events", str(tmp_path), "--out", str(out), "--tables", "popularity"]
    failure = call(*others, "--once").exception
    assert isinstance(failure, UsageError)
    assert f"is of the files in {events}" in failure.problem.what
    assert run_here(*words, "--once", "--quiet").stderr == ""
    job = jobs.JOBS["popularity"]
    batch = jobs.run(job, deduplicated(read_events(spark, str(events), job.kinds)))["popularity"].toArrow().to_pylist()
    assert by_song(tables.read(out, "popularity").to_pylist()) == by_song(batch)


def generate(folder: Path, *more: str) -> None:
    words = [SCALE0, "telemetry", "generate", "--rows", "5000", "--days", "1", "--brokers", "1", "--quiet"]
    subprocess.run(
        [*words, "--out", str(folder), *more], check=True, capture_output=True, env=dict(os.environ), timeout=300
    )


def by_song(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {row["song"]: (row["requests"], row["downloads"], pytest.approx(row["score"])) for row in rows}
