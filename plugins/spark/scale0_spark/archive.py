"""An archive of Java's classes, with which Spark starts in about half the time.

Most of what a session does at first is that Java reads, checks and links some thousands of Spark's classes, the same at
every start. Java can keep them as they are in memory then, in a file of some 200 MB. Who asks for that gets one in the
user's cache, and every session on the same Java and the same PySpark takes it from there. Java itself checks whether an
archive fits, and goes on without it if not.
"""
# does I/O: it writes the archive, and looks whether it is there

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from scale0_core.api import events, files
from scale0_core.cli.kit import NegativeError

from .java import Java, cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .progress import Progress
    from .running import Place

JOBS = ("trends", "popularity", "capacity")
"""Jobs that are run so that Java has their classes: most of them are those of all jobs."""
STREAM = "popularity"
OWN, SPARKS = "java.jsa", "spark.jsa"
"""The two files of an archive: Java's own classes, and those that come on top."""
PATIENCE = 120.0
"""Seconds in which Java writes such a file, also on a busy machine."""


def archive_folder(java: Java, environment: Mapping[str, str]) -> Path:
    """Give where the archive for this Java and this PySpark is, whether or not it is there yet."""
    jars, program = _jars(), Path(java.command).resolve()
    parts = [str(program), str(program.stat().st_mtime_ns), str(jars), str(jars.stat().st_mtime_ns)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder(environment) / f"classes-{name}"


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def archive_options(java: Java, environment: Mapping[str, str]) -> list[str]:
    """Give Java's option for the archive; none if there is no archive."""
    try:
        file = archive_folder(java, environment) / SPARKS
    except OSError:  # a Java or a folder that is gone: whoever starts it will say so
        return []
    return [_using(file)] if file.exists() else []


def _using(file: Path) -> str:
    return f"-XX:SharedArchiveFile={file}"


@attrs.frozen
class Made:
    """An archive that was made, and in how many seconds a session is there with it."""

    folder: str
    bytes: int
    start_s: float


def make_archive(java: Java, environment: Mapping[str, str], place: Place, progress: Progress) -> Made:
    """Start a session, have it do some of everything, and keep the classes that it had at its end."""
    folder = archive_folder(java, environment)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        start = _make(java, folder, place, progress)
    finally:
        if not (folder / SPARKS).exists():
            shutil.rmtree(folder, ignore_errors=True)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Made(str(folder), size, round(start, 2))


def _make(java: Java, folder: Path, place: Place, progress: Progress) -> float:
    """Write the archive; give the seconds in which a session is there with it."""
    own = _kept_own(java, folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".made-") as temporary:
        made, log = Path(temporary) / SPARKS, place.log or Path(temporary) / "java.log"
        place = attrs.evolve(place, log=log)
        known = log.stat().st_size if log.exists() else 0  # of an earlier try, if somebody wants to have the log
        _write(own, made, place, progress)
        if not made.exists():
            raise _kept_nothing(java, _read(log, known))
        known = log.stat().st_size
        start = _try(made, place, progress)
        if "Unable to use shared archive" in (told := _read(log, known)):
            raise _kept_nothing(java, told)
        files.put_in_place(made, folder / SPARKS, durable=False)
    return start


def _write(own: Path, made: Path, place: Place, progress: Progress) -> None:
    """Have Spark's classes kept."""
    from .running import STATE, explained
    from .session import open_session

    keep = [_using(own), f"-XX:ArchiveClassesAtExit={made}"]
    with contextlib.ExitStack() as stack:
        with progress.during("Spark session"):
            session = open_session(
                "scale0 prepare", place.master, settings=STATE, log=place.log, java_options=keep, patience=PATIENCE
            )
            spark = stack.enter_context(session)
        with progress.during("jobs and a stream, so that Java has their classes"), explained("a job"):
            exercise(spark)
        with progress.during("Java writes the archive"):
            stack.close()


def _try(made: Path, place: Place, progress: Progress) -> float:
    """Start a session with the archive; give the seconds in which it was there."""
    from .session import open_session

    began = time.monotonic()
    session = open_session("scale0 prepare", place.master, log=place.log, java_options=[_using(made)])
    with progress.during("Spark session, now with the archive"), session:
        return time.monotonic() - began


def _read(log: Path, start: int) -> str:
    return log.read_bytes()[start:].decode("utf-8", "replace")


def _kept_own(java: Java, folder: Path) -> Path:
    """Have Java keep its own classes, on which Spark's are put: not every Java comes with an archive of them.

    Java notes in the second file where the first one is, so this one gets its name at once.
    """
    file = folder / OWN
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".made-") as temporary:
            made = Path(temporary) / OWN
            command = [java.command, "-Xshare:dump", _using(made)]
            done = subprocess.run(  # noqa: S603  the Java that was found
                command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
            )
            if done.returncode or not made.exists():
                raise _kept_nothing(java, done.stdout + done.stderr)
            files.put_in_place(made, file, durable=False)
    return file


def _kept_nothing(java: Java, told: str) -> NegativeError:
    about = [line for line in told.splitlines() if "[cds" in line and "kipping" not in line]
    return NegativeError(
        f"Java {java.version} does not keep Spark's classes", about[0] if about else f"{java.command} wrote no archive",
        "Spark starts as before", "try another Java; 17 does it",
    )  # fmt: skip


def exercise(spark: SparkSession) -> None:
    """Run some jobs and a stream on a few events, so that Java has the classes that jobs and streams need."""
    from .events import SCHEMA, deduplicated, read_events, stream_events
    from .jobs import JOBS as KNOWN
    from .jobs import run
    from .running import Store
    from .streaming import STREAMS, start

    with tempfile.TemporaryDirectory(prefix="scale0-spark-") as folder:
        stored = f"{folder}/events"
        frame = spark.createDataFrame(_some_events(), SCHEMA)
        frame.write.partitionBy("date", "kind").parquet(stored)
        for name in JOBS:
            job = KNOWN[name]
            for table in run(job, deduplicated(read_events(spark, stored, job.kinds))).values():
                table.toArrow()
        stream = STREAMS[STREAM]
        source = stream_events(spark, stored, stream.kinds)
        query = start(stream, source, Store(f"{folder}/out"), f"{folder}/checkpoint", trigger={"availableNow": True})
        query.awaitTermination()


def _some_events() -> list[dict[str, Any]]:
    """Make two events of each kind."""
    begin = datetime(2030, 1, 1, tzinfo=timezone.utc)
    moments = [begin + timedelta(minutes=number) for number in range(2 * len(events.KINDS))]
    return [
        {
            "v": events.VERSION, "broker": "b", "epoch": 1, "seq": number, "ts": moment, "weight": 1.0, "service": "s",
            "peer": "p", "group": "g", "subject": "x", "source": "y", "outcome": "ok", "queue_us": 1, "service_us": 2,
            "bytes": 3, "count": 4, "value": 0.5, "kind": list(events.KINDS)[number // 2], "date": moment.date(),
        }
        for number, moment in enumerate(moments)
    ]  # fmt: skip
