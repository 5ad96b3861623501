"""CHECKCONFIG, CONFIGACK, CONFIG, NEEDBROKER, CHANGEBROKER, and a configuration that changes while the broker runs."""

from __future__ import annotations

import json

import pytest

from scale0_core.config.network import ClientConfig, GroupBroker, GroupConfig, NetworkConfig, User
from scale0_core.errors import FormatError
from scale0_core.network import dispatch, negotiation
from scale0_core.network.sockets import NetworkSockets

B1 = GroupBroker("b1", frontend="tcp://b1:1", backend="tcp://b1:2")
B2 = GroupBroker("b2", frontend="tcp://b2:1", backend="tcp://b2:2")
B3 = GroupBroker("b3", services=("convert",), frontend="tcp://b3:1", backend="tcp://b3:2")
B4 = GroupBroker("b4", services=("echo",), frontend="tcp://b4:1", backend="tcp://b4:2")
GROUPS = {
    "group": "g1",
    "fallback_groups": ("g3", "g2"),
    "group_config": (GroupConfig("g1", (B1, B2)), GroupConfig("g2", (B3,)), GroupConfig("g3", (B4,))),
}


def reloaded(script):
    """Reload, and give the version and whether it is a new one."""
    told = script.ask("reload_config").result
    return told["config_version"], told["changed"]


def unwritable(config: ClientConfig) -> bytes:
    raise FormatError("identity holds the end of a line")


# CHECKCONFIG


@pytest.mark.requirement("R30")
@pytest.mark.requirement("R35")
@pytest.mark.requirement("R11")
@pytest.mark.requirement("R13")
@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_a_client_without_a_configuration_is_given_one(talk, socket: str):
    answer = talk().check("one", socket, services=["echo"])
    assert (answer.command, answer.socket, answer.to) == ("CONFIG", socket, "one")
    assert answer.options == {"config_type": "JSON", "config_version": 1, "config_hash": "hash-1"}
    assert answer.header == {"frontend": "S0C01", "backend": "S0W01"}[socket]
    assert len(answer.body) == 1


@pytest.mark.requirement("R32")
@pytest.mark.requirement("R33")
@pytest.mark.requirement("R34")
def test_a_client_with_the_brokers_version_is_told_so(talk):
    answer = talk().check("one", config_version=1)
    assert (answer.command, answer.options, answer.body) == ("CONFIGACK", {"config_version": 1}, ())


@pytest.mark.parametrize("version", [0, 2, 10**6, "1", "v1"])
def test_a_client_with_another_version_is_given_the_configuration(talk, version: object):
    assert talk().check("one", config_version=version).command == "CONFIG"


@pytest.mark.requirement("R31")
def test_the_configuration_comes_in_the_type_asked_for(talk):
    for kind in ("XML", "xml"):
        answer = talk().check("one", config_type=kind)
        assert (answer.options["config_type"], answer.body) == ("XML", (b"<client/>",))


def test_who_names_no_type_takes_json(talk):
    script = talk()
    script.say("frontend", "c", "CHECKCONFIG", identity="one")
    assert script.one().options["config_type"] == "JSON"


def test_where_no_type_is_installed_who_names_none_goes_without(talk):
    script = talk(writers={})
    script.say("backend", "c", "CHECKCONFIG", identity="one")
    assert script.one().command == "CONFIGACK"


def test_a_type_that_is_not_installed_is_415_with_those_that_are(talk):
    answer = talk().check("one", config_type="ZFL")
    assert (answer.command, answer.code, answer.options["types"]) == ("ERROR", 415, ["JSON", "XML"])
    assert "JSON, XML" in answer.options["message"]


def test_an_identity_that_a_format_cannot_write_is_an_error_and_no_more(talk):
    script = talk(writers={"ZFL": unwritable})
    answer = script.check("one\ntwo", config_type="ZFL")
    assert (answer.command, answer.code) == ("ERROR", 500)
    assert "the end of a line" in answer.options["message"]


