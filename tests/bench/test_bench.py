"""Every bench runs, and prints what it promises. How fast anything is, is no matter of a test."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

COMPILER = any(shutil.which(name) for name in (os.environ.get("CC", ""), "cc", "gcc", "clang") if name)
"""Whether the benches find one; where there is none, some of them cannot be carried out, and say so."""

needs_compiler = pytest.mark.skipif(not COMPILER, reason="the native load generator needs a C compiler")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the benches read Linux's /proc"),
]


def run_bench(name: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCH / name), "--quick", "--json", *arguments]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert outcome.returncode == 0, outcome.stderr
    figures = json.loads(outcome.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    assert figures["quick"] is True
    return figures


def assert_between(figures: dict[str, Any], low: float, high: float, *names: str) -> None:
    """Values that no machine gives, however slow, show that something else was measured."""
    for name in names:
        value = figures[name]
        assert isinstance(value, int | float), f"{name} is {value!r}"
        assert low < value < high, f"{name} is {value}"


def test_wire_compares_the_broker_with_its_baselines() -> None:
    figures = run_bench("wire.py", "--requests", "1500", "--starts", "2", "--rounds", "1")
    promised = (
        "native_cpu_vs_multipart",
        "native_cpu_vs_c",
        "pure_cpu_vs_multipart",
        "latency_vs_multipart",
        "mb_s_64k_vs_c",
    )
    assert set(promised) <= figures.keys()
    measured = [name for name in promised if figures[name] is not None]
    assert "pure_cpu_vs_multipart" in measured
    assert_between(figures, 0.001, 100, *measured)
    for server in ("pure", "multipart"):
        assert_between(figures, 0.001, 1000, f"{server}_cpu_s_per_100k")
        assert_between(figures, 10, 1e8, f"{server}_requests_per_s")
        assert_between(figures, 1, 1e6, f"{server}_p50_us")
        assert_between(figures, 0.1, 1e6, f"{server}_mb_s_64k")


def test_wire_runs_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    figures = run_bench("wire.py", "--requests", "300", "--starts", "1", "--rounds", "1")
    assert figures["load_generator"] == "python"
    assert figures["native_cpu_vs_c"] is None
    assert_between(figures, 0.001, 100, "pure_cpu_vs_multipart")


@pytest.mark.parametrize("name", ["idle.py", "tasks.py", "heartbeats.py", "zpipes.py", "majordomo.py", "musicquest.py"])
def test_a_bench_that_needs_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, str(BENCH / name), "--quick", "--json"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, "no C compiler was found" in outcome.stderr) == (2, True)


def test_startup_times_a_broker_and_the_help() -> None:
    figures = run_bench("startup.py", "--rounds", "2")
    assert_between(figures, 1, 60_000, "ready_ms", "help_ms", "python_ms")


@needs_compiler
def test_idle_watches_clients_that_say_nothing() -> None:
    figures = run_bench("idle.py", "--clients", "200", "--seconds", "1")
    assert figures["clients"] == 200
    assert_between(figures, 0.1, 1000, "kb_per_client")
    assert_between(figures, -1, 100, "idle_cpu_percent")


@needs_compiler
def test_tasks_compares_the_broker_with_a_plain_one() -> None:
    figures = run_bench("tasks.py", "--tasks", "1500", "--starts", "1", "--rounds", "1", "--workers", "1", "3")
    assert_between(figures, 0.001, 100, "cpu_vs_multipart", "cpu_vs_multipart_1", "cpu_vs_multipart_3")
    assert figures["cpu_vs_multipart"] == max(figures["cpu_vs_multipart_1"], figures["cpu_vs_multipart_3"])
    for broker in ("scale0", "multipart"):
        assert_between(figures, 0.001, 1000, f"{broker}_cpu_s_per_100k_1", f"{broker}_cpu_s_per_100k_3")
        assert_between(figures, 10, 1e8, f"{broker}_tasks_per_s_1", f"{broker}_tasks_per_s_3")


@needs_compiler
def test_heartbeats_watches_workers_that_only_live() -> None:
    figures = run_bench("heartbeats.py", "--workers", "200", "--seconds", "2", "--processes", "2")
    assert figures["workers"] == 200
    # more than 200 at once: those sent while the broker settles count too
    assert figures["sent"] > 600
    assert (figures["false_expiries"], figures["refused"], figures["answered"]) == (0, 0, figures["sent"])
    assert_between(figures, 0.1, 1000, "kb_per_worker", "plain_kb_per_worker")
    assert_between(figures, 0, 200, "cpu_percent", "plain_cpu_percent")
    assert figures["plain_answered"] == figures["plain_sent"] > 600
    assert_between(figures, 0.01, 100, "cpu_vs_plain", "kb_per_worker_vs_plain")


@needs_compiler
def test_zpipes_compares_pipes_with_the_echo_server() -> None:
    sizes = {"--starts": 1, "--rounds": 1, "--chunks": 2000, "--clients": 60, "--pipes": 1000, "--durable-chunks": 1000}
    figures = run_bench("zpipes.py", *(str(part) for size in sizes.items() for part in size))
    assert_between(figures, 0.01, 100, "cpu_vs_c_echo_text", "cpu_vs_c_echo_binary", "mb_s_64k_vs_c")
    assert figures["cpu_vs_c_echo"] == max(figures["cpu_vs_c_echo_text"], figures["cpu_vs_c_echo_binary"])
    kinds = [
        f"cost_10k_vs_10_clients_{dialect}_{kind}" for dialect in ("text", "binary") for kind in ("idle", "active")
    ]
    assert_between(figures, 0.01, 100, *kinds)
    assert figures["cost_10k_vs_10_clients"] == max(figures[kind] for kind in kinds)
    assert figures["clients"] == 60
    assert_between(figures, 5, 1000, "mb_100k_pipes")
    assert_between(figures, 1, 1e7, "durable_chunks_per_s", "durable_target_per_s", "fsyncs_per_s")
    assert_between(figures, 0.9, 1000, "durable_mean_group")


@needs_compiler
def test_majordomo_compares_the_broker_with_a_plain_one_and_one_worker_with_many() -> None:
    sizes = {"--starts": 1, "--rounds": 1, "--requests": 1500, "--sync-requests": 300, "--crowd": 40, "--services": 10}
    sizes |= {"--crowd-starts": 1, "--crowd-rounds": 1, "--idle-seconds": 1}
    arguments = [str(part) for size in sizes.items() for part in size]
    figures = run_bench("majordomo.py", *arguments, "--workers", "1", "3")
    assert_between(figures, 0.001, 100, "cpu_vs_python_loop", "cpu_vs_python_loop_1", "cpu_vs_python_loop_3")
    assert figures["cpu_vs_python_loop"] == figures["cpu_vs_python_loop_3"]
    assert_between(figures, 0.001, 100, "cpu_vs_python_loop_3_shared", "cpu_vs_c_loop", "c_loop_vs_python_loop_3")
    for broker in ("scale0", "python", "c"):
        assert_between(figures, 0.001, 1000, f"{broker}_cpu_s_per_100k_1", f"{broker}_cpu_s_per_100k_3")
        assert_between(figures, 10, 1e8, f"{broker}_requests_per_s_1", f"{broker}_requests_per_s_3")
    assert_between(figures, 0.001, 100, "cost_1000_vs_1_workers", "cost_1000_vs_1_workers_window")
    assert (figures["crowd"], figures["services"]) == (40, 10)


@needs_compiler
def test_musicquest_downloads_and_searches() -> None:
    sizes = {"--rounds": 1, "--megabytes": 5, "--servers": 3, "--searches": 12, "--search-rounds": 1}
    sizes |= {"--songs": 300, "--cost-rounds": 1, "--cost-searches": 100}
    figures = run_bench("musicquest.py", *(str(part) for size in sizes.items() for part in size))
    assert_between(figures, 0.001, 100, "mb_s_vs_c", "two_holders_vs_one", "mb_s_vs_c_server", "mb_s_vs_c_client")
    assert_between(figures, 0.1, 1e6, "scale0_mb_per_s", "two_mb_per_s", "c_mb_per_s")
    assert_between(figures, 0.1, 60_000, "search_p99_ms", "search_one_p50_ms", "search_all_p50_ms")
    assert figures["search_p99_ms"] == round(max(figures["search_one_p99_ms"], figures["search_all_p99_ms"]), 1)
    assert (figures["servers"], figures["searches"], figures["songs"]) == (3, 12, 300)
    assert 2 <= figures["tree_depth"] <= 3
    kinds = {"exact": 1, "word": 1, "title": 1, "artist": 20}
    assert all(figures[f"{kind}_{size}_hits"] == hits for kind, hits in kinds.items() for size in ("few", "many"))
    ratios = [figures[f"cost_100k_vs_100_songs_{kind}"] for kind in kinds]
    assert_between(figures, 0.01, 100, *(f"cost_100k_vs_100_songs_{kind}" for kind in (*kinds, "broad")))
    assert figures["cost_100k_vs_100_songs"] == max(ratios)


def test_spark_says_what_it_lacks() -> None:
    """Where PySpark is installed, the plugin's own tests run the bench."""
    if importlib.util.find_spec("pyspark") is not None:
        pytest.skip("PySpark is installed")
    assert "warm_vs_duckdb" not in run_bench("spark.py")


