"""A client's dialog with its broker on virtual time: configuration, liveness, other brokers."""

from __future__ import annotations

import json
from random import Random

import attrs
import pytest

from scale0_core.client.frontend import ClientSession
from scale0_core.client.kit.calls import Call
from scale0_core.client.kit.errors import BrokerLostError, ClosedError
from scale0_core.client.kit.route import Place, Route, seen_from, target
from scale0_core.client.storage import Stored
from scale0_core.config.network import ClientConfig, GroupBroker, GroupConfig
from scale0_core.protocol import messages as wire

HERE, OTHER, THIRD = "tcp://10.0.0.1:5000", "tcp://10.0.0.2:5000", "tcp://10.0.0.3:5000"

ALONE = ClientConfig(
    identity="me",
    group_config=(GroupConfig("", (GroupBroker("one", frontend=HERE),)),),
    prefered_broker="one",
    default_heartbeat_interval=1000,
)
SEVERAL = attrs.evolve(
    ALONE,
    group_config=(
        GroupConfig("own", (GroupBroker("one", frontend=HERE), GroupBroker("two", frontend=OTHER))),
        GroupConfig("fallback", (GroupBroker("three", frontend=THIRD),)),
    ),
)


class Outcome:
    def __init__(self) -> None:
        self.replies, self.errors = [], []

    def final(self, reply) -> None:
        self.replies.append(reply)

    def fail(self, error) -> None:
        self.errors.append(error)


class Desk:
    def __init__(self, stored: Stored | None = None, **options) -> None:
        self.kept: list[Stored] = []
        self.frontend = ClientSession(
            Route(Place(HERE)), identity="me", stored=stored, random=Random(1), store=self.kept.append, **options
        )
        self.now = 50.0
        self.frontend.start(self.now)

    def link(self) -> list:
        self.frontend.on_linked(self.now)
        return self.sent()

    def sent(self) -> list:
        taken, self.frontend.out[:] = [read(frames) for frames in self.frontend.out], []
        return taken

    def hear(self, command: bytes, *body: bytes, **options) -> list:
        self.frontend.receive((b"S0C01", command, wire.write_options(options), *body), self.now)
        return self.sent()

    def sleep(self, seconds: float) -> list:
        end = self.now + seconds
        while (due := self.frontend.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.frontend.on_deadline(self.now)
        self.now = end
        return self.sent()

    def open(self, **options) -> Outcome:
        outcome = Outcome()
        self.frontend.open(Call("echo", (b"x",), outcome, **{"timeout": 60.0, **options}), self.now)
        return outcome


def read(frames) -> tuple[str, dict, tuple]:
    message = wire.read_message(frames, routed=False)
    assert message.header == b"S0C01"
    return message.command.decode(), dict(message.options), message.body


def text(config: ClientConfig) -> bytes:
    return json.dumps({"client": attrs.asdict(config)}).encode()


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R30")
@pytest.mark.requirement("R78")
def test_a_connection_begins_with_checking_the_configuration():
    desk = Desk()
    desk.open()
    assert desk.sent() == []
    check, task = desk.link()
    assert check == ("CHECKCONFIG", {"identity": "me", "services": [], "config_type": "JSON"}, ())
    assert task[0] == "TASK"


@pytest.mark.requirement("R33")
def test_the_version_is_sent_when_there_is_one():
    desk = Desk(Stored(7, ALONE))
    ((_, options, _),) = desk.link()
    assert options["config_version"] == 7


@pytest.mark.requirement("R77")
def test_what_the_broker_gives_is_stored():
    desk = Desk()
    desk.link()
    desk.hear(wire.CONFIG, text(ALONE), config_type="JSON", config_version=3, config_hash="abc")
    assert desk.kept == [Stored(3, ALONE, "abc")]
    desk.frontend.on_unlinked(desk.now)
    ((_, options, _),) = desk.link()
    assert (options["config_version"], options["config_hash"]) == (3, "abc")


def test_an_acknowledged_version_is_not_stored_again():
    desk = Desk(Stored(7, ALONE))
    desk.link()
    desk.hear(wire.CONFIGACK, config_version=7)
    assert desk.kept == []
    assert desk.frontend.stored == Stored(7, ALONE)


def test_force_negotiate_starts_it_again():
    desk = Desk()
    desk.link()
    assert desk.hear(wire.FORCENEGOTIATE, code=426)[0][0] == "CHECKCONFIG"


@pytest.mark.requirement("R31")
def test_a_type_that_is_not_offered_is_left_out_or_replaced():
    desk = Desk(config_type="ZFL")
    desk.link()
    ((command, options, _),) = desk.hear(wire.ERROR, code=415, message="no", types=["JSON", "STONE"])
    assert (command, options["config_type"]) == ("CHECKCONFIG", "JSON")
    ((command, options, _),) = desk.hear(wire.ERROR, code=415, message="no", types=["STONE"])
    assert command == "CHECKCONFIG"
    assert "config_type" not in options
    assert desk.hear(wire.ERROR, code=415, message="no", types=[]) == []


@pytest.mark.parametrize("config", [b"", b"{", b'{"client": 3}', b'{"client": {"what": 1}}', b"\xff"])
def test_a_configuration_that_cannot_be_read_is_no_reason_to_stop(config: bytes):
    desk = Desk(Stored(1, ALONE))
    desk.link()
    desk.hear(wire.CONFIG, config, config_type="JSON", config_version=2)
    assert desk.frontend.stored is not None
    assert desk.frontend.stored.version == 2
    assert desk.frontend.route.config == ALONE


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (b"",),
        (b"S0C01",),
        (b"X", b"Y", b""),
        (b"S0C01", b"ERROR", b"{"),
        (b"S0C01", b"TASKREPLY", b"[]", b"s", b"n"),
    ],
)
def test_nonsense_from_the_broker_is_counted(frames):
    desk = Desk()
    desk.link()
    desk.open()
    desk.frontend.receive(frames, desk.now)
    assert desk.frontend.malformed in (0, 1)
    assert len(desk.frontend.calls) == 1


