"""What a request costs: echo in a real broker, beside pyzmq's plain loop and a C server on libzmq alone.

All servers answer the same requests (4 frames at the ROUTER, 2 frames back, over ipc) from the same load
generator. The rounds are many, short and interleaved, so that noise from other programs hits all servers
alike, and each ratio is the median of the ratios within a round. The servers are started anew several times:
two processes of the same program differ by some per cent, through the layout of their memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    Figures,
    Load,
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
    start_broker,
    start_c_server,
    start_multipart_server,
    take_sizes,
)

SERVERS = ("native", "pure", "multipart", "c")
"""The broker on its native and on its pure wire, pyzmq's recv_multipart loop, and libzmq alone."""

FIGURES = ("cpu_s_per_100k", "requests_per_s", "p50_us", "p99_us", "mb_s_64k")

FULL = {"starts": 6, "rounds": 5, "requests": 60_000, "latency_requests": 500, "large_requests": 2_000}
QUICK = {"starts": 3, "rounds": 3, "requests": 30_000, "latency_requests": 300, "large_requests": 1_000}

RATIOS = {
    "native_cpu_vs_multipart": ("cpu_s_per_100k", "native", "multipart"),
    "native_cpu_vs_c": ("cpu_s_per_100k", "native", "c"),
    "pure_cpu_vs_multipart": ("cpu_s_per_100k", "pure", "multipart"),
    "latency_vs_multipart": ("p50_us", "native", "multipart"),
    "pure_latency_vs_multipart": ("p50_us", "pure", "multipart"),
    "mb_s_64k_vs_c": ("mb_s_64k", "native", "c"),
}

TARGETS = (
    Target("native_cpu_vs_multipart", 0.20, "CPU: broker, native wire / recv_multipart loop"),
    Target("native_cpu_vs_c", 2.0, "CPU: broker, native wire / C server"),
    Target("pure_cpu_vs_multipart", 0.45, "CPU: broker, pure wire / recv_multipart loop"),
    Target("latency_vs_multipart", 1.3, "p50 with one in flight: broker / recv_multipart loop"),
    Target("mb_s_64k_vs_c", 0.7, "MB/s of 64 KiB bodies: broker / C server", at_least=True),
)


def start_servers(stack: ExitStack, folder: Path, notes: list[str]) -> dict[str, Server]:
    """Start every server that this machine can run, and wait until each has answered."""
    servers: dict[str, Server] = {}
    if native_wire_exists():
        servers["native"] = stack.enter_context(start_broker(folder, "native"))
    else:
        notes.append("scale0_core was installed without its C extension: the native wire is not measured")
    servers["pure"] = stack.enter_context(start_broker(folder, "pure"))
    servers["multipart"] = stack.enter_context(start_multipart_server(folder))
    try:
        servers["c"] = stack.enter_context(start_c_server(folder))
    except NotMeasured as reason:
        notes.append(f"the C server is left out: {reason}")
    for server in servers.values():
        server.await_echo()
    return servers


def pin(servers: Mapping[str, Server]) -> None:
    """Keep all servers on one core, and this process with the load generators it starts on another."""
    try:
        for server in servers.values():
            for thread in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {0})
        os.sched_setaffinity(0, {1})
    except OSError as error:
        raise NotMeasured(f"--pin needs the cores 0 and 1: {error}") from error


def measure_many(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Measure one server once with 1,000 requests in flight."""
    measured = drive(server, Load(options.requests, window=1000, connections=10))
    cost = measured["cpu_s"] / measured["requests"] * 100_000
    return {"cpu_s_per_100k": cost, "requests_per_s": measured["requests_per_s"]}


def measure_latency(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Measure one server once with one request in flight."""
    measured = drive(server, Load(options.latency_requests, window=1))
    return {"p50_us": measured["p50_us"], "p99_us": measured["p99_us"]}


def measure_large(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Measure one server once with bodies of 64 KiB."""
    load = Load(options.large_requests, window=100, connections=10, body_size=64 * 1024)
    return {"mb_s_64k": drive(server, load)["mb_per_s"]}


def measure_one_start(options: argparse.Namespace, samples: Samples[str]) -> list[str]:
    """Start the servers, measure some rounds, end them; return notes on what could not be measured."""
    notes: list[str] = []
    with bench_folder() as folder, ExitStack() as stack:
        servers = start_servers(stack, folder, notes)
        if options.pin:
            pin(servers)
        # one kind of load after the other: the servers of a round are then compared within a second or two
        for measure_once in (measure_many, measure_latency, measure_large):
            measure_rounds(servers, measure_once, options, samples)
        for server in servers.values():
            server.check_alive()
    return notes


def summarise(samples: Samples[str]) -> Figures:
    """Take the median of each figure, and for each ratio the median of the ratios within a round."""
    figures: Figures = {}
    for name, (figure, above, below) in RATIOS.items():
        both = above in samples and below in samples
        figures |= ratio(name, samples[above][figure], samples[below][figure]) if both else {name: None}
    for server in SERVERS:
        for figure in FIGURES:
            values = samples[server][figure] if server in samples else []
            figures[f"{server}_{figure}"] = round(median(values), 4) if values else None
    return figures


def measure(options: argparse.Namespace) -> Report:
    """Start the servers, measure them, and report."""
    take_sizes(options, FULL, QUICK)
    options.latency_requests = min(options.requests, options.latency_requests)
    options.large_requests = min(options.requests, options.large_requests)
    report = Report("What a request costs", TARGETS)
    if find_compiler() is None:
        report.notes.append(
            "no C compiler: the load comes from a Python program that is slower than the servers; the ratios"
            " cannot be compared with those of the native load generator"
        )
    samples: Samples[str] = {}
    for _ in range(options.starts):
        notes = measure_one_start(options, samples)
    report.notes += notes
    report.figures = summarise(samples)
    report.figures |= {"starts": options.starts, "rounds": options.rounds, "requests": options.requests}
    report.figures["pinned"] = options.pin
    report.figures["load_generator"] = "native" if find_compiler() else "python"
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures, one server a line."""
    header = ["server", "CPU s / 100k", "requests/s", "p50 us", "p99 us", "64 KiB MB/s"]
    rows = [[name, *(show(figures[f"{name}_{figure}"]) for figure in FIGURES)] for name in SERVERS]
    print_table(header, rows)
    measured = [name for name in RATIOS if figures[name] is not None]
    spread = [[name, *(show(figures[f"{name}{end}"]) for end in ("_low", "", "_high"))] for name in measured]
    print_table(["ratio", "lower quartile", "median", "upper quartile"], spread)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, help="requests per server and round")
    parser.add_argument("--starts", type=int, help="how often the servers are started anew")
    parser.add_argument("--rounds", type=int, help="how often each server is measured after a start")
    parser.add_argument(
        "--pin",
        action="store_true",
        help="servers on one core, load on another: steadier, but"
        " not how a server runs; for comparing two versions of the code, not for the targets",
    )
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
