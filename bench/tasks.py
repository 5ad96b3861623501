"""What a task costs: TASK to a worker and TASKREPLY back, beside a zguide-style broker in the same run.

The same native clients and the same native workers drive both brokers with the same frames. The rounds are many,
short and interleaved, and a ratio is the median of the ratios within a round, as in ``wire.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from harness import (
    TASK,
    Addresses,
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
    start_multipart_task_broker,
    start_network_broker,
    take_sizes,
)

BROKERS = ("scale0", "multipart")
FIGURES = ("cpu_s_per_100k", "tasks_per_s")
IN_FLIGHT, CONNECTIONS = 1_000, 10

FULL = {"starts": 4, "rounds": 5, "tasks": 40_000}
QUICK = {"starts": 2, "rounds": 3, "tasks": 20_000}

TARGETS = (
    Target("cpu_vs_multipart", 0.25, "CPU per task: Scale0 / zguide-style broker (the worst number of workers)"),
)

Case = tuple[str, int]
"""A broker, and how many workers it has."""


def measure_once(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Send tasks to one broker."""
    load = Load(options.tasks, window=IN_FLIGHT, connections=CONNECTIONS, body_size=100, conversation=TASK)
    measured = drive(server, load)
    cost = measured["cpu_s"] / measured["requests"] * 100_000
    return {"cpu_s_per_100k": cost, "tasks_per_s": measured["requests_per_s"]}


def measure_one_start(options: argparse.Namespace, samples: Samples[Case]) -> None:
    """Start both brokers and measure them in turn: some rounds with few workers, some with many."""
    with bench_folder() as folder, ExitStack() as stack:
        wire = "native" if native_wire_exists() else "pure"
        brokers: dict[str, tuple[Server, Addresses]] = {
            "scale0": start_network_broker(folder, wire),
            "multipart": start_multipart_task_broker(folder),
        }
        for server, _ in brokers.values():
            stack.enter_context(server)
        for count in options.workers:
            with ExitStack() as workers:
                for server, addresses in brokers.values():
                    arguments = {"--endpoint": addresses.backend, "--count": count, "--window": options.window}
                    workers.enter_context(NativePeers("worker", server, arguments))
                cases = {(name, count): server for name, (server, _) in brokers.items()}
                measure_rounds(cases, measure_once, options, samples)


def summarise(samples: Samples[Case], workers: tuple[int, ...]) -> Figures:
    """Take the median of each figure, and of the ratios within a round."""
    figures: Figures = {}
    cpu = {case: found["cpu_s_per_100k"] for case, found in samples.items()}
    for count in workers:
        figures |= ratio(f"cpu_vs_multipart_{count}", cpu["scale0", count], cpu["multipart", count])
    worst = max(float(figures[f"cpu_vs_multipart_{count}"] or 0) for count in workers)
    for (broker, count), found in samples.items():
        figures |= {f"{broker}_{figure}_{count}": round(median(values), 4) for figure, values in found.items()}
    return {"cpu_vs_multipart": worst, **figures}


def measure(options: argparse.Namespace) -> Report:
    """Start the brokers, measure them, and report."""
    if find_compiler() is None:
        raise NotMeasured("the workers are a C program, and no C compiler was found (set CC, or install one)")
    take_sizes(options, FULL, QUICK)
    options.workers = tuple(options.workers)
    report = Report("What a task costs", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    samples: Samples[Case] = {}
    for _ in range(options.starts):
        measure_one_start(options, samples)
    report.figures = summarise(samples, options.workers)
    report.figures |= {"starts": options.starts, "rounds": options.rounds, "tasks": options.tasks}
    report.figures |= {"window": options.window, "in_flight": IN_FLIGHT, "workers": ",".join(map(str, options.workers))}
    report.figures["wire"] = "native" if native_wire_exists() else "pure"
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and the ratios."""
    counts = str(figures["workers"]).split(",")
    rows = [
        [broker, count, *(show(figures[f"{broker}_{figure}_{count}"]) for figure in FIGURES)]
        for count in counts
        for broker in BROKERS
    ]
    print_table(["broker", "workers", "CPU s / 100k", "tasks/s"], rows)
    ends = ("_low", "", "_high")
    spread = [[count, *(show(figures[f"cpu_vs_multipart_{count}{end}"]) for end in ends)] for count in counts]
    print_table(["workers", "lower quartile", "median of the ratios", "upper quartile"], spread)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, help="tasks per broker and round")
    parser.add_argument("--starts", type=int, help="how often the brokers are started anew")
    parser.add_argument("--rounds", type=int, help="how often each broker is measured after a start")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8], help="numbers of workers (default: 1 8)")
    parser.add_argument("--window", type=int, default=100, help="tasks that a worker takes at once (default: 100)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
