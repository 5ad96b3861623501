"""Connections break between the frames of a message, a thousand times: no process of Spark ends with them."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

BREAKER = Path(__file__).resolve().parents[3] / "tests" / "faults" / "breaker.py"

spec = importlib.util.spec_from_file_location("breaker", BREAKER)
assert spec is not None
assert spec.loader is not None
breaker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(breaker)


@pytest.mark.parametrize(("plant", "ended"), [((), 0), (("plant",), -signal.SIGABRT)])
def test_no_process_of_spark_aborts(tmp_path: Path, plant: tuple[str, ...], ended: int) -> None:
    assert breaker.break_clients("spark_pipes", tmp_path, *plant) == ended
