"""Music servers for tests: one in a conversation, or many in a simulated network with a real music broker."""

from __future__ import annotations

import hashlib
import json

from scale0_core.api import Endpoint, SocketKind
from scale0_core.testing import Script, SimNetwork
from scale0_musicquest import wire
from scale0_musicquest.broker.settings import MusicBrokerSettings
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.broker.service import MusicBroker
from scale0_musicquest.service.server.service import MusicServer
from scale0_musicquest.service.server.shelf import Shelf

BROKER = "tcp://127.0.0.1:6668"
FOR_CLIENTS = "tcp://127.0.0.1:6667"
CALM = {"delay": (0.0, 0.001), "job_delay": (0.0, 0.001), "reconnect": (0.001, 0.002), "detection": (0.0, 0.1)}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def make_server(folder, songs=None, ident="me", adverts=None, **settings):
    """Make a server with real files."""
    music = folder / "music"
    music.mkdir(parents=True, exist_ok=True)
    for name, content in (songs or {}).items():
        (music / name).write_bytes(content)
    shelf = Shelf(music, folder / "songs", settings.get("replica_bytes", 1 << 30))
    advert_shelf = None
    if adverts is not None:
        (folder / "adverts").mkdir(exist_ok=True)
        for name, content in adverts.items():
            (folder / "adverts" / name).write_bytes(content)
        advert_shelf = Shelf(folder / "adverts", folder / "advert-songs", 0)
    return MusicServer(MusicServerSettings(**settings), ident, shelf, advert_shelf)


class Talk(Script):
    """A conversation with one server, which has looked at its folder already. No broker, a root, unless said so."""

    def __init__(self, folder, songs=None, *, job_delay=0.0, **settings):
        settings = {"broker": "", "father": "none", "rescan": 1e6, "heartbeat": 1e6, **settings}
        super().__init__(make_server(folder, songs, **settings), job_delay=job_delay)
        self.sleep(0.1 + 2 * job_delay)

    def ask(self, peer, *frames):
        """Ask in the original form, and give the frames of the answer."""
        before = len(self.sent)
        self.feed("clients", peer, *frames)
        return self.answers(peer, before)

    def extended(self, peer, word, tag, *rest):
        """Ask in the extended form, and give the frames of the answer behind the header and the tag."""
        before = len(self.sent)
        told = [json.dumps(part) if isinstance(part, dict) else part for part in rest]
        self.feed("clients", peer, "ZMQ01", word, tag, *told)
        answers = [frames for frames in self.answers(peer, before) if frames[0] == b"ZMQ01"]
        if not answers:
            return None
        _, *frames = answers[-1]
        assert frames[1] == (tag.encode() if isinstance(tag, str) else tag)
        return [frames[0], *frames[2:]]

    def answers(self, peer, since=0):
        peer = peer.encode() if isinstance(peer, str) else peer
        return [frames[1:] for socket, frames in self.sent[since:] if socket == "clients" and frames[0] == peer]

    def sent_on(self, socket, since=0):
        return [frames for where, frames in self.sent[since:] if where == socket]

    def join(self, peer, ident, port, **more):
        """Let a child join in the extended form."""
        told = {"id": ident, "endpoint": f"tcp://127.0.0.1:{port}", "children_endpoint": f"tcp://127.0.0.1:{port + 1}"}
        before = len(self.sent)
        self.feed("children", peer, "add", json.dumps({**told, **more}))
        return self.sent_on("children", before)[-1][1:]

    def tell(self, peer, word, value, socket="children"):
        """Let a neighbour say something in the extended form."""
        peers = (peer,) if socket == "children" else ()
        self.feed(socket, *peers, "ZMQ01", word, json.dumps(value))

    def told(self, word, socket="children", peer=None, since=0):
        """Give all JSON that was sent to neighbours with a word."""
        found = []
        for frames in self.sent_on(socket, since):
            body = frames[1:] if socket == "children" else frames
            if body[0] == b"ZMQ01" and body[1] == word.encode() and (peer is None or frames[0] == peer.encode()):
                found.append(json.loads(body[2]))
        return found


class Listener:
    """A client of one server: it sends what it is told to, and keeps all that comes back with the time."""

    name = "listener"

    def __init__(self, address):
        self.endpoints = {"server": Endpoint(kind=SocketKind.DEALER, connect=address)}
        self.waiting = []
        self.came = []
        self.now = 0.0

    def receive(self, socket, frames, now):
        self.came.append((now, frames))
        return ()

    def next_deadline(self):
        return self.now if self.waiting else None

    def on_deadline(self, now):
        waiting, self.waiting = self.waiting, []
        return [("server", frames) for frames in waiting]


