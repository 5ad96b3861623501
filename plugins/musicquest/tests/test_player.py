"""Players and the deck: programs that get a song while it comes, pauses, the next song fetched in time."""

from __future__ import annotations

import io
import os
import random
import threading
import time
from pathlib import Path
from random import Random

import pytest

from scale0_musicquest import wire
from scale0_musicquest.client import MusicClient
from scale0_musicquest.player.deck import Deck, clock_text
from scale0_musicquest.player.players import PROGRAMS, NullPlayer, ProgramPlayer, Source, find_player
from scale0_musicquest.player.queue import PlayQueue, State, Track
from scale0_musicquest.player.shell import Shell

from .music_peers import FakeBroker, FakeServer, peers

pytestmark = pytest.mark.real

SONGS = {f"{name}.wav": random.Random(name).randbytes(400_000) for name in "abcd"}


def eventually(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def program(folder: Path, name: str, script: str) -> None:
    """Put a program in a folder, called like a player."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def source_of(path: Path, data: bytes, available: int | None = None) -> Source:
    path.write_bytes(data)
    source = Source(path, path.suffix, 1.0, len(data))
    source.available = len(data) if available is None else available
    return source


# --- players ----------------------------------------------------------------------------------------------------------


def test_the_first_program_that_is_there_plays_and_else_none(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(find_player("", str(empty)), NullPlayer)
    assert isinstance(find_player("null", str(empty)), NullPlayer)
    with pytest.raises(LookupError, match="mpv is not found"):
        find_player("mpv", str(empty))
    program(tmp_path, "aplay", "exit 0")
    assert find_player("", str(tmp_path)).name == "aplay"
    program(tmp_path, "mpv", "exit 0")
    assert find_player("", str(tmp_path)).name == "mpv"
    assert find_player("aplay", str(tmp_path)).name == "aplay"


def test_programs_say_what_they_can_play(tmp_path):
    wav, mp3 = source_of(tmp_path / "a.wav", b"x"), source_of(tmp_path / "a.mp3", b"x")
    able = {one.name: [ProgramPlayer(one, "").plays(source) for source in (wav, mp3)] for one in PROGRAMS}
    assert able == {"mpv": [True, True], "ffplay": [True, True], "aplay": [True, False], "paplay": [True, False]}


@pytest.mark.requirement("M33")
def test_a_program_gets_the_song_while_it_comes(tmp_path):
    program(tmp_path, "mpv", f"cat > {tmp_path}/heard.part && mv {tmp_path}/heard.part {tmp_path}/heard")
    player = find_player("mpv", str(tmp_path))
    data = SONGS["a.wav"]
    source = source_of(tmp_path / "a.wav", data, available=100_000)
    assert player.ready_for(source)
    player.play(source)
    eventually(lambda: (tmp_path / "heard.part").exists() and (tmp_path / "heard.part").stat().st_size == 100_000)
    assert not player.ended
    source.available = len(data)
    eventually(lambda: player.ended)
    assert (player.trouble, (tmp_path / "heard").read_bytes()) == ("", data)
    player.stop()


def test_a_song_that_never_comes_to_its_end_ends_all_the_same(tmp_path):
    program(tmp_path, "mpv", "cat > /dev/null")
    player = find_player("mpv", str(tmp_path))
    source = source_of(tmp_path / "a.wav", SONGS["a.wav"], available=100_000)
    player.play(source)
    source.given_up = True
    eventually(lambda: player.ended)
    player.stop()


def test_a_program_that_wants_the_whole_file_gets_its_path(tmp_path):
    program(tmp_path, "paplay", f'cp "$1" {tmp_path}/heard')
    player = find_player("paplay", str(tmp_path))
    source = source_of(tmp_path / "a.wav", b"song", available=3)
    assert not player.ready_for(source)
    source.available = 4
    assert player.ready_for(source)
    player.play(source)
    eventually(lambda: player.ended)
    assert (tmp_path / "heard").read_bytes() == b"song"
    player.stop()


def test_a_program_is_held_and_ended(tmp_path):
    program(tmp_path, "mpv", "trap '' TERM; exec sleep 1000")
    player = find_player("mpv", str(tmp_path))
    player.play(source_of(tmp_path / "a.wav", SONGS["a.wav"]))
    pid = player._process.pid

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    player.hold()
    eventually(lambda: state() == "T")
    assert not player.ended
    player.go_on()
    eventually(lambda: state() != "T")
    player.hold()
    player.stop()  # it does not heed TERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_fails_is_told(tmp_path):
    program(tmp_path, "mpv", "exit 3")
    player = find_player("mpv", str(tmp_path))
    player.play(source_of(tmp_path / "a.wav", SONGS["a.wav"]))
    eventually(lambda: player.ended)
    assert player.trouble == "mpv ended with 3"
    player.stop()


def test_the_silent_player_takes_as_long_as_the_song(tmp_path):
    now = [0.0]
    player = NullPlayer(lambda: now[0])
    source = source_of(tmp_path / "a.wav", b"1234", available=3)
    source.duration = 10.0
    assert (player.elapsed, player.ended) == (0.0, False)
    player.play(source)
    now[0] = 4.0
    assert (player.elapsed, player.ended) == (4.0, False)
    player.hold()
    now[0] = 20.0
    assert (player.elapsed, player.ended) == (4.0, False)
    player.go_on()
    now[0] = 26.0
    assert (player.elapsed, player.ended) == (10.0, False)  # not all of it is there
    source.available = 4
    assert player.ended
    player.stop()
    assert not player.ended


# --- the deck ---------------------------------------------------------------------------------------------------------


class Listener:
    """A shell on a deck, with a silent player whose clock a test moves."""

    def __init__(self, client: MusicClient, folder: Path, every: int = 0) -> None:
        self.now = 0.0
        self.out = io.StringIO()
        self.queue = PlayQueue(advert_every=every, random=Random(1))
        (folder / "songs").mkdir()
        self.deck = Deck(client, NullPlayer(lambda: self.now), self.queue, folder / "songs")
        self.shell = Shell(client, self.deck, folder / "lists", self.out)

    def do(self, *lines: str) -> str:
        """Do commands; give what was said."""
        self.out.seek(0)
        self.out.truncate()
        for line in lines:
            self.shell.do(line)
        return self.out.getvalue()

    def until(self, condition) -> None:
        def look() -> bool:
            self.deck.tick()
            return condition()

        eventually(look)

    def is_on(self, name: str) -> bool:
        entry = self.queue.current
        return entry is not None and entry.track.name == name and self.deck._on is entry


@pytest.fixture
def world():
    with peers() as note:
        server = note(FakeServer(SONGS))
        broker = note(FakeBroker(server))
        with MusicClient(broker.endpoint, timeout=30.0) as client:
            yield server, client


@pytest.fixture
def listener(world, tmp_path):
    found = Listener(world[1], tmp_path)
    yield found
    found.deck.close()


@pytest.mark.requirement("M33")
def test_a_list_is_played_and_the_next_song_is_there_in_time(listener, world):
    server = world[0]
    listener.do("add a.wav", "add b.wav", "play")
    listener.until(lambda: listener.is_on("a.wav"))
    listener.until(lambda: server.counts[wire.FETCH] == 4)  # b.wav comes while a.wav is played
    assert "1/2 A  playing 0:00/0:01" in listener.deck.status()
    listener.now = 1.0
    listener.until(lambda: listener.is_on("b.wav"))
    listener.now = 2.0
    listener.until(lambda: listener.deck.idle)
    assert [track.name for track in listener.deck.history] == ["a.wav", "b.wav"]
    assert listener.deck.status() == "stopped, 2 in the list"


@pytest.mark.requirement("M33")
def test_playing_starts_before_all_of_it_is_there(listener, world):
    server = world[0]
    answer = server.answer
    first_only = lambda message: [] if message.word == wire.FETCH and server.counts[wire.FETCH] > 1 else answer(message)  # noqa: E731
    server.answer = first_only
    listener.do("add a.wav", "play")
    listener.until(lambda: listener.is_on("a.wav"))
    listener.until(lambda: "62 %" in listener.deck.status())
    listener.now = 100.0
    listener.deck.tick()
    assert listener.is_on("a.wav")  # it waits for the rest


@pytest.mark.requirement("M33")
def test_next_pause_stop_and_del_do_what_they_say(listener):
    listener.do("add a.wav", "add b.wav", "add c.wav", "play")
    listener.until(lambda: listener.is_on("a.wav"))
    listener.do("next")
    listener.until(lambda: listener.is_on("b.wav"))
    listener.do("prev")
    listener.until(lambda: listener.is_on("a.wav"))
    listener.do("pause")
    listener.now = 50.0
    listener.deck.tick()
    assert listener.is_on("a.wav")
    assert "paused" in listener.do("status")
    listener.do("play")
    listener.do("stop")
    assert listener.deck.idle
    listener.do("play")
    listener.until(lambda: listener.is_on("a.wav"))
    assert "deleted a.wav" in listener.do("del 1")
    listener.until(lambda: listener.is_on("b.wav"))
    assert listener.do("list").splitlines()[0].startswith("*  1  B")


def test_a_song_that_cannot_be_had_is_left_out_and_told(listener, world):
    server = world[0]
    listener.do("add a.wav", "add b.wav")
    del server.songs["a.wav"]
    listener.do("play")
    listener.until(lambda: listener.is_on("b.wav"))
    assert "a.wav is left out: nobody is left who sends a.wav" in listener.do("status")


def downloads_under_way() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("download ")]


def with_dying_player(world, listener, folder: Path) -> None:
    """Have a program play that fails at once, while only the first part of a song comes."""
    server = world[0]
    answer = server.answer
    server.answer = lambda message: (
        [] if message.word == wire.FETCH and wire.read_number(message.rest[1]) else answer(message)
    )  # fmt: skip
    program(folder, "mpv", "exit 3")
    listener.deck.player = find_player("mpv", str(folder))
    listener.do("add a.wav", "play")
    listener.until(lambda: listener.deck.idle)
    assert "a.wav: mpv ended with 3" in listener.do("status")
    server.answer = answer


def test_a_song_is_played_again_at_once_after_its_player_died(world, listener, tmp_path):
    with_dying_player(world, listener, tmp_path)
    program(tmp_path, "mpv", "cat > /dev/null")
    listener.do("play")  # its download may not have noticed yet that it is to end
    listener.until(lambda: listener.deck.idle)
    assert [track.name for track in listener.deck.history] == ["a.wav"]
    assert not listener.deck.notes


def test_closing_waits_for_the_download_of_a_song_whose_player_died(world, listener, tmp_path):
    with_dying_player(world, listener, tmp_path)
    listener.deck.close()
    assert not downloads_under_way()


class BrokenPlayer(NullPlayer):
    """Fails in a way that nobody planned."""

    @property
    def ended(self) -> bool:
        raise RuntimeError("the sound broke")


def test_a_fault_of_the_player_stops_it_and_nobody_waits_forever(world, tmp_path):
    listener = Listener(world[1], tmp_path)
    listener.deck.player = BrokenPlayer(lambda: listener.now)
    lines = ["add a.wav\n", "play\n"]
    running = threading.Thread(
        target=lambda: listener.shell.run(iter(lines), to_the_end=True), daemon=True
    )  # fmt: skip
    running.start()
    running.join(30)
    try:
        assert not running.is_alive()
        assert "the player failed and was stopped: RuntimeError: the sound broke" in listener.out.getvalue()
        assert listener.deck.idle
        listener.deck.player = NullPlayer(lambda: listener.now)
        listener.do("play")
        eventually(lambda: listener.is_on("a.wav"))  # its thread goes on
    finally:
        listener.queue.stop()
        listener.deck.close()


def test_a_fault_of_a_download_is_told_and_the_next_song_is_played(world, listener, monkeypatch):
    client = world[1]
    download = client.download

    def broken(hit, *arguments, **more):
        if hit.song.name == "a.wav":
            raise RuntimeError("unplanned")
        return download(hit, *arguments, **more)

    monkeypatch.setattr(client, "download", broken)
    told = listener.do("add a.wav", "add b.wav", "play")
    listener.until(lambda: listener.is_on("b.wav"))
    assert "a.wav is left out: RuntimeError: unplanned" in told + listener.do("status")


def test_an_advert_that_cannot_be_written_is_told_and_the_shell_goes_on(world, tmp_path):
    server, client = world
    answer = server.answer
    server.answer = lambda message: (
        [wire.answer(message, wire.ADVERT, b"buy.wav")] if message.word == wire.ADVERT
        else [wire.answer(message, wire.DATA, message.rest[2], b"buy now")] if message.rest[:1] == (wire.ADVERT,)
        else answer(message)
    )  # fmt: skip
    listener = Listener(client, tmp_path, every=1)
    (tmp_path / "songs").rmdir()
    told = listener.do("add a.wav", "add b.wav")
    assert told.count("no advert: ") == 2
    assert [entry.track.name for entry in listener.queue] == ["a.wav", "b.wav"]
    listener.deck.close()


def test_what_the_disk_refuses_is_told_and_the_shell_goes_on(listener, monkeypatch):
    def full(track):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(listener.deck, "add", full)
        assert "No space left" in listener.do("add a.wav")
    assert "added a.wav" in listener.do("add a.wav")


def test_the_same_song_twice_and_a_change_of_mind(listener):
    listener.do("add a.wav", "add a.wav", "play", "del 1")
    listener.until(lambda: listener.is_on("a.wav"))
    listener.now = 1.0
    listener.until(lambda: listener.deck.idle)


@pytest.mark.requirement("M36")
def test_adverts_are_played_between_songs(world, tmp_path):
    server, client = world
    answer = server.answer

    def with_adverts(message):
        if message.word == wire.ADVERT:
            return [wire.answer(message, wire.ADVERT, b"buy.wav")]
        if message.word == wire.FETCH and message.rest[0] == wire.ADVERT:
            assert message.rest[1] == b"buy.wav"
            return [wire.answer(message, wire.DATA, message.rest[2], b"buy now")]
        return answer(message)

    server.answer = with_adverts
    listener = Listener(client, tmp_path, every=2)
    try:
        listener.do("add a.wav", "add b.wav", "add c.wav", "play 2")
        assert [entry.track.label for entry in listener.queue] == ["A", "B", "advert", "C"]
        listener.until(lambda: listener.is_on("b.wav"))
        listener.do("next")
        listener.queue.play()
        assert "cannot be skipped" in listener.do("next")
        assert "cannot be deleted" in listener.do("del 3")
        listener.until(lambda: listener.is_on("c.wav"))  # without a length, the silent player is soon through
    finally:
        listener.deck.close()


# --- the shell --------------------------------------------------------------------------------------------------------


def test_songs_are_searched_and_added_by_number_or_by_a_part(listener):
    assert [line.split()[0] for line in listener.do("search wav").splitlines()] == ["1", "2", "3", "4"]
    assert "added c.wav" in listener.do("add 3")
    told = listener.do("add wav")
    assert "4 are found, this is the first" in told
    assert "added a.wav" in told
    assert "did you mean a.wav" in listener.do("search zzz")
    assert "did you mean a.wav" in listener.do("add zz/z")
    assert [entry.track.name for entry in listener.queue] == ["c.wav", "a.wav"]


@pytest.mark.requirement("M33")
def test_the_list_is_saved_and_loaded(listener, world):
    listener.do("add a.wav", "add b.wav", "save evening")
    del world[0].songs["b.wav"]
    told = listener.do("load evening")
    assert "nobody has b.wav" in told
    assert "1 are missing" in told
    assert [entry.track.name for entry in listener.queue] == ["a.wav", "b.wav", "a.wav"]
    assert "no playlist is called" in listener.do("save ../x")
    assert "there is no playlist" in listener.do("load nothing")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("what", "there is no what"), ("del x", "a number of the list"), ("play 9", "the list is empty"),
        ("add", "add what"), ("repeat x", "repeat all"), ("search", "what it looks for"), ("help", "search TEXT"),
        ("# comment", ""), ("", ""), ("list", "the list is empty"), ("\x1b[2J", "there is no"),
    ],
)  # fmt: skip
def test_every_line_gets_an_answer(listener, line, told):
    said = listener.do(line)
    assert told in said
    assert "\x1b" not in said


@pytest.mark.requirement("M33")
def test_a_script_is_done_and_then_all_is_played(world, tmp_path):
    listener = Listener(world[1], tmp_path)
    listener.deck.player._clock = lambda: time.monotonic() * 20
    try:
        lines = ["add a.wav\n", "add b.wav\n", "shuffle\n", "repeat off\n", "play\n"]
        listener.shell.run(iter(lines), to_the_end=True)
    finally:
        listener.deck.close()
    assert [track.name for track in listener.deck.history] == ["a.wav", "b.wav"]


def test_exit_ends_at_once(listener):
    listener.shell.run(iter(["add a.wav\n", "play\n", "exit\n", "add b.wav\n"]), to_the_end=True)
    assert len(listener.queue) == 1
    assert listener.queue.state is State.PLAYING


def test_closing_ends_downloads(world, tmp_path):
    server, client = world
    server.silent = {wire.FETCH}
    listener = Listener(client, tmp_path)
    listener.do("add a.wav", "play")
    server.wait_for(wire.FETCH)
    listener.deck.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download ")]


def test_times_are_told_as_people_do():
    assert [clock_text(seconds) for seconds in (0, 61.9, 3600)] == ["0:00", "1:01", "60:00"]
    assert Track("a.wav", "Tune", "Nobody").label == "Nobody - Tune"
