"""READY, HEARTBEAT, silence, clocks, versions, identities that two claim, DISCONNECT."""

from __future__ import annotations

import pytest

from scale0_core.network.service import BrokerService

GRAIN = 0.05


# READY


@pytest.mark.requirement("R36")
@pytest.mark.requirement("R43")
def test_ready_is_accepted_with_the_grant_the_time_and_the_version(talk):
    script = talk(liveness=4)
    (accepted,) = script.join("w", "echo")
    assert (accepted.command, accepted.socket, accepted.to, accepted.header) == ("READYOK", "backend", "w", "S0W01")
    assert accepted.options == {
        "hbeatinterval": 2500, "liveness": 4, "time": pytest.approx(script.wall), "config_version": 1,
        "task_timeout": script.broker.running.network.task_timeout,
    }  # fmt: skip
    assert script.state_of("w") == "ready"


@pytest.mark.requirement("R37")
@pytest.mark.requirement("R55")
@pytest.mark.requirement("R56")
def test_ready_before_checkconfig_is_told_to_negotiate(talk):
    script = talk()
    (told,) = script.ready("w", "echo")
    assert (told.command, told.code) == ("FORCENEGOTIATE", None)
    assert told.options["reason"]
    assert script.task("c", "echo")[0].code == 404


@pytest.mark.requirement("R37")
def test_checkconfig_alone_does_not_bring_work(talk):
    script = talk()
    script.check("w", services=["echo"])
    assert script.task("c", "echo")[0].code == 404


@pytest.mark.requirement("R41")
@pytest.mark.requirement("R70")
@pytest.mark.requirement("R71")
@pytest.mark.parametrize(
    ("asked", "granted"), [(None, 2500), (0, 2500), (1, 2500), (2500, 2500), (2501, 2501), (60_000, 60_000)]
)
def test_a_longer_interval_is_granted_and_a_shorter_one_is_not(talk, asked: int | None, granted: int):
    options = {} if asked is None else {"hbeatinterval": asked}
    (accepted,) = talk().join("w", "echo", **options)
    assert accepted.options["hbeatinterval"] == granted


@pytest.mark.parametrize("options", [{"hbeatinterval": -1}, {"window": "x"}, {"heartbeat": 1}, {"metadata": []}])
def test_a_malformed_ready_disconnects(talk, options):
    script = talk()
    script.join("w", "echo")
    (told,) = script.ready("w", "echo", **options)
    assert (told.command, told.code, script.state_of("w")) == ("DISCONNECTERROR", 400, None)


@pytest.mark.requirement("R72")
def test_services_that_the_broker_does_not_manage_are_refused_by_name(talk):
    script = talk(services=("echo", "convert"))
    (accepted,) = script.join("w", "echo", "other")
    assert (accepted.command, accepted.options["refused"]) == ("READYOK", ["other"])
    assert script.given("c", "echo").command == "TASK"
    assert script.task("c", "other")[0].code == 404


@pytest.mark.requirement("R6")
@pytest.mark.requirement("R72")
def test_a_broker_of_all_services_takes_any_name(talk):
    script = talk()
    names = ["echo", "Ünïcode 服务", "a b/c", "x" * 255]
    (accepted,) = script.join("w", *names, window=9)
    assert "refused" not in accepted.options
    assert [script.given("c", name, str(number)).to for number, name in enumerate(names)] == ["w"] * 4


# HEARTBEAT


@pytest.mark.requirement("R44")
@pytest.mark.requirement("R45")
def test_a_heartbeat_is_answered_with_the_brokers_time_and_the_senders(talk):
    script = talk()
    script.join("w", "echo")
    (beat,) = script.beat("w", time=script.wall - 1.5, config_version=1)
    assert (beat.command, beat.to, beat.header) == ("HEARTBEAT", "w", "S0W01")
    assert beat.options == {
        "time": pytest.approx(script.wall), "config_version": 1, "reply_to": pytest.approx(script.wall - 1.5)
    }  # fmt: skip


def test_the_answer_to_a_heartbeat_without_a_time_is_still_no_question(talk):
    """Only a HEARTBEAT without reply_to is to be answered; both sides would go on for ever."""
    script = talk()
    script.join("w", "echo")
    for options in ({}, {"config_version": 1}):
        (beat,) = script.beat("w", **options)
        assert (beat.command, beat.options["reply_to"]) == ("HEARTBEAT", 0)