@pytest.mark.requirement("R12")
@pytest.mark.parametrize("options", [{}, {"config_version": 7}, {"config_type": "ZFL"}])
def test_a_broker_without_the_config_service_says_503_to_frontends(talk, options):
    answer = talk(config_service=False).check("one", "frontend", **options)
    assert (answer.command, answer.code) == ("ERROR", 503)


@pytest.mark.requirement("R12")
@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_a_broker_without_the_config_service_acknowledges_the_version_it_has(talk, socket: str):
    answer = talk(config_service=False).check("one", socket, config_version=1)
    assert (answer.command, answer.options) == ("CONFIGACK", {"config_version": 1})


@pytest.mark.requirement("R12")
@pytest.mark.parametrize("options", [{}, {"config_version": 7}, {"config_type": "ZFL"}])
def test_a_broker_without_the_config_service_has_workers_and_gives_them_tasks(talk, options):
    script = talk(config_service=False)
    answer = script.check("w", **options)
    assert (answer.command, answer.options, answer.body) == ("CONFIGACK", {"config_version": 1}, ())
    assert script.ready("w", "echo", config_version=1)[0].command == "READYOK"
    assert script.beat("w", config_version=1)[0].command == "HEARTBEAT"
    assert script.reply("w", script.given("c", "echo"))[0].to == "c"


@pytest.mark.requirement("R13")
def test_a_broker_alone_offers_the_config_service_in_all_types_unless_it_is_told_not_to(talk):
    assert NetworkConfig().config_service
    script = talk()
    for socket in ("frontend", "backend"):
        for kind in ("JSON", "XML"):
            answer = script.check(f"{socket}-{kind}", socket, config_type=kind)
            assert (answer.command, answer.options["config_type"], len(answer.body)) == ("CONFIG", kind, 1)
    config = json.loads(script.check("one", "frontend").body[0])
    assert (config["prefered_broker"], config["identity"]) == ("b1", "one")
    script.store.following = NetworkConfig(identity="b1", config_service=False)
    script.ask("reload_config")
    assert script.check("one", "frontend").code == 503


def test_open_addresses_that_changed_are_given_again_to_who_sends_the_hash(talk):
    script = talk()
    script.broker.set_addresses({"frontend": ("tcp://here:1",), "backend": ("tcp://here:2",), "config": ()})
    first = script.check("one").options["config_hash"]
    assert script.check("one", config_version=1, config_hash=first).command == "CONFIGACK"
    after = talk()
    after.broker.set_addresses({"frontend": ("tcp://here:1",), "backend": ("tcp://here:77",), "config": ()})
    answer = after.check("one", config_version=1, config_hash=first)
    assert (answer.command, answer.options["config_version"]) == ("CONFIG", 1)
    assert json.loads(answer.body[0])["group_config"][0]["brokers"][0]["backend"] == "tcp://here:77"
    assert after.check("one", config_version=1, config_hash=answer.options["config_hash"]).command == "CONFIGACK"
    assert after.check("one", config_version=1).command == "CONFIGACK"  # who sends none goes by the version


@pytest.mark.parametrize("value", [5, ["x"], "x" * 2000])
def test_a_hash_is_a_text(talk, value: object):
    assert talk().check("one", config_version=1, config_hash=value).code == 400


@pytest.mark.requirement("R23")
def test_the_identity_of_a_frontend_is_known_from_checkconfig_on(talk):
    script = talk()
    script.check("c", "frontend", identity="anna")
    (row,) = script.ask("list_clients").result
    assert (row["identity"], row["role"], row["tasks"]) == ("anna", "frontend", 0)
    script.sleep(50)
    script.task("c", "nothing")
    script.sleep(50)
    (row,) = script.ask("list_clients").result
    assert (row["identity"], row["tasks"]) == ("anna", 1)
    script.sleep(130)
    assert script.ask("list_clients").result == []


