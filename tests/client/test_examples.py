"""The programs in the docs and in examples/ run against a real broker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0_core.config.running import BrokerRecord, RecordFile
from scale0_core.testing import BrokerStarter

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "call-and-serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(scale0_broker: BrokerStarter) -> Iterator[dict[str, str]]:
    """Give the environment of a user on whose machine the broker ``default`` runs."""
    folder = Path(tempfile.mkdtemp(prefix="s0-"))
    place = folder / "scale0" / "default"
    place.mkdir(parents=True, mode=0o700)
    broker = scale0_broker.in_thread()
    # its real name is unique: tests run beside others
    record = RecordFile(place)
    addresses = {
        service: {key: tuple(bound) for key, bound in each.items()} for service, each in broker.addresses.items()
    }
    about = BrokerRecord(
        name="default", pid=os.getpid(), since="", state="active", config="", runtime_dir="", data_dir="",
        addresses=addresses,
    )  # fmt: skip
    record.write(about)
    yield {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    record.remove()
    shutil.rmtree(folder, ignore_errors=True)


def start(path: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(path), *arguments], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def code_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_a_worker_has_8_lines_and_a_client_4():
    worker, client = BLOCKS[:2]
    assert "worker.run()" in worker
    assert len(code_lines(worker)) <= 8
    assert "client.call(" in client
    assert len(code_lines(client)) <= 4


def test_the_examples_are_those_of_the_page():
    for name, block in zip(("worker", "client"), BLOCKS, strict=False):
        example = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").replace("*sys.argv[1:]", "")
        example = example.replace(", retry=True", "")
        assert [line for line in code_lines(block) if line not in example] == []


@pytest.mark.requirement("R10")
def test_the_examples_run(environment: dict[str, str]):
    worker = start(ROOT / "examples" / "worker.py", environment)
    client = start(ROOT / "examples" / "client.py", environment)
    assert client.communicate(timeout=30) == ("HELLO\n", "")
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=10) == ("", "")
    assert (client.returncode, worker.returncode) == (0, 0)


def test_the_program_with_asyncio_runs(environment: dict[str, str], tmp_path: Path):
    (program,) = [block for block in BLOCKS if "asyncio.run(main())" in block]
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    assert start(path, environment).communicate(timeout=30) == ("now\n", "")


def test_a_program_that_never_closes_its_client_ends(environment: dict[str, str], tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text(
        "from scale0_core.client import Client, Worker\n"
        "worker = Worker(); worker.add('echo', lambda x: x); worker.start(); worker.wait_ready()\n"
        "client = Client(); print(client.call('echo', b'hello').text)\n",
        encoding="utf-8",
    )
    program = start(path, environment)
    assert program.communicate(timeout=20) == ("hello\n", "")
    assert program.returncode == 0
