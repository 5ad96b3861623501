"""Songs on their way to clients: whole, in order, fairly, and never more than is there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import JobResult
from scale0_musicquest import wire

from .server_world import Talk, sha256

CHUNK = 1024
SIZES = {"empty": 0, "one": 1, "short": CHUNK - 1, "exact": CHUNK, "twice": 2 * CHUNK, "longer": 3 * CHUNK + 7}


def content(size):
    return bytes(number * 31 % 251 for number in range(size))


@pytest.fixture
def talk(tmp_path):
    songs = {f"{name}.ogg": content(size) for name, size in SIZES.items()}
    return Talk(tmp_path, {**songs, "not-found.ogg": b"NF"}, chunk=CHUNK)


def download(talk, name, extended=True):
    """Fetch a song chunk by chunk until a chunk is short."""
    data = b""
    while True:
        place = wire.number(len(data)), wire.number(CHUNK)
        if extended:
            word, offset, part = talk.extended("c", "fetch", "t", name, *place)
            assert word == b"data"
            assert wire.read_number(offset) == len(data)
        else:
            ((part,),) = talk.ask("c", "fetch", name, *place)
        data += part
        if len(part) < CHUNK:
            return data


@pytest.mark.requirement("M6")
@pytest.mark.requirement("M9")
@pytest.mark.requirement("M32")
@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_songs_of_any_size_come_whole(talk, name, size, extended):
    """Also an empty one, and one of exactly n chunks."""
    assert download(talk, f"{name}.ogg", extended) == content(size)
    assert talk.service.uploads.counts.whole == 1


@pytest.mark.requirement("M32")
def test_a_song_whose_content_is_nf_can_be_told_from_one_that_is_not_there(talk):
    """The original could not."""
    assert talk.extended("c", "fetch", "t", "not-found.ogg", bytes(8), wire.number(9)) == [b"data", bytes(8), b"NF"]
    assert talk.extended("c", "fetch", "t", "nowhere.ogg", bytes(8), wire.number(9)) == [b"NF", b"nowhere.ogg"]


@pytest.mark.requirement("M32")
def test_chunks_asked_for_ahead_come_in_order_with_their_offsets(tmp_path):
    talk = Talk(tmp_path, {"long.ogg": content(20_000)}, chunk=CHUNK)
    for number in range(10):
        place = wire.number(number * 2000), wire.number(2000)
        talk.feed("clients", "c", "ZMQ01", "fetch", f"t{number}", "long.ogg", *place)
    talk.sleep(1)
    answers = talk.answers("c")
    assert [frames[2] for frames in answers] == [b"t%d" % number for number in range(10)]
    assert b"".join(frames[4] for frames in answers) == content(20_000)


def test_no_more_than_a_mebibyte_is_read_at_once(tmp_path):
    talk = Talk(tmp_path, {"large.ogg": bytes(3 << 20)})
    *_, part = talk.extended("c", "fetch", "t", "large.ogg", bytes(8), b"\xff" * 8)
    assert len(part) == 1 << 20
    assert talk.extended("c", "fetch", "t", "large.ogg", b"\xff" * 8, b"\xff" * 8)[-1] == b""


def test_a_client_may_have_so_many_requests_waiting_and_no_more(tmp_path):
    talk = Talk(tmp_path, {"long.ogg": content(20_000)}, credit=4)
    service, now = talk.service, talk.now
    effects = []
    for number in range(8):
        effects += service.receive(
            "clients", (b"c", b"ZMQ01", b"fetch", b"%d" % number, b"long.ogg", bytes(8), wire.number(9)), now
        )
    refused = [effect[1] for effect in effects if isinstance(effect, tuple)]
    assert [frames[3:5] for frames in refused] == [(b"%d" % number, b"429") for number in range(4, 8)]
    assert service.uploads.counts.refused == 4


def test_clients_take_turns(tmp_path):
    talk = Talk(tmp_path, {"large.ogg": bytes(4 << 20)})
    service, now = talk.service, talk.now
    jobs = []

    def fetch(peer, number):
        frames = (peer, b"ZMQ01", b"fetch", b"%d" % number, b"large.ogg", bytes(8), wire.number(1 << 20))
        jobs.extend(service.receive("clients", frames, now))

    for number in range(20):
        fetch(b"greedy", number)
    fetch(b"modest", 0)
    assert [job.key for job in jobs] == [("read", b"greedy"), ("read", b"modest")]
    assert len(jobs[0].argument) == 1


def test_what_cannot_be_read_is_an_error_and_what_has_changed_is_not_found(tmp_path):
    talk = Talk(tmp_path, {"a.ogg": content(100)})
    talk.fail_next_job(OSError(5, "the disk is on fire"))
    assert talk.extended("c", "fetch", "t", "a.ogg", bytes(8), wire.number(9))[:2] == [b"ERROR", b"503"]
    (tmp_path / "music" / "a.ogg").unlink()
    assert talk.extended("c", "fetch", "t", "a.ogg", bytes(8), wire.number(9)) == [b"NF", b"a.ogg"]
    assert talk.service.uploads.counts.failed == 1


def test_nothing_is_sent_to_a_client_that_has_left(tmp_path):
    talk = Talk(tmp_path, {"a.ogg": content(100)})
    talk.feed("clients", "c", "ZMQ01", "bye", "b")
    effects = talk.service.receive("clients", (b"c", b"fetch", b"a.ogg", bytes(8), wire.number(9)), talk.now)
    talk.service.receive("clients", (b"c", b"ZMQ01", b"bye", b"b"), talk.now)
    (job,) = effects
    assert list(talk.service.on_job(JobResult(job.token, job.function(job.argument)), talk.now)) == []
    assert talk.service.uploads.load == 0


def test_load_is_clients_for_the_capacity(tmp_path):
    talk = Talk(tmp_path, {"a.ogg": b"a"}, capacity=4)
    for peer in ("c", "d"):
        talk.extended(peer, "hello", "t", {})
    told = json.loads(talk.extended("c", "search", "u", {"name": "a.ogg"})[1])
    assert told["hits"][0]["holders"][0]["load"] == 0.5


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M20")
def test_songs_come_and_go_while_the_server_runs(tmp_path):
    talk = Talk(tmp_path, {"a.ogg": b"a"}, rescan=10.0)
    music = tmp_path / "music"
    (music / "b.ogg").write_bytes(b"b")
    assert talk.ask("c", "search", "1", "b.ogg") == [(b"NF",)]
    talk.sleep(60)
    assert talk.extended("c", "fetch", "t", "b.ogg", bytes(8), wire.number(9))[-1] == b"b"
    assert json.loads(talk.extended("c", "search", "2", {"name": "b.ogg"})[1])["hits"][0]["sha256"] == sha256(b"b")
    (music / "a.ogg").unlink()
    talk.sleep(60)
    assert talk.ask("c", "search", "3", "a.ogg") == [(b"NF",)]
    assert [song.name for song in talk.service.library] == ["b.ogg"]


def test_a_folder_that_is_not_there_is_looked_for_again(tmp_path):
    talk = Talk(tmp_path, {"a.ogg": b"a"}, rescan=10.0)
    talk.fail_next_job(OSError(2, "no such folder"))
    talk.sleep(60)
    assert talk.ask("c", "search", "1", "a.ogg") == [(b"tcp://127.0.0.1:5556",)]


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([0, 1, 99, 100, 101]),
    offset=st.integers(0, 2**64 - 1) | st.integers(0, 120),
    wanted=st.integers(0, 2**64 - 1) | st.integers(0, 120),
)
def test_any_offset_and_size_give_what_a_slice_would(tmp_path_factory, size, offset, wanted):
    talk = Talk(tmp_path_factory.mktemp("any"), {"a.ogg": content(size)})
    *_, part = talk.extended("c", "fetch", "t", "a.ogg", wire.number(offset), wire.number(wanted))
    assert part == content(size)[offset : offset + wanted]
