"""Pipes with asyncio, with real brokers."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from scale0_zpipes.aio import (
    Pipe,
    PipeBusyError,
    PipeClosedError,
    PipeFullError,
    PipeGoneError,
    PipeLostError,
    PipeTimeoutError,
    PipeTooLargeError,
    Stage,
)


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


def test_what_is_there_is_drained_and_silence_ends_the_chunks(here):
    async def main():
        writer = await Pipe.open("p", "w", broker=here)
        reader = await Pipe.open("p", "r", broker=here)
        for chunk in numbered(5):
            await writer.write(chunk)
        await writer.flush()
        assert [chunk async for chunk in reader.drain()] == numbered(5)
        await writer.write(b"x")
        await writer.flush()
        assert [chunk async for chunk in reader.chunks(timeout=2)] == [b"x"]
        with pytest.raises(PipeTimeoutError) as late:
            await reader.read(timeout=0.01)
        assert late.value.stage is Stage.CHUNK
        assert (await reader.info())["chunks"] == 0
        assert writer.pending == 0
        await writer.close()
        await reader.close()
        await reader.close()
        with pytest.raises(PipeClosedError):
            await reader.read()

    asyncio.run(main())


def test_groups_acknowledge_and_seek(here):
    async def main():
        async with Pipe.open("p", "w", broker=here) as writer:
            for chunk in numbered(10):
                await writer.write(chunk)
        async with Pipe.open("p", "r", broker=here, group="g") as reader:
            assert [await reader.read(timeout=30) for _ in range(6)] == numbered(6)
            assert (reader.number, reader.position, reader.name) == (6, 7, b"p")
            await reader.ack(4)
            await reader.seek(5)
            assert await reader.read(timeout=30) == b"4"
            with pytest.raises(PipeGoneError):
                await reader.seek(2)
        async with Pipe.open("p", "r", broker=here, group="g") as reader:
            assert await reader.read(timeout=30) == b"4"
            reader.done()
            await reader.close(drop_group=True)

    asyncio.run(main())


def test_errors_are_those_of_the_other_flavour(scale0_broker, tmp_path):
    settings = {"plugin": {"zpipes": {"max_pipe_bytes": 100}}}
    here = scale0_broker.in_thread(["zpipes"], settings).address("zpipes", "pipes", 1)

    async def fail():
        async with Pipe.open("p", "w", broker=here) as writer:
            await writer.write(b"y", timeout=0.2)
            raise KeyError

    async def main():
        async with Pipe.open("p", "w", broker=here, batch=False) as writer:
            await writer.write(b"x" * 100)
            with pytest.raises(PipeFullError):
                await writer.write(b"a", timeout=1.5)
            with pytest.raises(PipeTooLargeError):
                await writer.write(b"x" * 101)
        with pytest.raises(KeyError):
            await fail()
        async with Pipe.open("p", "r", broker=here) as first:
            assert len(await first.read(timeout=30)) == 100
            async with Pipe.open("p", "r", broker=here) as second:
                with pytest.raises(PipeBusyError):
                    await second.read()
        with pytest.raises(PipeLostError):
            await Pipe.open("p", "r", broker=f"ipc://{tmp_path}/nobody"[:100], timeout=0.2)
        with pytest.raises(RuntimeError):
            await Pipe.open("p", "r", broker=here).read()
        with pytest.raises(ValueError, match="opened"):
            Pipe.open("p", "x", broker=here)

    asyncio.run(main())


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


def test_a_broker_that_is_started_again_is_found_again(scale0_broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("b")
    settings = {"plugin": {"zpipes": {"bind": ["tcp://127.0.0.1:0"]}}}
    broker = scale0_broker.in_thread(["zpipes"], settings)
    here = broker.address("zpipes", "pipes")
    again = {
        "plugin": {"zpipes": {"bind": [here], "durable": ["d.*"]}},
        "broker": {"data_dir": str(folder / "data")},
    }

    async def main():
        nonlocal broker
        async with Pipe.open("d.p", "w", broker=here) as writer, Pipe.open("d.p", "r", broker=here) as reader:
            for number in range(3):
                await asyncio.to_thread(broker.stop)
                await writer.write(b"%d" % number)
                broker = await asyncio.to_thread(scale0_broker.in_thread, ["zpipes"], again)
                assert await reader.read(timeout=30) == b"%d" % number
                reader.done()
                await reader.ack(timeout=30)

    asyncio.run(main())


def test_links_are_closed_and_a_lease_has_none(here):
    async def main():
        async with Pipe.open("p", "r", broker=here) as first:
            async with (
                Pipe.open("p", "r", broker=here, group="g") as group,
                Pipe.open("p", "r", broker=here, group="leased", lease=5) as leased,
            ):
                for _ in range(3):
                    await group.seek(1)
                assert (await first.info())["links"] == 2
                await leased.close(drop_group=True)
            end = asyncio.get_running_loop().time() + 5
            while (await first.info())["links"] != 1:
                assert asyncio.get_running_loop().time() < end
            assert list((await first.info())["groups"]) == ["g"]

    asyncio.run(main())


def test_a_pipe_is_found_by_the_name_of_its_broker_or_at_the_first_of_several_that_is_there(scale0_broker):
    name = scale0_broker.in_thread(["zpipes"]).name

    async def main():
        async with Pipe.open("p", "w", broker=name) as writer:
            await writer.write(b"a")
        async with Pipe.open("p", "r", broker=["gone", name], timeout=30) as reader:
            assert await reader.read() == b"a"

    asyncio.run(main())
