"""What all benches share: build the C programs, start servers, drive and measure them, print the figures.

Nothing here decides what is measured; each bench file does that for itself. All traffic stays on this
machine, every program has a time limit, and every process that is started is ended by its id.
"""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeAlias, TypeVar

import zmq

HERE = Path(__file__).resolve().parent
NATIVE_SOURCES = HERE / "native"
START_LIMIT = 15.0
"""Seconds within which a server must answer; far above any target, it only ends a hang."""

Figures: TypeAlias = dict[str, float | int | str | None]
"""The named results of a bench; None says that this machine cannot measure it."""


class BenchError(Exception):
    """The bench could not be carried out; the message says why."""


class NotMeasured(Exception):  # noqa: N818  this is an answer, not a fault
    """Something cannot be measured on this machine; the message says why."""


# --- the wire conversation ----------------------------------------------------------------------------------


ID = b"@id"


@dataclass(frozen=True)
class Conversation:
    """What a request and its reply look like at the client.

    ``frames`` are the request's fixed frames, with None where the body stands, and ``ID`` where a number of the
    request's own stands. ``reply_body`` says which of the ``reply_frames`` frames of the reply is that body again,
    ``reply_id`` which is the number.
    """

    frames: tuple[bytes | None, ...]
    reply_frames: int
    reply_body: int
    reply_id: int = 0

    def request(self, body: bytes) -> list[bytes]:
        """Return the frames of one request."""
        return [body if frame is None else body[:8] if frame == ID else frame for frame in self.frames]

    def arguments(self, body_size: int) -> list[str]:
        """Return what the C programs must be told."""
        frames = ["@body" if frame is None else frame.decode("ascii") for frame in self.frames]
        shape = {
            "--body-size": body_size,
            "--reply-frames": self.reply_frames,
            "--reply-body": self.reply_body,
            "--reply-id": self.reply_id,
        }
        return [
            *(argument for frame in frames for argument in ("--frame", frame)),
            *(argument for name, value in shape.items() for argument in (name, str(value))),
        ]


ECHO = Conversation(frames=(b"ECHO", b"", None), reply_frames=1, reply_body=0)
TASK = Conversation(frames=(b"S0C01", b"TASK", b"", b"echo", ID, None), reply_frames=6, reply_body=5, reply_id=4)
"""A task of the Scale0 protocol for the service echo."""


# --- the C programs -----------------------------------------------------------------------------------------


def find_compiler() -> str | None:
    """Find a C compiler: ``$CC``, or the usual names."""
    candidates = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def find_libzmq() -> str | None:
    """Find the libzmq that pyzmq has loaded: the C programs must run on the very same one."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        paths = (line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines())
        loaded = next((path for path in paths if Path(path).name.startswith("libzmq")), None)
        if loaded:
            return loaded
    package = Path(zmq.__file__).parent
    bundled = [*package.glob(".dylibs/libzmq*"), *package.parent.glob("pyzmq.libs/libzmq*")]
    return str(bundled[0]) if bundled else ctypes.util.find_library("zmq")


def _build_folder() -> Path:
    folder = HERE / ".build"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def build(program: str) -> Path:
    """Compile one C program of the benches, unless it is newer than its sources."""
    compiler = find_compiler()
    if compiler is None:
        raise NotMeasured("no C compiler was found (set CC, or install one)")
    sources = [NATIVE_SOURCES / f"{program}.c", *NATIVE_SOURCES.glob("*.h")]
    target = _build_folder() / program
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return target
    # renamed into place at the end: another bench may be building or running the same program
    unfinished = target.with_name(f"{program}.{uuid.uuid4().hex}")
    command = [compiler, "-O2", "-std=gnu11", "-Wall", "-o", str(unfinished), str(sources[0]), "-ldl"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if outcome.returncode != 0:
        raise NotMeasured(f"{compiler} could not compile {sources[0].name}: {outcome.stderr.strip()}")
    unfinished.replace(target)
    return target


def native_command(program: str) -> list[str]:
    """Return the program's path and libzmq's, or raise NotMeasured when there is no compiler or no libzmq."""
    libzmq = find_libzmq()
    if libzmq is None:
        raise NotMeasured("the libzmq that pyzmq uses was not found as a file")
    return [str(build(program)), libzmq]


# --- processes ----------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process with all its threads has used so far."""
    if not sys.platform.startswith("linux"):
        raise NotMeasured(f"CPU seconds of another process are not measured on {sys.platform}")
    # Linux derives the number of a process's CPU clock from its id (see clock_getcpuclockid(3)); this clock
    # counts nanoseconds, while /proc/<pid>/stat counts hundredths of a second
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int) -> tuple[int, int]:
    """Return a process's resident and proportional memory (RSS, PSS) in kB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        raise NotMeasured(f"memory of another process is not measured on {sys.platform}")
    lines = (line.split() for line in rollup.read_text().splitlines()[1:])
    sizes = {words[0]: int(words[1]) for words in lines if len(words) == 3}
    return sizes["Rss:"], sizes["Pss:"]


def processor_model() -> str:
    """Name the processor, so that figures of two machines are not taken for one."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown"


