"""What the echo service stands: random messages, and simulated networks where everything goes wrong.

``check_service`` feeds it messages that nobody would send, with failing jobs and vanished peers. ``SimNetwork``
puts it between clients on a network that loses, repeats and overtakes messages, while nodes are killed, paused
and cut off. No exception, no hang, and nothing uncounted: every message is answered, or it is known why not.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import FrameType

from harness import BenchError, Report, Target, make_parser, run_bench

try:
    from scale0_core.api import Effect, Endpoint, Frames, Service, SocketKind
    from scale0_core.testing import SimNetwork, SimNode, Weather, check_service
    from scale0_echo.service import EchoService
    from scale0_echo.settings import EchoSettings
except ImportError as missing:
    raise SystemExit(f"robust.py: {missing}; install scale0-core and plugins/echo first") from missing

TARGETS = (
    Target("fuzz_errors", 0, "runs of check_service in which the service broke its contract, or took too long"),
    Target("fuzz_uncounted", 0, "random messages that were neither answered nor counted as undelivered"),
    Target("sim_failures", 0, "seeds of SimNetwork with an exception, a hang, a wrong answer or a wrong count"),
)

HANG_SECONDS = 30
"""No run of a second or so takes this long unless it hangs, even on a slow and busy machine."""

ADDRESS = "tcp://echo:1"


@contextmanager
def hang_is_an_error() -> Iterator[None]:
    """Raise TimeoutError inside the ``with`` block when it takes far too long."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- random messages ----------------------------------------------------------------------------------------

MESSAGES_PER_RUN = 2_000

PEER = b"\0peer"
SAMPLES: tuple[tuple[str, Frames], ...] = (
    ("requests", (PEER, b"ECHO", b"", b"body")),
    ("requests", (PEER, b"", b"ECHO", b"", b"from", b"a", b"REQ")),
    ("requests", (PEER, b"LATER", b"50", b"body")),
    ("requests", (PEER, b"DIGEST", b"", b"body")),
)


def fuzz_once(seed: int, messages: int) -> tuple[int, int]:
    """Feed one echo service; return how many messages it got, and how many of them were not accounted for."""
    service = EchoService(EchoSettings(), bind=[ADDRESS])
    report = check_service(lambda: service, messages=messages, seed=seed, samples=SAMPLES)
    still_waiting = len(list(service.on_deadline(math.inf)))
    # echo answers every message, however wrong, with exactly one
    return report.messages, report.messages - report.sends - report.undelivered - still_waiting


def fuzz(messages: int, report: Report) -> None:
    """Feed echo services so many messages in all, each run from a seed of its own."""
    fed = errors = uncounted = 0
    runs = math.ceil(messages / MESSAGES_PER_RUN)
    for seed in range(runs):
        size = min(MESSAGES_PER_RUN, messages - seed * MESSAGES_PER_RUN)
        try:
            with hang_is_an_error():
                taken, lost = fuzz_once(seed, size)
            fed += taken
            uncounted += abs(lost)
        except Exception as error:  # whatever it is, it is what this bench looks for
            errors += 1
            note_failure(report, f"check_service, seed {seed}", error)
    report.figures |= {"fuzz_messages": fed, "fuzz_errors": errors, "fuzz_uncounted": uncounted, "fuzz_runs": runs}


# --- simulated networks -------------------------------------------------------------------------------------

CLIENTS = 3
REQUESTS = 15
TICK = 0.05
PATIENCE = 1.0
STORM_SECONDS = 5.0
CALM_SECONDS = 60.0


