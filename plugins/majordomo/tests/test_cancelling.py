"""Requests that nobody waits for any more: through the bridge, and by streams that are dropped."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from scale0_core.api import Registry
from scale0_core.client import CallError, cancelled
from scale0_core.client import Client as Scale0Client
from scale0_core.client import Worker as Scale0Worker
from scale0_core.testing import Script
from scale0_majordomo import Client, RemoteError, Worker, aio
from scale0_majordomo.service.bridge import Bridge
from scale0_majordomo.service.bridged import BridgedMajordomo
from scale0_majordomo.settings import MajordomoSettings

# tasks of Scale0 for workers of MDP, on virtual time


def bridge_with(*worker: str) -> Script:
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    script = Script(BridgedMajordomo(MajordomoSettings(), ("inproc://majordomo",), None, bridge, Registry()), start=1.0)
    script.feed("requests", "w", *worker)
    script.sleep(0.1)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("offers", "S0W01", "CONFIGACK", '{"config_version": 7}')
    assert b'"cancel":true' in script.expect("offers", "S0W01", "READY", ...)[2]
    script.feed("offers", "S0W01", "READYOK", '{"hbeatinterval": 60000}')
    return script


def test_a_cancelled_task_is_cancelled_at_a_worker_of_our_own_dialect():
    script = bridge_with("S0MW01", "\x01", "echo", '{"credit":2}')
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "S0MW01", "\x02", ..., "echo", "", "hello")[3]
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.expect("requests", "w", "S0MW01", "\x08", address)
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "17")  # which frees the slot
    script.feed("requests", "w", "S0MW01", "\x07", address, "410", "cancelled")
    script.expect_nothing()


def test_a_cancelled_task_frees_its_slot_also_where_the_worker_cannot_be_told():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")[4]
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "17")
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "late")
    script.expect_nothing()


def test_a_cancelled_task_that_waits_is_not_given_to_a_worker():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "first")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "first")[4]
    script.feed("offers", "S0W01", "TASK", "", "echo", "18", "second")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "18")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "18")
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "done")
    script.expect("offers", "S0W01", "TASKREPLY", "", "echo", "17", "done")
    script.expect_nothing()


def test_a_cancel_of_a_task_that_is_over_or_was_never_there_does_nothing():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")[4]
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "done")
    script.expect("offers", "S0W01", "TASKREPLY", "", "echo", "17", "done")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "99")
    script.expect_nothing()


# streams that are dropped, in a real broker

SOON = 0.1
"""Seconds within which a handler ends after it was cancelled; the best of some rounds counts."""
ROUNDS = 5


class Forever:
    """A service that never ends by itself, and when it ended."""

    def __init__(self):
        self.ended = []

    def parts(self, *_):
        try:
            while True:
                yield b"part"
                time.sleep(0.005)
        finally:
            self.ended.append(time.monotonic())

    async def async_parts(self, request):
        try:
            while True:
                yield b"part"
                await asyncio.sleep(0.005)
        finally:
            self.ended.append(time.monotonic())


@pytest.fixture
def broker(scale0_broker):
    return scale0_broker.in_thread(["majordomo"], {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}})


@pytest.fixture
def here(broker):
    return broker.address("majordomo", "requests")


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_break_stops_the_generator_and_frees_its_slot(here):
    forever = Forever()
    with Worker(here) as worker, Client(here, timeout=60) as client:
        worker.add("parts", forever.parts)
        worker.wait_ready()
        rounds = []
        for number in range(1, ROUNDS + 1):  # the only slot is free again each time
            for part in client.stream("parts"):
                assert part.body == b"part"
                break
            stopped = time.monotonic()
            wait_until(lambda number=number: len(forever.ended) == number)
            rounds.append(forever.ended[-1] - stopped)
        assert min(rounds) < SOON
        wait_until(lambda: client.services()["parts"]["in_hand"] == 0)
        assert client.services()["parts"]["cancelled"] == ROUNDS


@pytest.mark.parametrize("kind", ["parts", "async_parts"])
def test_a_break_with_asyncio_stops_the_generator_and_frees_its_slot(here, kind):
    async def main():
        forever = Forever()
        async with aio.Worker(here) as worker, aio.Client(here, timeout=60) as client:
            worker.add("parts", getattr(forever, kind))
            await worker.wait_ready()
            rounds = []
            for number in range(1, ROUNDS + 1):
                async for part in client.stream("parts"):
                    assert part.body == b"part"
                    break
                stopped = time.monotonic()
                while len(forever.ended) < number:
                    await asyncio.sleep(0.001)
                rounds.append(forever.ended[-1] - stopped)
            assert min(rounds) < SOON

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_stream_that_the_garbage_collector_finds_is_cancelled(here):
    forever = Forever()
    with Worker(here) as worker, Client(here, timeout=60) as client:
        worker.add("parts", forever.parts)
        worker.wait_ready()
        knot = [client.stream("parts")]
        next(knot[0])
        knot.append(knot)
        del knot
        gc.collect()
        wait_until(lambda: forever.ended)


def test_a_stream_that_was_read_to_its_end_is_not_cancelled(here):
    with Worker(here) as worker, Client(here, timeout=60) as client:
        worker.add("two", lambda request: (part for part in (b"a", b"b")))
        worker.wait_ready()
        assert [part.body for part in client.stream("two") if part] == [b"a", b"b"]
        gc.collect()
        assert client.services()["two"]["cancelled"] == 0


def when_there(client, service):
    """Stream from a service of which the broker hears in a moment."""
    end = time.monotonic() + 30
    while True:
        try:
            stream = client.stream(service, timeout=60)
            next(stream)
        except CallError as error:
            if error.code not in (404, 503) or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return stream


def test_a_native_client_that_breaks_off_stops_a_worker_of_majordomo(broker, here):
    forever = Forever()
    with Worker(here) as worker, Scale0Client(broker.address("scale0", "frontend")) as client:
        worker.add("parts", forever.parts)
        worker.wait_ready()
        when_there(client, "parts").close()
        wait_until(lambda: forever.ended)
        when_there(client, "parts").close()  # its slot is free
        wait_until(lambda: len(forever.ended) == 2)


def test_a_client_of_majordomo_that_breaks_off_stops_a_native_worker(broker, here):
    forever = Forever()
    with Scale0Worker(broker.address("scale0", "frontend")) as worker, Client(here, timeout=60) as client:
        worker.add("parts", forever.parts)
        worker.add("looks", looks)
        worker.wait_ready()
        for _ in range(2):
            for part in client.stream("parts"):
                assert part.body == b"part"
                break
        wait_until(lambda: len(forever.ended) == 2)
        future = client.submit("looks")
        wait_until(lambda: LOOKING)
        future.cancel()
        wait_until(lambda: not LOOKING)


LOOKING = []


def looks(*_):
    LOOKING.append(True)
    while not cancelled():
        time.sleep(0.005)
    LOOKING.clear()


# what the log of a worker says


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_the_log_has_the_traceback_the_service_and_the_request_of_a_handler_that_raised(here, kind, caplog):
    def fails(request):
        raise ValueError("broken")

    async def with_asyncio():
        async with aio.Worker(here) as worker, aio.Client(here, timeout=20) as client:
            worker.add("fails", fails)
            await worker.wait_ready()
            with pytest.raises(RemoteError, match="broken"):
                await client.call("fails")

    if kind == "aio":
        asyncio.run(asyncio.wait_for(with_asyncio(), 60))
    else:
        with Worker(here) as worker, Client(here, timeout=20) as client:
            worker.add("fails", fails)
            worker.wait_ready()
            with pytest.raises(RemoteError, match="broken"):
                client.call("fails")
    (record,) = [record for record in caplog.records if "service raised" in record.getMessage()]
    shown = logging.Formatter().format(record)
    assert shown.startswith("service raised service=fails request=")
    assert 'raise ValueError("broken")' in shown
