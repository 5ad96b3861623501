"""What Music Quest costs: downloads beside a raw transfer in C, searches through a tree, searches among many songs.

Everything is real: brokers with the plugin, files, client processes, TCP on the loopback. Rounds are interleaved, and a
ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import zmq
from harness import (
    HERE,
    BenchError,
    Figures,
    NotMeasured,
    Report,
    Samples,
    Server,
    Target,
    bench_folder,
    broker_command,
    find_compiler,
    make_parser,
    native_command,
    native_wire_exists,
    print_table,
    ratio,
    run_bench,
    show,
    take_sizes,
    take_turns,
    write_broker_toml,
)

CHUNK, CREDIT = 250_000, 10
"""What a client asks for at a time, and how often before the first answer: as ``MusicClient`` does."""
TREE_LIMIT = 240.0
"""Seconds within which all servers must have started and found each other, on a slow and busy machine too."""
ANSWER_LIMIT_MS = 20_000
FEW_SONGS = 100
COST_WINDOW = 50
SONGS_PER_ARTIST = 20

FULL = {
    "rounds": 9, "megabytes": 200, "servers": 50, "searches": 1_000, "search_rounds": 7, "songs": 100_000,
    "cost_rounds": 7, "cost_searches": 3_000,
}  # fmt: skip
QUICK = {
    "rounds": 3, "megabytes": 100, "servers": 6, "searches": 120, "search_rounds": 3, "songs": 5_000,
    "cost_rounds": 3, "cost_searches": 1_000,
}  # fmt: skip

TARGETS = (
    Target("mb_s_vs_c", 0.5, "MB/s of a download / a raw transfer in C", at_least=True),
    Target("two_holders_vs_one", 1.0, "MB/s of a download from two holders / from one", at_least=True),
    Target("search_p99_ms", 500, "99 of 100 searches are answered within (the worse of both kinds)"),
    Target("cost_100k_vs_100_songs", 1.5, "CPU of a server per search: 100,000 songs / 100 (the worst kind)"),
)


ANY_PORT = "tcp://127.0.0.1:*"


def start_broker(folder: Path, name: str, plugin: str, **settings: object) -> Server:
    """Start a real broker with one plugin of Music Quest; where it listens is known later."""
    configuration = folder / f"{name}.toml"
    wire = "native" if native_wire_exists() else "pure"
    write_broker_toml(configuration, wire, {f"plugin.{plugin}": settings})
    return Server(name, broker_command(configuration), "", folder)


def start_music_server(folder: Path, name: str, music: Path, **settings: object) -> Server:
    """Start a music server that is alone."""
    server = start_broker(
        folder, name, "musicquest-server",
        music=str(music), clients=[ANY_PORT], children=[ANY_PORT], broker="", father="none", **settings,
    )  # fmt: skip
    try:
        server.endpoint = server.await_address("socket=clients")
    except BaseException:
        server.stop()
        raise
    return server


def ask_json(server: Server, word: bytes, *rest: bytes) -> Any:
    """Ask a music server or broker one question in the extended form; give the JSON of its answer."""
    answer = server.ask([b"ZMQ01", word, b"bench", *rest])[1]
    if len(answer) != 4 or answer[1] == b"ERROR":
        raise BenchError(f"{server.name} answered {word!r} with {answer}")
    return json.loads(answer[3])


def await_songs(server: Server, count: int) -> None:
    """Wait until a server knows so many songs."""
    deadline = time.perf_counter() + TREE_LIMIT
    while (found := ask_json(server, b"stats")["songs"]) != count:
        server.check_alive()
        if time.perf_counter() > deadline:
            raise BenchError(f"{server.name} has {found} songs instead of {count}:\n{server.log()}")
        time.sleep(0.1)


# --- downloads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tune:
    """The song that is downloaded."""

    path: Path
    size: int
    sha256: str

    def check(self, target: Path) -> None:
        """See that a copy is whole, and remove it."""
        found = hashlib.sha256(target.read_bytes()).hexdigest()
        target.unlink()
        if found != self.sha256:
            raise BenchError(f"{target.name} is not the song")


def write_tune(path: Path, size: int) -> Tune:
    """Write a large file that nothing can make smaller."""
    digest, block = hashlib.sha256(), random.Random(1).randbytes(1024 * 1024)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            part = block[: size - start]
            file.write(part)
            digest.update(part)
    return Tune(path, size, digest.hexdigest())


def transfer(tune: Tune, command: Sequence[str], target: Path, servers: Sequence[Server]) -> dict[str, float]:
    """Run one client process; give its speed, and the CPU seconds of both sides."""
    before = sum(server.cpu_seconds() for server in servers)
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if outcome.returncode != 0:
        logs = "\n".join(server.log() for server in servers)
        raise BenchError(f"a download failed: {outcome.stderr.strip()[-2000:]}\n{logs}")
    said: dict[str, float] = json.loads(outcome.stdout)
    server_cpu = sum(server.cpu_seconds() for server in servers) - before
    tune.check(target)
    return {
        "mb_per_s": tune.size / 1e6 / said["seconds"],
        "client_cpu_s": said["client_cpu_s"],
        "server_cpu_s": server_cpu,
    }


def transfer_in_c(tune: Tune, server: Server, target: Path) -> dict[str, float]:
    """Download with the C client."""
    numbers = [str(number) for number in (tune.size, CHUNK, CREDIT)]
    command = [*native_command("music_client"), server.endpoint, tune.path.name, *numbers, str(target)]
    return transfer(tune, command, target, [server])


def download(tune: Tune, servers: Sequence[Server], target: Path) -> dict[str, float]:
    """Download with ``MusicClient``."""
    song = ["--name", tune.path.name, "--size", str(tune.size), "--sha256", tune.sha256, "--target", str(target)]
    command = [sys.executable, str(HERE / "music_download.py"), *song, *(server.endpoint for server in servers)]
    return transfer(tune, command, target, servers)


def measure_downloads(options: argparse.Namespace) -> Figures:
    """Download from one and from two holders, beside the raw transfer; also with one side of it in C."""
    samples: Samples[str] = {}
    with bench_folder() as folder, ExitStack() as stack:
        music = folder / "music"
        music.mkdir()
        tune = write_tune(music / "large.wav", options.megabytes * 1_000_000)
        raw = stack.enter_context(
            Server("c", [*native_command("music_server"), ANY_PORT, str(tune.path)], ANY_PORT, folder)
        )
        raw.endpoint = raw.await_address("ready")
        one, two = (stack.enter_context(start_music_server(folder, f"holder-{n}", music)) for n in (1, 2))
        for holder in (one, two):
            await_songs(holder, 1)
        target = folder / "copy.wav"
        measures = {
            "c": partial(transfer_in_c, tune, raw, target),
            "scale0": partial(download, tune, [one], target),
            "two": partial(download, tune, [one, two], target),
            "server": partial(transfer_in_c, tune, one, target),
            "client": partial(download, tune, [raw], target),
        }
        take_turns(measures, 1, {})  # the first time everything is slower
        take_turns(measures, options.rounds, samples)
    return summarise_downloads(samples)


def summarise_downloads(samples: Samples[str]) -> Figures:
    """Give the ratios of speed, those of CPU, which a busy machine moves less, and the absolute figures."""
    speed = {name: found["mb_per_s"] for name, found in samples.items()}
    cpu = {
        name: [sum(both) for both in zip(found["client_cpu_s"], found["server_cpu_s"], strict=True)]
        for name, found in samples.items()
    }
    figures = {
        **ratio("mb_s_vs_c", speed["scale0"], speed["c"]),
        **ratio("two_holders_vs_one", speed["two"], speed["scale0"]),
        **ratio("mb_s_vs_c_server", speed["server"], speed["c"]),
        **ratio("mb_s_vs_c_client", speed["client"], speed["c"]),
        **ratio("download_cpu_vs_c", cpu["scale0"], cpu["c"]),
        **ratio("two_holders_cpu_vs_one", cpu["two"], cpu["scale0"]),
    }
    for name, found in samples.items():
        figures |= {f"{name}_{figure}": round(median(values), 3) for figure, values in found.items()}
    return figures


# --- searches in a tree -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """Servers that have found each other, the names of all their songs, and what it took."""

    servers: Sequence[Server]
    endpoints: Sequence[str]
    names: Sequence[str]
    seconds: float
    depth: int

    def cpu_seconds(self) -> float:
        """Return what all servers have used so far."""
        return sum(server.cpu_seconds() for server in self.servers)


@contextmanager
def grow_tree(folder: Path, options: argparse.Namespace) -> Iterator[Tree]:
    """Start a music broker and all servers at once, each with as many songs; wait until they are one tree."""
    began = time.perf_counter()
    songs = max(1, options.searches // options.servers)
    with ExitStack() as stack:
        broker = stack.enter_context(
            start_broker(folder, "music", "musicquest-broker", bind_servers=[ANY_PORT], bind_clients=[ANY_PORT])
        )
        broker.endpoint, for_servers = (broker.await_address(f"socket={name}") for name in ("clients", "servers"))
        servers: list[Server] = []
        stack.callback(end_all, servers)
        for number in range(options.servers):
            music = folder / f"music-{number}"
            music.mkdir()
            for song in range(songs):
                name = f"song {song} of {number}.wav"
                (music / name).write_bytes(name.encode())
            servers.append(
                start_broker(
                    folder, f"server-{number}", "musicquest-server",
                    music=str(music), clients=[ANY_PORT], children=[ANY_PORT], broker=for_servers,
                )
            )  # fmt: skip
        names = [f"song {song} of {number}.wav" for song in range(songs) for number in range(options.servers)]
        rows = await_tree(broker, servers, len(names), began)
        endpoints = [row["endpoint"] for row in rows]
        yield Tree(servers, endpoints, names, time.perf_counter() - began, depth_of(rows))


def end_all(servers: Sequence[Server]) -> None:
    """Ask all to end before waiting for any."""
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.stop()


def await_tree(broker: Server, servers: Sequence[Server], songs: int, began: float) -> list[dict[str, Any]]:
    """Wait until the broker knows all servers with all their songs, and all but one have a father."""
    while True:
        rows: list[dict[str, Any]] = ask_json(broker, b"servers")
        fathers = sum(bool(row["father"]) for row in rows)
        known = sum(row["songs"] for row in rows)
        if (len(rows), fathers, known) == (len(servers), len(servers) - 1, songs):
            return rows
        for server in servers:
            server.check_alive()
        if time.perf_counter() - began > TREE_LIMIT:
            raise BenchError(
                f"after {TREE_LIMIT:.0f} s there are {len(rows)} servers, {fathers} fathers, {known} songs"
            )
        time.sleep(0.2)


def depth_of(rows: Sequence[Mapping[str, Any]]) -> int:
    """Give how many servers are on the longest way from the root down."""
    fathers = {row["id"]: row["father"] for row in rows}

    def depth(ident: str) -> int:
        return 1 + depth(fathers[ident]) if fathers.get(ident) else 1

    return max(map(depth, fathers))


class Askers:
    """Clients of some servers of a tree, which all search at once."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoints: Sequence[str]) -> None:
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        for endpoint in endpoints:
            client = context.socket(zmq.DEALER)
            client.linger, client.sndhwm, client.rcvhwm = 0, 0, 0
            client.connect(endpoint)
            client.send_multipart([b"ZMQ01", b"hello", b"bench", b"{}"])
            self._sockets.append(client)
        for client in self._sockets:
            if not client.poll(ANSWER_LIMIT_MS):
                raise BenchError("a server does not answer a greeting")
            client.recv_multipart()
            self._poller.register(client, zmq.POLLIN)

    def close(self) -> None:
        """Let go of all."""
        for client in self._sockets:
            client.close()

    def search_all(self, names: Sequence[str]) -> list[float]:
        """Ask for all songs, each client for its share, without waiting; give the seconds of each answer, in order."""
        asked: dict[bytes, tuple[str, float]] = {}
        messages = [
            (name, uuid.uuid4().hex.encode(), json.dumps({"name": name, "fresh": True}).encode()) for name in names
        ]
        share = -(-len(messages) // len(self._sockets))
        for start, client in zip(range(0, len(messages), share), self._sockets, strict=False):
            for name, tag, query in messages[start : start + share]:
                asked[tag] = name, time.perf_counter()
                client.send_multipart([b"ZMQ01", b"search", tag, query])
        times: list[float] = []
        while asked:
            ready = self._poller.poll(ANSWER_LIMIT_MS)
            if not ready:
                raise BenchError(f"{len(asked)} of {len(names)} searches are not answered")
            for client, _ in ready:
                times += self._take(client, asked)
        return sorted(times)

    @staticmethod
    def _take(client: zmq.Socket[bytes], asked: dict[bytes, tuple[str, float]]) -> Iterator[float]:
        while client.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            _, word, tag, *rest = client.recv_multipart()
            now = time.perf_counter()
            name, since = asked.pop(tag)
            if word != b"found" or [hit["name"] for hit in json.loads(rest[0])["hits"]] != [name]:
                raise BenchError(f"the search for {name} was answered with {word!r}, {rest}")
            yield now - since


def search_once(tree: Tree, askers: Askers) -> dict[str, float]:
    """Search for all songs at once; give the times in ms, and the CPU of all servers."""
    before = tree.cpu_seconds()
    start = time.perf_counter()
    times = [seconds * 1000 for seconds in askers.search_all(tree.names)]
    seconds = time.perf_counter() - start
    time.sleep(0.5)  # what was found after the answer was given is on its way back
    return {
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[-(-len(times) * 99 // 100) - 1],
        "max_ms": times[-1],
        "per_s": len(times) / seconds,
        "cpu_s": tree.cpu_seconds() - before,
    }


def measure_searches(options: argparse.Namespace) -> Figures:
    """Search for as many songs as there are, all at once: asked of one server, and spread over all."""
    samples: Samples[str] = {}
    with bench_folder() as folder, grow_tree(folder, options) as tree, zmq.Context() as context, ExitStack() as stack:
        kinds = {"one": tree.endpoints[:1], "all": tree.endpoints}
        askers = {kind: Askers(context, endpoints) for kind, endpoints in kinds.items()}
        for each in askers.values():
            stack.callback(each.close)
        measures = {kind: partial(search_once, tree, each) for kind, each in askers.items()}
        take_turns(measures, 1, {})  # the first time everything is slower
        take_turns(measures, options.search_rounds, samples)
        for server in tree.servers:
            server.check_alive()
    figures: Figures = {"search_p99_ms": max(round(median(found["p99_ms"]), 1) for found in samples.values())}
    for kind, found in samples.items():
        figures |= {f"search_{kind}_{figure}": round(median(values), 3) for figure, values in found.items()}
    return {**figures, "tree_seconds": round(tree.seconds, 1), "tree_depth": tree.depth}


# --- many songs -------------------------------------------------------------------------------------------------------


SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
COMMON = ("love", "night", "river", "dance", "blue", "home", "summer", "light", "rain", "road")


def word_of(number: int, length: int) -> str:
    """Make a word of its own for each number."""
    word = ""
    for _ in range(length):
        number, rest = divmod(number, len(SYLLABLES))
        word += SYLLABLES[rest]
    return word


@dataclass(frozen=True)
class Tags:
    """What is known of one of many songs; its word is its own, and its artist has a few songs."""

    number: int

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.word} {self.number}.wav"

    @property
    def word(self) -> str:
        """The word of its title that no other has."""
        return word_of(self.number * 7919 % 1_000_003, 4)

    @property
    def artist(self) -> str:
        """An artist with two names, of which one is that of many."""
        group = self.number // SONGS_PER_ARTIST
        return f"{COMMON[group % len(COMMON)]} {word_of(group * 7919 % 300_007, 3)}x"

    @property
    def title(self) -> str:
        """Its title."""
        return f"{COMMON[self.number % len(COMMON)]} {self.word}"


QUERIES = {
    "exact": lambda tags: {"name": tags.name},
    "word": lambda tags: {"text": tags.word},
    "title": lambda tags: {"text": tags.title},
    "artist": lambda tags: {"text": tags.artist},
    "broad": lambda tags: {"text": COMMON[tags.number % len(COMMON)]},
}
"""What people search for. All but the last find as many songs, however many there are."""
BOUNDED = "broad"


def fill_library(folder: Path, state: Path, count: int) -> None:
    """Make small files, and what a server that has looked at them writes down, as if it were started again.

    To read the tags of so many files takes minutes, and is not what is measured.
    """
    from scale0_musicquest.service.server import remembered
    from scale0_musicquest.service.server.files import Mark
    from scale0_musicquest.songs import Song

    folder.mkdir()
    state.parent.mkdir(parents=True)
    known = []
    for number in range(count):
        tags = Tags(number)
        content = tags.name.encode()
        descriptor = os.open(folder / tags.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, content)
        mark = Mark.of(os.fstat(descriptor))
        os.close(descriptor)
        digest = hashlib.sha256(content).hexdigest()
        known.append(
            remembered.Known(Song(tags.name, len(content), digest, tags.title, tags.artist, tags.artist, 180.0), mark)
        )
    remembered.save(state, known)


def start_library(folder: Path, count: int) -> Server:
    """Start a server with so many songs; looks at the folder, which it does now and then, would count as searches."""
    name = f"songs-{count}"
    fill_library(folder / name, folder / f"{name}.data" / "musicquest-server" / "songs", count)
    return start_music_server(folder, name, folder / name, rescan=3600.0)


def cost_once(server: Server, songs: int, kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Search among its songs; give the CPU of the server per search in microseconds, and how many were found."""
    chosen = random.Random(kind).choices(range(songs), k=options.cost_searches)
    queries = [json.dumps({**QUERIES[kind](Tags(number)), "fresh": True}).encode() for number in chosen]
    found = 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger, client.rcvtimeo = 0, ANSWER_LIMIT_MS
        client.connect(server.endpoint)
        before = server.cpu_seconds()
        for number, query in enumerate(queries):
            client.send_multipart([b"ZMQ01", b"search", f"{kind}-{number}".encode(), query])
            if number >= COST_WINDOW:
                found += hits_of(client, server)
        for _ in range(min(COST_WINDOW, len(queries))):
            found += hits_of(client, server)
        cpu = server.cpu_seconds() - before
    return {"us": cpu / len(queries) * 1e6, "hits": found / len(queries)}


def hits_of(client: zmq.Socket[bytes], server: Server) -> int:
    """Take one answer; count what it found."""
    try:
        _, word, _, *rest = client.recv_multipart()
    except zmq.Again:
        server.check_alive()
        raise BenchError(f"{server.name} does not answer:\n{server.log()}") from None
    count = len(json.loads(rest[0])["hits"]) if word == b"found" else 0
    if not count:
        raise BenchError(f"{server.name} found nothing: {word!r}, {rest}")
    return count


def measure_cost(options: argparse.Namespace) -> Figures:
    """Compare what searches cost among few and among many songs."""
    samples: Samples[tuple[str, int]] = {}
    with bench_folder() as folder, ExitStack() as stack:
        sizes = (FEW_SONGS, options.songs)
        servers = {size: stack.enter_context(start_library(folder, size)) for size in sizes}
        for size, server in servers.items():
            await_songs(server, size)
        for kind in QUERIES:
            measures = {(kind, size): partial(cost_once, servers[size], size, kind, options) for size in sizes}
            take_turns(measures, options.cost_rounds, samples)
    figures: Figures = {}
    for kind in QUERIES:
        few, many = (samples[kind, size] for size in sizes)
        figures |= ratio(f"cost_100k_vs_100_songs_{kind}", many["us"], few["us"])
        for name, found in (("few", few), ("many", many)):
            figures |= {f"{kind}_{name}_{figure}": round(median(values), 2) for figure, values in found.items()}
    worst = max(float(figures[f"cost_100k_vs_100_songs_{kind}"] or 0) for kind in QUERIES if kind != BOUNDED)
    return {"cost_100k_vs_100_songs": worst, **figures}


# --- all of it --------------------------------------------------------------------------------------------------------


PARTS = {"downloads": measure_downloads, "searches": measure_searches, "cost": measure_cost}


def measure(options: argparse.Namespace) -> Report:
    """Measure all, and report."""
    if find_compiler() is None:
        raise NotMeasured("the raw transfer is a C program, and no C compiler was found (set CC, or install one)")
    take_sizes(options, FULL, QUICK)
    report = Report("What Music Quest costs", TARGETS)
    if not native_wire_exists():
        report.notes.append("scale0_core was installed without its C extension: the pure wire is measured")
    if (options.servers, options.searches, options.songs) != tuple(FULL[n] for n in ("servers", "searches", "songs")):
        report.notes.append(
            f"smaller than the targets mean: {options.searches:,} searches in a tree of {options.servers} servers, "
            f"{options.songs:,} songs"
        )
    for name in options.only:
        report.figures |= PARTS[name](options)
    report.figures |= {name: getattr(options, name) for name in FULL}
    report.figures |= {"chunk": CHUNK, "credit": CREDIT, "wire": "native" if native_wire_exists() else "pure"}
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print the absolute figures and the ratios."""
    if "scale0_mb_per_s" in figures:
        kinds = {
            "c": "C client, C server", "scale0": "Scale0", "two": "Scale0, two holders",
            "server": "C client, Scale0 server", "client": "Scale0 client, C server",
        }  # fmt: skip
        names = ("mb_per_s", "client_cpu_s", "server_cpu_s")
        rows = [[title, *(show(figures[f"{kind}_{name}"]) for name in names)] for kind, title in kinds.items()]
        print_table(["download", "MB/s", "client CPU s", "server CPU s"], rows)
    if "search_p99_ms" in figures:
        names = ("p50_ms", "p99_ms", "max_ms", "per_s", "cpu_s")
        rows = [[f"of {kind}", *(show(figures[f"search_{kind}_{name}"]) for name in names)] for kind in ("one", "all")]
        print_table(["all at once", "p50 ms", "p99 ms", "max ms", "searches/s", "CPU s of all"], rows)
    if "cost_100k_vs_100_songs" in figures:
        rows = [
            [kind, *(show(figures[f"{kind}_{size}_{name}"]) for size in ("few", "many") for name in ("us", "hits"))]
            for kind in QUERIES
        ]
        print_table(["search by", "us, few songs", "hits", "us, many songs", "hits"], rows)
    names = [name.removesuffix("_low") for name in figures if name.endswith("_low")]
    spread = [[name, *(show(figures[name + end]) for end in ("_low", "", "_high"))] for name in names]
    print_table(["ratio", "lower quartile", "median", "upper quartile"], spread)


def main() -> int:
    """Run the bench from the command line."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure (default: all)")
    parser.add_argument("--rounds", type=int, help="how often each kind of download is measured")
    parser.add_argument("--megabytes", type=int, help="size of the song that is downloaded")
    parser.add_argument("--servers", type=int, help="servers in the tree")
    parser.add_argument("--searches", type=int, help="songs in the tree, which are all searched for at once")
    parser.add_argument("--search-rounds", type=int, help="how often that is done")
    parser.add_argument("--songs", type=int, help="songs of a server that has many")
    parser.add_argument("--cost-rounds", type=int, help="how often the cost of each kind of search is measured")
    parser.add_argument("--cost-searches", type=int, help="searches of each of these rounds")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
