"""The page's answers: searching, songs by ranges, the tree, live events, and failures in words."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_core.api import Scale0Error
from scale0_musicquest.songs import Hit
from scale0_musicquest.web import pages
from scale0_musicquest.web.gateway import KNOWN_SECONDS, MAX_KNOWN, Whereabouts, content_type
from scale0_musicquest.web.source import song_url
from scale0_musicquest.web.state import View

from .listening import Listening, Shelves, listening, small_world, wait_until


@pytest.fixture(scope="module")
def world() -> Shelves:
    world = small_world()
    first = world.rows[0].endpoint
    world.add_song("empty.ogg", b"", first, title="Empty")
    world.add_song("nf.ogg", b"NF", first, title="Two Bytes")
    world.add_song("großer Tag? 100%.mp3", b"abc" * 200_000, first, title="Big <b>Day</b>")
    world.add_song("page.html", b"<script>alert(1)</script>", first, title="Not a Song")
    return world


@pytest.fixture(scope="module")
def site(real: None, world: Shelves) -> Iterator[Listening]:
    with listening(world) as running:
        yield running


@pytest.fixture(scope="module")
def client(site: Listening) -> Iterator[httpx.Client]:
    with site.client() as client:
        yield client


@pytest.fixture
def mine(real: None) -> Iterator[tuple[Shelves, httpx.Client]]:
    """Give a world of the test's own, which it may break."""
    world = small_world()
    with listening(world) as running, running.client() as client:
        yield world, client


def test_a_search_finds_songs_with_their_holders(client: httpx.Client):
    told = client.get("/api/search", params={"q": "BLUE"}).json()
    assert {hit["title"] for hit in told["hits"]} == {"Blue Hour", "Paper Moons", "Blue River, Slow Boat"}
    assert [len(hit["holders"]) for hit in told["hits"] if hit["title"] == "Blue Hour"] == [2]
    assert told["complete"] is True


def test_a_typo_gets_suggestions(client: httpx.Client):
    told = client.get("/api/search", params={"q": "cooper"}).json()
    assert (told["hits"], told["suggestions"]) == ([], ["Copper Rain"])


@pytest.mark.parametrize("text", ["", "   ", "x" * 1001])
def test_a_search_for_nothing_is_refused(client: httpx.Client, text: str):
    answer = client.get("/api/search", params={"q": text})
    assert answer.status_code == 400
    assert "characters" in answer.json()["error"]["what"]


def test_the_tree_tells_all_servers(client: httpx.Client, world: Shelves):
    servers = client.get("/api/tree").json()["servers"]
    assert {row["id"]: row["father"] for row in servers} == {row.id: row.father for row in world.rows}
    assert [row["id"] for row in servers if row["own"]] == ["oslo"]


def test_the_songs_of_a_server_come_in_pages(client: httpx.Client):
    first = client.get("/api/songs", params={"server": "rio", "limit": 2}).json()
    rest = client.get("/api/songs", params={"server": "rio", "offset": 2}).json()
    assert first["total"] == rest["total"] == 6
    assert len({song["name"] for song in first["songs"] + rest["songs"]}) == 6
    assert client.get("/api/songs", params={"server": "nowhere"}).status_code == 404


def test_a_song_comes_whole(client: httpx.Client, world: Shelves):
    for song in world.all():
        answer = client.get(song_url(song.name, song.sha256))
        assert answer.status_code == 200
        assert answer.content == world.bytes[song.sha256]
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.headers["content-length"] == str(song.size)


@pytest.fixture(scope="module")
def big(world: Shelves) -> tuple[str, bytes]:
    song = next(song for song in world.all() if song.name.endswith(".mp3"))
    return song_url(song.name, song.sha256), world.bytes[song.sha256]


