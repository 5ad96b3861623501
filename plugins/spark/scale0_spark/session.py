"""A Spark session with the settings that the jobs want, on this machine, on a cluster or through Spark Connect."""
# does I/O: it starts and ends the Java process

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import Exit, NotReachedError, UsageError

from .archive import archive_options
from .java import Java, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
CLUSTER_PARTITIONS = 32
"""Partitions of a shuffle on a cluster, whose size is not known beforehand; Spark joins small ones."""
PARTS_PER_PARTITION = 8
"""Into how many parts a batch cuts each of these partitions at first; Spark joins them again up to `PART`."""
PART = "16m"
"""How many bytes a task gets. All that it makes of them is in memory at once; with the default of 128 MB that is so
much for trends by minute that Java's garbage collector copies it again and again."""
MOST_MEMORY_GIB = 4
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
JAVA_ENVIRONMENT = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Where Java takes options from, beside its command line."""
END = 10.0
"""Seconds that the Java process gets to end by itself."""

SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # with the default of 128 groups, aggregation of percentiles falls back to sorting, which is much slower
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",
    "spark.sql.files.maxPartitionBytes": PART,
    # what opening a file counts for: telemetry has many small ones, and with the default of 4 MB four would be a task
    "spark.sql.files.openCostInBytes": "1m",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": PART,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What is set in every session, also in one of a Spark Connect server."""

