"""What Majordomo tells while somebody observes. That each request is told once, ``conserved`` checks everywhere."""

from __future__ import annotations

import pytest

from scale0_core.api import EventSource
from scale0_majordomo.service.majordomo import MajordomoService
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

from .conversation import VERSIONS, Majordomo, conserved


def requests(majordomo):
    """Give what was told of requests since the last look: outcome, peer, and figures."""
    told = [event[2:] for event in majordomo.events if event[0].name == "rpc"]
    return [(outcome, peer, *figures) for _, peer, _, outcome, *figures in told]


def others(majordomo):
    return [(event[0].name, *event[2:]) for event in majordomo.events if event[0].name != "rpc"]


def test_nothing_is_told_while_nobody_observes():
    majordomo = Majordomo()
    majordomo.service.events = None
    assert isinstance(majordomo.service, EventSource)
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.reply("w", majordomo.gets("w", "hello"), "r")
    assert majordomo.service.events is None
    assert majordomo.events == []


def test_the_group_is_the_brokers():
    service = MajordomoService(MajordomoSettings(), group="south")
    service.events = events = []
    service.receive("requests", (b"w", b"", b"MDPW01", b"\x01", b"echo"), 1.0)
    (event,) = events
    assert (event[1], event[0].table(event)["group"]) == (1.0, "south")


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_told_with_their_times_and_the_bytes_of_the_reply(version: str):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.ask("c", "1")
    majordomo.sleep(0.25)
    majordomo.ask("c", "2")
    majordomo.sleep(0.5)
    majordomo.reply("w", majordomo.gets("w", "1", version=version), "four", version=version)
    majordomo.sleep(0.125)
    majordomo.answered("c", "four")
    majordomo.reply("w", majordomo.gets("w", "2", version=version), "four", "more", version=version)
    assert requests(majordomo) == [("ok", "w", 0, 750_000, 4), ("ok", "w", 500_000, 125_000, 8)]
    conserved(majordomo.service)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parts_of_a_reply_are_counted_together(version: str):
    majordomo = Majordomo()
    majordomo.ready("w", version="own")
    majordomo.ask("c", version=version)
    address = majordomo.gets("w", "hello", version="own")
    majordomo.part("w", address, "one", version="own")
    majordomo.part("w", address, "two", version="own")
    majordomo.reply("w", address, "end", version="own")
    assert requests(majordomo) == [("ok", "w", 0, 0, 9)]


def test_errors_cancellations_and_expiries_are_told():
    majordomo = Majordomo(expiry=5.0)
    majordomo.ready("w", version="own", credit=2)
    for ident in "123":
        majordomo.ask("c", ident=ident, version="own")
    first = majordomo.gets("w", "hello", version="own")
    majordomo.gets("w", "hello", version="own")
    majordomo.sleep(0.5)
    majordomo.worker_error("w", first, "500", "no")
    majordomo.ask("c", ident="4", version="own")
    majordomo.cancel("c", ident="2")
    majordomo.live(5.5, "w", version="own")
    assert requests(majordomo) == [
        ("error", "w", 0, 500_000, 0),
        ("cancelled", "w", 0, 500_000, 0),
        ("timeout", None, pytest.approx(5_000_000, abs=100_000), None, 0),
    ]


def test_refused_requests_are_told():
    majordomo = Majordomo(max_services=1, services={"echo": ServiceSettings(max_queue=1)})
    majordomo.ask("c")
    majordomo.sleep(1)
    majordomo.ask("c")
    majordomo.ask("c", service="other")
    assert requests(majordomo) == [("refused", None, None, None, 0)] * 2
    assert [(event[1], event[2]) for event in majordomo.events] == [(1.0, "echo"), (1.0, "other")]


def test_a_request_whose_worker_is_gone_is_told_as_lost_when_it_may_not_be_repeated():
    majordomo = Majordomo(resend=False)
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.sleep(0.5)
    majordomo.leave("w")
    assert requests(majordomo) == [("lost", "w", 0, 500_000, 0)]
    conserved(majordomo.service)


def test_workers_are_told_when_they_come_beat_and_go():
    majordomo = Majordomo()
    majordomo.ready("w", version="own", credit=7)
    majordomo.sleep(2)
    majordomo.beat("w", version="own")
    majordomo.beat("w", version="own")  # told once a second at most
    majordomo.leave("w", version="own")
    assert others(majordomo) == [
        ("join", "echo", "w", "", 7),
        ("heartbeat", "echo", "w", ""),
        ("leave", "echo", "w", "", "left", 2.0),
    ]


@pytest.mark.parametrize("reason", ["lost", "silent", "refused"])
def test_it_is_told_why_a_worker_is_gone(reason: str):
    majordomo = Majordomo()
    majordomo.ready("w")
    if reason == "lost":
        majordomo.refuse("requests", "w")
        majordomo.ask("c")
    elif reason == "silent":
        majordomo.sleep(60)
    else:
        majordomo.ready("w")  # twice
    ((_, service, peer, _, told, _),) = [event for event in others(majordomo) if event[0] == "leave"]
    assert (service, peer, told) == ("echo", "w", reason)


def test_names_that_are_no_text_are_told_as_text():
    majordomo = Majordomo()
    majordomo.feed("requests", b"\x00\xff\x01\x02\x03", "", "MDPW01", "\x01", b"\xfe\x00")
    ((_, service, peer, *_),) = others(majordomo)
    assert service.isprintable()
    assert peer.isprintable()
    (service + peer).encode()
