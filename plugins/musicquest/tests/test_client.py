"""``MusicClient`` over real sockets, against peers that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import random
import socket
import threading
import time
from functools import partial

import pytest

from scale0_core.client import CallTimedOutError, ClosedError
from scale0_core.client import NoBrokerError as AnyNoBrokerError
from scale0_musicquest import aio, wire
from scale0_musicquest.client import (
    DamagedError,
    FileThereError,
    MusicClient,
    MusicClosedError,
    MusicError,
    MusicStoppedError,
    MusicTimeoutError,
    NoBrokerError,
    NoServerError,
    NotFoundError,
    RefusedError,
    Stage,
    UntoldError,
)
from scale0_musicquest.client.storage import PartialFile
from scale0_musicquest.songs import Hit, Holder, Song

from .music_peers import FakeBroker, FakeServer, client_of, peers, song_of

pytestmark = pytest.mark.real

CONTENT = random.Random(1).randbytes(3_333_333)
SONGS = {"a.wav": CONTENT, "b.wav": b"NF", "empty.wav": b"", "exact.wav": CONTENT[:1_000_000]}


@pytest.fixture
def note():
    with peers() as made:
        yield made


@pytest.fixture
def make(note, flavour):
    """Make clients of both flavours; they are closed before their peers."""
    return partial(client_of, flavour)


@pytest.fixture
def world(note, make):
    """Give a broker, its server and a client."""
    server = note(FakeServer(SONGS))
    broker = note(FakeBroker(server))
    return broker, server, make(broker.endpoint, timeout=30.0)


def nobody() -> str:
    """Give an address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


# --- finding ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M2")
@pytest.mark.requirement("M3")
@pytest.mark.requirement("M5")
@pytest.mark.requirement("M7")
@pytest.mark.requirement("M8")
def test_a_search_goes_to_the_server_that_the_broker_gave(world):
    broker, server, client = world
    found = client.search("wav")
    assert [hit.song.name for hit in found.hits] == sorted(SONGS)
    assert (found.complete, found.cached, found.suggestions) == (True, False, ())
    assert found.hits[0].holders[0].endpoint == client.server == server.endpoint
    client.search(name="a.wav", timeout=5.0)
    assert broker.counts == {wire.HELLO: 1}
    assert (server.counts[wire.HELLO], server.counts[wire.SEARCH]) == (1, 2)
    told = json.loads(server.said(wire.SEARCH)[1][0])
    assert told["name"] == "a.wav"
    assert 3000 < told["timeout_ms"] <= 4000


def test_nothing_found_says_what_may_be_meant(world):
    client = world[2]
    assert client.search("zzz").suggestions == ("a.wav", "b.wav", "empty.wav")
    with pytest.raises(NotFoundError, match=r"did you mean a\.wav"):
        client.hit("zzz.wav")
    with pytest.raises(ValueError, match="what it looks for"):
        client.search()
    with pytest.raises(ValueError, match="separators"):
        client.search(name="a/../x")


def test_lists_and_figures_come_from_the_own_server_or_another(world, note):
    broker, server, client = world
    other = note(FakeServer({"c.wav": b"c"}))
    broker.servers.append(other)
    assert [(row.endpoint, row.songs, row.root) for row in client.servers()] == [
        (server.endpoint, 4, True), (other.endpoint, 1, False),
    ]  # fmt: skip
    total, songs = client.songs(offset=1, limit=2)
    assert (total, [song.name for song in songs]) == (4, ["b.wav", "empty.wav"])
    assert client.songs(other.endpoint)[1] == [song_of("c.wav", b"c")]
    assert [(row.name, row.count) for row in client.top(5)] == [("a.wav", 3.0)]
    assert client.stats()["songs"] == 4
    assert client.stats(other.endpoint)["songs"] == 1
    assert client.plan(other.endpoint, [{"name": "a.wav"}])["accepted"] == ["a.wav"]
    with pytest.raises(NoServerError, match="nobody listens"):
        client.stats(nobody())
    other.refuses[wire.STATS] = (503, "going")
    with pytest.raises(RefusedError, match="going"):
        client.stats(other.endpoint)


