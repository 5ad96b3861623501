"""Tasks whose workers die or fall silent, whose clients do not read, and what all of it leaves behind."""

from __future__ import annotations

import pytest

from scale0_core.network import dispatch
from scale0_core.network.service import LAST_WORDS
from scale0_core.testing import Script

GRAIN = 0.05


# workers that die


@pytest.mark.requirement("R5")
def test_a_task_that_may_be_repeated_goes_to_another_worker(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    task = script.given("c", "echo", "1", b"payload", retry=True)
    script.say("backend", "w1", "DISCONNECT")
    again = script.one()
    assert (task.to, again.to, again.command, again.body[2]) == ("w1", "w2", "TASK", b"payload")
    assert script.reply("w2", again)[0].to == "c"
    assert script.broker.dispatcher.counts.redispatched == 1


def test_a_task_that_may_be_repeated_waits_at_the_head_of_the_queue(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    script.given("c", "echo", "1", retry=True)
    other = script.given("c", "echo", "2")
    assert script.task("c", "echo", "3") == []
    script.say("backend", "w1", "DISCONNECT")
    assert script.heard() == []
    script.reply("w2", other)
    _, task = script.ready("w2", "echo")
    script.reply("w2", task, b"first")
    assert script.ready("w2", "echo")[1].command == "TASK"
    assert script.broker.dispatcher.services[b"echo"].waiting() == 0


@pytest.mark.parametrize("how", ["DISCONNECT", "lost", "never sent"])
def test_a_task_that_may_be_repeated_waits_for_the_next_worker(talk, how: str):
    script = talk()
    script.join("w1", "echo")
    if how == "never sent":
        script.refuse("backend", "w1")
        assert script.task("c", "echo", "1", b"payload", retry=True, timeout=5000) == []
    else:
        script.given("c", "echo", "1", b"payload", retry=True, timeout=5000)
        if how == "lost":
            script.refuse("backend", "w1")
            script.lose_peer("backend")
            script.sleep(0.1)
        else:
            script.say("backend", "w1", "DISCONNECT")
    assert script.heard() == []
    script.sleep(4.0)
    ready, task = script.join("w2", "echo")
    assert (task.command, task.body[2], ready.command) == ("TASK", b"payload", "READYOK")
    assert 850 <= task.options["timeout"] <= 1050  # what is left of its time
    (reply,) = script.reply("w2", task, b"done")
    assert (reply.to, reply.number, reply.body[2]) == ("c", "1", b"done")


def test_a_task_that_waits_for_the_next_worker_in_vain_ends_in_503_when_its_time_is_up(talk):
    script = talk()
    script.join("w1", "echo")
    script.given("c", "echo", "1", retry=True, timeout=5000)
    script.sleep(1.0)
    script.say("backend", "w1", "DISCONNECT")
    script.sleep(3.95)
    assert script.heard() == []
    script.sleep(0.05 + 2 * GRAIN)
    assert (script.one().code, script.broker.dispatcher.tasks) == (503, {})


def test_a_task_that_may_not_be_repeated_does_not_wait_for_the_next_worker(talk):
    script = talk()
    script.join("w1", "echo")
    script.given("c", "echo", "1")
    script.say("backend", "w1", "DISCONNECT")
    assert script.one().code == 504


def test_a_task_that_may_not_be_repeated_ends_in_504_at_once(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    script.given("c", "echo", "1")
    script.say("backend", "w1", "DISCONNECT")
    error = script.one()
    assert (error.command, error.code, error.number) == ("ERROR", 504, "1")


@pytest.mark.parametrize("reason", ["EHOSTUNREACH", "EAGAIN"])
def test_a_task_that_never_left_the_broker_goes_to_another_whatever_it_is(talk, reason: str):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    script.refuse("backend", "w1", reason)
    assert script.given("c", "echo").to == "w2"


def test_a_task_that_never_left_the_broker_waits_when_the_others_are_busy(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    script.refuse("backend", "w2")
    first = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    script.reply("w1", first)
    assert script.ready("w1", "echo")[1].command == "TASK"


def test_a_task_that_cannot_be_sent_to_anybody_ends_in_503(talk):
    script = talk()
    script.join("w1", "echo")
    script.refuse("backend", "w1")
    assert script.task("c", "echo")[0].code == 503


def test_the_other_tasks_of_a_worker_that_is_gone_end_too(talk):
    script = talk()
    script.join("w", "echo", window=3)
    script.given("c", "echo", "1")
    script.given("c", "echo", "2", retry=True)
    script.refuse("backend", "w")
    never_sent = script.task("c", "echo", "3")
    script.sleep(LAST_WORDS + GRAIN)
    lost = script.heard()
    assert [(message.number, message.code) for message in (*never_sent, *lost)] == [("3", 503), ("1", 504)]
    assert [task.client_id for task in script.broker.dispatcher.services[b"echo"].queue.values()] == [b"2"]


def test_the_last_reply_of_a_worker_that_is_gone_already_is_taken(talk):
    """ZeroMQ takes nothing for a peer that has left, while what that sent before is still to be read."""
    script = talk()
    script.join("w", "echo", window=2)
    first, second = script.given("c", "echo", "1"), script.given("c", "echo", "2", retry=True)
    script.refuse("backend", "w")
    script.lose_peer("backend")
    script.sleep(0.03)  # the broker asks whether it is there
    assert script.task("d", "echo", "3")[0].code == 503  # it gets nothing more
    assert script.beat("w") == []
    assert [(reply.to, reply.number) for reply in script.reply("w", first, b"done")] == [("c", "1")]
    assert script.state_of("w") == "unresponsive"
    assert [(reply.to, reply.number) for reply in script.reply("w", second, b"done")] == [("c", "2")]
    assert (script.state_of("w"), script.broker.dispatcher.counts.redispatched) == (None, 0)
    script.sleep(1.0)
    assert (script.heard(), script.broker.dispatcher.tasks) == ([], {})


def test_a_worker_that_is_gone_and_says_nothing_more_is_lost_in_a_moment(talk):
    script = talk()
    script.join("w", "echo", window=2)
    script.given("c", "echo", "1")
    script.given("c", "echo", "2", retry=True)
    script.refuse("backend", "w")
    script.lose_peer("backend")
    script.sleep(0.03)
    script.join("other", "echo")
    script.sleep(LAST_WORDS - 0.011)
    assert script.heard() == []
    script.sleep(0.002)
    assert [(said.to, said.command, said.code) for said in script.heard()] == [
        ("c", "ERROR", 504),
        ("other", "TASK", None),
    ]


def test_a_worker_that_is_back_under_its_name_gets_tasks_again(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1")
    script.refuse("backend", "w")
    script.lose_peer("backend")
    script.sleep(0.03)
    script.accept("backend", "w")
    script.say("backend", "w", "CHECKCONFIG", identity="w", config_type="JSON")
    assert [(said.command, said.code) for said in script.heard()] == [("ERROR", 504), ("CONFIG", None)]
    assert [said.command for said in script.ready("w", "echo")] == ["READYOK"]
    script.sleep(1.0)
    assert script.given("c", "echo", "2").to == "w"


def test_what_a_client_that_is_gone_had_waiting_is_let_go(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    script.refuse("frontend", "c")
    script.reply("w", task)
    assert script.ready("w", "echo")[0].command == "READYOK"
    assert (script.heard(), script.broker.dispatcher.counts.abandoned) == ([], 1)
    assert script.broker.dispatcher.tasks == {}


# workers that are silent


def silent(script, *beating: str) -> list[object]:
    """Let so much time pass that all but these are silent; gives what is said but for heartbeats."""
    return script.beating(8, *beating)


@pytest.mark.requirement("R5")
def test_a_task_that_may_be_repeated_is_shared_when_its_worker_is_silent_and_the_first_answer_counts(talk):
    script = talk()
    script.join("frozen", "echo", window=1)
    script.join("other", "echo", window=1)
    task = script.given("c", "echo", "1", b"payload", retry=True)
    (again,) = silent(script, "other")
    assert (task.to, again.to, again.number, again.body[2]) == ("frozen", "other", task.number, b"payload")
    assert script.state_of("frozen") == "unresponsive"
    (reply,) = script.reply("other", again, b"first")
    assert (reply.to, reply.number, reply.body[2]) == ("c", "1", b"first")
    assert script.reply("frozen", task, b"late") == []
    counts = script.broker.dispatcher.counts
    assert (counts.shared, counts.unknown_replies, counts.forged_replies) == (1, 1, 0)
    assert sorted(script.given("c", "echo", str(number)).to for number in (2, 3)) == ["frozen", "other"]


def test_the_silent_one_may_be_the_first_to_answer(talk):
    script = talk()
    script.join("busy", "echo", window=1)
    script.join("other", "echo", window=1)
    task = script.given("c", "echo", "1", retry=True)
    (again,) = silent(script, "other")
    (reply,) = script.reply("busy", task, b"first")
    assert (reply.to, reply.body[2]) == ("c", b"first")
    assert script.reply("other", again, b"late") == []
    assert script.broker.dispatcher.tasks == {}
    assert sorted(script.given("c", "echo", str(number)).to for number in (2, 3)) == ["busy", "other"]


@pytest.mark.requirement("R5")
def test_a_task_that_may_not_be_repeated_stays_with_the_silent_worker(talk):
    script = talk()
    script.join("busy", "echo")
    script.join("other", "echo")
    task = script.given("c", "echo", timeout=60_000)
    assert silent(script, "other") == []
    assert script.reply("busy", task)[0].to == "c"


def test_a_shared_task_waits_for_one_that_is_free(talk):
    script = talk()
    script.join("frozen", "echo", window=1)
    script.join("other", "echo", window=1)
    task, mine = script.given("c", "echo", "1", retry=True), script.given("c", "echo", "2", timeout=60_000)
    assert script.task("c", "echo", "3", timeout=60_000) == []
    assert silent(script, "other") == []
    reply, again = script.reply("other", mine)
    assert (reply.number, again.number) == ("2", task.number)  # before the one that came later
    assert script.reply("other", again)[0].number == "1"


def test_a_silent_worker_that_is_back_keeps_what_nobody_else_has_begun(talk):
    script = talk()
    script.join("w", "echo", window=2)
    task = script.given("c", "echo", "1", retry=True, timeout=60_000)
    assert silent(script) == []
    assert script.broker.dispatcher.services[b"echo"].waiting() == 1
    assert [message.command for message in script.beat("w")] == ["HEARTBEAT"]
    assert script.broker.dispatcher.services[b"echo"].waiting() == 0
    assert silent(script) == []
    assert [message.command for message in script.ready("w", "echo", window=2)] == ["READYOK"]
    script.join("other", "echo")
    assert script.reply("w", task)[0].number == "1"
    assert script.task("c", "echo", "2")[0].number != task.number


def test_a_shared_task_whose_second_worker_dies_goes_on(talk):
    script = talk()
    script.join("first", "echo", window=1)
    script.join("second", "echo", window=1)
    task = script.given("c", "echo", "1", retry=True, timeout=60_000)
    silent(script, "second")
    script.say("backend", "second", "DISCONNECT")
    assert script.heard() == []
    script.join("third", "echo")
    script.heard()
    assert script.reply("first", task)[0].number == "1"


def test_a_shared_task_whose_silent_worker_dies_is_the_others(talk):
    script = talk()
    script.join("first", "echo", window=1)
    script.join("second", "echo", window=1)
    script.given("c", "echo", "1", retry=True, timeout=60_000)
    (again,) = silent(script, "second")
    script.say("backend", "first", "DISCONNECT")
    assert script.heard() == []
    assert script.reply("second", again)[0].number == "1"


def test_when_both_who_shared_a_task_are_gone_it_waits_for_the_next_worker(talk):
    script = talk()
    script.join("first", "echo", window=1)
    script.join("second", "echo", window=1)
    script.given("c", "echo", "1", retry=True, timeout=60_000)
    silent(script, "second")
    script.say("backend", "first", "DISCONNECT")
    script.say("backend", "second", "DISCONNECT")
    assert script.heard() == []
    assert script.join("third", "echo", window=1)[1].command == "TASK"


def test_a_shared_task_that_nobody_answers_is_504(talk):
    script = talk()
    script.join("frozen", "echo")
    script.given("c", "echo", "1", retry=True, timeout=20_000)
    script.sleep(21)
    assert [message.code for message in script.heard() if message.code] == [504]


def test_a_stream_that_has_begun_is_not_shared(talk):
    script = talk()
    script.join("busy", "echo")
    script.join("other", "echo")
    task = script.given("c", "echo", retry=True, timeout=60_000)
    script.reply("busy", task, b"0", more=True)
    assert silent(script, "other") == []
    assert script.reply("busy", task, b"1")[0].body[2] == b"1"


def test_of_two_streams_the_one_that_began_first_goes_on(talk):
    script = talk()
    script.join("busy", "echo", window=1)
    script.join("other", "echo", window=1)
    task = script.given("c", "echo", retry=True, timeout=60_000)
    (again,) = silent(script, "other")
    assert script.reply("busy", task, b"0", more=True)[0].body[2] == b"0"
    assert script.reply("other", again, b"0", more=True) == script.reply("other", again, b"1") == []
    assert script.reply("busy", task, b"1")[0].body[2] == b"1"
    assert sorted(script.given("c", "echo", str(number)).to for number in (2, 3)) == ["busy", "other"]


# clients that do not read


def deaf(script, who: str = "c"):
    script.refuse("frontend", who, "EAGAIN")


@pytest.mark.parametrize("req", [False, True])
def test_a_client_whose_queue_was_full_is_told_later_that_it_missed_the_reply(talk, req: bool):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", "7", req=req)
    deaf(script)
    assert script.reply("w", task, b"x" * 20_000) == []
    script.accept("frontend", "c")
    script.sleep(1 + 2 * GRAIN)
    error = script.one()
    assert (error.command, error.to, error.code, error.delimited) == ("ERROR", "c", 504, req)
    assert (error.body, error.options["id"]) == ((b"echo", b"7"), "7")
    script.sleep(60)
    assert [message.command for message in script.heard() if message.to == "c"] == []


def test_a_client_whose_queue_stays_full_is_told_twice_at_most(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo")
    deaf(script)
    script.reply("w", task)
    assert script.task("c", "nothing", "2") == []
    script.sleep(30)
    script.accept("frontend", "c")
    script.sleep(30)
    assert [message for message in script.heard() if message.to == "c"] == []
    assert script.broker.dispatcher.counts.untold == 2
    assert script.broker.counts["undelivered EAGAIN"] == 4


def test_an_error_that_found_the_queue_full_comes_again_as_it_was(talk):
    script = talk()
    deaf(script)
    script.task("c", "nothing", "2")
    script.accept("frontend", "c")
    script.sleep(1.1)
    error = script.one()
    assert (error.code, error.body) == (404, (b"nothing", b"2"))


def test_a_stream_with_a_hole_ends_in_an_error(talk):
    script = talk()
    script.join("w", "echo", window=1)
    task = script.given("c", "echo", "1", timeout=60_000)
    assert len(script.reply("w", task, b"0", more=True)) == 1
    deaf(script)
    script.reply("w", task, b"1", more=True)
    script.accept("frontend", "c")
    assert script.reply("w", task, b"2", more=True) == []
    assert script.task("c", "echo", "2") == []
    (following,) = script.reply("w", task, b"3")  # which makes room, and reaches nobody
    assert following.command == "TASK"
    script.sleep(1.1)
    error = script.one()
    assert (error.code, error.number) == (504, "1")


def test_the_errors_that_wait_for_a_second_try_are_bounded(talk, monkeypatch):
    monkeypatch.setattr(dispatch, "MOST_SECOND_TRIES", 10)
    script = talk()
    deaf(script)
    for number in range(100):
        script.task("c", "nothing", str(number))
    script.accept("frontend", "c")
    script.sleep(2)
    assert (len(script.heard()), script.broker.dispatcher.counts.untold) == (10, 90)


# lock-step workers


def test_a_req_worker_is_answered_by_the_task(talk):
    script = talk()
    assert script.join("w", "echo", req=True) == []
    script.sleep(1)
    (task,) = script.task("c", "echo")
    assert (task.command, task.to, task.delimited) == ("TASK", "w", True)
    script.sleep(10)
    assert "READYOK" not in {message.command for message in script.heard()}


def test_a_req_worker_is_answered_by_readyok_when_an_interval_has_passed(talk):
    script = talk()
    assert script.join("w", "echo", req=True) == []
    script.sleep(2.49)
    assert script.heard() == []
    script.sleep(0.01 + 2 * GRAIN)
    accepted = script.one()
    assert (accepted.command, accepted.delimited, accepted.options["hbeatinterval"]) == ("READYOK", True, 2500)
    assert script.task("c", "echo") == []  # it could not take it before it speaks again
    (task,) = script.ready("w", "echo", req=True)
    assert (task.command, task.delimited) == ("TASK", True)


def test_a_req_worker_takes_what_waits_as_the_answer(talk):
    script = talk()
    script.join("w", "echo", req=True)
    first = script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    script.reply("w", first, req=True)
    (second,) = script.ready("w", "echo", req=True)
    assert (second.command, second.delimited) == ("TASK", True)
    assert script.reply("w", second, req=True)[0].command == "TASKREPLY"


def test_the_task_of_a_req_worker_that_is_gone_goes_to_another(talk):
    script = talk()
    script.join("w1", "echo", req=True)
    script.join("w2", "echo", req=True)
    script.refuse("backend", "w1")
    (task,) = script.task("c", "echo")
    assert (task.to, task.delimited) == ("w2", True)


# memory


def test_frontends_are_forgotten_after_a_while(talk):
    script = talk()
    script.join("w", "echo", window=9, heartbeat=False)
    task = script.given("c", "echo", "1", timeout=200_000)
    script.task("d", "nothing")
    script.sleep(100)
    assert [key[1] for key in script.broker.dispatcher.frontends] == [b"c"]
    script.reply("w", task)
    script.sleep(130)
    assert script.broker.dispatcher.frontends == {}


def test_the_short_way_and_the_long_way_say_the_same(talk):
    """A delimiter makes the broker read the whole message; without one it looks at the frames alone."""

    def played(req: bool) -> list[object]:
        script: Script = talk()
        script.join("w", "echo", window=2)
        heard = [script.task("c", "nothing", req=req), script.task("c", "echo", "1", req=req, timeout=500)]
        first = heard[1][0]
        heard += [script.reply("w", first, req=req), script.reply("w", first, req=req)]
        heard += [script.task("c", "echo", "2", req=req, timeout="x"), script.task("c", "echo", "3", req=req)]
        heard += [script.reply("v", heard[-1][0], req=req)]
        state = script.broker.dispatcher
        return [
            [[(m.to, m.command, m.options, m.body) for m in messages] for messages in heard],
            script.broker.counts, state.counts, state.frontends[("frontend", b"c")].open,
        ]  # fmt: skip

    assert played(False) == played(True)


def test_a_stream_whose_worker_is_gone_is_not_begun_again(talk):
    """The first parts are with the client already; from another worker they would come twice."""
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    task = script.given("c", "echo", "1", retry=True)
    script.reply("w1", task, b"0", more=True)
    script.say("backend", "w1", "DISCONNECT")
    error = script.one()
    assert (error.to, error.command, error.options["code"]) == ("c", "ERROR", 504)
