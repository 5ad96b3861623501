"""One Spark session for all tests of a process, since each start costs seconds."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HAS_SPARK = importlib.util.find_spec("pyspark") is not None

collect_ignore_glob = [] if HAS_SPARK else ["test_*.py"]
"""Without PySpark, as in the environment of the broker's own tests, there is nothing to run here."""

THEIR_WARNINGS = (
    "ignore::DeprecationWarning:pyspark",
    "ignore::FutureWarning:pyspark",
    "ignore::UserWarning:pyspark",
    "ignore::ResourceWarning:pyspark",
    r"ignore:unclosed file <_io.TextIOWrapper name=\d+ :ResourceWarning",  # a pipe of a process that it started
)
"""Warnings about PySpark's own code, which we cannot mend; those about ours stay errors."""

LONGEST = ["test_streaming.py", "test_cluster.py"]

NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Tables of a few rows are made sooner than the code for them; most sessions that commands start have code made."""

SMALL = {"spark.driver.memory": "1g", **NO_CODE}
"""All that differs from the session that users get."""


def pytest_configure(config: pytest.Config) -> None:
    for line in THEIR_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["TZ"] = "UTC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that two processes end at about the same time."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        return LONGEST.index(name) if name in LONGEST else len(LONGEST), item.get_closest_marker("slow") is None

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def in_the_lane_real(real: None) -> None:
    """Put all tests here into the lane `real`: they run where Spark is installed."""


@pytest.fixture
def run_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Give what runs `scale0 spark` with the session of the tests, and insists that it ends well.

    A start of Spark costs seconds, and other tests have it.
    """
    from scale0_spark import command, running

    monkeypatch.setattr(running, "open_session", lambda *_, **__: contextlib.nullcontext(spark))

    def run(*words: str) -> Result:
        done = CliRunner().invoke(command.main, words)
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    return run


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from scale0_spark.session import open_session

    with open_session("scale0-tests", "local[2]", settings=SMALL) as session:
        yield session
