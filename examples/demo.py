"""A broker with every plugin that is installed, on embedded defaults.

Prints where it can be reached and what to try next, and runs until Ctrl-C. With ``--once`` it plays a short tour,
checks every answer, and ends with 0 when all were right. In the end it draws its own traffic, when Spark is installed.
"""

# does I/O: it is an application

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from scale0_core.api import Scale0Error
from scale0_core.client import Client, Worker
from scale0_core.testing import ProcessBroker
from scale0_majordomo import Client as MajordomoClient
from scale0_majordomo import Worker as MajordomoWorker
from scale0_musicquest.client import MusicClient
from scale0_musicquest.tunes import make_tunes
from scale0_zpipes import Pipe

TIMEOUT_MS = 10_000
PLUGINS = ["echo", "discovery", "zpipes", "majordomo", "musicquest-broker", "musicquest-server", "telemetry"]
INSTALL_SPARK = "pip install 'scale0-spark[jre,report]' for a chart of this traffic"
JOB_SECONDS = 300
"""How long a job of Spark may take; its start alone takes seconds."""


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="play a tour that checks itself, then end")
    parser.add_argument("--name", help="the broker's name (default: demo, with --once one of its own)")
    parser.add_argument("--report", type=Path, default=report_folder(), help="where charts go (default: %(default)s)")
    options = parser.parse_args()
    name = options.name or (f"demo-{os.getpid()}" if options.once else "demo")
    report = options.report.absolute()
    with empty_folder() as folder:
        chart = Chart(folder / "events", report)
        with ExitStack() as started:
            try:
                broker = start(started, name, settings_of(folder, local=options.once))
                for number in (1, 2):  # two more music servers, so that there is a tree
                    own = music_settings(folder, f"songs-{number}", broker.address("musicquest-broker", "servers"))
                    start(started, f"{name}-music-{number}", {**own, "broker.plugins": ["musicquest-server"]})
            except AssertionError as error:
                print(error, file=sys.stderr)
                return 1
            show(broker)
            if options.once:
                return tour(broker, chart)
            wait(broker, chart)
        say_goodbye(chart)
        return 0


def start(started: ExitStack, name: str, settings: Mapping[str, Any]) -> ProcessBroker:
    """Start a broker that ends with the demo."""
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    broker = ProcessBroker(name, Path(), options)
    started.callback(broker.stop)
    return broker


def settings_of(folder: Path, *, local: bool) -> dict[str, Any]:
    """Give the settings of the demo's broker; a tour uses no port, which somebody else may have."""
    settings: dict[str, Any] = {
        "broker.data_dir": f"{folder}/records",
        "broker.plugins": PLUGINS,
        "plugin.telemetry.folder": f"{folder}/events",
        "plugin.telemetry.segment_seconds": 2.0,  # so that what happened can be looked at soon
    }
    if not local:
        return {**settings, "plugin.musicquest-server.music": make_songs(folder, "songs", 3)}
    music = {f"bind_{who}": [f"ipc://{folder}/music-{who}"] for who in ("servers", "clients")}
    settings |= {f"plugin.musicquest-broker.{key}": value for key, value in music.items()}
    settings |= {"plugin.majordomo.bind": [f"ipc://{folder}/majordomo"]}
    return {**settings, **music_settings(folder, "songs", music["bind_servers"][0], songs=3)}


def music_settings(folder: Path, name: str, announce: str, songs: int = 5) -> dict[str, Any]:
    """Give the settings of a music server with songs of its own, at ports that are free."""
    settings = {
        "music": make_songs(folder, name, songs),
        "clients": ["tcp://127.0.0.1:*"],
        "children": ["tcp://127.0.0.1:*"],
        "broker": announce,
    }
    return {
        "broker.data_dir": f"{folder}/records-{name}",
        **{f"plugin.musicquest-server.{key}": value for key, value in settings.items()},
    }