class Server:
    """A server process; leaving the ``with`` block ends it."""

    def __init__(self, name: str, command: Sequence[str], endpoint: str, folder: Path) -> None:
        self.name = name
        self.endpoint = endpoint
        self._log = folder / f"{name}.log"
        self.started_at = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU seconds used so far."""
        return cpu_seconds(self.pid)

    def log(self) -> str:
        """Return the last of what the server printed."""
        return self._log.read_text(errors="replace")[-2000:]

    def check_alive(self) -> None:
        """Raise BenchError when the server has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"the server {self.name} ended with code {code}:\n{self.log()}")

    def await_echo(self, conversation: Conversation = ECHO, limit: float = START_LIMIT) -> float:
        """Wait until the server answers one request; return the seconds since the process was started."""
        body = b"is anybody there?"
        seconds, reply = self.ask(conversation.request(body), limit)
        if len(reply) != conversation.reply_frames or reply[conversation.reply_body] != body:
            raise BenchError(f"the server {self.name} gave a wrong answer: {reply}")
        return seconds

    def ask(self, request: Sequence[bytes], limit: float = START_LIMIT) -> tuple[float, list[bytes]]:
        """Send one request and wait for its reply; return the seconds since the process was started, and the reply."""
        end = time.perf_counter() + limit
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.reconnect_ivl = 5  # in ms; the default of 100 would be measured as the server's start
            client.connect(self.endpoint)
            client.send_multipart(request)
            while not client.poll(50):
                self.check_alive()
                if time.perf_counter() > end:
                    raise BenchError(f"the server {self.name} did not answer in {limit:.0f} s:\n{self.log()}")
            return time.perf_counter() - self.started_at, client.recv_multipart()

    def await_word(self, word: str, limit: float = START_LIMIT) -> None:
        """Wait until the server has printed a word."""
        while word not in self.log():
            self.check_alive()
            if time.perf_counter() - self.started_at > limit:
                raise BenchError(f"the server {self.name} did not say {word!r} in {limit:.0f} s:\n{self.log()}")
            time.sleep(0.01)

    def await_address(self, words: str, limit: float = START_LIMIT) -> str:
        """Wait until the server has printed where it listens, behind these words; return the address."""
        mark = f"{words} address="
        while mark not in (printed := self._log.read_text(errors="replace")):
            self.check_alive()
            if time.perf_counter() - self.started_at > limit:
                raise BenchError(f"the server {self.name} did not say where it listens in {limit:.0f} s:\n{self.log()}")
            time.sleep(0.01)
        return printed.partition(mark)[2].split(maxsplit=1)[0]

    def ask_to_stop(self) -> None:
        """Have the process end, without waiting for it."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """End the process: politely, and after five seconds by force."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=60)


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Give a temporary folder with a short path (ipc addresses are limited to about 100 bytes)."""
    with tempfile.TemporaryDirectory(prefix="scale0-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def write_broker_toml(path: Path, wire: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a broker's configuration; whatever the broker keeps lies beside it."""
    own = {
        "broker": {
            "plugins": list(dict.fromkeys(name.split(".")[1] for name in tables if name.startswith("plugin."))),
            "runtime_dir": str(path.with_suffix(".run")),
            "data_dir": str(path.with_suffix(".data")),
        },
        "wire": {"implementation": wire},
    }
    lines: list[str] = []
    for name, table in {**own, **tables}.items():
        # JSON's texts, numbers and lists are TOML too
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    path.write_text("\n".join(lines))


