"""PING, TASK, TASKREPLY: the least recently used worker, queues, deadlines, streams, REQ sockets."""

from __future__ import annotations

import pytest

GRAIN = 0.05


# PING


def test_a_ping_is_answered_with_the_time_the_version_and_its_body(talk):
    script = talk()
    script.say("frontend", "c", "PING", b"one", b"", b"\xff", time=1)
    pong = script.one()
    assert (pong.command, pong.to, pong.header, pong.body) == ("PONG", "c", "S0C01", (b"one", b"", b"\xff"))
    assert pong.options == {"time": pytest.approx(script.wall), "config_version": 1}


@pytest.mark.requirement("R4")
def test_the_answer_has_the_empty_frame_if_and_only_if_the_question_had_it(talk):
    script = talk()
    for req in (False, True):
        script.say("frontend", "c", "PING", req=req)
        assert script.one().delimited is req
        assert script.check("one", "frontend", req=req).delimited is req
        assert script.task("c", "nothing", req=req)[0].delimited is req


def test_an_unknown_command_is_501(talk):
    script = talk()
    for command in ("PINGS", "ping", "", "HBTABLE", "X" * 300, b"\xff\xfe"):
        script.feed("frontend", "c", "S0C01", command, "{}")
        answer = script.one()
        assert (answer.command, answer.code) == ("ERROR", 501)
    assert script.broker.counts["unknown command"] == 6


def test_unknown_options_are_ignored(talk):
    script = talk()
    script.join("w", "echo", colour="blue")
    task = script.given("c", "echo", timeout=5000, colour={"a": [1]})
    assert task.options == {"timeout": 5000, "colour": {"a": [1]}}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (["S0C01"], 400),
        (["MDPC01", "PING", ""], 400),
        (["S0C01", "PING", "{"], 400),
        (["S0C01", "TASK", ""], 400),
        (["S0C01", "TASK", "", "echo"], 400),
        (["S0C01", "TASK", '{"timeout":-1}', "echo", "1", "x"], 400),
        (["S0C01", "TASK", '{"retry":1}', "echo", "1", "x"], 400),
        (["S0C01", "TASK", "", "s" * 256, "1", "x"], 400),
        (["S0C01", "TASK", "", "echo", "i" * 256, "x"], 400),
        (["S0C01", "TASK", "", "echo", b"i" * 9000, "x"], 400),
        (["S0W01", "TASKREPLY", ""], 400),
    ],
)
def test_what_is_malformed_is_told_and_counted_once(talk, frames, code: int):
    script = talk()
    script.join("w", "echo")
    for req in ([], [""]):
        script.feed("frontend", "c", *req, *frames)
        told = script.one()
        assert (told.command, told.code, told.delimited) == ("DISCONNECTERROR", code, bool(req))
        assert told.options["message"]
    assert script.broker.counts == {"malformed 400": 2}


@pytest.mark.parametrize(
    "frames",
    [
        ["S0C01", "TASK", "{" + " " * 70_000 + "}", "echo", "1", "x"],
        ["S0C01", "TASK", "", "echo", "1", *["x"] * 40],
        ["S0C01", "PING", "", *["x"] * 40],
    ],
)
def test_what_is_too_large_is_413_and_nobody_is_disconnected(talk, frames):
    script = talk()
    script.join("w", "echo")
    script.feed("frontend", "c", *frames)
    answer = script.one()
    assert (answer.command, answer.code) == ("ERROR", 413)
    script.feed("backend", "w", *frames)
    assert (script.one().code, script.state_of("w")) == (413, "ready")


# a task and its reply