def make_songs(folder: Path, name: str, count: int) -> str:
    """Make tunes for a music server; each server has another choice of them."""
    place = folder / name
    tunes = make_tunes(place, count)
    if name.endswith("1"):
        tunes[0].unlink()
    if name.endswith("2"):
        tunes[1].unlink()
    return str(place)


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Go to a folder of the demo's own, where neither a broker.toml nor the sources of Scale0 stand in the way."""
    os.environ.pop("SCALE0_CONFIG", None)
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="scale0-demo-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def show(broker: ProcessBroker) -> None:
    """Print the addresses of all services."""
    print(f"Scale0 broker {broker.name!r} is running, with the {broker.wait_for('ready')['wire']} wire.\n")
    for service, sockets in broker.addresses.items():
        for socket, addresses in sockets.items():
            for address in addresses:
                print(f"  {service:17} {socket:10} {address}")
    print()


def wait(broker: ProcessBroker, chart: Chart) -> None:
    """Tell what to try, and wait for Ctrl-C."""
    scale0 = Path(sys.executable).with_name("scale0")
    print("Try in another terminal:\n")
    tries = [
        (f"echo -b {broker.name} hello", "a request and its answer"),
        (f"echo -b {broker.name} --later 2000 hello", "the same, two seconds later"),
        (f"serve --broker {broker.name} upper -- tr a-z A-Z", "a worker out of a shell command"),
        (f"call --broker {broker.name} upper hello", "a call to that worker"),
        (f"services -b {broker.name}", "who offers what"),
        (f"zpipes write -b {broker.name} x < README.md", "put a file into a pipe"),
        (f"zpipes read -b {broker.name} x", "and take it out"),
        ("majordomo worker upper -- tr a-z A-Z", "a worker of Majordomo"),
        ("majordomo call upper hello", "a call to it"),
        ("musicquest search a", "songs of three servers"),
        ("musicquest play", "a player on the terminal"),
        ("musicquest web", "and one in the browser"),
        (f"status -b {broker.name}", "how the broker is doing"),
        ("plugins ls", "what is installed"),
        ("plugin new weather", "write a plugin of your own"),
        ("doctor", "is this machine set up well?"),
    ]
    if chart.possible:
        trends = f"spark trends --seconds --events {chart.events} --out {chart.report}"
        tries += [(trends, "how much was asked of whom so far"), (f"spark report --out {chart.report}", "as charts")]
    for arguments, what in tries:
        print(f"  {scale0} {arguments:46} # {what}")
    print("\nCtrl-C ends it.", flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    print("\nStopping.", flush=True)


# --- a chart of the demo's own traffic --------------------------------------------------------------------------------


def report_folder() -> Path:
    """Give where charts go: they are to be looked at when the demo is over."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scale0" / "demo"


class Chart:
    """Makes tables and charts out of the events that the demo's broker has written."""

    def __init__(self, events: Path, report: Path) -> None:
        self.events, self.report = events, report

    @property
    def possible(self) -> bool:
        """Whether what draws it is installed."""
        return all(importlib.util.find_spec(name) for name in ("scale0_spark", "pyspark", "matplotlib"))

    def stored(self) -> int:
        """Count the tasks and requests in finished files; names of those still open begin with a dot."""
        from pyarrow.parquet import read_metadata

        files = [path for kind in ("task", "rpc") for path in self.events.glob(f"date=*/kind={kind}/[!.]*.parquet")]
        return sum(read_metadata(path).num_rows for path in files)

    def draw(self) -> Path:
        """Have Spark compute the trends, and draw them."""
        run_job("trends", "--seconds", "--events", str(self.events), "--out", str(self.report))
        run_job("report", "--out", str(self.report))
        page = self.report / "report.html"
        expect((True, True), (page.exists(), any((self.report / "charts").glob("*.png"))))
        return page


def run_job(*arguments: str) -> None:
    """Run a command of the Spark plugin, and insist that it ends well."""
    command = [sys.executable, "-m", "scale0_core", "spark", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=JOB_SECONDS, check=False)
    if ended.returncode:
        raise AssertionError(f"scale0 spark {arguments[0]} ended with {ended.returncode}: {ended.stderr[-2000:]}")


def say_goodbye(chart: Chart) -> None:
    """Draw what happened while somebody tried the demo, if there was anything."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not chart.stored():
        return
    if not chart.possible:
        print(INSTALL_SPARK)
        return
    print("Drawing a chart of this run's traffic; Ctrl-C leaves it out.", flush=True)
    try:
        print(f"The chart is in {chart.draw()}")
    except KeyboardInterrupt:
        print("\nLeft out.")
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"There is no chart: {error}", file=sys.stderr)


# --- the tour ---------------------------------------------------------------------------------------------------------


def tour(broker: ProcessBroker, chart: Chart) -> int:
    """Play all steps; give 0 when every one was right."""
    steps: list[Callable[[ProcessBroker], str]] = [
        echo_at_once,
        echo_later,
        echo_digest,
        echo_many,
        wrong_requests_are_answered,
        command_line_talks_to_it,
        worker_and_client,
        worker_dies_and_another_answers,
        services_are_known,
        pipes_keep_chunks,
        pipes_between_commands,
        majordomo_serves_both,
        music_is_found_and_fetched,
        partial(traffic_becomes_a_chart, chart),
        disabled_is_silent,
        one_broker_of_a_name,
        ends_cleanly,
    ]
    failed = 0
    for step in steps:
        title = name_of(step).replace("_", " ")
        try:
            print(f"  ok    {title}: {step(broker)}", flush=True)
        except (AssertionError, Scale0Error, subprocess.SubprocessError, zmq.Again) as error:
            failed += 1
            print(f"  WRONG {title}: {error!r}", flush=True)
    print(f"\n{len(steps) - failed} of {len(steps)} steps were right.")
    return 1 if failed else 0


def name_of(step: Callable[[ProcessBroker], str]) -> str:
    """Give the name of a step's function."""
    return name_of(step.func) if isinstance(step, partial) else step.__name__


@contextmanager
def connected(broker: ProcessBroker) -> Iterator[zmq.Socket[bytes]]:
    """Give a socket that is connected to the echo service."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(broker.address("echo", "requests"))
        yield socket


def ask(socket: zmq.Socket[bytes], *frames: bytes) -> list[bytes]:
    """Send a request and wait for its answer."""
    socket.send_multipart(frames)
    return socket.recv_multipart()


def expect(expected: object, actual: object) -> None:
    """Insist on an answer."""
    if expected != actual:
        raise AssertionError(f"expected {expected!r}, got {actual!r}")


def echo_at_once(broker: ProcessBroker) -> str:
    """Ask for an echo."""
    with connected(broker) as socket:
        expect([b"hello", b"world"], ask(socket, b"ECHO", b"", b"hello", b"world"))
    return "two frames came back"


def echo_later(broker: ProcessBroker) -> str:
    """Ask for an echo after a while."""
    with connected(broker) as socket:
        start = time.monotonic()
        expect([b"hello"], ask(socket, b"LATER", b"200", b"hello"))
        waited = time.monotonic() - start
        if waited < 0.2:
            raise AssertionError(f"too early, after {waited:.3f} s")
    return f"came back after {waited * 1000:.0f} ms"


def echo_digest(broker: ProcessBroker) -> str:
    """Have a thread of the broker compute a digest."""
    body = os.urandom(500_000)
    with connected(broker) as socket:
        expect([hashlib.sha256(body).hexdigest().encode()], ask(socket, b"DIGEST", b"", body))
    return "SHA-256 of 500 kB, made by a job"


def echo_many(broker: ProcessBroker) -> str:
    """Send many requests before reading the answers."""
    count = 1000
    with connected(broker) as socket:
        for number in range(count):
            socket.send_multipart([b"ECHO", b"", b"%d" % number])
        expect([b"%d" % number for number in range(count)], [socket.recv() for _ in range(count)])
    return f"{count} requests in flight, answered in order"


def wrong_requests_are_answered(broker: ProcessBroker) -> str:
    """Send nonsense."""
    with connected(broker) as socket:
        answer = ask(socket, b"SING", b"", b"x")
        expect([b"ERROR", b"501"], answer[:2])
    return answer[2].decode()


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``scale0`` as a user would."""
    command = [sys.executable, "-m", "scale0_core", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)


def command_line_talks_to_it(broker: ProcessBroker) -> str:
    """Use the command of the echo plugin."""
    ended = run_command("echo", "-b", broker.name, "hello")
    expect((0, "hello"), (ended.returncode, ended.stdout.strip()))
    return "scale0 echo hello"


def worker_and_client(broker: ProcessBroker) -> str:
    """Offer a service and call it."""
    worker = Worker(broker.name)

    @worker.service("upper")
    def upper(text: bytes) -> bytes:
        return text.upper()

    with worker, Client(broker.name, timeout=10) as client:
        worker.wait_ready()
        expect((b"HELLO",), client.call("upper", b"hello"))
        count = 1000
        words = [b"%d" % number for number in range(count)]
        expect(words, [reply.body for reply in client.map("upper", words)])
    return f"a worker in a few lines, {count} calls answered in order"


def worker_dies_and_another_answers(broker: ProcessBroker) -> str:
    """Kill the worker that has a task, and see it done by another."""
    command = [sys.executable, "-m", "scale0_core", "serve", "--broker", broker.name]
    slow = subprocess.Popen([*command, "--identity", "slow", "work", "--", "sleep", "60"], stderr=subprocess.DEVNULL)
    try:
        with Client(broker.name, timeout=20) as client:
            wait_for_worker(broker, "slow")
            answer = client.submit("work", b"x", retry=True)
            wait_for_worker(broker, "slow", busy=True)
            with Worker(broker.name, identity="quick") as worker:
                worker.add("work", lambda payload: b"done")
                worker.wait_ready()
                slow.kill()
                expect((b"done",), answer.result())
    finally:
        slow.kill()
        slow.wait()
    return "kill -9, and the task that may be repeated went to the other one"


def wait_for_worker(broker: ProcessBroker, identity: str, *, busy: bool = False) -> None:
    """Wait until the broker knows a worker, and until it has a task."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        listed = json.loads(run_command("clients", "-b", broker.name, "-o", "json").stdout)["items"]
        if any(row["identity"] == identity and (row["open_tasks"] or not busy) for row in listed):
            return
    raise AssertionError(f"the worker {identity} did not come")


def services_are_known(broker: ProcessBroker) -> str:
    """Ask the broker who offers what."""
    listed = json.loads(run_command("services", "-b", broker.name, "-o", "json").stdout)["items"]
    names = {row["service"] for row in listed}
    expect({"echo", "upper", "work"}, {"echo", "upper", "work"} & names)
    return ", ".join(sorted(names))


def pipes_keep_chunks(broker: ProcessBroker) -> str:
    """Write to a pipe, close it, and read it later."""
    count = 10_000
    with Pipe.open("demo", "w", broker=broker.name) as pipe:
        for number in range(count):
            pipe.write(b"%d" % number)
    with Pipe.open("demo", "r", broker=broker.name) as pipe:
        expect([b"%d" % number for number in range(count)], list(pipe.drain()))
    return f"{count} chunks written, closed, read in order"


def pipes_between_commands(broker: ProcessBroker) -> str:
    """Copy bytes through a pipe with two commands."""
    command = [sys.executable, "-m", "scale0_core", "zpipes"]
    body = os.urandom(5_000_000)
    subprocess.run([*command, "write", "copy", "-b", broker.name], input=body, check=True, timeout=60)
    ended = subprocess.run(
        [*command, "read", "copy", "-b", broker.name], stdout=subprocess.PIPE, check=True, timeout=60
    )
    expect(hashlib.sha256(body).hexdigest(), hashlib.sha256(ended.stdout).hexdigest())
    return "5 MB through scale0 zpipes write and read"


def majordomo_serves_both(broker: ProcessBroker) -> str:
    """Offer a service by Majordomo, and call it from both worlds."""
    place = broker.address("majordomo", "requests")
    worker = MajordomoWorker(place)
    worker.add("reverse", lambda request: bytes(reversed(request.body)))
    with worker, MajordomoClient(place, timeout=10) as client, Client(broker.name, timeout=10) as scale0_client:
        worker.wait_ready()
        expect(b"olleh", client.call("reverse", b"hello").body)
        expect(b"HELLO", with_upper(broker, client))
        wait_for_worker(broker, f"{broker.name}.majordomo")
        expect(b"dlrow", scale0_client.call("reverse", b"world").body)
        for caller in (client, scale0_client):  # what a plugin hosts is a service like any other
            expect(b"hello", caller.call("echo", b"ECHO", b"", b"hello").body)
    return "workers of MDP and of Scale0, each called from the other side, and a plugin from both"


def with_upper(broker: ProcessBroker, client: MajordomoClient) -> bytes:
    """Call a Scale0 worker through Majordomo."""
    with Worker(broker.name) as worker:
        worker.add("shout", bytes.upper)
        worker.wait_ready()
        return client.call("shout", b"hello").body


def music_is_found_and_fetched(broker: ProcessBroker) -> str:
    """Find a song that only another server has, and fetch it."""
    with MusicClient(broker.address("musicquest-broker", "clients"), timeout=20) as client:
        deadline = time.monotonic() + 20
        while len(servers := client.servers()) < 3 or not (hits := client.search(artist="scale0", fresh=True).hits)[4:]:
            expect(True, time.monotonic() < deadline)
        hit = hits[-1]
        path = client.download(hit, Path("song.wav"))
        expect(hit.song.sha256, hashlib.sha256(path.read_bytes()).hexdigest())
    return f"{len(hits)} songs in a tree of {len(servers)} servers; {hit.song.title!r} was fetched and is whole"


def traffic_becomes_a_chart(chart: Chart, broker: ProcessBroker) -> str:
    """Have Spark draw what this step and those before have asked for."""
    make_waves(broker)
    deadline = time.monotonic() + 60
    while (stored := chart.stored()) < 1000:  # as many tasks as one of the steps had, and the files are closed soon
        expect(True, time.monotonic() < deadline)
        time.sleep(0.2)
    if not chart.possible:
        return f"{stored} events are stored; {INSTALL_SPARK}"
    return f"{stored} events, drawn in {chart.draw()}"


def make_waves(broker: ProcessBroker) -> None:
    """Ask more and less for some seconds, so that there is something to see."""
    with Worker(broker.name) as worker, Client(broker.name, timeout=10) as client:
        worker.add("upper", bytes.upper)
        worker.add("lower", bytes.lower)
        worker.wait_ready()
        for turn in range(24):
            for service, many in (("upper", 31 + 30 * math.sin(turn / 3)), ("lower", 31 + 30 * math.cos(turn / 2))):
                words = [b"Wave"] * round(many)
                expect(len(words), len(list(client.map(service, words))))
            time.sleep(0.25)


def disabled_is_silent(broker: ProcessBroker) -> str:
    """Disable the broker, find it silent, enable it again."""
    expect(0, run_command("disable", "-b", broker.name).returncode)
    expect(1, run_command("status", "-b", broker.name).returncode)
    address = ("-b", broker.address("echo", "requests"))
    expect(75, run_command("echo", "hello", *address, "--timeout", "0.3").returncode)
    expect(0, run_command("enable", "-b", broker.name).returncode)
    expect(0, run_command("status", "-b", broker.name).returncode)
    return "its services do not answer until it is enabled"


def one_broker_of_a_name(broker: ProcessBroker) -> str:
    """Try to start a second broker of the same name."""
    ended = run_command("broker", "--name", broker.name)
    expect(69, ended.returncode)
    return "a second one says so and ends with 69"


def ends_cleanly(broker: ProcessBroker) -> str:
    """End the broker by TERM."""
    expect(0, broker.stop())
    path = Path(broker.address("echo", "requests").removeprefix("ipc://"))
    expect(False, path.exists())
    return "exit code 0, no file left behind"


if __name__ == "__main__":
    sys.exit(main())
