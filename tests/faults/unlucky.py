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
MORE = {"music": 200, "music_aio": 200}
"""Of clients that wait between two connections."""
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


def publisher(address: str, folder: str) -> object:
    """Put events into a pipe, as telemetry does."""
    from scale0_telemetry.observer.publisher import Chunk, Publisher

    made = Publisher(address, b"pipe", b"writer", 1 << 20)
    made.session.add(Chunk(1, b"x"))
    try:
        for _ in range(round(TIMEOUT / 0.05)):
            made.step()
    finally:
        made.close()
    return None


def asking(address: str, folder: str) -> object:
    """Ask servers, as Spark's delivery of plans does."""
    from scale0_spark.asking import Question, ask_all

    return ask_all([Question(address, b"stat")], TIMEOUT)


def spark_pipes(address: str, folder: str) -> object:
    """Ask for a pipe, as Spark's source and sink do; runs where PySpark is."""
    from scale0_spark.zpipes.wire import Pipes

    with Pipes(address, TIMEOUT) as pipes:
        while True:
            pipes.state("pipe")


async def core_aio(address: str, folder: str) -> object:
    """Call a service in a loop."""
    async with aio.Client(address, config_dir=folder, wait_for_broker=True) as client:
        return await client.call("service", b"x", timeout=TIMEOUT)


async def worker_aio(address: str, folder: str) -> object:
    """Offer a service in a loop."""
    offers = aio.Worker(address, backend=address, config_dir=folder)
    offers.add("service", lambda: None)
    async with offers:
        await asyncio.sleep(TIMEOUT)
    return None


async def majordomo_aio(address: str, folder: str) -> object:
    """Ask a service in a loop."""
    from scale0_majordomo.aio import Client

    async with Client(address, wait_for_broker=True) as client:
        return await client.call("service", b"x", timeout=TIMEOUT)


async def majordomo_worker_aio(address: str, folder: str) -> object:
    """Answer requests in a loop."""
    from scale0_majordomo.aio import Worker

    offers = Worker(address)
    offers.add("service", lambda: None)
    async with offers:
        await asyncio.sleep(TIMEOUT)
    return None


async def reader_aio(address: str, folder: str) -> object:
    """Read a pipe in a loop."""
    from scale0_zpipes.aio import Pipe

    async with Pipe.open("pipe", "r", broker=address, timeout=TIMEOUT) as pipe:
        return await pipe.read(timeout=TIMEOUT)


async def writer_aio(address: str, folder: str) -> object:
    """Write into a pipe in a loop."""
    from scale0_zpipes.aio import Pipe

    async with Pipe.open("pipe", "w", broker=address, timeout=TIMEOUT) as pipe:
        await pipe.write(b"x")
        await pipe.flush()
    return None


async def music_aio(address: str, folder: str) -> object:
    """Look for a song in a loop."""
    from scale0_musicquest.aio import MusicClient

    async with MusicClient(address, timeout=TIMEOUT, wait_for_broker=True) as client:
        return await client.search(name="x")


BLOCKING = {
    use.__name__: use
    for use in (
        core, worker, majordomo, majordomo_worker, reader, writer, music, watch, publisher, asking, spark_pipes
    )
}  # fmt: skip
IN_A_LOOP = {
    use.__name__: use
    for use in (core_aio, worker_aio, majordomo_aio, majordomo_worker_aio, reader_aio, writer_aio, music_aio)
}


async def in_a_loop(kind: str, address: str, folder: str) -> None:
    """Use many clients in one loop."""

    async def again_and_again() -> None:
        while True:
            with contextlib.suppress(Scale0Error):
                await IN_A_LOOP[kind](address, folder)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(again_and_again() for _ in range(MORE.get(kind, MANY))))


def main() -> None:
    """Use many clients until the input ends."""
    kind, address, folder, *plant = sys.argv[1:]
    if plant:
        made = zmq.Socket.__init__

        def immediate(socket: zmq.Socket[bytes], *arguments: object, **options: object) -> None:
            made(socket, *arguments, **options)
            socket.setsockopt(zmq.IMMEDIATE, 1)

        pytest.MonkeyPatch().setattr(zmq.Socket, "__init__", immediate)
    if kind in IN_A_LOOP:
        threading.Thread(target=lambda: asyncio.run(in_a_loop(kind, address, folder)), daemon=True).start()
    else:
        for _ in range(MORE.get(kind, MANY)):
            threading.Thread(target=again, args=[lambda: BLOCKING[kind](address, folder)], daemon=True).start()
    print("started", flush=True)
    sys.stdin.read()
    print("lives", flush=True)


if __name__ == "__main__":
    main()
