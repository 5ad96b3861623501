"""The baseline in Python: an echo server as a user of pyzmq would write it, one message at a time."""

from __future__ import annotations

import sys

import zmq


def serve(endpoint: str) -> None:
    """Answer [id, command, options, body] with [id, body] until the process is ended."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        routing_id, _command, _options, body = router.recv_multipart()
        router.send_multipart([routing_id, body])


if __name__ == "__main__":
    serve(sys.argv[1])