@needs_compiler
def test_telemetry_on_and_off() -> None:
    figures = run_bench(
        "telemetry.py", "--starts", "1", "--rounds", "1", "--slices", "2", "--tasks", "1000", "--workers", "2"
    )
    for ratio, prefix in (("telemetry_cpu_vs_off", ""), ("rpc_cpu_vs_off", "rpc_")):
        assert_between(figures, 0.1, 100, ratio, f"{ratio}_total")
        absolute = ("on_cpu_s_per_100k", "off_cpu_s_per_100k", "bytes_per_event")
        assert_between(figures, 0.001, 1000, *(f"{prefix}{name}" for name in absolute))
        assert figures[f"{prefix}events_stored"] >= 2000


def test_robust_finds_no_fault() -> None:
    figures = run_bench("robust.py", "--messages", "5000", "--seeds", "20")
    assert (figures["fuzz_messages"], figures["fuzz_errors"], figures["fuzz_uncounted"]) == (5000, 0, 0)
    assert (figures["sim_seeds"], figures["sim_failures"]) == (20, 0)


def test_simulation_compares_a_large_network_with_a_small_one() -> None:
    figures = run_bench("simulation.py", "--rounds", "2", "--steps", "500")
    assert (figures["sim_nodes_small"], figures["sim_nodes_large"]) == (50, 2000)
    assert_between(figures, 0.2, 20, "sim_us_growth")
    assert_between(figures, 1, 10_000, "sim_us_small", "sim_us_large")


