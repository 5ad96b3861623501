"""The page in a real browser: searching, playing, the queue and the tree, as a listener meets them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .listening import Listening, Shelves, listening, small_world, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
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


def test_screenshots(watched: Watched, tmp_path: Path):
    page = watched.page
    assert "token" not in page.url
    page.screenshot(path=tmp_path / "desktop-start.png")
    watched.search("blue")
    page.wait_for_selector(".song")
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
