"""Generated events: as many as asked for, the same for the same seed, and of the shapes that are promised."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scale0_core.api import events
from scale0_telemetry.command import main
from scale0_telemetry.generator import batches, generate
from scale0_telemetry.generator.plan import GeneratorError, Plan, parts_of
from scale0_telemetry.generator.world import GROWING, HOUR_US, REQUESTS, SERVICES, TASKS, make_world
from scale0_telemetry.schema import FILE_SCHEMA, METADATA_KEY

PARTITIONING = ds.partitioning(pa.schema([("date", pa.date32()), ("kind", pa.string())]), flavor="hive")


def read(folder: Path, *kinds: str) -> pa.Table:
    where = pc.field("kind").isin(list(kinds)) if kinds else None
    return ds.dataset(folder, format="parquet", partitioning=PARTITIONING).to_table(filter=where)


def minutes(table: pa.Table) -> np.ndarray:
    return table["ts"].cast(pa.int64()).to_numpy() // 60_000_000


def ids(table: pa.Table) -> list[tuple[str, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in ("broker", "epoch", "seq")), strict=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.fixture(scope="module")
def month(real: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300,000 events of four weeks."""
    folder = tmp_path_factory.mktemp("month")
    generate(folder, rows=300_000, seed=5, days=28)
    return folder


@pytest.mark.real  # takes seconds
@pytest.mark.parametrize(
    ("rows", "days", "brokers"), [(1, 1, 1), (2, 30, 4), (7, 1, 3), (999, 28, 3), (20_001, 3, 1), (5_000, 9, 64)]
)
def test_there_are_exactly_as_many_rows_as_asked_for(tmp_path: Path, rows: int, days: int, brokers: int):
    summary = generate(tmp_path, rows=rows, days=days, brokers=brokers, seed=3)
    table = read(tmp_path)
    assert table.num_rows == summary.rows == rows == sum(summary.kinds.values())
    assert len(set(ids(table))) == rows
    assert set(table["broker"].to_pylist()) <= {f"broker-{number}" for number in range(1, brokers + 1)}


def test_the_same_seed_gives_the_same_files_and_another_seed_gives_others(tmp_path: Path):
    for name, seed in (("one", 11), ("same", 11), ("other", 12)):
        generate(tmp_path / name, rows=20_000, seed=seed, days=3, late=0.02, duplicates=0.01)
    assert contents(tmp_path / "one") == contents(tmp_path / "same")
    assert read(tmp_path / "one") != read(tmp_path / "other")


