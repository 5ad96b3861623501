"""Where a session runs, and with which settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0_core.cli.kit import UsageError
from scale0_spark.session import check_place, classic_settings, collector, cores_of, is_on_loopback


def test_a_local_session_stays_on_loopback_and_uses_the_cores_it_is_given(tmp_path: Path):
    settings = classic_settings("app", "local[3]", tmp_path, ui=False)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.objectHashAggregate.sortBased.fallbackThreshold"] == "65536"
    assert settings["spark.ui.enabled"] == "false"
    assert "spark.sql.ui.retainedExecutions" in settings.keys() - classic_settings("app", "local", tmp_path, ui=True)


def test_batches_are_cut_finer_than_the_state_of_streams(tmp_path: Path):
    finer = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
    for master, partitions in (("local[3]", 3), ("spark://10.0.0.7:7077", 32)):
        settings = classic_settings("app", master, tmp_path, ui=False)
        assert (settings["spark.sql.shuffle.partitions"], settings[finer]) == (str(partitions), str(8 * partitions))
        assert settings["spark.sql.files.maxPartitionBytes"] == "16m"


@pytest.mark.parametrize(
    ("environment", "option"),
    [({}, ["-XX:+UseParallelGC"]),
     ({"JAVA_TOOL_OPTIONS": "-Xss4m", "OTHER": "-XX:+UseSerialGC"}, ["-XX:+UseParallelGC"]),
     ({"JAVA_TOOL_OPTIONS": "-Xss4m -XX:+UseSerialGC"}, []),
     ({"JDK_JAVA_OPTIONS": "-XX:+UseG1GC"}, []),
     ({"_JAVA_OPTIONS": "-XX:+UseZGC -Xss4m"}, [])],
)  # fmt: skip
def test_a_collector_that_the_environment_names_is_the_only_one(environment: dict[str, str], option: list[str]):
    assert collector(environment) == option


def test_a_cluster_elsewhere_can_reach_the_driver(tmp_path: Path):
    assert "spark.driver.host" not in classic_settings("app", "spark://10.0.0.7:7077", tmp_path, ui=False)
    assert "spark.driver.host" in classic_settings("app", "spark://127.0.0.1:7077", tmp_path, ui=False)


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[4]", 4), ("local[2,3]", 2), ("spark://h:1", None), ("yarn", None)]
)
def test_the_cores_of_a_master(master: str, cores: int | None):
    assert cores_of(master) == cores


def test_all_cores_are_those_this_process_may_use():
    assert (cores_of("local[*]") or 0) >= 1


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*]", True), ("spark://127.0.0.1:7077", True), ("spark://localhost:1", True), ("spark://[::1]:1", True),
     ("spark://10.0.0.7:7077", False), ("spark://example.org:7077", False), ("yarn", False)],
)  # fmt: skip
def test_which_masters_are_on_this_machine(master: str, here: bool):
    assert is_on_loopback(master) == here


@pytest.mark.parametrize("master", ["local[*]", "local", "local[2,4]", "spark://h:7077", "yarn", "k8s://https://h:1"])
def test_masters_of_spark_are_taken(master: str):
    check_place(master, None)


@pytest.mark.parametrize("master", ["local[]", "local[x]", "Spark here", "", "://x"])
def test_what_is_no_master_is_refused_before_anything_starts(master: str):
    with pytest.raises(UsageError):
        check_place(master, None)


@pytest.mark.parametrize("remote", ["127.0.0.1:15002", "http://x", ""])
def test_what_is_no_address_of_spark_connect_is_refused(remote: str):
    with pytest.raises(UsageError):
        check_place("local[*]", remote)
