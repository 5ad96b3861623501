"""The page over the real thing: a broker, three servers in a tree with tunes, and the real client between."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scale0_musicquest.client.sync import MusicClient
from scale0_musicquest.web.source import song_url

from .listening import Network, listening, real_network, wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with real_network(tmp_path_factory.mktemp("music")) as running:
        yield running


@pytest.fixture(scope="module")
def client(network: Network) -> Iterator[httpx.Client]:
    """Give a listener of the page, once all servers are in the tree with all their songs."""
    with MusicClient(network.clients) as music, listening(music) as site, site.client() as client:
        wait_until(lambda: is_complete(tree_of(client)), 60)
        yield client


def tree_of(client: httpx.Client) -> list[dict[str, Any]]:
    return list(client.get("/api/tree").json().get("servers", []))


def is_complete(servers: list[dict[str, Any]]) -> bool:
    return sorted(row["songs"] for row in servers) == [1, 2, 2] and sum(bool(row["father"]) for row in servers) == 2


def test_the_tree_is_that_of_the_servers(client: httpx.Client, network: Network):
    servers = tree_of(client)
    assert {row["endpoint"] for row in servers} == set(network.endpoints)
    assert sum(row["root"] for row in servers) == 1
    wait_until(lambda: [row["own"] for row in tree_of(client)].count(True) == 1)


def test_every_tune_is_found_and_comes_as_it_is(client: httpx.Client, network: Network):
    found = client.get("/api/search", params={"q": "Scale0 Ensemble"}).json()
    assert {hit["name"] for hit in found["hits"]} == {tune.name for tune in network.tunes}
    by_name = {hit["name"]: hit for hit in found["hits"]}
    assert len(by_name[network.tunes[-1].name]["holders"]) == 2
    for tune in network.tunes:
        data = tune.read_bytes()
        assert client.get(by_name[tune.name]["url"]).content == data
        part = client.get(by_name[tune.name]["url"], headers={"range": "bytes=70000-200000"})
        assert part.content == data[70_000:200_001]
        assert part.headers["content-type"] == "audio/wav"


def test_who_holds_a_song_and_what_a_server_has(client: httpx.Client, network: Network):
    name = network.tunes[-1].name
    told = client.get(song_url(name).replace("/song/", "/holders/")).json()
    holders = {holder["endpoint"] for holder in told["holders"]}
    assert holders <= set(network.endpoints)
    for row in tree_of(client):
        songs = client.get("/api/songs", params={"server": row["id"]}).json()["songs"]
        assert (name in {song["name"] for song in songs}) == (row["endpoint"] in network.endpoints[1:])


def test_a_typo_gets_a_suggestion(client: httpx.Client):
    own = next(row["id"] for row in tree_of(client) if row["own"])  # suggestions come from the own server
    title = client.get("/api/songs", params={"server": own}).json()["songs"][0]["title"]
    told = client.get("/api/search", params={"q": title[:-2] + title[-1] + title[-2]}).json()
    assert told["hits"] == []
    assert title in told["suggestions"]


def test_a_song_that_nobody_has(client: httpx.Client):
    assert client.get("/api/song/nobody.ogg").status_code == 404


def test_the_command_serves_the_page_until_a_signal_ends_it(network: Network):
    code = (
        "import sys; from scale0_musicquest.web.app import serve; "
        "serve(sys.argv[1], 0, lambda line: print(line, flush=True))"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, network.clients], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        link = program.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
        with httpx.Client(trust_env=False, timeout=30) as browser:
            page = browser.get(link, follow_redirects=True)
            assert page.status_code == 200
            with browser.stream("GET", page.url.join("/api/live")) as live:
                state = next(line for line in live.iter_lines() if line.startswith("data: "))
                assert "servers" in json.loads(state[6:])
                program.send_signal(signal.SIGTERM)  # also while somebody watches
                assert program.wait(30) == 0
        assert program.communicate(timeout=60)[1] == "", "nothing is logged, least of all the token"
    finally:
        program.kill()
        program.communicate(timeout=60)


def test_without_a_broker_the_page_says_so():
    with MusicClient("tcp://127.0.0.1:1", timeout=0.5) as music, listening(music) as site, site.client() as client:
        answer = client.get("/api/search", params={"q": "quest"})
        assert answer.status_code == 503
        assert "tcp://127.0.0.1:1" in str(answer.json()["error"])
        wait_until(lambda: "tcp://127.0.0.1:1" in client.get("/").text)
