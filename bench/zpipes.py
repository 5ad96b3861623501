"""What pipes cost: chunks of 100 bytes and of 64 KiB, many clients, many pipes, pipes on disk.

A chunk is one WRITE and one READ, so a broker with pipes is held against the C echo server of ``wire.py`` with twice as
many round trips, from as many connections with as many requests outstanding, in the same run. Rounds are interleaved,
and a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from struct import Struct
from typing import Any

import zmq
from harness import (
    BenchError,
    Figures,
    Load,
    Measuring,
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
    memory_kb,
    native_wire_exists,
    print_table,
    ratio,
    run_bench,
    show,
    start_c_server,
    start_plugin_broker,
    take_sizes,
    take_turns,
)

DIALECTS = ("text", "binary")
SMALL, LARGE = 100, 64 * 1024
WINDOW = 500
"""Requests outstanding on each of the two connections: a ROUTER's default high-water mark is 1,000 messages."""
LARGE_WINDOW = 16
FEW_PAIRS = 5
CROWD_TURNS = 4
"""How often ten clients are measured while the crowd is idle: they are slow, so each time is a short one."""
DURABLE_WRITERS, DURABLE_WINDOW = 4, 250
DURABLE_RATE = 20_000

FULL = {
    "starts": 4, "rounds": 4, "chunks": 100_000, "large_chunks": 3_000, "clients": 10_000, "crowd_rounds": 3,
    "crowd_chunks": 40_000, "pipes": 100_000, "durable_rounds": 5, "durable_chunks": 60_000,
}  # fmt: skip
QUICK = {
    "starts": 2, "rounds": 2, "chunks": 20_000, "large_chunks": 600, "clients": 2_000, "crowd_rounds": 2,
    "crowd_chunks": 10_000, "pipes": 100_000, "durable_rounds": 3, "durable_chunks": 20_000,
}  # fmt: skip

TARGETS = (
    Target("cpu_vs_c_echo", 2.5, "CPU of 100-byte chunks (WRITE + READ) / two echoes in C (the worse dialect)"),
    Target("mb_s_64k_vs_c", 0.6, "MB/s of 64 KiB chunks, text / echo in C", at_least=True),
    Target("cost_10k_vs_10_clients", 1.5, "CPU per chunk: 10,000 clients / 10 (the worst dialect and kind)"),
    Target("mb_100k_pipes", 120, "RSS in MB of a broker with 100,000 open, empty pipes"),
    Target("durable_vs_target", 1.0, "acknowledged durable chunks/s / durable_target_per_s", at_least=True),
)


# --- brokers and loads --------------------------------------------------------------------------------------------


def start_pipes_broker(folder: Path, **settings: object) -> Server:
    """Start a real broker with nothing but zpipes; ``settings`` is its table [plugin.zpipes]."""
    server = start_plugin_broker(folder, "zpipes", **settings)
    try:
        if (answer := server.ask([b"PING"])[1]) != [b"PONG"]:
            raise BenchError(f"the server {server.name} gave a wrong answer: {answer}")
    except BaseException:
        server.stop()
        raise
    return server


@dataclass(frozen=True)
class Pairs:
    """Writers and readers: how many of each, what each pair moves, and how many requests each end has outstanding."""

    chunks: int
    dialect: str = "text"
    pairs: int = 1
    window: int = WINDOW
    chunk_size: int = SMALL
    reads: bool = True
    processes: int = 1
    prefix: str = "bench"

    def at(self, server: Server, time_limit: float = 120) -> NativePeers:
        """Connect them inside the ``with`` block; they move their chunks when they are told to finish."""
        options = {
            "--endpoint": server.endpoint,
            "--count": self.pairs,
            "--processes": self.processes,
            "--chunks": self.chunks,
            "--chunk-size": self.chunk_size,
            "--window": self.window,
            "--role": "both" if self.reads else "write",
            "--name": f"{self.prefix}-{uuid.uuid4().hex[:8]}",
            "--time-limit": time_limit,
        }
        return NativePeers("pipes", server, options, *(["--binary"] if self.dialect == "binary" else []))


def move(server: Server, peers: NativePeers) -> dict[str, float]:
    """Have pairs move their chunks; return what they measured, and the CPU seconds of the broker per 100,000 chunks."""
    before = server.cpu_seconds()
    measured = peers.finish()
    cpu = server.cpu_seconds() - before
    return {**measured, "cpu_s": cpu, "cpu_s_per_100k": cpu / measured["chunks"] * 100_000}