QUIET_LOG = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c: %m%n%ex
"""


class SessionError(Scale0Error):
    """Spark could not be started, or ended by itself."""

    exit_code = Exit.UNREACHED


@contextlib.contextmanager
def open_session(
    app: str,
    master: str = LOCAL,
    remote: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    ui: bool = False,
    log: Path | None = None,
    java_options: Sequence[str] | None = None,
    patience: float = END,
) -> Iterator[SparkSession]:
    """Start a Spark session, hand it out, and end it and its Java process.

    :param app: the name that Spark shows.
    :param master: `local[*]`, `local[N]`, or `spark://host:port` of a cluster.
    :param remote: `sc://host:port` of a Spark Connect server; then `master` does not matter and no Java is needed.
    :param settings: settings of Spark that come on top of ours, or instead.
    :param ui: whether Spark's own pages are served, on loopback.
    :param log: where to write what Spark logs and Java complains of; by default it is shown if the start fails, else
        dropped.
    :param java_options: options of Java that say where it has its classes from; by default those for the archive that
        `prepare` made, if there is one. Not for `remote`.
    :param patience: how many seconds the Java process gets to end by itself.
    """
    check_place(master, remote)
    if remote is not None:
        with _connected(app, remote, {**_sql_settings(None), **(settings or {})}) as spark:
            yield spark
        return
    folder = Path(tempfile.mkdtemp(prefix="scale0-spark-"))
    try:
        wanted = {**classic_settings(app, master, folder, ui=ui), **(settings or {})}
        java = _set_environment(loopback=is_on_loopback(master))
        options = archive_options(java, os.environ) if java_options is None else java_options
        wanted[JAVA_OPTIONS] = " ".join([wanted[JAVA_OPTIONS], *(f'"{option}"' for option in options)])
        with _started(wanted, log or folder / "java.log", patience) as spark:
            yield spark
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_place(master: str, remote: str | None) -> None:
    """Refuse what cannot be the place of a session, before anything is started."""
    nothing = "no Spark session was started"
    if remote is not None and not remote.startswith("sc://"):
        raise UsageError(f"{remote} is not the address of a Spark Connect server", "", nothing, "write sc://host:port")
    if remote is None and not re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\]|-cluster\[.+\])?|[a-z0-9]+(://.+)?", master):
        raise UsageError(
            f"{master} is no master of Spark", "", nothing, "write local[*], local[2] or spark://host:port"
        )


def is_on_loopback(master: str) -> bool:
    """Tell whether all of Spark is on this machine, so that nothing needs to be reached from others."""
    if master.startswith("local"):
        return True
    host = urlsplit(master).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def cores_of(master: str) -> int | None:
    """Give how many cores a local master uses; None for others."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if not found:
        return None
    if found[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(found[1] or 1)


def classic_settings(app: str, master: str, folder: Path, *, ui: bool) -> dict[str, str]:
    """Give the settings of a session that has its own Java process."""
    log_config = folder / "log4j2.properties"
    log_config.write_text(QUIET_LOG, encoding="ascii")
    settings = {
        "spark.app.name": app,
        "spark.master": master,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_memory_gib()}g",
        "spark.driver.maxResultSize": "2g",
        JAVA_OPTIONS: " ".join([f"-Dlog4j2.configurationFile={log_config.as_uri()}", *collector()]),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **_sql_settings(master),
    }
    if not ui:  # for whose pages Spark keeps the plans of a thousand queries: a stream would fill its memory with them
        settings["spark.sql.ui.retainedExecutions"] = "10"
    if is_on_loopback(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if master.startswith("local"):
        settings["spark.local.dir"] = str(folder)
    return settings


def _sql_settings(master: str | None) -> dict[str, str]:
    """Give the settings of queries; `shuffle.partitions` is for streams, which have their state in so many parts."""
    partitions = (None if master is None else cores_of(master)) or CLUSTER_PARTITIONS
    return {
        **SQL,
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(partitions * PARTS_PER_PARTITION),
    }


def collector(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Give Java's option for the garbage collector that does the most work in a second; pauses are no matter here.

    None where the environment names a collector: Java does not start with two.
    """
    told = " ".join(environment.get(name, "") for name in JAVA_ENVIRONMENT)
    return [] if re.search(r"-XX:\+Use\w+GC\b", told) else ["-XX:+UseParallelGC"]


def _memory_gib() -> int:
    """Give the memory of the driver: at most half of the machine's."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(1, min(MOST_MEMORY_GIB, half >> 30))


# --- a Java process of our own ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(settings: Mapping[str, str], log: Path, patience: float) -> Iterator[SparkSession]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  Spark would hand out the other one silently
        raise SessionError("a Spark session is open in this process", "there can be one", "", "close the other first")
    with log.open("ab") as output:
        context = _context(settings, output, log)
    try:
        spark = SparkSession(context)
        yield spark
        spark.stop()
    finally:
        end_java(patience)


def _set_environment(*, loopback: bool) -> Java:
    """Have Java and the executors' Python on this machine be those of this process."""
    java = use_java(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if loopback:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return java


def _context(settings: Mapping[str, str], output: IO[bytes], log: Path) -> Any:
    """Start Java with its stderr in a file, since it writes warnings there before any setting counts."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    try:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        return SparkContext(gateway=gateway, conf=conf)
    except (PySparkException, Py4JError, OSError) as error:
        end_java()
        raise _failed(error, log) from error


def _failed(error: Exception, log: Path) -> SessionError:
    told = [line for line in _lines(log) if not line.startswith(("WARNING: ", "\tat "))][-5:]
    first = str(error).strip().splitlines()[:1]
    return SessionError(
        "Spark could not be started", "\n".join(told or first), "no job was run",
        "look at the lines above; java -version must work, and a cluster must be reachable",
    )  # fmt: skip


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def end_java(patience: float = END) -> None:
    """End the Java process of this Python process, if there is one; a later session starts another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway  # noqa: SLF001  Spark itself leaves Java running until Python ends
    active = SparkContext._active_spark_context  # noqa: SLF001
    if active is not None:
        with contextlib.suppress(Exception):
            active.stop()
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    if gateway is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is not None:
        _end(process, patience)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # Java ends when nobody can write to it
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- Spark Connect ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(app: str, remote: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    if importlib.util.find_spec("grpc") is None:
        raise SessionError(
            "Spark Connect cannot be used", "the package grpcio is not installed", "no job was run",
            'pip install "scale0-spark[connect]"',
        )  # fmt: skip
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote).appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.create()
        spark.range(1).count()
    except PySparkException as error:
        raise NotReachedError(
            f"no Spark Connect server answers at {remote}", str(error).strip().splitlines()[0], "no job was run",
            "start one, or check the address: sc://host:port",
        ) from error  # fmt: skip
    try:
        yield spark
    finally:
        with contextlib.suppress(PySparkException):
            spark.stop()
