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


SMOKE = {
    "discovery": "test_broker.py::test_a_worker_appears_with_what_it_says_of_itself",
    "echo": "test_broker.py::test_sends_back",
    "majordomo": "test_sockets.py::test_a_req_client_and_workers_of_all_versions",
    "musicquest": "test_server_broker.py::test_a_song_is_found_through_the_tree_and_fetched_from_its_holder",
    "telemetry": "test_broker.py::test_what_was_done_is_in_the_files",
    "zpipes": "test_broker.py::test_both_dialects_and_req_sockets_on_the_same_address",
}
"""For each plugin one test with a real broker; formats have none."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", PLUGINS, ids=lambda source: source.name)
def test_quick_tests_of_every_plugin_and_one_with_a_broker_pass_from_its_wheel_with_no_other(source, wheels, tmp_path):
    """All others are enough once, from the sources."""
    core, own = (the_one(wheels, name) for name in ("core", source.name))
    environment = Environment(tmp_path / "venv").create(core, f"{own}[testing]", "pytest-timeout", "hypothesis")
    tests = source / "tests"
    rest = ("-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", source)
    run(environment.python, "-m", "pytest", "--lane", "quick", *rest, tests, cwd=tmp_path, timeout=600)
    if not source.name.startswith("config_"):
        smoke = tests / SMOKE[source.name]
        run(environment.python, "-m", "pytest", "--lane", "real", *rest, smoke, cwd=tmp_path)
