"""Whether the guarantees hold: many calls while workers and brokers are killed, frozen, reloaded and disabled.

Real processes throughout. Several clients call through one broker, whose workers write down each task they are given;
a schedule that follows from the seed kills (KILL), freezes (STOP) and restarts workers and the broker. Afterwards
``tests/faults/history.py`` checks all that happened. Not a measurement of speed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import BenchError, Report, Target, make_parser, print_table, run_bench, show

FAULTS = Path(__file__).resolve().parent.parent / "tests" / "faults"
MOST_SHOWN = 10

TARGETS = (
    Target("violations", 0, "calls, executions, versions or counters that break a guarantee"),
    Target("calls_not_ended", 0, "calls that never ended in a reply or an error"),
)


def fault_tests(name: str) -> ModuleType:
    """Import a module from the folder of the fault tests, which is no installed package."""
    if "fault_tests" not in sys.modules:
        package = sys.modules["fault_tests"] = ModuleType("fault_tests")
        package.__path__ = [str(FAULTS)]
    return import_module(f"fault_tests.{name}")


def measure(options: argparse.Namespace) -> Report:
    """Carry out the run and check its history."""
    report = Report("What is promised, under faults", TARGETS)
    calls = options.calls or (5_000 if options.quick else 100_000)
    campaign, history_of = fault_tests("campaign"), fault_tests("history")
    plan = campaign.Plan(
        calls=calls, seed=options.seed, rate=options.rate, clients=options.clients, workers=options.workers, window=32,
        kill_broker_every=6.0 if options.quick else 15.0,
    )  # fmt: skip
    try:
        outcome = campaign.run(plan)
    except AssertionError as error:
        raise BenchError(f"the run came to no end: {error}") from error
    history = outcome.history
    violations = history_of.check(history)
    ended = {end.call for end in history.ends}
    by_guarantee = Counter(violation.guarantee for violation in violations)
    report.figures = {
        "calls": len(history.calls),
        "violations": len(violations),
        "calls_not_ended": sum(call.id not in ended for call in history.calls),
        "replies": sum(end.is_reply for end in history.ends),
        "errors": sum(not end.is_reply for end in history.ends),
        "executions": len(history.executions),
        "seconds": round(outcome.seconds, 1),
        "calls_per_s": round(len(history.calls) / outcome.seconds),
        "seed": plan.seed,
        "own_stalls": len(history.stalls),
        "own_stall_longest_s": round(max((span.until - span.since for span in history.stalls), default=0.0), 2),
        "faults": sum(outcome.faults.values()),
        **{f"violations_{letter}": by_guarantee[letter] for letter in "abcde"},
    }
    # tables within the figures: by name, as the JSON reader expects them
    report.figures |= {"errors_by_code": history.errors_by_code(), "faults_by_kind": dict(outcome.faults)}  # type: ignore[dict-item]
    if history.stalls:
        report.notes.append(f"the bench itself stood still {len(history.stalls)} times: the machine was busy")
    report.notes += [str(violation) for violation in violations[:MOST_SHOWN]]
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print what happened."""
    names = ["calls", "replies", "errors", "executions", "faults", "seconds", "calls_per_s"]
    print_table(names, [[show(figures[name]) for name in names]])
    for title, name in (("fault", "faults_by_kind"), ("error code", "errors_by_code")):
        print_table([title, "times"], [[str(key), show(value)] for key, value in figures[name].items()])


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, help="calls in all (default: 100,000; quick: 5,000)")
    parser.add_argument("--seed", type=int, default=1, help="what the schedule follows from (default: 1)")
    parser.add_argument("--rate", type=float, default=1000.0, help="calls per second in all (default: 1,000)")
    parser.add_argument("--clients", type=int, default=4, help="clients (default: 4)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
