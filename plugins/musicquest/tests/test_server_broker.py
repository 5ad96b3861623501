"""Music servers in real brokers, over real sockets, with real files."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import zmq

from scale0_core.api import BrokerContext
from scale0_musicquest import wire
from scale0_musicquest.server.plugin import MusicServerPlugin
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.service import MOST_REPORTS

PATIENCE = 60.0
ANY_PORT = ["tcp://127.0.0.1:*"]


class Peers:
    """Makes sockets, and closes them at the end."""

    def __init__(self):
        self.context = zmq.Context()
        self.made = []

    def __call__(self, address, kind=zmq.DEALER, **options):
        peer = Peer(self.context, address, kind, **options)
        self.made.append(peer)
        return peer


@pytest.fixture
def peers():
    peers = Peers()
    yield peers
    for peer in peers.made:
        peer.socket.close(linger=0)
    peers.context.term()


class Peer:
    """A socket that asks and insists on an answer."""

    def __init__(self, context, address, kind, **options):
        self.socket = context.socket(kind)
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.rcvtimeo = round(PATIENCE * 1000)
        self.socket.connect(address)

    def send(self, *frames):
        self.socket.send_multipart([frame.encode() if isinstance(frame, str) else frame for frame in frames])

    def receive(self):
        return self.socket.recv_multipart()

    def ask(self, *frames):
        self.send(*frames)
        return self.receive()

    def stats(self):
        return json.loads(self.ask("ZMQ01", "stats", "s")[3])

    def search(self, **query):
        return json.loads(self.ask("ZMQ01", "search", f"u{random.random()}", json.dumps(query))[3])

    def until_found(self, name, holders=frozenset()):
        """Search until a song is found, at least at these holders."""
        end = time.monotonic() + PATIENCE
        while True:
            hits = self.search(name=name, fresh=True)["hits"]
            if hits and {holder["endpoint"] for hit in hits for holder in hit["holders"]} >= holders:
                return
            assert time.monotonic() < end, hits
            time.sleep(0.05)

    def until(self, ready):
        """Ask for the server's state until it is as wanted."""
        end = time.monotonic() + PATIENCE
        while not ready(stats := self.stats()):
            assert time.monotonic() < end, stats
            time.sleep(0.02)
        return stats


class Quest:
    """A music broker and servers, each a real broker process or thread."""

    def __init__(self, start, folder, peers):
        self.start, self.folder, self.peers = start, folder, peers
        settings = {"bind_servers": ANY_PORT, "bind_clients": ANY_PORT, "lease": 3.0}
        self.broker = start.in_thread(["musicquest-broker"], {"plugin": {"musicquest-broker": settings}})
        self.servers = []

    def server(self, songs, *, process=False, **settings):
        folder = self.folder / f"music{len(self.servers)}"
        folder.mkdir()
        for name, content in songs.items():
            (folder / name).write_bytes(content)
        table = {
            "music": str(folder), "clients": ANY_PORT, "children": ANY_PORT, "heartbeat": 2.0, "rescan": 0.2,
            "broker": self.broker.address("musicquest-broker", "servers"), **settings,
        }  # fmt: skip
        starter = self.start if process else self.start.in_thread
        server = starter(["musicquest-server"], {"plugin": {"musicquest-server": table}})
        self.servers.append(server)
        peer = self.peers(server.address("musicquest-server", "clients"))
        peer.until(lambda stats: stats["songs"] >= len(songs) and stats["scanned"] and stats["registered"])
        return peer


@pytest.fixture
def quest(scale0_broker, tmp_path, peers):
    return Quest(scale0_broker, tmp_path, peers)


def endpoint(quest, number):
    return quest.servers[number].address("musicquest-server", "clients")


def fetch_all(peer, name, size, chunk=250_000, ahead=10):
    """Fetch a song with several chunks in flight."""
    offsets = list(range(0, size, chunk))
    parts = {}
    for offset in offsets[:ahead]:
        peer.send("ZMQ01", "fetch", "f", name, wire.number(offset), wire.number(chunk))
    for offset in offsets[ahead:] + [None] * min(ahead, len(offsets)):
        _, word, _, place, part = peer.receive()
        assert word == b"data"
        parts[wire.read_number(place)] = part
        if offset is not None:
            peer.send("ZMQ01", "fetch", "f", name, wire.number(offset), wire.number(chunk))
    return b"".join(parts[offset] for offset in offsets)


