"""What a request costs: echo in a real broker, beside pyzmq's plain loop and a C server on libzmq alone.

All servers answer the same requests (4 frames at the ROUTER, 2 frames back, over ipc) from the same load
generator. The rounds are interleaved, so that noise from other programs hits all servers alike, and each
ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
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
    start_broker,
    start_c_server,
    start_multipart_server,
)

SERVERS = ("native", "pure", "multipart", "c")
"""The broker on its native and on its pure wire, pyzmq's recv_multipart loop, and libzmq alone."""

FIGURES = ("cpu_s_per_100k", "requests_per_s", "p50_us", "p99_us", "mb_s_64k")

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

Samples = dict[str, dict[str, list[float]]]
"""For each server and figure, one value per round."""


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


def measure_round(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Measure one server once."""
    many = drive(server, Load(options.requests, window=1000, connections=10))
    one = drive(server, Load(options.latency_requests, window=1))
    large = drive(server, Load(options.large_requests, window=100, connections=10, body_size=64 * 1024))
    return {
        "cpu_s_per_100k": many["cpu_s"] / many["requests"] * 100_000,
        "requests_per_s": many["requests_per_s"],
        "p50_us": one["p50_us"],
        "p99_us": one["p99_us"],
        "mb_s_64k": large["mb_per_s"],
    }


def measure_rounds(servers: Mapping[str, Server], options: argparse.Namespace) -> Samples:
    """Measure all servers in turn, several times, each time beginning with another one."""
    samples: Samples = {name: {figure: [] for figure in FIGURES} for name in servers}
    names = list(servers)
    for turn in range(options.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            for figure, value in measure_round(servers[name], options).items():
                samples[name][figure].append(value)
    return samples


def summarise(samples: Samples) -> Figures:
    """Take the median of each figure, and for each ratio the median of the ratios within a round."""
    figures: Figures = {}
    for name, (figure, above, below) in RATIOS.items():
        if above in samples and below in samples:
            pairs = zip(samples[above][figure], samples[below][figure], strict=True)
            figures[name] = round(median(one / other for one, other in pairs), 4)
        else:
            figures[name] = None
    for server in SERVERS:
        for figure in FIGURES:
            values = samples[server][figure] if server in samples else []
            figures[f"{server}_{figure}"] = round(median(values), 4) if values else None
    return figures


def measure(options: argparse.Namespace) -> Report:
    """Start the servers, measure them, and report."""
    options.rounds = options.rounds or (3 if options.quick else 9)
    options.requests = options.requests or (60_000 if options.quick else 200_000)
    options.latency_requests = min(options.requests, 2_000 if options.quick else 5_000)
    options.large_requests = min(options.requests, 2_000 if options.quick else 8_000)
    report = Report("What a request costs", TARGETS)
    if find_compiler() is None:
        report.notes.append(
            "no C compiler: the load comes from a Python program that is slower than the servers; the ratios"
            " cannot be compared with those of the native load generator"
        )
    with bench_folder() as folder, ExitStack() as stack:
        servers = start_servers(stack, folder, report.notes)
        samples = measure_rounds(servers, options)
        for server in servers.values():
            server.check_alive()
    report.figures = summarise(samples)
    report.figures |= {"rounds": options.rounds, "requests": options.requests}
    report.figures["load_generator"] = "native" if find_compiler() else "python"
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures, one server a line."""
    header = ["server", "CPU s / 100k", "requests/s", "p50 us", "p99 us", "64 KiB MB/s"]
    rows = [[name, *(show(figures[f"{name}_{figure}"]) for figure in FIGURES)] for name in SERVERS]
    print_table(header, rows)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, help="requests per server and round")
    parser.add_argument("--rounds", type=int, help="how often each server is measured")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
