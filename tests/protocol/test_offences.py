"""error_clients: connections that break the protocol again and again are met with silence."""

from __future__ import annotations

import pytest


def offend(script, who: str = "bad", times: int = 1, socket: str = "frontend") -> list[str]:
    for _ in range(times):
        script.feed(socket, who, "junk", "junk")
    return [message.command for message in script.heard()]


def ping(script, who: str = "bad", socket: str = "frontend") -> list[str]:
    script.say(socket, who, "PING")
    return [message.command for message in script.heard()]


@pytest.mark.requirement("R76")
def test_after_five_offences_a_connection_is_ignored(talk):
    script = talk()
    assert offend(script, times=5) == ["DISCONNECTERROR"] * 5
    assert (offend(script), ping(script), script.task("bad", "echo")) == ([], [], [])
    assert script.broker.counts["ignored"] == 3
    assert ping(script, "good") == ["PONG"]


@pytest.mark.requirement("R76")
def test_offences_within_a_window_count(talk):
    script = talk(error_client_window=60_000)
    for _ in range(20):
        offend(script)
        script.sleep(15.1)
    assert ping(script) == ["PONG"]


@pytest.mark.requirement("R76")
def test_each_penalty_is_twice_as_long(talk):
    script = talk(error_client_threshold=2, error_client_penalty=10_000)
    for penalty in (10, 20, 40):
        offend(script, times=2)
        script.sleep(penalty - 0.1)
        assert ping(script) == []
        script.sleep(0.2)
        assert ping(script) == ["PONG"]


@pytest.mark.requirement("R76")
@pytest.mark.parametrize("options", [{"time": 0}, {"config_version": 9}])
def test_repeated_failures_to_negotiate_are_offences(talk, options):
    script = talk(error_client_threshold=2)
    for _ in range(2):
        script.join("w", "echo")
        while script.beat("w", **options)[0].command != "DISCONNECTERROR":
            script.sleep(2.5)
    script.say("backend", "w", "CHECKCONFIG", identity="w")
    assert script.heard() == []


@pytest.mark.requirement("R76")
def test_a_worker_that_is_silenced_loses_its_place(talk):
    script = talk(error_client_threshold=1)
    script.join("w", "echo")
    offend(script, "w", socket="backend")
    assert script.task("c", "echo")[0].code == 503


@pytest.mark.requirement("R76")
def test_they_are_listed_and_cleared(talk):
    script = talk(error_client_threshold=1, error_client_penalty=100_000)
    script.join("w", "echo")
    offend(script, "w", socket="backend")
    offend(script, "bad")
    script.sleep(10)
    rows = script.ask("list_error_clients").result
    assert [(row["connection"], row["identity"], row["for_seconds"], row["seconds_left"]) for row in rows] == [
        (f"backend/{b'w'.hex()}", "w", 10, 90), (f"frontend/{b'bad'.hex()}", "", 10, 90)
    ]  # fmt: skip
    assert all(row["reason"] for row in rows)
    assert script.ask("clear_error_client", {"identity": "w"}).result == {"cleared": 1}
    assert script.join("w", "echo")[0].command == "READYOK"
    assert ping(script) == []
    assert script.ask("clear_error_client", {"identity": f"frontend/{b'bad'.hex()}"}).result == {"cleared": 1}
    assert ping(script) == ["PONG"]
    offend(script, "bad")
    offend(script, "worse")
    assert script.ask("clear_error_client").result == {"cleared": 2}
    assert script.ask("list_error_clients").result == []


@pytest.mark.requirement("R76")
def test_a_stranger_cannot_lock_out_a_victim_by_its_name(talk):
    script = talk(error_client_threshold=2)
    script.join("victim", "echo")
    for _ in range(2):
        script.say("backend", "stranger", "CHECKCONFIG", identity="victim", config_type=5)
        script.feed("backend", "stranger", "junk", "junk")
    script.heard()
    assert script.beat("victim")[0].command == "HEARTBEAT"
    assert script.given("c", "echo").to == "victim"


def test_one_that_is_silenced_does_not_slow_down_the_others(talk, monkeypatch):
    script = talk(error_client_threshold=1)
    script.join("w", "echo", window=2)
    offend(script)
    monkeypatch.setattr(script.broker, "_receive_any", None)  # the long way
    task = script.given("c", "echo")
    assert script.reply("w", task)[0].command == "TASKREPLY"
