"""Pipes with asyncio: what coroutines do that threads cannot; all else is in test_client.py."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from scale0_zpipes.aio import Pipe, PipeClosedError, PipeFullError

pytestmark = pytest.mark.real


@pytest.fixture
def here(scale0_broker) -> str:
    return scale0_broker.in_thread(["zpipes"]).address("zpipes", "pipes", 1)


def numbered(number: int) -> list[bytes]:
    return [b"%d" % each for each in range(number)]


def test_chunks_come_out_as_they_went_in(here):
    chunks = [b"a", b"", b"x" * 3_000_000, *numbered(3000)]

    async def write():
        async with Pipe.open("p", "w", broker=here) as writer:
            for chunk in chunks:
                await writer.write(chunk)

    async def read():
        async with Pipe.open("p", "r", broker=here) as reader:
            return [chunk async for chunk in reader.chunks(timeout=1)]

    async def both():
        return (await asyncio.gather(write(), read()))[1]

    assert asyncio.run(both()) == chunks


def test_a_read_that_is_cancelled_takes_nothing(here):
    async def main():
        async with Pipe.open("p", "w", broker=here) as writer, Pipe.open("p", "r", broker=here) as reader:
            for number in count():
                task = asyncio.create_task(reader.read())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if number == 20:
                    break
            await writer.write(b"a")
            assert await reader.read(timeout=30) == b"a"
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            await reader.close()
            with pytest.raises(PipeClosedError):
                await waiting

    asyncio.run(main())


def test_a_pipe_is_opened_by_await_or_with(here):
    async def main():
        for mode in ("r", "w"):
            end = Pipe.open("p", mode, broker=here)
            with pytest.raises(RuntimeError, match="open a pipe by await"):
                await (end.read() if mode == "r" else end.write(b"x"))
            await end.close()
            async with end as opened, await end as again:
                assert opened is again is end
            assert end.closed
        with pytest.raises(ValueError, match="opened"):
            Pipe.open("p", "x", broker=here)

    asyncio.run(main())


def test_chunks_of_several_coroutines_are_written_through_in_the_order_of_their_calls(here):
    async def main():
        async with Pipe.open("p", "w", broker=here, batch=False) as writer, Pipe.open("p", "r", broker=here) as reader:
            writes = [asyncio.create_task(writer.write(chunk)) for chunk in numbered(20)]
            await asyncio.sleep(0)
            for cancelled in (3, 4, 11):  # while they wait for those before them
                writes[cancelled].cancel()
            await asyncio.gather(*writes, return_exceptions=True)
            assert writer.pending == 0
            found = [chunk async for chunk in reader.drain()]
        assert found == [chunk for number, chunk in enumerate(numbered(20)) if number not in (3, 4, 11)]

    asyncio.run(main())


def test_who_waits_to_write_through_ends_when_the_pipe_is_closed(scale0_broker):
    settings = {"plugin": {"zpipes": {"max_pipe_bytes": 1}}}
    here = scale0_broker.in_thread(["zpipes"], settings).address("zpipes", "pipes", 1)

    async def main():
        writer = await Pipe.open("p", "w", broker=here, batch=False)
        await writer.write(b"1")
        writes = [asyncio.create_task(writer.write(b"2")) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(PipeFullError):
            await writer.close(timeout=0.5)
        assert [type(error) for error in await asyncio.gather(*writes, return_exceptions=True)] == [PipeClosedError] * 3

    asyncio.run(main())


def test_the_time_of_an_open_is_bounded_from_outside(here):
    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Pipe.open("p", "r", broker="tcp://192.0.2.1:9"), 0.1)

    asyncio.run(main())
