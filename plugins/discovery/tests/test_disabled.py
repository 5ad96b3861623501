"""The service of a broker that is disabled."""

from __future__ import annotations

import time

import zmq

from scale0_core.testing import check_disabled, manage


def test_it_is_silent_while_the_broker_is_disabled(scale0_broker):
    check_disabled(scale0_broker(["discovery"]), "discovery", "requests", [b"LIST", b"{}"])


def test_it_publishes_nothing_while_the_broker_is_disabled(scale0_broker):
    broker = scale0_broker(["discovery"], {"plugin": {"discovery": {"bookmark": 0.1}}})
    with zmq.Context() as context, context.socket(zmq.SUB) as watcher:
        watcher.linger, watcher.rcvtimeo = 0, 20_000
        watcher.subscribe(b"")
        watcher.connect(broker.address("discovery", "watch"))
        watcher.recv_multipart()
        manage(broker, "disable")
        end = time.monotonic() + 1
        while watcher.poll(300):  # what was on its way
            watcher.recv_multipart()
            assert time.monotonic() < end, "discovery publishes while the broker is disabled"
        manage(broker, "enable")
        watcher.recv_multipart()