@pytest.mark.requirement("M34")
def test_many_threads_search_at_once(world):
    client = world[2]
    found: list[str] = []

    def look(name: str) -> None:
        found.extend(client.search(name=name).hits[0].song.name for _ in range(20))

    threads = [threading.Thread(target=look, args=(name,)) for name in SONGS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(list(SONGS) * 20)


def test_no_broker_is_told_with_its_stage(make):
    address = nobody()
    with make(address, timeout=0.5) as client:
        with pytest.raises(NoBrokerError, match=address) as told:
            client.search("x")
        assert told.value.stage is Stage.BROKER
        with pytest.raises(NoBrokerError):
            client.servers()


def test_no_server_is_told_with_its_stage(note, make):
    broker = note(FakeBroker())
    with make(broker.endpoint, timeout=0.5) as client, pytest.raises(NoServerError, match="knows no server"):
        client.search("x")


def test_a_server_that_does_not_answer_is_told_with_its_stage(world):
    _, server, client = world
    server.silent = {wire.SEARCH}
    with pytest.raises(MusicTimeoutError, match=server.endpoint) as told:
        client.search("x", timeout=0.5)
    assert told.value.stage is Stage.ANSWER


def test_a_server_that_answers_nonsense_is_told(world):
    _, server, client = world
    server.answer = lambda message: [
        wire.answer(message, wire.HELLO, b"{}") if message.word == wire.HELLO else wire.answer(message, b"what")
    ]
    with pytest.raises(MusicError, match="cannot be read"):
        client.search("x")


def test_a_fault_in_reading_an_answer_is_told_and_nobody_waits_forever(world, monkeypatch):
    _, server, client = world

    def read(rest):
        raise RuntimeError("unplanned")

    monkeypatch.setattr("scale0_musicquest.client.setup.read_table", read)
    with pytest.raises(RuntimeError, match="unplanned"):
        client.stats()
    # also where no user waits for this very answer: others are looked for while a song comes
    monkeypatch.setattr("scale0_musicquest.client.setup.read_result", read)
    with pytest.raises(NoServerError) as told:
        client.read(Hit(server.song("a.wav"), (Holder(nobody()),)), 0, 10)
    assert "looking for others: unplanned" in told.value.problem.why
    monkeypatch.undo()
    assert client.stats()["songs"] == len(SONGS)


@pytest.mark.requirement("M4")
def test_another_server_is_taken_when_the_own_dies(world, note):
    broker, server, client = world
    client.search("a")
    second = note(FakeServer(SONGS))
    broker.servers.append(second)
    server.silent = {wire.SEARCH}
    asking = threading.Thread(target=lambda: (server.wait_for(wire.SEARCH, 2), server.die()))
    asking.start()
    assert client.search("a").hits[0].song.name == "a.wav"  # asked of the first, answered by the second
    asking.join()
    assert client.server == second.endpoint


def test_an_idle_client_shows_that_it_lives_and_says_goodbye(note, make):
    server = note(FakeServer(SONGS, heartbeat_ms=50))
    client = make(server=server.endpoint)
    client.search("a")
    server.wait_for(wire.HUGZ, 5)
    client.close()
    server.wait_for(wire.BYE)
    with pytest.raises(MusicClosedError):
        client.search("a")
    with pytest.raises(MusicClosedError):
        client.stats(server.endpoint)
    client.close()


def test_closing_ends_what_waits(world):
    _, server, client = world
    server.silent = {wire.SEARCH, wire.FETCH}
    ends: list[Exception] = []

    def wait(call) -> None:
        try:
            call()
        except MusicClosedError as error:
            ends.append(error)

    hit = server.hit("a.wav")
    calls = (lambda: client.search("x"), lambda: client.read(hit, 0, 10))
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    server.wait_for(wire.SEARCH)
    server.wait_for(wire.FETCH)
    client.close()
    for thread in threads:
        thread.join(30)
    assert len(ends) == 2


# --- downloading ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M6")
@pytest.mark.requirement("M9")
@pytest.mark.requirement("M32")
@pytest.mark.parametrize("name", list(SONGS))
def test_a_song_is_downloaded_byte_by_byte(world, tmp_path, name):
    _, server, client = world
    seen = []
    target = tmp_path / "deep" / name
    assert client.download(client.hit(name), target, progress=seen.append) == target
    assert target.read_bytes() == SONGS[name]
    assert [path.name for path in target.parent.iterdir()] == [name]
    assert seen[-1].received == seen[-1].position == seen[-1].size == len(SONGS[name])
    assert seen[-1].remaining == 0
    fetched = server.counts[wire.FETCH]
    assert fetched == -(-len(SONGS[name]) // 250_000)
    client.download(client.hit(name), target)
    assert server.counts[wire.FETCH] == fetched  # it is there already


def test_a_file_that_came_while_the_song_did_is_not_overwritten(world, tmp_path):
    _, _, client = world
    target = tmp_path / "a.wav"

    def other(progress) -> None:
        target.write_bytes(b"of somebody else")

    with pytest.raises(FileThereError):
        client.download(client.hit("a.wav"), target, progress=other)
    assert target.read_bytes() == b"of somebody else"
    assert client.download(client.hit("a.wav"), target, force=True) == target
    assert target.read_bytes() == CONTENT
    with pytest.raises(ValueError, match="must be positive"):
        client.hit("a.wav", number=-1)


def test_where_a_file_system_has_no_links_a_file_is_not_overwritten_either(world, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    _, _, client = world
    target = tmp_path / "b.wav"
    client.download(client.hit("b.wav"), target)
    assert target.read_bytes() == SONGS["b.wav"]
    with pytest.raises(FileThereError):
        client.download(client.hit("a.wav"), target)
    assert target.read_bytes() == SONGS["b.wav"]


def test_several_holders_send_at_once(world, note, tmp_path):
    _, server, client = world
    other = note(FakeServer(SONGS))
    server.others.append(other)
    client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT
    assert min(server.sent, other.sent) > 0
    assert server.sent + other.sent >= 14


@pytest.mark.requirement("M39")
def test_when_a_holder_dies_another_is_taken_up_and_the_server_told(world, note, tmp_path, make):
    broker, server, client = world
    dying, other = note(FakeServer(SONGS)), note(FakeServer(SONGS))
    dying.dies_after = 7  # half of it
    del server.songs["a.wav"]
    server.others = [dying]
    hit = client.hit("a.wav")
    server.others = [dying, other]
    assert [holder.endpoint for holder in hit.holders] == [dying.endpoint]
    # with patience for a busy machine: whoever is only slow is not asked twice
    with make(broker.endpoint, timeout=60.0, patience=60.0) as patient:
        patient.download(hit, tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT
    assert dying.sent == 7
    assert 7 <= other.sent <= 14  # what was on its way when it died is asked for again
    stale = [json.loads(rest[0]) for rest in server.said(wire.STALE)]
    assert stale == [{"song": "a.wav", "endpoint": dying.endpoint}]
    assert json.loads(server.said(wire.SEARCH)[-1][0])["fresh"] is True


@pytest.mark.parametrize("fault", ["not there", "refuses", "nobody", "silent"])
def test_a_holder_that_does_not_send_is_left_for_another(world, note, tmp_path, fault, make):
    broker, server, _ = world
    bad = note(FakeServer(SONGS))
    endpoint = nobody() if fault == "nobody" else bad.endpoint
    if fault == "not there":
        bad.songs.clear()
    elif fault == "refuses":
        bad.refuses[wire.FETCH] = (503, "going")
    elif fault == "silent":
        bad.silent = {wire.FETCH}
    hit = Hit(server.song("a.wav"), (Holder(endpoint),))
    with make(broker.endpoint, timeout=30.0, patience=0.5) as client:
        client.download(hit, tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT
    assert json.loads(server.said(wire.STALE)[0][0])["endpoint"] == endpoint


def test_nobody_left_is_told_with_all_that_failed(world, note, tmp_path):
    _, server, client = world
    gone = nobody()
    hit = Hit(server.song("a.wav"), (Holder(gone), Holder("tcp://no address")))
    del server.songs["a.wav"]
    with pytest.raises(NoServerError, match="nobody is left who sends") as told:
        client.download(hit, tmp_path / "a.wav")
    assert gone in told.value.problem.why
    assert "no address" in told.value.problem.why
    assert told.value.stage is Stage.DOWNLOAD


def test_a_download_goes_on_where_it_ended(world, tmp_path):
    _, server, client = world
    (tmp_path / "a.wav.part").write_bytes(CONTENT[:2_000_001])
    client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT
    offsets = sorted(wire.read_number(rest[1]) for rest in server.said(wire.FETCH))
    assert offsets == [2_000_001 + number * 250_000 for number in range(6)]


@pytest.mark.parametrize("rubbish", [bytes(500_000), bytes(5_000_000), CONTENT[:-1] + b"x"])
def test_a_partial_file_of_something_else_costs_time_and_no_more(world, tmp_path, rubbish):
    _, _, client = world
    (tmp_path / "a.wav.part").write_bytes(rubbish)
    client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT


def test_a_stopped_download_keeps_what_is_there(world, tmp_path):
    _, server, client = world
    server.silent = {wire.FETCH}
    (tmp_path / "a.wav.part").write_bytes(CONTENT[:1000])
    stop = threading.Event()
    threading.Thread(target=lambda: (server.wait_for(wire.FETCH), stop.set())).start()
    with pytest.raises(MusicStoppedError):
        client.download(client.hit("a.wav"), tmp_path / "a.wav", stop=stop)
    assert (tmp_path / "a.wav.part").read_bytes() == CONTENT[:1000]
    server.silent = set()
    client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT


def test_a_damaged_song_is_fetched_anew_from_others(world, note, tmp_path):
    _, server, client = world
    bad = note(FakeServer(SONGS))
    bad.damages = True
    hit = Hit(server.song("a.wav"), (Holder(bad.endpoint),))
    client.download(hit, tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT


def test_a_song_that_is_damaged_everywhere_is_an_error(world, tmp_path):
    _, server, client = world
    server.damages = True
    with pytest.raises(DamagedError, match="another SHA-256") as told:
        client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert told.value.stage is Stage.CHECK
    assert list(tmp_path.iterdir()) == []


def test_of_two_holders_the_one_that_is_not_damaged_is_found(world, note, tmp_path):
    _, server, client = world
    bad = note(FakeServer(SONGS))
    bad.damages = True
    server.others = [bad]
    client.download(client.hit("a.wav"), tmp_path / "a.wav")
    assert (tmp_path / "a.wav").read_bytes() == CONTENT


def test_what_an_original_server_told_without_size_and_digest_is_not_called_damaged(world, tmp_path):
    _, server, client = world
    hit = Hit(Song("a.wav", 0, "0" * 64), (Holder(server.endpoint),))
    calls = (lambda: client.download(hit, tmp_path / "a.wav"), lambda: client.read(hit, 0, 10))
    for call in calls:
        with pytest.raises(UntoldError, match=r"a\.wav cannot be downloaded") as told:
            call()
        assert "original server" in told.value.problem.why
    assert list(tmp_path.iterdir()) == []
    assert not server.counts[wire.FETCH]


def test_a_hit_with_a_digest_is_taken_before_one_without(world, tmp_path):
    _, server, client = world
    found = server._found

    def with_original(query):
        told = found(query)
        original = Hit(Song("a.wav", 0, "0" * 64), (Holder(nobody()),)).to_json()
        return {**told, "hits": [original, *told["hits"]][: query["limit"]]}

    server._found = with_original
    assert client.hit("a.wav") == server.hit("a.wav")
    assert list(client.search(name="a.wav").hits) == [server.hit("a.wav")]
    del server.songs["a.wav"]
    assert client.hit("a.wav").song.size == 0  # nobody else has it: it is found all the same


def test_two_downloads_to_one_file_do_not_mix(world, tmp_path):
    _, server, client = world
    server.silent = {wire.FETCH}
    hit, stop = client.hit("a.wav"), threading.Event()

    def download() -> None:
        with contextlib.suppress(MusicStoppedError):
            client.download(hit, tmp_path / "a", stop=stop)

    first = threading.Thread(target=download)
    first.start()
    server.wait_for(wire.FETCH)
    with pytest.raises(MusicError, match="is in use"):
        client.download(hit, tmp_path / "a")
    stop.set()
    first.join()


def test_a_download_that_opens_the_partial_file_of_one_that_just_ends_leaves_its_result_alone(
    world, tmp_path, monkeypatch
):
    _, _, client = world
    hit, target, lock = client.hit("a.wav"), tmp_path / "a", fcntl.flock

    def late(descriptor: int, how: int) -> None:
        """Have the other download end between opening and locking."""
        monkeypatch.setattr(fcntl, "flock", lock)
        client.download(hit, target)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    other = PartialFile(target, song_of("a.wav", b"other"))
    assert target.read_bytes() == CONTENT
    other.write(b"other")
    with pytest.raises(FileThereError):
        other.finish(force=False)
    other.close()
    assert target.read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_told(world, tmp_path):
    _, _, client = world
    (tmp_path / "file").write_text("")
    with pytest.raises(MusicError, match="cannot be written") as told:
        client.download(client.hit("a.wav"), tmp_path / "file" / "a.wav")
    assert told.value.stage is Stage.STORE


def test_parts_are_read_from_whoever_has_them(world, note):
    _, server, client = world
    hit = client.hit("a.wav")
    assert client.read(hit, 1000, 600_000) == CONTENT[1000:601_000]
    assert client.read(hit, len(CONTENT) - 5, 100) == CONTENT[-5:]
    assert client.read(hit, len(CONTENT), 100) == b""
    assert client.read(hit, 0, 0) == b""
    with pytest.raises(ValueError, match="negative"):
        client.read(hit, -1, 10)
    other = note(FakeServer(SONGS))
    server.others.append(other)
    del server.songs["a.wav"]
    assert client.read(hit, 5, 10) == CONTENT[5:15]
    assert other.sent == 1


def test_connections_to_holders_are_used_again(world):
    client = world[2]
    hit = client.hit("a.wav")
    client.read(hit, 0, 10)
    kept = list(client._holders.idle)
    assert len(kept) == 1
    began = time.monotonic()
    for _ in range(20):
        client.read(hit, 0, 10)
    assert client._holders.idle == kept
    assert time.monotonic() - began < 20


# --- adverts ----------------------------------------------------------------------------------------------------------


class AdvertServer(FakeServer):
    """Has an advert, in both forms."""

    advert = CONTENT[:600_000]
    gone_at = len(CONTENT)
    """From which offset on it says that there is no such file."""

    def answer(self, message):
        if message.word == wire.ADVERT:
            if message.extended:
                return [wire.answer(message, wire.ADVERT, b"buy.wav")]
            return [(*message.envelope, b"buy.wav")]
        if message.word == wire.FETCH and message.rest[0] == wire.ADVERT:
            offset, size = map(wire.read_number, message.rest[2:])
            if offset >= self.gone_at:
                not_found = wire.answer(message, wire.NOT_FOUND, message.rest[1])
                return [not_found if message.extended else (*message.envelope, wire.NOT_FOUND)]
            data = self.advert[offset : offset + size]
            if message.extended:
                return [wire.answer(message, wire.DATA, wire.number(offset), data)]
            return [(*message.envelope, data)]
        return super().answer(message)


@pytest.mark.requirement("M36")
@pytest.mark.parametrize("content", [CONTENT[:600_000], CONTENT[:500_000], b"NF", b""])
def test_an_advert_comes_byte_by_byte(note, content, make):
    server = note(AdvertServer())
    server.advert = content
    with make(server=server.endpoint, timeout=30.0) as client:
        assert client.advert() == ("buy.wav", content)


def test_an_advert_that_is_taken_away_meanwhile_is_an_error_and_no_content(note, make):
    server = note(AdvertServer())
    server.gone_at = 250_000
    with (
        make(server=server.endpoint, timeout=30.0) as client,
        pytest.raises(NotFoundError, match=r"buy\.wav is gone"),
    ):
        client.advert()


def test_an_advert_that_is_too_large_is_an_error(note, monkeypatch, make):
    monkeypatch.setattr("scale0_musicquest.client.setup.MAX_ADVERT", 400_000)
    server = note(AdvertServer())
    with make(server=server.endpoint, timeout=30.0) as client, pytest.raises(MusicError, match="too large"):
        client.advert()


@pytest.mark.parametrize("told", [(wire.ADVERT,), (wire.ADVERT, b"../x"), (wire.OK, b"buy.wav")])
def test_an_advert_that_is_told_of_in_no_sensible_way_is_an_error(note, told, make):
    server = note(FakeServer())
    answer = server.answer
    server.answer = lambda message: (
        [wire.answer(message, *told)] if message.word == wire.ADVERT else answer(message)
    )  # fmt: skip
    with make(server=server.endpoint, timeout=30.0) as client, pytest.raises(MusicError, match="cannot be read"):
        client.advert()


def test_waiting_for_holders_that_are_gone_costs_no_cpu_time(note, tmp_path, make):
    """All holders are gone, and the server takes 2 seconds to say that it knows no other."""
    server = note(FakeServer())
    server.silent = {wire.SEARCH}
    broker = note(FakeBroker(server))
    stop, used = threading.Event(), []

    def download(client) -> None:
        start = time.process_time()
        with contextlib.suppress(MusicStoppedError):
            client.download(Hit(song_of("gone.wav", CONTENT), (Holder(nobody()),)), tmp_path / "gone.wav", stop=stop)
        used.append(time.process_time() - start)

    with make(broker.endpoint, timeout=30.0) as client:
        thread = threading.Thread(target=download, args=(client,))
        thread.start()
        server.wait_for(wire.SEARCH)  # so the holder is known to be gone, and nobody is left to wait for
        time.sleep(2)
        stop.set()
        thread.join(30)
    assert used[0] < 0.5


# --- what only one flavour has ----------------------------------------------------------------------------------------


def test_a_download_that_is_cancelled_keeps_what_is_there(note, tmp_path):
    server = note(FakeServer(SONGS))
    server.silent = {wire.FETCH}
    (tmp_path / "a.wav.part").write_bytes(CONTENT[:1000])

    async def main() -> None:
        async with aio.MusicClient(server=server.endpoint, timeout=30.0) as client:
            hit = await client.hit("a.wav")
            download = asyncio.create_task(client.download(hit, tmp_path / "a.wav"))
            await asyncio.to_thread(server.wait_for, wire.FETCH)
            download.cancel()
            with pytest.raises(asyncio.CancelledError):
                await download
            assert (tmp_path / "a.wav.part").read_bytes() == CONTENT[:1000]
            server.silent = set()
            await client.download(hit, tmp_path / "a.wav")

    asyncio.run(main())
    assert (tmp_path / "a.wav").read_bytes() == CONTENT


def test_a_search_that_is_cancelled_harms_no_other(note):
    server = note(FakeServer(SONGS))
    server.silent = {wire.SEARCH}

    async def main() -> None:
        async with aio.MusicClient(server=server.endpoint, timeout=30.0) as client:
            for ask in (client.search("a"), client.top(endpoint=server.endpoint)):
                asking = asyncio.create_task(ask)
                await asyncio.sleep(0)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
            server.silent = set()
            assert [song.name for song in (await client.songs(server.endpoint))[1]] == sorted(SONGS)
            found = await asyncio.gather(*(client.search(name=name) for name in SONGS))
            assert [one.hits[0].song.name for one in found] == list(SONGS)

    asyncio.run(main())


def test_a_client_that_nobody_has_any_more_says_goodbye(note):
    server = note(FakeServer(SONGS))
    client = MusicClient(server=server.endpoint)
    client.search("a")
    del client
    gc.collect()
    server.wait_for(wire.BYE)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_all_clients_as_well(world, make):
    _, server, client = world
    server.silent = {wire.SEARCH, wire.STATS}
    impatient = make(server=server.endpoint, timeout=0.3)
    for ask in (lambda: impatient.search("x"), lambda: impatient.stats(server.endpoint)):
        with pytest.raises(CallTimedOutError) as told:
            ask()
        assert isinstance(told.value, MusicTimeoutError)
        assert told.value.code == 408
    client.close()
    with pytest.raises(ClosedError):
        client.search("x")
    assert issubclass(NoBrokerError, AnyNoBrokerError)
