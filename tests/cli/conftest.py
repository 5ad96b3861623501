"""A place of its own for every test of the command line: no file of the user is read or written."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        return json.loads(self.err)


class Shell:
    """Runs `scale0` in processes of its own, in a folder and with an environment of the test's own."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.site.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SCALE0", "XDG", "NO_COLOR"))}
        self.environment = kept | {
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_RUNTIME_DIR": str(sockets),
            "SCALE0_RUN_DIR": str(sockets / "services"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": str(self.site),
        }

    def __call__(self, *arguments: str, **environment: str) -> Done:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment | environment,
            capture_output=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "scale0_core", *arguments]

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def install(self, name: str, plugin: str = "", *, command: str | None = None) -> None:
        """Install a plugin whose module has this text: files where Python finds them, as pip would put them."""
        self.write(f"site/scale0_{name}/__init__.py", "")
        self.write(f"site/scale0_{name}/plugin.py", plugin)
        about = f"Metadata-Version: 2.1\nName: scale0-{name}\nVersion: 7.0\nSummary: The plugin {name}.\n"
        self.write(f"site/scale0_{name}-7.0.dist-info/METADATA", about)
        entries = f"[scale0.plugins]\n{name} = scale0_{name}.plugin:Plugin\n"
        if command is not None:
            self.write(f"site/scale0_{name}/command.py", command)
            entries += f"[scale0.commands]\n{name} = scale0_{name}.command:main\n"
        self.write(f"site/scale0_{name}-7.0.dist-info/entry_points.txt", entries)


@pytest.fixture
def scale0(real, tmp_path):
    # not below tmp_path: the path of a unix socket is short
    with tempfile.TemporaryDirectory(prefix="s0-") as sockets:
        yield Shell(tmp_path, Path(sockets))


PLUGIN = """
from scale0_core.api import Endpoint, PluginInfo, hookimpl

class Plugin:
    @hookimpl
    def scale0_plugin_info(self):
        return PluginInfo(summary="made by a test", api=(2, 2))
"""


@pytest.fixture
def plugin_text():
    """Give the text of the smallest plugin."""
    return PLUGIN