def broker_command(configuration: Path) -> list[str]:
    """Return the command that starts a real broker under a name of its own."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    return [sys.executable, "-m", "scale0_core", "broker", "--config", str(configuration), "--name", name]


def start_broker(folder: Path, wire: str = "native", endpoint: str | None = None, **wire_table: object) -> Server:
    """Start a real broker with the echo plugin on the given wire; it may not be ready yet."""
    name = f"broker-{wire}-{uuid.uuid4().hex[:6]}"
    endpoint = endpoint or f"ipc://{folder}/{name}"
    configuration = folder / f"{name}.toml"
    tables = {"wire": {"implementation": wire, **wire_table}, "plugin.echo": {"bind": [endpoint]}}
    write_broker_toml(configuration, wire, tables)
    return Server(name, broker_command(configuration), endpoint, folder)


def start_plugin_broker(
    folder: Path, plugin: str, beside: Mapping[str, Mapping[str, Any]] | None = None, **settings: object
) -> Server:
    """Start a real broker with one plugin, on the native wire where it is there; ``settings`` is the plugin's table.

    ``beside`` has the tables of others by name.
    """
    name = f"{plugin}-{uuid.uuid4().hex[:6]}"
    endpoint = f"ipc://{folder}/{name}"
    configuration = folder / f"{name}.toml"
    wire = "native" if native_wire_exists() else "pure"
    tables = {plugin: {"bind": [endpoint], **settings}, **(beside or {})}
    write_broker_toml(configuration, wire, {f"plugin.{each}": table for each, table in tables.items()})
    return Server(name, broker_command(configuration), endpoint, folder)


@dataclass(frozen=True)
class Addresses:
    """Where a broker of the Scale0 protocol is reached."""

    frontend: str
    backend: str
    management: str


def start_network_broker(
    folder: Path, wire: str = "native", plugins: Mapping[str, Mapping[str, Any]] | None = None, **network: object
) -> tuple[Server, Addresses]:
    """Start a real broker for clients and workers, with the table [network] and, by name, the tables of plugins."""
    name = f"network-{wire}-{uuid.uuid4().hex[:6]}"
    configuration = folder / f"{name}.toml"
    addresses = Addresses(
        f"ipc://{folder}/{name}.f", f"ipc://{folder}/{name}.b", f"ipc://{configuration.with_suffix('.run')}/management"
    )
    ports = {"frontend_port": addresses.frontend, "backend_port": addresses.backend}
    tables = {f"plugin.{plugin}": table for plugin, table in (plugins or {}).items()}
    write_broker_toml(configuration, wire, {"network": {**ports, **network}, **tables})
    return Server(name, broker_command(configuration), addresses.frontend, folder), addresses


def start_multipart_task_broker(folder: Path) -> tuple[Server, Addresses]:
    """Start the baseline of a broker in Python; it has no management."""
    name = f"multipart-{uuid.uuid4().hex[:6]}"
    addresses = Addresses(f"ipc://{folder}/{name}.f", f"ipc://{folder}/{name}.b", "")
    command = [sys.executable, str(HERE / "multipart_task_broker.py"), addresses.frontend, addresses.backend]
    return Server(name, command, addresses.frontend, folder), addresses


def start_multipart_server(folder: Path) -> Server:
    """Start the baseline in Python."""
    endpoint = f"ipc://{folder}/multipart"
    return Server("multipart", [sys.executable, str(HERE / "multipart_server.py"), endpoint], endpoint, folder)


def start_c_server(folder: Path) -> Server:
    """Start the baseline in C."""
    endpoint = f"ipc://{folder}/c"
    return Server("c", [*native_command("server"), endpoint], endpoint, folder)


def start_plain_server(folder: Path) -> Server:
    """Start the baseline of heartbeats: libzmq alone, which answers as a broker does."""
    endpoint = f"ipc://{folder}/plain"
    return Server("plain", [*native_command("plain"), endpoint], endpoint, folder)


def native_wire_exists() -> bool:
    """Tell whether the core was installed with its C extension."""
    return importlib.util.find_spec("scale0_core.io._wire") is not None


# --- peers --------------------------------------------------------------------------------------------------


class NativePeers:
    """A C program that plays many peers of a server.

    It prints a line of JSON when all are connected and goes on until its stdin is closed; then it may print another.
    Leaving the ``with`` block ends it.
    """

    def __init__(self, program: str, server: Server, options: Mapping[str, object], *more: str) -> None:
        path, library = native_command(program)
        command = [path, "--library", library, *(str(part) for option in options.items() for part in option), *more]
        self._server, self._program = server, program
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            self.ready = self._line()
        except BaseException:
            self._process.kill()
            self._process.communicate(timeout=60)
            raise

    def __enter__(self) -> NativePeers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=60)

    def finish(self) -> dict[str, float]:
        """Have the program end; return what it has to say."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        return self._line()

    def check_alive(self) -> None:
        """Raise BenchError when the program has ended."""
        if self._process.poll() is not None:
            self._fail()

    def _line(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # comes, or ends, within the program's own time limit
        if not line:
            self._fail()
        said: dict[str, float] = json.loads(line)
        return said

    def _fail(self) -> NoReturn:
        assert self._process.stderr is not None
        self._server.check_alive()
        reason = self._process.stderr.readline().strip()
        raise BenchError(f"{self._program} at {self._server.name}: {reason}\n{self._server.log()}")


# --- load ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """How much to send: requests, how many of them in flight at once, over how many connections, how large.

    A ROUTER drops or refuses what exceeds a connection's high-water mark (1,000 by default, and libzmq
    notices only every 500 messages what the peer has taken): many in flight need several connections.
    """

    requests: int
    window: int = 1
    connections: int = 1
    body_size: int = 100
    time_limit: float = 60.0
    conversation: Conversation = ECHO


def drive(server: Server, load: Load) -> dict[str, float]:
    """Send the load to the server; return what the load generator measured, and ``cpu_s`` of the server."""
    before = server.cpu_seconds()
    measured = _drive_natively(server, load) if find_compiler() else _drive_in_python(server, load)
    return {**measured, "cpu_s": server.cpu_seconds() - before}


def _drive_natively(server: Server, load: Load) -> dict[str, float]:
    program, libzmq = native_command("load")
    options = {
        "--library": libzmq,
        "--endpoint": server.endpoint,
        "--count": load.requests,
        "--window": load.window,
        "--connections": load.connections,
        "--time-limit": load.time_limit,
    }
    command = [program, *(str(part) for option in options.items() for part in option)]
    command += load.conversation.arguments(load.body_size)
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=load.time_limit + 30, check=False)
    if outcome.returncode != 0:
        server.check_alive()
        raise BenchError(f"load on {server.name} failed: {outcome.stderr.strip()}\n{server.log()}")
    measured: dict[str, float] = json.loads(outcome.stdout)
    return measured


def _drive_in_python(server: Server, load: Load) -> dict[str, float]:
    """Do what load.c does, slower: where there is no compiler the server waits for the load generator."""
    conversation, deadline = load.conversation, time.perf_counter() + load.time_limit
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.rcvtimeo = 1000
        client.connect(server.endpoint)
        bodies = [number.to_bytes(8, "big").ljust(load.body_size, b".") for number in range(load.requests)]
        times: list[float] = []
        start, cpu_start = time.perf_counter(), time.process_time()
        # 100 in flight at most, as this one has one connection only
        window = min(load.window, 100, load.requests)
        sent = start
        for body in bodies[:window]:
            client.send_multipart(conversation.request(body))
        for number in range(load.requests):
            try:
                reply = client.recv_multipart()
            except zmq.Again:
                raise BenchError(f"load on {server.name}: {number} of {load.requests} answered") from None
            times.append(time.perf_counter() - sent)
            if len(reply) != conversation.reply_frames or reply[conversation.reply_body] != bodies[number]:
                raise BenchError(f"the server {server.name} gave a wrong answer")
            sent = time.perf_counter()
            if number + window < load.requests:
                client.send_multipart(conversation.request(bodies[number + window]))
            if sent > deadline:
                raise BenchError(f"load on {server.name}: not done after {load.time_limit:g} s")
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    times.sort()
    percentiles = {"p50_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}
    return {
        "requests": load.requests,
        "seconds": seconds,
        "requests_per_s": load.requests / seconds,
        "mb_per_s": load.requests * load.body_size / seconds / 1e6,
        "load_cpu_s": cpu,
        **(percentiles if window == 1 else {}),
    }


# --- rounds -------------------------------------------------------------------------------------------------


Key = TypeVar("Key")
Samples: TypeAlias = dict[Key, dict[str, list[float]]]
"""For each server and figure, one value per round."""
Measuring: TypeAlias = Callable[[], Mapping[str, float]]


def measure_rounds(
    servers: Mapping[Key, Server],
    measure_once: Callable[[Server, argparse.Namespace], Mapping[str, float]],
    options: argparse.Namespace,
    samples: Samples[Key],
) -> None:
    """Measure all servers in turn, ``options.rounds`` times, each time beginning with another one."""
    measures = {key: partial(measure_once, server, options) for key, server in servers.items()}
    take_turns(measures, options.rounds, samples)


def take_turns(measures: Mapping[Key, Measuring], rounds: int, samples: Samples[Key]) -> None:
    """Measure all in turn, so many times, each time beginning with another one."""
    keys = list(measures)
    for turn in range(rounds):
        first = turn % len(keys)
        for key in keys[first:] + keys[:first]:
            for figure, value in measures[key]().items():
                samples.setdefault(key, {}).setdefault(figure, []).append(value)


def ratio(name: str, above: Sequence[float], below: Sequence[float]) -> Figures:
    """Give the median of the ratios within a round, and between which two the middle half of them lies."""
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {name: round(middle, 4), f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}


def take_sizes(options: argparse.Namespace, full: Mapping[str, int], quick: Mapping[str, int]) -> None:
    """Fill in the sizes that the command line does not name."""
    for name, size in (quick if options.quick else full).items():
        setattr(options, name, getattr(options, name, None) or size)


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A figure that must be at most (or at least) a limit."""

    figure: str
    limit: float
    meaning: str
    at_least: bool = False

    def verdict(self, value: object) -> str:
        """Say ``ok``, ``missed`` or ``not measured``."""
        if not isinstance(value, (int, float)):
            return "not measured"
        return "ok" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"


