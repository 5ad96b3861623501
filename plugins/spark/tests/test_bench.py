"""The bench of Spark runs, and prints what it promises. How fast anything is, is no matter of a test."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "spark.py"
NEEDED = ("duckdb", "scale0_telemetry", "scale0_zpipes")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not BENCH.exists(), reason="the benches are not installed"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}"
    ),
]


def test_spark_finds_what_duckdb_finds():
    sizes = {"--rows": 30_000, "--small": 5_000, "--large": 60_000, "--rounds": 1, "--pipe-rows": 20_000}
    options = [text for option in sizes.items() for text in map(str, option)]
    command = [sys.executable, str(BENCH), "--quick", "--json", *options]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    assert outcome.returncode == 0, outcome.stderr
    figures = json.loads(outcome.stdout.splitlines()[-1])
    assert figures["rows"] == 30_000
    assert figures["trends_rows"] > 5_000
    assert 0 <= figures["rank_error"] <= 0.001
    assert 0.01 < figures["warm_vs_duckdb"] < 10_000
    assert figures["zpipes_rows_per_s"] > 10
    assert "growth_30m_vs_1m" in figures