@pytest.mark.requirement("R55")
def test_a_heartbeat_from_nobody_is_told_to_negotiate(talk):
    (told,) = talk().beat("w")
    assert (told.command, told.code) == ("FORCENEGOTIATE", None)
    assert told.options["reason"]


@pytest.mark.requirement("R14")
@pytest.mark.requirement("R75")
def test_a_worker_that_beats_stays_and_its_age_is_shown(talk):
    script = talk()
    script.join("w", "echo")
    assert script.beating(60, "w") == []
    script.sleep(0.5)
    (row,) = script.ask("list_clients").result
    assert (row["identity"], row["state"], row["age_ms"], row["interval_ms"]) == ("w", "ready", 500, 2500)


def test_any_message_is_a_sign_of_life(talk):
    script = talk()
    script.join("w", "echo", window=5)
    for _ in range(8):
        task = script.given("c", "echo")
        script.sleep(2)
        script.reply("w", task)
    for command in ("PING", "WHAT", "NEEDBROKER", "READY"):
        script.sleep(6)
        script.say("backend", "w", command, services=["echo"], window=5)
    script.sleep(6)
    assert script.state_of("w") == "ready"


@pytest.mark.requirement("R44")
@pytest.mark.parametrize("state", ["ready", "busy", "unresponsive", "checked", "claimed", "unknown"])
@pytest.mark.parametrize(
    "options",
    ['{"time":%.6f,"config_version":1}', '{"time": %.1f, "config_version": 1}', '{"time":%d,"config_version":1}',
     '{"time":%.6f,"config_version":2}', '{"time":%.6f1e9,"config_version":1}', '{"time":%.6f,"config_version":01}',
     '{"time":0%.6f,"config_version":1}'],
)  # fmt: skip
@pytest.mark.parametrize("off", [0, 29.9, -31])
def test_the_fast_path_of_heartbeats_answers_as_the_long_one(talk, monkeypatch, state, options, off):
    """A heartbeat as clients write it is answered without a reader of JSON."""

    def played() -> list[object]:
        script = talk()
        if state != "unknown":
            script.check("w")
        if state not in ("unknown", "checked"):
            script.ready("w", "echo", retry=True)
        if state == "busy":
            script.given("c", "echo")
        if state == "unresponsive":
            script.sleep(8)
        if state == "claimed":
            claim(script)
        script.heard()
        script.feed("backend", "w", "S0W01", "HEARTBEAT", options % (script.wall + off))
        told = [(message.to, message.command, approximately(message.options)) for message in script.heard()]
        return [told, script.broker.counts, approximately(script.ask("list_clients").result)]

    short = played()
    monkeypatch.setattr(BrokerService, "_fast_heartbeat", lambda *_: None)
    assert short == played()


