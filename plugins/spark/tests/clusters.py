"""Real parts of Spark on loopback, from the PySpark package alone: a master with workers, and a Connect server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pyspark

from scale0_spark.archive import archive_options
from scale0_spark.java import use_java
from scale0_spark.session import classic_settings

from .conftest import NO_CODE

HOME = Path(pyspark.__file__).parent
PATIENCE = 400.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, str]:
    """Have every part be the Python of this process, on loopback, and small."""
    found = os.environ | {
        "SPARK_HOME": str(HOME), "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "768m", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    options = archive_options(use_java(found), found)
    found["JAVA_TOOL_OPTIONS"] = " ".join([found.get("JAVA_TOOL_OPTIONS", ""), *(f'"{each}"' for each in options)])
    return found


def conf(settings: Mapping[str, str]) -> list[str]:
    """Give settings of Spark as options of a command."""
    return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]


def wait_for(look: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Look again and again until there is an answer."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {patience} s for {what}")


def get(url: str) -> Any:
    """Read JSON from one of Spark's pages; None as long as nobody serves it."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def process(folder: Path, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one part, with its output in a file, and end it by its id."""
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment(), cwd=folder
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


JAVA = str(HOME / "bin" / "spark-class")
PLACE = ("--host", "127.0.0.1")


@attrs.define
class Cluster:
    """A master, and workers of one core each."""

    url: str
    page: str
    folder: Path
    stack: contextlib.ExitStack
    """Ends all that was started."""
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    started: int = 0

    def state(self) -> Any:
        return get(f"{self.page}/json/")

    def complete(self, workers: int = 2) -> None:
        """Have so many workers: those that a test has killed, and its second try needs, are started anew."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < workers:
            self.started += 1
            name = f"worker-{self.started}"
            made = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.folder / name))
            words = (JAVA, "org.apache.spark.deploy.worker.Worker", *PLACE, *made, self.url)
            self.workers.append(self.stack.enter_context(process(self.folder, name, *words)))
        wait_for(lambda: (self.state() or {}).get("aliveworkers") == workers, "the workers")


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """Start a master, and workers with it."""
    port, page = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", *PLACE, "--port", str(port), "--webui-port", str(page))
        stack.enter_context(process(folder, "master", JAVA, *master))
        cluster = Cluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page}", folder, stack)
        wait_for(cluster.state, "the master")
        cluster.complete()
        yield cluster


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a Spark Connect server, and give its address."""
    port = free_port()
    settings = classic_settings("connect", "local[2]", folder, ui=False) | {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g", **NO_CODE,
    }  # fmt: skip
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = str(HOME / "bin" / "spark-submit")
    with process(folder, "connect", submit, *conf(settings), "--class", server, "spark-internal") as started:

        def answers() -> bool:
            assert started.poll() is None, (folder / "connect.log").read_text()
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        wait_for(answers, "the Connect server")
        yield f"sc://127.0.0.1:{port}"