# --- liveness ---------------------------------------------------------------------------------------------------------


def test_a_quiet_broker_is_asked_whether_it_is_there():
    desk = Desk()
    desk.link()
    assert desk.sleep(30.0) == []  # nobody waits for anything
    desk.open()
    desk.sent()
    assert [command for command, _, _ in desk.sleep(1.5)] == ["PING"]
    assert desk.hear(wire.PONG) == []
    assert not desk.frontend.silent
    assert [command for command, _, _ in desk.sleep(1.5)] == ["PING"]


def test_a_broker_that_answers_no_ping_is_silent_and_gets_repeatable_calls_again_when_it_speaks():
    desk = Desk(Stored(1, ALONE))
    desk.link()
    desk.open(retry=True)
    desk.open()
    desk.sleep(5.0)
    assert desk.frontend.silent
    desk.hear(wire.PONG)
    assert not desk.frontend.silent
    assert [command for command, _, _ in desk.sleep(0.6)] == ["TASK"]


def test_a_lost_connection_to_the_only_broker_is_waited_for():
    desk = Desk(Stored(1, ALONE))
    desk.link()
    once, again = desk.open(), desk.open(retry=True)
    desk.sent()
    desk.frontend.on_unlinked(desk.now)
    assert isinstance(once.errors[0], BrokerLostError)
    desk.sleep(20.0)
    assert desk.frontend.connection == 1
    assert [command for command, _, _ in desk.link()] == ["CHECKCONFIG", "TASK"]
    assert not again.errors


# --- other brokers ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R82")
@pytest.mark.requirement("R83")
def test_when_the_preferred_broker_is_unreachable_another_is_asked():
    desk = Desk(Stored(1, SEVERAL))
    assert desk.frontend.address == HERE
    outcome = desk.open(retry=True)
    desk.sleep(3.0)
    assert desk.frontend.address == OTHER
    ((command, options, _),) = desk.link()
    assert command == "NEEDBROKER"
    assert (options["identity"], options["group"], options["unreachable"]) == ("me", "own", ["one"])
    desk.hear(wire.CHANGEBROKER, brokers=[{"identity": "three", "group": "fallback", "frontend": THIRD, "backend": ""}])
    assert desk.frontend.address == THIRD
    assert desk.frontend.connection == 3
    check, task = desk.link()
    assert (check[0], task[0]) == ("CHECKCONFIG", "TASK")
    desk.hear(wire.TASKREPLY, b"echo", task[2][1], b"done")
    assert outcome.replies == [(b"done",)]


