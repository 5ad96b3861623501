"""What brokers tell of becomes tables, and these lead to something: copies of songs, advice, a chart.

Songs are wanted where they are not; a job sees it and plans; the plan arrives; the next search finds them there.
"""

import importlib.util
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset as dataset
import pytest

from scale0_core.cli import kit
from scale0_core.client import Client, Worker
from scale0_core.testing import ProcessBroker

from .music_quest import PATIENCE, Quest, advice_at, ask, fetch, holders, until

DEMO = Path(__file__).resolve().parents[3] / "examples" / "demo.py"
DEMO_NEEDS = ("scale0_discovery", "scale0_majordomo", "scale0_musicquest", "scale0_telemetry", "scale0_zpipes")

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
        "--out", str(out), "--master", "local[2]", "--apply", "--broker", quest.address, "--wait", str(PATIENCE),
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


# --- commands in a session that is there ------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path, tmp_path_factory, monkeypatch):
    """Start a broker on embedded defaults, so that commands find it by its name alone."""
    runtime = tmp_path_factory.mktemp("s0")  # short: it is a part of names of sockets
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = {"broker.plugins": ["discovery", "telemetry"], "plugin.telemetry.segment_seconds": 0.5}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    started = ProcessBroker(f"b{uuid.uuid4().hex[:6]}", tmp_path, words)
    yield started
    started.stop()


def test_advice_comes_to_the_discovery_of_the_broker_that_told_of_its_workers(broker, run_here):
    events = kit.data_dir(broker.name) / "telemetry"
    with Worker(broker.name) as worker, Client(broker.name, timeout=PATIENCE) as client:
        worker.add("upper", bytes.upper)
        worker.wait_ready()
        assert [reply.body for reply in client.map("upper", [b"a"] * 20)] == [b"A"] * 20
        until(lambda: len(rows_of(events, "task")) >= 20 and rows_of(events, "join"))
    told = json.loads(run_here("placement", "--apply", "-n", broker.name, "--quiet", "-o", "json").stdout)
    shown = advice_at(broker.address("discovery", "requests"))["rows"]
    assert (told["rows"], len(shown)) == (1, 1)
    assert (shown[0]["service"], shown[0]["share"], shown[0]["workers_wanted"]) == ("upper", 1.0, 1)


@pytest.mark.skipif(
    not DEMO.exists() or any(importlib.util.find_spec(name) is None for name in DEMO_NEEDS),
    reason=f"needs the examples, {', '.join(DEMO_NEEDS)}",
)
def test_the_demo_draws_its_traffic(broker, run_here, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)
    spec.loader.exec_module(demo)
    # the waves go by in a tenth of the time
    quick = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds / 10))
    monkeypatch.setattr(demo, "time", quick)
    as_process = demo.run_job
    monkeypatch.setattr(demo, "run_job", lambda *words: run_here(*words).stdout)
    chart = demo.Chart(kit.data_dir(broker.name) / "telemetry", tmp_path / "report")
    assert chart.possible
    told = demo.traffic_becomes_a_chart(chart, broker)
    page = tmp_path / "report" / "report.html"
    assert told.endswith(f" events, drawn in {page}")
    assert {"upper", "lower"} <= {
        row["service"] for row in dataset.dataset(page.parent / "trends_second").to_table().to_pylist()
    }
    assert "What came in, and what failed, by second." in page.read_text()
    as_process("tables", "--out", str(page.parent))  # as the demo runs jobs
    with pytest.raises(AssertionError, match="scale0 spark tables ended with 1: "):
        as_process("tables", "nothing", "--out", str(page.parent))
