"""Songs on their way to clients: whole, in order, fairly, and never more than is there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import JobResult
from scale0_musicquest import wire
from scale0_musicquest.service.server.uploads import HOLD

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


@pytest.mark.requirement("M32")
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1500, 2048])
def test_an_original_client_that_reads_ahead_gets_the_song_before_its_end(tmp_path, size):
    """Its answers do not say what they answer: a short or an empty one is the end."""
    talk = Talk(tmp_path, {"song.ogg": content(size), "next.ogg": b"next"}, job_delay=0.01)
    for number in range(4):
        talk.feed("clients", "c", "fetch", "song.ogg", wire.number(number * CHUNK), wire.number(CHUNK))
    talk.feed("clients", "c", "fetch", "nowhere.ogg", bytes(8), wire.number(CHUNK))
    talk.feed("clients", "c", "fetch", "next.ogg", bytes(8), wire.number(CHUNK))
    talk.sleep(1)
    parts = [content(size)[start : start + CHUNK] for start in range(0, 4 * CHUNK, CHUNK)]
    assert talk.answers("c") == [(part,) for part in [*parts, b"NF", b"next"]]


def test_an_original_client_that_asks_for_too_much_is_told_so_in_its_turn(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(5000)}, job_delay=0.01, credit=2)
    for number in range(5):
        talk.feed("clients", "c", "fetch", "song.ogg", wire.number(number), wire.number(1))
    talk.sleep(1)
    answers = talk.answers("c")
    assert answers[:2] == [(content(5000)[:1],), (content(5000)[1:2],)]
    assert [frames[0] for frames in answers[2:]] == [b"ERROR"] * 3
    assert talk.ask("d", "fetch", "song.ogg", bytes(8), wire.number(1)) == []
    talk.sleep(1)
    assert talk.answers("d") == [(content(5000)[:1],)]


def test_the_refusals_that_wait_are_bounded(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(5000)}, job_delay=1000.0)
    for _ in range(3000):
        talk.feed("clients", "c", "fetch", "song.ogg", bytes(8), wire.number(1))
    (client,) = talk.service.uploads.clients.values()
    assert len(client.waiting) < 1100
    talk.sleep(10_000)
    assert len(talk.answers("c")) == 3000


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


def test_nothing_is_read_for_a_client_that_does_not_take_what_it_was_sent(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(5000)})
    service = talk.service

    def fetch(peer):
        talk.feed("clients", peer, "ZMQ01", "fetch", "t", "song.ogg", bytes(8), wire.number(10))

    fetch("c")
    for _ in range(10):  # the broker tells it each time that it tries again
        service.on_delayed("clients", (b"c", b"data"), talk.now)
        service.on_sent("clients", (b"c", b"earlier"), talk.now)
        fetch("c")
        talk.sleep(0.02)
    assert len(talk.answers("c")) == 1
    fetch("d")
    assert len(talk.answers("d")) == 1
    talk.sleep(HOLD + 0.05)
    assert len(talk.answers("c")) == 11
    service.on_undelivered("clients", (b"c", b"data"), "EAGAIN", talk.now)
    fetch("c")
    assert len(talk.answers("c")) == 11
    talk.sleep(HOLD + 0.05)
    assert len(talk.answers("c")) == 12
    assert service.uploads.counts.failed == 1
    service.on_delayed("children", (b"c", b"x"), talk.now)
    service.on_delayed("clients", (b"stranger", b"x"), talk.now)
    fetch("c")
    assert len(talk.answers("c")) == 13


def test_a_client_that_is_held_and_leaves_is_forgotten(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(5000)})
    talk.extended("c", "hello", "h")
    talk.service.on_delayed("clients", (b"c", b"data"), talk.now)
    talk.feed("clients", "c", "ZMQ01", "fetch", "t", "song.ogg", bytes(8), wire.number(10))
    talk.feed("clients", "c", "ZMQ01", "bye", "b")
    before = len(talk.answers("c"))
    talk.sleep(1)
    assert len(talk.answers("c")) == before
    assert talk.service.uploads.load == 0


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


def downloads(events):
    told = [event[0].table(event) for event in events if event[0].name == "song_download"]
    return [(one["subject"], one["bytes"], one["outcome"] == "ok") for one in told]


def test_a_download_shared_by_two_holders_is_told_by_both(tmp_path):
    """One sends the first half, the other the second; neither sends all."""
    for place, (start, complete) in enumerate([(0, False), (2 * CHUNK, True)]):
        talk = Talk(tmp_path / str(place), {"song.ogg": content(4 * CHUNK)})
        events = talk.service.events = []
        for offset in (start, start + CHUNK):
            talk.extended("c", "fetch", "t", "song.ogg", wire.number(offset), wire.number(CHUNK))
        talk.extended("c", "bye", "t")
        assert downloads(events) == [("song.ogg", 2 * CHUNK, complete)]
        counts = talk.service.uploads.counts
        assert (counts.downloads, counts.whole) == (1, complete)


def test_a_download_that_is_resumed_is_told_and_one_begun_anew_is_another(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(3 * CHUNK)})
    events = talk.service.events = []
    for offset in (CHUNK, 2 * CHUNK, 3 * CHUNK):  # the last asks for nothing
        talk.extended("c", "fetch", "t", "song.ogg", wire.number(offset), wire.number(CHUNK))
    assert downloads(events) == [("song.ogg", 2 * CHUNK, True)]
    for offset in (0, CHUNK, 0):
        talk.extended("c", "fetch", "t", "song.ogg", wire.number(offset), wire.number(CHUNK))
    assert downloads(events)[1:] == [("song.ogg", 2 * CHUNK, False)]
    assert talk.service.uploads.counts.downloads == 3
    assert [name for name, _ in talk.service.popularity.top(5, talk.now)] == ["song.ogg"]


def test_what_could_not_be_sent_is_no_download_that_is_told(tmp_path):
    talk = Talk(tmp_path, {"song.ogg": content(CHUNK)})
    events = talk.service.events = []
    talk.fail_next_job(OSError(5, "the disk is on fire"))
    talk.extended("c", "fetch", "t", "song.ogg", bytes(8), wire.number(CHUNK))
    talk.extended("c", "bye", "t")
    assert downloads(events) == []


def test_of_many_downloads_at_once_the_oldest_is_followed_no_longer(tmp_path):
    talk = Talk(tmp_path, {f"{number:02}.ogg": content(2 * CHUNK) for number in range(65)})
    events = talk.service.events = []
    for number in range(65):
        talk.extended("c", "fetch", "t", f"{number:02}.ogg", bytes(8), wire.number(CHUNK))
    assert downloads(events) == [("00.ogg", CHUNK, False)]


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
