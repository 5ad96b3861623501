"""The music broker on virtual time: what it answers servers and clients."""

from __future__ import annotations

import json

import pytest

from scale0_core.api import BrokerContext, SocketKind
from scale0_core.testing import Script, check_service
from scale0_musicquest.broker.plugin import MusicBrokerPlugin
from scale0_musicquest.broker.settings import MusicBrokerSettings
from scale0_musicquest.service.broker.service import MusicBroker

PEERS = pytest.mark.parametrize("head", [(), ("",)], ids=["DEALER", "REQ"])


class Broker(Script):
    """A script with the words of servers and clients."""

    def __init__(self, **settings):
        super().__init__(MusicBroker(MusicBrokerSettings(**settings)))

    def ask(self, socket, *frames, head=()):
        """Ask one question and give its one answer, which comes back the way the question came."""
        self.feed(socket, "peer", *head, *frames)
        ((answered, answer),) = self._unexpected
        self._unexpected.clear()
        assert answered == socket
        envelope = (b"peer", *(part.encode() for part in head))
        assert answer[: len(envelope)] == envelope
        return list(answer[len(envelope) :])

    def announce(self, ident, **fields):
        told = {"id": ident, "children_endpoint": f"tcp://{ident}:4444", "slots": 2, "wants_father": True, **fields}
        ok, answer = self.ask("servers", f"tcp://{ident}:5556", json.dumps(told))
        assert ok == b"OK"
        return json.loads(answer)

    def hello(self, *avoid):
        frames = self.ask("clients", "ZMQ01", "hello", "tag", json.dumps({"avoid": list(avoid)}))
        assert (frames[0], frames[2]) == (b"ZMQ01", b"tag")
        return frames[1].decode(), json.loads(frames[3])

    def servers(self, **options):
        frames = self.ask("clients", "ZMQ01", "servers", "tag", json.dumps(options))
        assert frames[:3] == [b"ZMQ01", b"servers", b"tag"]
        return json.loads(frames[3])

    def counts(self):
        return {row["id"]: row["clients"] for row in self.servers()}


# --- the original's words ---------------------------------------------------------------------------------------------


@PEERS
@pytest.mark.requirement("M3")
@pytest.mark.requirement("M12")
@pytest.mark.requirement("M14")
@pytest.mark.requirement("M15")
def test_the_original_conversation(head):
    broker = Broker()
    assert broker.ask("clients", "hello", head=head) == [b"bye"]
    assert broker.ask("servers", "tcp://localhost:5556", head=head) == [b"OK"]
    assert broker.ask("clients", "hello", head=head) == [b"hello", b"tcp://localhost:5556"]
    assert broker.ask("servers", "bye", "tcp://localhost:5556", head=head) == [b"OK"]
    assert broker.ask("clients", "hello", head=head) == [b"bye"]


@pytest.mark.requirement("M10")
def test_original_servers_are_kept_though_they_say_nothing_more_and_get_clients_in_turn():
    broker = Broker()
    for number in (1, 2, 3):
        broker.ask("servers", f"tcp://h:{number}")
    broker.sleep(3600.0)
    given = [broker.ask("clients", "hello")[1] for _ in range(6)]
    assert given == [b"tcp://h:1", b"tcp://h:2", b"tcp://h:3"] * 2
    broker.sleep(86400.0)
    assert broker.ask("clients", "hello") == [b"bye"]


# --- registration -----------------------------------------------------------------------------------------------------


@PEERS
@pytest.mark.requirement("M14")
@pytest.mark.requirement("M26")
def test_a_server_reports_and_is_told_its_lease_and_its_place(head):
    broker = Broker(lease=4.0)
    first = {"id": "a", "children_endpoint": "tcp://h:4444", "slots": 1, "capacity": 50, "songs": 7, "clients": 3}
    ok, answer = broker.ask("servers", "tcp://h:5556", json.dumps(first), head=head)
    assert (ok, json.loads(answer)) == (b"OK", {"lease_ms": 4000, "father": None, "root": "a"})
    assert broker.announce("b")["father"] == {"id": "a", "children_endpoint": "tcp://h:4444"}
    assert broker.servers() == [
        {
            "id": "a", "endpoint": "tcp://h:5556", "children_endpoint": "tcp://h:4444", "father": "", "clients": 3,
            "capacity": 50, "songs": 7, "root": True,
        },
        {
            "id": "b", "endpoint": "tcp://b:5556", "children_endpoint": "tcp://b:4444", "father": "a", "clients": 0,
            "capacity": 100, "songs": 0, "root": False,
        },
    ]  # fmt: skip
    assert [row["id"] for row in broker.servers(offset=1, limit=5)] == ["b"]