def test_files_have_the_stored_schema_and_layout(month: Path):
    files = sorted(month.rglob("*.parquet"))
    for path in files[:: max(1, len(files) // 40)]:
        schema = pq.read_schema(path)
        assert schema.remove_metadata().equals(FILE_SCHEMA.remove_metadata())
        assert pq.read_metadata(path).metadata[METADATA_KEY] == str(events.VERSION).encode()
        table = pq.ParquetFile(path).read()
        assert path.name == f"{table['broker'][0]}-{table['epoch'][0]}-{table['seq'][0]}.parquet"
        assert set(table["ts"].cast(pa.date32()).cast(pa.string()).to_pylist()) == {path.parts[-3].partition("=")[2]}
        assert table["seq"].to_pylist() == sorted(table["seq"].to_pylist())
    assert not list(month.rglob(".*.parquet"))


def test_every_kind_is_there_and_tells_what_its_fields_say(month: Path):
    table = read(month)
    assert set(table["kind"].unique().to_pylist()) == set(events.KINDS)
    for name, kind in events.KINDS.items():
        rows = table.filter(pc.equal(table["kind"], name))
        told = {column for column in FILE_SCHEMA.names[6:] if rows[column].null_count < rows.num_rows}
        fields = {field if field in events.FIELDS else "details" for field in kind.fields}
        assert told - {"service"} == fields - {"service"}, name
        assert "service" in told
    assert pc.all(pc.equal(table["v"], events.VERSION)).as_py()


TELLERS = {
    "pipe_write": {"zpipes"}, "pipe_read": {"zpipes"}, "key_change": {"clone"}, "song_search": {"musicquest-server"},
    "song_download": {"musicquest-server"}, "song_replica": {"musicquest-server"}, "config_change": {"scale0"},
    "drop": {"scale0", "majordomo", "zpipes", "musicquest-server", "telemetry"}, "load": {"telemetry"},
    "task": set(TASKS), "rpc": set(REQUESTS),
    "heartbeat": set(SERVICES), "join": set(SERVICES), "leave": set(SERVICES),
}  # fmt: skip
"""The services that the events of a real broker name: those of its plugins, or those that workers offer."""

OUTCOMES = {"key_change": {"set", "deleted"}, "config_change": {"applied", "active", "disabled"}}
OUTCOMES["drop"] = {"EHOSTUNREACH", "EAGAIN", "closed", "too many frames", "queue"}
OUTCOMES["leave"] = {"left", "lost", "silent"}
OUTCOMES["song_download"] = {"ok", "broken"}
OUTCOMES["song_replica"] = {"plan", "popular"}
OUTCOMES["song_search"] = {"hit", "cached", "found", "miss", "timeout"}
OUTCOMES["task"] = OUTCOMES["rpc"] = {"ok", "error", "timeout", "lost", "refused", "cancelled"}


def test_services_and_outcomes_are_those_that_a_broker_tells(month: Path):
    table = read(month)
    for name, kind in events.KINDS.items():
        rows = table.filter(pc.equal(table["kind"], name))
        assert set(rows["service"].unique().to_pylist()) == TELLERS[name], name
        assert set(rows["outcome"].unique().to_pylist()) == OUTCOMES.get(name, {None}), name
        documented = set(re.findall(r"`([a-z]+)`", kind.summary))
        if name in ("leave", "task", "song_search", "song_download", "song_replica", "config_change"):
            assert OUTCOMES[name] <= documented, f"{name}: what is told is what is documented"


def test_configurations_have_versions_and_states_come_in_turns(month: Path):
    rows = read(month, "config_change").sort_by("ts").to_pylist()
    assert {(row["subject"], row["outcome"]) for row in rows} == {
        ("config", "applied"), ("state", "active"), ("state", "disabled"),
    }  # fmt: skip
    for broker in {row["broker"] for row in rows}:
        own = [row for row in rows if row["broker"] == broker]
        versions = [row["count"] for row in own if row["subject"] == "config"]
        assert versions == list(range(versions[0], versions[0] + len(versions)))
        states = [row["outcome"] for row in own if row["subject"] == "state"]
        assert states == ["disabled", "active"] * (len(states) // 2)
    assert all(row["count"] is None for row in rows if row["subject"] == "state")


def test_a_broker_that_is_disabled_tells_of_no_requests(month: Path):
    states = read(month, "config_change").filter(pc.field("subject") == "state").sort_by("ts").to_pylist()
    requests = read(month, "task", "rpc")
    ts, brokers = requests["ts"].cast(pa.int64()).to_numpy(), np.array(requests["broker"].to_pylist())
    for before, after in zip(states[::2], states[1::2], strict=True):
        first, last = (int(row["ts"].timestamp() * 1e6) for row in (before, after))
        assert before["broker"] == after["broker"]
        assert last - first > 20 * 60_000_000
        assert not ((ts > first) & (ts < last) & (brokers == before["broker"])).any()


def test_requests_tell_their_times_and_bytes_as_a_broker_does(month: Path):
    table = read(month, "task", "rpc")
    outcome = pc.field("outcome")
    refused = table.filter(outcome == "refused")
    assert refused["queue_us"].null_count == refused.num_rows, "they never waited"
    assert table.filter(outcome != "refused")["queue_us"].null_count == 0
    late = table.filter(outcome == "timeout")
    took = pc.add(late["queue_us"], pc.fill_null(late["service_us"], 0)).to_numpy()
    assert (abs(took - 30_000_000) <= 2).all(), "their time was up, wherever they were"
    sizes = {
        (kind, end): set((rows["bytes"].to_numpy() > 0).tolist())
        for kind in ("task", "rpc")
        for end in OUTCOMES["task"]
        if (rows := table.filter((outcome == end) & (pc.field("kind") == kind))).num_rows
    }
    answered = {("task", "ok"), ("rpc", "ok"), ("task", "error")}
    assert sizes == {key: {key in answered} for key in sizes}, "an error of Majordomo has no reply"
    assert answered <= sizes.keys()


def test_most_events_are_requests_then_heartbeats_and_songs(month: Path):
    counts = dict(zip(*(column.to_pylist() for column in read(month)["kind"].value_counts().flatten()), strict=True))
    assert 0.5 < (counts["task"] + counts["rpc"]) / 300_000 < 0.75
    assert counts["task"] > counts["rpc"] > counts["heartbeat"] > counts["song_search"] > counts["song_download"]


def test_numbers_of_a_broker_follow_its_time_without_a_gap(month: Path):
    table = read(month).sort_by([("broker", "ascending"), ("epoch", "ascending"), ("seq", "ascending")])
    starts = table.group_by(["broker", "epoch"]).aggregate([("seq", "min"), ("seq", "max"), ("seq", "count")])
    assert set(starts["seq_min"].to_pylist()) == {1}
    assert starts["seq_max"] == starts["seq_count"]
    assert starts.num_rows > 3, "brokers were started again after they had been down"
    ts, epoch = table["ts"].cast(pa.int64()).to_numpy(), table["epoch"].to_numpy()
    assert (np.diff(ts)[np.diff(epoch) == 0] >= 0).all()
    assert (ts >= epoch).all()


def test_what_a_real_broker_tells_of_itself_is_told_alike(month: Path, scale0_broker: Any):
    broker = scale0_broker(["telemetry"])
    for command in ("disable", "enable"):
        words = [sys.executable, "-m", "scale0_core", command, "--broker", broker.address("scale0", "management")]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert broker.stop() == 0
    for kind in ("load", "config_change"):
        real, made = read(broker.folder / "data" / "telemetry", kind), read(month, kind)
        assert set(real["service"].unique().to_pylist()) == set(made["service"].unique().to_pylist())
        told = {(row["subject"], row["outcome"], row["count"] is None) for row in made.to_pylist()}
        assert {(row["subject"], row["outcome"], row["count"] is None) for row in real.to_pylist()} <= told
        assert real.num_rows >= 1


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_the_load_follows_day_and_week(month: Path):
    minute = minutes(read(month, "task", "rpc"))
    hours = np.bincount(minute // 60 % 24, minlength=24)
    assert hours[12:15].mean() > 4 * hours[2:5].mean()
    weekdays = np.bincount((minute // 1440 + 3) % 7, minlength=7)
    assert weekdays[:5].min() > 1.2 * weekdays[5:].max()
    steady = np.bincount(minutes(read(month, "heartbeat")) // 60 % 24, minlength=24)
    assert steady.max() < 1.3 * steady.min()


def slope(counts: np.ndarray) -> float:
    return float(np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0])


def test_services_and_songs_are_zipfs(month: Path):
    services = np.sort(np.unique(read(month, "task")["service"].to_pylist(), return_counts=True)[1])[::-1]
    assert -1.3 < slope(services) < -0.9
    day = read(month, "song_download").filter(pc.field("subject").is_valid())
    songs = np.sort(np.unique(day["subject"].to_pylist(), return_counts=True)[1])[::-1]
    assert -1.4 < slope(songs[:50]) < -0.4
    assert songs[0] > 20 * np.median(songs)


def test_the_favourite_songs_change(month: Path):
    songs = read(month, "song_search")
    week = minutes(songs) // 1440 // 7
    tops = []
    for number in (week.min() + 1, week.max() - 1):
        some = songs.filter(pa.array(week == number)).filter(pc.field("subject").is_valid())
        names, counts = np.unique(some["subject"].to_pylist(), return_counts=True)
        tops.append(set(names[np.argsort(counts)[::-1][:30]]))
    assert 0 < len(tops[0] & tops[1]) < 29


def test_service_times_have_a_tail_and_one_service_gets_slower(month: Path):
    table = read(month, "task")
    index = table.filter((pc.field("service") == "index") & pc.field("service_us").is_valid())
    p50, p99 = np.quantile(index["service_us"].to_numpy(), [0.5, 0.99])
    assert 2.5 < p99 / p50 < 15
    growing = table.filter((pc.field("service") == SERVICES[GROWING]) & pc.field("service_us").is_valid())
    day = minutes(growing) // 1440
    took = growing["service_us"].to_numpy()
    first, last = took[day <= day.min() + 3], took[day >= day.max() - 3]
    assert 1.5 < np.median(last) / np.median(first) < 2.5


def test_queues_are_long_at_the_peaks(month: Path):
    table = read(month, "task", "rpc").filter(pc.field("outcome") == "ok")
    hour, waited = minutes(table) // 60 % 24, table["queue_us"].to_numpy()
    assert np.median(waited[(hour >= 12) & (hour < 15)]) > 5 * np.median(waited[hour < 5])


def test_incidents_are_there(month: Path):
    table = read(month, "task", "rpc")
    minute, services = minutes(table), np.array(table["service"].to_pylist())
    failed = np.array(table["outcome"].to_pylist()) != "ok"
    took = table["service_us"].to_numpy(zero_copy_only=False)
    brokers = np.array(table["broker"].to_pylist())
    world = make_world(Plan(rows=300_000, seed=5, days=28))
    assert {incident.what for incident in world.incidents} == {"errors", "slow", "down"}
    assert failed.mean() < 0.02
    for incident in world.incidents:
        during = (minute >= incident.start // 60_000_000) & (minute < incident.end // 60_000_000)
        if incident.what == "down":
            assert during.any()
            assert f"broker-{incident.whom + 1}" not in brokers[during]
            continue
        concerned = services == SERVICES[incident.whom]
        if (during & concerned).sum() < 20:
            continue
        if incident.what == "errors":
            assert failed[during & concerned].mean() > 0.1
        else:
            assert np.nanmedian(took[during & concerned]) > 3 * np.nanmedian(took[concerned])


def test_what_never_reached_a_worker_has_no_worker_and_no_service_time(month: Path):
    table = read(month, "task", "rpc")
    assert set(table["outcome"].unique().to_pylist()) == {"ok", "error", "timeout", "lost", "refused", "cancelled"}
    assert table.filter(pc.field("outcome") == "refused")["peer"].null_count > 0
    assert table["peer"].is_null() == table["service_us"].is_null()
    assert set(table.filter(pc.field("peer").is_null())["outcome"].unique().to_pylist()) == {"refused", "timeout"}


def test_workers_join_before_they_leave_and_some_flap(month: Path):
    table = read(month, "join", "leave").sort_by("ts")
    here: set[str] = set()
    lost: dict[tuple[str, int], int] = {}
    for row in table.to_pylist():
        if row["kind"] == "join":
            here.add(row["peer"])
        else:
            assert row["peer"] in here
            assert row["value"] >= 0
            here.remove(row["peer"])
            hour = (row["peer"], int(row["ts"].timestamp()) // 3600)
            lost[hour] = lost.get(hour, 0) + (row["outcome"] != "left")
    assert sum(count >= 3 for count in lost.values()) >= 2


def test_nobody_works_while_away(month: Path):
    world = make_world(Plan(rows=300_000, seed=5, days=28))
    table = read(month, "task", "rpc", "heartbeat").sort_by("ts")
    ts, peers = table["ts"].cast(pa.int64()).to_numpy(), np.array(table["peer"].to_pylist(), dtype=object)
    at_work = 0
    for away in world.absences:
        first, last = np.searchsorted(ts, [away.start, away.end])
        at_work += int((peers[first:last] == world.workers[away.worker]).sum())
    # a substitute may be away itself, now and then
    assert at_work <= 5


def test_searches_are_hits_where_the_song_is_and_popular_songs_are_wanted_elsewhere(month: Path):
    table = read(month, "song_search").filter(pc.field("subject").is_valid())
    assert set(table["outcome"].unique().to_pylist()) == {"hit", "cached", "found", "miss", "timeout"}
    music = make_world(Plan(rows=300_000, seed=5, days=28)).music
    holds = {song: set(np.flatnonzero(music.held_since[n] < 2**31 - 1)) for n, song in enumerate(music.songs)}
    servers = {name: number for number, name in enumerate(music.servers)}
    wanted: dict[tuple[str, str], int] = {}
    for song, server, outcome in zip(*(table[c].to_pylist() for c in ("subject", "peer", "outcome")), strict=True):
        if outcome == "hit":
            assert servers[server] in holds[song]
        elif outcome != "miss":
            wanted[song, server] = wanted.get((song, server), 0) + 1
    assert max(wanted.values()) > 50
    assert read(month, "song_replica").num_rows > 20


# --- late events and duplicates ---------------------------------------------------------------------------------------


def test_late_events_come_in_later_files_and_no_event_is_missing(tmp_path: Path):
    summary = generate(tmp_path / "late", rows=30_000, seed=2, days=4, late=0.05)
    assert 0.03 * 30_000 < summary.late < 0.07 * 30_000
    generate(tmp_path / "none", rows=30_000, seed=2, days=4)
    table = read(tmp_path / "late")
    assert table.num_rows == len(set(ids(table))) == 30_000
    assert len(contents(tmp_path / "late")) > len(contents(tmp_path / "none"))
    written = sorted((tmp_path / "late").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    latest, late = 0, 0
    for path in written:
        ts = pq.ParquetFile(path).read(["ts"])["ts"].cast(pa.int64()).to_numpy()
        late += int((ts < latest - HOUR_US).sum())
        latest = max(latest, int(ts.max()))
    assert late > 100


def test_duplicates_repeat_rows_and_count_among_the_rows(tmp_path: Path):
    summary = generate(tmp_path, rows=30_000, seed=2, days=4, duplicates=0.04, late=0.01)
    table = read(tmp_path)
    assert table.num_rows == 30_000
    assert summary.duplicates == 1_200
    assert len(set(ids(table))) == summary.events == 28_800
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert len(set(rows)) == 28_800, "a duplicate is the same in all columns"


def test_small_parts_give_as_many_rows_and_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "PART_ROWS", 1_000)
    made = [sum(batch.rows.num_rows for batch in part.batches) for part in batches.parts(Plan(rows=9_000, days=1))]
    assert sum(made) == 9_000
    assert len(made) >= 8
    assert max(made) < 1_500
    generate(tmp_path, rows=9_000, days=1)
    assert read(tmp_path).num_rows == len(set(ids(read(tmp_path)))) == 9_000


def test_parts_add_up():
    for total in (0, 1, 7, 1_000_003):
        assert parts_of(total, np.array([1.0, 0.0, 3.5, 0.1])).sum() == total


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[object, str, str]:
    outcome = CliRunner().invoke(main, ["generate", *map(str, arguments)])
    return outcome.exception or outcome.exit_code, outcome.stdout, outcome.stderr


def test_the_command_writes_events_and_a_summary(tmp_path: Path):
    code, out, _ = run("--rows", 2000, "--days", 2, "--seed", 4, "--out", tmp_path / "a", "-o", "json")
    assert code == 0
    summary = json.loads(out)
    assert summary["schema"] == "scale0.telemetry.generated/1"
    assert summary["rows"] == 2000 == read(tmp_path / "a").num_rows
    assert summary["kinds"]["task"] > 100
    code, out, _ = run("--rows", 200, "--days", 1, "--start", "2025-03-01", "--out", tmp_path / "b")
    assert code == 0
    assert "task " in out
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["date=2025-03-01"]


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scale0_telemetry.generator.command.BETWEEN_LINES", 0.0)
    code, _, err = run("--rows", 500, "--days", 2, "--out", tmp_path)
    assert code == 0
    assert "500 of 500 rows" in err
    assert "rows/s" in err
    assert "remaining" in err


def test_a_folder_that_is_not_empty_is_refused_replaced_or_added_to(tmp_path: Path):
    generate(tmp_path, rows=500, days=1)
    error, _, _ = run("--rows", 300, "--days", 1, "--out", tmp_path)
    assert isinstance(error, GeneratorError)
    assert "not empty" in str(error)
    assert read(tmp_path).num_rows == 500
    assert run("--rows", 300, "--days", 1, "--out", tmp_path, "--append")[0] == 0
    assert read(tmp_path).num_rows == 800
    assert run("--rows", 300, "--days", 1, "--out", tmp_path, "--force")[0] == 0
    assert read(tmp_path).num_rows == 300
    (tmp_path / "letter.txt").write_text("of somebody else")
    assert isinstance(run("--rows", 300, "--days", 1, "--out", tmp_path, "--force")[0], GeneratorError)
    assert (tmp_path / "letter.txt").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--rows", 0), ("--rows", -5), ("--rows", 10, "--days", 0), ("--rows", 10, "--brokers", 0),
        ("--rows", 10, "--late", 2), ("--rows", 10, "--duplicates", 0.6), ("--rows", 10, "--start", "tomorrow"),
        ("--rows", 10, "--start", "2026-13-01"), ("--rows", 10, "--seed", -1), ("--rows", 10, "--force", "--append"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: tuple[object, ...]):
    error, _, _ = run(*options, "--out", tmp_path / "new")
    assert isinstance(error, Exception)
    assert "nothing was written" in str(error)
    assert not (tmp_path / "new").exists()


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(GeneratorError, match="no room"):
        generate(tmp_path, rows=1_000_000)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GeneratorError, match="cannot be written"):
        generate(tmp_path / "file" / "events", rows=10)


def test_what_the_disk_refuses_ends_it(tmp_path: Path):
    (tmp_path / "date=2026-01-05").write_text("in the way")
    with pytest.raises(GeneratorError, match="could not be written"):
        generate(tmp_path, rows=5_000, days=2, append=True)