@dataclass
class Report:
    """What a bench found: figures by name, notes for the reader, and the targets they are held against."""

    title: str
    targets: Sequence[Target] = ()
    figures: Figures = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def print_targets(self) -> None:
        """Print each target beside its figure."""
        rows = [
            [
                target.figure,
                show(self.figures.get(target.figure)),
                f"{'>=' if target.at_least else '<='} {target.limit:g}",
                target.verdict(self.figures.get(target.figure)),
                target.meaning,
            ]
            for target in self.targets
        ]
        print_table(["figure", "measured", "target", "", "what it is"], rows)

    def missed(self) -> bool:
        """Tell whether any target is missed; what was not measured is not missed."""
        return any(target.verdict(self.figures.get(target.figure)) == "missed" for target in self.targets)


def show(value: object) -> str:
    """Write a figure with three digits that count."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in columns as wide as their content."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every bench has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object with all figures as the last line")
    parser.add_argument("--quick", action="store_true", help="a smaller run, under 60 seconds in all")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return parser


def surroundings() -> Figures:
    """Say what the figures were measured on."""
    return {
        "python": sys.version.split()[0],
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "processor": processor_model(),
        "cores": os.cpu_count(),
    }


def _end_by_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that the with blocks end what was started


def run_bench(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Report],
    print_details: Callable[[Mapping[str, Any]], None] | None = None,
) -> int:
    """Run one bench from the command line and print its report; return the exit code."""
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end_by_signal)
    began = time.perf_counter()
    try:
        report = measure(options)
    except (BenchError, NotMeasured, subprocess.TimeoutExpired) as problem:
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        return 2
    report.figures["bench_seconds"] = round(time.perf_counter() - began, 1)
    figures = {**report.figures, **surroundings(), "quick": options.quick}
    print(f"{report.title}\n")
    if print_details is not None:
        print_details(report.figures)
    report.print_targets()
    for note in report.notes:
        print(f"note: {note}")
    print(", ".join(f"{name} {value}" for name, value in surroundings().items()))
    if options.json:
        print(json.dumps({**figures, "targets_missed": report.missed()}))
    return 1 if options.check and report.missed() else 0
