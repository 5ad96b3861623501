"""What telemetry costs: the CPU of a broker per task with the plugin telemetry, beside one without it in the same run.

Both brokers are Scale0's own, with the same native clients and workers; one stores an event for each task in Parquet
files, by the plugin's defaults and without sampling. The same is measured for requests of Majordomo, of which a worker
has one at a time. What is measured is less than what one minute differs from the next by, so the two have their turns
within a round many times, each for some tenths of a second; a round has about as many events as a group of rows in a
file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    TASK,
    BenchError,
    Conversation,
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
    native_wire_exists,
    print_table,
    ratio,
    run_bench,
    show,
    start_network_broker,
    start_plugin_broker,
    take_sizes,
)
from majordomo import requests_to, start_workers

BROKERS = ("on", "off")
PARTS = ("loop", "libzmq", "others")
"""Whose CPU it is; storing events is one of the others."""
FIGURES = ("cpu_s_per_100k", "tasks_per_s", *(f"us_{part}" for part in PARTS))
IN_FLIGHT, CONNECTIONS = 1_000, 10

AFTERWARDS = 1.5
"""Seconds that a round goes on after its last task: until the thread has taken the last events, which it does every
second."""

FULL = {"starts": 4, "rounds": 10, "slices": 8, "tasks": 20_000}
QUICK = {"starts": 2, "rounds": 2, "slices": 4, "tasks": 20_000}

TARGETS = (
    Target("telemetry_cpu_vs_off", 1.10, "CPU per task: telemetry on / off, files written"),
    Target("rpc_cpu_vs_off", 1.10, "CPU per request of Majordomo: telemetry on / off, files written"),
)

Plugins = Mapping[str, Mapping[str, Any]]
"""The tables of plugins, by name."""

Measured = Mapping[str, float]
"""The figures of a broker in one round."""


@dataclass(frozen=True)
class Case:
    """Something that events are told of."""

    kind: str
    """The kind of these events."""
    ratio: str
    """The name of the figure that has a target."""
    prefix: str
    """What the names of all others begin with."""
    conversation: Conversation
    start: Callable[[Path, Plugins, ExitStack, int], Server]
    """Starts a broker with these plugins beside what it needs, and so many workers."""


def start_for_tasks(folder: Path, plugins: Plugins, stack: ExitStack, workers: int) -> Server:
    """Start a broker of the Scale0 protocol."""
    wire = "native" if native_wire_exists() else "pure"
    server, addresses = start_network_broker(folder, wire, plugins=plugins)
    stack.enter_context(server)
    arguments = {"--endpoint": addresses.backend, "--count": workers, "--window": 100}
    stack.enter_context(NativePeers("worker", server, arguments))
    return server


def start_for_rpc(folder: Path, plugins: Plugins, stack: ExitStack, workers: int) -> Server:
    """Start a broker with Majordomo."""
    server = stack.enter_context(start_plugin_broker(folder, "majordomo", beside=plugins))
    stack.enter_context(start_workers(server, workers))
    return server


CASES = (
    Case("task", "telemetry_cpu_vs_off", "", TASK, start_for_tasks),
    Case("rpc", "rpc_cpu_vs_off", "rpc_", requests_to(1), start_for_rpc),
)


def measure_round(servers: Mapping[str, Server], case: Case, options: argparse.Namespace) -> Mapping[str, Measured]:
    """Send tasks to both brokers, a few at a time, now to one and now to the other.

    What a broker does while the other has its turn counts for it: storing events goes on for a while. All else that it
    does then, both do.
    """
    load = Load(options.tasks, window=IN_FLIGHT, connections=CONNECTIONS, body_size=100, conversation=case.conversation)
    before = {name: (server.cpu_seconds(), cpu_by_part(server.pid)) for name, server in servers.items()}
    seconds = dict.fromkeys(servers, 0.0)
    for turn in range(options.slices):
        for name in sorted(servers, reverse=turn % 2 == 1):
            seconds[name] += drive(servers[name], load)["seconds"]
    time.sleep(AFTERWARDS)
    tasks = options.slices * options.tasks
    found = {}
    for name, server in servers.items():
        cpu, parts = before[name]
        found[name] = {
            "cpu_s_per_100k": (server.cpu_seconds() - cpu) / tasks * 100_000,
            "tasks_per_s": tasks / seconds[name],
            **{f"us_{part}": (now - parts[part]) / tasks * 1e6 for part, now in cpu_by_part(server.pid).items()},
        }
    return found


def cpu_by_part(pid: int) -> dict[str, float]:
    """Give the CPU seconds that the threads of a broker have used: its loop, those of libzmq, and all others."""
    found = dict.fromkeys(PARTS, 0.0)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        is_libzmq = (thread / "comm").read_text().startswith("ZMQbg")
        part = "loop" if thread.name == str(pid) else "libzmq" if is_libzmq else "others"
        found[part] += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return found


def stored(folder: Path, kind: str) -> tuple[int, int]:
    """Count the events of a kind in the files, and the bytes of the files."""
    import pyarrow.parquet as pq

    files = list(folder.glob(f"date=*/kind={kind}/*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in files), sum(path.stat().st_size for path in files)


def measure_one_start(case: Case, options: argparse.Namespace, samples: Samples[str]) -> tuple[int, int]:
    """Start both brokers and measure them in turn; give how many events were stored, and in how many bytes."""
    with bench_folder() as folder:
        events = folder / "events"
        plugins: Mapping[str, Plugins] = {"on": {"telemetry": {"folder": str(events)}}, "off": {}}
        with ExitStack() as stack:
            servers = {name: case.start(folder, plugins[name], stack, options.workers) for name in BROKERS}
            for _ in range(options.rounds):
                for name, found in measure_round(servers, case, options).items():
                    for figure, value in found.items():
                        samples.setdefault(name, {}).setdefault(figure, []).append(value)
        rows, size = stored(events, case.kind)
    expected = options.rounds * options.slices * options.tasks
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
    for case in CASES:
        report.figures |= measure_case(case, options)
    report.figures |= {name: getattr(options, name) for name in FULL}
    report.figures |= {"workers": options.workers, "in_flight": IN_FLIGHT}
    report.figures["wire"] = "native" if native_wire_exists() else "pure"
    return report


def measure_case(case: Case, options: argparse.Namespace) -> Figures:
    """Measure one thing that events are told of."""
    samples: Samples[str] = {}
    rows = size = 0
    for _ in range(options.starts):
        more_rows, more_bytes = measure_one_start(case, options, samples)
        rows, size = rows + more_rows, size + more_bytes
    stored_in_all = {"events_stored": rows, "bytes_per_event": round(size / rows, 2)}
    return summarise(case, samples) | {f"{case.prefix}{name}": value for name, value in stored_in_all.items()}


def summarise(case: Case, samples: Samples[str]) -> Figures:
    """Take the median of each figure, and of the ratios within a round."""
    cpu = {name: samples[name]["cpu_s_per_100k"] for name in BROKERS}
    figures: Figures = ratio(case.ratio, cpu["on"], cpu["off"])
    figures[f"{case.ratio}_total"] = round(sum(cpu["on"]) / sum(cpu["off"]), 4)
    figures[f"{case.prefix}us_per_event"] = round((median(cpu["on"]) - median(cpu["off"])) * 10, 3)
    for name, found in samples.items():
        figures |= {f"{case.prefix}{name}_{figure}": round(median(values), 4) for figure, values in found.items()}
    return figures


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and the ratios."""
    rows = [
        [case.kind, name, *(show(figures[f"{case.prefix}{name}_{figure}"]) for figure in FIGURES)]
        for case in CASES
        for name in BROKERS
    ]
    print_table(["", "telemetry", "CPU s / 100k", "a second", *(f"us in {part}" for part in PARTS)], rows)
    spread = [[case.kind, *(show(figures[f"{case.ratio}{end}"]) for end in ("_low", "", "_high"))] for case in CASES]
    print_table(["", "lower quartile", "median of the ratios", "upper quartile"], spread)
    columns = {"CPU us / event": "us_per_event", "events stored": "events_stored", "bytes / event": "bytes_per_event"}
    costs = [[case.kind, *(show(figures[f"{case.prefix}{name}"]) for name in columns.values())] for case in CASES]
    print_table(["", *columns], costs)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, help="tasks of a slice")
    parser.add_argument("--slices", type=int, help="how often both brokers have their turn in a round")
    parser.add_argument("--starts", type=int, help="how often the brokers are started anew")
    parser.add_argument("--rounds", type=int, help="how often each broker is measured after a start")
    parser.add_argument("--workers", type=int, default=8, help="number of workers (default: 8)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
