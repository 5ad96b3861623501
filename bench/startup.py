"""How long a start takes: a broker until it answers its first request, and ``scale0 --help``.

Both are measured from the moment the process is created. A bare ``python -c pass`` in the same rounds shows
how much of it is the interpreter's own start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    BenchError,
    Report,
    Target,
    bench_folder,
    make_parser,
    print_table,
    run_bench,
    show,
    start_broker,
)

TARGETS = (
    Target("ready_ms", 600, "scale0 broker with echo: process start to first answer over ipc (median)"),
    Target("help_ms", 150, "scale0 --help: process start to exit (median)"),
)


def help_command() -> list[str]:
    """Return the command a user types, or its equivalent where the script is not beside the interpreter."""
    script = Path(sys.executable).with_name("scale0")
    return [str(script), "--help"] if script.exists() else [sys.executable, "-m", "scale0_core", "--help"]


def time_command(command: list[str], folder: Path) -> float:
    """Run a command to its end and return the milliseconds it took."""
    start = time.perf_counter()
    outcome = subprocess.run(command, cwd=folder, capture_output=True, timeout=30, check=False)
    taken = (time.perf_counter() - start) * 1000
    if outcome.returncode != 0:
        problem = outcome.stderr.decode(errors="replace").strip()
        raise BenchError(f"{' '.join(command)} ended with code {outcome.returncode}: {problem}")
    return taken


def time_broker(folder: Path) -> float:
    """Start a broker, wait for its first answer, end it; return the milliseconds to that answer."""
    with start_broker(folder, "auto") as broker:
        return broker.await_echo() * 1000


def measure(options: argparse.Namespace) -> Report:
    """Measure the three in turn, several times."""
    report = Report("How long a start takes", TARGETS)
    rounds = options.rounds or (7 if options.quick else 25)
    times: dict[str, list[float]] = {"ready_ms": [], "help_ms": [], "python_ms": []}
    with bench_folder() as folder:
        for turn in range(rounds + 1):
            taken = {
                "ready_ms": time_broker(folder),
                "help_ms": time_command(help_command(), folder),
                "python_ms": time_command([sys.executable, "-c", "pass"], folder),
            }
            if turn > 0:  # the first round brings files into memory and writes .pyc files: no second start does
                for name, value in taken.items():
                    times[name].append(value)
    for name, values in times.items():
        report.figures[name] = round(median(values), 1)
        report.figures[name.replace("_ms", "_min_ms")] = round(min(values), 1)
    python = median(times["python_ms"])
    report.figures["ready_vs_python"] = round(median(times["ready_ms"]) / python, 2)
    report.figures["help_vs_python"] = round(median(times["help_ms"]) / python, 2)
    report.figures["rounds"] = rounds
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print all three, median and minimum."""
    rows = [
        [name, show(figures[f"{name}_ms"]), show(figures[f"{name}_min_ms"]), show(figures.get(f"{name}_vs_python"))]
        for name in ("ready", "help", "python")
    ]
    print_table(["", "median ms", "min ms", "times python -c pass"], rows)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="how often each is started")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