@pytest.mark.requirement("M1")
@pytest.mark.requirement("M4")
@pytest.mark.requirement("M5")
@pytest.mark.requirement("M6")
@pytest.mark.requirement("M21")
@pytest.mark.requirement("M22")
def test_a_song_is_found_through_the_tree_and_fetched_from_its_holder(quest, peers):
    song = random.Random(1).randbytes(3_000_000 + 17)
    first = quest.server({"here.ogg": b"here"})
    second = quest.server({"far.ogg": song})
    third = quest.server({})
    second.until(lambda stats: stats["father"])
    third.until(lambda stats: stats["father"])
    first.until(lambda stats: len(stats["children"]) == 2)
    (hit,) = third.search(name="far.ogg")["hits"]
    assert hit["sha256"] == hashlib.sha256(song).hexdigest()
    assert [holder["endpoint"] for holder in hit["holders"]] == [endpoint(quest, 1)]
    holder = peers(hit["holders"][0]["endpoint"])
    assert fetch_all(holder, "far.ogg", hit["size"]) == song
    assert third.search(name="nobody.ogg")["hits"] == []


@pytest.mark.requirement("M7")
@pytest.mark.requirement("M8")
@pytest.mark.requirement("M9")
def test_an_original_client_with_its_three_sockets_is_served(quest, peers):
    """REQ to the broker, REQ to its server, DEALER to the holder."""
    quest.server({"tune.ogg": b"la la la"})
    broker = peers(quest.broker.address("musicquest-broker", "clients"), zmq.REQ)
    word, address = broker.ask("hello")
    assert word == b"hello"
    assert address.decode() == endpoint(quest, 0)
    server = peers(address.decode(), zmq.REQ)
    (holder,) = server.ask("search", "00000000-0000-4000-8000-000000000001", "tune.ogg")
    assert holder == address
    assert server.ask("search", "00000000-0000-4000-8000-000000000002", "no.ogg") == [b"NF"]
    dealer = peers(holder.decode())
    assert dealer.ask("fetch", "tune.ogg", wire.number(3), wire.number(250_000)) == [b"la la"]


@pytest.mark.requirement("M41")
def test_a_killed_root_is_replaced(quest):
    first = quest.server({"one.ogg": b"1"}, process=True)
    second = quest.server({"two.ogg": b"2"})
    third = quest.server({"three.ogg": b"3"})
    for peer in (second, third):
        peer.until(lambda stats: stats["father"])
    first.until(lambda stats: len(stats["children"]) == 2)
    quest.servers[0].kill()
    both = [second, third]
    end = time.monotonic() + PATIENCE
    while sum(bool(peer.stats()["father"]) for peer in both) != 1 or not any(p.stats()["children"] for p in both):
        assert time.monotonic() < end, [peer.stats() for peer in both]
        time.sleep(0.05)
    second.until_found("three.ogg")
    third.until_found("two.ogg")


@pytest.mark.requirement("M18")
@pytest.mark.requirement("M40")
def test_servers_told_a_full_father_come_to_stand_below_each_other_and_stay_there(quest):
    """A chain, since each takes one child only; who was sent on does not change its place again."""
    first = quest.server({"0.ogg": b"0"}, slots=1, father="none", heartbeat=20.0)
    father = quest.servers[0].address("musicquest-server", "children")
    others = [quest.server({f"{n}.ogg": b"%d" % n}, slots=1, father=father, heartbeat=20.0) for n in range(1, 4)]
    for peer in others:
        peer.until(lambda stats: stats["father"])
    found = first.search(text="ogg", limit=10)
    assert sorted(hit["name"] for hit in found["hits"]) == ["0.ogg", "1.ogg", "2.ogg", "3.ogg"]
    assert sorted(len(peer.stats()["path"]) for peer in (first, *others)) == [0, 1, 2, 3]
    assert [peer.stats()["joined"] for peer in others] == [1, 1, 1]


@pytest.mark.requirement("M25")
def test_a_song_that_many_want_is_taken_over_by_the_neighbour(quest, peers):
    song = random.Random(2).randbytes(700_001)
    first = quest.server({"hit.ogg": song}, replicate_after=3)
    second = quest.server({})
    second.until(lambda stats: stats["father"])
    first.until(lambda stats: stats["children"])
    for _ in range(3):
        assert fetch_all(peers(endpoint(quest, 0)), "hit.ogg", len(song)) == song
    second.until(lambda stats: stats["replicas"] == 1)
    assert fetch_all(peers(endpoint(quest, 1)), "hit.ogg", len(song)) == song
    second.until_found("hit.ogg", {endpoint(quest, 0), endpoint(quest, 1)})


