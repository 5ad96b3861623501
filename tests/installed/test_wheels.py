"""What a user gets who installs the wheels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from .conftest import PLUGINS, ROOT, SOURCES, Environment, run


def answer_of(
    environment: Environment, *arguments: str, cwd: Path, expected: int = 0
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [environment.scale0, *arguments], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )
    assert ended.returncode == expected, ended.stderr
    return ended


def the_one(wheels: list[Path], name: str) -> Path:
    return next(wheel for wheel in wheels if wheel.name.startswith(f"scale0_{name}-"))


def test_there_is_a_wheel_for_every_distribution(wheels):
    names = {tomllib.loads((source / "pyproject.toml").read_text())["project"]["name"] for source in SOURCES}
    assert {wheel.name.split("-")[0] for wheel in wheels} == {name.replace("-", "_") for name in names}


def test_wheels_hold_types_and_licence_and_nothing_of_the_tests(wheels):
    for wheel in wheels:
        files = zipfile.ZipFile(wheel).namelist()
        assert any(name.endswith("/py.typed") for name in files), wheel.name
        assert not [name for name in files if name.startswith(("tests/", "bench/", "plugins/"))]
    core = zipfile.ZipFile(the_one(wheels, "core")).namelist()
    assert any(name.endswith("/LICENSE") for name in core)
    assert any("cli/template" in name for name in core)


def test_it_runs_from_the_wheels_alone(installed, tmp_path):
    where = run(
        installed.python, "-c", "import scale0_core, scale0_echo; print(scale0_core.__file__)", cwd=tmp_path
    ).stdout
    assert str(installed.folder) in where
    assert "echo" in answer_of(installed, "--help", cwd=tmp_path).stdout


def test_a_broker_on_embedded_defaults_answers_and_ends(installed, tmp_path):
    name = f"wheel-{os.getpid()}"
    broker = subprocess.Popen(
        [installed.scale0, "broker", "--name", name], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in broker.stderr:
            if " ready " in line:
                break
        else:
            pytest.fail("the broker ended before it was ready")
        assert answer_of(installed, "echo", "--broker", name, "hello", cwd=tmp_path).stdout.strip() == "hello"
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.stderr.read()
        assert broker.wait(20) == 0
        broker.stderr.close()


def test_doctor_finds_the_machine_in_order(installed, wheels, tmp_path):
    report = json.loads(answer_of(installed, "doctor", "-o", "json", cwd=tmp_path).stdout)
    found = {row["what"] if "what" in row else row["name"]: row["found"] for row in report["items"]}
    core = the_one(wheels, "core")
    is_native = any(name.endswith(".so") for name in zipfile.ZipFile(core).namelist())  # if there was a compiler
    assert found["wire"].startswith("native" if is_native else "pure")


def test_without_a_compiler_the_wheel_is_built_and_the_pure_wire_serves(pure_wheel, wheels, tmp_path):
    assert not [name for name in zipfile.ZipFile(pure_wheel).namelist() if name.endswith((".so", ".pyd"))]
    echo = the_one(wheels, "echo")
    environment = Environment(tmp_path / "venv").create(pure_wheel, echo)
    version = json.loads(answer_of(environment, "version", "-o", "json", cwd=tmp_path).stdout)
    assert version["wire"] == "pure"
    answer_of(environment, "doctor", cwd=tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", PLUGINS, ids=lambda source: source.name)
def test_the_tests_of_every_plugin_pass_against_its_wheel_with_no_other_plugin(source, wheels, tmp_path):
    core, own = (the_one(wheels, name) for name in ("core", source.name))
    tools = ("pytest", "pytest-rerunfailures", "pytest-timeout", "hypothesis")
    environment = Environment(tmp_path / "venv").create(core, f"{own}[testing]", *tools)
    # the slow ones, such as those with many kill -9, are enough once, from the sources
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not soak", "--reruns", "1", "--timeout", "300")
    where = ("-c", ROOT / "pyproject.toml", "--rootdir", source, source / "tests")
    run(environment.python, "-m", "pytest", *options, *where, cwd=tmp_path, timeout=800)
