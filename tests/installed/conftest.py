"""Builds every wheel and installs the files in clean environments, as a user's pip would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
LARGE = {"spark": "brings Spark; the environment `spark` of tox installs and tests it in the same way"}
PLUGINS = [source for source in SOURCES[1:] if source.name not in LARGE]

BUILD = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
"""Builds wheels with the setuptools of this environment; an isolated build takes seconds more for each."""


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing of this checkout on its path, and insist on success."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "SCALE0"))}
    environment.update(options.pop("env", {}))
    ended = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", 300),
        env=environment,
        check=False,
        **options,
    )
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended


class Environment:
    """A virtual environment with only what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.scale0 = folder / "bin" / "scale0"

    def create(self, *packages: object) -> Environment:
        venv.create(self.folder, with_pip=False)
        # by the pip of this environment, since making another takes seconds, and so does compiling what no test imports
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-compile", *packages)
        return self


def once(tmp_path_factory, name, make):
    """Do something once for all workers of pytest-xdist; give the folder it was done in."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder, done = base / name, base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> list[Path]:
    """All wheels of this repository."""

    def build(folder: Path) -> None:
        run(*BUILD, "-w", folder, *SOURCES, cwd=folder.parent)

    return sorted(once(tmp_path_factory, "wheels", build).glob("*.whl"))


@pytest.fixture(scope="session")
def pure_wheel(tmp_path_factory) -> Path:
    """The core's wheel as it is built where no compiler is."""

    def build(folder: Path) -> None:
        # a copy, since a build leaves compiled files in the source tree that the next one would pick up
        copy = folder.parent / "core-source"
        copy_core(copy)
        run(*BUILD, "-w", folder, copy, env={"CC": "no-such-compiler"})

    (wheel,) = once(tmp_path_factory, "pure-wheel", build).glob("*.whl")
    return wheel


def copy_core(target: Path) -> None:
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "scale0_core", target / "scale0_core", ignore=shutil.ignore_patterns("*.so", "__pycache__"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory, wheels) -> Environment:
    """A clean environment with the core and all plugins but for the large ones, from wheels."""
    small = [wheel for wheel in wheels if wheel.name.split("-")[0].removeprefix("scale0_") not in LARGE]
    folder = once(tmp_path_factory, "venv", lambda folder: Environment(folder).create(*small))
    return Environment(folder)
