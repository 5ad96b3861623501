"""What telemetry costs: the CPU of a broker per task with the plugin telemetry, beside one without it in the same run.

Both brokers are Scale0's own, with the same native clients and workers; one stores an event for each task in Parquet
files, by the plugin's defaults and without sampling. The rounds are interleaved, as in ``tasks.py``. There are many of
them, since what is measured is less than what one differs from the next by; each has about as many events as a group of
rows in a file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    TASK,
    Addresses,
    BenchError,
    Figures,
    Load,
    NativePeers,
    NotMeasured,
    Report,
    Samples,
    Server,
    Target,
    bench_folder,
    drive,
    find_compiler,
    make_parser,
    measure_rounds,
    native_wire_exists,
    print_table,
    ratio,
    run_bench,
    show,
    start_network_broker,
    take_sizes,
)

BROKERS = ("on", "off")
FIGURES = ("cpu_s_per_100k", "tasks_per_s")
IN_FLIGHT, CONNECTIONS = 1_000, 10

AFTERWARDS = 1.5
"""Seconds that a round goes on after its last task: until the thread has taken the last events, which it does every
second."""

FULL = {"starts": 4, "rounds": 12, "tasks": 120_000}
QUICK = {"starts": 2, "rounds": 3, "tasks": 75_000}

TARGETS = (Target("telemetry_cpu_vs_off", 1.10, "CPU per task: telemetry on / off, files written"),)


def measure_once(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Send tasks to one broker; what it does with their events afterwards counts too."""
    load = Load(options.tasks, window=IN_FLIGHT, connections=CONNECTIONS, body_size=100, conversation=TASK)
    before = server.cpu_seconds()
    measured = drive(server, load)
    time.sleep(AFTERWARDS)
    cost = (server.cpu_seconds() - before) / measured["requests"] * 100_000
    return {"cpu_s_per_100k": cost, "tasks_per_s": measured["requests_per_s"]}


def stored(folder: Path) -> tuple[int, int]:
    """Count the tasks in the files, and the bytes of the files."""
    import pyarrow.parquet as pq

    files = list(folder.glob("date=*/kind=task/*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in files), sum(path.stat().st_size for path in files)


def measure_one_start(options: argparse.Namespace, samples: Samples[str]) -> tuple[int, int]:
    """Start both brokers and measure them in turn; give how many tasks were stored, and in how many bytes."""
    with bench_folder() as folder:
        wire = "native" if native_wire_exists() else "pure"
        events = folder / "events"
        telemetry = {"folder": str(events)}
        with ExitStack() as stack:
            brokers: dict[str, tuple[Server, Addresses]] = {
                "on": start_network_broker(folder, wire, plugins={"telemetry": telemetry}),
                "off": start_network_broker(folder, wire),
            }
            for server, _ in brokers.values():
                stack.enter_context(server)
            for server, addresses in brokers.values():
                arguments = {"--endpoint": addresses.backend, "--count": options.workers, "--window": 100}
                stack.enter_context(NativePeers("worker", server, arguments))
            measure_rounds({name: server for name, (server, _) in brokers.items()}, measure_once, options, samples)
        rows, size = stored(events)
    expected = options.rounds * options.tasks
    if rows < expected:
        raise BenchError(f"{expected} tasks were done, and {rows} are in the files")
    return rows, size


def measure(options: argparse.Namespace) -> Report:
    """Start the brokers, measure them, and report."""
    if find_compiler() is None:
        raise NotMeasured("the workers are a C program, and no C compiler was found (set CC, or install one)")
    take_sizes(options, FULL, QUICK)
    report = Report("What telemetry costs", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    samples: Samples[str] = {}
    rows = size = 0
    for _ in range(options.starts):
        more_rows, more_bytes = measure_one_start(options, samples)
        rows, size = rows + more_rows, size + more_bytes
    report.figures = summarise(samples)
    report.figures |= {"events_stored": rows, "bytes_per_event": round(size / rows, 2)}
    report.figures |= {"starts": options.starts, "rounds": options.rounds, "tasks": options.tasks}
    report.figures |= {"workers": options.workers, "in_flight": IN_FLIGHT}
    report.figures["wire"] = "native" if native_wire_exists() else "pure"
    return report


def summarise(samples: Samples[str]) -> Figures:
    """Take the median of each figure, and of the ratios within a round."""
    cpu = {name: samples[name]["cpu_s_per_100k"] for name in BROKERS}
    figures: Figures = ratio("telemetry_cpu_vs_off", cpu["on"], cpu["off"])
    figures["telemetry_cpu_vs_off_total"] = round(sum(cpu["on"]) / sum(cpu["off"]), 4)
    figures["us_per_event"] = round((median(cpu["on"]) - median(cpu["off"])) * 10, 3)
    for name, found in samples.items():
        figures |= {f"{name}_{figure}": round(median(values), 4) for figure, values in found.items()}
    return figures


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and the ratio."""
    rows = [[name, *(show(figures[f"{name}_{figure}"]) for figure in FIGURES)] for name in BROKERS]
    print_table(["telemetry", "CPU s / 100k", "tasks/s"], rows)
    ends = ("_low", "", "_high")
    spread = [[show(figures[f"telemetry_cpu_vs_off{end}"]) for end in ends]]
    print_table(["lower quartile", "median of the ratios", "upper quartile"], spread)
    print_table(
        ["CPU us / event", "events stored", "bytes / event"],
        [[show(figures[name]) for name in ("us_per_event", "events_stored", "bytes_per_event")]],
    )


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, help="tasks per broker and round")
    parser.add_argument("--starts", type=int, help="how often the brokers are started anew")
    parser.add_argument("--rounds", type=int, help="how often each broker is measured after a start")
    parser.add_argument("--workers", type=int, default=8, help="number of workers (default: 8)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