def test_a_worker_that_asks_at_the_frontend_first_is_listed_once(talk):
    script = talk()
    script.check("x", "frontend", identity="w", services=["echo"])
    script.join("w", "echo")
    assert [(row["identity"], row["role"]) for row in script.ask("list_clients").result] == [("w", "backend")]


def test_frontends_that_only_ask_are_bounded_and_all_get_their_configuration(talk, monkeypatch):
    monkeypatch.setattr(dispatch, "MOST_FRONTENDS", 10)
    script = talk()
    for number in range(100):
        assert script.check(f"c{number}", "frontend").command == "CONFIG"
        assert len(script.broker.dispatcher.frontends) <= 10


def test_workers_beyond_the_bound_are_turned_away_and_counted(talk, monkeypatch):
    monkeypatch.setattr(negotiation, "MOST_WORKERS", 2)
    script = talk()
    script.join("w1", "echo")
    script.join("w2", "echo")
    answer = script.check("w3")
    assert (answer.command, answer.code) == ("ERROR", 503)
    assert script.check("w2").command == "CONFIG"  # who is there stays
    assert script.ask("state").result["counts"]["crowded"] == 1
    script.say("backend", "w1", "DISCONNECT")
    assert script.check("w3").command == "CONFIG"


@pytest.mark.requirement("R57")
@pytest.mark.requirement("R78")
@pytest.mark.requirement("R80")
@pytest.mark.requirement("R84")
def test_a_client_is_given_its_part_and_nothing_else(talk):
    script = talk(**GROUPS, users=(), max_clock_skew=1234)
    config = json.loads(script.check("one", services=["echo", "convert"]).body[0])
    assert set(config) == {"identity", "services", "group_config", "prefered_broker", "default_heartbeat_interval"}
    assert (config["identity"], config["services"]) == ("one", ["echo", "convert"])


@pytest.mark.requirement("R10")
@pytest.mark.requirement("R81")
@pytest.mark.requirement("R82")
@pytest.mark.requirement("R85")
@pytest.mark.requirement("R86")
@pytest.mark.requirement("R89")
@pytest.mark.requirement("R90")
@pytest.mark.requirement("R91")
def test_a_client_learns_of_the_group_and_the_fallback_groups_with_addresses(talk):
    config = json.loads(talk(**GROUPS).check("one").body[0])
    assert config["prefered_broker"] == "b1"
    groups = {group["name"]: [broker["identity"] for broker in group["brokers"]] for group in config["group_config"]}
    assert groups == {"g1": ["b1", "b2"], "g2": ["b3"], "g3": ["b4"]}
    (b3,) = config["group_config"][1]["brokers"]
    assert (b3["services"], b3["frontend"], b3["backend"]) == (["convert"], "tcp://b3:1", "tcp://b3:2")


@pytest.mark.requirement("R86")
def test_without_groups_the_group_is_blank(talk):
    script = talk()
    script.broker.set_addresses({"frontend": ("tcp://here:1",), "backend": ("tcp://here:2",), "config": ()})
    config = json.loads(script.check("one").body[0])
    ((own,),) = (group["brokers"] for group in config["group_config"])
    assert [group["name"] for group in config["group_config"]] == [""]
    assert (own["identity"], own["frontend"], own["backend"]) == ("b1", "tcp://here:1", "tcp://here:2")


def test_addresses_that_are_written_win_over_those_that_are_open(talk):
    script = talk(**GROUPS)
    script.broker.set_addresses({"frontend": ("tcp://0.0.0.0:1",), "backend": (), "config": ("tcp://0.0.0.0:3",)})
    config = json.loads(script.check("one").body[0])
    own, other = config["group_config"][0]["brokers"]
    assert (own["frontend"], own["backend"], own["config_sub_port"]) == ("tcp://b1:1", "tcp://b1:2", "tcp://0.0.0.0:3")
    assert other["identity"] == "b2"


