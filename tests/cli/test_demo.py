"""The demo runs on embedded defaults, wherever it is started."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_heeds_neither_a_file_in_the_folder_nor_the_environment_nor_sources_beside_it(scale0):
    scale0.write("broker.toml", "[wire\nthis is no TOML")
    named = scale0.write("named.toml", '[broker]\nplugins = ["absent"]\nrequired = ["absent"]')
    # what `python -m` would find first in the current folder
    scale0.write("scale0_core/__init__.py", "raise RuntimeError('the wrong sources')")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--once"], cwd=scale0.folder,
        env=scale0.environment | {"SCALE0_CONFIG": str(named)}, capture_output=True, encoding="utf-8", timeout=110,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b(\d+) of \1 steps were right", done.stdout)


def test_the_command_is_the_same_from_the_root_of_the_repository(scale0):
    here = scale0("plugins", "ls", "-o", "json")
    there = subprocess.run(
        scale0.command("plugins", "ls", "-o", "json"), cwd=ROOT, env=scale0.environment, capture_output=True,
        encoding="utf-8", check=False,
        timeout=300,
    )  # fmt: skip
    assert (there.returncode, there.stdout) == (0, here.out)