def move_once(server: Server, pairs: Pairs) -> dict[str, float]:
    """Connect pairs and have them move their chunks."""
    with pairs.at(server) as peers:
        return move(server, peers)


def echo_once(server: Server, chunks: int, trips: int, window: int, size: int) -> dict[str, float]:
    """Do so many echoes for each chunk, from two connections as a pair has."""
    measured = drive(server, Load(trips * chunks, window=2 * window, connections=2, body_size=size))
    return {**measured, "cpu_s_per_100k": measured["cpu_s"] / chunks * 100_000}


# --- one writer and one reader ------------------------------------------------------------------------------------


def measure_pair(options: argparse.Namespace) -> Figures:
    """Measure one writer and one reader beside the C echo server, with small and with large chunks."""
    small: Samples[str] = {}
    large: Samples[str] = {}
    for _ in range(options.starts):
        with bench_folder() as folder, ExitStack() as stack:
            echo = stack.enter_context(start_c_server(folder))
            echo.await_echo()
            broker = stack.enter_context(start_pipes_broker(folder))
            for samples, chunks, trips, window, size in (
                (small, options.chunks, 2, WINDOW, SMALL),
                (large, options.large_chunks, 1, LARGE_WINDOW, LARGE),
            ):
                measures: dict[str, Measuring] = {
                    dialect: partial(move_once, broker, Pairs(chunks, dialect, window=window, chunk_size=size))
                    for dialect in DIALECTS
                }
                measures["c"] = partial(echo_once, echo, chunks, trips, window, size)
                take_turns(measures, options.rounds, samples)
            broker.check_alive()
    figures: Figures = {}
    for dialect in DIALECTS:
        cpu = {name: found["cpu_s_per_100k"] for name, found in small.items()}
        speed = {name: found["mb_per_s"] for name, found in large.items()}
        figures |= ratio(f"cpu_vs_c_echo_{dialect}", cpu[dialect], cpu["c"])
        figures |= ratio("mb_s_64k_vs_c" if dialect == "text" else "mb_s_64k_vs_c_binary", speed[dialect], speed["c"])
        figures |= ratio(f"cpu_64k_vs_c_{dialect}", large[dialect]["cpu_s"], large["c"]["cpu_s"])
        figures[f"{dialect}_chunks_per_s"] = round(median(small[dialect]["chunks_per_s"]))
    for name in (*DIALECTS, "c"):
        figures[f"{name}_cpu_s_per_100k"] = round(median(small[name]["cpu_s_per_100k"]), 4)
        figures[f"{name}_mb_s_64k"] = round(median(large[name]["mb_per_s"]), 1)
    worst = max(float(figures[f"cpu_vs_c_echo_{dialect}"] or 0) for dialect in DIALECTS)
    return {"cpu_vs_c_echo": worst, **figures}


# --- many clients -------------------------------------------------------------------------------------------------