def approximately(value: object) -> object:
    """Leave out what is beyond a microsecond."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: approximately(entry) for key, entry in value.items()}
    return [approximately(entry) for entry in value] if isinstance(value, list) else value


def test_ordinary_heartbeats_take_the_short_way(talk, monkeypatch):
    script = talk()
    script.join("w", "echo")
    monkeypatch.setattr(script.broker, "_receive_any", None)  # the long way
    beat = script.beat("w", time=script.wall, config_version=1)[0]
    assert beat.options["reply_to"] == pytest.approx(script.wall)


def test_a_silenced_worker_gets_no_answer_to_its_heartbeats(talk):
    script = talk(error_client_threshold=1)
    script.join("w", "echo")
    script.broker.offenders.note(("backend", b"w"), "something", script.now)
    assert script.beat("w", time=script.wall, config_version=1) == []
    assert script.broker.counts["ignored"] == 1


# silence


@pytest.mark.requirement("R14")
def test_a_silent_worker_gets_no_work_and_is_asked(talk):
    script = talk()
    script.join("w", "echo")
    script.sleep(7.49)
    assert (script.heard(), script.state_of("w")) == ([], "ready")
    script.sleep(0.01 + 2 * GRAIN)
    probe = script.one()
    assert (probe.command, probe.to, script.state_of("w")) == ("HEARTBEAT", "w", "unresponsive")
    assert script.task("c", "echo") == []  # it waits
    (beat, task) = script.beat("w")
    assert (beat.command, task.command, task.to) == ("HEARTBEAT", "TASK", "w")


def test_a_granted_interval_counts_for_the_silence(talk):
    script = talk()
    script.join("w", "echo", hbeatinterval=10_000)
    script.sleep(29.9)
    assert script.state_of("w") == "ready"
    script.sleep(0.2)
    assert script.state_of("w") == "unresponsive"


def test_a_busy_worker_is_silent_and_its_reply_is_still_awaited(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", timeout=100_000)
    script.sleep(40)
    assert {message.command for message in script.heard()} == {"HEARTBEAT"}
    assert script.state_of("w") == "unresponsive"
    (reply,) = script.reply("w", task)
    assert (reply.command, reply.to) == ("TASKREPLY", "c")
    assert script.state_of("w") == "busy"


def test_the_reply_of_an_unresponsive_worker_with_a_window_brings_it_the_next_task(talk):
    script = talk()
    script.join("w", "echo", window=1)
    task = script.given("c", "echo", "1", timeout=60_000)
    script.sleep(20)
    assert script.task("c", "echo", "2", timeout=60_000)[-1:] != []  # the probes
    reply, following = script.reply("w", task)
    assert (reply.command, following.command, following.to) == ("TASKREPLY", "TASK", "w")


def test_a_worker_whose_connection_is_gone_is_given_up_when_it_is_asked(talk):
    script = talk()
    script.join("w", "echo")
    script.refuse("backend", "w")
    script.sleep(8)
    assert script.state_of("w") is None
    assert script.task("c", "echo")[0].code == 503


def test_a_worker_whose_connection_stands_is_given_up_after_a_very_long_silence(talk):
    script = talk(max_silence=60_000)
    script.join("w", "echo")
    script.sleep(60)
    script.heard()
    assert script.state_of("w") == "unresponsive"
    script.sleep(3)
    told = script.heard()[-1]
    assert (told.command, told.code, script.state_of("w")) == ("DISCONNECTERROR", 408, None)


def test_a_worker_that_never_says_ready_is_forgotten(talk):
    script = talk()
    script.check("w")
    script.sleep(7.6)
    told = script.one()
    assert (told.command, told.code, script.state_of("w")) == ("DISCONNECTERROR", 408, None)


@pytest.mark.requirement("R39")
@pytest.mark.requirement("R40")
@pytest.mark.parametrize(("says", "state"), [({}, "unresponsive"), ({"heartbeat": True}, "unresponsive"),
                                             ({"heartbeat": False}, "ready")])  # fmt: skip
def test_heartbeats_are_expected_of_all_who_do_not_say_otherwise(talk, says, state: str):
    """A broker cannot make anybody beat; what it can do is take it for granted, and answer every one."""
    script = talk()
    (accepted,) = script.join("w", "echo", **says)
    assert accepted.options["hbeatinterval"] == 2500
    assert script.beating(30, "w", every=2.5) == []
    assert script.state_of("w") == "ready"
    script.sleep(8)
    assert script.state_of("w") == state


@pytest.mark.requirement("R40")
def test_who_beats_gets_another_in_its_place_and_who_does_not_holds_the_task(talk):
    script = talk()
    script.join("mute", "echo", heartbeat=False)
    script.join("beats", "echo")
    held = script.given("c", "echo", "1", retry=True, timeout=60_000)
    shared = script.given("c", "echo", "2", retry=True, timeout=60_000)
    assert (held.to, shared.to) == ("mute", "beats")
    script.join("third", "echo", window=9)
    tasks = [message for message in script.beating(10, "third") if message.command == "TASK"]
    assert [(task.to, task.number) for task in tasks] == [("third", shared.number)]


@pytest.mark.requirement("R39")
def test_a_worker_without_heartbeats_stays_in_the_queue(talk):
    script = talk()
    script.join("w", "echo", heartbeat=False)
    script.sleep(100)
    script.heard()
    assert script.state_of("w") == "ready"
    assert script.given("c", "echo").to == "w"


@pytest.mark.requirement("R39")
def test_a_worker_without_heartbeats_may_work_longer_than_any_silence(talk):
    script = talk(max_silence=60_000)
    script.join("w", "echo", heartbeat=False)
    task = script.given("c", "echo", timeout=1_000_000)
    script.sleep(900)
    assert "DISCONNECTERROR" not in {message.command for message in script.heard()}
    (reply,) = script.reply("w", task)
    assert reply.command == "TASKREPLY"


def test_a_worker_without_heartbeats_is_given_up_when_its_task_is_over_time(talk):
    script = talk(max_silence=60_000)
    script.join("w", "echo", heartbeat=False)
    script.given("c", "echo", timeout=90_000)
    script.sleep(100)
    codes = [message.code for message in script.heard() if message.code]
    assert (sorted(codes), script.state_of("w")) == ([408, 504], None)


# connections that are lost


def test_when_a_connection_is_lost_those_with_tasks_are_asked_at_once(talk):
    script = talk()
    script.join("busy", "echo")
    script.join("idle", "other")
    task = script.given("c", "echo")
    script.lose_peer("backend")
    script.lose_peer("backend")
    script.sleep(0.1)
    assert script.commands() == [("busy", "HEARTBEAT")]
    assert script.reply("busy", task)[0].command == "TASKREPLY"


def test_the_task_of_a_worker_that_died_is_answered_at_once(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "7", timeout=60_000)
    script.refuse("backend", "w")
    script.lose_peer("backend")
    script.sleep(0.1)
    error = script.one()
    assert (error.command, error.to, error.code, error.number) == ("ERROR", "c", 504, "7")


def test_a_congested_connection_is_no_dead_one(talk):
    script = talk()
    script.join("w1", "echo")
    script.refuse("backend", "w1", "EAGAIN")
    script.join("w2", "echo")
    task = script.given("c", "echo")
    assert (task.to, script.state_of("w1")) == ("w2", "unresponsive")
    script.accept("backend", "w1")
    script.beat("w1")
    assert script.given("c", "echo", "2").to == "w1"


# clocks


@pytest.mark.requirement("R42")
@pytest.mark.requirement("R46")
@pytest.mark.requirement("R52")
@pytest.mark.requirement("R54")
@pytest.mark.parametrize(("off", "words"), [(31, "ahead"), (-31, "behind")])
@pytest.mark.parametrize("command", ["READY", "HEARTBEAT"])
def test_a_clock_that_is_way_off_disconnects(talk, off: float, words: str, command: str):
    script = talk()
    script.join("w", "echo")
    script.say("backend", "w", command, time=script.wall + off, services=["echo"])
    told = script.one()
    assert (told.command, told.code, script.state_of("w")) == ("DISCONNECTERROR", 412, None)
    assert words in told.options["message"]
    assert "31.0 s" in told.options["message"]


@pytest.mark.requirement("R46")
def test_a_clock_that_is_way_off_shows_in_a_reply_too_which_is_still_passed_on(talk):
    script = talk()
    script.join("w", "echo", window=2)
    first = script.given("c", "echo", "1")
    script.given("c", "echo", "2")
    script.task("c", "echo", "3")
    told = script.reply("w", first, time=script.wall - 100)
    assert [(message.to, message.command, message.code) for message in told] == [
        ("c", "TASKREPLY", None), ("w", "DISCONNECTERROR", 412), ("c", "ERROR", 504),
    ]  # fmt: skip
    script.sleep(31)
    assert [message.code for message in script.heard()] == [503]


@pytest.mark.parametrize("off", [29.9, -29.9])
def test_a_clock_within_the_limit_is_shown(talk, off: float):
    script = talk()
    script.join("w", "echo")
    assert script.beat("w", time=script.wall + off)[0].command == "HEARTBEAT"
    assert script.ask("list_clients").result[0]["skew_ms"] == round(off * 1000)


def test_clocks_may_be_ignored(talk):
    script = talk(max_clock_skew=0)
    script.join("w", "echo")
    assert script.beat("w", time=0)[0].command == "HEARTBEAT"


def test_after_the_disconnection_a_client_begins_with_checkconfig(talk):
    script = talk()
    script.join("w", "echo")
    script.beat("w", time=0)
    assert script.beat("w")[0].command == "FORCENEGOTIATE"
    assert script.ready("w", "echo")[0].command == "FORCENEGOTIATE"
    assert script.join("w", "echo")[0].command == "READYOK"


# versions


@pytest.mark.requirement("R15")
@pytest.mark.requirement("R47")
def test_an_outdated_configuration_is_told_three_times_then_the_client_is_disconnected(talk):
    script = talk()
    script.join("w", "echo", config_version=1)
    told = []
    for _ in range(4):
        told += script.beat("w", config_version=7)
        script.sleep(2.5)
    assert [(message.command, message.code) for message in told] == [("FORCENEGOTIATE", 426)] * 3 + [
        ("DISCONNECTERROR", 426)
    ]
    assert script.state_of("w") is None


@pytest.mark.requirement("R47")
def test_heartbeats_that_waited_in_a_frozen_worker_count_as_one(talk):
    script = talk()
    script.join("w", "echo", config_version=1)
    task = script.given("c", "echo", timeout=60_000)
    for _ in range(3):
        told = [script.beat("w", config_version=7)[0] for _ in range(10)]
        assert [(message.command, message.code) for message in told] == [("FORCENEGOTIATE", 426)] * 10
        script.sleep(2.5)
    script.check("w", config_version=7)
    assert script.reply("w", task)[0].command == "TASKREPLY"
    assert script.broker.offenders.listing(script.now) == []


@pytest.mark.requirement("R43")
def test_an_outdated_ready_does_not_enter_the_queue(talk):
    script = talk()
    script.check("w")
    assert script.ready("w", "echo", config_version=7)[0].command == "FORCENEGOTIATE"
    assert script.task("c", "echo")[0].code == 404


def test_a_negotiation_in_between_starts_the_count_anew(talk):
    script = talk()
    script.join("w", "echo")
    for _ in range(5):
        for _ in range(3):
            assert script.beat("w", config_version=7)[0].command == "FORCENEGOTIATE"
            script.sleep(2.5)
        script.check("w")


# identities


def claim(script, who: str = "new", identity: str = "w", **options):
    script.say("backend", who, "CHECKCONFIG", identity=identity, config_type="JSON", **options)
    return script.heard()


@pytest.mark.requirement("R79")
def test_a_second_connection_with_the_identity_of_one_that_lives_is_refused(talk):
    script = talk()
    script.join("w", "echo")
    (probe,) = claim(script)
    assert (probe.command, probe.to) == ("HEARTBEAT", "w")
    _, refused = script.beat("w")
    assert (refused.command, refused.to, refused.code) == ("DISCONNECTERROR", "new", 409)
    assert script.given("c", "echo").to == "w"


@pytest.mark.requirement("R79")
def test_a_reply_to_a_task_shows_that_the_holder_lives(talk):
    script = talk()
    script.join("w", "echo", window=1)
    task = script.given("c", "echo")
    claim(script)
    assert [(message.to, message.command) for message in script.reply("w", task)] == [
        ("c", "TASKREPLY"), ("new", "DISCONNECTERROR")
    ]  # fmt: skip


def test_when_the_older_connection_is_gone_the_newcomer_is_let_in_at_once(talk):
    script = talk()
    script.join("w", "echo")
    script.refuse("backend", "w")
    (config,) = claim(script)
    assert (config.command, config.to) == ("CONFIG", "new")
    script.ready("new", "echo")
    assert script.given("c", "echo").to == "new"


def test_when_the_older_connection_stays_silent_the_newcomer_is_let_in_later(talk):
    script = talk()
    script.join("w", "echo")
    claim(script)
    script.sleep(7.6)
    assert [(message.to, message.command) for message in script.heard()][-1] == ("new", "CONFIG")
    assert script.beat("w")[0].command == "FORCENEGOTIATE"


def test_a_newcomer_that_asks_again_and_again_does_not_put_the_decision_off(talk):
    script = talk()
    script.join("w", "echo")
    heard = []
    for _ in range(6):
        heard += claim(script)
        script.sleep(2)
        heard += script.heard()
    assert ("new", "CONFIG") in [(message.to, message.command) for message in heard]


def test_a_third_connection_is_refused_while_two_are_looked_at(talk):
    script = talk()
    script.join("w", "echo")
    claim(script)
    (refused,) = claim(script, "third")
    assert (refused.to, refused.code) == ("third", 409)


def test_a_connection_has_one_identity(talk):
    script = talk()
    script.join("w", "echo")
    (refused,) = claim(script, "w", "other")
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 409)


def test_a_worker_cannot_claim_a_second_identity_that_somebody_has(talk):
    script = talk()
    script.join("w", "echo")
    script.join("v", "echo")
    (refused,) = claim(script, "v", "w")
    assert refused.code == 409
    script.sleep(600)  # nothing of it is left


@pytest.mark.requirement("R85")
def test_nobody_takes_the_brokers_own_identity(talk):
    (refused,) = claim(talk(), "w", "b1")
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 409)


def test_frontends_share_an_identity_without_harm(talk):
    script = talk()
    assert [script.check(who, "frontend", identity="same").command for who in ("a", "b")] == ["CONFIG"] * 2


# going


def test_a_worker_that_disconnects_is_forgotten_and_its_tasks_end(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "5")
    script.say("backend", "w", "DISCONNECT", reason="bye")
    error = script.one()
    assert (error.command, error.code, error.number) == ("ERROR", 504, "5")
    assert script.state_of("w") is None
    assert script.registry.providers() == []


def test_a_frontend_that_disconnects_leaves_nothing_waiting(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", "1")
    script.task("c", "echo", "2")
    script.say("frontend", "c", "DISCONNECT")
    assert script.heard() == []
    assert script.broker.dispatcher.tasks == {}
    script.reply("w", task)
    assert script.ready("w", "echo")[0].command == "READYOK"
    assert script.broker.dispatcher.tasks == {}


def test_a_disconnect_from_nobody_is_nothing(talk):
    script = talk()
    script.say("backend", "w", "DISCONNECT")
    assert script.heard() == []


# what others see


@pytest.mark.requirement("R7")
@pytest.mark.requirement("R74")
def test_the_registry_knows_who_offers_what(talk):
    script = talk()
    script.join("w", "echo", "convert", metadata={"version": "1.2", "room": "7"})
    rows = [(entry.service, entry.provider, entry.version, entry.state) for entry in script.registry.providers()]
    assert rows == [("convert", "w", "1.2", "responsive"), ("echo", "w", "1.2", "responsive")]
    script.sleep(8)
    assert {entry.state for entry in script.registry.providers()} == {"unresponsive"}
    script.beat("w")
    assert {entry.state for entry in script.registry.providers()} == {"responsive"}


@pytest.mark.parametrize(
    "metadata", [{"a": 1}, {"a": ["b"]}, {"k" * 65: "v"}, {"k": "v" * 257}, {str(n): "" for n in range(33)}, "text"]
)
def test_metadata_are_a_few_short_texts(talk, metadata: object):
    script = talk()
    script.check("w")
    assert script.ready("w", "echo", metadata=metadata)[0].code == 400


def test_a_worker_with_a_very_long_interval_is_asked_now_and_then_and_stays(talk):
    script = talk()
    script.join("w", "echo", hbeatinterval=24 * 3600 * 1000)
    script.sleep(200)
    assert script.commands() == [("w", "HEARTBEAT")] * 3
    assert script.given("c", "echo").to == "w"


def test_a_worker_with_a_very_long_interval_that_left_is_soon_forgotten(talk):
    script = talk()
    script.join("w", "echo", hbeatinterval=24 * 3600 * 1000)
    script.refuse("backend", "w")
    script.sleep(61)
    assert script.state_of("w") is None


def test_a_req_worker_with_a_very_long_interval_is_answered_within_a_minute(talk):
    script = talk()
    assert script.join("w", "echo", req=True, hbeatinterval=24 * 3600 * 1000) == []
    script.sleep(60.1)
    assert script.commands()[0] == ("w", "READYOK")


def test_a_req_worker_that_waits_for_an_answer_is_asked_by_that_answer(talk):
    script = talk()
    script.join("w", "echo", req=True)
    assert [(message.to, message.command) for message in claim(script)] == [("w", "READYOK")]
    assert script.task("c", "echo") == []  # it speaks first
    task, refused = script.ready("w", "echo", req=True)
    assert (task.command, task.to, refused.code, refused.to) == ("TASK", "w", 409, "new")


def test_an_answer_to_a_heartbeat_is_marked_as_one_also_when_that_had_no_time(talk):
    """Else a worker that answers all that is no answer, as it should, would never come to rest."""
    script = talk()
    script.join("w", "echo")
    (answer,) = script.beat("w")
    assert answer.options["reply_to"] == 0
