"""A client or a worker that tells, again and again, how many messages it has read that it had no use for.

``python listener.py KIND ADDRESS FOLDER``
"""

from __future__ import annotations

import asyncio
import sys
import time

from scale0_core.client import Client, Worker, aio

PAUSE = 0.02


def listen(kind: str, address: str, folder: str) -> None:
    """Listen with a thread."""
    if kind == "client":
        client = Client(address, config_dir=folder)
        while True:
            print(client._session.calls.late, flush=True)
            time.sleep(PAUSE)
    worker = Worker(address, backend=address, config_dir=folder)
    worker.add("service", lambda: None)
    worker.start()
    while True:
        print(worker._session.dropped, flush=True)
        time.sleep(PAUSE)


async def listen_with_a_loop(address: str, folder: str) -> None:
    """Listen with asyncio."""
    async with aio.Client(address, config_dir=folder) as client:
        while True:
            print(client._session.calls.late, flush=True)
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    if sys.argv[1] == "aio":
        asyncio.run(listen_with_a_loop(*sys.argv[2:]))
    else:
        listen(*sys.argv[1:])
