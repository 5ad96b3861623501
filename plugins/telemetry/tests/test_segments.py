"""Segments on a real disk: rotation, quota, leftovers, and a disk that refuses."""

import datetime
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from scale0_core.api import EventKind, events, files
from scale0_telemetry import segments as module
from scale0_telemetry.observer.columns import Columns
from scale0_telemetry.schema import FILE_SCHEMA
from scale0_telemetry.segments import Limits, Segments, over_quota, remove, segments_in

DAY = datetime.date(2026, 3, 1)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc).timestamp()


class Source:
    """Makes batches, numbered on and on."""

    def __init__(self):
        self._columns = Columns("left", 7)

    def batch(self, count=10):
        told = [(events.TASK, 0.0, "echo", f"w{number}", None, "ok", number, 20, 100) for number in range(count)]
        return self._columns.convert([(NOON, [("scale0", told)])])[0].rows


@pytest.fixture
def source():
    return Source()


def numbers(folder):
    """Give the numbers of all events that a reader finds."""
    table = ds.dataset(folder, partitioning="hive", format="parquet").to_table()
    return sorted(table.column("seq").to_pylist())


def hidden(folder):
    return [path for path in folder.rglob(".*") if path.is_file()]


def test_a_segment_has_its_name_when_it_is_whole(tmp_path, source):
    segments = Segments(tmp_path, "left", 7, Limits(segment_seconds=60))
    segments.write("task", DAY, source.batch(), now=0.0)
    segments.tick(59.9)
    assert list(segments_in(tmp_path)) == []
    segments.tick(60.0)
    path = tmp_path / "date=2026-03-01" / "kind=task" / "left-7-1.parquet"
    [segment] = segments_in(tmp_path)
    assert (segment.path, segment.kind, segment.date, segment.rows) == (path, "task", "2026-03-01", 10)
    assert segment.span() == ("2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00+00:00")
    assert (segments.written, hidden(tmp_path)) == (10, [])


def test_what_is_read_is_what_was_written(tmp_path, source):
    segments = Segments(tmp_path, "left", 7)
    batches = [source.batch(), source.batch(3)]
    for batch in batches:
        segments.write("task", DAY, batch)
    segments.close()
    [segment] = segments_in(tmp_path)
    table = pq.ParquetFile(segment.path).read()
    assert table.equals(pa.Table.from_batches(batches).cast(FILE_SCHEMA))
    assert pq.read_schema(segment.path).metadata[b"scale0.events"] == b"1"
    assert table.schema.names == FILE_SCHEMA.names
    assert ds.dataset(tmp_path, partitioning="hive").to_table().column("kind").unique().to_pylist() == ["task"]


def test_a_segment_that_is_large_enough_is_finished(tmp_path, source, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 100)
    segments = Segments(tmp_path, "left", 7, Limits(segment_bytes=20_000))
    for _ in range(100):
        segments.write("task", DAY, source.batch(100))
    assert len(list(segments_in(tmp_path))) > 3
    assert all(segment.bytes >= 20_000 for segment in segments_in(tmp_path))
    assert len(hidden(tmp_path)) <= 1
    segments.close()
    assert numbers(tmp_path) == list(range(1, 10_001))


def test_groups_of_rows_are_of_one_size_though_each_row_has_a_text_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 100_000)
    segments, columns = Segments(tmp_path, "left", 7, Limits(quota_bytes=1 << 30)), Columns("left", 7)
    for start in range(0, 20_000, 100):
        told = [(events.PIPE_WRITE, 0.0, f"pipe {start + number:09}", 1, 100) for number in range(100)]
        segments.write("pipe_write", DAY, columns.convert([(NOON, [("zpipes", told)])])[0].rows)
    segments.close()
    [segment] = segments_in(tmp_path)
    footer = pq.read_metadata(segment.path)
    rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert len(rows) > 10
    assert len(set(rows[:-1])) == 1


