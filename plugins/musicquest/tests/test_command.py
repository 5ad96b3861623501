"""The command `scale0 musicquest`, as a shell calls it, with a real broker and a real server."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from scale0_core.testing.broker import BrokerStarter
from scale0_musicquest.tunes import make_tunes

from .music_town import Town, endpoint_of

pytestmark = pytest.mark.real


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "scale0_core", "musicquest", *map(str, arguments)]


def run(*arguments, data: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*arguments), input=data, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Give a broker and two servers, one with tunes; no test changes them."""
    folder = tmp_path_factory.mktemp("town")
    with BrokerStarter() as start:
        found = Town(start, folder)
        found.add({})
        songs = {path.name: path.read_bytes() for path in make_tunes(folder / "tunes", count=3, seconds=0.4)}
        found.add(songs)
        found.songs = songs
        with found.client() as client:
            found.wait_for_songs(client, *songs)
            end = time.monotonic() + 60
            while sum(row.songs for row in client.servers()) != 3:
                assert time.monotonic() < end
                time.sleep(0.1)
        yield found


@pytest.fixture
def use(town):
    """Give a function that runs a command at the broker."""
    return lambda name, *arguments, **more: run(name, *arguments, "--broker", town.address, **more)


@pytest.fixture
def name(town) -> str:
    return min(town.songs)


def test_songs_are_found_by_a_part_and_told_as_tables_and_json(use, town, name):
    word = name.removesuffix(".wav").split()[1]
    told = use("search", word.upper())
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("NAME")
    assert name in told.stdout
    row = json.loads(use("search", "--name", name, "-o", "jsonl").stdout)
    assert (row["schema"], row["name"], row["size"]) == ("scale0.musicquest.hits/1", name, len(town.songs[name]))
    assert row["holders"] == [endpoint_of(town.servers[1])]


def test_nothing_found_ends_with_1_and_no_question_with_64(use):
    told = use("search", "zzzzzz")
    assert told.returncode == 1
    assert use("search").returncode == 64
    assert use("search", "--name", "a/b").returncode == 64


@pytest.mark.requirement("M1")
def test_a_song_is_downloaded(use, town, name, tmp_path):
    told = use("get", name, "--to", tmp_path)
    assert (told.returncode, told.stdout) == (0, "")
    assert f"{len(town.songs[name])} bytes" in told.stderr
    assert (tmp_path / name).read_bytes() == town.songs[name]
    row = json.loads(use("get", name, "-O", tmp_path / "other", "-o", "json").stdout)
    assert (row["schema"], row["file"]) == ("scale0.musicquest.download/1", str(tmp_path / "other"))
    told = use("get", "zzz.wav", "--to", tmp_path)
    assert told.returncode == 1
    assert "nobody has zzz.wav" in told.stderr
    assert use("get", "a/b").returncode == 64


@pytest.fixture(scope="module")
def same_names(tmp_path_factory):
    """Give a town with two servers, each with another song of the same name, and the songs by their digests."""
    with BrokerStarter() as start:
        found = Town(start, tmp_path_factory.mktemp("same"))
        for number in range(2):
            found.add({"same.wav": f"song {number}".encode(), f"only-{number}.wav": b"x"})
        with found.client() as client:
            found.wait_for_songs(client, "only-0.wav", "only-1.wav")
        found.songs = {hashlib.sha256(data).hexdigest(): data for data in (b"song 0", b"song 1")}
        yield found


