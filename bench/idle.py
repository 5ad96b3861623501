"""What clients cost that are connected and say nothing: memory of the broker for each, and CPU of the broker.

Every client has proved by one request that it is connected. Memory is the growth of the broker's RSS. The
core turns on ZeroMQ's heartbeats, so CPU is measured over whole intervals of them.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import (
    ECHO,
    Figures,
    NativePeers,
    Report,
    Server,
    Target,
    bench_folder,
    make_parser,
    memory_kb,
    print_table,
    run_bench,
    show,
    start_broker,
)

from scale0_core.config.settings import WireSettings

HEARTBEAT_SECONDS = WireSettings().heartbeat_ms / 1000
"""The core's default interval of ZeroMQ's heartbeats."""

QUICK_HEARTBEAT_SECONDS = min(HEARTBEAT_SECONDS, 30.0)
"""The interval in a quick run, which is to see one and be over in a minute; it costs accordingly more."""

SETTLE_SECONDS = 2.0
"""Time for the work of connecting to be over."""

TARGETS = (
    Target("kb_per_client", 40, "growth of the broker's RSS per connected client, in kB (the worst transport)"),
    Target("idle_cpu_percent", 2, "CPU of the broker while nobody says anything (the worst transport)"),
)


def idle_clients(server: Server, count: int, time_limit: float) -> NativePeers:
    """Keep clients connected inside the ``with`` block."""
    options = {"--endpoint": server.endpoint, "--count": count, "--time-limit": time_limit}
    return NativePeers("idle", server, options, *ECHO.arguments(body_size=100))


def free_tcp_endpoint() -> str:
    """Find a port on loopback that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def measure_transport(folder: Path, endpoint: str | None, clients: int, seconds: float, heartbeat: float) -> Figures:
    """Start a broker, connect the clients, watch the broker while they are idle."""
    with start_broker(folder, "auto", endpoint, heartbeat_ms=round(heartbeat * 1000)) as broker:
        broker.await_echo()
        before_rss, before_pss = memory_kb(broker.pid)
        with idle_clients(broker, clients, time_limit=seconds + 120) as clients_there:
            time.sleep(SETTLE_SECONDS)
            rss, pss = memory_kb(broker.pid)
            cpu, start = broker.cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            percent = (broker.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100
            broker.check_alive()
            broker.await_echo(limit=time.perf_counter() - broker.started_at + 15)  # it still serves
        return {
            "kb_per_client": round((rss - before_rss) / clients, 2),
            "kb_per_client_pss": round((pss - before_pss) / clients, 2),
            "idle_cpu_percent": round(percent, 3),
            "connect_seconds": clients_there.ready["seconds"],
            "rss_before_kb": before_rss,
            "rss_kb": rss,
        }


def measure(options: argparse.Namespace) -> Report:
    """Measure over ipc, and over tcp too in a full run."""
    report = Report("What idle clients cost", TARGETS)
    clients = options.clients or (2_000 if options.quick else 10_000)
    heartbeat = QUICK_HEARTBEAT_SECONDS if options.quick else HEARTBEAT_SECONDS
    seconds = options.seconds or heartbeat * (1 if options.quick else 2)
    transports: dict[str, str | None] = {"ipc": None}
    if not options.quick:
        transports["tcp"] = free_tcp_endpoint()
    with bench_folder() as folder:
        results = {
            name: measure_transport(folder, endpoint, clients, seconds, heartbeat)
            for name, endpoint in transports.items()
        }
    for name in ("kb_per_client", "idle_cpu_percent"):
        report.figures[name] = max(float(result[name] or 0) for result in results.values())
    report.figures |= {f"{transport}_{name}": v for transport, r in results.items() for name, v in r.items()}
    report.figures |= {"clients": clients, "idle_seconds": seconds, "memory_measure": "RSS"}
    report.figures["heartbeat_seconds"] = heartbeat
    report.notes.append(
        f"{clients:,} clients, idle for {seconds:g} s, which covers {seconds / heartbeat:g}"
        f" heartbeats of each connection, one every {heartbeat:g} s"
    )
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the figures of each transport."""
    header = [
        "transport",
        "kB RSS/client",
        "kB PSS/client",
        "CPU %",
        "s to connect",
        "RSS kB before",
        "RSS kB",
    ]
    names = [
        "kb_per_client",
        "kb_per_client_pss",
        "idle_cpu_percent",
        "connect_seconds",
        "rss_before_kb",
        "rss_kb",
    ]
    transports = [name for name in ("ipc", "tcp") if f"{name}_rss_kb" in figures]
    print_table(header, [[t, *(show(figures[f"{t}_{name}"]) for name in names)] for t in transports])


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, help="how many clients are connected")
    parser.add_argument("--seconds", type=float, help="how long they are watched")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