class Client:
    """Sends requests and repeats those that are not answered, until all are; any other answer is an error."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.endpoints = {"server": Endpoint(kind=SocketKind.DEALER, connect=[ADDRESS])}
        self.requests = [self._request(number, random) for number in range(REQUESTS)]
        self.expected = {answer: number for number, (_, answer) in enumerate(self.requests)}
        self.answered: set[int] = set()
        self.refused = 0
        self._sent_at: dict[int, float] = {}
        self._next_tick = 0.0

    @property
    def done(self) -> bool:
        """True when every request has been answered."""
        return len(self.answered) == REQUESTS

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take an answer; it must be one to a request of this client."""
        if frames[0] == b"ERROR":
            if frames[1] != b"500":  # the simulation lets jobs fail, nothing else may go wrong
                raise AssertionError(f"{self.name} was refused: {frames!r}")
            self.refused += 1
        elif self.expected.get(frames[0]) not in self._sent_at or len(frames) != 1:
            raise AssertionError(f"{self.name} got an answer to nothing it asked: {frames!r}")
        else:
            self.answered.add(self.expected[frames[0]])
        return ()

    def next_deadline(self) -> float | None:
        """Go on at the next tick, until all is answered."""
        return None if self.done else self._next_tick

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Send one new request, and repeat those that have waited too long."""
        self._next_tick = now + TICK
        late = [number for number, sent in self._sent_at.items() if now - sent >= PATIENCE]
        due = [number for number in late if number not in self.answered]
        if len(self._sent_at) < REQUESTS:
            due.append(len(self._sent_at))
        for number in due:
            self._sent_at[number] = now
        return [("server", self.requests[number][0]) for number in due]

    def _request(self, number: int, random: Random) -> tuple[Frames, bytes]:
        """Make a request, and the answer it must get."""
        body = f"{self.name}/{number}".encode().ljust(random.choice((16, 100, 10_000)), b".")
        command = random.choice((b"ECHO", b"LATER", b"DIGEST"))
        options = str(random.randrange(300)).encode() if command == b"LATER" else b""
        answer = hashlib.sha256(body).hexdigest().encode() if command == b"DIGEST" else body
        return (command, options, body), answer


def stormy(random: Random) -> Weather:
    """Choose how bad the network is."""
    return Weather(
        delay=(0.0, random.choice((0.001, 0.02, 0.2))),
        loss=random.choice((0.0, 0.02, 0.2)),
        duplication=random.choice((0.0, 0.05)),
        reordering=random.choice((0.0, 0.1)),
        job_delay=(0.0, random.choice((0.001, 0.1))),
        job_failure=random.choice((0.0, 0.1)),
    )


def plan_faults(net: SimNetwork, random: Random) -> None:
    """Choose what happens to whom, and when."""
    clients = [name for name in net.nodes if name != "server"]

    def cut_off() -> None:
        net.partition(["server"], random.sample(clients, random.randint(1, len(clients))))

    faults: tuple[Callable[[], None], ...] = (
        lambda: net.kill("server"),
        lambda: net.restart("server"),
        lambda: net.pause("server"),
        lambda: net.resume("server"),
        cut_off,
        net.heal,
    )
    for _ in range(random.randint(0, 8)):
        net.at(random.uniform(0.0, STORM_SECONDS), random.choice(faults))


def make_echo(_node: SimNode) -> list[Service]:
    """Make the service under test."""
    return [EchoService(EchoSettings(), bind=[ADDRESS])]


def _only(client: Client, _node: SimNode) -> list[Service]:
    return [client]


def simulate(seed: int) -> tuple[int, str]:
    """Play one seed: a storm, then calm. Return the messages handed over, and all counts of the run as text."""
    random = Random(seed)
    net = SimNetwork(seed)
    net.weather = stormy(random)
    net.add("server", make_echo)
    clients = [Client(f"client-{number}", random) for number in range(CLIENTS)]
    for client in clients:
        net.add(client.name, partial(_only, client))
    plan_faults(net, random)
    net.run(STORM_SECONDS)

    net.weather = Weather()
    net.heal()
    if not net.nodes["server"].up:
        net.restart("server")
    net.resume("server")
    answered = net.run_until(lambda: all(client.done for client in clients), limit=CALM_SECONDS)
    assert answered, f"{[REQUESTS - len(client.answered) for client in clients]} requests are never answered"
    net.run(2.0)  # repeated requests that are still under way
    check_counts(net)
    return net.counts.handed, f"{net.steps} {net.counts} {[client.refused for client in clients]}"


def check_counts(net: SimNetwork) -> None:
    """Check that at rest every message is accounted for; the network itself checks its own counts at every step."""
    assert net.in_flight == 0, f"{net.in_flight} messages are still under way"
    counts = net.nodes["server"].service_hosts[0].counts
    settled = counts.sent + sum(counts.undelivered.values()) + sum(counts.dropped.values())
    assert counts.received == settled, f"the server took {counts.received} messages and accounts for {settled}"
    assert counts.errors == 0, f"the server raised {counts.errors} times"


def simulation_holds(seed: int, report: Report) -> bool:
    """Play one seed, every 50th twice (the same seed must give the same run); tell whether all went well."""
    try:
        with hang_is_an_error():
            handed, story = simulate(seed)
            if seed % 50 == 0:
                assert story == simulate(seed)[1], "the same seed gave another run"
    except Exception as error:  # whatever it is, it is what this bench looks for
        note_failure(report, f"SimNetwork, seed {seed}", error)
        return False
    report.figures["sim_messages"] = handed + int(report.figures["sim_messages"] or 0)
    return True


def simulate_all(seeds: int, report: Report) -> None:
    """Play so many seeds and count those that fail."""
    report.figures["sim_messages"] = 0
    failures = sum(not simulation_holds(seed, report) for seed in range(seeds))
    report.figures |= {"sim_seeds": seeds, "sim_failures": failures}


def note_failure(report: Report, where: str, error: Exception) -> None:
    """Keep the first failures for the reader; a thousand like it would say no more."""
    if len(report.notes) < 5:
        report.notes.append(f"{where}: {type(error).__name__}: {error}")


def measure(options: argparse.Namespace) -> Report:
    """Run both parts."""
    report = Report("What the echo service stands", TARGETS)
    messages = options.messages or (40_000 if options.quick else 200_000)
    seeds = options.seeds or (100 if options.quick else 1_000)
    if not hasattr(signal, "setitimer"):
        raise BenchError("a hang cannot be noticed on this system: it has no setitimer")
    start = time.perf_counter()
    fuzz(messages, report)
    report.figures["fuzz_seconds"] = round(time.perf_counter() - start, 1)
    start = time.perf_counter()
    simulate_all(seeds, report)
    report.figures["sim_seconds"] = round(time.perf_counter() - start, 1)
    report.notes.append(
        f"{report.figures['fuzz_messages']:,} random messages; {seeds:,} seeds with"
        f" {report.figures['sim_messages']:,} messages"
    )
    return report


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, help="random messages in all")
    parser.add_argument("--seeds", type=int, help="simulated networks")
    return run_bench(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