@pytest.mark.requirement("M10")
def test_a_silent_server_is_forgotten_and_one_that_reports_is_not():
    broker = Broker(lease=9.0)
    broker.announce("a")
    broker.announce("b")
    for _ in range(4):
        broker.sleep(3.0)
        broker.announce("b")
    assert [row["id"] for row in broker.servers()] == ["b"]
    assert broker.hello() == ("hello", {"id": "b", "endpoint": "tcp://b:5556"})
    broker.sleep(8.9)
    assert broker.hello()[0] == "hello"
    broker.sleep(0.2)
    assert broker.hello()[0] == "bye"
    broker.expect_nothing()
    assert broker.service.next_deadline() is None


def test_a_server_that_leaves_is_known_no_more():
    broker = Broker()
    broker.announce("a")
    assert broker.ask("servers", "bye", "tcp://a:5556", '{"id": "other"}') == [b"OK"]
    assert broker.hello()[0] == "hello"
    assert broker.ask("servers", "bye", "tcp://a:5556", '{"id": "a"}') == [b"OK"]
    assert broker.hello()[0] == "bye"
    assert broker.ask("servers", "bye", "tcp://a:5556") == [b"OK"], "once more does no harm"


@pytest.mark.requirement("M35")
@pytest.mark.requirement("M41")
def test_the_root_dies_and_the_broker_has_one_other():
    broker = Broker()
    for ident in "abcd":
        broker.announce(ident)
    broker.sleep(3.0)
    for ident, father in (("b", "a"), ("c", "a"), ("d", "b")):
        broker.announce(ident, father=father)
    broker.sleep(2.0)  # a says nothing more
    told = [broker.announce(ident, lost=["a"], father="") for ident in "cb"]
    assert [answer["root"] for answer in told] == ["c", "c"]
    assert [answer["father"] for answer in told] == [None, {"id": "c", "children_endpoint": "tcp://c:4444"}]
    assert broker.announce("d", father="b")["father"]["id"] == "b", "what works stays"
    assert broker.announce("z", wants_father=False)["root"] == "z"
    assert sorted(row["id"] for row in broker.servers() if row["root"]) == ["c", "z"]


@pytest.mark.requirement("M40")
def test_when_no_server_has_room_a_newcomer_is_told_why():
    broker = Broker()
    broker.announce("a", slots=1)
    broker.announce("b", slots=0)
    answer = broker.announce("c", slots=0)
    assert answer == {"lease_ms": 10000, "father": None, "root": "a", "refused": "no server has a free slot"}
    assert broker.announce("d", slots=2)["root"] == "d"
    assert broker.announce("a", slots=1)["father"]["id"] == "d"
    assert broker.announce("c", slots=0)["father"]["id"] == "d", "there is room now"


def test_after_a_restart_a_child_that_is_first_is_told_to_keep_its_father():
    broker = Broker()
    answer = broker.announce("c", father="b", path=["b", "a"], father_endpoint="tcp://b:4444")
    assert (answer["father"], answer["root"]) == ({"id": "b", "children_endpoint": "tcp://b:4444"}, "a")
    assert broker.announce("a", children=["b"])["root"] == "a"
    assert broker.announce("b", father="a", path=["a"], children=["c"])["father"]["id"] == "a"
    broker.sleep(11.0)
    assert broker.servers() == []


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M11")
@pytest.mark.requirement("M13")
def test_clients_go_where_the_fewest_are_for_the_capacity():
    broker = Broker()
    broker.announce("small", capacity=10, clients=2)
    broker.announce("large", capacity=100, clients=10)
    given = [broker.hello()[1]["id"] for _ in range(20)]
    assert given.count("large") == 19
    assert broker.counts() == {"small": 3, "large": 29}
    assert given.index("small") == 10, "ten of a hundred more, and then both are equal: small had none longest"


