"""The service of a broker that is disabled."""

from __future__ import annotations

import zmq

from scale0_core.testing import check_disabled, manage

SETTINGS = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}


def test_it_is_silent_while_the_broker_is_disabled(scale0_broker):
    request = [b"", b"MDPC01", b"mmi.service", b"echo"]
    check_disabled(scale0_broker(["majordomo"], SETTINGS), "majordomo", "requests", request)


def test_a_request_that_a_worker_has_is_finished_after_disabling(scale0_broker):
    broker = scale0_broker(["majordomo"], SETTINGS)
    with zmq.Context() as context, context.socket(zmq.DEALER) as worker, context.socket(zmq.DEALER) as client:
        for socket in (worker, client):
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(broker.address("majordomo", "requests"))
        worker.send_multipart([b"", b"MDPW01", b"\x01", b"upper"])
        client.send_multipart([b"", b"MDPC01", b"upper", b"hello"])
        while (frames := worker.recv_multipart())[2] != b"\x02":
            pass
        manage(broker, "disable")
        client.send_multipart([b"", b"MDPC01", b"upper", b"too late"])
        worker.send_multipart([b"", b"MDPW01", b"\x03", *frames[3:5], b"HELLO"])
        assert client.recv_multipart() == [b"", b"MDPC01", b"upper", b"HELLO"]
        assert not client.poll(300)
