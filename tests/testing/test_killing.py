"""KilledBroker: what a step did before it was killed is on the same disk afterwards, and plants are in its process."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from scale0_core.testing import KilledBroker, ProcessBroker

pytestmark = pytest.mark.real


def test_a_round_kills_the_broker_then_checks_another_one_on_the_same_data():
    calls: list[str] = []
    with KilledBroker(["echo"]) as killed:

        def step(broker: ProcessBroker, number: int, after: ExitStack) -> int:
            after.callback(lambda: calls.append(f"after, dead: {broker.process.poll() is not None}"))
            (killed.disk.folder / "kept").write_text(str(number), encoding="ascii")
            return broker.process.pid

        def check(broker: ProcessBroker, pid: int) -> None:
            assert broker.process.poll() is None
            assert broker.process.pid != pid
            calls.append("kept " + (killed.disk.folder / "kept").read_text(encoding="ascii"))

        killed.rounds(2, step, check)
        folder = killed.disk.folder
    assert calls == ["after, dead: True", "kept 1", "after, dead: True", "kept 2"]
    assert not folder.exists()


def test_a_check_that_fails_says_in_which_round():
    def check(broker: ProcessBroker, acknowledged: None) -> None:
        raise AssertionError("it is gone")

    with KilledBroker(["echo"]) as killed, pytest.raises(AssertionError, match="round 1: it is gone"):
        killed.rounds(3, lambda broker, number, after: None, check)


def test_a_plant_runs_in_the_process_of_the_broker():
    with KilledBroker(["echo"], plant='import sys; print(\'{"event": "planted"}\', file=sys.stderr)') as killed:
        assert killed.broker.wait_for("planted")


ALWAYS_WRITING = """
import itertools, os, pathlib, threading

def write():
    for number in itertools.count():
        pathlib.Path(os.environ["SCALE0_SLOW_DISK"], str(number % 100)).touch()

threading.Thread(target=write, daemon=True).start()
"""


def test_the_disk_is_removed_after_its_broker_has_ended():
    with KilledBroker(["echo"], plant=ALWAYS_WRITING) as killed:
        folder = killed.disk.folder
    assert not folder.exists()
