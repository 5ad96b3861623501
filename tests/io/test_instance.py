"""At most one broker of a name per machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from scale0_core.errors import Exit, NameTakenError
from scale0_core.io.instance import BrokerName

pytestmark = pytest.mark.real

HOLD = """
import sys
from scale0_core.io.instance import BrokerName
with BrokerName(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def hold_in_child(name: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.requirement("R101")
def test_a_second_holder_is_told_who_has_the_name(name: str):
    with hold_in_child(name) as child:
        with pytest.raises(NameTakenError) as caught:
            BrokerName(name).__enter__()
        assert child.pid == BrokerName(name).holder()
        child.kill()
    problem = caught.value.problem
    assert f"a broker named {name} runs already on this machine" == problem.what
    assert f"process {child.pid} has it" == problem.why
    assert problem.consequence == "this one does not start"
    assert "--name" in problem.remedy
    assert caught.value.exit_code == Exit.UNREACHED


def test_the_same_process_cannot_hold_a_name_twice(name: str):
    with BrokerName(name), pytest.raises(NameTakenError, match=f"process {os.getpid()} has it"):
        BrokerName(name).__enter__()


@pytest.mark.requirement("R101")
def test_brokers_of_different_names_run_side_by_side(name: str):
    with BrokerName(name) as one, BrokerName(name + "2") as two:
        assert (os.getpid(), os.getpid()) == (one.holder(), two.holder())


def test_the_name_is_free_again_after_a_clean_end(name: str):
    with BrokerName(name):
        pass
    assert BrokerName(name).holder() is None
    with BrokerName(name) as again:
        assert os.getpid() == again.holder()


def test_the_name_is_free_again_after_its_holder_was_killed(name: str):
    with hold_in_child(name) as child:
        child.kill()
        child.wait(timeout=60)
    with BrokerName(name) as again:
        assert os.getpid() == again.holder()


def test_leaving_twice_or_without_entering_does_no_harm(name: str):
    holder = BrokerName(name)
    holder.__exit__(None, None, None)
    with holder:
        pass
    holder.__exit__(None, None, None)


def test_the_hundredth_who_asks_is_still_told_who_has_it(name: str):
    with BrokerName(name):
        assert {os.getpid()} == {BrokerName(name).holder() for _ in range(100)}


def test_the_longest_name_can_be_held():
    longest = uuid.uuid4().hex * 2
    with BrokerName(longest) as held:
        assert os.getpid() == held.holder()


def test_where_there_are_no_abstract_sockets_a_locked_file_does_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with BrokerName(name):
        with pytest.raises(NameTakenError, match=re.escape(str(tmp_path))):
            BrokerName(name).__enter__()
        assert BrokerName(name).holder() is None
    with BrokerName(name):
        pass
