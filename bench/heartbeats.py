"""What many workers cost that only show that they live: CPU and memory of the broker, and whether it misses one.

Each worker is negotiated with and sends a heartbeat every second, as the broker asks; all are spread evenly over the
second. At the end the broker is asked for the state of each. CPU is counted from when all are there. Afterwards such
workers talk to a plain ROUTER in C that gives the same answers and does nothing else: what libzmq alone takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    start_plain_server,
)

INTERVAL_MS, LIVENESS = 1000, 3

SETTLE_SECONDS = 3.0
"""Time for the work of connecting to be over."""

SLICE_SECONDS = 5.0
"""CPU is looked at in slices of this length too: an average over minutes hides what happens now and then."""

PLAIN_SECONDS = 210.0
"""How long the plain server is watched at most: libzmq's memory grows until some 525 frames went each way, and a
heartbeat has three."""

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


@dataclass(frozen=True)
class Watched:
    """What one server took, and what its workers met with."""

    percents: list[float]
    percent: float
    rss_before: int
    rss_first: int
    rss: int
    connect_seconds: float
    heard: Mapping[str, float]

    def kb_per_worker(self, count: int) -> float:
        """Give the growth of the memory for each worker."""
        return (self.rss - self.rss_before) / count


def watch_workers(
    server: Server, endpoint: str, options: argparse.Namespace, seconds: float, at_the_end: Callable[[], object]
) -> Watched:
    """Connect the workers, let them settle, watch the server, and have them end after ``at_the_end``."""
    rss_before, _ = memory_kb(server.pid)
    arguments = {
        "--endpoint": endpoint,
        "--count": options.workers,
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
        at_the_end()
        heard = workers.finish()
    return Watched(percents, percent, rss_before, rss_first, rss, workers.ready["seconds"], heard)


def measure_broker(options: argparse.Namespace, report: Report) -> Watched:
    """Start a broker and its workers, watch them, ask for their states."""
    count = options.workers
    clients: list[Any] = []
    with bench_folder() as folder:
        server, addresses = start_network_broker(
            folder, "auto", default_heartbeat_interval=INTERVAL_MS, liveness=LIVENESS
        )
        with server:
            await_broker(server, addresses.management)
            found = watch_workers(
                server, addresses.backend, options, options.seconds,
                lambda: clients.extend(ask_management(addresses.management, "list_clients")),
            )  # fmt: skip
    states = Counter(client["state"] for client in clients if client["role"] == "backend")
    lost, heard = count - states["ready"], found.heard
    report.figures = {
        "cpu_percent": round(found.percent, 2),
        "cpu_percent_worst": round(max(found.percents), 2),
        "false_expiries": max(lost, int(heard["refused"])),
        "not_ready": lost,
        "refused": int(heard["refused"]),
        "suspected": int(heard["probes"]),
        "unanswered": int(heard["unanswered"]),
        "sent": int(heard["sent"]),
        "answered": int(heard["answered"]),
        "sent_late": int(heard["late"]),
        "kb_per_worker": round(found.kb_per_worker(count), 2),
        "kb_per_worker_first": round((found.rss_first - found.rss_before) / count, 2),
        "rss_before_kb": found.rss_before,
        "rss_kb": found.rss,
        "connect_seconds": found.connect_seconds,
        "us_per_heartbeat": us_per_heartbeat(found.percent, count),
    }
    report.notes.append(f"states at the end: {', '.join(f'{n:,} {state}' for state, n in states.items())}")
    return found


def measure_plain(options: argparse.Namespace, report: Report) -> Watched:
    """Do the same with the plain server, which must answer every heartbeat too."""
    count, seconds = options.workers, min(options.seconds, PLAIN_SECONDS)
    with bench_folder() as folder, start_plain_server(folder) as server:
        server.await_word("ready")
        found = watch_workers(server, server.endpoint, options, seconds, server.check_alive)
    if found.heard["answered"] < found.heard["sent"] or found.heard["refused"]:
        raise BenchError(f"the plain server did not answer all heartbeats: {found.heard}")
    report.figures |= {
        "plain_cpu_percent": round(found.percent, 2),
        "plain_kb_per_worker": round(found.kb_per_worker(count), 2),
        "plain_us_per_heartbeat": us_per_heartbeat(found.percent, count),
        "plain_sent": int(found.heard["sent"]),
        "plain_answered": int(found.heard["answered"]),
        "plain_seconds": seconds,
    }
    return found


def us_per_heartbeat(percent: float, workers: int) -> float:
    """Give the microseconds of CPU that one heartbeat takes."""
    return round(percent / 100 * 1e6 / (workers * 1000 / INTERVAL_MS), 2)


def measure(options: argparse.Namespace) -> Report:
    """Watch a broker, then the plain server, with the same workers."""
    report = Report("What heartbeats cost", TARGETS)
    options.workers = options.workers or (2_000 if options.quick else 10_000)
    options.seconds = options.seconds or (15.0 if options.quick else 300.0)
    broker, plain = measure_broker(options, report), measure_plain(options, report)
    report.figures |= {
        "cpu_vs_plain": round(broker.percent / plain.percent, 3),
        "kb_per_worker_vs_plain": round(
            broker.kb_per_worker(options.workers) / plain.kb_per_worker(options.workers), 3
        ),
        "workers": options.workers,
        "seconds": options.seconds,
        "wire": "native" if native_wire_exists() else "pure",
        "heartbeat_options": "none" if options.bare else "full",
    }
    late = int(broker.heard["late"] + plain.heard["late"])
    if late:
        report.notes.append(f"{late:,} heartbeats were sent late: the workers had too little CPU")
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print what was counted, and the plain server beside the broker."""
    header = ["workers", "seconds", "sent", "answered", "unanswered", "suspected", "CPU %", "worst 5 s", "us each"]
    names = ["workers", "seconds", "sent", "answered", "unanswered", "suspected", "cpu_percent", "cpu_percent_worst"]
    print_table(header, [[show(figures[name]) for name in (*names, "us_per_heartbeat")]])
    names = ["cpu_percent", "kb_per_worker", "us_per_heartbeat"]
    rows = [
        ["broker", *(show(figures[name]) for name in names)],
        ["plain libzmq", *(show(figures[f"plain_{name}"]) for name in names)],
        ["broker / plain", show(figures["cpu_vs_plain"]), show(figures["kb_per_worker_vs_plain"]), ""],
    ]
    print_table(["server", "CPU %", "kB per worker", "us each"], rows)


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
