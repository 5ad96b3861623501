"""A holder dies while the own server has another song of the same name: those who have the right one are found."""

from __future__ import annotations

import json
import random

import pytest

from .music_peers import FakeBroker, FakeServer, client_of, peers, song_of
from .server_world import Talk

CONTENT = random.Random(3).randbytes(3_333_333)


def hit_json(name: str, data: bytes, endpoint: str) -> dict:
    return {**song_of(name, data).to_json(), "holders": [{"endpoint": endpoint, "hops": 1}]}


class ServerWithAnother(FakeServer):
    """Has another song under the name, and tells of it first, as much as was asked for."""

    def _found(self, query: dict) -> dict:
        told = super()._found(query)
        for other in self.others:
            hit = other.hit(query["name"])
            if hit is not None:
                told["hits"].append(hit.to_json())
        return {**told, "hits": told["hits"][: query["limit"]]}

    def hit(self, name: str):
        others, self.others = self.others, []
        try:
            return super().hit(name)
        finally:
            self.others = others


@pytest.mark.real
@pytest.mark.requirement("M39")
@pytest.mark.parametrize("fault", ["dies", "damages"])
def test_another_song_of_the_name_at_the_own_server_does_not_hide_other_holders(tmp_path, fault, flavour):
    with peers() as note:
        own = note(ServerWithAnother({"x.wav": b"another"}))
        bad, good = note(FakeServer({"x.wav": CONTENT})), note(FakeServer({"x.wav": CONTENT}))
        if fault == "dies":
            bad.dies_after = 7
        else:
            bad.damages = True
        own.others = [bad, good]
        broker = note(FakeBroker(own))
        with client_of(flavour, broker.endpoint, timeout=30.0) as client:
            client.download(bad.hit("x.wav"), tmp_path / "x.wav")
    assert (tmp_path / "x.wav").read_bytes() == CONTENT
    assert good.sent >= 7


def test_a_fresh_search_waits_for_all_also_when_something_was_found(tmp_path):
    talk = Talk(tmp_path, {"x.wav": b"another"}, grace=0.05)
    talk.join("k", "kid", 7000)
    told = {"name": "x.wav", "timeout_ms": 5000, "limit": 1000}
    talk.feed("clients", "hasty", "ZMQ01", "search", "u1", json.dumps(told))
    talk.feed("clients", "fresh", "ZMQ01", "search", "u2", json.dumps({**told, "fresh": True}))
    talk.sleep(1.0)
    assert len(talk.answers("hasty")) == 1
    assert not talk.answers("fresh")
    talk.tell("k", "found", [["u2", [hit_json("x.wav", CONTENT, "tcp://127.0.0.1:7000")], True]])
    (answer,) = talk.answers("fresh")
    found = json.loads(answer[3])
    assert sorted(hit["size"] for hit in found["hits"]) == [7, len(CONTENT)]
    assert found["complete"]
