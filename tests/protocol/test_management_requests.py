"""MANAGEMENTREQ: who may ask, what is answered, and the states of the broker."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from scale0_core.config.network import GroupBroker, GroupConfig, NetworkConfig, User
from scale0_core.container.host import ServiceHost
from scale0_core.network.management import LOCK_SECONDS, MOST_CHECKS
from scale0_core.protocol.states import BrokerState

USERS = (User("ada", "secret", "admin"), User("oscar", "secret", "operator"), User("vera", "secret", "viewer"))
COMMANDS = {
    "state": "viewer", "list_clients": "viewer", "list_services": "viewer", "list_peers": "viewer",
    "list_error_clients": "viewer", "config": "viewer", "clear_error_client": "operator", "kick": "operator",
    "resume": "operator", "disable": "admin", "enable": "admin", "reload_config": "admin",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("quick_passwords")


class Idle:
    """A service of a plugin that does nothing."""

    name = "idle"
    endpoints: ClassVar[dict[str, Any]] = {}

    def receive(self, socket: str, frames: Any, now: float) -> tuple[()]:
        return ()

    def next_deadline(self) -> None:
        return None

    def on_deadline(self, now: float) -> tuple[()]:
        return ()


def by(name: str, password: str = "secret") -> dict[str, str]:
    return {"socket": "frontend", "auth_id": name, "auth_password": password}


# who may ask


@pytest.mark.requirement("R48")
@pytest.mark.requirement("R49")
@pytest.mark.requirement("R50")
@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_a_known_user_with_the_right_password_is_answered(talk, socket: str):
    answer = talk(users=USERS).ask("state", **{**by("ada"), "socket": socket})
    assert (answer.code, answer.options["message"], answer.result["state"]) == (200, "done", "active")


@pytest.mark.requirement("R50")
@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("ada", ""), ("nobody", "secret"), ("", "")])
def test_others_are_not(talk, name: str, password: str):
    answer = talk(users=USERS).ask("state", **by(name, password))
    assert (answer.code, answer.result) == (401, None)
    assert answer.options["message"] == "no such user, or not the password"


def test_credentials_of_another_kind_are_400(talk):
    script = talk(users=USERS)
    assert script.ask("state", socket="frontend", auth_id=5).code == 400
    assert script.ask("state", socket="frontend", auth_id="ada", auth_password=["secret"]).code == 400


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_every_command_needs_its_role(talk, role: str):
    roles = ["viewer", "operator", "admin"]
    name = next(user.name for user in USERS if user.role == role)
    allowed = set()
    for command in COMMANDS:
        answer = talk(users=USERS).ask(command, {"identity": "w"}, **by(name))
        if answer.code != 403:
            allowed.add(command)
        else:
            assert "needs the role" in answer.options["message"]
    assert allowed == {command for command, needed in COMMANDS.items() if roles.index(needed) <= roles.index(role)}


def test_there_are_these_commands(talk):
    assert {name: command.role for name, command in talk().broker.management.commands.items()} == COMMANDS
    assert all(command.help for command in talk().broker.management.commands.values())


@pytest.mark.requirement("R48")
def test_the_command_is_looked_at_before_the_password(talk):
    script = talk(users=USERS)
    answer = script.ask("explode", **by("ada", "wrong"))
    assert answer.code == 501
    assert "reload_config" in answer.options["message"]
    assert script.jobs_in_flight == 0


@pytest.mark.parametrize("command", [None, 5, "x" * 65, ["state"]])
def test_a_command_that_is_no_word_is_400(talk, command: object):
    script = talk()
    script.say("management", "m", "MANAGEMENTREQ", command=command)
    assert script.one().code == 400


def test_args_are_an_object(talk):
    assert [talk().ask("kick", args).code for args in ("w", ["w"], 5)] == [400] * 3


def test_the_socket_in_the_private_folder_needs_no_password(talk):
    assert talk().ask("state").code == 200


def test_passwords_are_compared_by_jobs_and_only_so_many_at_once(talk):
    script = talk(users=USERS, job_delay=1.0)
    for number in range(MOST_CHECKS):
        assert script.request("state", who=f"c{number}", **by("ada")) == []
    (refused,) = script.request("state", who="c99", **by("ada"))
    assert refused.code == 429
    assert script.ask("state").code == 200
    script.sleep(60)
    assert [message.code for message in script.heard()] == [200] * MOST_CHECKS
    assert script.request("state", **by("ada")) == []
    script.sleep(1)
    assert script.one().code == 200


def test_too_many_wrong_passwords_lock_a_user_out_for_a_while(talk):
    script = talk(users=USERS)
    for number in range(5):
        assert script.ask("state", who=f"c{number}", **by("ada", "wrong")).code == 401
    assert script.ask("state", who="d", **by("ada")).code == 429
    assert script.ask("state", who="d", **by("vera")).code == 200
    script.sleep(LOCK_SECONDS)
    assert script.ask("state", who="d", **by("ada")).code == 200


def test_a_right_password_forgives_the_wrong_ones(talk):
    script = talk(users=USERS, error_client_threshold=100)
    for _ in range(3):
        assert [script.ask("state", **by("ada", word)).code for word in ("no", "no", "no", "no", "secret")] == [
            401, 401, 401, 401, 200
        ]  # fmt: skip


def test_names_that_do_not_exist_cannot_make_the_broker_forget_the_failures_of_one_that_does(talk, monkeypatch):
    monkeypatch.setattr("scale0_core.network.management.MOST_REMEMBERED", 10)
    script = talk(users=USERS)
    for number in range(5):
        script.ask("state", who=f"c{number}", **by("ada", "wrong"))
    for number in range(50):
        script.ask("state", who=f"d{number}", **by(f"nobody-{number}"))
    assert script.ask("state", who="e", **by("ada")).code == 429
    assert len(script.broker.management._failures) <= 10


def test_a_connection_that_gives_wrong_passwords_again_and_again_is_silenced(talk):
    script = talk(users=USERS)
    for _ in range(5):
        script.ask("state", **by("nobody"))
    assert script.request("state", **by("vera")) == []
    assert [row["reason"] for row in script.ask("list_error_clients").result] == ["wrong credentials"]


def test_a_comparison_that_fails_lets_nobody_in(talk):
    script = talk(users=USERS)
    script.fail_next_job(MemoryError())
    assert script.ask("state", **by("ada")).code == 401
    assert script.ask("state", **by("ada")).code == 200


@pytest.mark.requirement("R29")
def test_management_over_a_socket_that_others_reach_is_refused_unless_the_operator_consents(talk):
    for options in (by("ada"), {"socket": "frontend"}):
        answer = talk(users=USERS, remote=["frontend"]).request("state", **options)[0]
        assert (answer.code, "management_insecure" in answer.options["message"]) == (403, True)
    script = talk(users=USERS, remote=["frontend"])
    assert script.ask("state", **{**by("ada"), "socket": "backend"}).code == 200
    assert script.ask("state").code == 200
    assert talk(users=USERS, remote=["frontend"], management_insecure=True).ask("state", **by("ada")).code == 200


def test_users_change_with_the_configuration(talk):
    script = talk(users=USERS)
    script.store.following = NetworkConfig(identity="b1", users=(User("eve", "secret", "viewer"),))
    assert script.ask("reload_config", **by("ada")).code == 200
    assert [script.ask("state", **by(name)).code for name in ("ada", "eve")] == [401, 200]


# what is answered


@pytest.mark.requirement("R25")
def test_state_shows_totals(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo")
    script.feed("frontend", "x", "junk", "x")
    script.heard()
    shown = script.ask("state").result
    counts = shown.pop("counts")
    assert shown == {
        "identity": "b1", "state": "active", "config_version": 1, "config_hash": "hash-1",
        "workers": 1, "frontends": 1, "services": 1, "open_tasks": 1, "quarantined": [],
    }  # fmt: skip
    assert (counts["malformed 400"], counts["forged_replies"]) == (1, 0)


@pytest.mark.requirement("R3")
@pytest.mark.requirement("R23")
@pytest.mark.requirement("R73")
def test_list_clients_shows_backends_and_frontends(talk):
    script = talk()
    script.join("w", "echo", "convert", window=3, config_version=1)
    script.given("c", "echo", "1")
    unwanted = script.given("c", "echo", "2")
    script.say("frontend", "c", "CANCEL", "echo", "2")
    script.reply("w", unwanted, code=410, message="cancelled")
    script.check("c", "frontend", identity="anna")
    backend, frontend = script.ask("list_clients").result
    assert backend == {
        "identity": "w", "role": "backend", "state": "ready", "services": ["echo", "convert"], "age_ms": 0,
        "interval_ms": 2500, "config_version": 1, "open_tasks": 1, "window": 3, "skew_ms": 0,
    }  # fmt: skip
    assert frontend == {
        "identity": "anna", "role": "frontend", "state": "known", "services": [], "age_ms": 0, "open_tasks": 1,
        "tasks": 2, "cancelled": 1,
    }  # fmt: skip


@pytest.mark.requirement("R24")
def test_list_services_shows_how_each_is_doing(talk):
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    task = script.given("c", "echo", "1")
    script.sleep(0.25)
    script.reply("w1", task)
    script.given("c", "echo", "2")
    script.task("c", "echo", "3")
    (row,) = script.ask("list_services").result
    assert row.pop("p50_ms") == row.pop("p95_ms") == row.pop("p99_ms") == pytest.approx(250, rel=0.13)
    assert row == {
        "service": "echo", "kind": "worker", "workers": 2, "idle": 0, "waiting": 1, "requests": 3, "errors": 0,
        "timeouts": 0, "cancelled": 0, "last_error": "",
    }  # fmt: skip


@pytest.mark.requirement("R22")
def test_list_peers_shows_the_brokers_that_are_configured(talk):
    group = GroupConfig("g", (GroupBroker("b1"), GroupBroker("b2", frontend="tcp://b2:1", backend="tcp://b2:2")))
    (row,) = talk(group="g", group_config=(group,)).ask("list_peers").result
    assert row == {"identity": "b2", "group": "g", "frontend": "tcp://b2:1", "backend": "tcp://b2:2"}


def test_config_shows_version_and_hash(talk):
    assert talk().ask("config").result == {"config_version": 1, "config_hash": "hash-1"}


def test_kick_disconnects_a_worker(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1")
    assert script.ask("kick", {"identity": "w"}).result == {"kicked": 1}
    assert [(message.to, message.command, message.code) for message in script.others] == [
        ("w", "DISCONNECTERROR", 403), ("c", "ERROR", 504)
    ]  # fmt: skip
    assert script.ask("kick", {"identity": "w"}).code == 404
    assert script.ask("kick", {"identity": ["w"]}).code == script.ask("kick").code == 404


# the states of the broker


def everything(script) -> None:
    """Say every command that a client or a worker may say."""
    for socket in ("frontend", "backend"):
        for command in ("CHECKCONFIG", "READY", "HEARTBEAT", "PING", "NEEDBROKER", "DISCONNECT", "WHAT"):
            script.say(socket, "x", command, identity="x", services=["echo"])
        script.say(socket, "x", "TASK", "echo", "1", "payload")
        script.say(socket, "x", "TASKREPLY", "echo", "1", "payload")


@pytest.mark.requirement("R64")
@pytest.mark.requirement("R65")
def test_a_joining_broker_answers_503_and_management_until_it_has_its_configuration(talk):
    script = talk(state=BrokerState.JOINING)
    everything(script)
    assert {(message.command, message.code) for message in script.heard()} == {("ERROR", 503)}
    assert script.ask("state").result["state"] == "joining"
    assert script.ask("enable").code == 503
    script.store.following = NetworkConfig(identity="b1")
    script.ask("reload_config")
    assert script.ask("state").result["state"] == "active"
    assert script.check("w").command == "CONFIG"


@pytest.mark.requirement("R64")
@pytest.mark.parametrize("req", [False, True])
def test_a_joining_broker_says_which_task_it_refuses(talk, req: bool):
    script = talk(state=BrokerState.JOINING)
    (error,) = script.task("c", "echo", "7", req=req)
    assert (error.command, error.code, error.delimited, error.body) == ("ERROR", 503, req, (b"echo", b"7"))
    assert error.options["id"] == "7"
    script.feed("frontend", "c", "S0C01", "TASK", "", "echo")
    script.feed("frontend", "c", "S0C01", "TASK", "", "echo", "i" * 9000, "x")
    assert [(message.code, message.body) for message in script.heard()] == [(503, ())] * 2


@pytest.mark.requirement("R65")
def test_a_joining_broker_whose_configuration_is_as_it_was_becomes_active_too(talk):
    script = talk(state=BrokerState.JOINING)
    script.ask("reload_config")
    assert script.broker.state is BrokerState.ACTIVE


@pytest.mark.requirement("R64")
def test_a_joining_broker_can_be_disabled(talk):
    script = talk(state=BrokerState.JOINING)
    assert script.ask("disable").result == {"state": "disabled"}


@pytest.mark.requirement("R66")
@pytest.mark.requirement("R67")
def test_a_disabled_broker_answers_nothing_but_enable(talk):
    script = talk(users=USERS)
    assert script.ask("disable").result == {"state": "disabled"}
    everything(script)
    for frames in ([], ["junk"], ["S0C01", "PING", "{"], ["S0C01", "TASK", "", "a", "b", "c"]):
        script.feed("frontend", "y", *frames)
    for command in {*COMMANDS, "nonsense", ""} - {"enable"}:
        script.request(command)
        script.request(command, **by("ada"))
    script.request("enable", **by("ada", "wrong"))
    script.request("enable", **by("vera"))
    script.request("enable", socket="frontend")
    script.sleep(1000)
    assert script.heard() == []
    assert script.ask("enable", who="z", **by("ada")).result == {"state": "active"}
    script.say("frontend", "c", "PING")
    assert script.one().command == "PONG"


@pytest.mark.requirement("R67")
def test_a_disabled_broker_enables_by_the_private_socket_but_not_by_a_remote_one(talk):
    script = talk(users=USERS, remote=["frontend"], state=BrokerState.DISABLED)
    assert script.request("enable", **by("ada")) == []
    assert script.ask("enable").result == {"state": "active"}


@pytest.mark.requirement("R66")
def test_on_the_way_out_everybody_is_told_where_else_to_go(talk):
    group = GroupConfig("g", (GroupBroker("b1"), GroupBroker("b2", frontend="tcp://b2:1", backend="tcp://b2:2")))
    script = talk(group="g", group_config=(group,))
    script.join("w", "echo")
    script.given("c", "echo")
    script.ask("disable")
    assert [(message.to, message.command, message.code) for message in script.others] == [
        ("w", "CHANGEBROKER", 301), ("c", "CHANGEBROKER", 301)
    ]  # fmt: skip
    assert [broker["identity"] for broker in script.others[0].options["brokers"]] == ["b2"]


@pytest.mark.requirement("R66")
def test_open_tasks_may_end_for_a_while(talk):
    script = talk()
    script.join("w", "echo", window=2)
    first, second = script.given("c", "echo", "1", timeout=9000), script.given("c", "echo", "2", timeout=90_000)
    script.ask("disable")
    assert script.task("c", "echo", "3") == []
    assert script.reply("w", first)[0].command == "TASKREPLY"
    script.sleep(10.1)
    script.heard()
    assert script.reply("w", second) == []
    script.sleep(200)
    assert script.heard() == []


@pytest.mark.requirement("R67")
def test_what_a_disabled_broker_keeps_to_itself_is_counted(talk):
    script = talk()
    script.join("w", "echo", window=2)
    script.given("c", "echo", "1", timeout=60_000)
    script.given("c", "echo", "2", timeout=90_000)
    script.ask("disable")
    script.sleep(61)
    counts = script.ask("enable").result and script.broker.counts
    assert counts["unsent while disabled ERROR"] == 1
    assert counts["unsent while disabled HEARTBEAT"] > 0


@pytest.mark.requirement("R67")
def test_a_disabled_broker_keeps_to_itself_what_becomes_of_tasks_whose_worker_is_gone(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", timeout=60_000)
    script.ask("disable")
    script.sleep(11)
    script.heard()
    list(script.broker.on_undelivered("backend", (b"w", b"S0W01", b"HEARTBEAT", b""), "EHOSTUNREACH", script.now))
    script.sleep(60)
    assert script.heard() == []
    assert script.broker.counts["unsent while disabled ERROR"] == 1


def test_a_disabled_broker_puts_no_task_into_hands_that_never_get_it(talk):
    script = talk()
    script.join("frozen", "echo", window=1, hbeatinterval=5000)
    task = script.given("c", "echo", "1", retry=True, timeout=90_000)
    script.join("idle", "echo", window=1, heartbeat=False)
    script.ask("disable")
    script.sleep(20)
    script.heard()
    script.ask("enable")
    assert script.given("c", "echo", "2").to == "idle"
    script.beat("frozen")
    assert script.reply("frozen", task)[0].number == "1"


def test_deadlines_that_pass_soon_after_disabling_are_told(talk):
    script = talk()
    script.join("w", "echo")
    script.given("c", "echo", "1", timeout=3000)
    script.ask("disable")
    script.sleep(4)
    assert [(message.to, message.code) for message in script.heard() if message.code] == [("c", 504)]


@pytest.mark.requirement("R66")
def test_the_state_is_on_record_before_it_is_told(talk):
    script = talk(job_delay=1.0)
    assert script.request("disable") == []
    script.sleep(1)
    assert (script.store.states, script.one().result) == (["disabled"], {"state": "disabled"})
    assert script.request("enable") == []
    script.sleep(1)
    assert (script.store.states, script.one().result) == (["disabled", "active"], {"state": "active"})


def test_a_state_that_cannot_be_kept_is_told(talk):
    script = talk()
    script.store.error = OSError(28, "No space left on device")
    answer = script.ask("disable")
    assert answer.code == 500
    assert "No space left" in answer.options["message"]


@pytest.mark.parametrize("command", ["disable", "enable"])
def test_a_state_that_cannot_be_kept_is_not_entered(talk, command):
    script = talk(job_delay=1.0)
    script.join("w", "echo")
    if command == "enable":
        script.request("disable")
        script.sleep(1)
        script.heard()
    before = script.broker.state
    script.store.error = OSError(28, "No space left on device")
    script.request(command)
    assert script.broker.state is before, "nothing changes before it is on record"
    script.sleep(1)
    assert (script.one().code, script.broker.state) == (500, before), "and nobody was sent away"
    script.store.error = None
    script.request(command)
    script.sleep(1)
    assert script.broker.state is not before


def test_the_last_of_several_changes_on_their_way_holds(talk):
    script = talk(job_delay=1.0)
    for command in ("disable", "enable", "disable"):
        script.request(command)
    script.sleep(3)
    assert [message.result["state"] for message in script.heard()] == ["disabled", "active", "disabled"]
    assert (script.store.states[-1], script.broker.state) == ("disabled", BrokerState.DISABLED)


def test_the_owner_is_told_the_state_of_a_disabled_broker_and_nobody_else_is(talk):
    script = talk(users=USERS, state=BrokerState.DISABLED)
    assert script.ask("state").result["state"] == "disabled"
    assert script.request("list_clients") == []
    assert script.request("state", **by("ada")) == []


@pytest.mark.parametrize("state", list(BrokerState))
def test_services_of_plugins_have_the_state_of_the_broker(talk, state):
    script, host = talk(state=state), ServiceHost(Idle())
    script.services.add(host)
    assert host.suspended == {"active": ""}.get(state.value, state.value)
    script.store.error = OSError(28, "No space left on device")
    script.request("disable")
    assert host.suspended == {"active": ""}.get(state.value, state.value)
    script.store.error = None
    script.request("disable")
    assert host.suspended == "disabled"
    script.request("enable")
    assert host.suspended == ""


def test_a_joining_broker_that_is_configured_lets_its_services_serve(talk):
    script, host = talk(state=BrokerState.JOINING), ServiceHost(Idle())
    script.services.add(host)
    assert host.suspended == "joining"
    script.request("reload_config")
    assert host.suspended == ""


@pytest.mark.requirement("R67")
def test_a_request_whose_password_was_being_compared_is_not_answered_once_disabled(talk):
    script = talk(users=USERS, job_delay=1.0)
    script.request("disable")
    script.request("state", **by("ada"))
    script.sleep(1)
    assert [message.result for message in script.heard()] == [{"state": "disabled"}]
    script.request("enable", who="z", **by("ada"))
    script.sleep(2)
    assert script.one().result == {"state": "active"}


def test_workers_that_a_disabled_broker_did_not_answer_are_there_again_when_it_is_enabled(talk):
    script = talk()
    script.join("w", "echo")
    script.ask("disable")
    for _ in range(30):
        script.sleep(1)
        script.beat("w")
    script.heard()
    script.ask("enable")
    assert script.beat("w")[0].command == "HEARTBEAT"
    assert script.given("c", "echo").to == "w"
