"""Many calls while processes are killed, frozen and started again, by a schedule that follows from a seed.

What befalls whom, when and for how long follows from the seed; what exactly that meets does not, since real processes
take their time, and a fault whose victim is in trouble already is left out. ``run`` gives the history, for
``history.check``.
"""

from __future__ import annotations

import heapq
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import attrs
import tomli_w

from scale0_core.client import CallError, CallTimedOutError, Client, RemoteError, Reply, Stage
from scale0_core.client.kit.errors import BrokerLostError, ClosedError
from scale0_core.testing.broker import BrokerStarter, ProcessBroker

from .history import BrokerLife, Call, Disabled, End, Execution, History, Span, VersionSeen
from .processes import Crew, WorkerProcess, ask, cancelled_by_clients, eventually, freeze, read_records

SETTLE = 60.0
"""Seconds within which all must have come to rest after the last call."""
TICK, LONG_TICK = 0.02, 0.25
"""Seconds between two looks at the clock; a longer while between them is a stall of the run itself."""

WORKER_FAULTS = {"worker killed": 4, "worker frozen": 5, "worker replaced": 1}
BROKER_FAULTS = {"broker frozen": 3, "configuration changed": 2, "broker disabled": 1}
"""What may happen, and how often beside the others."""

DURATIONS = (0.2, 0.7, 1.5, 3.0)
"""Seconds; with heartbeats of 0.3 s, a silence of 0.9 s makes somebody unresponsive."""


@attrs.frozen(kw_only=True)
class Plan:
    """How much of what. Rates are per second; ``faults`` begin so often, a broker is killed every so many seconds."""

    calls: int
    seed: int
    rate: float = 400.0
    clients: int = 4
    window: int = 16
    workers: int = 4
    interval_ms: int = 300
    faults: float = 2.0
    kill_broker_every: float = 8.0


@attrs.frozen
class Outcome:
    """What came of a run: its history, and how often each fault happened."""

    history: History
    faults: Counter[str]
    seconds: float


def run(plan: Plan) -> Outcome:
    """Carry out a plan."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="s0-") as name, BrokerStarter() as starter, Crew(Path(name)) as crew:
        scene = Scene(plan, starter, crew, Path(name))
        try:
            scene.play()
        finally:
            scene.wake_all()
    return Outcome(scene.history, scene.faults, time.monotonic() - began)


# --- callers ----------------------------------------------------------------------------------------------------------


class Caller:
    """A client and the thread that makes its calls, some at a time, at a steady rate.

    It repeats all of its calls or none: so it can be told whether each call of the others was answered just once.
    """

    def __init__(self, plan: Plan, number: int, address: str, folder: Path, history: History) -> None:
        self.name = f"client-{number}"
        self.retry = bool(number % 2)
        self.made = 0
        self.left = plan.calls // plan.clients + (number < plan.calls % plan.clients)
        self._pause = plan.clients / plan.rate
        self._history, self._random = history, Random(f"{plan.seed} {self.name}")
        self._free = threading.Semaphore(plan.window)
        self._version: object = None
        self.client = Client(address, identity=self.name, config_dir=folder)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to call."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Tell whether all calls have been made; some may be under way."""
        return not self._thread.is_alive()

    @property
    def late(self) -> int:
        """Answers that came when their call had ended."""
        return self.client._session.calls.late

    def _run(self) -> None:
        due = time.monotonic()
        while self.left:
            self._free.acquire()  # a call ends by its deadline in any case
            due = max(due + self._pause, time.monotonic() - 0.1)  # what was missed is made up for, within limits
            time.sleep(max(due - time.monotonic(), 0))
            self.left -= 1
            self.made += 1
            self._call(f"{self.name}/{self.made}")
            self._see_version()

    def _call(self, task: str) -> None:
        service, *arguments = self._choice()
        timeout = self._random.choice((0.5, 2.0, 5.0, 20.0))
        now = time.monotonic()
        self._history.calls.append(Call(task, self.name, service, self.retry, now, now + timeout))
        future = self.client.submit(service, task.encode(), *arguments, timeout=timeout, retry=self.retry)
        future.add_done_callback(partial(self._ended, task))

    def _choice(self) -> tuple[Any, ...]:
        dice = self._random.random()
        if dice < 0.8:
            return ("echo",)
        if dice < 0.999:
            return "sleep", f"{self._random.uniform(0, 0.02):.4f}".encode()
        return "hold", b"1.2"

    def _ended(self, task: str, future: Future[Reply]) -> None:
        self._history.ends.append(end_of(task, future))
        self._free.release()

    def _see_version(self) -> None:
        version = self.client.config_version
        if version != self._version and isinstance(version, int):
            self._version = version
            self._history.versions.append(VersionSeen(self.name, version, time.monotonic()))


