"""The service in a real broker, over real sockets."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid

import pytest
import zmq

from scale0_core.api import BrokerContext
from scale0_zpipes.batches import pack_chunks, unpack_numbered
from scale0_zpipes.plugin import ZpipesPlugin
from scale0_zpipes.service import binary
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings

PATIENCE_MS = 20_000


class Peers:
    """Makes peers, and closes them at the end."""

    def __init__(self):
        self.context = zmq.Context()
        self.made = []

    def __call__(self, address, kind=zmq.DEALER):
        self.made.append(Peer(self.context, address, kind))
        return self.made[-1]


@pytest.fixture
def peers():
    peers = Peers()
    yield peers
    for peer in peers.made:
        peer.close()
    peers.context.term()


class Peer:
    """A socket that asks and insists on an answer."""

    def __init__(self, context, address, kind=zmq.DEALER):
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = PATIENCE_MS
        self.socket.connect(address)

    def send(self, *frames):
        self.socket.send_multipart([frame.encode() if isinstance(frame, str) else frame for frame in frames])

    def ask(self, *frames):
        self.send(*frames)
        return self.socket.recv_multipart()

    def close(self):
        self.socket.close()


@pytest.mark.requirement("R93")
@pytest.mark.requirement("R105")
@pytest.mark.requirement("R106")
@pytest.mark.requirement("R107")
@pytest.mark.requirement("R108")
@pytest.mark.requirement("R109")
def test_both_dialects_and_req_sockets_on_the_same_address(scale0_broker, peers):
    broker = scale0_broker(["zpipes"])
    address = broker.address("zpipes", "pipes", 1)
    text, req = peers(address), peers(address, zmq.REQ)
    writer, reader = peers(address), peers(address)
    assert text.ask("OPEN", "p") == [b"OK"]
    assert text.ask("WRITE", "p", "chunk") == [b"OK"]
    assert req.ask("READ", "p") == [b"chunk"]
    assert req.ask("CLOSE", "p") == [b"OK"]
    assert req.ask("READ", "p")[:2] == [b"ERROR", b"404"]
    assert writer.ask(binary.with_string(binary.OUTPUT, b"p")) == [binary.OUTPUT_OK]
    assert reader.ask(binary.with_string(binary.INPUT, b"p")) == [binary.INPUT_OK]
    assert writer.ask(binary.write(b"bytes", 0)) == [binary.WRITE_OK]
    assert reader.ask(binary.read(3, 0)) == [binary.read_ok(b"byt")]
    large = os.urandom(300_000)
    assert writer.ask(binary.write(large, 0)) == [binary.WRITE_OK]
    assert reader.ask(binary.read(len(large) + 2, 0)) == [binary.read_ok(b"es" + large)]
    assert writer.ask(binary.CLOSE) == [binary.CLOSE_OK]
    assert reader.ask(binary.read(1, 0)) == [binary.READ_END]


@pytest.mark.requirement("R103")
def test_the_abstract_address_has_the_brokers_name(scale0_broker, peers):
    name = f"zp-{uuid.uuid4().hex[:8]}"
    scale0_broker(["zpipes"], name=name)
    peer = peers(f"ipc://@/zpipes/{name}")
    assert peer.ask("PING") == [b"PONG"]


@pytest.mark.requirement("R97")
@pytest.mark.requirement("R101")
@pytest.mark.requirement("R103")
@pytest.mark.requirement("R104")
def test_the_broker_named_default_is_local_too():
    def addresses(name, **settings):
        context = BrokerContext(name=name, runtime_dir="/run/x", data_dir="/data")
        (service,) = ZpipesPlugin().scale0_services(ZpipesSettings(**settings), context)
        assert isinstance(service, ZpipesService)
        assert list(service.endpoints) == ["pipes"], "that is the only interface"
        return service.endpoints["pipes"].bind

    paths = ("ipc:///run/x/zpipes",)
    assert addresses("default") == ("ipc://@/zpipes/default", *paths, "ipc://@/zpipes/local")
    assert addresses("other") == ("ipc://@/zpipes/other", *paths)
    assert addresses("default", alias=False) == ("ipc://@/zpipes/default", *paths)
    assert addresses("default", bind=("tcp://127.0.0.1:*",)) == ("tcp://127.0.0.1:*",)


@pytest.mark.requirement("R113")
def test_chunks_survive_applications_that_are_gone(scale0_broker, peers):
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    writer = peers(address)
    writer.ask("OPEN", "p")
    for number in range(100):
        writer.ask("WRITE", "p", str(number))
    writer.close()
    for first in range(0, 100, 10):
        reader = peers(address)
        assert [int(reader.ask("READ", "p")[0]) for _ in range(10)] == list(range(first, first + 10))
        reader.close()


def test_a_blocked_reader_that_is_gone_loses_no_chunk_and_makes_room_for_another(scale0_broker, peers):
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    writer, dead = peers(address), peers(address)
    writer.ask("OPEN", "p")
    for _ in range(3):
        dead.send("READ", "p")
    dead.ask("PING")
    dead.close()
    reader = peers(address)
    deadline = time.monotonic() + 20
    # the broker hears of the lost connection a moment later
    while (answer := reader.ask("READ", "p", "0"))[1] == b"409" and time.monotonic() < deadline:
        pass
    assert answer[1] == b"408"
    for number in range(5):
        assert writer.ask("WRITE", "p", str(number)) == [b"OK"]
    assert [reader.ask("READ", "p")[0] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_large_chunks_pass_unchanged(scale0_broker, peers):
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    peer = peers(address)
    peer.ask("OPEN", "p")
    chunks = [os.urandom(size) for size in (8191, 8192, 8193, 1_000_000, 15 * 1024 * 1024)]
    for chunk in chunks:
        assert peer.ask("WRITE", "p", chunk) == [b"OK"]
    for chunk in chunks:
        assert peer.ask("READ", "p") == [chunk]
    assert peer.ask("PUT", "p", "me", "1", pack_chunks(chunks[:4])) == [b"OK", b"5"]
    _, _, batch = peer.ask("FETCH", "p", "", "", "10", str(16 * 1024 * 1024), "0")
    assert [chunk for _, chunk in unpack_numbered(batch)] == chunks[:4]


@pytest.mark.requirement("R115")
def test_a_heavy_writer_does_not_delay_a_light_one(scale0_broker, peers):
    """The light writer's chunk is read long before the heavy one's last."""
    address = scale0_broker(["zpipes"]).address("zpipes", "pipes", 1)
    heavy, light, reader = (peers(address) for _ in range(3))
    heavy.ask("OPEN", "p")
    for _ in range(2000):
        heavy.send("WRITE", "p", "heavy")
    for _ in range(2000):
        heavy.socket.recv_multipart()
    assert light.ask("WRITE", "p", "light") == [b"OK"]
    got = [reader.ask("READ", "p")[0] for _ in range(5)]
    assert got.count(b"light") == 1


@pytest.mark.requirement("R102")
def test_a_stop_loses_nothing_of_a_durable_pipe(scale0_broker, peers, tmp_path):
    settings = {"broker": {"data_dir": str(tmp_path)}, "plugin": {"zpipes": {"durable": ["d.*"]}}}
    name = f"zp-{uuid.uuid4().hex[:8]}"
    broker = scale0_broker(["zpipes"], name=name, settings=settings)
    peer = peers(broker.address("zpipes", "pipes", 1))
    peer.ask("OPEN", "d.x")
    for number in range(10):
        peer.ask("WRITE", "d.x", str(number))
    assert [peer.ask("READ", "d.x")[0] for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert broker.stop() == 0
    broker = scale0_broker(["zpipes"], name=name, settings=settings)
    peer = peers(broker.address("zpipes", "pipes", 1))
    assert [peer.ask("READ", "d.x")[0] for _ in range(6)] == [b"4", b"5", b"6", b"7", b"8", b"9"]


ROUNDS = 15


class Sender:
    """Writes numbers into a pipe for as long as the broker lives; keeps what was acknowledged."""

    def __init__(self, puts):
        self.puts = puts
        self.sent = self.acknowledged = 0
        self.doubtful: set[int] = set()
        self.safe: set[int] = set()

    def run(self, peer, seconds):
        peer.socket.rcvtimeo = 2000
        end = time.monotonic() + seconds
        if self.puts:
            self.sent = self.acknowledged
        window: list[int] = []
        while time.monotonic() < end or window:
            while len(window) < 20 and time.monotonic() < end:
                self.sent += 1
                window.append(self.sent)
                if self.puts:
                    batch = pack_chunks([b"%d" % self.sent])
                    peer.send("PUT", "d.x", "me", str(self.sent), batch)
                else:
                    self.doubtful.add(self.sent)
                    peer.send("WRITE", "d.x", f"w{self.sent}")
            if not window or not peer.socket.poll(100):
                return
            answer = peer.socket.recv_multipart()
            assert answer[0] == b"OK", answer
            self.acknowledged = window.pop(0)
            if not self.puts:
                self.safe.add(self.acknowledged)
                self.doubtful.discard(self.acknowledged)


@pytest.mark.seeds(1)
def test_no_acknowledged_chunk_is_lost_or_doubled_by_kill_9(scale0_broker, peers, tmp_path, seed):
    """15 rounds: write, kill -9 at a random moment, start again, read some, go on."""
    settings = {
        "broker": {"data_dir": str(tmp_path)},
        "plugin": {"zpipes": {"durable": ["d.*"], "segment_bytes": 65536}},
    }
    chance = random.Random(seed)
    name = f"zp-{uuid.uuid4().hex[:8]}"
    puts, writes = Sender(puts=True), Sender(puts=False)
    got: dict[int, bytes] = {}

    def read(peer, everything=False):
        while True:
            _, _, batch = peer.ask("FETCH", "d.x", "", "", "500", "100000", "0")
            chunks = dict(unpack_numbered(batch))
            assert all(got.get(number, chunk) == chunk for number, chunk in chunks.items()), "a number was used twice"
            got.update(chunks)
            if not chunks:
                return
            peer.ask("ACK", "d.x", "", str(list(chunks)[-1]))
            if not everything:
                return

    for round_ in range(ROUNDS + 1):
        broker = scale0_broker(["zpipes"], name=name, settings=settings)
        address = broker.address("zpipes", "pipes", 1)
        putter, writer, reader = (peers(address) for _ in range(3))
        assert putter.ask("OPEN", "d.x") == [b"OK"]
        read(reader, everything=round_ == ROUNDS)
        if round_ == ROUNDS:
            break
        puts.run(putter, chance.uniform(0, 0.03))
        for _ in range(20):
            putter.send("PUT", "d.x", "me", str(puts.acknowledged + 1), pack_chunks([b"%d" % (puts.acknowledged + 1)]))
        writes.run(writer, chance.uniform(0, 0.03))
        time.sleep(chance.uniform(0, 0.01))
        os.kill(broker.process.pid, signal.SIGKILL)
        broker.kill()
        for peer in (putter, writer, reader):
            peer.close()
    chunks = [got[number] for number in sorted(got)]
    numbers = [int(chunk) for chunk in chunks if chunk.isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= puts.acknowledged > ROUNDS
    written = [int(chunk[1:]) for chunk in chunks if not chunk.isdigit()]
    assert written == sorted(set(written))
    assert writes.safe <= set(written) <= writes.safe | writes.doubtful
