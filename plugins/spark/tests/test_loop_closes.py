"""Songs are wanted where they are not; a job sees it and plans; the plan arrives; the next search finds them there."""

import subprocess
import sys

import pyarrow.dataset as dataset
import pytest

from .music_quest import PATIENCE, Quest, ask, fetch, holders, until

SONG = b"wanted by all" * 3000
WANTED = 30
"""How often the song is asked for: more than any noise."""


def rows_of(folder, kind):
    """Give the events of a kind that are on disk, as far as they are in finished files."""
    if not list(folder.glob(f"date=*/kind={kind}/[!.]*.parquet")):
        return []
    files = dataset.dataset(folder, format="parquet", partitioning="hive")
    return files.to_table(filter=dataset.field("kind") == kind).to_pylist()


def searched(folder, server, outcomes):
    """Count the searches for the song at a server that ended so."""
    found = [row for row in rows_of(folder, "song_search") if row["peer"] == server and row["subject"] == "hit.ogg"]
    return sum(row["outcome"] in outcomes for row in found)


@pytest.mark.slow
def test_what_is_wanted_at_a_server_comes_to_it(scale0_broker, tmp_path):
    quest = Quest(scale0_broker, tmp_path)
    events, out = tmp_path / "events", tmp_path / "out"
    telemetry = {"folder": str(events), "segment_seconds": 0.5}
    # nothing but a plan makes replicas here
    own = {"telemetry": telemetry, "replicate_after": 0}
    holder = quest.server({"hit.ogg": SONG, "other.ogg": b"nobody wants it"}, **own)
    asked = quest.server({"own.ogg": b"its own song"}, **own)
    until(lambda: holders(asked, "hit.ogg") == {holder})

    # requests for a song at a server that does not hold it
    for _ in range(WANTED):
        (hit,) = ask(asked, "search", {"name": "hit.ogg"})["hits"]
        assert [each["endpoint"] for each in hit["holders"]] == [holder]
        assert fetch(holder, "hit.ogg", hit["size"]) == SONG

    # events become files
    until(lambda: searched(events, asked, {"found", "cached"}) >= WANTED)
    until(lambda: sum(row["peer"] == holder for row in rows_of(events, "song_download")) >= WANTED)

    # the job runs, and its plan arrives
    command = [
        sys.executable, "-m", "scale0_core", "spark", "replication", "--events", str(events),
        "--out", str(out), "--master", "local[2]", "--apply", "--music-broker", quest.address, "--wait", str(PATIENCE),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = dataset.dataset(out / "replication_plan", format="parquet").to_table().to_pylist()
    assert ("hit.ogg", asked, holder) in {(row["song"], row["server"], row["source"]) for row in plan}
    assert "other.ogg" not in {row["song"] for row in plan}

    # the replica exists, and the next search finds it there
    assert ask(asked, "stats")["replicas"] >= 1
    (hit,) = ask(asked, "search", {"name": "hit.ogg"})["hits"]
    assert asked in {each["endpoint"] for each in hit["holders"]}
    assert fetch(asked, "hit.ogg", hit["size"]) == SONG

    # and the next events tell of it, so that the next plan does not ask for it again
    until(lambda: searched(events, asked, {"hit"}) >= 1)
    (replica,) = [row for row in rows_of(events, "song_replica") if row["subject"] == "hit.ogg"]
    assert (replica["peer"], replica["source"], replica["outcome"]) == (asked, holder, "plan")
