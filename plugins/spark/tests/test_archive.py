"""An archive of Java's classes: whose it is, what is said where none can be made, and that sessions take it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scale0_core.cli.kit import NegativeError
from scale0_spark.archive import SPARKS, archive_folder, archive_options, exercise, make_archive
from scale0_spark.java import Java, find_java
from scale0_spark.progress import Progress
from scale0_spark.running import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORGETFUL = """\
#!/bin/sh
echo '[0.1s][warning][cds] this one keeps nothing'
exit 1
"""


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java that writes no archive."""
    command = tmp_path / "java"
    command.write_text(FORGETFUL)
    command.chmod(0o755)
    return Java(str(command), 17, "PATH")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_a_session_asks_for_an_archive_only_when_there_is_one(java: Java, environment: dict[str, str]):
    assert archive_options(java, environment) == []
    folder = archive_folder(java, environment)
    folder.mkdir(parents=True)
    (folder / SPARKS).touch()
    assert archive_options(java, environment) == [f"-XX:SharedArchiveFile={folder / SPARKS}"]


def test_another_java_in_its_place_has_another_archive(java: Java, environment: dict[str, str]):
    before = archive_folder(java, environment)
    assert archive_folder(java, environment) == before
    os.utime(java.command, (1, 1))
    assert archive_folder(java, environment) != before


def test_a_java_that_is_gone_has_none(java: Java, environment: dict[str, str]):
    Path(java.command).unlink()
    assert archive_options(java, environment) == []


def test_a_java_that_keeps_no_classes_is_named_with_its_own_words(java: Java, environment: dict[str, str]):
    with pytest.raises(NegativeError) as caught:
        make_archive(java, environment, Place("local[1]"), Progress(quiet=True))
    assert "Java 17" in caught.value.problem.what
    assert "this one keeps nothing" in caught.value.problem.why
    assert not archive_folder(java, environment).exists(), "nothing half made stays"


def test_what_is_done_for_an_archive_can_be_done(spark: SparkSession):
    exercise(spark)
    assert spark.streams.active == []


def test_a_session_takes_its_classes_from_the_archive(spark: SparkSession):
    """The environment of tox has one: `scale0 spark prepare` made it before the tests."""
    folder = archive_folder(find_java(os.environ), os.environ)
    if not (folder / SPARKS).exists():
        assert "CI" not in os.environ, "tox makes an archive before it tests"
        pytest.skip("no archive: scale0 spark prepare was not run")
    maps = Path("/proc") / str(spark.sparkContext._jvm.ProcessHandle.current().pid()) / "maps"
    assert str(folder / SPARKS) in maps.read_text(), "it is there, and Java does not use it"
