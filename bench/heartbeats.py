"""What many workers cost that only show that they live: CPU and memory of the broker, and whether it misses one.

Each worker is negotiated with and sends a heartbeat every second, as the broker asks; all are spread evenly over the
second. At the end the broker is asked for the state of each. CPU is counted from when all are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import zmq
from harness import (
    BenchError,
    NativePeers,
    Report,
    Server,
    Target,
    bench_folder,
    make_parser,
    memory_kb,
    native_wire_exists,
    print_table,
    run_bench,
    show,
    start_network_broker,
)

INTERVAL_MS, LIVENESS = 1000, 3

SETTLE_SECONDS = 3.0
"""Time for the work of connecting to be over."""

SLICE_SECONDS = 5.0
"""CPU is looked at in slices of this length too: an average over minutes hides what happens now and then."""

TARGETS = (
    Target("cpu_percent", 60, "CPU of the broker, of one core"),
    Target("false_expiries", 0, "living workers that the broker refused, forgot or did not hold for ready at the end"),
    Target("kb_per_worker", 50, "growth of the broker's RSS per worker, in kB"),
)


def ask_management(address: str, command: str, limit: float = 30.0) -> Any:
    """Send one management request; return what was answered."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(address)
        client.send_multipart([b"S0C01", b"MANAGEMENTREQ", json.dumps({"command": command}).encode()])
        if not client.poll(int(limit * 1000)):
            raise BenchError(f"the broker did not answer {command} in {limit:g} s")
        _header, answer, options, *body = client.recv_multipart()
    if answer != b"MANAGEMENTREP" or json.loads(options).get("code") != 200:
        raise BenchError(f"the broker answered {command} with {answer!r} {options!r}")
    return json.loads(body[0])


def await_broker(server: Server, address: str) -> None:
    """Wait until a broker answers."""
    deadline = time.perf_counter() + 15
    while True:
        server.check_alive()
        try:
            ask_management(address, "state", limit=1)
            return
        except BenchError:
            if time.perf_counter() > deadline:
                raise


def watch(server: Server, workers: NativePeers, seconds: float) -> list[float]:
    """Watch the broker; return its CPU in per cent of a core, slice by slice."""
    percents = []
    begin = time.perf_counter()
    end = begin + seconds
    while (left := end - time.perf_counter()) > 0.1:
        cpu, start = server.cpu_seconds(), time.perf_counter()
        time.sleep(min(left, SLICE_SECONDS))
        percents.append((server.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100)
        server.check_alive()
        workers.check_alive()
    return percents


def measure(options: argparse.Namespace) -> Report:
    """Start a broker and its workers, watch them, ask for their states."""
    report = Report("What heartbeats cost", TARGETS)
    count = options.workers or (2_000 if options.quick else 10_000)
    seconds = options.seconds or (15.0 if options.quick else 300.0)
    with bench_folder() as folder:
        server, addresses = start_network_broker(
            folder, "auto", default_heartbeat_interval=INTERVAL_MS, liveness=LIVENESS
        )
        with server:
            await_broker(server, addresses.management)
            rss_before, _ = memory_kb(server.pid)
            arguments = {
                "--endpoint": addresses.backend,
                "--count": count,
                "--processes": options.processes,
                "--interval": INTERVAL_MS / 1000,
                "--options": "none" if options.bare else "full",
                "--time-limit": seconds + 180,
            }
            with NativePeers("heartbeats", server, arguments) as workers:
                time.sleep(SETTLE_SECONDS)
                rss_first, _ = memory_kb(server.pid)
                cpu, start = server.cpu_seconds(), time.perf_counter()
                percents = watch(server, workers, seconds)
                percent = (server.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100
                rss, _ = memory_kb(server.pid)
                clients = ask_management(addresses.management, "list_clients")
                heard = workers.finish()
    states = Counter(client["state"] for client in clients if client["role"] == "backend")
    lost = count - states["ready"]
    report.figures = {
        "cpu_percent": round(percent, 2),
        "cpu_percent_worst": round(max(percents), 2),
        "false_expiries": max(lost, int(heard["refused"])),
        "not_ready": lost,
        "refused": int(heard["refused"]),
        "suspected": int(heard["probes"]),
        "unanswered": int(heard["unanswered"]),
        "sent": int(heard["sent"]),
        "answered": int(heard["answered"]),
        "sent_late": int(heard["late"]),
        "kb_per_worker": round((rss - rss_before) / count, 2),
        "kb_per_worker_first": round((rss_first - rss_before) / count, 2),
        "rss_before_kb": rss_before,
        "rss_kb": rss,
        "connect_seconds": workers.ready["seconds"],
        "workers": count,
        "seconds": seconds,
        "us_per_heartbeat": round(percent / 100 * 1e6 / (count * 1000 / INTERVAL_MS), 2),
        "wire": "native" if native_wire_exists() else "pure",
        "heartbeat_options": arguments["--options"],
    }
    report.notes.append(f"states at the end: {', '.join(f'{n:,} {state}' for state, n in states.items())}")
    if heard["late"]:
        report.notes.append(f"{int(heard['late']):,} heartbeats were sent late: the workers had too little CPU")
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print what was counted."""
    header = ["workers", "seconds", "sent", "answered", "unanswered", "suspected", "CPU %", "worst 5 s", "us each"]
    names = ["workers", "seconds", "sent", "answered", "unanswered", "suspected", "cpu_percent", "cpu_percent_worst"]
    print_table(header, [[show(figures[name]) for name in (*names, "us_per_heartbeat")]])


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, help="how many workers there are")
    parser.add_argument("--seconds", type=float, help="how long they are watched")
    parser.add_argument("--processes", type=int, default=4, help="processes that play the workers (default: 4)")
    parser.add_argument("--bare", action="store_true", help="heartbeats without time and config_version")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