def test_of_several_songs_of_a_name_one_is_chosen(same_names, tmp_path):
    def get(*arguments):
        return run("get", "same.wav", "--to", tmp_path / "new.wav", "--broker", same_names.address, *arguments)

    digests = sorted(same_names.songs)
    told = get()
    assert told.returncode == 64
    assert "2 songs are called same.wav" in told.stderr
    places = [told.stderr.index(text) for text in (f"1: {digests[0][:12]}", f"2: {digests[1][:12]}", "--digest")]
    assert places == sorted(places)
    error = json.loads(get("-o", "json").stderr)
    assert (error["schema"], error["error"]) == ("scale0.error/1", "AmbiguousError")
    assert [(row["number"], row["sha256"]) for row in error["choices"]] == [(1, digests[0]), (2, digests[1])]
    assert not list(tmp_path.iterdir())
    for place, row in enumerate(error["choices"]):
        (holder,) = row["holders"]
        for choice in (
            ("--number", row["number"]),
            ("--digest", row["sha256"]),
            ("--digest", row["sha256"][:8].upper()),
            ("--server", holder["endpoint"]),
        ):
            told = get(*choice, "-o", "json")
            assert told.returncode == 0, told.stderr
            assert json.loads(told.stdout)["downloaded"]
            assert (tmp_path / "new.wav").read_bytes() == same_names.songs[digests[place]]
            (tmp_path / "new.wav").unlink()
    for wrong in (("--number", 3), ("--digest", "0" * 64), ("--server", "tcp://127.0.0.1:1")):
        told = get(*wrong)
        assert (told.returncode, "none of them is the chosen one" in told.stderr) == (64, True)
    for no_choice in (("--number", 0), ("--digest", "xyz"), ("--digest", "0" * 65)):
        assert get(*no_choice).returncode == 64
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_never_overwritten_without_force(same_names, tmp_path):
    first, second = sorted(same_names.songs)
    file = tmp_path / "same.wav"

    def get(digest, *arguments):
        return run("get", "same.wav", "--to", tmp_path, "--digest", digest, "--broker", same_names.address, *arguments)

    assert get(first).returncode == 0
    told = get(first)
    assert (told.returncode, "already, with the same content" in told.stderr) == (0, True)
    assert not json.loads(get(first, "-o", "json").stdout)["downloaded"]
    told = get(second)
    assert (told.returncode, "is there already" in told.stderr, "--force" in told.stderr) == (65, True, True)
    assert file.read_bytes() == same_names.songs[first]
    assert get(second, "--force").returncode == 0
    assert file.read_bytes() == same_names.songs[second]
    assert [path.name for path in tmp_path.iterdir()] == ["same.wav"]


def test_of_several_songs_of_a_name_the_first_is_played(same_names, tmp_path):
    told = run("play", "same.wav", "--player", "null", "--keep", tmp_path, "--broker", same_names.address)
    first = min(same_names.songs)
    assert f"2 songs are called same.wav; the first is played, {first[:12]}" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == [f"{first[:16]}.wav"]


