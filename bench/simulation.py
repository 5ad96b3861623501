"""What a step of SimNetwork costs in a small and in a large network.

Each cluster is a real broker with the sessions of real workers and clients, 50 nodes in all, which call each other all
the time on virtual time. One cluster and 40 of them take so many steps in turn. In the large network hardly anything
that a step needs is in the processor's cache, which alone makes it slower by some tenths.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial
from statistics import median

from harness import Figures, Report, Target, make_parser, ratio, run_bench, take_sizes, take_turns

try:
    from scale0_core.testing import SimBroker, SimClient, SimNetwork, SimWorker
except ImportError as missing:
    raise SystemExit(f"simulation.py: {missing}; install scale0-core first") from missing

TARGETS = (Target("sim_us_growth", 1.3, "microseconds per step with 2,000 nodes / with 50"),)

WORKERS, CLIENTS = 10, 39
CLUSTERS = {"small": 1, "large": 40}
CALL_EVERY = 0.05
WARM_UP = 1.6
"""Virtual seconds until all are connected and every client calls."""


class Caller(SimClient):
    """Calls a service all the time."""

    def begin(self) -> None:
        """Make the first call once the workers are there."""
        self.at(self.node.now + 0.5 + self.node.random.random(), self.again)

    def again(self) -> None:
        """Make a call, and plan the next one."""
        self.call("echo", b"hello", timeout=10.0)
        self.at(self.node.now + CALL_EVERY, self.again)


def make_caller(frontend: str, node: object) -> list[Caller]:
    """Make a client of a broker."""
    caller = Caller(node, frontend)
    caller.begin()
    return [caller]


def make_worker(frontend: str, node: object) -> list[SimWorker]:
    """Make a worker of a broker, which answers immediately."""
    return [SimWorker(node, frontend, ["echo"], lambda worker, task: worker.reply(task, *task.payload), window=10)]


def make_network(clusters: int) -> SimNetwork:
    """Make a network of so many brokers with their workers and clients, and let all of them find each other."""
    net = SimNetwork(1, delay=(0.0, 0.001))
    for number in range(clusters):
        broker = f"b{number}"
        net.add(broker, SimBroker("network.config_service=false"))
        frontend = f"ipc:///run/{broker}/frontend"
        for worker in range(WORKERS):
            net.add(f"w{number}.{worker}", partial(make_worker, frontend))
        for client in range(CLIENTS):
            net.add(f"c{number}.{client}", partial(make_caller, frontend))
    net.run(WARM_UP)
    return net


def take_steps(net: SimNetwork, steps: int) -> Figures:
    """Measure the CPU time of a step."""
    start = time.process_time()
    for _ in range(steps):
        net.step()
    return {"us": (time.process_time() - start) / steps * 1e6}


def measure(options: argparse.Namespace) -> Report:
    """Let both networks take steps in turn."""
    report = Report("What a step of SimNetwork costs", TARGETS)
    take_sizes(options, {"rounds": 21, "steps": 10_000}, {"rounds": 7, "steps": 3_000})
    logging.disable(logging.WARNING)
    networks = {name: make_network(clusters) for name, clusters in CLUSTERS.items()}
    samples: dict[str, dict[str, list[float]]] = {}
    take_turns(
        {name: partial(take_steps, net, options.steps) for name, net in networks.items()}, options.rounds, samples
    )
    small, large = samples["small"]["us"], samples["large"]["us"]
    report.figures |= ratio("sim_us_growth", large, small)
    report.figures |= {"sim_us_small": round(median(small), 1), "sim_us_large": round(median(large), 1)}
    report.figures |= {"sim_nodes_small": len(networks["small"].nodes), "sim_nodes_large": len(networks["large"].nodes)}
    report.notes.append(
        f"{report.figures['sim_us_small']} us per step with {report.figures['sim_nodes_small']} nodes,"
        f" {report.figures['sim_us_large']} us with {report.figures['sim_nodes_large']:,}"
    )
    return report


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="how often each network is measured")
    parser.add_argument("--steps", type=int, help="steps in a round")
    return run_bench(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
