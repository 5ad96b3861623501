"""What a watch asks and hears, on virtual time."""

import json

from scale0_discovery.client.following import SILENCE, NewsSession, WatchSession
from scale0_discovery.client.watching import RefusedError, Watch


class Following:
    """A session, and what was said of silence."""

    def __init__(self):
        self.silences = 0
        self.session = WatchSession("tcp://broker", Watch("echo"), 5.0, self._note)
        self.session.start(0.0)

    def _note(self):
        self.silences += 1

    def asked(self):
        found, self.session.out[:] = [frames[0] for frames in self.session.out], []
        return found

    def list_nobody(self, now):
        told = {"providers": [], "revision": 7, "epoch": "e", "more": None}
        self.session.receive((b"LIST", json.dumps(told).encode()), now)


def test_what_was_asked_of_a_broker_that_is_no_more_is_asked_again():
    following = Following()
    session = following.session
    assert following.asked() == []
    session.on_linked(0.0)
    assert following.asked() == [b"LIST"]
    assert session.next_deadline() == 5.0
    session.on_deadline(5.0)
    assert following.asked() == [b"LIST"]
    session.on_unlinked(6.0)
    session.on_deadline(10.0)
    assert following.asked() == []
    session.on_linked(11.0)
    assert following.asked() == [b"LIST"]
    following.list_nobody(11.0)
    assert following.asked() == []
    assert session.next_deadline() == 11.0 + SILENCE


def test_after_a_long_silence_the_broker_is_asked_and_that_is_said_once():
    following = Following()
    session = following.session
    session.on_linked(0.0)
    following.list_nobody(0.0)
    following.asked()
    session.on_deadline(SILENCE)
    assert (following.asked(), following.silences) == ([b"CHANGES"], 1)
    session.on_deadline(2 * SILENCE)
    assert (following.asked(), following.silences) == ([b"CHANGES"], 1)
    session.receive((b"CHANGES", b'{"changes": [], "revision": 7, "epoch": "e", "more": false}'), 2 * SILENCE)
    session.on_deadline(3 * SILENCE)
    assert following.silences == 2


def test_news_and_refusals_come_out():
    following = Following()
    session = following.session
    news = NewsSession("tcp://news", session)
    assert news.limits.topics == (b"service/echo/", b"bookmark/")
    session.on_linked(0.0)
    following.list_nobody(0.0)
    change = {
        "kind": "added", "revision": 8, "previous": 7, "epoch": "e",
        "provider": {"service": "echo", "provider": "w", "kind": "worker"},
    }  # fmt: skip
    news.receive((b"service/echo/w", json.dumps(change).encode()), 1.0)
    assert [found["provider"]["provider"] for found in session.changes] == ["w"]
    session.receive((b"ERROR", b"400", b"no"), 2.0)
    assert isinstance(session.error, RefusedError)
