"""Forks workers that are to be killed: a process that has imported what they need, and has no threads or sockets.

``python zygote.py BROKER CONTROL`` obeys lines on its standard input and answers each with one: ``fork KIND`` with the
process's id, ``kill PID`` once it is gone. When its input ends, so do all it has forked.

A worker connects to CONTROL, a unix socket, tells its id, and then of each request that it begins; it answers the
request when it is told to go on.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

import zmq

from scale0_majordomo.client import Worker

SERVICE = "job"
KINDS = ("mdp01", "mdp02", "own")
CREDIT = 3
"""What a worker of our own dialect has in hand at most; it begins one after the other."""
HEARTBEAT = 2.0


class Control:
    """The line to whoever decides how this worker ends."""

    def __init__(self, path: str, kind: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self._tell(f"{os.getpid()} {kind}")

    def answer(self, body: bytes) -> bytes:
        """Tell that a request was begun, and give its reply when it is wanted."""
        self._tell(f"begun {body.decode()}")
        if not self._lines.readline():
            os._exit(0)  # nobody decides any more
        return body + b" done"

    def _tell(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")


def serve(kind: str, broker: str, control: Control) -> None:
    """Be a worker, for ever."""
    if kind == "own":
        worker = Worker(broker, credit=CREDIT, threads=1, heartbeat=HEARTBEAT, liveness=30)
        worker.add(SERVICE, lambda request: control.answer(request.body))
        worker.run()
    else:
        serve_stock(kind, broker, control)


def serve_stock(kind: str, broker: str, control: Control) -> None:
    """Be a worker as the RFCs have it, without any library of ours."""
    old = kind == "mdp01"
    head = [b"", b"MDPW01"] if old else [b"MDPW02"]
    final, heartbeat = (b"\x03", b"\x04") if old else (b"\x04", b"\x05")
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(broker)
    dealer.send_multipart([*head, b"\x01", SERVICE.encode()])
    while True:
        if not dealer.poll(HEARTBEAT * 1000):
            dealer.send_multipart([*head, heartbeat])
            continue
        command, *rest = dealer.recv_multipart()[len(head) :]
        if command == b"\x02":
            address, _, body = rest
            dealer.send_multipart([*head, final, address, b"", control.answer(body)])
        elif command != heartbeat:
            os._exit(3)  # the broker has sent a worker away that did nothing wrong


def fork(kind: str, broker: str, control: str) -> int:
    """Make a worker; give its process's id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)  # the pipes are its parent's
        os.dup2(null, 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        serve(kind, broker, Control(control, kind))
    finally:
        os._exit(4)


def main() -> None:
    """Obey until the input ends."""
    broker, control = sys.argv[1:]
    alive: set[int] = set()
    try:
        for line in sys.stdin:
            command, argument = line.split()
            if command == "fork":
                pid = fork(argument, broker, control)
                alive.add(pid)
            else:
                pid = int(argument)
                end(pid, alive)
            print(pid, flush=True)
    finally:
        for pid in list(alive):
            end(pid, alive)


def end(pid: int, alive: set[int]) -> None:
    """Kill a worker, unless that was done; only those that were forked here, and not reaped, have such an id."""
    if pid in alive:
        alive.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
