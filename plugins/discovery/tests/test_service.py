"""Conversations with the service, on virtual time and without sockets."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import Provider, Registry, ServiceStats
from scale0_core.testing import Script, check_service
from scale0_discovery.service.discovery import DiscoveryService
from scale0_discovery.settings import DiscoverySettings


def worker(service="x", provider="w1", **more):
    return Provider(**{"service": service, "provider": provider, "kind": "worker", "state": "responsive", **more})


class Talk(Script):
    """A script with a registry, and with words for what is asked here."""

    def __init__(self, **settings):
        self.registry = Registry()
        super().__init__(DiscoveryService(self.registry, DiscoverySettings(**settings), epoch="e1"))

    def ask(self, command, delimiter=(), **options):
        """Give the answer to a request, or the code of the error."""
        self.feed("requests", "client", *delimiter, command, *([json.dumps(options)] if options else []))
        answers = [send for send in self.sent if send[0] == "requests"]
        frames = answers[-1][1]
        assert frames[: 1 + len(delimiter)] == (b"client", *(b"" for _ in delimiter))
        answer = frames[1 + len(delimiter) :]
        if answer[0] == b"ERROR":
            assert answer[2].decode()
            return int(answer[1])
        assert (answer[0], len(answer)) == (command.encode(), 2)
        found = json.loads(answer[1])
        assert found.pop("epoch") == "e1"
        return found

    def news(self):
        """Give what was published since the last call; in a broker every turn of the loop asks for it."""
        seen = getattr(self, "_seen", 0)
        self.feed("watch", b"\x00")
        self._seen = len(self.sent)
        return [(frames[0].decode(), json.loads(frames[1])) for socket, frames in self.sent[seen:] if socket == "watch"]

    def names(self, **options):
        return [row["provider"] for row in self.ask("LIST", **options)["providers"]]


@pytest.fixture
def talk():
    return Talk()


# --- questions --------------------------------------------------------------------------------------------------------


def test_lists_all_there_is_to_know_of_a_provider(talk):
    talk.registry.put(
        worker(version="1.2", metadata={"zone": "eu"}, endpoints=("tcp://a:1",), sockets={"front": ("tcp://a:1",)})
    )
    assert talk.ask("LIST") == {
        "revision": 1,
        "more": None,
        "providers": [
            {
                "service": "x", "provider": "w1", "kind": "worker", "state": "responsive", "version": "1.2",
                "metadata": {"zone": "eu"}, "endpoints": ["tcp://a:1"], "sockets": {"front": ["tcp://a:1"]},
                "tasks": True,
            }
        ],
    }  # fmt: skip


def test_finds_by_name_version_metadata_and_state(talk):
    talk.registry.put(worker("x", "w1", version="1.1", metadata={"zone": "eu", "gpu": "yes"}))
    talk.registry.put(worker("x", "w2", version="1.2", metadata={"zone": "eu"}))
    talk.registry.put(worker("x", "w3", version="2.0", metadata={"zone": "us"}, state="unresponsive"))
    talk.registry.put(worker("y", "w4", version="1.3", metadata={"zone": "eu"}))
    assert talk.names(service="x") == ["w1", "w2", "w3"]
    assert talk.names(service="x", version=">=1.2,<2") == ["w2"]
    assert talk.names(metadata={"zone": "eu"}) == ["w1", "w2", "w4"]
    assert talk.names(metadata={"zone": "eu", "gpu": "yes"}) == ["w1"]
    assert talk.names(state="unresponsive") == ["w3"]
    assert talk.names(service="nobody") == []


def test_long_lists_come_in_pages(talk):
    for number in range(25):
        talk.registry.put(worker("x", f"w{number:02}"))
    names, after = [], None
    while True:
        answer = talk.ask("LIST", limit=10, **({"after": after} if after else {}))
        names += [row["provider"] for row in answer["providers"]]
        after = answer["more"]
        if after is None:
            break
        assert len(names) % 10 == 0
    assert names == [f"w{number:02}" for number in range(25)]


def test_tells_all_about_one_service(talk):
    talk.registry.measure_by("worker", lambda _: ServiceStats(requests=7, errors=1, last_error="no", p50_ms=1.5))
    talk.registry.put(worker("x", "w1", state="lost"))
    talk.registry.put(Provider(service="x", provider="here", kind="hosted", state="quarantined"))
    info = talk.ask("INFO", service="x")
    assert (info["alive"], [row["state"] for row in info["providers"]]) == (False, ["quarantined", "lost"])
    assert info["stats"]["worker"]["last_error"] == "no"
    stats = talk.ask("STATS", service="x")["stats"]
    assert stats["worker"] == {
        "requests": 7, "errors": 1, "last_error": "no", "waiting": 0, "p50_ms": 1.5, "p95_ms": None, "p99_ms": None,
    }  # fmt: skip
    assert stats["hosted"]["requests"] == 0


def test_ping_says_whether_somebody_can_answer(talk):
    assert talk.ask("PING", service="x") == 404
    talk.registry.put(worker("x", "w1", state="unresponsive"))
    assert talk.ask("PING", service="x") == {"service": "x", "alive": False, "live": 0, "providers": 1}
    talk.registry.put(worker("x", "w2"))
    assert talk.ask("PING", service="x") == {"service": "x", "alive": True, "live": 1, "providers": 2}


@pytest.mark.parametrize("command", ["INFO", "STATS", "PING"])
def test_nobody_and_nothing_are_errors(talk, command):
    assert talk.ask(command, service="nobody") == 404
    assert talk.ask(command) == 400
    assert talk.ask(command, service="") == 400


def test_a_req_socket_is_served_too(talk):
    assert talk.ask("LIST", delimiter=("",))["providers"] == []
    assert talk.ask("SING", delimiter=("",)) == 501


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("LIST", "[]"),
        ("LIST", "{"),
        ("LIST", b"\xff"),
        ("LIST", '{"servcie":"x"}'),
        ("LIST", '{"service":1}'),
        ("LIST", '{"version":"=>1"}'),
        ("LIST", '{"version":1}'),
        ("LIST", '{"metadata":["a"]}'),
        ("LIST", '{"metadata":{"a":1}}'),
        ("LIST", '{"gone":1}'),
        ("LIST", '{"limit":0}'),
        ("LIST", '{"limit":true}'),
        ("LIST", '{"limit":NaN}'),
        ("LIST", '{"after":["a"]}'),
        ("LIST", "[" * 60_000),
        ("CHANGES", "{}"),
        ("CHANGES", '{"revision":-1}'),
        ("CHANGES", '{"revision":"1"}'),
        ("CHANGES", '{"revision":0,"epoch":1}'),
    ],
)
def test_what_is_malformed_is_told(talk, command, options):
    talk.feed("requests", "client", command, options)
    talk.expect("requests", "client", "ERROR", "400", ...)


@pytest.mark.parametrize("frames", [(), ("",), ("LIST", "{}", "more"), ("", "LIST", "", "more")])
def test_what_has_too_few_or_too_many_frames_is_told(talk, frames):
    talk.feed("requests", "client", *frames)
    assert talk.sent[-1][1][-3:-1] == (b"ERROR", b"400")


# --- changes ----------------------------------------------------------------------------------------------------------


def test_changes_are_published_with_a_revision(talk):
    talk.registry.put(worker("x"))
    talk.registry.put(worker("y"))
    talk.registry.put(worker("x", version="2"))
    talk.registry.remove("x", "w1")
    news = talk.news()
    assert [topic for topic, _ in news] == ["service/x/", "service/y/", "service/x/", "service/x/"]
    assert [(told["kind"], told["revision"], told["previous"]) for _, told in news] == [
        ("added", 1, 0),
        ("added", 2, 0),
        ("changed", 3, 1),
        ("removed", 4, 3),
    ]
    assert {told["epoch"] for _, told in news} == {"e1"}
    assert news[2][1]["provider"]["version"] == "2"
    assert talk.news() == []


def test_what_was_there_before_it_began_is_not_news():
    registry = Registry()
    registry.put(worker())
    script = Script(DiscoveryService(registry))
    script.expect_nothing()


def test_changes_are_told_from_a_revision_on(talk):
    for service in ("x", "y", "x"):
        talk.registry.put(worker(service, f"w{talk.registry.revision}"))
    answer = talk.ask("CHANGES", revision=1)
    assert [change["revision"] for change in answer["changes"]] == [2, 3]
    assert (answer["revision"], answer["more"]) == (3, False)
    answer = talk.ask("CHANGES", revision=0, service="x", epoch="e1")
    assert [change["revision"] for change in answer["changes"]] == [1, 3]
    answer = talk.ask("CHANGES", revision=0, limit=2)
    assert (answer["revision"], answer["more"]) == (2, True)
    assert talk.ask("CHANGES", revision=3)["changes"] == []


def test_what_is_no_longer_kept_is_an_error_that_says_where_we_are(talk):
    for number in range(10_005):
        talk.registry.put(worker("x", version=str(number)))
    talk.feed("requests", "client", "CHANGES", '{"revision":4}')
    error = talk.sent[-1][1]
    assert error[1:3] == (b"ERROR", b"410")
    assert b"10005" in error[3]
    assert len(talk.ask("CHANGES", revision=5, limit=10_000)["changes"]) == 10_000


def test_a_revision_of_another_run_of_the_broker_means_nothing(talk):
    talk.registry.put(worker())
    assert talk.ask("CHANGES", revision=0, epoch="e0") == 410
    assert talk.ask("CHANGES", revision=2) == 410


def test_bookmarks_tell_the_revision_every_few_seconds_and_soon_after_somebody_came(talk):
    talk.registry.put(worker())
    talk.news()
    talk.sleep(5)
    assert talk.news() == [("bookmark/", {"kind": "bookmark", "revision": 1, "advice": 0, "epoch": "e1"})]
    talk.sleep(1)
    talk.feed("watch", b"\x01service/")
    talk.feed("watch", b"\x01bookmark/")
    talk.sleep(0.5)
    assert len(talk.news()) == 2, "one at once, one for all that come within a short time"
    talk.sleep(4.7)
    assert len(talk.news()) == 1
    talk.feed("watch", b"\x00service/")
    talk.feed("watch", b"anything")
    talk.sleep(1)
    assert talk.news() == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_who_is_lost_is_waited_for_and_leaves_a_trace(talk):
    talk.registry.put(worker())
    talk.registry.lose("w1")
    assert [told["provider"]["state"] for _, told in talk.news()] == ["responsive", "lost"]
    talk.sleep(9.9)
    assert talk.ask("PING", service="x")["providers"] == 1
    talk.sleep(0.2)
    assert talk.names() == []
    assert [told["kind"] for topic, told in talk.news() if topic != "bookmark/"] == ["removed"]
    (gone,) = talk.ask("LIST", gone=True, service="x")["providers"]
    assert (gone["provider"], gone["state"], gone["removed"]) == ("w1", "lost", 3)
    assert talk.ask("PING", service="x") == {"service": "x", "alive": False, "live": 0, "providers": 0}
    assert talk.ask("INFO", service="x")["gone"] == [gone]
    talk.sleep(3602)
    assert talk.names(gone=True) == []
    assert talk.ask("PING", service="x") == 404


def test_who_is_back_in_time_has_changed(talk):
    talk.registry.put(worker(version="1"))
    talk.registry.lose("w1")
    talk.news()
    talk.sleep(5)
    talk.registry.services_of("w1", [worker(version="2")])
    talk.sleep(60)
    assert [told["kind"] for topic, told in talk.news() if topic != "bookmark/"] == ["changed"]
    assert talk.names(gone=True) == []


def test_without_grace_who_is_lost_goes_at_once():
    talk = Talk(grace=0.0, memory=0.0)
    talk.registry.put(worker())
    talk.registry.lose("w1")
    assert [told["kind"] for _, told in talk.news()] == ["added", "removed"]
    assert talk.names(gone=True) == []


# --- whatever comes ---------------------------------------------------------------------------------------------------


def filled():
    registry = Registry()
    for number in range(20):
        registry.put(worker(f"s{number % 3}", f"w{number}", version=f"1.{number}"), lease=number + 1.0)
    return DiscoveryService(registry, DiscoverySettings(memory=30.0))


def test_keeps_its_contract_whatever_comes():
    samples = [
        ("requests", (b"client", b"LIST")),
        ("requests", (b"client", b"", b"LIST", b'{"service":"s1","version":">=1.2,<2","metadata":{"a":"b"}}')),
        ("requests", (b"client", b"LIST", b'{"gone":true,"limit":2,"after":["s1","w1","worker"]}')),
        ("requests", (b"client", b"INFO", b'{"service":"s1"}')),
        ("requests", (b"client", b"STATS", b'{"service":"s1"}')),
        ("requests", (b"client", b"PING", b'{"service":"s1"}')),
        ("requests", (b"client", b"CHANGES", b'{"revision":3,"epoch":"1","limit":4}')),
        ("requests", (b"client", b"ADVISE", b'{"as_of":"2026-01-31T12:00:00Z","rows":[]}')),
        ("requests", (b"client", b"ADVICE", b'{"service":"s1"}')),
        ("watch", (b"\x01service/",)),
        ("watch", (b"\x00service/",)),
    ]
    report = check_service(filled, samples=samples)
    assert report.sends > 0
    assert report.deadlines > 0


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)
COMMANDS = ["LIST", "INFO", "STATS", "PING", "CHANGES", "ADVISE", "ADVICE"]
OPTIONS = ["service", "version", "metadata", "state", "gone", "limit", "after", "revision", "epoch", "as_of", "rows"]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(COMMANDS), st.dictionaries(st.sampled_from(OPTIONS), ANY))
def test_any_options_get_one_answer(command, options):
    talk = Talk()
    talk.registry.put(worker(metadata={"a": "\ud800"}))
    talk.ask(command, **options)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_get_one_answer(frames):
    talk = Talk()
    talk.feed("requests", b"client", *frames)
    ((_, answer),) = talk.sent
    assert answer[0] == b"client"
    assert b"ERROR" in answer or answer[-1].startswith(b"{")