@pytest.mark.requirement("M11")
@pytest.mark.requirement("M37")
def test_clients_are_counted_on_and_off():
    broker = Broker()
    broker.announce("a", clients=0)
    for _ in range(3):
        broker.hello()
    assert broker.counts() == {"a": 3}, "assigned since its report"
    broker.announce("a", clients=3)
    assert broker.counts() == {"a": 3}, "now it has them"
    broker.announce("a", clients=1)
    assert broker.counts() == {"a": 1}, "two have left"
    broker.announce("b", clients=0)
    assert broker.hello()[1]["id"] == "b"
    broker.announce("a", clients=0)
    assert broker.hello()[1]["id"] == "a", "the last one has left"


@pytest.mark.requirement("M37")
@pytest.mark.parametrize("question", [("hello",), ("ZMQ01", "hello", "t")], ids=["original", "extended"])
def test_a_client_that_was_gone_before_its_answer_is_counted_off(question):
    broker = Broker()
    broker.announce("a")
    broker.refuse("clients", "gone")
    broker.feed("clients", "gone", *question)
    assert broker.counts() == {"a": 0}


def test_servers_to_avoid_are_not_given_and_stay_in_turn():
    broker = Broker()
    broker.announce("a")
    broker.announce("b", clients=5)
    assert broker.hello("tcp://a:5556")[1]["id"] == "b"
    assert broker.hello("tcp://elsewhere:1")[1]["id"] == "a"
    word, told = broker.hello("tcp://a:5556", "tcp://b:5556")
    assert (word, told) == ("bye", {"retry_ms": 1000})


def test_a_server_without_capacity_is_drained():
    broker = Broker()
    broker.announce("a", capacity=0)
    assert broker.hello()[0] == "bye"
    broker.announce("b", clients=1000)
    assert {broker.hello()[1]["id"] for _ in range(3)} == {"b"}
    broker.announce("a", capacity=1)
    assert broker.hello()[1]["id"] == "a"


def test_the_hint_when_to_ask_again_grows_while_there_is_no_server():
    broker = Broker()
    pauses = []
    for _ in range(7):
        word, told = broker.hello()
        assert word == "bye"
        pauses.append(told["retry_ms"])
        broker.sleep(told["retry_ms"] / 1000)
    assert pauses == [1000, 1000, 2000, 4000, 8000, 16000, 30000]
    broker.announce("a")
    assert broker.hello()[0] == "hello"
    broker.ask("servers", "bye", "tcp://a:5556")
    assert broker.hello() == ("bye", {"retry_ms": 1000})


# --- what is not understood -------------------------------------------------------------------------------------------

HOSTILE_SERVERS = [
    (), ("",), ("x",), ("hello",), ("http://h:1",), ("tcp://h:1 2",), ("tcp://h:1", "{"), ("tcp://h:1", "[]"),
    ("tcp://h:1", "{}"), ("tcp://h:1", '{"id": ""}'), ("tcp://h:1", '{"id": "a", "slots": -1}'),
    ("tcp://h:1", '{"id": "a", "children": "x"}'), ("tcp://h:1", '{"id": "a", "clients": 1e99}'),
    ("tcp://h:1", '{"id": "a"}', "more"), ("tcp://" + "h" * 300,), (b"tcp://\xff",), ("bye",), ("bye", "x"),
    ("bye", "tcp://h:1", "{}"), ("bye", "tcp://h:1", '{"id": "a"}', "more"), ("tcp://h:1", "[" * 5000),
]  # fmt: skip
HOSTILE_CLIENTS = [
    (), ("",), ("x",), ("bye",), ("hello", "more"), ("HELLO",), ("x" * 1000,), ("search", "uuid", "song"),
]  # fmt: skip
HOSTILE_EXTENDED = [
    (), ("x",), ("x", "t"), ("hello", "t", "{"), ("hello", "t", "[]"), ("hello", "t", '{"avoid": 5}'),
    ("hello", "t", '{"avoid": [5]}'), ("hello", "t", "{}", "{}"), ("servers", "t", '{"limit": -1}'),
    ("servers", "t", '{"limit": 5000}'), ("bye", "t"), ("hello", "t" * 65),
]  # fmt: skip


@PEERS
@pytest.mark.parametrize(
    ("socket", "frames"), [("servers", f) for f in HOSTILE_SERVERS] + [("clients", f) for f in HOSTILE_CLIENTS]
)
def test_hostile_messages_get_an_error_in_the_original_form(socket, frames, head):
    broker = Broker()
    answer = broker.ask(socket, *frames, head=head) if frames != ("",) or head else broker.ask(socket, head=("",))
    assert answer[0] == b"ERROR"
    assert len(answer) == 2
    assert answer[1]
    assert len(broker.service.table) == 0