def test_ranges_of_a_song(client: httpx.Client, big: tuple[str, bytes]):
    url, data = big
    part = client.get(url, headers={"range": "bytes=100000-499999"})
    assert part.status_code == 206
    assert part.headers["content-range"] == f"bytes 100000-499999/{len(data)}"
    assert part.content == data[100_000:500_000]
    assert client.get(url, headers={"range": "bytes=-7"}).content == data[-7:]
    beyond = client.get(url, headers={"range": f"bytes={len(data)}-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(data)}"


def test_a_head_tells_the_size_and_sends_nothing(client: httpx.Client, big: tuple[str, bytes]):
    answer = client.head(big[0])
    assert answer.status_code == 200
    assert answer.headers["content-length"] == str(len(big[1]))
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content == b""


def test_conditions_on_the_content(client: httpx.Client, big: tuple[str, bytes]):
    url, data = big
    tag = client.head(url).headers["etag"]
    assert client.get(url, headers={"if-none-match": tag}).status_code == 304
    assert client.get(url, headers={"range": "bytes=0-9", "if-range": tag}).status_code == 206
    assert client.get(url, headers={"range": "bytes=0-9", "if-range": '"other"'}).content == data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(header=st.from_regex(r"(bytes|x)=[0-9]{0,7}-[0-9]{0,7}(,[0-9]-[0-9])?", fullmatch=True))
def test_any_range_gets_exactly_the_bytes_it_names(client: httpx.Client, big: tuple[str, bytes], header: str):
    url, data = big
    answer = client.get(url, headers={"range": header})
    if answer.status_code == 206:
        start, end, size = map(int, re.findall(r"\d+", answer.headers["content-range"]))
        assert size == len(data)
        assert answer.content == data[start : end + 1]
    else:
        assert (answer.status_code, answer.content) in [(200, data), (416, b"")]


@pytest.mark.parametrize(
    "path",
    [
        "..%2F..%2Fetc%2Fpasswd", "%2e%2e%2f", "../../etc/passwd", "a/b", ".hidden", "nobody.ogg", "%00", "%FF%FE",
        "a%5Cb", "",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_not_found(client: httpx.Client, path: str):
    for place in ("/api/song/", "/api/holders/", "/static/"):
        assert client.get(place + path).status_code == 404


def test_files_of_the_page_itself_are_only_those(client: httpx.Client):
    assert client.get("/static/page.css").headers["content-type"].startswith("text/css")
    for name in ("page.html", "..%2Fapp.py", "%2e%2e/app.py", "app.py"):
        assert client.get(f"/static/{name}").status_code == 404


def test_another_content_of_the_same_name_is_not_mistaken(client: httpx.Client):
    assert client.get(song_url("blue-hour.wav", "0" * 64)).status_code == 404


def test_what_is_not_sound_is_never_shown_as_a_page(client: httpx.Client):
    answer = client.get(song_url("page.html"))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert content_type("A.FLAC") == "audio/flac"


def test_many_listen_at_once(site: Listening, client: httpx.Client, big: tuple[str, bytes]):
    url, data = big

    def listen(offset: int) -> bool:
        with httpx.Client(base_url=site.url, cookies=dict(client.cookies), timeout=60, trust_env=False) as own:
            return own.get(url, headers={"range": f"bytes={offset}-"}).content == data[offset:]

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(listen, range(0, 240_000, 10_000)))
    wait_until(lambda: site.server.gateway.streams == 0)


def test_a_song_is_read_as_it_is_taken(mine: tuple[Shelves, httpx.Client]):
    """One who listens slowly, or goes away, does not make the server read a whole song."""
    world, client = mine
    song = world.add_song("long.wav", bytes(60_000_000), world.rows[0].endpoint)
    with client.stream("GET", song_url(song.name, song.sha256)) as answer:
        next(answer.iter_raw(1000))
        wait_until(lambda: len(world.reads) >= 1)
    assert sum(size for _, _, size in world.reads) < 40_000_000


def test_a_holder_that_goes_is_replaced_by_another(mine: tuple[Shelves, httpx.Client]):
    world, client = mine
    song = next(song for song in world.all() if song.title == "Blue River, Slow Boat")
    url = song_url(song.name, song.sha256)
    assert client.head(url).status_code == 200  # now the page remembers the holder
    world.dead.add(world.rows[3].endpoint)
    world.on[world.rows[5].endpoint].append(song)
    assert client.get(url).content == world.bytes[song.sha256]


def test_a_song_whose_holders_are_all_gone_breaks_off(mine: tuple[Shelves, httpx.Client]):
    world, client = mine
    song = next(song for song in world.all() if song.title == "Blue River, Slow Boat")
    url = song_url(song.name, song.sha256)
    assert client.head(url).status_code == 200
    world.dead.add(world.rows[3].endpoint)
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(url)
    assert client.get(url).status_code == 404, "afterwards it is known that nobody has it"


def test_failures_are_told_in_words(mine: tuple[Shelves, httpx.Client]):
    world, client = mine
    world.broken = Scale0Error("nobody answers at tcp://127.0.0.1:1", "asking the broker", "", "start the broker")
    answer = client.get("/api/search", params={"q": "blue"})
    assert answer.status_code == 503
    told = {"what": "Nobody answers at tcp://127.0.0.1:1.", "why": "Asking the broker.", "next": "Start the broker."}
    assert answer.json() == {"error": told}
    page = client.get("/", params={"q": "blue"})
    assert page.status_code == 200
    assert "Nobody answers at tcp://127.0.0.1:1." in page.text


def test_a_fault_of_the_program_is_told_and_logged(
    mine: tuple[Shelves, httpx.Client], caplog: pytest.LogCaptureFixture
):
    world, client = mine
    world.broken = RuntimeError("oh")
    assert "RuntimeError: oh" in client.get("/api/search", params={"q": "a"}).json()["error"]["why"]
    assert "a fault of this program" in caplog.text


def events(answer: httpx.Response) -> Iterator[dict[str, object]]:
    return (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def test_live_events_tell_what_changes(mine: tuple[Shelves, httpx.Client]):
    world, client = mine
    with client.stream("GET", "/api/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        states = events(answer)
        assert len(next(states)["servers"]) == 6
        world.add_server("quito", "rio")
        assert len(next(states)["servers"]) == 7
        world.broken = Scale0Error("the broker is gone")
        now = next(states)
        assert now["trouble"]["what"] == "The broker is gone."
        assert len(now["servers"]) == 7, "what was seen before stays"
        world.broken = None
        assert next(states)["trouble"] is None


def test_those_who_watch_are_counted_and_let_go(site: Listening, client: httpx.Client):
    with client.stream("GET", "/api/live") as answer:
        states = events(answer)
        next(states)
        assert site.server.watch.watchers == 1
    wait_until(lambda: site.server.watch.watchers == 0)


def test_the_page_is_readable_without_scripts(client: httpx.Client):
    text = client.get("/", params={"q": "Big"}).text
    assert "Big &lt;b&gt;Day&lt;/b&gt;" in text
    assert "gro%C3%9Fer%20Tag%3F%20100%25.mp3" in text
    assert "<strong>rio</strong>" in text
    assert "Copper%20Rain" in client.get("/", params={"q": "cooper"}).text.replace("+", "%20")


def test_fathers_in_a_circle_are_written_once():
    row = {"clients": 0, "capacity": 1, "songs": 0, "root": False, "own": False, "endpoint": "tcp://x:1"}
    servers = tuple({**row, "id": name, "label": name, "father": father} for name, father in ["ab", "ba", "cc"])
    text = bytes(pages.index("", None, View(servers=servers), None).body).decode()
    assert [text.count(f"<strong>{name}</strong>") for name in "abc"] == [1, 1, 1]


def test_where_songs_are_is_remembered_within_bounds(world: Shelves):
    now = [0.0]
    known = Whereabouts(lambda: now[0])
    hit = Hit(world.all()[0])
    for number in range(MAX_KNOWN + 10):
        known.learn(str(number), (hit,))
    assert known.find("0", "") is None
    assert known.find(str(MAX_KNOWN), hit.song.sha256) is hit
    now[0] = KNOWN_SECONDS
    assert known.find(str(MAX_KNOWN), "") is None


def test_the_page_is_small():
    files = [path.read_bytes() for path in pages.STATIC.iterdir()]
    assert sum(len(gzip.compress(data)) for data in files) < 60_000


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_aa_asks_for(scheme: int):
    css = (pages.STATIC / "page.css").read_text("utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.split(":root {")[1 + scheme].split("}")[0]))
    pairs = [
        *((text, under) for text in ("ink", "soft", "accent") for under in ("paper", "card", "raised", "tint")),
        ("on-accent", "accent"), ("ink", "holder-fill"), ("holder", "card"), ("bad", "paper"),
    ]  # fmt: skip
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
