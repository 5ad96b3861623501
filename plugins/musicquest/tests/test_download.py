"""The chunks of a song on their way: each once, in order, from whoever has them; against a model of all bytes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_musicquest.download import Download, Request
from scale0_musicquest.songs import Song


def song_of(size: int) -> Song:
    return Song("tune.wav", size, hashlib.sha256(bytes(size)).hexdigest())


def download_of(size: int, *holders: str, chunk: int = 10, credit: int = 3, **options) -> Download:
    return Download(song_of(size), holders, chunk=chunk, credit=credit, **options)


@pytest.mark.requirement("M32")
def test_several_chunks_are_under_way_in_order_and_none_past_the_end():
    download = download_of(45, "a", patience=5.0)
    assert download.start(0.0) == [Request("a", 0, 10), Request("a", 10, 10), Request("a", 20, 10)]
    assert download.data("a", 0, 10, 0.1) == [Request("a", 30, 10)]
    assert download.data("a", 10, 10, 0.1) == [Request("a", 40, 5)]
    for offset, size in ((20, 10), (30, 10), (40, 5)):
        assert download.wanted("a", offset, size)
        assert download.data("a", offset, size, 0.2) == []
    assert download.done
    assert (download.position, download.received, download.next_deadline()) == (45, 45, None)


@pytest.mark.parametrize("size", [0, 10, 30])
@pytest.mark.parametrize("before", [0, 10])
def test_an_empty_song_and_exact_multiples_end_without_a_request_too_many(size, before):
    have = min(size, before)
    download = download_of(size, "a", have=have)
    asked = download.start(0.0)
    assert sum(request.size for request in asked) == size - have
    for request in asked:
        assert download.data("a", request.offset, request.size, 0.1) == []
    assert download.done
    assert not download.needs_holders


def test_holders_share_the_chunks_and_the_faster_gets_more():
    download = download_of(1000, "fast", "slow")
    asked = download.start(0.0)
    assert [request.holder for request in asked] == ["fast", "slow"] * 3
    fast = [request for request in asked if request.holder == "fast"]
    for _ in range(20):
        fast += download.data("fast", fast.pop(0).offset, 10, 0.1)
    assert download.received == 200
    assert all(request.holder == "fast" for request in fast)


def test_what_came_late_or_twice_or_unasked_is_not_wanted():
    download = download_of(100, "a", "b", credit=2)
    download.start(0.0)
    assert not download.wanted("b", 0, 10)
    assert not download.wanted("a", 5, 10)
    assert not download.wanted("a", 0, 9)
    assert not download.wanted("c", 0, 10)
    assert download.data("c", 0, 10, 0.0) == []
    download.data("a", 0, 10, 0.0)
    assert not download.wanted("a", 0, 10)
    assert download.data("a", 0, 10, 0.0) == []
    assert download.received == 10


def test_chunks_of_a_lost_holder_go_to_the_others_first():
    download = download_of(200, "a", "b", credit=2)
    download.start(0.0)
    assert download.lost("a", 0.1) == []  # b has no credit left
    assert download.data("b", 10, 10, 0.2) == [Request("b", 0, 10)]
    assert download.data("b", 30, 10, 0.2) == [Request("b", 20, 10)]
    assert not download.wanted("a", 0, 10)


def test_nobody_left_is_told_and_a_new_holder_goes_on():
    download = download_of(100, "a")
    download.start(0.0)
    download.data("a", 10, 10, 0.0)
    assert download.lost("a", 0.1) == []
    assert download.needs_holders
    assert (download.position, download.received, download.active) == (0, 10, ())
    assert [request.offset for request in download.add("b", 0.2)] == [0, 20, 30]
    assert not download.needs_holders


def test_a_silent_holder_gets_company_and_is_lost_after_twice_the_patience():
    download = download_of(40, "a", "b", patience=5.0, credit=2)
    download.start(0.0)
    for offset in (10, 30):
        download.data("b", offset, 10, 4.0)
    assert download.next_deadline() == 5.0
    assert download.on_deadline(5.0) == [Request("b", 0, 10), Request("b", 20, 10)]
    assert download.active == ("a", "b")
    assert download.wanted("a", 0, 10)  # late, but the first
    download.data("a", 0, 10, 6.0)
    assert not download.wanted("b", 0, 10)
    assert download.data("b", 0, 10, 6.0) == []
    assert download.received == 30
    download.on_deadline(11.0)
    assert download.on_deadline(16.0) == []
    assert download.needs_holders


def test_a_holder_that_is_slow_but_answers_is_kept():
    download = download_of(100, "a", patience=5.0, credit=10)
    download.start(0.0)
    for number in range(10):
        now = 4.0 * (number + 1)
        assert download.next_deadline() > now
        assert download.wanted("a", number * 10, 10)
        download.data("a", number * 10, 10, now)
    assert download.done


def test_the_last_chunks_of_a_slow_holder_are_asked_of_one_without_work():
    download = download_of(60, "fast", "slow", patience=60.0, credit=3)
    download.start(0.0)
    for offset in (0, 20, 40):
        assert download.data("fast", offset, 10, 0.1) == []
    due = download.next_deadline()
    assert 0.1 < due < 1.0
    assert download.on_deadline(due - 0.01) == []
    assert download.on_deadline(due) == [Request("fast", offset, 10) for offset in (10, 30, 50)]


def test_nothing_is_asked_further_ahead_than_the_window_and_the_slow_do_not_hold_up_the_rest():
    download = download_of(1000, "fast", "slow", patience=60.0, credit=2, window=6)
    asked = [request for request in download.start(0.0) if request.holder == "fast"]
    while asked:
        asked += download.data("fast", asked.pop(0).offset, 10, 0.01)
    assert (download.position, download.received) == (10, 50)  # 0, 20, 40, 50, 60; the slow one has 10 and 30
    assert download.on_deadline(download.next_deadline()) == [Request("fast", 10, 10), Request("fast", 30, 10)]
    assert download.data("fast", 10, 10, 1.0) == [Request("fast", 70, 10)]


def test_a_holder_whose_song_is_shorter_is_lost():
    download = download_of(100, "a")
    download.start(0.0)
    assert not download.wanted("a", 0, 3)
    download.data("a", 0, 3, 0.0)
    assert download.needs_holders


@pytest.mark.parametrize(
    "wrong", [{"have": 101}, {"have": -1}, {"chunk": 0}, {"chunk": 2**21}, {"credit": 0}, {"window": 0}]
)
def test_impossible_downloads_are_refused(wrong):
    with pytest.raises(ValueError, match=r"bytes"):
        download_of(100, "a", **wrong)


class World:
    """Holders that answer late, twice, with something else or not at all, and a caller that does as it is told."""

    def __init__(self, size: int, chunk: int, credit: int, have: int, holders: int, window: int) -> None:
        self.content = bytes(number * 7 % 251 for number in range(size))
        self.file = bytearray(self.content[:have].ljust(size, b"\0"))
        self.written = [offset < have for offset in range(size)]
        self.now = 0.0
        self.open: dict[str, list[Request]] = {}
        """What a holder was asked for and did not say anything about."""
        self.lost_answers = 0
        self.known = holders
        self.window = window * chunk
        self.download = Download(
            song_of(size), [f"h{number}" for number in range(holders)], have=have, chunk=chunk, credit=credit,
            window=window,
        )  # fmt: skip
        self.send(self.download.start(self.now))

    def send(self, requests: list[Request]) -> None:
        for request in requests:
            assert request.holder in self.download.active
            assert 0 < request.size <= self.download.chunk
            assert request.offset + request.size <= len(self.content)
            assert request.offset < self.download.position + self.window
            self.open.setdefault(request.holder, []).append(request)
        for holder in self.download.active:
            assert len(self.open.get(holder, [])) <= self.download.credit + self.lost_answers

    def answer(self, request: Request, data: bytes) -> None:
        if self.download.wanted(request.holder, request.offset, len(data)):
            span = range(request.offset, request.offset + len(data))
            assert not any(self.written[offset] for offset in span)
            self.file[request.offset : request.offset + len(data)] = data
            for offset in span:
                self.written[offset] = True
        self.send(self.download.data(request.holder, request.offset, len(data), self.now))

    def check(self) -> None:
        download = self.download
        assert download.received == sum(self.written)
        there = self.written.index(False) if False in self.written else len(self.written)
        assert download.position == there
        assert download.done == all(self.written)
        assert download.needs_holders == (not download.done and not download.active)
        due = download.next_deadline()
        assert (due is None) == (download.done or download.needs_holders)  # so it never hangs

    def step(self, draw) -> None:
        kind = draw(st.sampled_from(["answer", "answer", "answer", "twice", "lose", "short", "gone", "new", "time"]))
        self.now += draw(st.sampled_from([0.0, 0.01, 0.5]))
        waiting = [holder for holder, requests in self.open.items() if requests]
        if kind == "new" or not self.download.active:
            self.known += 1
            self.send(self.download.add(f"h{self.known}", self.now))
        elif kind == "time" or not waiting:
            due = self.download.next_deadline()
            self.now = max(self.now, due or 0.0)
            self.send(self.download.on_deadline(self.now))
        elif kind == "gone":
            holder = draw(st.sampled_from(waiting))
            self.open.pop(holder)
            self.send(self.download.lost(holder, self.now))
        else:
            requests = self.open[draw(st.sampled_from(waiting))]
            request = requests.pop(draw(st.integers(0, len(requests) - 1)))
            data = self.content[request.offset : request.offset + request.size]
            if kind == "lose":
                self.lost_answers += 1
            elif kind == "short":
                self.answer(request, data[:-1])
            else:
                for _ in range(1 + (kind == "twice")):
                    self.answer(request, data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_byte_comes_once_whatever_holders_do(data):
    chunk = data.draw(st.integers(1, 7), "chunk")
    size = data.draw(st.integers(0, 60) | st.integers(0, 9).map(lambda times: times * chunk), "size")
    have = data.draw(st.integers(0, size), "have")
    credit, window = data.draw(st.integers(1, 4), "credit"), data.draw(st.integers(1, 12), "window")
    world = World(size, chunk, credit, have, data.draw(st.integers(0, 3), "holders"), window)
    world.check()
    for _ in range(data.draw(st.integers(0, 60), "steps")):
        if world.download.done:
            break
        world.step(data.draw)
        world.check()
    # from here on a holder that does what it should brings it to its end
    while not world.download.done:
        if "honest" not in world.download.active:
            world.send(world.download.add("honest", world.now))
        if requests := world.open.get("honest"):
            request = requests.pop(0)
            world.answer(request, world.content[request.offset : request.offset + request.size])
        else:
            world.now = max(world.now, world.download.next_deadline())
            world.send(world.download.on_deadline(world.now))
        world.check()
    assert bytes(world.file) == world.content
