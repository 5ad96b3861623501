"""What a Majordomo request costs: MDP 0.1, beside a zguide-style broker and one in C; and with 1,000 workers.

The same native clients and the same native workers drive all brokers with the same frames. Rounds are interleaved, and
a ratio is the median of the ratios within a round, as in ``wire.py``. Every reply is checked; one that is missing fails
the bench.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    HERE,
    START_LIMIT,
    BenchError,
    Conversation,
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
    native_command,
    native_wire_exists,
    print_table,
    ratio,
    run_bench,
    show,
    start_plugin_broker,
    take_sizes,
    take_turns,
)

FIGURES = ("cpu_s_per_100k", "requests_per_s")
WINDOW = 1_000
CLIENTS = 10
"""Among how many clients the window is shared in one case; in all others one client has it alone."""
BODY = 100
HEADLINE_WORKERS = 8

FULL = {
    "starts": 3, "rounds": 3, "requests": 40_000, "crowd": 1_000, "services": 100, "crowd_starts": 3, "crowd_rounds": 4,
    "sync_requests": 8_000, "idle_seconds": 5,
}  # fmt: skip
QUICK = {
    "starts": 1, "rounds": 3, "requests": 15_000, "crowd": 1_000, "services": 100, "crowd_starts": 1, "crowd_rounds": 3,
    "sync_requests": 3_000, "idle_seconds": 3,
}  # fmt: skip

TARGETS = (
    Target("cpu_vs_python_loop", 0.36, "CPU per request, 8 workers: Scale0 / zguide-style broker in Python"),
    Target("cost_1000_vs_1_workers", 1.3, "CPU per request, one at a time: 1,000 workers of 100 services / 1 worker"),
)


@dataclass(frozen=True)
class Majordomo(Conversation):
    """A request of MDP 0.1 over a DEALER to one of so many services, each in turn."""

    services: int = 1

    def request(self, body: bytes) -> list[bytes]:
        """Return the frames of one request to the first service."""
        return [b"", b"MDPC01", b"echo-0", body]

    def arguments(self, body_size: int) -> list[str]:
        """Return what the C program must be told."""
        return [*super().arguments(body_size), "--services", str(self.services), "--reply-service", "2"]


def requests_to(services: int) -> Majordomo:
    """Say what clients send."""
    frames = (b"", b"MDPC01", b"@service", None)
    return Majordomo(frames, reply_frames=len(frames), reply_body=3, services=services)


# --- brokers and workers ------------------------------------------------------------------------------------------


def start_scale0(folder: Path) -> Server:
    """Start a real broker with nothing but Majordomo."""
    return start_plugin_broker(folder, "majordomo")


def start_python_loop(folder: Path) -> Server:
    """Start the baseline in Python."""
    endpoint = f"ipc://{folder}/python"
    return Server("python", [sys.executable, str(HERE / "multipart_majordomo.py"), endpoint], endpoint, folder)


def start_c_loop(folder: Path) -> Server:
    """Start the baseline in C."""
    endpoint = f"ipc://{folder}/c"
    return Server("c", [*native_command("mdp_broker"), endpoint], endpoint, folder)


BROKERS: Mapping[str, Callable[[Path], Server]] = {
    "scale0": start_scale0,
    "python": start_python_loop,
    "c": start_c_loop,
}


def start_workers(server: Server, count: int, services: int = 1, time_limit: float = 600) -> NativePeers:
    """Connect workers of so many services, and wait until the broker knows them."""
    options = {
        "--endpoint": server.endpoint,
        "--count": count,
        "--services": services,
        "--time-limit": time_limit,
    }
    peers = NativePeers("mdp_worker", server, options)
    try:
        await_workers(server, count)
    except BaseException:
        peers.__exit__(None, None, None)
        raise
    return peers


def await_workers(server: Server, count: int) -> None:
    """Wait until the broker has just so many workers: nobody tells a worker that it was accepted."""
    deadline = time.perf_counter() + START_LIMIT
    while (found := count_workers(server)) != count:
        if time.perf_counter() > deadline:
            raise BenchError(f"{server.name} has {found} workers instead of {count}:\n{server.log()}")
        time.sleep(0.05)


def count_workers(server: Server) -> int:
    """Ask how many workers the broker has."""
    *_, status, workers = server.ask([b"", b"MDPC01", b"mmi.workers", b""])[1]
    if status != b"200":
        raise BenchError(f"{server.name} does not tell its workers: {status!r}")
    return len(json.loads(workers))


def many_requests(options: argparse.Namespace, workers: int, services: int = 1, clients: int = 1) -> Load:
    """Say how much is sent with many in flight; less where few workers make it slow."""
    requests = options.requests // (1 if workers > 2 else 3)
    return Load(requests, WINDOW, clients, BODY, conversation=requests_to(services))


def send(server: Server, load: Load) -> dict[str, float]:
    """Send requests; give what they cost the broker."""
    measured = drive(server, load)
    cost = measured["cpu_s"] / measured["requests"] * 100_000
    return {
        "cpu_s_per_100k": cost,
        "requests_per_s": measured["requests_per_s"],
        "seconds_per_100k": measured["seconds"] / measured["requests"] * 100_000,
        **{name: measured[name] for name in ("p50_us", "p99_us") if name in measured},
    }


# --- beside the loop in Python --------------------------------------------------------------------------------------


def measure_loops(options: argparse.Namespace) -> Figures:
    """Measure all brokers with few and with many workers, many requests in flight; also shared by many clients."""
    most = HEADLINE_WORKERS if HEADLINE_WORKERS in options.workers else options.workers[-1]
    cases = {str(count): (count, 1) for count in options.workers}
    cases |= {f"{most}_shared": (most, CLIENTS)}
    samples: Samples[tuple[str, str]] = {}
    for _ in range(options.starts):
        with bench_folder() as folder, ExitStack() as stack:
            servers = {name: stack.enter_context(start(folder)) for name, start in BROKERS.items()}
            for case, (count, clients) in cases.items():
                load = many_requests(options, count, clients=clients)
                with ExitStack() as workers:
                    for server in servers.values():
                        workers.enter_context(start_workers(server, count))
                    measures = {(name, case): partial(send, server, load) for name, server in servers.items()}
                    take_turns(measures, options.rounds, samples)
    figures: Figures = {}
    for case in cases:
        cpu = {name: samples[name, case]["cpu_s_per_100k"] for name in BROKERS}
        figures |= ratio(f"cpu_vs_python_loop_{case}", cpu["scale0"], cpu["python"])
        figures |= ratio(f"cpu_vs_c_loop_{case}", cpu["scale0"], cpu["c"])
        figures |= ratio(f"c_loop_vs_python_loop_{case}", cpu["c"], cpu["python"])
        for name in BROKERS:
            found = samples[name, case]
            figures |= {f"{name}_{figure}_{case}": round(median(found[figure]), 4) for figure in FIGURES}
    headline = ("cpu_vs_python_loop", "cpu_vs_c_loop")
    return {**{name: figures[f"{name}_{most}"] for name in headline}, **figures, "cases": ",".join(cases)}


# --- many workers -----------------------------------------------------------------------------------------------------


def measure_idle(server: Server, seconds: float) -> float:
    """Give the CPU seconds that a broker takes in a second while its workers do nothing but live."""
    before, start = server.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.perf_counter() - start)


def measure_crowd(options: argparse.Namespace) -> Figures:
    """Compare a broker that has one worker with one that has a crowd of many services, all of which are called.

    One request at a time: then every request costs the same wake-ups in both cases, one for the request and one for
    the reply. With more in flight one worker still gets one at a time, while a thousand have theirs at once, and
    share wake-ups: the crowd is far cheaper, which says nothing about dispatching.
    """
    samples: Samples[tuple[str, str]] = {}
    idle: list[float] = []
    for _ in range(options.crowd_starts):
        with bench_folder() as folder, ExitStack() as stack:
            one, many = (stack.enter_context(start_scale0(folder)) for _ in range(2))
            stack.enter_context(start_workers(one, 1))
            stack.enter_context(start_workers(many, options.crowd, options.services))
            time.sleep(1)  # the work of connecting is over
            idle.append(measure_idle(many, options.idle_seconds))
            measures: dict[tuple[str, str], Measuring] = {}
            for name, server, services in (("one", one, 1), ("many", many, options.services)):
                conversation = requests_to(services)
                alone = Load(options.sync_requests, 1, 1, BODY, conversation=conversation)
                crowded = many_requests(options, 1 if name == "one" else options.crowd, services)
                measures["sync", name] = partial(send, server, alone)
                measures["window", name] = partial(send, server, crowded)
            take_turns(measures, options.crowd_rounds, samples)
            if (left := count_workers(many)) != options.crowd:
                raise BenchError(f"of {options.crowd} workers {left} are left:\n{many.log()}")
    return summarise_crowd(samples, median(idle))


def summarise_crowd(samples: Samples[tuple[str, str]], idle: float) -> Figures:
    """Give the ratios, with and without what the heartbeats cost meanwhile, and the absolute figures."""
    sync_many = samples["sync", "many"]
    net = [
        cost - idle * seconds
        for cost, seconds in zip(sync_many["cpu_s_per_100k"], sync_many["seconds_per_100k"], strict=True)
    ]
    one = samples["sync", "one"]["cpu_s_per_100k"]
    figures: Figures = {
        **ratio("cost_1000_vs_1_workers", sync_many["cpu_s_per_100k"], one),
        **ratio("cost_1000_vs_1_workers_net", net, one),
        **ratio(
            "cost_1000_vs_1_workers_window",
            samples["window", "many"]["cpu_s_per_100k"],
            samples["window", "one"]["cpu_s_per_100k"],
        ),
        "heartbeat_cpu_percent": round(idle * 100, 2),
    }
    for (kind, name), found in samples.items():
        figures |= {f"{kind}_{name}_{figure}": round(median(found[figure]), 4) for figure in FIGURES}
        if kind == "sync":
            figures |= {f"{kind}_{name}_{figure}": round(median(found[figure]), 1) for figure in ("p50_us", "p99_us")}
    return figures


# --- the report -------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> Report:
    """Measure all, and report."""
    if find_compiler() is None:
        raise NotMeasured("the workers are a C program, and no C compiler was found (set CC, or install one)")
    take_sizes(options, FULL, QUICK)
    options.workers = tuple(options.workers)
    report = Report("What a Majordomo request costs", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    report.figures = {**measure_loops(options), **measure_crowd(options)}
    report.figures |= {name: getattr(options, name) for name in FULL}
    report.figures |= {"window": WINDOW, "workers": ",".join(map(str, options.workers))}
    report.figures["wire"] = "native" if native_wire_exists() else "pure"
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and the ratios."""
    cases = str(figures["cases"]).split(",")
    rows = [
        [broker, case.partition("_")[0], str(CLIENTS if "shared" in case else 1),
         *(show(figures[f"{broker}_{figure}_{case}"]) for figure in FIGURES)]
        for case in cases
        for broker in BROKERS
    ]  # fmt: skip
    print_table(["broker", "workers", "clients", "CPU s / 100k", "requests/s"], rows)
    crowd = show(figures["crowd"])
    rows = [
        [crowd if name == "many" else "1", flight, *(show(figures[f"{kind}_{name}_{figure}"]) for figure in FIGURES)]
        for kind, flight in (("sync", "1"), ("window", show(figures["window"])))
        for name in ("one", "many")
    ]
    print_table(["workers", "in flight", "CPU s / 100k", "requests/s"], rows)
    ratios = ("cpu_vs_python_loop", "cpu_vs_c_loop", "c_loop_vs_python_loop")
    names = [f"{name}_{case}" for name in ratios for case in cases]
    names += ["cost_1000_vs_1_workers", "cost_1000_vs_1_workers_net", "cost_1000_vs_1_workers_window"]
    spread = [[name, *(show(figures[name + end]) for end in ("_low", "", "_high"))] for name in names]
    print_table(["ratio", "lower quartile", "median", "upper quartile"], spread)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, help="requests per broker and round")
    parser.add_argument("--sync-requests", type=int, help="the same, one at a time")
    parser.add_argument("--starts", type=int, help="how often the brokers are started anew")
    parser.add_argument("--rounds", type=int, help="how often each broker is measured after a start")
    parser.add_argument("--crowd", type=int, help="how many workers there are where there are many")
    parser.add_argument("--services", type=int, help="how many services they offer")
    parser.add_argument("--crowd-starts", type=int, help="as --starts, with many workers")
    parser.add_argument("--crowd-rounds", type=int, help="as --rounds, with many workers")
    parser.add_argument("--idle-seconds", type=int, help="for how long heartbeats alone are watched")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8], help="numbers of workers (default: 1 2 8)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
