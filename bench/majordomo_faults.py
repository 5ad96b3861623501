"""What Majordomo stands: workers killed with -9 in mid-request, and malformed messages; not a measurement of speed.

Real processes for the kills (``plugins/majordomo/tests/killing.py``): every request must be answered once, whatever
happens to its workers. The malformed messages (``plugins/majordomo/tests/torture.py``) go to the service itself, with
and without its bridge, and to a real broker: no exception, none uncounted, and nothing grows.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
import uuid
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import (
    BenchError,
    Conversation,
    Report,
    Server,
    Target,
    bench_folder,
    broker_command,
    make_parser,
    memory_kb,
    native_wire_exists,
    print_table,
    run_bench,
    show,
    write_broker_toml,
)

TESTS = Path(__file__).resolve().parent.parent / "plugins" / "majordomo" / "tests"
MOST_SHOWN = 10

TARGETS = (
    Target("kill_faults", 0, "requests lost, answered twice or wrong, while their workers were killed"),
    Target("fuzz_errors", 0, "runs in which the service or the broker broke its contract"),
    Target("fuzz_uncounted", 0, "malformed messages that were not counted as such, or others that were"),
    Target("fuzz_growth_mb", 24, "memory of a broker that grew with malformed messages"),
)

HELLO = Conversation(frames=(b"", b"MDPC01", b"mmi.service", None), reply_frames=4, reply_body=3)


def majordomo_tests(name: str) -> ModuleType:
    """Import a module from the folder of the plugin's tests, which is no installed package."""
    if "majordomo_tests" not in sys.modules:
        package = sys.modules["majordomo_tests"] = ModuleType("majordomo_tests")
        package.__path__ = [str(TESTS)]
    return import_module(f"majordomo_tests.{name}")


def start(folder: Path, settings: Mapping[str, Any]) -> Server:
    """Start a broker with majordomo alone, and wait until it answers."""
    name = f"majordomo-{uuid.uuid4().hex[:6]}"
    endpoint = f"ipc://{folder}/{name}"
    configuration = folder / f"{name}.toml"
    tables = {name: table for name, table in settings.items() if isinstance(table, Mapping)}
    plain = {name: value for name, value in settings.items() if name not in tables}
    nested = {f"plugin.majordomo.{name}": table for name, table in tables.items()}
    wire = "native" if native_wire_exists() else "pure"
    write_broker_toml(configuration, wire, {"plugin.majordomo": {"bind": [endpoint], **plain}, **nested})
    return Server(name, broker_command(configuration), endpoint, folder)


def kill_workers(rounds: int, seed: int, report: Report) -> None:
    """Kill a worker in mid-request, so many times."""
    killing = majordomo_tests("killing")
    with bench_folder() as folder, start(folder, killing.SETTINGS) as server:
        await_answer(server)
        try:
            outcome = killing.run(server.endpoint, rounds, seed, folder)
        except AssertionError as error:
            raise BenchError(f"the kills came to no end: {error}") from error
    faults = outcome.faults()
    report.figures |= {f"kill_{name}": number for name, number in faults.items()}
    report.figures |= {
        "kill_faults": sum(faults.values()), "kills": outcome.kills, "kills_at_the_reply": outcome.racing_kills,
        "kill_requests": outcome.requests, "kill_answers": outcome.answers, "kill_retried": outcome.books["retried"],
        "kill_seconds": round(outcome.seconds, 1), "kill_longest_ms": round(outcome.longest_ms),
        "kill_seed": seed, **{f"kills_of_{kind}": number for kind, number in sorted(outcome.killed.items())},
        **{f"victims_of_{kind}": number for kind, number in sorted(outcome.victims.items())},
    }  # fmt: skip
    report.notes += outcome.notes[:MOST_SHOWN]


def await_answer(server: Server) -> None:
    """Wait until a broker answers; that nobody offers the service is an answer."""
    try:
        server.await_echo(HELLO)
    except BenchError as error:
        if "404" not in str(error):
            raise


