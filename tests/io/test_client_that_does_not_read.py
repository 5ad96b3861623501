"""A client that does not read its answers must cost the others nothing: a real broker, attacked from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import zmq

from scale0_core.client import Client
from scale0_core.protocol import messages as wire
from scale0_core.testing import BrokerStarter

PINGS = 150_000
IDLE_SECONDS = 1.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_answers_that_nobody_reads_cost_no_cpu_and_nobody_else_waits(scale0_broker: BrokerStarter):
    broker = scale0_broker([])
    pid = broker.process.pid
    address = broker.address("scale0", "frontend")
    with zmq.Context() as context, context.socket(zmq.DEALER) as mute, Client(address) as client:
        mute.linger = 0
        mute.rcvhwm, mute.sndhwm = 10, 0
        mute.connect(address)
        for _ in range(PINGS):
            mute.send_multipart([wire.FRONTEND, wire.PING, b""])
        client.ping(60)
        while cpu_of_a_second(pid) > 0.9:  # it still reads what was sent
            pass
        assert cpu_of_a_second(pid) < 0.3, "an idle broker burns CPU for answers that nobody reads"
        times = sorted(client.ping(30) for _ in range(51))
        assert times[25] < 0.1, f"others wait {times[25]:.3f} s"
        # what it missed is lost to it alone: once it reads, it is answered again
        while mute.poll(500):
            mute.recv_multipart()
        mute.send_multipart([wire.FRONTEND, wire.PING, b"", b"still here"])
        assert mute.poll(20_000)


def cpu_of_a_second(pid: int) -> float:
    """Return the share of one core that a process uses within the next second."""
    before, start = cpu_seconds(pid), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - before) / (time.monotonic() - start)