def measure_crowd_once(few: Server, many: Server, dialect: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure ten clients alone, ten beside thousands of idle ones, and thousands that are all at work.

    Every client has one request outstanding. The thousands have opened their pipes and are idle until it is their turn.
    """
    pairs = options.clients // 2
    ten = Pairs(max(1, options.crowd_chunks // CROWD_TURNS // FEW_PAIRS), dialect, FEW_PAIRS, window=1)
    crowd = Pairs(max(1, options.crowd_chunks // pairs), dialect, pairs, window=1, processes=2)
    with crowd.at(many) as all_of_them:
        time.sleep(0.5)  # the work of connecting is over
        samples: Samples[str] = {}
        take_turns({"few": partial(move_once, few, ten), "idle": partial(move_once, many, ten)}, CROWD_TURNS, samples)
        active = move(many, all_of_them)
    costs = {kind: median(found["cpu_s_per_100k"]) for kind, found in samples.items()}
    return {**costs, "active": active["cpu_s_per_100k"], "connect_seconds": all_of_them.ready["seconds"]}


def measure_crowd(options: argparse.Namespace) -> Figures:
    """Compare the cost of a chunk with few and with many clients."""
    samples: Samples[str] = {}
    for dialect in DIALECTS:
        with bench_folder() as folder, ExitStack() as stack:
            # idle clients of the binary dialect would be dropped after a minute
            few, many = (stack.enter_context(start_pipes_broker(folder, binary_timeout=3600)) for _ in range(2))
            measures = {dialect: partial(measure_crowd_once, few, many, dialect, options)}
            take_turns(measures, options.crowd_rounds, samples)
            many.check_alive()
    figures: Figures = {}
    kinds = ("idle", "active")
    for dialect in DIALECTS:
        found = samples[dialect]
        for kind in kinds:
            figures |= ratio(f"cost_10k_vs_10_clients_{dialect}_{kind}", found[kind], found["few"])
        figures[f"{dialect}_connect_seconds"] = median(found["connect_seconds"])
        figures |= {f"{dialect}_{kind}_us_per_chunk": round(median(found[kind]) * 10, 2) for kind in ("few", *kinds)}
    ratios = [float(figures[f"cost_10k_vs_10_clients_{d}_{k}"] or 0) for d in DIALECTS for k in kinds]
    return {"cost_10k_vs_10_clients": max(ratios), **figures}


# --- many pipes ---------------------------------------------------------------------------------------------------


def ask_all(client: zmq.Socket[bytes], requests: Iterable[list[bytes]]) -> None:
    """Send requests, some hundred ahead, and see that each is answered with OK."""
    pending = iter(requests)
    outstanding = 0
    while True:
        for request in islice(pending, WINDOW - outstanding):
            client.send_multipart(request)
            outstanding += 1
        if not outstanding:
            return
        if (answer := client.recv_multipart()) != [b"OK"]:
            raise BenchError(f"a request was answered with {answer}")
        outstanding -= 1


def measure_pipes(options: argparse.Namespace) -> Figures:
    """Open many pipes over one connection, then write a chunk to each; see how much memory the broker takes."""
    names = [b"pipe-%d" % number for number in range(options.pipes)]
    with bench_folder() as folder, start_pipes_broker(folder) as broker, zmq.Context() as context:
        rss = [memory_kb(broker.pid)[0]]
        with closing(context.socket(zmq.DEALER)) as client:
            client.linger = 0
            client.rcvtimeo = 10_000
            client.connect(broker.endpoint)
            try:
                ask_all(client, ([b"OPEN", name] for name in names))
                rss.append(memory_kb(broker.pid)[0])
                ask_all(client, ([b"WRITE", name, b"." * SMALL] for name in names))
                rss.append(memory_kb(broker.pid)[0])
            except zmq.Again:
                broker.check_alive()
                raise BenchError(f"the broker did not answer for 10 s:\n{broker.log()}") from None
    started, opened, written = (kb * 1024 / 1e6 for kb in rss)
    return {
        "mb_100k_pipes": round(opened, 1),
        "mb_100k_pipes_growth": round(opened - started, 1),
        "mb_100k_pipes_with_chunks": round(written, 1),
    }


# --- durable pipes ------------------------------------------------------------------------------------------------


FRAME_HEAD = Struct(">4sIII")
"""A frame of the journal: mark, length of the records, checksum, distance to where its commit begins."""


def count_commits(folder: Path) -> int:
    """Count the commits in a journal, each of which is one write and one fdatasync."""
    commits = 0
    for path in sorted(folder.rglob("journal-*")):
        data = path.read_bytes()
        at = 0
        while at + FRAME_HEAD.size <= len(data):
            mark, length, _, back = FRAME_HEAD.unpack_from(data, at)
            if mark != b"S0J1":
                raise BenchError(f"{path.name} has no frame at {at}")
            commits += back == 0
            at += FRAME_HEAD.size + length
    return commits


def fsyncs_per_s(folder: Path, size: int, seconds: float = 1.0) -> float:
    """Measure how often a second the disk makes so many appended bytes safe."""
    path, data, count = folder / "fsyncs", bytes(size), 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)
    start = time.perf_counter()
    try:
        while time.perf_counter() - start < seconds:
            os.pwrite(descriptor, data, count * size)
            sync(descriptor)
            count += 1
        return count / (time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()


def measure_durable_once(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Write to durable pipes, with nobody reading and with a reader each, and ask the disk what it can do."""
    chunks = options.durable_chunks // DURABLE_WRITERS
    writers = Pairs(chunks, pairs=DURABLE_WRITERS, window=DURABLE_WINDOW, prefix="d", reads=False)
    with_readers = Pairs(chunks, pairs=DURABLE_WRITERS, window=DURABLE_WINDOW, prefix="d")
    with start_pipes_broker(folder, durable=["d*"]) as broker:
        data = (folder / broker.name).with_suffix(".data")
        written = move_once(broker, writers)
        commits = count_commits(data)
        read = move_once(broker, with_readers)
        broker.check_alive()
    if not commits:
        raise BenchError("nothing was written to the journal")
    group = written["chunks"] / commits
    rate = fsyncs_per_s(folder, round(group * (SMALL + 40)))
    target = min(DURABLE_RATE, rate * group)
    return {
        "durable_chunks_per_s": written["acknowledged_per_s"],
        "durable_target_per_s": target,
        "durable_vs_target": written["acknowledged_per_s"] / target,
        "durable_cpu_s_per_100k": written["cpu_s_per_100k"],
        "durable_read_chunks_per_s": read["chunks_per_s"],
        "durable_mean_group": group,
        "fsyncs_per_s": rate,
    }


def measure_durable(options: argparse.Namespace) -> Figures:
    """Measure pipes on disk, with a new broker and a new journal in each round."""
    samples: Samples[str] = {}
    with bench_folder() as folder:
        take_turns({"durable": partial(measure_durable_once, folder, options)}, options.durable_rounds, samples)
    return {name: round(median(values), 4) for name, values in samples["durable"].items()}


# --- all of it ----------------------------------------------------------------------------------------------------


PARTS: Mapping[str, Callable[[argparse.Namespace], Figures]] = {
    "pair": measure_pair,
    "crowd": measure_crowd,
    "pipes": measure_pipes,
    "durable": measure_durable,
}


def measure(options: argparse.Namespace) -> Report:
    """Measure all parts, or those named, and report."""
    if find_compiler() is None:
        raise NotMeasured("writers and readers are a C program, and no C compiler was found (set CC, or install one)")
    take_sizes(options, FULL, QUICK)
    options.clients = max(options.clients, 2 * FEW_PAIRS)
    report = Report("What pipes cost", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    for part in options.parts:
        report.figures |= PARTS[part](options)
    if "crowd" in options.parts and options.clients != FULL["clients"]:
        report.notes.append(f"{options.clients:,} clients stand for 10,000")
    report.figures |= {name: getattr(options, name) for name in FULL}
    report.figures["wire"] = "native" if native_wire_exists() else "pure"
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and how far the rounds lie apart."""
    tables = {
        "cpu_vs_c_echo": [
            ["", "CPU s / 100k chunks", "64 KiB MB/s"],
            *([name, f"{name}_cpu_s_per_100k", f"{name}_mb_s_64k"] for name in (*DIALECTS, "c")),
        ],
        "cost_10k_vs_10_clients": [
            ["CPU us / chunk", "10 clients", "and many idle ones", "many clients"],
            *([name, *(f"{name}_{kind}_us_per_chunk" for kind in ("few", "idle", "active"))] for name in DIALECTS),
        ],
        "mb_100k_pipes": [
            ["MB of RSS", "100,000 pipes", "growth", "with a chunk in each"],
            ["text", "mb_100k_pipes", "mb_100k_pipes_growth", "mb_100k_pipes_with_chunks"],
        ],
        "durable_vs_target": [
            ["durable", "chunks/s", "with readers", "chunks a group", "fsyncs/s"],
            ["text", "durable_chunks_per_s", "durable_read_chunks_per_s", "durable_mean_group", "fsyncs_per_s"],
        ],
    }
    for figure, (header, *rows) in tables.items():
        if figure in figures:
            print_table(header, [[name, *(show(figures[cell]) for cell in cells)] for name, *cells in rows])
    spread = [name.removesuffix("_low") for name in figures if name.endswith("_low")]
    rows = [[name, *(show(figures[f"{name}{end}"]) for end in ("_low", "", "_high"))] for name in spread]
    if rows:
        print_table(["ratio", "lower quartile", "median", "upper quartile"], rows)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--starts", type=int, help="how often the servers of the pair are started anew")
    parser.add_argument("--rounds", type=int, help="how often each is measured after a start")
    parser.add_argument("--chunks", type=int, help="chunks of 100 bytes per round")
    parser.add_argument("--clients", type=int, help="how many clients are many")
    parser.add_argument("--pipes", type=int, help="how many pipes are many")
    parser.add_argument("--durable-chunks", type=int, help="chunks to pipes on disk per round")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
