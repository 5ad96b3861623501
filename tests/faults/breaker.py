"""A peer that breaks every connection between the frames of a message; it speaks ZMTP itself, since libzmq does not."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

TIMES = 1000
PATIENCE = 90.0
WORDS = {
    "worker": (b"S0W01", b"TASK"),
    "majordomo": (b"", b"MDPC02"),
    "majordomo_worker": (b"", b"MDPW02", b"\2"),
    "spark_pipes": (b"INFO", b'{"made": 1, "first": 1, "next": 1, "links": 0, "durable": false, "groups": {}}'),
}
"""What clients are told, so that they go on reading."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
PARTNERS = {b"DEALER": b"ROUTER", b"REQ": b"ROUTER", b"SUB": b"PUB", b"ROUTER": b"DEALER"}
MORE, LAST = 1, 0


def frame(data: bytes, flag: int) -> bytes:
    """Write a short frame."""
    return struct.pack("BB", flag, len(data)) + data


def message(*frames: bytes) -> bytes:
    """Write a whole message."""
    return b"".join(frame(data, MORE) for data in frames[:-1]) + frame(frames[-1], LAST)


def ready(kind: bytes) -> bytes:
    """Write the handshake of a socket."""
    named = b"".join(
        struct.pack("B", len(name)) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", kind), (b"Identity", b""))
    )
    return frame(b"\x05READY" + named, 4)


class Breaker:
    """Listens, says ``count`` messages and a half to whoever connects, and hangs up."""

    def __init__(self, *words: bytes, count: int = 100) -> None:
        self.words = words
        self.broken = 0
        self._burst = message(*words) * count + b"".join(frame(word, MORE) for word in words)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.address = "tcp://127.0.0.1:{1}".format(*self._listening.getsockname())
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Breaker:
        return self

    def __exit__(self, *_: Any) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5.0)
                # one that leaves before its turn does not count
                with contextlib.suppress(OSError, LookupError), peer.makefile("rb") as reader:
                    self._talk(peer, reader)
                    self.broken += 1

    def _talk(self, peer: socket.socket, reader: IO[bytes]) -> None:
        peer.sendall(GREETING)
        reader.read(64)
        _, size = (*reader.read(2), 0, 0)[:2]
        said = reader.read(size)
        _, _, named = said.partition(b"Socket-Type\0\0\0")
        kind = named[1 : 1 + named[0]]
        peer.sendall(ready(PARTNERS[kind]) + self._burst)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):  # what it sends until it notices; unread, it would be answered with a reset
            pass


def break_clients(kind: str, folder: Path, *plant: str) -> int:
    """Break the connections of many clients, and return how their process ended (see ``unlucky.py``)."""
    words = *WORDS.get(kind.removesuffix("_aio"), (b"S0C01", b"TASKREPLY")), *[b"frame"] * 10
    program = str(Path(__file__).with_name("unlucky.py"))
    with Breaker(*words) as breaker:
        command = [sys.executable, program, kind, breaker.address, str(folder), *plant]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                end = time.monotonic() + PATIENCE
                while breaker.broken < TIMES and process.poll() is None:
                    assert time.monotonic() < end, f"only {breaker.broken} connections of {kind} in time"
                    time.sleep(0.02)
                said = process.communicate(timeout=30)[0] if process.poll() is None else b""
            finally:
                process.kill()
        assert process.returncode != 0 or said.split() == [b"started", b"lives"]
        return process.returncode