def test_faults_finds_no_broken_guarantee() -> None:
    figures = run_bench("faults.py", "--calls", "400", "--rate", "400")
    assert (figures["calls"], figures["violations"], figures["calls_not_ended"]) == (400, 0, 0)
    assert figures["replies"] + figures["errors"] == 400


def test_majordomo_faults_finds_nothing_lost_and_nothing_left() -> None:
    figures = run_bench("majordomo_faults.py", "--rounds", "10", "--messages", "8000")
    assert (figures["kill_faults"], figures["kills"], figures["kill_answers"]) == (0, 10, 44)
    assert (figures["fuzz_errors"], figures["fuzz_uncounted"], figures["flood_messages"]) == (0, 0, 8000)
    assert figures["fuzz_malformed"] >= 8000
    assert_between(figures, -100, 100, "fuzz_growth_mb")


def test_every_bench_is_run_and_explained() -> None:
    """A bench is what has a parser of its own; the others are parts of one."""
    benches = {path.name for path in BENCH.glob("*.py") if "make_parser(__doc__" in path.read_text(encoding="utf-8")}
    assert len(benches) >= 8
    text = (BENCH / "run.py").read_text(encoding="utf-8")
    assert benches == set(re.findall(r'"(\w+\.py)"', text.partition("BENCHES = ")[2].partition("\n)")[0]))
    explained = re.findall(r"^\| `(\w+\.py)` ", (BENCH / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(benches) == sorted(explained)


def test_check_fails_when_a_target_is_missed() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from harness import Report, Target
    finally:
        sys.path.remove(str(BENCH))
    at_most, at_least = Target("cost", 2.0, ""), Target("speed", 0.7, "", at_least=True)
    assert [at_most.verdict(value) for value in (2, 2.1, None)] == ["ok", "missed", "not measured"]
    assert [at_least.verdict(value) for value in (0.7, 0.69)] == ["ok", "missed"]
    assert Report("", [at_most, at_least], {"cost": 1.0, "speed": 0.1}).missed()
    assert not Report("", [at_most, at_least], {"cost": 1.0}).missed()
