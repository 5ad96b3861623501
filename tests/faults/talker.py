"""A broker that only talks: whoever says a word to it gets messages of many frames.

``python talker.py ADDRESS HEADER COMMAND COUNT``

Without a COUNT (0) it talks until it is killed. With one it waits for a line of input, says so many, and tells when
all of them have left.
"""

from __future__ import annotations

import sys
import time
from itertools import count

import zmq


def main() -> None:
    """Talk."""
    address, header, command, limit = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode(), int(sys.argv[4])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.sndhwm = 0
    socket.bind(address)
    print(socket.last_endpoint.decode(), flush=True)
    peer = socket.recv_multipart()[0]
    print("heard", flush=True)
    if limit:
        sys.stdin.readline()
    for number in range(limit) if limit else count():
        frames = [b""] if limit else [b"frame"] * 10
        socket.send_multipart([peer, header, command, b"", b"service", number.to_bytes(8, "big"), *frames])
    socket.close(linger=-1)
    context.term()
    print("said", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
