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

import pyarrow as pa
import pytest

from scale0_core.testing import BrokerStarter
from scale0_spark import command, tables
from scale0_spark.events import deduplicated, read_events
from scale0_spark.jobs import JOBS, Options, run
from scale0_spark.zpipes.payloads import EVENT_COLUMNS, chunks_of

from .clusters import Cluster, conf, connect_server, free_port, get, standalone, wait_for
from .conftest import NO_CODE
from .event_rows import by_chance, frame
from .zpipes_world import World, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALE0 = shutil.which("scale0", path=str(Path(sys.executable).parent)) or "scale0"
ACCURACY = 100_000
"""So fine that percentiles of so few events are exact, however the work was cut into parts."""
SMALL = ("--conf", "spark.driver.memory=1g", "--conf", "spark.executor.memory=512m")
FEW_PARTS = (
    "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.adaptive.coalescePartitions.initialPartitionNum=4",
)  # fmt: skip
"""Enough that every shuffle has parts on both workers. By default there are 256 at first, and so few events in them."""

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
    """Some weeks of events, so that there are anomalies."""
    folder = tmp_path_factory.mktemp("events") / "events"
    rows = ("--rows", "2500", "--seed", "5", "--days", "16", "--brokers", "1", "--quiet")
    done(scale0("telemetry", "generate", *rows, "--out", str(folder)))
    return folder


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    """The cluster, with all of its workers."""
    one_cluster.complete()
    return one_cluster


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    pytest.importorskip("grpc")
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A broker with pipes."""
    with BrokerStarter() as starter:
        yield World(starter)


Tables = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def wanted(remote: str, events: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of all jobs, through Spark Connect from a server that is a Spark as the command starts one here."""
    folder = tmp_path_factory.mktemp("wanted")
    names = all_jobs(events, folder, "--remote", remote, *FEW_PARTS)
    assert names == [name for job in command.JOBS for name in JOBS[job].tables]
    return {name: tables.read(folder, name).to_pylist() for name in names}


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
    assert all_jobs(events, tmp_path, "--master", cluster.url, *SMALL, *FEW_PARTS, *conf(NO_CODE)) == list(wanted)
    assert_same(tmp_path, wanted, wanted)
    apps = wait_for(lambda: (cluster.state() or {}).get("completedapps"), "the end of the application")
    assert apps[0]["name"].startswith("scale0 trends availability")


def test_a_worker_killed_in_mid_job_changes_nothing(cluster: Cluster, events: Path, wanted: Tables, tmp_path: Path):
    """The job is cut into many small tasks; a worker is killed when some of a stage are done and others are not.

    Some files of events are there twice, which changes nothing either.
    """
    port = free_port()
    events = shutil.copytree(events, tmp_path / "events")
    for path in sorted(events.glob("*/kind=task/*.parquet"))[:5]:
        shutil.copy(path, path.with_name(f"again-{path.name}"))
    many_tasks = ("--conf", "spark.sql.files.maxPartitionBytes=4k", "--conf", "spark.sql.files.openCostInBytes=1")
    pages = ("--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}", "--conf", "spark.locality.wait=0s")
    place = ("--master", cluster.url, *SMALL, *many_tasks, *pages)
    out = tmp_path / "out"
    job = scale0("spark", "trends", *exactly(events, out), *place)
    try:
        stage = wait_for(lambda: half_done(cluster, port, job), "a stage that is half done")
        victim = cluster.workers[0]
        victim.send_signal(signal.SIGKILL)
        victim.wait(timeout=60)
        assert 0 < stage["numCompleteTasks"] < stage["numTasks"]
        done(job)
    finally:
        job.kill()
        job.communicate(timeout=60)
    assert_same(out, wanted, JOBS["trends"].tables)
    state = cluster.state()
    assert state["aliveworkers"] == 1
    assert state["completedapps"][0]["state"] == "FINISHED"


def half_done(cluster: Cluster, port: int, job: subprocess.Popen[str]) -> Any:
    """Give a stage of which much is left to do while both workers are at it."""
    assert job.poll() is None, job.communicate(timeout=60)[1]
    busy = [worker for worker in (cluster.state() or {}).get("workers", ()) if worker["coresused"]]
    if len(busy) < 2:
        return None
    for application in get(f"http://127.0.0.1:{port}/api/v1/applications") or ():
        stages = get(f"http://127.0.0.1:{port}/api/v1/applications/{application['id']}/stages?status=active") or ()
        for stage in stages:
            if stage["numTasks"] >= 20 and 2 <= stage["numCompleteTasks"] <= stage["numTasks"] // 2:
                return stage
    return None


HERE = ("trends", "popularity")
"""Jobs whose tables are also made by the process of the tests. All jobs would cost a minute, and those of the cluster
are compared with those of the server."""


def test_all_jobs_through_spark_connect_give_the_same_tables(
    spark: SparkSession, events: Path, wanted: Tables, tmp_path: Path
):
    assert all(wanted.values()), "no table is empty"
    stored = deduplicated(read_events(spark, str(events)))
    for name in HERE:
        for table, made in run(JOBS[name], stored, Options(accuracy=ACCURACY)).items():
            tables.write(tmp_path, table, made.toArrow())
            assert_same(tmp_path, wanted, [table])


# --- pipes ------------------------------------------------------------------------------------------------------------


def stream_of_a_pipe(name: str, job: str, spark: SparkSession, world: World, out: Path, *place: str) -> None:
    """Have the command make a table of events in a pipe, and compare it with that of the job."""
    pipe, rows = world.name("events"), by_chance(3, 300, days=2 / 24)
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 50], EVENT_COLUMNS) for at in range(0, len(rows), 50)]
    world.fill(pipe, [chunk for batch in batches for chunk in chunks_of(batch, "events").to_pylist()], group=None)
    source = ("--pipe", pipe, "--address", world.address)
    done(scale0("spark", "stream", *source, "--out", str(out), "--once", "--tables", name, *place))
    table = run(JOBS[job], frame(spark, rows))[name].toArrow().to_pylist()
    assert_same(out, {name: table}, [name])


def test_a_stream_of_a_pipe_on_a_cluster_gives_the_table_of_the_job(
    spark: SparkSession, cluster: Cluster, world: World, tmp_path: Path
):
    """Executors read the pipe, and keep the state of windows."""
    place = ("--master", cluster.url, *SMALL, *FEW_PARTS)
    stream_of_a_pipe("trends_hour", "trends", spark, world, tmp_path, *place)
    apps = wait_for(lambda: (cluster.state() or {}).get("completedapps"), "the end of the application")
    assert "scale0 stream" in [app["name"] for app in apps]


def test_a_stream_of_a_pipe_through_spark_connect_gives_the_table_of_the_job(
    spark: SparkSession, remote: str, world: World, tmp_path: Path
):
    """The server finishes the table from sums with each batch."""
    stream_of_a_pipe("popularity", "popularity", spark, world, tmp_path, "--remote", remote, *FEW_PARTS)


def test_pipes_are_read_and_written_through_spark_connect(remote: str, world: World, tmp_path: Path):
    source, target, chunks = world.name("source"), world.name("target"), numbered(100)
    world.fill(source, chunks)
    script = Path(__file__).with_name("zpipes_connect.py")
    words = [sys.executable, str(script), remote, world.address, source, target, str(tmp_path)]
    copied = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert copied.returncode == 0, copied.stderr
    # a pipe without a group mixes what writers wrote
    assert sorted(world.content(target)) == sorted([*chunks[:3], *chunks])
