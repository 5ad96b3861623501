"""A worker that tests may kill: serves a broker, and writes down every task before it does anything else with it.

``python worker.py ADDRESS IDENTITY RECORDS FOLDER [INTERVAL [CONCURRENCY [PREFETCH]]]``

RECORDS is a file of JSON lines to which several workers may append; a line that was written survives kill -9. Every
service takes the id of its task as the first frame and answers with the id, the worker's identity and its process.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

from scale0_core.client import Worker

CHUNK = 0.9
"""usleep takes less than a second."""


class Records:
    """A file of lines, each written by one call: they neither mix nor get lost when the process is killed."""

    def __init__(self, path: str, identity: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._identity = identity

    def write(self, event: str, **fields: object) -> None:
        """Add a line; the clock is the machine's, the same for all processes."""
        line = {"event": event, "identity": self._identity, "pid": os.getpid(), "at": time.monotonic(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def hold_the_gil(seconds: float) -> None:
    """Do nothing in a way that lets no other thread of Python run."""
    end = time.monotonic() + seconds
    usleep = ctypes.PyDLL(None).usleep  # a PyDLL keeps the GIL, a CDLL lets go of it
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)  # between two chunks nobody has a turn either
    try:
        while (left := end - time.monotonic()) > 0:
            usleep(int(min(left, CHUNK) * 1e6))
    finally:
        sys.setswitchinterval(interval)


def main() -> None:
    """Serve until TERM."""
    address, identity, path, folder, *numbers = sys.argv[1:]
    interval, concurrency, prefetch = (
        float(number) for number in (*numbers, *("0.3", "1", "0")[len(numbers) :])
    )  # fmt: skip
    records = Records(path, identity)
    worker = Worker(
        address, identity=identity, heartbeat_interval=interval, config_dir=folder, concurrency=int(concurrency),
        prefetch=int(prefetch),
    )  # fmt: skip

    def begun(service: str, task: bytes) -> tuple[bytes, bytes, bytes]:
        session = worker._session
        records.write(
            "begin", task=task.decode(), service=service, connection=session.connection, version=worker.config_version
        )
        return task, identity.encode(), str(os.getpid()).encode()

    @worker.service("echo")
    def echo(task: bytes) -> tuple[bytes, ...]:
        return begun("echo", task)

    @worker.service("sleep")
    def sleep(task: bytes, seconds: bytes, only: bytes = b"") -> tuple[bytes, ...]:
        """Take some time; with ``only``, when this is the worker of that identity."""
        answer = begun("sleep", task)
        if only in (b"", identity.encode()):
            time.sleep(float(seconds))
        return answer

    @worker.service("hold")
    def hold(task: bytes, seconds: bytes) -> tuple[bytes, ...]:
        answer = begun("hold", task)
        hold_the_gil(float(seconds))
        return answer

    def tell_ready() -> None:
        worker.wait_ready(60)
        records.write("ready", connection=worker._session.connection)

    worker.start()
    threading.Thread(target=tell_ready, daemon=True).start()
    worker.run()
    records.write("left")


if __name__ == "__main__":
    main()