class World:
    """A tree of servers on virtual time, numbered from 0, with a music broker."""

    def __init__(self, folder, count, songs=None, seed=0, broker=True, weather=None, **settings):
        self.folder = folder
        self.net = SimNetwork(seed, **{**CALM, **(weather or {})})
        self.songs = songs or {}
        self.count = count
        self.settings = {"slots": 2, "rescan": 1e6, "broker": BROKER if broker else "", **settings}
        self.lease = 3.0
        if broker:
            self.net.add("broker", self.make_broker)
        for number in range(count):
            self.net.add(f"s{number}", lambda node, number=number: [self.make(node, number)])
        self.listeners = {}

    def make_broker(self, node):
        return [MusicBroker(MusicBrokerSettings(lease=self.lease), (BROKER,), (FOR_CLIENTS,))]

    def make(self, node, number):
        settings = {"clients": (endpoint(number),), "children": (children_endpoint(number),), **self.settings}
        ident = f"s{number}.{node.starts}"
        return make_server(self.folder / f"s{number}", self.songs.get(number), ident, **settings)

    def server(self, number):
        return self.net.nodes[f"s{number}"].services[0]

    @property
    def servers(self):
        return [node.services[0] for name, node in self.net.nodes.items() if name.startswith("s") and node.up]

    @property
    def broker(self):
        return self.net.nodes["broker"].services[0]

    def is_one_tree(self):
        """Tell whether all servers that are up are in one tree, and father and child agree."""
        servers = self.servers
        by_ident = {server.ident: server for server in servers}
        if sum(server.links.father is None for server in servers) != 1:
            return False
        for server in servers:
            father = server.links.father
            if father is None:
                continue
            above = by_ident.get(father.ident)
            if above is None or server.ident not in {child.ident for child in above.links.children.values()}:
                return False
            if server.links.path != (above.ident, *above.links.path):
                return False
        return sum(len(server.links.children) for server in servers) == len(servers) - 1

    def settle(self, limit=60.0):
        """Let time pass until the tree is whole and all folders are known."""
        wanted = {number: len(songs) for number, songs in self.songs.items() if self.net.nodes[f"s{number}"].up}

        def ready():
            known = all(len(self.server(number).library) >= size for number, size in wanted.items())
            return known and self.is_one_tree()

        assert self.net.run_until(ready, limit), self.describe()

    def describe(self):
        return {
            server.ident: (server.links.father and server.links.father.ident, server.links.path, server.links._attempt)
            for server in self.servers
        }

    def listener(self, number):
        """Give a client of a server."""
        name = f"l{number}"
        if name not in self.net.nodes:
            self.net.add(name, lambda node: [Listener(endpoint(number))])
        return self.net.nodes[name].services[0]

    def say(self, number, *frames):
        """Let the client of a server send something, and give what came before."""
        listener = self.listener(number)
        listener.now = self.net.now
        listener.waiting.append(tuple(f.encode() if isinstance(f, str) else f for f in frames))
        host = self.net.nodes[f"l{number}"].hosts[0]
        self.net.at(self.net.now, host.begin)
        return listener

    def ask(self, number, *frames, limit=30.0):
        """Let the client of a server ask, and wait for the next answer."""
        listener = self.say(number, *frames)
        before = len(listener.came)
        assert self.net.run_until(lambda: len(listener.came) > before, limit), "no answer"
        return listener.came[before][1]

    def search(self, number, uuid, limit=30.0, **query):
        """Search in the extended form, and give the answer's JSON."""
        frames = self.ask(number, wire.HEADER, "search", uuid, json.dumps(query), limit=limit)
        assert frames[:3] == (b"ZMQ01", b"found", uuid.encode()), frames
        return json.loads(frames[3])

    def extended(self, number, word, tag, *rest):
        told = [json.dumps(part) if isinstance(part, dict) else part for part in rest]
        return self.ask(number, wire.HEADER, word, tag, *told)


def endpoint(number):
    return f"tcp://127.0.0.1:{10_000 + number}"


def children_endpoint(number):
    return f"tcp://127.0.0.1:{20_000 + number}"


def holders(answer):
    """Give the addresses of all holders in an answer."""
    return [holder["endpoint"] for hit in answer["hits"] for holder in hit["holders"]]
