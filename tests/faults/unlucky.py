"""Many clients of a broker that breaks every connection.

``python unlucky.py KIND ADDRESS FOLDER [plant]``: with ``plant``, all sockets have IMMEDIATE, as some had.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable

import pytest
import zmq

from scale0_core.client import Client, Worker, aio
from scale0_core.errors import Scale0Error

MANY = 60
TIMEOUT = 5.0


def again(use: Callable[[], object]) -> None:
    """Use a client for ever."""
    while True:
        with contextlib.suppress(Scale0Error):
            use()
        time.sleep(0.05)


def core(address: str, folder: str) -> object:
    """Call a service."""
    with Client(address, config_dir=folder, wait_for_broker=True) as client:
        return client.call("service", b"x", timeout=TIMEOUT)


def worker(address: str, folder: str) -> object:
    """Offer a service."""
    offers = Worker(address, backend=address, config_dir=folder)
    offers.add("service", lambda: None)
    with offers:
        time.sleep(TIMEOUT)
    return None


async def core_aio(address: str, folder: str) -> object:
    """Call a service in a loop."""
    async with aio.Client(address, config_dir=folder, wait_for_broker=True) as client:
        return await client.call("service", b"x", timeout=TIMEOUT)


def majordomo(address: str, folder: str) -> object:
    """Ask a service."""
    from scale0_majordomo.client import Client

    with Client(address, wait_for_broker=True) as client:
        return client.call("service", b"x", timeout=TIMEOUT)


def majordomo_worker(address: str, folder: str) -> object:
    """Answer requests."""
    from scale0_majordomo.client import Worker

    offers = Worker(address)
    offers.add("service", lambda: None)
    with offers:
        time.sleep(TIMEOUT)
    return None


def reader(address: str, folder: str) -> object:
    """Read a pipe."""
    from scale0_zpipes import Pipe

    with Pipe.open("pipe", "r", broker=address, timeout=TIMEOUT) as pipe:
        return pipe.read(timeout=TIMEOUT)


def writer(address: str, folder: str) -> object:
    """Write into a pipe."""
    from scale0_zpipes import Pipe

    with Pipe.open("pipe", "w", broker=address, timeout=TIMEOUT) as pipe:
        pipe.write(b"x")
        pipe.flush()
    return None


def music(address: str, folder: str) -> object:
    """Look for a song."""
    from scale0_musicquest.client import MusicClient

    with MusicClient(address, timeout=TIMEOUT, wait_for_broker=True) as client:
        return client.search(name="x")


def watch(address: str, folder: str) -> object:
    """Follow what is offered."""
    from scale0_core.client.kit.drivers import CallerDriver
    from scale0_discovery.client.following import NewsSession, WatchSession, changes
    from scale0_discovery.client.watching import Watch

    driver = CallerDriver(WatchSession(address, Watch(), TIMEOUT, lambda: None))
    driver.start()
    try:
        driver.post(lambda: driver.add(NewsSession(address, driver.session)))
        return next(driver.each(changes(driver)))
    finally:
        driver.close()


KINDS = {
    use.__name__: use for use in (core, worker, majordomo, majordomo_worker, reader, writer, music, watch)
}  # fmt: skip


async def in_a_loop(address: str, folder: str) -> None:
    """Use many clients in one loop."""

    async def use() -> None:
        while True:
            with contextlib.suppress(Scale0Error):
                await core_aio(address, folder)

    await asyncio.gather(*(use() for _ in range(MANY)))


def main() -> None:
    """Use many clients until the input ends."""
    kind, address, folder, *plant = sys.argv[1:]
    if plant:
        made = zmq.Socket.__init__

        def immediate(socket: zmq.Socket[bytes], *arguments: object, **options: object) -> None:
            made(socket, *arguments, **options)
            socket.setsockopt(zmq.IMMEDIATE, 1)

        pytest.MonkeyPatch().setattr(zmq.Socket, "__init__", immediate)
    if kind == "core_aio":
        threading.Thread(target=lambda: asyncio.run(in_a_loop(address, folder)), daemon=True).start()
    else:
        for _ in range(MANY):
            threading.Thread(target=again, args=[lambda: KINDS[kind](address, folder)], daemon=True).start()
    print("started", flush=True)
    sys.stdin.read()
    print("lives", flush=True)


if __name__ == "__main__":
    main()
