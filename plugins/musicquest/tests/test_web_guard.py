"""Who may use the page: the link opens it once, and other sites in the same browser never reach it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from scale0_core.api import Scale0Error
from scale0_musicquest.web.app import listen
from scale0_musicquest.web.guard import MAX_SESSIONS, Keys

from .listening import Listening, listening, small_world

pytestmark = pytest.mark.real

PLACES = ["/", "/api/search?q=blue", "/api/tree", "/api/top", "/api/live", "/api/song/blue-hour.wav", "/nothing"]


@pytest.fixture(scope="module")
def site() -> Iterator[Listening]:
    with listening(small_world()) as running:
        yield running


@pytest.fixture
def stranger(site: Listening) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def listener(site: Listening) -> Iterator[httpx.Client]:
    with site.client() as client:
        yield client


@pytest.mark.parametrize("place", PLACES)
def test_without_a_session_nothing_is_told(stranger: httpx.Client, place: str):
    answer = stranger.get(place)
    assert answer.status_code == 403
    assert "rio" not in answer.text


def test_a_wrong_token_opens_nothing(stranger: httpx.Client):
    for token in ("", "x", "é", "a" * 5000):
        answer = stranger.get("/", params={"token": token})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_session_and_leaves_the_address(site: Listening, stranger: httpx.Client):
    answer = stranger.get(site.server.guard.link)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert site.server.guard.keys.token not in answer.text + cookie
    assert stranger.get("/").status_code == 200


def test_a_link_opens_once_and_a_new_one_is_told_in_the_terminal(site: Listening, stranger: httpx.Client):
    link = site.server.guard.link
    assert stranger.get(link).status_code == 303
    with httpx.Client(trust_env=False) as other:
        again = other.get(link)
        assert again.status_code == 403
        assert "used already" in again.text
        new = site.announced[-1].split()[-1]
        assert new != link
        assert other.get(new).status_code == 303
    assert stranger.get(link).status_code == 303, "who is inside may use the old link as well"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", "0.0.0.0:{port}"])
def test_another_host_is_refused_even_with_a_session(site: Listening, listener: httpx.Client, host: str):
    answer = listener.get("/api/tree", headers={"host": host.format(port=site.port)})
    assert answer.status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused_even_with_a_session(site: Listening, listener: httpx.Client, origin: str):
    assert listener.get("/api/tree", headers={"origin": origin.format(port=site.port)}).status_code == 403
    assert listener.post("/leave", headers={"origin": origin.format(port=site.port)}).status_code == 403


def test_a_site_on_another_port_of_this_machine_is_refused(listener: httpx.Client):
    asked_by_another = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}
    assert listener.get("/api/song/blue-hour.wav", headers=asked_by_another).status_code == 403
    assert listener.get("/api/tree", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_leaving_needs_the_origin_and_ends_the_session(site: Listening, listener: httpx.Client):
    assert listener.post("/leave").status_code == 403
    assert listener.get("/leave").status_code == 405
    assert listener.get("/api/tree").status_code == 200
    cookies = dict(listener.cookies)
    assert listener.post("/leave", headers={"origin": site.url}).status_code == 303
    with httpx.Client(base_url=site.url, cookies=cookies, trust_env=False) as kept:
        assert kept.get("/api/tree").status_code == 403


def test_every_answer_has_the_policy(listener: httpx.Client, stranger: httpx.Client):
    for answer in [*map(listener.get, ("/", "/api/tree", "/static/page.js", "/nothing")), stranger.get("/")]:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers


def test_the_page_has_no_inline_script_or_style(listener: httpx.Client):
    text = listener.get("/", params={"q": "<script>alert(1)</script>\"'"}).text
    assert "<script>" not in text
    assert "<style" not in text
    assert " style=" not in text
    assert " onclick" not in text


def test_sessions_are_bounded():
    keys = Keys()
    sessions = [keys.open(keys.token) for _ in range(MAX_SESSIONS + 5)]
    assert [keys.knows(session or "") for session in sessions].count(True) == MAX_SESSIONS
    assert not keys.knows("")
    keys.close(sessions[-1] or "")
    assert not keys.knows(sessions[-1] or "")


def test_a_port_in_use_is_told_in_words(site: Listening):
    with pytest.raises(Scale0Error, match=f"port {site.port} cannot be taken"):
        listen(site.port)


def test_only_this_machine_is_served(site: Listening):
    assert site.server.listening.getsockname()[0] == "127.0.0.1"