def test_readers_do_not_see_open_segments(tmp_path, source, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    segments = Segments(tmp_path, "left", 7)
    segments.write("task", DAY, source.batch())
    segments.tick(1e9)
    segments.write("task", DAY, source.batch())
    assert len(hidden(tmp_path)) == 1
    assert numbers(tmp_path) == list(range(1, 11))


def test_leftovers_of_this_broker_are_removed_and_those_of_others_stay(tmp_path, source, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    for broker, epoch in (("left", 6), ("right", 6), ("left-2", 6), ("left", 7)):
        Segments(tmp_path, broker, epoch).write("task", DAY, source.batch())
    assert Segments(tmp_path, "left", 7).clean() == 1
    kept = {".right-6", ".left-2-6", ".left-7"}
    assert {path.name.rpartition("-")[0] for path in hidden(tmp_path)} == kept


def test_the_oldest_go_when_there_is_more_than_the_quota(tmp_path, source):
    limits = Limits(quota_bytes=20_000)
    segments = Segments(tmp_path, "left", 7, limits)
    for number in range(20):
        segments.write("task", DAY + datetime.timedelta(number), source.batch())
        segments.tick(1e9)
    left = sorted(segments_in(tmp_path))
    assert sum(segment.bytes for segment in left) <= 20_000 < sum(segment.bytes for segment in left) + left[0].bytes
    assert numbers(tmp_path) == list(range(201 - 10 * len(left), 201))
    assert segments.lost == {"quota": 200 - 10 * len(left)}
    assert len(list(tmp_path.iterdir())) == len(left), "folders of days that are gone are gone"


def test_what_was_there_before_counts_for_the_quota(tmp_path, source):
    before = Segments(tmp_path, "left", 6)
    before.write("task", DAY, source.batch())
    before.close()
    size = next(segments_in(tmp_path)).bytes
    segments = Segments(tmp_path, "left", 7, Limits(quota_bytes=size * 3 // 2))
    segments.write("task", DAY + datetime.timedelta(1), source.batch())
    segments.close()
    assert numbers(tmp_path) == list(range(11, 21))
    assert segments.lost == {"quota": 10}


def test_brokers_that_share_a_folder_keep_their_own_quotas(tmp_path, source):
    names = ("left", "left-2", "right")
    brokers = [Segments(tmp_path, name, 7, Limits(quota_bytes=10_000)) for name in names]
    for number in range(20):
        for segments in brokers:
            segments.write("task", DAY + datetime.timedelta(number), source.batch())
            segments.tick(1e9)
    for name, segments in zip(names, brokers, strict=True):
        own = [each for each in segments_in(tmp_path) if each.path.name.rpartition("-7-")[0] == name]
        assert 0 < sum(each.bytes for each in own) <= 10_000
        assert segments.lost == {"quota": 200 - 10 * len(own)}


def on_disk(folder):
    """Give the bytes of all files, those that are still written included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_quota_below_the_size_of_a_segment_keeps_the_newest(tmp_path, source):
    segments = Segments(tmp_path, "left", 7, Limits(quota_bytes=100_000))
    for _ in range(40):
        segments.write("task", DAY, source.batch(5000))
        assert on_disk(tmp_path) <= 100_000
    segments.close()
    assert on_disk(tmp_path) <= 100_000
    found = numbers(tmp_path)
    assert found == list(range(200_001 - len(found), 200_001)), "the newest, without a gap"
    assert segments.lost == {"quota": 200_000 - len(found)}
    assert len(list(segments_in(tmp_path))) > 1
    assert sum(segment.bytes for segment in segments_in(tmp_path)) > 50_000


def test_many_events_at_once_do_not_take_more_than_the_quota(tmp_path, source):
    segments = Segments(tmp_path, "left", 7, Limits(quota_bytes=50_000))
    segments.write("task", DAY, source.batch(20_000))
    segments.close()
    assert 20_000 < on_disk(tmp_path) <= 50_000
    found = numbers(tmp_path)
    assert found == list(range(20_001 - len(found), 20_001))
    assert segments.written == 20_000 == len(found) + segments.lost["quota"]
    assert len({segment.number for segment in segments_in(tmp_path)}) > 1


def test_what_alone_is_more_than_the_quota_is_not_kept(tmp_path):
    segments = Segments(tmp_path, "left", 7, Limits(quota_bytes=16_384))
    noise = random.Random(7).randbytes(20_000).hex()
    [batch] = Columns("left", 7).convert([(NOON, [("scale0", [(events.TASK, 0.0, "echo", noise, *[None] * 5)])])])
    segments.write("task", DAY, batch.rows)
    segments.close()
    assert on_disk(tmp_path) == 0
    assert segments.lost == {"quota": 1}


KINDS = [EventKind(f"kind-{number}", "", ("peer", "bytes")) for number in range(8)]


def noisy_events(chance, count):
    """Make events that cannot be compressed much."""
    return [(chance.choice(KINDS), 0.0, chance.randbytes(9).hex(), chance.getrandbits(62)) for _ in range(count)]


@pytest.mark.seeds(12)
def test_open_segments_count_for_the_quota(tmp_path, monkeypatch, seed):
    """Whatever is written, of however many kinds, and whenever one looks."""
    chance = random.Random(seed)
    monkeypatch.setattr(module, "GROUP_ROWS", chance.choice([5, 20, 1000]))
    quota = chance.choice([16_384, 40_000, 300_000])
    limits = Limits(segment_bytes=chance.choice([1024, 1 << 26]), segment_seconds=10, quota_bytes=quota)
    segments, columns = Segments(tmp_path, "left", 7, limits), Columns("left", 7)
    for now in range(40):
        told = noisy_events(chance, chance.choice([1, 10, 300]))
        for kind, _, rows in columns.convert([(NOON, [("scale0", told)])]):
            segments.write(kind, DAY + datetime.timedelta(now // 20), rows, now)
            assert on_disk(tmp_path) <= quota
        segments.tick(now)
        assert on_disk(tmp_path) <= quota
    segments.close(40)
    assert quota / 3 < on_disk(tmp_path) <= quota
    found = numbers(tmp_path)
    assert len(found) + segments.lost["quota"] == columns.seq
    assert max(found) > columns.seq * 0.9
    assert segments.lost.keys() == {"quota"}


def test_without_a_quota_nothing_is_removed(tmp_path, source):
    segments = Segments(tmp_path, "left", 7)
    segments.write("task", DAY, source.batch(20_000))
    segments.close()
    assert numbers(tmp_path) == list(range(1, 20_001))


def test_segments_of_the_same_moment_are_in_order_of_their_numbers(tmp_path, source):
    segments = Segments(tmp_path, "left", 7)
    for _ in range(12):
        segments.write("task", DAY, source.batch(1))
        segments.tick(1e9)
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (1e9, 1e9))
    names = [segment.path.name for segment in sorted(segments_in(tmp_path))]
    assert names == [f"left-7-{number}.parquet" for number in range(1, 13)]


def test_a_segment_that_cannot_be_removed_costs_no_events(tmp_path, source, monkeypatch, caplog):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    segments = Segments(tmp_path, "left", 7, Limits(quota_bytes=16_384))
    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(20):
        segments.write("task", DAY, source.batch())
    segments.close()
    assert numbers(tmp_path) == list(range(1, 201))
    assert not segments.lost
    told = [record.getMessage() for record in caplog.records]
    assert told.count("segments cannot be listed or removed, so the quota is not kept") == 1


def refuse(path):
    raise PermissionError(f"no, not {path.name}")


def test_over_quota_takes_no_more_than_it_must(tmp_path, source):
    segments = Segments(tmp_path, "left", 7)
    for number in range(3):
        segments.write("task", DAY + datetime.timedelta(number), source.batch())
    segments.close()
    found = sorted(segments_in(tmp_path))
    total = sum(segment.bytes for segment in found)
    assert over_quota(found, total) == []
    assert over_quota(found, total - 1) == found[:1]
    assert over_quota(found, 0) == found
    assert remove(found, tmp_path) == (30, total)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_tried_again(tmp_path, source):
    folder = tmp_path / "events"
    folder.write_text("in the way")
    segments = Segments(folder, "left", 7, Limits(segment_seconds=1))
    segments.write("task", DAY, source.batch(), now=0.0)
    segments.tick(1.0)
    segments.write("task", DAY, source.batch(), now=2.0)
    segments.tick(3.0)
    assert not segments.lost
    folder.unlink()
    segments.tick(5.9)
    assert not folder.exists(), "a disk that refuses is left alone for a while"
    segments.tick(6.0)
    assert numbers(folder) == list(range(1, 21))


def test_while_the_disk_refuses_memory_is_bounded(tmp_path, source, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    monkeypatch.setattr(module, "MOST_WAITING", 50)
    folder = tmp_path / "events"
    folder.write_text("in the way")
    segments = Segments(folder, "left", 7)
    for _ in range(12):
        segments.write("task", DAY, source.batch())
    assert segments.lost == {"disk": 120 // 60 * 60}
    segments.write("task", DAY, source.batch())
    segments.close()
    assert segments.lost == {"disk": 130}


def test_while_the_disk_refuses_long_rows_are_bounded_too(tmp_path, source, monkeypatch):
    batch = source.batch()
    monkeypatch.setattr(module, "GROUP_BYTES", batch.nbytes)
    monkeypatch.setattr(module, "MOST_BYTES", 3 * batch.nbytes)
    folder = tmp_path / "events"
    folder.write_text("in the way")
    segments = Segments(folder, "left", 7)
    for _ in range(4):
        segments.write("task", DAY, batch)
    assert segments.lost == {"disk": 40}


def test_new_folders_are_on_disk_with_the_segment(tmp_path, source, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_path", synced.append)
    segments = Segments(tmp_path / "events", "left", 7)
    for _ in range(2):
        segments.write("task", DAY, source.batch())
        segments.tick(1e9)
    day = tmp_path / "events" / "date=2026-03-01"
    first = [day / "kind=task" / ".left-7-1.parquet", day / "kind=task", day, tmp_path / "events", tmp_path]
    assert synced == [*first, day / "kind=task" / ".left-7-11.parquet", day / "kind=task"]


def test_a_segment_that_has_its_name_is_not_lost(tmp_path, source, monkeypatch):
    real = files.sync_path

    def sync(path):
        if path.is_dir():
            raise OSError("input/output error")
        real(path)

    monkeypatch.setattr(files, "sync_path", sync)
    segments = Segments(tmp_path, "left", 7)
    segments.write("task", DAY, source.batch())
    segments.close()
    assert (numbers(tmp_path), segments.written, dict(segments.lost)) == (list(range(1, 11)), 10, {})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_costs_the_open_segment_alone(tmp_path, source, monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    segments = Segments(tmp_path, "left", 7)
    segments.write("task", DAY, source.batch())
    segments.close()
    folder = tmp_path / "date=2026-03-01" / "kind=task"
    (folder / ".left-7-11.parquet").symlink_to("/dev/full")
    segments.write("task", DAY, source.batch(5000), now=0.0)
    segments.tick(1e9)
    assert segments.lost["disk"] in (0, 5000)
    segments.write("task", DAY, source.batch(), now=2e9)
    segments.close(2e9)
    found = numbers(tmp_path)
    assert found[:10] == list(range(1, 11))
    assert len(found) + segments.lost["disk"] == 5020
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("kind", ["a/b", "../up", "..", "with space", "ä%", ".dot", "a=b"])
def test_any_name_of_a_kind_is_one_folder(tmp_path, source, kind):
    segments = Segments(tmp_path / "events", "_odd", 7)
    segments.write(kind, DAY, source.batch())
    segments.close()
    assert [path.name for path in tmp_path.iterdir()] == ["events"]
    [segment] = segments_in(tmp_path / "events")
    assert (segment.kind, segment.path.name) == (kind, "%5Fodd-7-1.parquet")
    assert ds.dataset(tmp_path / "events", partitioning="hive").to_table().column("kind").unique().to_pylist() == [kind]


def test_no_segment_takes_the_place_of_another(tmp_path, source):
    batch = source.batch()
    for _ in range(3):
        segments = Segments(tmp_path, "left", 7)
        segments.write("task", DAY, batch)
        segments.close()
    assert sorted(segment.path.name for segment in segments_in(tmp_path)) == [
        "left-7-1.1.parquet", "left-7-1.2.parquet", "left-7-1.parquet",
    ]  # fmt: skip


def test_what_is_no_segment_is_left_alone(tmp_path):
    folder = tmp_path / "date=2026-03-01" / "kind=task"
    folder.mkdir(parents=True)
    (folder / "broken.parquet").write_bytes(b"PAR1 not really")
    (folder / "_SUCCESS").touch()
    [segment] = segments_in(tmp_path)
    assert (segment.rows, segment.span()) == (0, (None, None))
