"""The client with the real broker and real servers, in processes of their own."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable

import pytest

from scale0_musicquest.client import NotFoundError
from scale0_musicquest.songs import Hit

from .music_town import PATIENCE, Town, endpoint_of

CONTENT = random.Random(2).randbytes(30_000_001)
SMALL = {"nf.wav": b"NF", "exact.wav": CONTENT[:1_000_000], "ünï.wav": b"unicode"}


@pytest.fixture
def town(scale0_broker, tmp_path, flavour):
    return Town(scale0_broker, tmp_path, flavour)


@pytest.mark.requirement("M1")
@pytest.mark.requirement("M4")
@pytest.mark.requirement("M5")
@pytest.mark.requirement("M6")
def test_a_song_is_found_in_the_tree_and_comes_straight_from_its_holder(town, tmp_path):
    town.add({"here.wav": b"here"})
    holder = town.add(SMALL)
    with town.client() as client:
        town.wait_for_songs(client, "here.wav", *SMALL)
        for name, content in SMALL.items():
            hit = client.hit(name)
            assert [one.endpoint for one in hit.holders] == [endpoint_of(holder)]
            assert client.download(hit, tmp_path / name).read_bytes() == content
            assert client.read(hit, 1, 3) == content[1:4]
        with pytest.raises(NotFoundError):
            client.hit("nobody.wav")
        wait_until(lambda: len(client.servers()) == 2)
        total, songs = client.songs(endpoint_of(holder))
        assert (total, {song.name for song in songs}) == (3, set(SMALL))
        assert client.stats(endpoint_of(holder))["songs"] == 3


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def hit_of(client, name: str, content: bytes, holders: int) -> Hit:
    """Wait until so many holders of this very song are found; others may have another one of this name."""
    digest = hashlib.sha256(content).hexdigest()
    end = time.monotonic() + PATIENCE
    while True:
        hits = client.search(name=name, fresh=True).hits
        found = [hit for hit in hits if hit.song.sha256 == digest]
        if found and len(found[0].holders) == holders:
            return found[0]
        assert time.monotonic() < end, hits
        time.sleep(0.1)


@pytest.mark.requirement("M32")
@pytest.mark.parametrize("at_own_server", [{"here.wav": b"here"}, {"big.wav": b"another song of this name"}])
@pytest.mark.parametrize("others", [1, 2])
def test_a_holder_that_is_killed_at_half_of_a_download_is_replaced(town, tmp_path, others, at_own_server, monkeypatch):
    monkeypatch.setattr("scale0_musicquest.client.transfer.SHOW_EVERY", 0.0)
    own = town.add(at_own_server, replicate_after=0, father="none")
    # all holders are children of the own server: who is killed is not on the way to the others
    father = own.address("musicquest-server", "children")
    victim = town.add({"big.wav": CONTENT}, replicate_after=0, father=father)
    # a holder that is slow because the machine is busy is waited for; one that is gone is noticed by its connection
    with town.client(server=endpoint_of(own), patience=PATIENCE) as client:
        hit = hit_of(client, "big.wav", CONTENT, holders=1)
        assert [one.endpoint for one in hit.holders] == [endpoint_of(victim)]
        for _ in range(others):
            town.add({"big.wav": CONTENT}, replicate_after=0, father=father)
        hit_of(client, "big.wav", CONTENT, holders=1 + others)
        killed: list[int] = []

        def at_half(progress) -> None:
            if not killed and progress.received >= len(CONTENT) // 2:
                victim.process.kill()
                victim.process.wait(timeout=60)
                killed.append(progress.received)

        client.download(hit, tmp_path / "big.wav", progress=at_half)
    assert len(CONTENT) // 2 <= killed[0] < len(CONTENT)
    assert (tmp_path / "big.wav").read_bytes() == CONTENT


def test_hits_have_the_same_order_whoever_is_asked(town):
    """Each server has its own song of each name, so each would tell of its own first."""
    contents = [f"take {number}".encode() for number in range(3)]
    for content in contents:
        town.add({"same.wav": content, f"{content.decode()}.wav": content})
    with town.client() as client:
        town.wait_for_songs(client, *(f"take {number}.wav" for number in range(3)))
    for query in ({"name": "same.wav"}, {"text": "take"}, {"text": "same"}, {"text": "take", "limit": 2}):
        orders = set()
        for server in town.servers:
            with town.client(server=endpoint_of(server)) as client:
                orders.add(tuple((hit.song.name, hit.song.sha256) for hit in client.search(**query, fresh=True).hits))
        assert len(orders) == 1, query
        (order,) = orders
        assert len(order) == min(3, query.get("limit", 3))


def test_the_own_server_dies_and_another_one_does_the_bidding(town):
    first = town.add({"a.wav": b"a"})
    with town.client() as client:
        town.wait_for_songs(client, "a.wav")
        wait_until(lambda: client.server == endpoint_of(first))
        second = town.add({"b.wav": b"b"})
        town.wait_for_songs(client, "a.wav", "b.wav")
        first.kill()
        town.wait_for_songs(client, "b.wav")
        wait_until(lambda: client.server == endpoint_of(second))


def test_many_clients_and_threads_download_at_once(town, tmp_path):
    town.add({"big.wav": CONTENT}, replicate_after=0)
    ends: list[bytes] = []

    def download(client, number: int) -> None:
        path = client.download(client.hit("big.wav"), tmp_path / f"{number}.wav")
        ends.append(path.read_bytes())

    with town.client() as one, town.client() as two:
        town.wait_for_songs(one, "big.wav")
        town.wait_for_songs(two, "big.wav")
        threads = [threading.Thread(target=download, args=((one, two)[number % 2], number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ends == [CONTENT] * 4


@pytest.mark.requirement("M36")
def test_an_advert_comes_from_the_own_server(town, tmp_path):
    adverts = tmp_path / "adverts"
    adverts.mkdir()
    content = CONTENT[:600_000]
    (adverts / "buy.wav").write_bytes(content)
    town.add({"a.wav": b"a"}, adverts=str(adverts))
    with town.client() as client:
        town.wait_for_songs(client, "a.wav")
        assert client.advert() == ("buy.wav", content)


@pytest.mark.requirement("M36")
def test_a_server_without_adverts_gives_none(town):
    town.add({"a.wav": b"a"})
    with town.client() as client:
        town.wait_for_songs(client, "a.wav")
        assert client.advert() is None
