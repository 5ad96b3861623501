"""The page in a real browser: searching, playing, the queue and the tree, as a listener meets them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0_core.api import Scale0Error
from scale0_musicquest.client.sync import MusicClient

from .listening import Listening, Shelves, listening, real_network, small_world, tune, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required", "--mute-audio",
]  # fmt: skip
PATIENCE = 60_000

DESKTOP = {"width": 1400, "height": 1000}
PHONE = {"width": 360, "height": 780}


class Watched:
    """A page whose complaints are gathered."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.outside: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda line: line.type in ("error", "warning") and self.complaints.append(line.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: "//127.0.0.1:" in request.url or self.outside.append(request.url))

    def looks(self, script: str) -> Any:
        return self.page.evaluate(script)

    def until(self, script: str) -> None:
        """Wait until a script says so; Playwright's own way would need eval, which the page's policy forbids."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.looks(script):
            assert time.monotonic() < end, f"never true: {script}"
            self.page.wait_for_timeout(50)

    def search(self, text: str) -> None:
        self.page.fill("#q", text)

    def find(self, text: str) -> None:
        """Search, and wait for songs."""
        self.search(text)
        self.page.wait_for_selector(f"#found:has-text('for “{text}”')")


@pytest.fixture
def world() -> Shelves:
    return small_world()


@pytest.fixture
def site(world: Shelves) -> Iterator[Listening]:
    with listening(world) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        yield running


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Iterator[Any]:
    """Start Chromium with a new, empty profile."""
    context = driver.chromium.launch_persistent_context(
        str(tmp_path / "profile"), executable_path=CHROMIUM, args=ARGUMENTS, headless=True, viewport=DESKTOP,
        color_scheme="light", reduced_motion="reduce",
    )  # fmt: skip
    yield context
    context.close()


@pytest.fixture
def watched(browser: Any, site: Listening) -> Iterator[Watched]:
    """Open the page by its link; at the end nothing may have been complained of or fetched from elsewhere."""
    page = Watched(browser.pages[0])
    page.page.goto(site.link)
    page.until("document.querySelectorAll('.node').length === 6")
    yield page
    assert page.complaints == []
    assert page.outside == []


def shown(watched: Watched, selector: str) -> list[str]:
    return [text.strip() for text in watched.page.locator(selector).all_inner_texts()]


def play(watched: Watched, title: str) -> None:
    watched.page.locator(".song", has_text=title).get_by_role("button", name=f"Play {title}").click()
    watched.until("document.querySelector('#play').title === 'Pause'")


def test_searching_as_one_types(watched: Watched, world: Shelves):
    watched.until("document.querySelectorAll('#results .song').length === 1")  # what the own server has, to begin with
    watched.page.locator("#q").press_sequentially("blue", delay=10)
    watched.until("document.querySelectorAll('#results .song').length === 3")
    assert watched.page.inner_text("#found") == "3 songs for “blue”"
    assert len(world.searches) < 4, "a search waits for a pause in the typing"
    assert watched.page.url.endswith("/?q=blue")


def test_a_typo_is_met_by_a_suggestion(watched: Watched):
    watched.search("cooper")
    watched.page.get_by_role("button", name="Copper Rain").click()
    watched.page.wait_for_selector("#found:has-text('1 song for')")
    assert "Copper Rain" in watched.page.inner_text("#results")
    assert watched.page.input_value("#q") == "Copper Rain"


def test_a_song_plays_and_its_holders_light_up(watched: Watched):
    watched.find("blue hour")
    play(watched, "Blue Hour")
    watched.until("document.querySelector('#clock').textContent.startsWith('0:01')")
    assert watched.page.inner_text("#now-title") == "Blue Hour"
    assert watched.page.title().startswith("Blue Hour")
    watched.until("document.querySelectorAll('.node.holder').length === 2")
    assert {node.get_attribute("data-id") for node in watched.page.locator(".node.holder").all()} == {"rio", "kyoto"}
    assert watched.page.inner_text("#holders") == "“Blue Hour” is on kyoto, rio"
    assert watched.looks("navigator.mediaSession.metadata.title") == "Blue Hour"
    assert watched.looks("parseFloat(document.querySelector('#seek').style.getPropertyValue('--buffered'))") > 99


def test_the_queue_goes_on_by_itself_and_by_hand(watched: Watched, world: Shelves):
    watched.find("blue")
    for title in ("Blue River, Slow Boat", "Paper Moons"):
        watched.page.get_by_role("button", name=f"Add {title} to the queue").click()
    play(watched, "Blue Hour")
    assert [text.split("\n")[0] for text in shown(watched, ".queued")] == [
        "Blue River, Slow Boat", "Paper Moons", "Blue Hour",
    ]  # fmt: skip
    watched.page.get_by_role("button", name="Move up Blue Hour").click()
    watched.page.get_by_role("button", name="Move up Blue Hour").click()
    assert shown(watched, ".queued .title") == ["Blue Hour", "Blue River, Slow Boat", "Paper Moons"]
    wait_until(lambda: any(name.startswith("blue-river") for name, _, _ in world.reads))  # the next is fetched ahead
    watched.page.click("#next")
    watched.until("document.querySelector('#now-title').textContent.startsWith('Blue River')")
    watched.until("!document.querySelector('#clock').textContent.startsWith('0:00')")
    watched.page.locator("#seek").focus()
    for _ in range(2):
        watched.page.keyboard.press("ArrowRight")  # five seconds each; then the song ends by itself
    watched.until("document.querySelector('#now-title').textContent === 'Paper Moons'")
    watched.page.click("#previous")
    watched.until("document.querySelector('#now-title').textContent.startsWith('Blue River')")
    watched.page.get_by_role("button", name="Remove Blue River").click()
    watched.until("document.querySelector('#now-title').textContent === 'Paper Moons'")


def test_the_queue_is_there_again_after_a_reload(watched: Watched):
    watched.find("blue")
    play(watched, "Blue Hour")
    watched.page.click("#repeat")
    watched.page.click("#shuffle")
    watched.page.reload()
    watched.page.wait_for_selector(".queued")
    assert shown(watched, ".queued .title") == ["Blue Hour"]
    assert watched.page.get_attribute("#repeat", "aria-label") == "Repeat: all songs"
    assert watched.page.get_attribute("#shuffle", "aria-pressed") == "true"
    watched.page.click("#play")
    watched.until("document.querySelector('#clock').textContent.startsWith('0:01')")
    watched.page.click("#clear")
    assert "Nothing is queued" in watched.page.inner_text("#queue")


def test_the_queue_by_itself(watched: Watched):
    """The model of the queue, in the browser it is made for."""
    told = watched.looks(
        """async () => {
        const { Queue, MOST } = await import("/static/queue.js");
        const song = (name) => ({ name, url: `/api/song/${name}` });
        const names = (songs) => songs.map((one) => one.name).join("");
        const queue = new Queue({}, () => 0);
        for (const name of "abcd") queue.add(song(name));
        queue.add(song("a"));
        const out = { songs: names(queue.songs), first: queue.following().name };
        queue.current = queue.songs[3];
        out.end = queue.following();
        queue.repeat = "all";
        out.around = queue.following().name;
        queue.repeat = "one";
        out.again = queue.following().name + queue.following(true).name;
        queue.setShuffle(true);
        out.mixed = [queue.order.length, queue.order[0].name, new Set(queue.order).size];
        queue.add(song("x"), true);
        out.next = queue.following(true).name;
        queue.remove(queue.current);
        out.removed = [queue.current.name, queue.songs.length, queue.order.length];
        out.kept = names(new Queue(JSON.parse(JSON.stringify(queue))).songs);
        const odd = [null, 7, { name: "e", url: "http://evil.example/" }, song("f")];
        out.odd = new Queue({ songs: odd, at: 9, repeat: "x" }).songs.length;
        const full = new Queue();
        for (let count = 0; count < MOST + 5; count++) full.add(song(String(count)));
        out.full = full.songs.length === MOST;
        return out;
    }"""
    )
    assert told == {
        "songs": "abcd", "first": "a", "end": None, "around": "a", "again": "da", "mixed": [4, "d", 4], "next": "x",
        "removed": ["x", 4, 4], "kept": "abcx", "odd": 1, "full": True,
    }  # fmt: skip


def test_the_tree_by_keyboard_and_as_a_list(watched: Watched):
    page = watched.page
    page.locator(".node[data-id=rio]").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#server .song")
    assert "Songs of kyoto" in page.inner_text("#server")
    assert watched.looks("document.activeElement.dataset.id") == "kyoto", "drawing anew does not lose the focus"
    page.keyboard.press("Enter")
    watched.until("!document.querySelector('#server').children.length")
    page.click("#tree-text summary")
    listed = page.inner_text("#tree-list")
    assert all(name in listed for name in ("rio", "lima", "oslo", "cairo", "kyoto", "accra"))


def test_servers_that_come_and_go_are_seen(watched: Watched, world: Shelves):
    world.add_server("quito", "oslo")
    watched.until("document.querySelectorAll('.node').length === 7")
    del world.rows[-1]
    watched.until("document.querySelectorAll('.node').length === 6")
    world.broken = Scale0Error("nobody answers at the broker's address", "", "", "start it")
    watched.until("document.querySelector('#verdict').classList.contains('bad')")
    assert "Nobody answers" in watched.page.inner_text("#verdict")
    watched.search("blue")
    watched.page.wait_for_selector(".empty .lead >> text=The search failed.")
    world.broken = None
    watched.until("!document.querySelector('#verdict').classList.contains('bad')")
    watched.complaints = [line for line in watched.complaints if "503" not in line]


def test_what_servers_say_is_never_markup(watched: Watched, world: Shelves):
    bad = "<img src=x onerror=alert(1)>"
    world.add_server(bad, "rio")
    world.add_song("bad.wav", tune(2, 440), world.rows[0].endpoint, title=bad, artist=bad)
    watched.until("document.querySelectorAll('.node').length === 7")
    watched.find("onerror")
    play(watched, bad)
    assert watched.page.inner_text("#now-title") == bad
    assert watched.looks("document.querySelectorAll('img[src=x]').length") == 0


def test_all_that_can_be_used_has_a_name_and_is_reached_by_the_keyboard(watched: Watched):
    watched.find("blue")
    unnamed = watched.looks(
        """[...document.querySelectorAll('button, a, input')].filter((one) => !one.hidden && !(one.textContent.trim()
        || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    watched.page.keyboard.press("Control+k")
    assert watched.looks("document.activeElement.id") == "q"
    reached = set()
    for _ in range(60):
        watched.page.keyboard.press("Tab")
        reached.add(watched.looks("document.activeElement.id || document.activeElement.className?.baseVal || ''"))
    assert {"shuffle", "repeat", "mute", "volume"} <= reached
    assert any(name.startswith("node") for name in reached)


def test_leaving_closes_the_page(watched: Watched):
    watched.page.get_by_role("button", name="Leave").click()
    watched.page.wait_for_selector("text=This page opens by the link in the terminal.")
    watched.complaints = [line for line in watched.complaints if "403" not in line]


def test_the_page_without_scripts(driver: Any, site: Listening):
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, headless=True)
    try:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(site.server.guard.link)
        page.fill("#q", "blue")
        page.get_by_role("button", name="Search").click()
        # what follows waits: a page may be there in full before its style sheet is
        expect = playwright.expect
        expect(page.locator(".song")).to_have_count(3, timeout=PATIENCE)
        expect(page.locator("#tree-list li")).to_have_count(6, timeout=PATIENCE)
        expect(page.locator("#player")).to_be_hidden(timeout=PATIENCE)
    finally:
        browser.close()


def test_real_tunes_play_from_real_servers(browser: Any, tmp_path: Path):
    with real_network(tmp_path / "music") as network, MusicClient(network.clients) as music, listening(music) as site:
        watched = Watched(browser.pages[0])
        watched.page.goto(site.link)
        watched.until("document.querySelectorAll('.node').length === 3")
        shared = network.tunes[-1]
        watched.until("/ 5 songs /.test(document.querySelector('#verdict').textContent.replaceAll('·', '/'))")
        watched.until("document.querySelectorAll('.edge').length === 2")
        watched.page.wait_for_selector("#results .song")
        own = watched.page.locator("#results .song .title").first.inner_text()  # suggestions come from the own server
        watched.find(shared.stem.partition(" ")[2])  # a number, then the title
        title = watched.page.locator("#results .song .title").first.inner_text()
        play(watched, title)
        watched.until("document.querySelector('#clock').textContent.startsWith('0:01')")
        watched.until("document.querySelectorAll('.node.holder').length === 2")
        watched.until("document.querySelectorAll('#top li').length >= 1")
        watched.page.screenshot(path=tmp_path / "real.png")
        watched.search(own[:-2] + own[-1] + own[-2])
        watched.page.wait_for_selector(".chip")
        assert (watched.complaints, watched.outside) == ([], [])


def test_screenshots(watched: Watched, tmp_path: Path):
    page = watched.page
    assert "token" not in page.url
    page.screenshot(path=tmp_path / "desktop-start.png")
    watched.find("blue")
    for row in range(3):
        page.locator(".song").nth(row).get_by_role("button", name="to the queue").click()
    page.locator(".song").first.get_by_role("button", name="Play").click()
    watched.until("document.querySelectorAll('.node.holder').length === 2")
    watched.until("document.querySelector('#clock').textContent.startsWith('0:01')")
    page.screenshot(path=tmp_path / "desktop-light.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=tmp_path / "desktop-dark.png")
    page.set_viewport_size(PHONE)
    page.screenshot(path=tmp_path / "phone-dark.png")
    page.emulate_media(color_scheme="light")
    page.screenshot(path=tmp_path / "phone-light.png", full_page=True)
    assert watched.looks("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size(DESKTOP)
    page.locator(".node[data-id=kyoto]").click()
    page.wait_for_selector("#server .song")
    page.screenshot(path=tmp_path / "desktop-server.png", full_page=True)
    watched.search("cooper")
    page.wait_for_selector(".chip")
    page.screenshot(path=tmp_path / "desktop-none.png")
