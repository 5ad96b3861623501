"""A broker with every plugin that is installed, on embedded defaults.

Prints where it can be reached and what to try next, and runs until Ctrl-C. With ``--once`` it plays a short tour,
checks every answer, and ends with 0 when all were right.
"""

# does I/O: it is an application

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from scale0_core.testing import ProcessBroker

TIMEOUT_MS = 10_000


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="play a tour that checks itself, then end")
    parser.add_argument("--name", help="the broker's name (default: demo, with --once one of its own)")
    options = parser.parse_args()
    name = options.name or (f"demo-{os.getpid()}" if options.once else "demo")
    try:
        broker = ProcessBroker(name, Path(), [])
    except AssertionError:
        return run_command("broker", "--name", name).returncode  # it tells why better than we could
    try:
        show(broker)
        return tour(broker) if options.once else wait(broker)
    finally:
        broker.stop()


def show(broker: ProcessBroker) -> None:
    """Print the addresses of all services."""
    print(f"Scale0 broker {broker.name!r} is running, with the {broker.wait_for('ready')['wire']} wire.\n")
    for service, sockets in broker.addresses.items():
        for socket, addresses in sockets.items():
            for address in addresses:
                print(f"  {service:12} {socket:12} {address}")
    print()


def wait(broker: ProcessBroker) -> int:
    """Tell what to try, and wait for Ctrl-C."""
    scale0 = Path(sys.executable).with_name("scale0")
    print("Try in another terminal:\n")
    for arguments, what in (
        (f"echo --name {broker.name} hello", "a request and its answer"),
        (f"echo --name {broker.name} --later 2000 hello", "the same, two seconds later"),
        ("plugins ls", "what is installed"),
        ("plugin new weather", "write a plugin of your own"),
        ("doctor", "is this machine set up well?"),
    ):
        print(f"  {scale0} {arguments:42} # {what}")
    print("\nCtrl-C ends it.", flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    print("\nStopping.")
    return 0


# --- the tour ---------------------------------------------------------------------------------------------------------


def tour(broker: ProcessBroker) -> int:
    """Play all steps; give 0 when every one was right."""
    steps: list[Callable[[ProcessBroker], str]] = [
        echo_at_once,
        echo_later,
        echo_digest,
        echo_many,
        wrong_requests_are_answered,
        command_line_talks_to_it,
        one_broker_of_a_name,
        ends_cleanly,
    ]
    failed = 0
    for step in steps:
        title = step.__name__.replace("_", " ")
        try:
            print(f"  ok    {title}: {step(broker)}", flush=True)
        except (AssertionError, zmq.Again) as error:
            failed += 1
            print(f"  WRONG {title}: {error!r}", flush=True)
    print(f"\n{len(steps) - failed} of {len(steps)} steps were right.")
    return 1 if failed else 0


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
    ended = run_command("echo", "--name", broker.name, "hello")
    expect((0, "hello"), (ended.returncode, ended.stdout.strip()))
    return "scale0 echo hello"


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