def end_of(task: str, future: Future[Reply]) -> End:
    """Say how a call ended."""
    now, error = time.monotonic(), future.exception()
    if error is None:
        reply_to, worker, pid = (frame.decode() for frame in future.result())
        return End(task, now, reply_to, worker, int(pid))
    assert isinstance(error, CallError), error
    assert not isinstance(error, RemoteError | ClosedError), error
    own = isinstance(error, BrokerLostError) or (
        isinstance(error, CallTimedOutError) and "timed out after" in error.problem.what
    )
    return End(
        task, now, code=error.code, error=str(error.problem.what), told=not own, sent=error.stage != Stage.CONNECTING
    )


class Metronome:
    """A thread that does nothing but wake up; when it cannot for long, no other thread of this process could either."""

    def __init__(self, stalls: list[Span]) -> None:
        self._stalls, self._over = stalls, threading.Event()
        self._thread = threading.Thread(target=self._run, name="metronome", daemon=True)

    def __enter__(self) -> Metronome:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(TICK):
            now = time.monotonic()
            if now - before > LONG_TICK:
                self._stalls.append(Span(before, now))
            before = now


# --- faults -----------------------------------------------------------------------------------------------------------


class Scene:
    """The broker, its workers and callers, and what befalls them."""

    def __init__(self, plan: Plan, starter: BrokerStarter, crew: Crew, folder: Path) -> None:
        self.plan, self.history = plan, History()
        self.faults: Counter[str] = Counter()
        self._starter, self._crew, self._folder = starter, crew, folder
        self._random = Random(plan.seed)
        self._settings: dict[str, dict[str, Any]] = {
            "broker": {
                "name": f"faults-{os.getpid()}-{folder.name}", "plugins": [], "runtime_dir": str(folder),
                "data_dir": str(folder / "data"),
            },
            "network": {
                "default_heartbeat_interval": plan.interval_ms, "liveness": 3, "task_timeout": 30_000,
            },
        }  # fmt: skip
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._troubled: set[int] = set()
        self._broker_troubled = False
        self._cancelled: dict[str, int] = {}
        self._began = time.monotonic()
        self.broker = self._start_broker()
        self._address = self.broker.address("scale0", "frontend")
        self.workers = [self._start_worker(number) for number in range(plan.workers)]

    # --- the course of things ---------------------------------------------------------------------------------------

    def play(self) -> None:
        """Make all calls while things happen, let all come to rest, and collect what the processes have to tell."""
        for worker in self.workers:
            worker.wait_ready()
        callers = [
            Caller(self.plan, number, self._address, self._folder, self.history) for number in range(self.plan.clients)
        ]
        try:
            self._later(1.0, self._fault)
            self._later(self.plan.kill_broker_every * 0.75, self._kill_broker)
            with Metronome(self.history.stalls):
                for caller in callers:
                    caller.start()
                while not all(caller.done for caller in callers):
                    self._do_what_is_due()
                self._come_to_rest(callers)
        finally:
            for caller in callers:
                caller.client.close()
        self._finish()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._numbers), what))

    def _do_what_is_due(self) -> None:
        while self._agenda and self._agenda[0][0] <= time.monotonic():
            heapq.heappop(self._agenda)[2]()
        time.sleep(0.01)

    def _come_to_rest(self, callers: list[Caller]) -> None:
        """Undo what is undone, and wait until the broker has nothing open: then no answer is on its way any more."""
        while self._troubled or self._broker_troubled:
            self._do_what_is_due()
        eventually(lambda: len(self.history.ends) >= len(self.history.calls), SETTLE, "the end of all calls")
        eventually(lambda: ask(self.broker, "state")["open_tasks"] == 0, SETTLE, "no open tasks")
        for caller in callers:
            caller.client.ping(SETTLE)  # what was sent before the PONG has come before it
            self.history.late_answers[caller.name] = caller.late
        self._cancelled = cancelled_by_clients(self.broker)  # with its client, the broker forgets what it has counted

    def _finish(self) -> None:
        counts = ask(self.broker, "state")["counts"]
        for worker in self.workers:
            worker.stop()
        self.broker.stop()
        self._note_life(clean=True, counts=counts, cancelled=self._cancelled)
        for line in read_records(self._crew.path):
            if line["event"] == "begin":
                self.history.executions.append(Execution(line["task"], line["identity"], line["pid"], line["at"]))
                if isinstance(line["version"], int):
                    self.history.versions.append(VersionSeen(line["identity"], line["version"], line["at"]))

    def wake_all(self) -> None:
        """Let nothing stand still, whatever happened."""
        for worker in self.workers:
            worker.wake()
        if self.broker.process.poll() is None:
            os.kill(self.broker.process.pid, signal.SIGCONT)

    # --- what may happen --------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Draw the next fault; the same draws for every fault, so that what is left out changes nothing later."""
        draw = self._random
        self._later(draw.expovariate(self.plan.faults), self._fault)
        kind = draw.choices([*WORKER_FAULTS, *BROKER_FAULTS], [*WORKER_FAULTS.values(), *BROKER_FAULTS.values()])[0]
        number, seconds = draw.randrange(self.plan.workers), draw.choice(DURATIONS)
        if kind in BROKER_FAULTS:
            if not self._broker_troubled:
                self.faults[kind] += 1
                self._befall_broker(kind, seconds)
        elif number not in self._troubled and len(self._troubled) + 1 < self.plan.workers:
            self.faults[kind] += 1
            self._befall_worker(kind, number, seconds)

    def _befall_worker(self, kind: str, number: int, seconds: float) -> None:
        self._troubled.add(number)
        if kind == "worker frozen":
            freeze(self.workers[number].process.pid)
            self._later(seconds, partial(self._wake_worker, number))
        elif kind == "worker killed":
            self.workers[number].kill()
            self._later(seconds / 5, partial(self._restart_worker, number))
        else:
            self.workers[number].process.terminate()  # it finishes what it has in hand, if there is time
            self._later(seconds / 2, partial(self._restart_worker, number))

    def _restart_worker(self, number: int) -> None:
        self.workers[number].kill()
        self.workers[number] = self._start_worker(number)
        self._troubled.discard(number)

    def _wake_worker(self, number: int) -> None:
        self.workers[number].wake()
        self._troubled.discard(number)

    def _befall_broker(self, kind: str, seconds: float) -> None:
        if kind == "configuration changed":
            self._reload()
            return
        self._broker_troubled = True
        if kind == "broker frozen":
            since = time.monotonic()
            freeze(self.broker.process.pid)
            self._later(seconds, partial(self._wake_broker, since))
        else:
            asked = time.monotonic()
            ask(self.broker, "disable")
            self._later(seconds / 2, partial(self._enable, asked, time.monotonic()))

    def _wake_broker(self, since: float) -> None:
        os.kill(self.broker.process.pid, signal.SIGCONT)
        self.history.frozen.append(Span(since, time.monotonic()))
        self._broker_troubled = False

    def _enable(self, asked: float, since: float) -> None:
        until = time.monotonic()
        ask(self.broker, "enable")
        self.history.disabled.append(Disabled(since, until, asked, time.monotonic()))
        self._broker_troubled = False

    def _reload(self) -> None:
        self._settings["network"]["task_timeout"] += 1
        (self.broker.folder / "broker.toml").write_text(tomli_w.dumps(self._settings), encoding="utf-8")
        told = ask(self.broker, "reload_config")
        self.history.versions.append(VersionSeen("broker", told["config_version"], time.monotonic()))

    def _kill_broker(self) -> None:
        if self._broker_troubled:
            self._later(0.1, self._kill_broker)
            return
        self._later(self.plan.kill_broker_every, self._kill_broker)
        self.faults["broker killed"] += 1
        counts, cancelled = ask(self.broker, "state")["counts"], cancelled_by_clients(self.broker)
        self.broker.kill()
        self._note_life(clean=False, counts=counts, cancelled=cancelled)
        self.broker = self._start_broker()

    # --- processes --------------------------------------------------------------------------------------------------

    def _start_broker(self) -> ProcessBroker:
        self._began = time.monotonic()
        broker = self._starter([], self._settings, name=str(self._settings["broker"]["name"]))
        version = ask(broker, "state")["config_version"]
        self.history.versions.append(VersionSeen("broker", version, time.monotonic()))
        return broker

    def _start_worker(self, number: int) -> WorkerProcess:
        return self._crew(
            self._address, f"worker-{number}", interval=self.plan.interval_ms / 1000, concurrency=2, prefetch=2
        )

    def _note_life(self, *, clean: bool, counts: dict[str, int], cancelled: dict[str, int]) -> None:
        """Keep what the broker's log tells."""
        reasons: Counter[str] = Counter()
        totals: dict[str, int] = {}
        to_clients = errors = 0
        for line in self.broker.log:
            event = str(line.get("event"))
            if event == "messages could not be sent" and line["service"] == "scale0":
                reasons[line["reason"]] += line["count"]
                to_clients += line["count"] if line["socket"] == "frontend" else 0
            elif event == "totals" and line["service"] == "scale0":
                totals = line
            elif event.startswith(("service raised", "service quarantined", "Traceback")):
                errors += 1
        assert totals or not clean, self.broker.text()
        # one that was killed told no totals; what it had counted shortly before is the least
        undelivered = totals.get("undelivered", sum(n for what, n in counts.items() if what.startswith("undelivered")))
        life = BrokerLife(
            began=self._began, ended=time.monotonic(), clean=clean, counts=counts, undelivered=undelivered,
            dropped=totals.get("dropped", 0), reasons=reasons, to_clients=to_clients, cancelled=cancelled,
            errors=errors,
        )  # fmt: skip
        self.history.lives.append(life)