@pytest.mark.parametrize("identity", [None, "", 5, "x" * 256])
def test_a_client_without_a_proper_identity_is_malformed(talk, identity: object):
    script = talk()
    script.say("backend", "w", "CHECKCONFIG", identity=identity)
    answer = script.one()
    assert (answer.command, answer.code) == ("DISCONNECTERROR", 400)


# NEEDBROKER


def offered(answer) -> list[str]:
    assert answer.command == "CHANGEBROKER", answer
    return [broker["identity"] for broker in answer.options["brokers"]]


def need(script, **options):
    script.say("frontend", "c", "NEEDBROKER", **{"identity": "one", **options})
    return script.one()


@pytest.mark.requirement("R83")
@pytest.mark.requirement("R87")
@pytest.mark.requirement("R88")
def test_other_brokers_are_named_the_own_group_first_then_fallback_groups_in_their_order(talk):
    answer = need(talk(**GROUPS))
    assert offered(answer) == ["b1", "b2", "b4", "b3"]
    assert answer.options["brokers"][1] == {
        "identity": "b2", "group": "g1", "frontend": "tcp://b2:1", "backend": "tcp://b2:2"
    }  # fmt: skip
    assert answer.options["reason"]


@pytest.mark.requirement("R83")
def test_those_that_were_tried_in_vain_are_left_out(talk):
    assert offered(need(talk(**GROUPS), unreachable=["b1", "b2"])) == ["b4", "b3"]


@pytest.mark.requirement("R88")
def test_only_brokers_that_serve_what_is_wanted_are_named(talk):
    assert offered(need(talk(**GROUPS), services=["convert"], unreachable=["b1", "b2"])) == ["b3"]


def test_when_there_is_nobody_to_name_it_is_503(talk):
    for script, options in ((talk(), {}), (talk(**GROUPS), {"unreachable": ["b1", "b2", "b3", "b4"]})):
        answer = need(script, **options)
        assert (answer.command, answer.code) == ("ERROR", 503)


def test_a_group_that_is_no_fallback_is_not_offered(talk):
    script = talk(**{**GROUPS, "fallback_groups": ()})
    assert offered(need(script)) == ["b1", "b2"]


@pytest.mark.parametrize("options", [{"unreachable": "b1"}, {"services": 5}, {"unreachable": [1]}])
def test_a_malformed_need_is_malformed(talk, options):
    assert need(talk(**GROUPS), **options).code == 400


# a configuration that changes


def published(script):
    return [frames for socket, frames in script.sent if socket == "config"]


@pytest.mark.requirement("R51")
@pytest.mark.requirement("R60")
def test_a_new_configuration_gets_a_new_version_and_is_published(talk):
    script = talk(group="g1")
    script.store.following = NetworkConfig(identity="b1", group="g1", default_heartbeat_interval=5000)
    answer = script.ask("reload_config")
    assert (answer.code, answer.result["config_version"], answer.result["changed"]) == (200, 2, True)
    ((topic, header, command, options, text),) = published(script)
    assert (topic, header, command) == (b"CONFIG/g1/", b"S0P01", b"CONFIG")
    assert json.loads(options) == {
        "config_version": 2, "config_hash": "hash-2", "config_type": "JSON", "origin": "b1",
        "time": pytest.approx(script.wall),
    }  # fmt: skip
    assert json.loads(text)["default_heartbeat_interval"] == 5000
    config = script.check("one")
    assert config.options["config_version"] == 2
    assert json.loads(config.body[0])["default_heartbeat_interval"] == 5000


@pytest.mark.requirement("R60")
def test_what_is_published_is_what_every_client_may_know_and_no_more(talk):
    script = talk(**GROUPS)
    script.broker.set_addresses({"frontend": ("tcp://open:1",), "backend": (), "config": ("tcp://open:3",)})
    users = (User("ada", "scrypt-hash", "admin"),)
    script.store.following = NetworkConfig(identity="b1", **GROUPS, users=users, backend_port=6002)
    script.ask("reload_config")
    ((*_, text),) = published(script)
    given = json.loads(script.check("one", services=["echo"]).body[0])
    assert json.loads(text) == {**given, "identity": "", "services": []}
    assert b"scrypt-hash" not in text


