"""Peers that do what no client of ours does, at a broker in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import zmq

MANY = 120_000
IDLE_SECONDS = 2.0
LONG_MS = 20_000
TICK = 100
"""Ticks of the CPU's clock a second, on every Linux."""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def ask(client: zmq.Socket[bytes], body: bytes) -> float:
    begun = time.perf_counter()
    client.send_multipart([b"ECHO", b"", body])
    assert client.recv() == body
    return time.perf_counter() - begun


def test_a_client_that_never_reads_costs_an_idle_broker_and_its_other_clients_nothing(
    scale0_broker, context, implementation
):
    broker = scale0_broker(
        ["echo"],
        {"wire": {"implementation": implementation}, "plugin": {"echo": {"bind": ["ipc://{runtime}/echo"]}}},
    )
    address = broker.addresses["echo"]["requests"][0]
    deaf, other = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    deaf.setsockopt(zmq.RCVHWM, 1)
    other.setsockopt(zmq.RCVTIMEO, LONG_MS)
    for socket in (deaf, other):
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
    for _ in range(MANY):
        deaf.send_multipart([b"ECHO", b"", b"ping"])
    for _ in range(100):  # by then it has taken what was still on its way
        ask(other, b"x")
    begun, before = time.perf_counter(), cpu_seconds(broker.process.pid)
    time.sleep(IDLE_SECONDS)  # what an idle broker costs shows only over a time
    used = (cpu_seconds(broker.process.pid) - before) / (time.perf_counter() - begun)
    latencies = [ask(other, b"%d" % number) for number in range(30)]
    assert used < 0.1, f"{used:.2f} of a core while idle"
    assert median(latencies) < 0.05, f"{median(latencies) * 1000:.0f} ms"


def test_half_a_message_on_the_publishers_socket_ends_nothing(scale0_broker, context, implementation):
    broker = scale0_broker(
        ["echo"],
        {"wire": {"implementation": implementation}, "plugin": {"echo": {"bind": ["ipc://{runtime}/echo"]}}},
    )
    hostile = context.socket(zmq.XSUB)
    hostile.connect(broker.addresses["scale0"]["config"][0])
    hostile.send(b"\1topic")
    for _ in range(20):
        hostile.send_multipart([b"junk", b"\1topic"])
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RCVTIMEO, LONG_MS)
    client.connect(broker.addresses["echo"]["requests"][0])
    for number in range(50):
        ask(client, b"%d" % number)
    assert broker.stop() == 0
    assert not [line for line in broker.log if line.get("level") == "error"]