def test_a_broker_that_offers_itself_is_stayed_with():
    desk = Desk(Stored(1, SEVERAL))
    desk.open(retry=True)
    desk.sleep(3.0)
    desk.link()
    sent = desk.hear(wire.CHANGEBROKER, brokers=[{"identity": "two", "group": "own", "frontend": OTHER, "backend": ""}])
    assert [command for command, _, _ in sent] == ["CHECKCONFIG", "TASK"]


def test_when_nobody_helps_it_goes_back_to_the_first():
    desk = Desk(Stored(1, SEVERAL))
    desk.open(retry=True)
    desk.sleep(3.0)
    desk.link()
    desk.hear(wire.ERROR, code=503, message="no broker is known that could help")
    assert desk.frontend.address == THIRD
    desk.sleep(3.0)
    assert desk.frontend.address == HERE
    desk.sleep(3.0)
    assert desk.frontend.address == OTHER


def test_a_silent_broker_is_left_for_another():
    desk = Desk(Stored(1, SEVERAL))
    desk.link()
    once = desk.open()
    desk.sleep(5.0)
    assert desk.frontend.address == OTHER
    assert isinstance(once.errors[0], BrokerLostError)


@pytest.mark.requirement("R88")
def test_a_broker_may_send_its_clients_elsewhere():
    desk = Desk(Stored(1, SEVERAL))
    desk.link()
    desk.hear(wire.CHANGEBROKER, brokers=[{"identity": "two", "group": "own", "frontend": OTHER, "backend": ""}])
    assert desk.frontend.address == OTHER
    desk.link()
    desk.frontend.on_unlinked(desk.now)
    assert desk.frontend.address == HERE  # the preferred one is tried first again


@pytest.mark.parametrize("brokers", [[], None, "x", [1], [{}], [{"frontend": 3}], [{"frontend": ""}]])
def test_being_sent_nowhere_changes_nothing(brokers):
    desk = Desk(Stored(1, SEVERAL))
    desk.link()
    desk.hear(wire.CHANGEBROKER, brokers=brokers)
    assert desk.frontend.address == HERE


def test_closing_takes_leave():
    desk = Desk()
    desk.link()
    outcome = desk.open()
    desk.sent()
    desk.frontend.stop(desk.now)
    assert isinstance(outcome.errors[0], ClosedError)
    assert [command for command, _, _ in desk.sent()] == ["DISCONNECT"]


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R10")
def test_a_broker_is_known_by_its_name_or_one_address():
    assert target("tcp://x:1", "scale0", "frontend") == "tcp://x:1"
    assert target("default", "scale0", "frontend") == "scale0/frontend@default"
    assert target(["a", "ipc:///x"], "zpipes", "pipes") == "zpipes/pipes@a | ipc:///x"
    for none in ("/run/x", "", "a b", "../x", ["a", ""], []):
        with pytest.raises(ValueError, match="a broker is given by its name or by an address"):
            target(none, "scale0", "frontend")


@pytest.mark.parametrize(
    ("told", "address", "seen"),
    [
        ("tcp://broker:1", "tcp://0.0.0.0:2", "tcp://broker:2"),
        ("tcp://[::1]:1", "tcp://[::]:2", "tcp://[::1]:2"),
        ("ipc:///x", "tcp://0.0.0.0:2", "tcp://127.0.0.1:2"),
        ("tcp://broker:1", "tcp://10.0.0.7:2", "tcp://10.0.0.7:2"),
        ("tcp://broker:1", "ipc:///y", "ipc:///y"),
        ("tcp://broker:1", "tcp://[bad", "tcp://[bad"),
    ],
)
def test_an_address_of_every_interface_is_that_under_which_the_broker_was_reached(told: str, address: str, seen: str):
    assert seen_from(told, address) == seen


def test_the_backend_is_found_in_the_configuration_or_beside_the_frontend():
    config = attrs.evolve(
        ALONE, group_config=(GroupConfig("", (GroupBroker("one", frontend=HERE, backend="tcp://10.0.0.1:5001"),)),)
    )
    assert Route(Place(HERE), config).backend() == "tcp://10.0.0.1:5001"
    assert Route(Place(HERE, "tcp://elsewhere:1"), config).backend() == "tcp://elsewhere:1"
    assert Route(Place("ipc:///run/b/frontend")).backend() == "scale0/backend@ipc:///run/b/frontend"
    assert Route(Place("scale0/frontend@a | ipc:///b")).backend() == "scale0/backend@a | scale0/backend@ipc:///b"
    assert Route(Place(HERE)).backend() == ""
