"""The list of a player and playlists: what comes next, and what is never skipped."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_musicquest.player import playlists
from scale0_musicquest.player.queue import PlayQueue, QueueError, Repeat, State, Track


def queue_of(*names: str, every: int = 0) -> PlayQueue:
    queue = PlayQueue(advert_every=every, random=Random(1))
    for name in names:
        if queue.add(Track(name)):
            queue.add_advert(Track("buy.wav"))
    return queue


def names(queue: PlayQueue) -> list[str]:
    return [entry.track.name for entry in queue]


def on(queue: PlayQueue) -> str:
    return queue.current.track.name if queue.current is not None else ""


@pytest.mark.requirement("M33")
def test_tracks_are_played_one_after_the_other():
    queue = queue_of("a", "b")
    assert (on(queue), queue.state) == ("a", State.STOPPED)
    queue.play()
    assert (queue.state, queue.upcoming.track.name, queue.position) == (State.PLAYING, "b", 1)
    queue.ended()
    assert (on(queue), queue.upcoming) == ("b", None)
    queue.ended()
    assert (on(queue), queue.state) == ("", State.STOPPED)
    queue.play()
    assert on(queue) == "a"


@pytest.mark.requirement("M33")
def test_next_prev_pause_and_stop():
    queue = queue_of("a", "b", "c")
    with pytest.raises(QueueError, match="nothing is played"):
        queue.pause()
    queue.play(2)
    assert on(queue) == "b"
    queue.next()
    queue.prev()
    queue.prev()
    queue.prev()
    assert on(queue) == "a"
    queue.pause()
    assert queue.state is State.PAUSED
    queue.pause()
    assert queue.state is State.PLAYING
    queue.stop()
    assert (queue.state, on(queue)) == (State.STOPPED, "a")
    queue.play(3)
    queue.next()
    assert queue.state is State.STOPPED
    queue.prev()
    assert on(queue) == "c"


def test_an_empty_list_says_so():
    queue = queue_of()
    for call in (queue.play, queue.prev, lambda: queue.delete(1), lambda: queue.play(1)):
        with pytest.raises(QueueError, match="empty"):
            call()
    queue.next()
    with pytest.raises(QueueError, match="no number 2"):
        queue_of("a").delete(2)
    with pytest.raises(ValueError, match="every"):
        PlayQueue(advert_every=-1, random=Random())


@pytest.mark.requirement("M33")
def test_deleting_keeps_the_current_track():
    queue = queue_of("a", "b", "c")
    queue.play(2)
    queue.delete(1)
    assert (on(queue), names(queue)) == ("b", ["b", "c"])
    queue.delete(1)
    assert (on(queue), queue.state) == ("c", State.PLAYING)
    queue.delete(1)
    assert (len(queue), queue.state) == (0, State.STOPPED)


def test_repeat_all_and_one():
    queue = queue_of("a", "b")
    queue.repeat = Repeat.ALL
    queue.play(2)
    assert queue.upcoming.track.name == "a"
    queue.ended()
    assert on(queue) == "a"
    queue.repeat = Repeat.ONE
    queue.ended()
    assert (on(queue), queue.upcoming) == ("a", None)
    queue.next()
    assert on(queue) == "b"


def test_shuffling_mixes_what_is_to_come_and_leaves_adverts():
    queue = queue_of(*map(str, range(20)), every=4)
    before = names(queue)
    queue.play()
    queue.shuffle()
    after = names(queue)
    assert after != before
    assert sorted(after) == sorted(before)
    assert after[0] == before[0]
    assert [at for at, name in enumerate(after) if name == "buy.wav"] == [4, 9, 14, 19, 24]


@pytest.mark.requirement("M36")
def test_no_advert_comes_unless_it_is_wanted():
    assert names(queue_of(*"abcdefgh")) == list("abcdefgh")


@pytest.mark.requirement("M36")
def test_adverts_come_every_n_songs_and_are_neither_skipped_nor_deleted():
    queue = queue_of(*"abcd", every=2)
    assert names(queue) == ["a", "b", "buy.wav", "c", "d", "buy.wav"]
    with pytest.raises(QueueError, match="cannot be deleted"):
        queue.delete(3)
    queue.play(2)
    queue.next()
    assert on(queue) == "buy.wav"
    for call in (queue.next, queue.prev, lambda: queue.play(1)):
        with pytest.raises(QueueError, match="cannot be skipped"):
            call()
    queue.ended()
    assert on(queue) == "c"
    queue.prev()
    queue.next()  # it was heard
    assert on(queue) == "c"


@pytest.mark.requirement("M36")
def test_a_jump_over_an_advert_hears_it_first():
    queue = queue_of(*"abcd", every=2)
    queue.play()
    queue.play(4)
    assert on(queue) == "buy.wav"


@given(st.lists(st.sampled_from(["add", "del", "next", "prev", "play", "pause", "stop", "end", "mix", "all", "one"])))
def test_whatever_is_done_the_list_makes_sense(words):
    queue = PlayQueue(advert_every=2, random=Random(1))
    for number, word in enumerate(words):
        calls = {
            "add": lambda: queue.add(Track(str(number))) and queue.add_advert(Track("buy.wav")),  # noqa: B023
            "del": lambda: queue.delete(1 + number % 3), "next": queue.next, "prev": queue.prev,  # noqa: B023
            "play": queue.play, "pause": queue.pause, "stop": queue.stop, "end": queue.ended, "mix": queue.shuffle,
            "all": lambda: setattr(queue, "repeat", Repeat.ALL), "one": lambda: setattr(queue, "repeat", Repeat.ONE),
        }  # fmt: skip
        adverts = names(queue).count("buy.wav")
        try:
            calls[word]()
        except QueueError:
            continue
        assert names(queue).count("buy.wav") >= adverts
        assert queue.state is State.STOPPED or queue.current is not None
        assert 1 <= queue.position <= len(queue) + 1


# --- playlists --------------------------------------------------------------------------------------------------------

TRACKS = [Track("a.wav", "Tune", "Nobody", 61.6), Track("buy.wav", advert=True), Track("ünï.wav")]


@pytest.mark.requirement("M33")
def test_a_playlist_is_saved_and_loaded(tmp_path):
    folder = tmp_path / "deep" / "lists"
    path = playlists.save(folder, "evening", TRACKS)
    assert path.read_text("utf-8").splitlines() == [
        "#EXTM3U", "#EXTINF:62,Nobody - Tune", "a.wav", "#EXTINF:-1,ünï.wav", "ünï.wav",
    ]  # fmt: skip
    assert playlists.load(folder, "evening") == playlists.load(folder, "evening.m3u8") == ["a.wav", "ünï.wav"]
    playlists.save(folder, "evening", TRACKS[:1])
    assert playlists.load(folder, "evening") == ["a.wav"]
    assert playlists.names(folder) == ["evening"]
    assert [file.name for file in folder.iterdir()] == ["evening.m3u8"]


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "x" * 251, "a\x00b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    for call in (lambda: playlists.save(tmp_path, name, []), lambda: playlists.load(tmp_path, name)):
        with pytest.raises(playlists.PlaylistError, match="no playlist is called"):
            call()


def test_what_is_not_there_or_cannot_be_written_is_told(tmp_path):
    with pytest.raises(playlists.PlaylistError, match="there is no playlist"):
        playlists.load(tmp_path, "evening")
    (tmp_path / "file").write_text("")
    with pytest.raises(playlists.PlaylistError, match="cannot be written"):
        playlists.save(tmp_path / "file", "evening", [])


def test_lists_of_other_programs_are_read_with_care():
    assert playlists.read("\ufeff#EXTM3U\r\n\r\na.wav\r\n# c\r\nb c.ogg".encode()) == ["a.wav", "b c.ogg"]
    with pytest.raises(playlists.PlaylistError, match="line 2"):
        playlists.read(b"a.wav\n/etc/passwd\n")
    with pytest.raises(playlists.PlaylistError, match="UTF-8"):
        playlists.read(b"\xff\xfe")


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_are_a_playlist_or_an_error(data):
    with contextlib.suppress(playlists.PlaylistError):
        assert all(playlists.name_fault(name) == "" for name in playlists.read(data))