@PEERS
@pytest.mark.parametrize("frames", HOSTILE_EXTENDED)
def test_hostile_messages_get_an_error_in_the_extended_form(frames, head):
    broker = Broker()
    answer = broker.ask("clients", "ZMQ01", *frames, head=head)
    tag = frames[1].encode() if len(frames) > 1 and len(frames[1]) <= 64 else b""
    assert answer[:4] == [b"ZMQ01", b"ERROR", tag, b"400"]
    assert answer[4]
    assert broker.ask("servers", "ZMQ01", "hello", "t", head=head)[:4] == [b"ZMQ01", b"ERROR", b"t", b"400"]


def test_the_table_is_bounded():
    broker = Broker(max_servers=3)
    for ident in "abc":
        broker.announce(ident)
    assert broker.ask("servers", "tcp://d:5556", '{"id": "d"}') == [b"ERROR", b"there are 3 servers already"]
    broker.announce("a")
    broker.sleep(9.0)
    broker.announce("a")
    broker.sleep(2.0)
    broker.announce("d")
    assert [row["id"] for row in broker.servers()] == ["a", "d"]


def test_a_full_table_of_long_names_fits_in_an_answer():
    broker = Broker()
    for number in range(1000):
        ident = f"{number:064}"
        report = {"id": ident, "children_endpoint": "tcp://" + "c" * 294, "father": ident[::-1], "wants_father": False}
        broker.ask("servers", f"tcp://{number:0294}", json.dumps(report))
    broker.feed("clients", "peer", "ZMQ01", "servers", "")
    ((_, answer),) = broker._unexpected
    assert len(json.loads(answer[-1])) == 1000
    assert len(answer[-1]) < 1024 * 1024


SAMPLES = [
    ("servers", ("p", "tcp://h:1")),
    ("servers", ("p", "", "tcp://h:2", json.dumps({"id": "a", "children_endpoint": "tcp://h:3", "slots": 2}))),
    ("servers", ("p", "", "tcp://h:4", json.dumps({"id": "b", "father": "a", "path": ["a"], "lost": ["c"]}))),
    ("servers", ("p", "tcp://h:5", json.dumps({"id": "c", "children": ["b"], "lost": ["a"], "sequence": 3}))),
    ("servers", ("p", "bye", "tcp://h:2")),
    ("clients", ("p", "hello")),
    ("clients", ("p", "", "ZMQ01", "hello", "tag", '{"avoid": ["tcp://h:1"]}')),
    ("clients", ("p", "ZMQ01", "servers", "tag")),
]


@pytest.mark.seeds(4)
def test_keeps_the_contract_of_services_and_answers_all(seed):
    report = check_service(MusicBroker, samples=SAMPLES, seed=seed)
    assert report.sends + report.undelivered == report.messages, "nothing is met with silence"
    check_service(lambda: MusicBroker(MusicBrokerSettings(lease=0.1, max_servers=2)), samples=SAMPLES, seed=seed)


# --- settings and plugin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", 0), ("original_lease", -1), ("original_stay", 0), ("retry_least", 0), ("retry_most", 0),
        ("max_servers", 0), ("max_message", 0),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        MusicBrokerSettings(**{name: value})


@pytest.mark.requirement("M16")
@pytest.mark.requirement("M17")
def test_the_plugin_has_two_sockets():
    info = MusicBrokerPlugin().scale0_plugin_info()
    assert (info.settings, info.safe_by_default) == (MusicBrokerSettings, False)
    context = BrokerContext(name="n", runtime_dir="/run/x", data_dir="/data")
    (service,) = MusicBrokerPlugin().scale0_services(MusicBrokerSettings(), context)
    binds = {name: (endpoint.kind, endpoint.bind) for name, endpoint in service.endpoints.items()}
    assert binds == {
        "servers": (SocketKind.ROUTER, ("tcp://127.0.0.1:6668",)),
        "clients": (SocketKind.ROUTER, ("tcp://127.0.0.1:6667",)),
    }
    settings = MusicBrokerSettings(bind_clients=("ipc://{runtime}/{name}",))
    (service,) = MusicBrokerPlugin().scale0_services(settings, context)
    assert service.endpoints["clients"].bind == ("ipc:///run/x/n",)
