"""The same commands on a real cluster and through Spark Connect, with the same tables as here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scale0_spark import command, tables

from .clusters import Cluster, connect_server, free_port, get, standalone, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALE0 = shutil.which("scale0", path=str(Path(sys.executable).parent)) or "scale0"
ACCURACY = 100_000
"""So fine that percentiles of so few events are exact, however the work was cut into parts."""
SMALL = ("--conf", "spark.driver.memory=1g", "--conf", "spark.executor.memory=512m")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
"""The limit is for machines on which much else runs; each takes some 20 seconds otherwise."""


def scale0(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_REMOTE"}
    pipe = subprocess.PIPE
    return subprocess.Popen([SCALE0, *arguments], stdout=pipe, stderr=pipe, text=True, env=environment, **options)


def done(started: subprocess.Popen[str]) -> str:
    output, complaints = started.communicate(timeout=1000)
    assert started.returncode == 0, complaints
    return output


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some weeks of events, so that there are anomalies, some of them stored twice."""
    folder = tmp_path_factory.mktemp("events") / "events"
    rows = ("--rows", "6000", "--seed", "5", "--days", "16", "--brokers", "1", "--duplicates", "0.01", "--quiet")
    done(scale0("telemetry", "generate", *rows, "--out", str(folder)))
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


Tables = dict[str, list[dict[str, Any]]]
TRENDS = ("trends_minute", "trends_hour", "trends_day")


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, events: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of all jobs as the process of the tests computes them."""
    from scale0_spark.events import deduplicated, read_events
    from scale0_spark.jobs import JOBS, Options, run

    folder = tmp_path_factory.mktemp("wanted")
    for name in command.JOBS:
        job = JOBS[name]
        found = deduplicated(read_events(spark, str(events), job.kinds))
        for table, frame in run(job, found, Options(accuracy=ACCURACY)).items():
            tables.write(folder, table, frame.toArrow())
    return {name: tables.read(folder, name).to_pylist() for job in command.JOBS for name in JOBS[job].tables}


def assert_same(out: Path, wanted: Tables, names: Iterable[str]) -> None:
    for name in names:
        rows = tables.read(out, name).to_pylist()
        assert len(rows) == len(wanted[name]) > 0, name
        for row, expected in zip(rows, wanted[name], strict=True):
            assert {
                key: pytest.approx(value) if isinstance(value, float) else value for key, value in expected.items()
            } == row


def all_jobs(events: Path, out: Path, *place: str) -> list[str]:
    """Run all jobs somewhere; give the names of the tables that they wrote."""
    told = done(scale0("spark", "run", *exactly(events, out), *place, "-o", "json"))
    return [item["table"] for item in json.loads(told)["items"]]


def exactly(events: Path, out: Path) -> tuple[str, ...]:
    return ("--events", str(events), "--out", str(out), "--accuracy", str(ACCURACY))


def test_all_jobs_on_a_cluster_give_the_same_tables(cluster: Cluster, events: Path, wanted: Tables, tmp_path: Path):
    assert all_jobs(events, tmp_path, "--master", cluster.url, *SMALL) == list(wanted)
    assert_same(tmp_path, wanted, wanted)
    apps = wait_for(lambda: (cluster.state() or {}).get("completedapps"), "the end of the application")
    assert apps[0]["name"].startswith("scale0 trends availability")


def test_a_worker_killed_in_mid_job_changes_nothing(cluster: Cluster, events: Path, wanted: Tables, tmp_path: Path):
    """The job is cut into many small tasks; a worker is killed when some of a stage are done and others are not."""
    port = free_port()
    many_tasks = ("--conf", "spark.sql.files.maxPartitionBytes=4k", "--conf", "spark.sql.files.openCostInBytes=1")
    pages = ("--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}", "--conf", "spark.locality.wait=0s")
    place = ("--master", cluster.url, *SMALL, *many_tasks, *pages)
    job = scale0("spark", "trends", *exactly(events, tmp_path), *place)
    try:
        stage = wait_for(lambda: half_done(cluster, port, job), "a stage that is half done")
        victim = cluster.workers[0]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert 0 < stage["numCompleteTasks"] < stage["numTasks"]
        done(job)
    finally:
        job.kill()
        job.communicate()
    assert_same(tmp_path, wanted, TRENDS)
    state = cluster.state()
    assert state["aliveworkers"] == 1
    assert state["completedapps"][0]["state"] == "FINISHED"


def half_done(cluster: Cluster, port: int, job: subprocess.Popen[str]) -> Any:
    """Give a stage of which much is left to do while both workers are at it."""
    assert job.poll() is None, job.communicate()[1]
    busy = [worker for worker in (cluster.state() or {}).get("workers", ()) if worker["coresused"]]
    if len(busy) < 2:
        return None
    for application in get(f"http://127.0.0.1:{port}/api/v1/applications") or ():
        stages = get(f"http://127.0.0.1:{port}/api/v1/applications/{application['id']}/stages?status=active") or ()
        for stage in stages:
            if stage["numTasks"] >= 20 and 2 <= stage["numCompleteTasks"] <= stage["numTasks"] // 2:
                return stage
    return None


def test_all_jobs_through_spark_connect_give_the_same_tables(events: Path, wanted: Tables, tmp_path: Path):
    pytest.importorskip("grpc")
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server") as address:
        assert all_jobs(events, tmp_path / "out", "--remote", address) == list(wanted)
    assert_same(tmp_path / "out", wanted, wanted)
