"""Songs of others on a server's disk: whole or not at all, within a quota, and there after a restart."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import files
from scale0_musicquest.service.server import replicas as replicas_module
from scale0_musicquest.service.server.files import DamagedError, NoRoomError, ShelfError, SongMissingError
from scale0_musicquest.service.server.shelf import REPLICAS, Shelf
from scale0_musicquest.songs import Song

CHUNK = 250_000


@pytest.fixture
def music(tmp_path) -> Path:
    folder = tmp_path / "music"
    folder.mkdir()
    return folder


@pytest.fixture
def shelf(music) -> Shelf:
    return new_shelf(music)


def new_shelf(music: Path, quota: int = 10_000_000) -> Shelf:
    return Shelf(music, music.parent / "songs.json", quota)


def song_of(name: str, content: bytes) -> Song:
    return Song(name, len(content), hashlib.sha256(content).hexdigest(), "Title", "Artist", "Album", 12.5)


def replicate(shelf: Shelf, name: str, content: bytes) -> list[str]:
    """Make a replica as the service does; gives the names of those evicted."""
    song = song_of(name, content)
    evicted = shelf.begin(song)
    for offset in reversed(range(0, len(content), CHUNK)):
        shelf.write(name, offset, content[offset : offset + CHUNK])
    copy = shelf.finish(song)
    assert copy.replica
    assert copy.sha256 == song.sha256
    return evicted


def partials(music: Path) -> list[str]:
    return [path.name for path in (music / REPLICAS).glob(".*")]


@pytest.mark.requirement("M25")
@pytest.mark.parametrize("content", [b"", b"NF", b"x" * CHUNK, b"x" * (3 * CHUNK), os.urandom(CHUNK + 17)])
def test_a_replica_is_served_as_a_song_and_survives_a_restart(music, shelf, content):
    replicate(shelf, "copy.ogg", content)
    shelf.scan()
    again = new_shelf(music)
    for each in (shelf, again):
        assert each.read("copy.ogg", 0, CHUNK) == content[:CHUNK]
        assert each.read("copy.ogg", len(content), CHUNK) == b""
    (song,) = again.scan().added
    assert song == Song(**{**song_of("copy.ogg", content).to_json(), "replica": True})  # with its holder's tags
    assert partials(music) == []
    assert not (music / "copy.ogg").exists()


def test_a_replica_survives_a_crash_before_its_hash_was_written_down(music, shelf):
    replicate(shelf, "copy.ogg", b"content")
    again = new_shelf(music)
    (song,) = again.scan().added
    assert (song.name, song.replica, song.sha256) == ("copy.ogg", True, song_of("copy.ogg", b"content").sha256)
    assert again.replicas.taken == 7


def test_a_scan_does_not_tell_of_a_replica_that_is_known_already(shelf):
    shelf.scan()
    replicate(shelf, "copy.ogg", b"content")
    scan = shelf.scan()
    assert (scan.added, scan.removed) == ([], [])


@pytest.mark.parametrize("wrong", [b"", b"conten", b"CONTENT"])
def test_what_is_not_the_song_is_not_kept(music, shelf, wrong):
    song = song_of("copy.ogg", b"content")
    shelf.begin(song)
    shelf.write("copy.ogg", 0, wrong)
    with pytest.raises(DamagedError, match=r"copy\.ogg"):
        shelf.finish(song)
    assert partials(music) == []
    assert shelf.replicas.taken == 0
    with pytest.raises(SongMissingError):
        shelf.read("copy.ogg", 0, 10)
    replicate(shelf, "copy.ogg", b"content")
    assert shelf.read("copy.ogg", 0, 10) == b"content"


def test_pieces_stay_within_the_song_that_was_begun(shelf):
    with pytest.raises(ShelfError, match="not been begun"):
        shelf.write("copy.ogg", 0, b"x")
    with pytest.raises(ShelfError, match="not been begun"):
        shelf.finish(song_of("copy.ogg", b"content"))
    shelf.begin(song_of("copy.ogg", b"content"))
    for offset, data in ((1, b"content"), (-1, b"x"), (7, b"x"), (2**64 - 1, b"x")):
        with pytest.raises(ShelfError, match="beyond"):
            shelf.write("copy.ogg", offset, data)
    with pytest.raises(ShelfError, match="not been begun"):
        shelf.finish(song_of("copy.ogg", b"another"))


def test_begun_again_it_starts_afresh_and_given_up_it_leaves_nothing(music, shelf):
    shelf.begin(song_of("copy.ogg", b"long content"))
    shelf.write("copy.ogg", 0, b"long content")
    replicate(shelf, "copy.ogg", b"short")
    assert shelf.read("copy.ogg", 0, 100) == b"short"
    shelf.begin(song_of("other.ogg", b"other"))
    assert shelf.replicas.taken == 10
    shelf.abort("other.ogg")
    shelf.abort("other.ogg")
    assert shelf.replicas.taken == 5
    assert partials(music) == []
    with pytest.raises(ShelfError, match="here already"):
        shelf.begin(song_of("copy.ogg", b"short"))


@pytest.mark.parametrize(
    "name", ["..", "../x.ogg", "/x.ogg", "x\0.ogg", "x" * 10_000, "\udcff.ogg", "x.txt", ".x.ogg", ""]
)
def test_hostile_names_are_refused(music, shelf, name):
    with pytest.raises(ShelfError, match="called"):
        shelf.begin(Song(name, 1, "00" * 32))
    with pytest.raises(ShelfError):
        shelf.write(name, 0, b"x")
    shelf.abort(name)
    assert not shelf.drop(name)
    assert list(music.parent.rglob("*x*")) == []


def test_the_longest_name_fits(shelf):
    name = "n" * 251 + ".ogg"
    replicate(shelf, name, b"content")
    assert shelf.read(name, 0, 100) == b"content"


# --- own songs come first ---------------------------------------------------------------------------


def test_own_songs_need_no_replica_and_are_never_dropped(music, shelf):
    (music / "own.ogg").write_bytes(b"own")
    shelf.scan()
    with pytest.raises(ShelfError, match="song of this server"):
        shelf.begin(song_of("own.ogg", b"other"))
    assert not shelf.drop("own.ogg")
    assert shelf.read("own.ogg", 0, 10) == b"own"


def test_an_own_song_that_comes_later_takes_the_place_of_a_replica(music, shelf):
    replicate(shelf, "song.ogg", b"replica")
    shelf.scan()
    (music / "song.ogg").write_bytes(b"own")
    scan = shelf.scan()
    assert [(song.name, song.size, song.replica) for song in scan.added] == [("song.ogg", 3, False)]
    assert scan.removed == []
    assert shelf.read("song.ogg", 0, 10) == b"own"
    assert list((music / REPLICAS).iterdir()) == []
    assert shelf.replicas.taken == 0


def test_an_own_song_that_comes_while_a_replica_is_fetched_wins(music, shelf):
    song = song_of("song.ogg", b"replica")
    shelf.begin(song)
    shelf.write("song.ogg", 0, b"replica")
    (music / "song.ogg").write_bytes(b"own")
    shelf.scan()
    with pytest.raises(ShelfError, match="song of this server"):
        shelf.finish(song)
    assert list((music / REPLICAS).iterdir()) == []


# --- the quota --------------------------------------------------------------------------------------


def test_the_least_recently_used_replicas_make_room(music):
    shelf = new_shelf(music, quota=30)
    (music / "own.ogg").write_bytes(b"o" * 100)  # own songs do not count
    for name in ("a.ogg", "b.ogg", "c.ogg"):
        assert replicate(shelf, name, name.encode() * 2) == []
    shelf.read("a.ogg", 0, 1)
    assert replicate(shelf, "d.ogg", b"d" * 10) == ["b.ogg"]
    assert shelf.room(25) == ["c.ogg", "a.ogg", "d.ogg"]
    assert shelf.read("own.ogg", 0, 1) == b"o"
    assert shelf.scan().removed == []


def test_who_was_used_when_is_known_after_a_restart(music):
    shelf = new_shelf(music, quota=30)
    for name in ("a.ogg", "b.ogg", "c.ogg"):
        replicate(shelf, name, name.encode() * 2)
    shelf.read("a.ogg", 0, 1)
    shelf.save()
    again = new_shelf(music, quota=30)
    again.scan()
    assert replicate(again, "d.ogg", b"d" * 20) == ["b.ogg", "c.ogg"]


def test_what_can_never_fit_is_refused_and_evicts_nothing(music):
    shelf = new_shelf(music, quota=30)
    replicate(shelf, "a.ogg", b"a" * 10)
    with pytest.raises(NoRoomError, match="31 bytes"):
        shelf.begin(song_of("big.ogg", b"b" * 31))
    shelf.begin(song_of("coming.ogg", b"c" * 15))
    with pytest.raises(NoRoomError):
        shelf.begin(song_of("big.ogg", b"b" * 16))  # what is being fetched has its room already
    assert shelf.read("a.ogg", 0, 1) == b"a"
    with pytest.raises(NoRoomError):
        new_shelf(music, quota=0).room(1)


def test_a_smaller_quota_counts_from_the_first_scan_on(music):
    shelf = new_shelf(music, quota=30)
    for name in ("a.ogg", "b.ogg", "c.ogg"):
        replicate(shelf, name, name.encode() * 2)
    shelf.save()
    again = new_shelf(music, quota=15)
    assert [song.name for song in again.scan().added] == ["c.ogg"]
    assert [path.name for path in (music / REPLICAS).iterdir()] == ["c.ogg"]


def test_a_replica_that_is_gone_or_dropped_is_told_and_no_longer_counts(music, shelf):
    for name in ("a.ogg", "b.ogg"):
        replicate(shelf, name, b"content")
    shelf.scan()
    (music / REPLICAS / "a.ogg").unlink()
    assert shelf.scan().removed == ["a.ogg"]
    assert shelf.replicas.taken == 7
    assert shelf.drop("b.ogg")
    assert not shelf.drop("b.ogg")
    assert shelf.scan().removed == []  # whoever dropped it knows
    assert shelf.replicas.taken == 0
    with pytest.raises(SongMissingError):
        shelf.read("b.ogg", 0, 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_replica_that_was_changed_on_disk_is_removed(music, shelf, restarted):
    replicate(shelf, "copy.ogg", b"content")
    shelf.scan()
    (music / REPLICAS / "copy.ogg").write_bytes(b"changed")
    os.utime(music / REPLICAS / "copy.ogg", (1, 1))
    shelf = new_shelf(music) if restarted else shelf
    scan = shelf.scan()
    assert scan.added == []
    assert scan.removed == ["copy.ogg"]
    assert "changed on disk" in scan.problems[0]
    assert list((music / REPLICAS).iterdir()) == []


def test_a_replica_that_was_touched_stays(music, shelf):
    replicate(shelf, "copy.ogg", b"content")
    shelf.scan()
    os.utime(music / REPLICAS / "copy.ogg", (1, 1))
    (song,) = new_shelf(music).scan().added
    assert song.title == "Title"
    assert (shelf.scan().added, shelf.scan().removed) == ([], [])


# --- crashes and full disks -------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


CALLS = ("create", "write_at", "digest_and_sync", "put_in_place")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_moment_a_replica_is_there_in_full_or_not_at_all(music, shelf, monkeypatch, call, after):
    content = b"content" * 100
    song = song_of("copy.ogg", content)
    module = files if call == "put_in_place" else replicas_module
    real = getattr(module, call)

    def killed(*args, **options):
        if after:
            real(*args, **options)
        raise Killed

    monkeypatch.setattr(module, call, killed)
    with pytest.raises(Killed):
        replicate(shelf, "copy.ogg", content)
    monkeypatch.undo()
    again = new_shelf(music)
    added = again.scan().added
    assert [each.sha256 for each in added] in ([], [song.sha256])
    assert partials(music) == []
    assert again.replicas.taken == sum(each.size for each in added)
    if not added:
        replicate(again, "copy.ogg", content)
    assert again.read("copy.ogg", 0, 10_000) == content


def test_torn_partials_are_removed_at_the_start(music, shelf):
    song = song_of("copy.ogg", b"content")
    shelf.begin(song)
    shelf.write("copy.ogg", 0, b"con")
    assert len(partials(music)) == 1
    assert new_shelf(music).scan().added == []
    assert partials(music) == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_is_a_clear_error_and_leaves_nothing_behind(music, shelf, monkeypatch, call, code):
    (music / "own.ogg").write_bytes(b"own")
    shelf.scan()

    def fail(*_args, **_options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files if call == "put_in_place" else replicas_module, call, fail)
    with pytest.raises(ShelfError, match=r"copy\.ogg.*" + os.strerror(code)) as caught:
        replicate(shelf, "copy.ogg", b"content")
    assert ("make room" in str(caught.value)) == (code == errno.ENOSPC)
    monkeypatch.undo()
    shelf.abort("copy.ogg")
    assert partials(music) == []
    assert shelf.read("own.ogg", 0, 10) == b"own"
    replicate(shelf, "copy.ogg", b"content")


def test_a_link_in_place_of_the_folder_of_replicas_is_refused(music, shelf, tmp_path):
    (music / REPLICAS).symlink_to(tmp_path)
    with pytest.raises(ShelfError, match="link"):
        shelf.scan()
    with pytest.raises(ShelfError, match="link"):
        shelf.begin(song_of("copy.ogg", b"content"))


def test_a_folder_that_cannot_be_written_has_songs_but_no_replicas(music, shelf, monkeypatch):
    (music / "own.ogg").write_bytes(b"own")
    assert len(shelf.scan().added) == 1

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ShelfError, match="Read-only"):
        shelf.begin(song_of("copy.ogg", b"content"))
    assert shelf.read("own.ogg", 0, 10) == b"own"


NAMES = st.sampled_from(["a.ogg", "b.ogg", "c.ogg", "d.ogg"])
STEPS = st.lists(st.tuples(st.sampled_from(["copy", "read", "drop", "scan", "restart"]), NAMES, st.integers(0, 20)))


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_replicas_stay_within_the_quota_and_leave_in_order_of_use(steps):
    quota = 40
    with tempfile.TemporaryDirectory() as place:
        music = Path(place) / "music"
        music.mkdir()
        shelf = new_shelf(music, quota)
        model: dict[str, bytes] = {}  # the least recently used first
        for step, name, size in steps:
            if step == "copy" and name not in model:
                evicted = replicate(shelf, name, name[:1].encode() * size)
                expected = []
                while sum(map(len, model.values())) + size > quota:
                    expected.append(next(iter(model)))
                    del model[expected[-1]]
                assert evicted == expected
                model[name] = name[:1].encode() * size
            elif step == "read" and name in model:
                assert shelf.read(name, 0, 100) == model[name]
                model[name] = model.pop(name)
            elif step == "drop":
                assert shelf.drop(name) == (model.pop(name, None) is not None)
            elif step == "scan":
                assert shelf.scan().complete
            elif step == "restart":
                shelf.save()
                shelf = new_shelf(music, quota)
                assert {song.name: song.size for song in shelf.scan().added} == {n: len(c) for n, c in model.items()}
            assert shelf.replicas.taken == sum(map(len, model.values())) <= quota
            assert shelf.replicas.names() == list(model)


def test_several_replicas_are_fetched_while_scans_and_reads_go_on(shelf):
    faults: list[BaseException] = []
    shelf.scan()

    def fetch(mark: int) -> None:
        try:
            for turn in range(10):
                name, content = f"{mark}-{turn}.ogg", os.urandom(10_000)
                replicate(shelf, name, content)
                assert shelf.read(name, 0, 10_000) == content
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=fetch, args=(mark,)) for mark in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert shelf.scan().removed == []
    assert faults == []
    assert len(shelf.replicas.names()) == 30
    assert shelf.replicas.taken == 300_000