# --- malformed messages -----------------------------------------------------------------------------------------------

MESSAGES_PER_RUN = 5_000
WARM_UP = 0.2
"""So much of the flood goes before the broker's memory is looked at first."""


def fuzz(malformed: int, report: Report) -> None:
    """Feed services of all kinds until they have got so many malformed messages, each run from a seed of its own."""
    torture = majordomo_tests("torture")
    logging.getLogger("scale0").setLevel(logging.CRITICAL + 1)  # jobs fail by intention
    done = {"fuzz_messages": 0, "fuzz_malformed": 0, "fuzz_uncounted": 0, "fuzz_errors": 0, "fuzz_runs": 0}
    while done["fuzz_malformed"] < malformed and done["fuzz_errors"] < MOST_SHOWN:
        seed = done["fuzz_runs"]
        kind = torture.KINDS[seed % len(torture.KINDS)]
        done["fuzz_runs"] += 1
        try:
            with bench_folder() as folder:
                # so that every kind of service comes with every kind of scheduling
                outcome = torture.torture(kind, MESSAGES_PER_RUN, seed // len(torture.KINDS), folder)
        except Exception as error:  # whatever it is, it is what this bench looks for
            done["fuzz_errors"] += 1
            report.notes.append(f"{kind}, seed {seed // len(torture.KINDS)}: {type(error).__name__}: {error}")
            continue
        done["fuzz_messages"] += outcome.messages
        done["fuzz_malformed"] += outcome.malformed
        done["fuzz_uncounted"] += outcome.uncounted
    report.figures |= done


def flood(messages: int, report: Report) -> None:
    """Send as many to a real broker with Titanic and bridge, and look at its memory and its books."""
    torture = majordomo_tests("torture")
    with bench_folder() as folder, start(folder, torture.FLOOD_SETTINGS) as server:
        await_answer(server)
        with torture.Flood(server.endpoint, seed=1) as sender:
            sender.send(round(messages * WARM_UP))
            sender.wait_until_forgotten()
            before, _ = memory_kb(server.pid)
            sender.send(messages - sender.sent)
            sender.wait_until_forgotten()
            after, _ = memory_kb(server.pid)
        server.stop()
        books = re.findall(r"totals service=majordomo received=(\d+) .*? errors=(\d+)", server.log())
    if not books:
        raise BenchError(f"the broker did not end as it should:\n{server.log()}")
    received, errors = map(int, books[-1])
    report.figures |= {
        "flood_messages": sender.sent, "flood_received": received, "flood_answers": sender.answers,
        "fuzz_growth_mb": round((after - before) / 1024, 1), "flood_rss_mb": round(after / 1024, 1),
    }  # fmt: skip
    report.figures["fuzz_errors"] = int(report.figures["fuzz_errors"] or 0) + errors
    # what the bench asks in between, and what the bridge hears of its broker, come on top
    report.figures["fuzz_uncounted"] = int(report.figures["fuzz_uncounted"] or 0) + max(0, sender.sent - received)


# --- all of it --------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> Report:
    """Run all parts."""
    report = Report("What Majordomo stands", TARGETS)
    messages = options.messages or (30_000 if options.quick else 1_000_000)
    kill_workers(options.rounds or (100 if options.quick else 1_000), options.seed, report)
    began = time.perf_counter()
    fuzz(messages, report)
    report.figures["fuzz_seconds"] = round(time.perf_counter() - began, 1)
    began = time.perf_counter()
    flood(messages, report)
    report.figures["flood_seconds"] = round(time.perf_counter() - began, 1)
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print what happened."""
    for part in ("kill", "fuzz", "flood"):
        names = [name for name in figures if name.startswith(part)]
        print_table([part, "number"], [[name, show(figures[name])] for name in names])


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="workers killed in mid-request (default: 1,000; quick: 100)")
    parser.add_argument("--messages", type=int, help="malformed messages (default: 1,000,000; quick: 30,000)")
    parser.add_argument("--seed", type=int, default=1, help="what the kills follow from (default: 1)")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
