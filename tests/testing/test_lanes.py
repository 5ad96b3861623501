"""The lanes of tests, as runs of pytest over small modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

SAMPLE = """
import pytest

def test_pure(): ...

@pytest.mark.real
def test_marked(): ...

@pytest.fixture
def address(real): ...

def test_by_its_fixture(address): ...

@pytest.mark.soak
def test_long(): ...

@pytest.mark.real
class TestReal:
    def test_in_it(self): ...

    @pytest.mark.parametrize("rounds", [1, pytest.param(200, marks=pytest.mark.soak)])
    def test_rounds(self, rounds): ...

import collections
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

counts = collections.Counter()

@pytest.mark.parametrize("twice", [1, 2])
@settings(max_examples=200)
@given(number=st.integers())
def test_settings(number, twice):
    counts[f"settings{twice}"] += 1

class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        counts["stateful"] += 1

    @rule(number=st.integers())
    def step(self, number): ...

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=2)

@pytest.mark.seeds(300)
def test_seeds(seed):
    counts["seeds"] += 1

def teardown_module():
    print({name: round(counts[name], -1) for name in sorted(counts)})
"""

WANTED = {"seeds": 300, "settings1": 200, "settings2": 200, "stateful": 150}
"""How many examples the property tests of the sample ask for."""


@pytest.fixture
def run(real: None, tmp_path: Path) -> Run:
    """Run pytest over a module; return what it printed."""

    def run(text: str, *options: str) -> str:
        (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", *options]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False).stdout

    return run


@pytest.mark.parametrize(
    ("option", "count", "share"),
    [("--lane=quick", 1, 0.1), ("--lane=real", 4, 1), ("--lane=soak", 2, 10), ("-o=scale0_lanes=true", 5, 1)],
    ids=["quick", "real", "soak", "without-an-option"],
)
def test_a_lane_runs_its_tests_and_all_property_tests_with_its_share_of_examples(
    run: Run, option: str, count: int, share: float
):
    said = run(SAMPLE, option)
    seeds = round(WANTED["seeds"] * share)
    assert f"{count + len(WANTED) - 1 + seeds} passed" in said
    assert str({name: round(number * share, -1) for name, number in WANTED.items()}).replace(".0", "") in said


def test_without_lanes_all_tests_run(run: Run):
    assert "310 passed" in run(SAMPLE)


BREACHES = {
    "makes a zmq context": "import zmq; zmq.Context()",
    "binds a socket": "import socket; socket.socket().bind(('127.0.0.1', 0))",
    "connects a socket": "import socket; socket.socket().connect(('127.0.0.1', 9))",
    "starts a process": "import subprocess; subprocess.run(['true'], timeout=9)",
    "forks": "import os; os.fork() or os._exit(0)",
}

HIDDEN = """
import asyncio, contextlib, threading, pytest, zmq

def refused():
    with contextlib.suppress(BaseException):
        zmq.Context()

def test_caught():
    refused()

def test_thread():
    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()

@pytest.fixture
def context():
    return zmq.Context()

def test_fixture(context): ...

def test_loop():
    asyncio.run(asyncio.sleep(0))
"""


def test_a_quick_test_that_leaves_its_lane_fails(run: Run):
    tests = [f"def test_breach{number}():\n    {code}\n" for number, code in enumerate(BREACHES.values())]
    said = run("\n".join([*tests, HIDDEN]), "--lane=quick")
    for number, what in enumerate(BREACHES):
        text = f"test_it.py::test_breach{number} {what}, but is in the lane `quick`: mark it with `@pytest.mark.real`"
        assert text in said
    assert f"{len(BREACHES) + 2} failed, 1 passed, 1 error" in said
