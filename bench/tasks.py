"""What a task costs: TASK to a worker and TASKREPLY back, beside a zguide-style broker in the same run.

The same native clients and the same native workers drive both brokers with the same frames. The rounds are many,
short and interleaved, and a ratio is the median of the ratios within a round, as in ``wire.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

from harness import (
    TASK,
    Addresses,
    Figures,
    Load,
    NativePeers,
    NotMeasured,
    Report,
    Server,
    Target,
    bench_folder,
    drive,
    find_compiler,
    make_parser,
    native_wire_exists,
    print_table,
    run_bench,
    show,
    start_multipart_task_broker,
    start_network_broker,
)

BROKERS = ("scale0", "multipart")
FIGURES = ("cpu_s_per_100k", "tasks_per_s")
IN_FLIGHT, CONNECTIONS = 1_000, 10

FULL = {"starts": 4, "rounds": 5, "tasks": 40_000}
QUICK = {"starts": 2, "rounds": 3, "tasks": 20_000}

TARGETS = (
    Target("cpu_vs_multipart", 0.25, "CPU per task: Scale0 / zguide-style broker (the worst number of workers)"),
)

Samples = dict[tuple[str, int], dict[str, list[float]]]
"""For each broker and number of workers, and each figure, one value per round."""


def measure_once(server: Server, tasks: int, connections: int) -> dict[str, float]:
    """Send tasks to one broker."""
    load = Load(tasks, window=IN_FLIGHT, connections=connections, body_size=100, conversation=TASK)
    measured = drive(server, load)
    cost = measured["cpu_s"] / measured["requests"] * 100_000
    return {"cpu_s_per_100k": cost, "tasks_per_s": measured["requests_per_s"]}


def measure_one_start(options: argparse.Namespace, samples: Samples) -> None:
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
                measure_rounds({name: server for name, (server, _) in brokers.items()}, count, options, samples)


def measure_rounds(servers: Mapping[str, Server], workers: int, options: argparse.Namespace, samples: Samples) -> None:
    """Measure all brokers in turn, several times, each time beginning with another one."""
    names = list(servers)
    for turn in range(options.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found = samples.setdefault((name, workers), {figure: [] for figure in FIGURES})
            for figure, value in measure_once(servers[name], options.tasks, CONNECTIONS).items():
                found[figure].append(value)


def summarise(samples: Samples, workers: tuple[int, ...]) -> Figures:
    """Take the median of each figure, and of the ratios within a round."""
    figures: Figures = {}
    ratios_of = {
        count: [
            one / other
            for one, other in zip(
                samples["scale0", count]["cpu_s_per_100k"], samples["multipart", count]["cpu_s_per_100k"], strict=True
            )
        ]
        for count in workers
    }
    figures["cpu_vs_multipart"] = round(max(median(ratios) for ratios in ratios_of.values()), 4)
    for count, ratios in ratios_of.items():
        # the middle half of the rounds lies between the last two
        low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
        name = f"cpu_vs_multipart_{count}"
        figures |= {name: round(middle, 4), f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}
    for (broker, count), found in samples.items():
        figures |= {f"{broker}_{figure}_{count}": round(median(values), 4) for figure, values in found.items()}
    return figures


def measure(options: argparse.Namespace) -> Report:
    """Start the brokers, measure them, and report."""
    if find_compiler() is None:
        raise NotMeasured("the workers are a C program, and no C compiler was found (set CC, or install one)")
    sizes = QUICK if options.quick else FULL
    for name, size in sizes.items():
        setattr(options, name, getattr(options, name) or size)
    options.workers = tuple(options.workers)
    report = Report("What a task costs", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    samples: Samples = {}
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