def test_a_broker_that_comes_late_and_is_restarted_learns_of_the_servers(scale0_broker, tmp_path, peers):
    folder = Path(tempfile.mkdtemp(prefix="mq-"))  # an address of a unix socket is short
    try:
        places = {
            "bind_servers": [f"ipc://{folder}/servers"],
            "bind_clients": [f"ipc://{folder}/clients"],
            "lease": 3.0,
        }
        (tmp_path / "music").mkdir()
        table = {"music": str(tmp_path / "music"), "clients": ANY_PORT, "children": ANY_PORT, "heartbeat": 0.5}
        table["broker"] = places["bind_servers"][0]
        server = scale0_broker.in_thread(["musicquest-server"], {"plugin": {"musicquest-server": table}})
        client = peers(places["bind_clients"][0], zmq.REQ)
        for _ in range(2):
            broker = scale0_broker.in_thread(["musicquest-broker"], {"plugin": {"musicquest-broker": places}})
            end = time.monotonic() + PATIENCE
            while (answer := client.ask("hello")) == [b"bye"]:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert answer == [b"hello", server.address("musicquest-server", "clients").encode()]
            broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_few_reports_wait_for_a_broker_that_is_away(scale0_broker, tmp_path):
    folder = Path(tempfile.mkdtemp(prefix="mq-"))
    (tmp_path / "music").mkdir()
    table = {"music": str(tmp_path / "music"), "clients": ANY_PORT, "children": ANY_PORT, "heartbeat": 0.1}
    table["broker"] = f"ipc://{folder}/servers"
    try:
        server = scale0_broker.in_thread(["musicquest-server"], {"plugin": {"musicquest-server": table}})
        counts = server.broker.running().counts["musicquest-server"]
        end = time.monotonic() + PATIENCE
        while not counts.undelivered["broker", "EAGAIN"]:  # then no more of them wait
            assert time.monotonic() < end
            time.sleep(0.05)
        with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
            broker.linger = 0
            broker.bind(table["broker"])
            assert broker.poll(PATIENCE * 1000)
            sequences = []
            while broker.poll(50):
                sequences.append(json.loads(broker.recv_multipart()[-1])["sequence"])
        waited = [number for place, number in enumerate(sequences) if number == sequences[0] + place]
        assert len(waited) <= MOST_REPORTS + 1
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_songs_put_into_the_folder_of_a_running_server_are_served(quest):
    peer = quest.server({"old.ogg": b"old"})
    (quest.folder / "music0" / "new.ogg").write_bytes(b"new")
    peer.until(lambda stats: stats["songs"] == 2)
    assert peer.ask("ZMQ01", "fetch", "f", "new.ogg", bytes(8), wire.number(9))[-1] == b"new"


def test_a_client_that_takes_nothing_is_not_read_for_without_end(quest, peers):
    """Of what it asks for, little more is read than fits on the way to it; once it takes that, it is served again."""
    size = 1 << 20
    watcher = quest.server({"large.ogg": bytes(size)}, credit=8)
    lazy = peers(endpoint(quest, 0), rcvhwm=1)
    asked, before = 0, -1
    while (sent := watcher.stats()["uploads"])["chunks"] != before or sent["refused"] < 50:
        before = sent["chunks"]
        for _ in range(10):
            lazy.send("ZMQ01", "fetch", "t", "large.ogg", bytes(8), wire.number(size))
        asked += 10
        assert asked < 2000, sent
        time.sleep(0.2)
    assert sent["chunks"] < 190, sent
    end, number, answer = time.monotonic() + PATIENCE, 0, [b""]
    while answer[-1] != bytes(size):  # what it asked for before may still be on its way
        assert time.monotonic() < end
        number += 1
        lazy.send("ZMQ01", "fetch", f"again-{number}", "large.ogg", bytes(8), wire.number(size))
        while (answer := lazy.receive())[2] != b"again-%d" % number:
            pass


def test_a_plan_over_real_sockets(quest):
    song = b"plan" * 100_000
    first, second = quest.server({"a.ogg": song}), quest.server({})
    (hit,) = first.search(name="a.ogg")["hits"]
    wanted = {key: hit[key] for key in ("name", "size", "sha256")}
    plan = {"songs": [{**wanted, "holders": [endpoint(quest, 0)]}]}
    assert json.loads(second.ask("ZMQ01", "plan", "p", json.dumps(plan))[3])["accepted"] == ["a.ogg"]
    second.until(lambda stats: stats["replicas"] == 1)
    again = json.loads(second.ask("ZMQ01", "plan", "p", json.dumps(plan))[3])
    assert again["refused"] == [{"name": "a.ogg", "why": "it is here already"}]


def test_the_plugin_fills_in_folders_and_opens_nothing_by_itself(tmp_path):
    context = BrokerContext(name="b", runtime_dir=str(tmp_path / "run"), data_dir=str(tmp_path / "data"))
    (server,) = MusicServerPlugin().scale0_services(MusicServerSettings(adverts="{data}/adverts"), context)
    assert server.name == "musicquest-server"
    assert not (tmp_path / "data").exists()