@pytest.mark.requirement("R1")
@pytest.mark.requirement("R3")
def test_a_task_goes_to_a_worker_and_its_reply_comes_back(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", "my-id", b"a", b"", b"b" * 20_000)
    assert (task.socket, task.to, task.header, task.command) == ("backend", "w", "S0W01", "TASK")
    assert (task.body[0], task.body[2:]) == (b"echo", (b"a", b"", b"b" * 20_000))
    (reply,) = script.reply("w", task, b"A", b"B" * 20_000)
    assert (reply.socket, reply.to, reply.header, reply.command) == ("frontend", "c", "S0C01", "TASKREPLY")
    assert reply.body == (b"echo", b"my-id", b"A", b"B" * 20_000)


def test_the_same_id_from_two_clients_is_two_tasks(talk):
    script = talk()
    script.join("w", "echo", window=9)
    one, two = script.given("c", "echo", "1"), script.given("d", "echo", "1")
    assert one.number != two.number
    assert [script.reply("w", two)[0].to, script.reply("w", one)[0].to] == ["d", "c"]


def test_a_client_on_a_req_socket_gets_its_reply_and_its_errors_with_the_empty_frame(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo", req=True)
    (reply,) = script.reply("w", task)
    assert (reply.command, reply.delimited) == ("TASKREPLY", True)
    script.ready("w", "echo")
    script.given("c", "echo", "2", req=True, timeout=100)
    script.sleep(0.2)
    error = script.one()
    assert (error.code, error.delimited) == (504, True)


def test_what_the_worker_says_of_its_reply_reaches_the_client(talk):
    script = talk()
    script.join("w", "echo")
    task = script.given("c", "echo")
    (reply,) = script.reply("w", task, code=500, message="no such file")
    assert reply.options == {"code": 500, "message": "no such file"}
    (row,) = script.ask("list_services").result
    assert (row["errors"], row["last_error"]) == (1, "no such file")


def test_a_stream_of_replies_ends_with_the_one_that_announces_no_more(talk):
    script = talk()
    script.join("w", "echo", window=1)
    task = script.given("c", "echo", "1")
    for number in range(3):
        (part,) = script.reply("w", task, b"%d" % number, more=True)
        assert (part.command, part.options, part.body[2]) == ("TASKREPLY", {"more": True}, b"%d" % number)
        assert script.task("c", "echo", f"waits-{number}") == []
    last, following = script.reply("w", task, b"end")
    assert (last.options, following.command) == ({}, "TASK")
    assert script.reply("w", task, b"after the end") == []
    assert script.broker.dispatcher.counts.unknown_replies == 1


# the least recently used


@pytest.mark.requirement("R73")
def test_workers_are_used_in_the_order_they_became_ready(talk):
    script = talk()
    for who in ("w1", "w2", "w3"):
        script.join(who, "echo")
    tasks = [script.given("c", "echo", str(number)) for number in range(3)]
    assert [task.to for task in tasks] == ["w1", "w2", "w3"]
    for task in (tasks[2], tasks[0], tasks[1]):
        script.reply(task.to, task)
        script.ready(task.to, "echo")
    assert [script.given("c", "echo", str(number)).to for number in range(3)] == ["w3", "w1", "w2"]


@pytest.mark.requirement("R73")
def test_ready_again_keeps_the_place(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    script.ready("w1", "echo")
    script.beat("w1")
    assert script.given("c", "echo").to == "w1"


@pytest.mark.requirement("R73")
@pytest.mark.requirement("R74")
def test_a_worker_of_several_services_waits_in_each_and_leaves_all(talk):
    script = talk()
    script.join("both", "echo", "convert")
    script.join("one", "convert")
    assert script.given("c", "convert", "1").to == "both"
    assert script.task("c", "echo", "2") == []
    assert script.given("c", "convert", "3").to == "one"


def test_a_worker_with_a_window_takes_that_many_and_goes_to_the_end_each_time(talk):
    script = talk()
    script.join("w1", "echo", window=2)
    script.join("w2", "echo", window=3)
    tasks = [script.given("c", "echo", str(number)) for number in range(5)]
    assert [task.to for task in tasks] == ["w1", "w2", "w1", "w2", "w2"]
    assert script.task("c", "echo", "waits") == []
    reply, following = script.reply("w2", tasks[1])
    assert (reply.command, following.command, following.to) == ("TASKREPLY", "TASK", "w2")


def test_a_worker_without_a_window_takes_one_for_each_ready(talk):
    script = talk()
    script.join("w", "echo")
    tasks = [script.given("c", "echo", "1")]
    assert script.task("c", "echo", "2") == []
    accepted, task = script.ready("w", "echo")
    assert (accepted.command, task.command) == ("READYOK", "TASK")
    tasks.append(task)
    for task in tasks:
        assert len(script.reply("w", task)) == 1
    assert script.task("c", "echo", "3") == []


def test_a_window_that_shrinks_below_what_is_in_hand(talk):
    script = talk()
    script.join("w", "echo", window=5)
    tasks = [script.given("c", "echo", str(number)) for number in range(2)]
    script.ready("w", "echo", window=1)
    assert script.task("c", "echo", "waits") == []
    assert len(script.reply("w", tasks[0])) == 1
    assert [message.command for message in script.reply("w", tasks[1])] == ["TASKREPLY", "TASK"]


@pytest.mark.requirement("R8")
@pytest.mark.requirement("R38")
def test_services_change_in_real_time(talk):
    script = talk()
    script.join("w", "old", window=5)
    task = script.given("c", "old", "1")
    (accepted,) = script.ready("w", "new", "other", window=5)
    assert accepted.command == "READYOK"
    assert script.task("c", "old", "2")[0].code == 503
    assert script.given("c", "new", "3").to == "w"
    assert script.reply("w", task)[0].command == "TASKREPLY"
    assert [entry.service for entry in script.registry.providers()] == ["new", "other"]
    script.ready("w", window=5)
    assert script.task("c", "new", "4")[0].code == 503
    assert script.registry.providers() == []


@pytest.mark.requirement("R8")
def test_what_waits_for_a_service_goes_to_a_worker_that_takes_it_up(talk):
    script = talk()
    script.join("busy", "echo")
    script.join("w", "other")
    script.given("c", "echo", "1")
    assert script.task("c", "echo", "2") == []
    accepted, task = script.ready("w", "echo", "other")
    assert (accepted.command, task.to, task.command) == ("READYOK", "w", "TASK")


def test_of_several_services_the_task_that_has_waited_longest_comes_first(talk):
    script = talk()
    script.join("w", "a", "b")
    task = script.given("c", "a", "0")
    for number, service in enumerate(["b", "a", "b"]):
        script.sleep(0.1)
        assert script.task("c", service, str(number)) == []
    got = []
    for _ in range(3):
        script.reply("w", task)
        _, task = script.ready("w", "a", "b")
        got.append(task.body[0])
    assert got == [b"b", b"a", b"b"]


# no worker


def test_a_service_that_nobody_ever_offered_is_404(talk):
    (error,) = talk().task("c", "echo", "7")
    assert (error.command, error.to, error.code) == ("ERROR", "c", 404)
    assert error.options["id"] == "7"
    assert error.body == (b"echo", b"7")


def test_a_service_whose_workers_are_all_gone_is_503(talk):
    script = talk()
    script.join("w", "echo")
    script.say("backend", "w", "DISCONNECT")
    (error,) = script.task("c", "echo", "7")
    assert (error.code, error.options["id"]) == (503, "7")


def test_a_task_waits_for_a_busy_worker_until_its_deadline(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1", timeout=60_000)
    assert script.task("c", "echo", "2", timeout=1000) == []
    script.sleep(0.99)
    assert script.heard() == []
    script.sleep(0.01 + 2 * GRAIN)
    error = script.one()
    assert (error.command, error.code, error.number) == ("ERROR", 504, "2")
    assert script.broker.dispatcher.services[b"echo"].waiting() == 0


def test_what_waits_when_the_last_worker_leaves_waits_for_the_next_one(talk):
    """No backend: queued up to a limit and a time, then 503 (3.9 of the protocol)."""
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1")
    assert script.task("c", "echo", "2", timeout=5000) == script.task("c", "echo", "3", timeout=2000) == []
    script.say("backend", "w", "DISCONNECT")
    assert [(message.number, message.code) for message in script.heard()] == [("1", 504)]
    script.sleep(2 + 2 * GRAIN)
    assert [(message.number, message.code) for message in script.heard()] == [("3", 503)]
    accepted, task = script.join("again", "echo")
    assert (accepted.command, task.command) == ("READYOK", "TASK")
    assert script.reply("again", task)[0].number == "2"


def test_the_queue_of_a_service_is_bounded_and_expired_tasks_leave_it(talk):
    script = talk(queue_limit=2)
    script.join("w", "echo")
    script.given("c", "echo", "0", timeout=60_000)
    for round_ in range(3):
        assert script.task("c", "echo", "1", timeout=1000) == script.task("c", "echo", "2", timeout=1000) == []
        assert script.task("c", "echo", "3")[0].code == 429
        script.sleep(1.1)
        assert [message.code for message in script.heard()] == [504, 504], round_
        assert len(script.broker.dispatcher.services[b"echo"].queue) == 0


def test_the_open_tasks_of_a_client_are_bounded(talk):
    script = talk(client_limit=2)
    script.join("w", "echo", window=9)
    first = script.given("c", "echo", "1")
    script.given("c", "echo", "2")
    (error,) = script.task("c", "echo", "3")
    assert (error.code, error.options["id"]) == (429, "3")
    assert script.given("d", "echo", "3").to == "w"
    script.reply("w", first)
    assert script.given("c", "echo", "4").to == "w"


# deadlines


def test_a_task_whose_worker_does_not_answer_ends_in_504(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "9", timeout=2000)
    script.sleep(1.99)
    assert script.heard() == []
    script.sleep(0.01 + 2 * GRAIN)
    error = script.one()
    assert (error.command, error.to, error.code, error.number) == ("ERROR", "c", 504, "9")


@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 30), ({"timeout": 500}, 0.5), ({"timeout": 10_000_000}, 100), ({"timeout": 0}, 0)]
)
def test_timeouts_have_a_default_and_a_largest_value(talk, options, seconds: float):
    script = talk(max_task_timeout=100_000)
    script.join("w", "echo", heartbeat=False)
    script.given("c", "echo", **options)
    script.sleep(max(seconds - 0.01, 0))
    assert 504 not in [message.code for message in script.heard()]
    script.sleep(0.01 + 2 * GRAIN)
    assert 504 in [message.code for message in script.heard()]


def test_a_late_reply_is_dropped_and_makes_room(talk):
    script = talk()
    script.join("w", "echo", window=1)
    late = script.given("c", "echo", "1", timeout=1000)
    assert script.task("c", "echo", "2", timeout=9000) == []
    script.sleep(1.1)
    assert script.one().code == 504
    assert script.reply("w", late, more=True) == []
    (task,) = script.reply("w", late)
    assert (task.command, script.broker.dispatcher.counts.unknown_replies) == ("TASK", 2)


def test_ready_makes_room_after_a_task_that_expired(talk):
    script = talk()
    script.join("w", "echo", window=1)
    script.given("c", "echo", "1", timeout=1000)
    script.sleep(1.1)
    script.heard()
    script.ready("w", "echo", window=1)
    assert script.given("c", "echo", "2").to == "w"


def test_a_worker_that_dies_after_its_task_expired_is_no_second_error(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1", timeout=1000, retry=True)
    script.sleep(1.1)
    assert script.one().code == 504
    script.say("backend", "w", "DISCONNECT")
    assert script.heard() == []


def test_a_reply_to_nothing_is_dropped(talk):
    script = talk()
    script.join("w", "echo")
    assert script.reply("w", "\0\0\0\0\0\0\0\7") == script.reply("nobody", "x") == []
    assert script.broker.dispatcher.counts.unknown_replies == 2


def test_a_reply_to_a_task_of_the_broker_before_this_one_answers_nobody(talk):
    """Workers outlive brokers, and may still work on what an earlier one gave them."""
    before = talk()
    before.join("w", "echo", window=5)
    old = [before.given("c", "echo", str(number)) for number in range(3)]
    after = talk(started=1.0)
    after.join("w", "echo", window=5)
    new = [after.given("d", "echo", str(number)) for number in range(3)]
    assert [after.reply("w", task) for task in old] == [[], [], []]
    assert [after.reply("w", task)[0].to for task in new] == ["d"] * 3


def test_a_forged_reply_is_dropped_counted_once_and_does_no_harm(talk):
    script = talk()
    script.join("w", "echo")
    script.join("thief", "other")
    task = script.given("c", "echo")
    for who in ("thief", "stranger"):
        assert script.reply(who, task) == []
    assert script.broker.dispatcher.counts.forged_replies == 2
    assert script.reply("w", task)[0].to == "c"


def test_a_worker_that_comes_back_on_another_connection_with_old_replies_is_no_offender(talk):
    script = talk(error_client_threshold=1)
    script.join("w", "echo", window=9)
    tasks = [script.given("c", "echo", str(number), retry=True) for number in range(3)]
    script.check("w2", identity="other")
    script.ready("w2", "echo", window=9)
    script.refuse("backend", "w")
    script.lose_peer("backend")
    script.sleep(0.1)
    assert [message.to for message in script.heard()] == ["w2"] * 3
    script.join("again", "echo")
    for task in tasks:
        assert script.reply("again", task) == []
    assert script.state_of("again") == "ready"
