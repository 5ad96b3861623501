"""The music folder: what scans find, what is remembered, and what can be read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_musicquest.service.server import remembered
from scale0_musicquest.service.server import shelf as shelf_module
from scale0_musicquest.service.server.shelf import MOST_READ, Scan, Shelf, ShelfError, SongMissingError
from scale0_musicquest.songs import Song

CHUNK = 250_000
LONG_AGO = 1_500_000_000


@pytest.fixture
def music(tmp_path) -> Path:
    folder = tmp_path / "music"
    folder.mkdir()
    return folder


@pytest.fixture
def shelf(music) -> Shelf:
    return new_shelf(music)


def new_shelf(music: Path, quota: int = 10_000) -> Shelf:
    return Shelf(music, music.parent / "state" / "songs.json", quota)


def put(folder: Path, name: str, content: bytes, when: float = LONG_AGO) -> Path:
    path = folder / name
    path.write_bytes(content)
    os.utime(path, (when, when))
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(scan: Scan) -> list[str]:
    return [song.name for song in scan.added]


def scan_all(shelf: Shelf, budget: int = 64 * 1024 * 1024) -> tuple[dict[str, Song], list[str]]:
    """Scan to the end; gives what was added and what was removed."""
    added: dict[str, Song] = {}
    removed: list[str] = []
    while True:
        scan = shelf.scan(budget)
        added.update((song.name, song) for song in scan.added)
        removed += scan.removed
        if scan.complete:
            return added, removed


@pytest.mark.requirement("M20")
def test_songs_on_disk_are_found_with_size_and_hash(music, shelf):
    contents = {"a.wav": b"one", "b.OGG": b"two", "c.flac": b"three", "d.Mp3": b"four"}
    for name, content in contents.items():
        put(music, name, content)
    put(music, "notes.txt", b"not music")
    put(music, ".hidden.ogg", b"hidden")
    (music / "folder.ogg").mkdir()
    scan = shelf.scan()
    assert {song.name: (song.size, song.sha256) for song in scan.added} == {
        name: (len(content), sha256(content)) for name, content in contents.items()
    }
    assert scan.complete
    assert scan.removed == []
    assert scan.seconds >= 0
    assert shelf.scan().added == []


@pytest.mark.requirement("M21")
@pytest.mark.parametrize(
    "content", [b"", b"NF", b"x", b"c" * CHUNK, b"c" * (2 * CHUNK), b"c" * (CHUNK + 1), bytes(range(256)) * 5_000]
)
def test_songs_are_read_piece_by_piece_and_never_past_their_end(music, shelf, content):
    put(music, "song.ogg", content)
    (song,) = shelf.scan().added
    pieces = [shelf.read("song.ogg", offset, CHUNK) for offset in range(0, song.size + 1, CHUNK)]
    assert b"".join(pieces) == content
    for offset in (song.size, song.size + 1, 2**63 - 1, 2**64 - 1, -1):
        assert shelf.read("song.ogg", offset, CHUNK) == b""
    assert shelf.read("song.ogg", 0, 0) == b""
    assert shelf.read("song.ogg", 0, -5) == b""
    assert shelf.read("song.ogg", 0, 2**64 - 1) == content[:MOST_READ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../secret.ogg",
        "/etc/passwd",
        "sub/../../secret.ogg",
        "..\\secret.ogg",
        "secret.ogg\0.ogg",
        "\0",
        "x" * 10_000 + ".ogg",
        "\udcff.ogg",
        ".replicas/copy.ogg",
        ".hidden.ogg",
        "notes.txt",
        "link.ogg",
        "inner link.ogg",
        "pipe.ogg",
        "folder.ogg",
        "nothing.ogg",
        "nothing.ogg/x.ogg",
    ],
)
def test_whatever_is_not_a_song_of_the_folder_cannot_be_read(music, shelf, name):
    secret = put(music.parent, "secret.ogg", b"secret")
    put(music, "notes.txt", b"notes")
    put(music, ".hidden.ogg", b"hidden")
    put(music, "song.ogg", b"song")
    (music / "link.ogg").symlink_to(secret)
    (music / "inner link.ogg").symlink_to("song.ogg")
    (music / "folder.ogg").mkdir()
    os.mkfifo(music / "pipe.ogg")
    for _ in range(2):
        with pytest.raises(SongMissingError):
            shelf.read(name, 0, 100)
        assert set(names(shelf.scan())) <= {"song.ogg"}


def test_names_that_are_not_utf_8_are_told_once_and_left_out(music, shelf):
    for raw in (b"\xff\xfe.ogg", b"new\nline.ogg"):
        Path(os.fsdecode(os.fsencode(music) + b"/" + raw)).write_bytes(b"x")
    (music / "link.ogg").symlink_to("nowhere")
    put(music, "good.ogg", b"good")
    scan = shelf.scan()
    assert names(scan) == ["good.ogg"]
    assert len(scan.problems) == 3
    assert all(text.isprintable() and "not a song" in text for text in scan.problems)
    assert shelf.scan().problems == []
    (music / "link.ogg").unlink()
    assert shelf.scan().problems == []
    (music / "link.ogg").symlink_to("nowhere")
    assert len(shelf.scan().problems) == 1


def test_new_changed_and_removed_songs_are_told(music, shelf):
    put(music, "stays.ogg", b"stays")
    put(music, "changes.ogg", b"before")
    put(music, "goes.ogg", b"goes")
    assert names(shelf.scan()) == ["changes.ogg", "goes.ogg", "stays.ogg"]
    put(music, "changes.ogg", b"behind", LONG_AGO + 1)
    put(music, "comes.ogg", b"comes")
    (music / "goes.ogg").unlink()
    with pytest.raises(SongMissingError, match="changed"):
        shelf.read("changes.ogg", 0, 10)  # not the song whose hash was told
    scan = shelf.scan()
    assert names(scan) == ["changes.ogg", "comes.ogg"]
    assert scan.added[0].sha256 == sha256(b"behind")
    assert scan.removed == ["goes.ogg"]
    assert shelf.read("changes.ogg", 0, 10) == b"behind"
    scan = shelf.scan()
    assert (scan.added, scan.removed) == ([], [])


def test_a_change_within_the_same_moment_is_found_later(music, shelf):
    path = music / "song.ogg"
    path.write_bytes(b"one")
    status = path.stat()
    assert shelf.scan().added[0].sha256 == sha256(b"one")
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shelf.scan().added[0].sha256 == sha256(b"two")
    assert shelf.scan().added == []


def test_a_file_that_is_touched_is_the_same_song(music, shelf):
    path = put(music, "song.ogg", b"same")
    shelf.scan()
    os.utime(path, (LONG_AGO + 5, LONG_AGO + 5))
    assert shelf.scan().added == []
    assert shelf.read("song.ogg", 0, 10) == b"same"


@pytest.mark.parametrize("budget", [1, 100, 4_096, 1024 * 1024])
def test_a_scan_hashes_no_more_than_its_budget_and_tells_songs_as_they_are_ready(music, shelf, budget, monkeypatch):
    hashed = 0
    pread = os.pread

    def counted(descriptor, size, offset):
        nonlocal hashed
        data = pread(descriptor, size, offset)
        hashed += len(data)
        return data

    monkeypatch.setattr(shelf_module.os, "pread", counted)
    contents = {f"{number}.ogg": bytes([number]) * (budget * 3 // 2 + number) for number in range(4)}
    for name, content in contents.items():
        put(music, name, content)
    told: dict[str, Song] = {}
    calls = 0
    while True:
        calls, hashed = calls + 1, 0
        scan = shelf.scan(budget)
        assert hashed <= budget
        told.update((song.name, song) for song in scan.added)
        if scan.complete:
            break
    assert calls >= 6
    assert {name: song.sha256 for name, song in told.items()} == {
        name: sha256(content) for name, content in contents.items()
    }


def test_a_file_that_changes_while_it_is_hashed_is_left_for_the_next_scan(music, monkeypatch):
    path = put(music, "song.ogg", b"x" * 1_000)

    class Disturbed(Shelf):
        @staticmethod
        def _hash_some(descriptor, candidate, budget):
            finished = Shelf._hash_some(descriptor, candidate, budget)
            if disturbing:
                put(music, "song.ogg", b"y" * 1_000, LONG_AGO + len(disturbing))
                disturbing.pop()
            return finished

    disturbing = [1, 2]
    shelf = Disturbed(music, music.parent / "state", 0)
    assert shelf.scan() == Scan([], [], True, pytest.approx(0, abs=1e9))
    assert shelf.scan().added == []
    assert shelf.scan().added[0].sha256 == sha256(path.read_bytes())


def test_a_file_that_changes_between_two_scans_is_not_half_one_and_half_the_other(music, shelf):
    put(music, "song.ogg", b"x" * 1_000)
    assert not shelf.scan(500).complete
    put(music, "song.ogg", b"y" * 1_000, LONG_AGO + 1)
    added, _ = scan_all(shelf)
    assert added == {}
    added, _ = scan_all(shelf)
    assert added["song.ogg"].sha256 == sha256(b"y" * 1_000)


def test_a_file_that_goes_while_it_waits_is_no_problem(music, shelf):
    put(music, "a.ogg", b"x" * 1_000)
    put(music, "b.ogg", b"x" * 1_000)
    assert not shelf.scan(500).complete
    for path in music.glob("*.ogg"):
        path.unlink()
    scan = shelf.scan()
    assert (scan.added, scan.removed, scan.problems) == ([], [], [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem_and_no_song(music, shelf):
    put(music, "song.ogg", b"x").chmod(0)
    scan = shelf.scan()
    assert scan.added == []
    assert "song.ogg" in scan.problems[0]
    with pytest.raises(SongMissingError):
        shelf.read("song.ogg", 0, 1)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(ShelfError, match="is not there"):
        Shelf(tmp_path / "nowhere", tmp_path / "state", 0).scan()


def test_a_folder_that_goes_is_a_clear_error_and_its_songs_are_not_taken_for_removed(music, shelf):
    put(music, "song.ogg", b"x")
    shelf.scan()
    music.rename(music.parent / "elsewhere")
    with pytest.raises(ShelfError, match="cannot be read"):
        shelf.scan()
    (music.parent / "elsewhere").rename(music)
    scan = shelf.scan()
    assert (scan.added, scan.removed) == ([], [])


# --- what is remembered -----------------------------------------------------------------------------


def no_hashing(monkeypatch) -> None:
    def refuse(*_args):
        raise AssertionError("it was hashed though its hash is remembered")

    monkeypatch.setattr(Shelf, "_hash_some", staticmethod(refuse))


def test_a_restart_hashes_only_what_is_new(music, shelf, monkeypatch):
    for number in range(3):
        put(music, f"{number}.ogg", bytes([number]))
    before = shelf.scan().added
    no_hashing(monkeypatch)
    again = new_shelf(music)
    assert again.scan().added == before
    assert again.scan().added == []
    assert again.read("1.ogg", 0, 10) == b"\1"
    monkeypatch.undo()
    put(music, "1.ogg", b"!", LONG_AGO + 1)
    put(music, "4.ogg", b"four")
    (music / "0.ogg").unlink()
    third = new_shelf(music)
    added, removed = scan_all(third)
    assert sorted(added) == ["1.ogg", "2.ogg", "4.ogg"]
    assert added["1.ogg"].sha256 == sha256(b"!")
    assert removed == []  # nobody was told of it in this run


def test_songs_that_are_gone_are_not_remembered_for_ever(music, shelf):
    for number in range(3):
        put(music, f"{number}.ogg", b"x")
    shelf.scan()
    (music / "1.ogg").unlink()
    again = new_shelf(music)
    again.scan()
    again.save()
    assert "1.ogg" not in (music.parent / "state" / "songs.json").read_text()


def test_files_from_before_1970_are_remembered(music, shelf, monkeypatch):
    put(music, "old.ogg", b"old", -1_000_000.5)
    before = shelf.scan().added
    no_hashing(monkeypatch)
    assert new_shelf(music).scan().added == before


@pytest.mark.parametrize("damage", ["", "garbage", "{}", "[" * 100_000, '{"scale0-musicquest": "songs", "version": 2}'])
def test_a_damaged_memory_is_started_afresh(music, shelf, damage):
    put(music, "song.ogg", b"song")
    before = shelf.scan().added
    (music.parent / "state" / "songs.json").write_text(damage)
    assert new_shelf(music).scan().added == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_to_the_memory_does_no_harm(music, shelf, data):
    content = b"song"
    put(music, "song.ogg", content)
    state = music.parent / "state" / "songs.json"
    state.unlink(missing_ok=True)
    new_shelf(music).scan()
    raw = bytearray(state.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    kind = data.draw(st.sampled_from(["cut", "replace", "insert"]))
    if kind == "cut":
        del raw[at:]
    elif kind == "replace":
        raw[at] = data.draw(st.integers(0, 255))
    else:
        raw[at:at] = data.draw(st.binary(max_size=20))
    state.write_bytes(raw)
    (song,) = new_shelf(music).scan().added
    assert (song.name, song.size, song.sha256) == ("song.ogg", len(content), sha256(content))


def test_lines_of_the_memory_that_are_not_songs_start_it_afresh(music, shelf):
    put(music, "song.ogg", b"song")
    shelf.scan()
    state = music.parent / "state" / "songs.json"
    good = state.read_text().splitlines()
    for field, value in (("name", "../x"), ("sha256", "zz"), ("mtime_ns", "now"), ("mtime_ns", None), ("size", -1)):
        bad = [good[0] + "\n", json.dumps({**json.loads(good[1]), field: value}) + "\n"]
        state.write_text("".join([*bad, remembered._seal(bad)]))
        assert new_shelf(music).scan().added[0].sha256 == sha256(b"song")


def test_a_memory_that_cannot_be_written_is_a_problem_but_no_obstacle(music):
    put(music, "song.ogg", b"song")
    (music.parent / "file").write_text("in the way")
    shelf = Shelf(music, music.parent / "file" / "songs.json", 0)
    scan = shelf.scan()
    assert names(scan) == ["song.ogg"]
    assert "cannot be written" in scan.problems[0]
    with pytest.raises(ShelfError, match="cannot be written"):
        shelf.save()


def test_one_scan_tells_a_limited_number_of_songs(music, shelf, monkeypatch):
    monkeypatch.setattr(shelf_module, "MOST_SONGS", 10)
    for number in range(25):
        put(music, f"{number:02d}.ogg", b"x")
    assert [len(shelf.scan().added) for _ in range(4)] == [10, 10, 5, 0]
    for path in music.glob("*.ogg"):
        path.unlink()
    scans = [shelf.scan() for _ in range(3)]
    assert [len(scan.removed) for scan in scans] == [10, 10, 5]
    assert [scan.complete for scan in scans] == [False, False, True]


# --- any folder -------------------------------------------------------------------------------------

FILE_NAMES = st.sampled_from(["a.ogg", "b.mp3", "c.wav", "é.flac", "x.txt", ".dot.ogg", "UP.OGG", "long" * 60 + ".ogg"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "remove", "scan", "restart"]), FILE_NAMES, st.binary(max_size=40)), max_size=25
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.sampled_from([7, 70_000, 10_000_000]))
def test_scans_add_up_to_what_the_folder_has(steps, budget):
    with tempfile.TemporaryDirectory() as place:
        music = Path(place) / "music"
        music.mkdir()
        shelf, told, clock = new_shelf(music), {}, LONG_AGO
        for step, name, content in [*steps, ("scan", "", b"")]:
            clock += 1
            if step == "write":
                put(music, name, content, clock)
            elif step == "remove":
                (music / name).unlink(missing_ok=True)
            elif step == "restart":
                shelf, told = new_shelf(music), {}
            else:
                for _ in range(2):  # a pass that was under way, then one that sees all
                    added, removed = scan_all(shelf, budget)
                    for gone in removed:
                        del told[gone]
                    told.update(added)
                files = {path.name: path.read_bytes() for path in music.iterdir() if path.name[0] != "."}
                assert {song.name: song.sha256 for song in told.values()} == {
                    name: sha256(content) for name, content in files.items() if not name.endswith(".txt")
                }
                assert all(shelf.read(name, 0, 100) == files[name] for name in told)


def test_reads_and_scans_may_run_at_once(music, shelf):
    contents = {f"{number}.ogg": bytes([number]) * 10_000 for number in range(20)}
    for name, content in contents.items():
        put(music, name, content)
    shelf.scan()
    faults: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                for name, content in contents.items():
                    assert shelf.read(name, 5_000, 10_000) == content[5_000:]
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(50):
            put(music, "new.ogg", b"%d" % number, LONG_AGO + number)
            assert names(shelf.scan()) == ["new.ogg"]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert faults == []