def test_a_download_shows_its_progress_on_a_terminal(town, name, tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    arguments = command("get", name, "--to", tmp_path, "--broker", town.address)
    process = subprocess.Popen(arguments, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        pass  # that is how a terminal ends
    os.close(ours)
    assert process.wait(60) == 0
    assert b"100%" in shown or b"/s from" in shown


@pytest.mark.requirement("M33")
def test_songs_and_scripts_are_played(use, town, name, tmp_path):
    told = use("play", name, "--player", "null", "--keep", tmp_path)
    assert (told.returncode, told.stderr) == (0, "played by null\n")
    assert next(tmp_path.glob("*.wav")).read_bytes() == town.songs[name]
    lists = {"XDG_DATA_HOME": str(tmp_path)}
    script = f"add {name}\nadd {name}\nlist\nsave evening\nplay\n"
    told = use("play", "--player", "null", data=script, **lists)
    assert told.returncode == 0
    assert told.stdout.count(f"added {name}") == 2
    assert run("playlist", **lists).stdout.split() == ["NAME", "evening"]
    items = json.loads(run("playlist", "evening", "-o", "json", **lists).stdout)["items"]
    assert items == [{"name": name}, {"name": name}]
    told = use("play", "--player", "null", "--playlist", "evening", data="list\nexit\n", **lists)
    assert told.stdout.count("\n") == 3
    assert run("playlist", "nothing", **lists).returncode == 65
    assert run("playlist", "../x", **lists).returncode == 65


def test_a_signal_ends_the_player_program_too(town, name, tmp_path):
    fake = tmp_path / "mpv"
    fake.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new && mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 1000\n"
    )
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        command("play", name, "--broker", town.address), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_player_that_is_not_there_and_a_song_that_nobody_has(use):
    told = use("play", "zzz.wav", "--player", "null")
    assert told.returncode == 1
    assert "nobody has zzz.wav" in told.stderr
    told = use("play", "--player", "gramophone")
    assert told.returncode == 64
    assert "gramophone is not found" in told.stderr


@pytest.mark.requirement("M33")
def test_the_interactive_player_on_a_terminal(town, name, tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        command("play", "--player", "null", "--broker", town.address), stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "HOME": str(tmp_path)},
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(ours, 4096)

    try:
        until(b"> ")
        os.write(ours, f"add {name}\n".encode())
        until(f"added {name}".encode())
        os.write(ours, b"repeat all\nplay\n")
        until(b"playing 0:0")  # in the status line
        os.write(ours, b"stop\n")
        until(b"stopped, 1 in the list")
        os.write(ours, b"exit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(timeout=60)
        os.close(ours)


def test_what_there_is_is_listed(use, town, name):
    holder = endpoint_of(town.servers[1])
    told = use("songs", "--server", holder, "--limit", "2")
    assert told.stdout.count(".wav") == 2
    assert "3 in all" in told.stderr
    rows = json.loads(use("songs", "--server", holder, "-o", "json").stdout)["items"]
    assert [row["name"] for row in rows] == sorted(town.songs)
    rows = json.loads(use("servers", "-o", "json").stdout)["items"]
    assert sorted(row["songs"] for row in rows) == [0, 3]
    assert [row["root"] for row in rows].count(True) == 1
    assert use("servers").stdout.startswith("ID")
    assert use("top").returncode == 0
    assert json.loads(use("top", "-o", "json").stdout)["schema"] == "scale0.musicquest.top/1"


@pytest.mark.requirement("M19")
def test_the_tree_is_drawn(use, town):
    told = use("tree", COLUMNS="200")
    assert told.returncode == 0
    lines = told.stdout.splitlines()
    assert lines[0] == "Music Quest"
    assert [line.index("tcp://") for line in lines[1:]] == sorted(line.index("tcp://") for line in lines[1:])
    assert "3 songs" in told.stdout
    assert len(json.loads(use("tree", "-o", "json").stdout)["items"]) == 2


def test_tunes_are_made(tmp_path):
    told = run("tunes", tmp_path / "songs", "--count", "2", "--seconds", "0.1", "-o", "json")
    rows = json.loads(told.stdout)["items"]
    assert len(rows) == len(list((tmp_path / "songs").glob("*.wav"))) == 2
    (tmp_path / "file").write_text("")
    assert run("tunes", tmp_path / "file").returncode == 64


def test_nobody_there_is_told_in_four_parts():
    told = run("search", "x", "--broker", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert told.returncode == 69
    assert "nobody is at tcp://127.0.0.1:1" in told.stderr
    assert "musicquest-broker" in told.stderr
    assert run("search", "x", "--broker", "non/sense").returncode == 64


def test_the_page_without_its_packages_says_which_are_needed(town, tmp_path):
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('No module named starlette', name='starlette')")
    told = run("web", "--broker", town.address, PYTHONPATH=str(tmp_path))
    assert told.returncode == 64
    assert "pip install 'scale0-musicquest[web]'" in told.stderr


def test_every_command_has_help():
    told = run("--help").stdout
    for one in ("search", "get", "play", "playlist", "top", "tree", "songs", "servers", "tunes", "web"):
        assert f"  {one} " in told