@pytest.mark.requirement("R60")
@pytest.mark.parametrize(
    ("writers", "kind", "texts"),
    [
        ({"ZFL": lambda config: b"zfl", "XML": lambda config: b"<client/>"}, "XML", [b"<client/>"]),
        ({"ZFL": unwritable}, None, []),
        ({}, None, []),
    ],
)
def test_publications_come_in_a_type_that_is_installed_or_without_a_text(talk, writers, kind, texts):
    script = talk(writers=writers)
    script.store.following = NetworkConfig(identity="b1")
    script.ask("reload_config")
    ((_, _, _, options, *found),) = published(script)
    assert (json.loads(options).get("config_type"), found) == (kind, texts)


@pytest.mark.requirement("R12")
@pytest.mark.requirement("R60")
def test_a_broker_without_the_config_service_publishes_nothing(talk):
    script = talk(config_service=False)
    script.store.following = NetworkConfig(identity="b1", config_service=False, liveness=9)
    assert reloaded(script) == (2, True)
    assert published(script) == []


def test_a_configuration_that_is_the_same_stays_the_same_version(talk):
    script = talk()
    assert reloaded(script) == (1, False)
    assert published(script) == []


def test_a_configuration_that_cannot_be_read_is_told_and_changes_nothing(talk):
    script = talk()
    script.store.error = ValueError("line 3: not a number")
    answer = script.ask("reload_config")
    assert answer.code == 500
    assert "line 3" in answer.options["message"]
    assert script.broker.running.version == 1


def test_a_broker_that_publishes_nowhere_reloads_all_the_same(talk):
    script = talk(sockets=NetworkSockets(("ipc:///tmp/f",), ("ipc:///tmp/b",), (), ("ipc:///tmp/m",)))
    script.store.following = NetworkConfig(identity="b1")
    script.ask("reload_config")
    assert script.broker.running.version == 2


@pytest.mark.requirement("R15")
@pytest.mark.requirement("R47")
def test_workers_are_made_to_take_the_new_configuration_by_their_heartbeats(talk):
    script = talk()
    script.join("w", "echo", config_version=1)
    script.store.following = NetworkConfig(identity="b1", services=("other",))
    script.ask("reload_config")
    (told,) = script.beat("w", config_version=1)
    assert (told.command, told.code) == ("FORCENEGOTIATE", 426)
    assert script.check("w", config_version=1).command == "CONFIG"
    (accepted,) = script.ready("w", "echo", config_version=2)
    assert (accepted.command, accepted.options["refused"]) == ("READYOK", ["echo"])
    assert script.task("c", "echo")[0].code == 503


def test_new_limits_hold_from_the_next_message_on_and_offences_are_not_forgotten(talk):
    script = talk(error_client_threshold=2)
    script.feed("frontend", "c", "nonsense", "x")
    script.store.following = NetworkConfig(identity="b1", error_client_threshold=2, client_limit=1)
    script.ask("reload_config")
    script.feed("frontend", "c", "nonsense", "x")
    assert [row["connection"] for row in script.ask("list_error_clients").result] == [f"frontend/{b'c'.hex()}"]
    script.join("w", "echo")
    script.given("d", "echo", "1")
    assert script.task("d", "echo", "2")[0].code == 429


def test_the_own_group_stays_whole_after_a_reload(talk):
    script = talk(**GROUPS)
    script.broker.set_addresses({"frontend": ("tcp://open:1",), "backend": (), "config": ()})
    script.store.following = NetworkConfig(identity="b1", group="g2", group_config=GROUPS["group_config"])
    script.ask("reload_config")
    config = json.loads(script.check("one").body[0])
    groups = {group["name"]: [broker["identity"] for broker in group["brokers"]] for group in config["group_config"]}
    assert groups == {"g2": ["b1", "b3"], "g1": ["b1", "b2"], "g3": ["b4"]}
