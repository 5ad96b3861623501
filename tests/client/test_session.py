"""A worker's life on virtual time: negotiation, heartbeats, silence, other brokers, leaving."""

from __future__ import annotations

import json
from random import Random

import attrs
import pytest

from scale0_core.client.kit.route import Place, Route
from scale0_core.client.session import OVERTIME, WORKER, Task, WorkerSession, WorkerState
from scale0_core.client.storage import Stored
from scale0_core.config.network import ClientConfig, GroupBroker, GroupConfig
from scale0_core.protocol import messages as wire
from scale0_core.protocol.states import draw

HERE, BACK = "tcp://10.0.0.1:5000", "tcp://10.0.0.1:5001"
OTHER, OTHER_BACK = "tcp://10.0.0.2:5000", "tcp://10.0.0.2:5001"

ALONE = ClientConfig(
    identity="me",
    group_config=(GroupConfig("", (GroupBroker("one", frontend=HERE, backend=BACK),)),),
    prefered_broker="one",
)
TWO = attrs.evolve(
    ALONE,
    group_config=(
        GroupConfig(
            "own",
            (
                GroupBroker("one", frontend=HERE, backend=BACK),
                GroupBroker("two", frontend=OTHER, backend=OTHER_BACK),
            ),
        ),
    ),
)


class Desk:
    def __init__(self, stored: Stored | None = None, place: Place = Place(HERE), **options) -> None:  # noqa: B008
        self.kept: list[Stored] = []
        self.tasks: list[Task] = []
        self.session = WorkerSession(
            Route(place), identity="me", begin=self.tasks.append, wall_time=lambda: 1e9 + self.now, stored=stored,
            random=Random(1), store=self.kept.append, **{"interval": 1.0, **options},
        )  # fmt: skip
        self.now = 50.0
        self.session.offer(["echo"], self.now)
        self.session.start(self.now)

    @property
    def state(self) -> WorkerState:
        return self.session.state

    def link(self) -> list:
        self.session.on_linked(self.now)
        return self.sent()

    def unlink(self) -> None:
        self.session.on_unlinked(self.now)

    def sent(self) -> list:
        taken, self.session.out[:] = [wire.read_message(frames, routed=False) for frames in self.session.out], []
        return taken

    def commands(self) -> list[str]:
        return [message.command.decode() for message in self.sent()]

    def hear(self, command: bytes, *body: bytes, header: bytes = b"S0W01", **options) -> list[str]:
        self.session.receive((header, command, wire.write_options(options), *body), self.now)
        return self.commands()

    def sleep(self, seconds: float, *, answered: bool = False) -> list[str]:
        end, commands = self.now + seconds, []
        while (due := self.session.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.session.on_deadline(self.now)
            new = self.commands()
            commands += new
            if answered and "HEARTBEAT" in new:
                self.hear(wire.HEARTBEAT, reply_to=1)
        self.now = end
        return commands

    def config(self, config: ClientConfig = ALONE, version: int = 1) -> list[str]:
        text = json.dumps({"client": attrs.asdict(config)}).encode()
        return self.hear(wire.CONFIG, text, config_type="JSON", config_version=version, config_hash="h")

    def serve(self, config: ClientConfig = ALONE) -> Desk:
        self.link()
        self.config(config)
        self.link()
        self.hear(wire.CONFIGACK, config_version=1)
        self.hear(wire.READYOK, hbeatinterval=1000, liveness=3, config_version=1)
        assert self.state is WorkerState.SERVING
        return self

    def task(self, number: bytes = b"n1") -> Task:
        self.hear(wire.TASK, b"echo", number, b"x")
        return self.tasks[-1]

    def answer(self, task: Task, frames: tuple = (b"y",)) -> list[str]:
        self.session.reply(task, b"", frames, self.now)
        self.session.finish(task, self.now)
        return self.commands()


# --- coming -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R10")
@pytest.mark.requirement("R11")
@pytest.mark.requirement("R78")
def test_from_one_address_to_serving():
    desk = Desk(window=4, metadata={"version": "1.2"})
    assert (desk.session.address, desk.state) == (HERE, WorkerState.LOCATING)
    (check,) = desk.link()
    assert (check.header, check.command) == (b"S0C01", b"CHECKCONFIG")
    assert check.options == {"identity": "me", "services": ["echo"], "config_type": "JSON"}
    assert desk.config() == []
    assert (desk.session.address, desk.state) == (BACK, WorkerState.CHECKING)
    assert desk.kept[0].version == 1
    (check,) = desk.link()
    assert (check.header, check.command) == (b"S0W01", b"CHECKCONFIG")
    assert check.options["config_version"] == 1
    desk.session.receive((b"S0W01", b"CONFIGACK", b'{"config_version":1}'), desk.now)
    (ready,) = desk.sent()
    assert (ready.header, ready.command) == (b"S0W01", b"READY")
    assert ready.options == {
        "services": ["echo"], "heartbeat": True, "hbeatinterval": 1000, "time": 1e9 + 50, "config_version": 1,
        "window": 4, "metadata": {"version": "1.2"}, "cancel": True,
    }  # fmt: skip
    desk.hear(wire.READYOK, hbeatinterval=2000, liveness=5)
    assert (desk.state, desk.session.granted, desk.session.liveness) == (WorkerState.SERVING, 2.0, 5)


@pytest.mark.requirement("R33")
def test_a_stored_version_is_sent():
    (check,) = Desk(Stored(7, ALONE)).link()
    assert check.options["config_version"] == 7


def test_a_backend_that_was_named_is_gone_to_at_once():
    desk = Desk(place=Place(HERE, "tcp://10.0.0.9:1"))
    assert (desk.session.address, desk.state) == ("tcp://10.0.0.9:1", WorkerState.CHECKING)


def test_without_a_configuration_the_backend_is_beside_the_frontend():
    desk = Desk(place=Place("ipc:///run/b/frontend"))
    desk.link()
    desk.hear(wire.CONFIGACK, config_version=4)
    assert desk.session.address == "scale0/backend@ipc:///run/b/frontend"
    assert desk.link()[0].options["config_version"] == 4


def test_without_any_way_to_the_backend_the_fault_says_what_to_do():
    desk = Desk()
    desk.link()
    desk.hear(wire.CONFIGACK, config_version=4)
    assert desk.state is WorkerState.RESTING
    assert "there is no record of it" in str(desk.session.fault)
    assert "backend=ADDRESS" in str(desk.session.fault)


def test_a_type_that_is_not_offered_is_left_out():
    desk = Desk()
    desk.link()
    desk.session.receive((b"S0C01", b"ERROR", b'{"code":415,"message":"no","types":[]}'), desk.now)
    (check,) = desk.sent()
    assert "config_type" not in check.options


def test_a_stored_address_that_no_longer_holds_is_asked_for_anew():
    desk = Desk(Stored(7, ALONE))
    desk.link()
    desk.hear(wire.CONFIGACK, config_version=7)
    assert desk.session.address == BACK
    desk.sleep(3.2)
    assert desk.session.address == HERE
    (check,) = desk.link()
    assert "config_version" not in check.options
    desk.config(version=7)
    assert desk.link()[0].options["config_version"] == 7


def test_a_broker_without_a_word_for_workers_is_tried_again():
    desk = Desk()
    desk.link()
    desk.config()
    desk.link()
    desk.hear(wire.ERROR, code=503, message="this broker has no configuration yet")
    assert desk.state is WorkerState.RESTING
    assert desk.session.fault is not None
    assert desk.session.fault.code == 503


def test_services_that_are_refused_are_a_fault():
    desk = Desk().serve()
    desk.hear(wire.READYOK, refused=["echo"])
    assert desk.session.fault is not None
    assert "echo" in str(desk.session.fault)
    desk.hear(wire.READYOK)
    assert desk.session.fault is None


# --- serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R44")
@pytest.mark.requirement("R45")
@pytest.mark.requirement("R47")
def test_heartbeats_carry_time_and_version():
    desk = Desk().serve()
    desk.now += 1.0
    desk.session.on_deadline(desk.now)
    (beat,) = desk.sent()
    assert beat.command == b"HEARTBEAT"
    assert beat.options == {"time": 1e9 + desk.now, "config_version": 1}


def test_heartbeats_go_on_as_long_as_they_are_answered():
    desk = Desk().serve()
    assert desk.sleep(100.5, answered=True) == ["HEARTBEAT"] * 100
    assert desk.state is WorkerState.SERVING


def test_a_probe_is_answered_and_an_answer_is_not():
    desk = Desk().serve()
    assert desk.hear(wire.HEARTBEAT, time=1) == ["HEARTBEAT"]
    assert desk.hear(wire.HEARTBEAT, time=1, reply_to=2) == []


def test_a_task_is_begun_and_answered():
    desk = Desk().serve()
    task = desk.task()
    assert (task.service, task.payload) == (b"echo", (b"x",))
    desk.session.reply(task, b'{"more":true}', (b"1",), desk.now)
    desk.session.reply(task, b"", (b"2",), desk.now)
    desk.session.finish(task, desk.now)
    parts = [(message.command, dict(message.options), message.body) for message in desk.sent()]
    assert parts == [
        (b"TASKREPLY", {"more": True}, (b"echo", b"n1", b"1")),
        (b"TASKREPLY", {}, (b"echo", b"n1", b"2")),
    ]
    assert not desk.session.in_hand


@pytest.mark.requirement("R8")
def test_services_change_while_serving():
    desk = Desk().serve()
    desk.session.offer(["echo", "more"], desk.now)
    (ready,) = desk.sent()
    assert (ready.command, ready.options["services"]) == (b"READY", ["echo", "more"])


def test_services_that_change_during_the_negotiation_are_offered_after_it():
    desk = Desk()
    desk.link()
    desk.config()
    desk.link()
    assert desk.hear(wire.CONFIGACK, config_version=1) == ["READY"]
    desk.session.offer(["echo", "more"], desk.now)
    assert desk.sent() == []
    assert desk.hear(wire.READYOK) == ["READY"]


@pytest.mark.requirement("R56")
def test_force_negotiate_leads_to_checkconfig():
    desk = Desk().serve()
    assert desk.hear(wire.FORCENEGOTIATE, code=426) == ["CHECKCONFIG"]
    assert desk.hear(wire.FORCENEGOTIATE, code=426) == []  # one negotiation at a time
    assert desk.config(version=2) == ["READY"]
    desk.hear(wire.READYOK)
    assert desk.state is WorkerState.SERVING
    assert desk.session.connection == 2


def test_tasks_survive_a_new_configuration():
    desk = Desk().serve()
    task = desk.task()
    desk.hear(wire.FORCENEGOTIATE, code=426)
    desk.config(version=2)
    desk.hear(wire.READYOK)
    assert desk.answer(task) == ["TASKREPLY"]


def test_tasks_of_a_broker_that_does_not_know_the_worker_are_not_answered():
    """A broker that was restarted numbers its tasks anew; a reply to an old number would go to the wrong caller."""
    desk = Desk().serve()
    task = desk.task(b"n1")
    desk.hear(wire.FORCENEGOTIATE, code=426)
    desk.hear(wire.CONFIGACK, config_version=1)
    desk.hear(wire.READYOK)
    new = desk.task(b"n1")
    assert desk.answer(task) == []
    assert desk.session.dropped == 1
    assert desk.answer(new) == ["TASKREPLY"]


def test_endless_negotiation_is_given_up_for_a_while():
    desk = Desk().serve()
    for _ in range(10):
        desk.hear(wire.FORCENEGOTIATE, code=426)
        desk.hear(wire.CONFIGACK, config_version=1)
    assert desk.state is WorkerState.RESTING


# --- losing the broker ------------------------------------------------------------------------------------------------


def test_a_broken_connection_is_made_again_soon():
    desk = Desk().serve()
    task = desk.task()
    desk.unlink()
    assert desk.state is WorkerState.RESTING
    assert desk.session.address == ""
    desk.sleep(0.11)
    assert (desk.state, desk.session.address) == (WorkerState.LOCATING, HERE)
    assert desk.answer(task) == []


def test_a_silent_broker_is_left_after_liveness_times_the_interval():
    desk = Desk().serve()
    desk.sleep(3.9)
    assert desk.state is WorkerState.SERVING
    desk.sleep(0.1)
    assert desk.state is WorkerState.RESTING
    assert "silent for 4.0 s" in str(desk.session.fault)


def test_with_tasks_in_hand_a_silent_broker_is_waited_for_as_long_as_the_connection_stands():
    """A frozen broker does not know that time passed; the reply counts when it wakes."""
    desk = Desk().serve()
    task = desk.task()
    desk.sleep(10.0)
    assert desk.state is WorkerState.SERVING
    assert desk.answer(task) == ["TASKREPLY"]
    desk.sleep(10.0)
    assert desk.state is WorkerState.SERVING
    desk.hear(wire.HEARTBEAT, reply_to=1)
    desk.sleep(5.0)
    assert desk.state is not WorkerState.SERVING


def test_an_own_stall_is_not_taken_for_the_brokers_silence():
    desk = Desk().serve()
    desk.now += 60.0  # the process was frozen, nothing was sent
    desk.session.on_deadline(desk.now)
    assert desk.commands() == ["HEARTBEAT"]
    assert desk.state is WorkerState.SERVING


def test_pauses_between_attempts_grow_and_differ():
    desk = Desk(place=Place(HERE, BACK))
    pauses = []
    for _ in range(10):
        desk.link()
        desk.unlink()
        began = desk.now
        while desk.state is WorkerState.RESTING:
            desk.sleep(0.01)
        pauses.append(desk.now - began)
    assert pauses[0] < pauses[2]
    assert 0.38 < pauses[-1] < 0.83
    assert len({round(pause, 2) for pause in pauses[-4:]}) > 1


def test_pauses_after_refusals_grow_to_5_seconds():
    pauses = []
    desk = Desk().serve()
    for _ in range(8):
        desk.hear(wire.DISCONNECTERROR, code=403, message="no")
        began = desk.now
        while desk.state is WorkerState.RESTING:
            desk.sleep(0.01)
        pauses.append(desk.now - began)
        desk.serve()
    assert 2.4 < pauses[-1] < 5.1


def test_a_broker_that_dies_again_and_again_finds_its_worker_back_soon():
    """A broker that lives shorter than a heartbeat never answers one, which is no reason to rest longer."""
    desk = Desk()
    for _ in range(10):
        desk.serve()
        desk.unlink()
        began = desk.now
        while desk.state is WorkerState.RESTING:
            desk.sleep(0.01)
        assert desk.now - began < 0.15


@pytest.mark.requirement("R52")
@pytest.mark.parametrize("code", [400, 403, 408, 409, 412, 426])
def test_a_refusal_is_a_fault_with_its_code_and_is_tried_again_later(code: int):
    desk = Desk().serve()
    desk.hear(wire.DISCONNECTERROR, code=code, message="so it is")
    assert desk.state is WorkerState.RESTING
    assert desk.session.fault is not None
    assert desk.session.fault.code == code
    desk.sleep(0.35)
    assert desk.state is WorkerState.RESTING
    desk.sleep(1.0)
    desk.serve()
    assert desk.session.fault is None


def test_an_unreachable_broker_without_others_is_waited_for():
    desk = Desk()
    desk.sleep(100.0)
    assert (desk.state, desk.session.connection) == (WorkerState.LOCATING, 1)
    assert "no connection" in str(desk.session.fault)
    desk.serve()


@pytest.mark.requirement("R83")
def test_an_unreachable_broker_is_left_for_another():
    desk = Desk(Stored(1, TWO))
    desk.sleep(3.0)
    assert desk.session.address == OTHER
    (need,) = desk.link()
    assert need.command == b"NEEDBROKER"
    assert need.options == {"identity": "me", "services": ["echo"], "group": "own", "unreachable": ["one"]}
    desk.hear(
        wire.CHANGEBROKER, brokers=[{"identity": "two", "group": "own", "frontend": OTHER, "backend": OTHER_BACK}]
    )
    assert (desk.session.address, desk.state) == (OTHER_BACK, WorkerState.CHECKING)
    desk.link()
    desk.hear(wire.CONFIGACK, config_version=1)
    desk.hear(wire.READYOK)
    assert desk.state is WorkerState.SERVING


def test_a_worker_that_is_sent_away_finishes_its_tasks_first():
    desk = Desk().serve(TWO)
    task = desk.task()
    desk.hear(
        wire.CHANGEBROKER, brokers=[{"identity": "two", "group": "own", "frontend": OTHER, "backend": OTHER_BACK}]
    )
    assert desk.state is WorkerState.SERVING
    assert desk.answer(task) == ["TASKREPLY", "DISCONNECT"]
    desk.sleep(0.1)
    assert (desk.session.address, desk.state) == (OTHER_BACK, WorkerState.CHECKING)


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_draining_takes_no_more_tasks_and_leaves_after_the_last():
    desk = Desk().serve()
    first = desk.task(b"n1")
    desk.session.drain(desk.now)
    (ready,) = desk.sent()
    assert (ready.command, ready.options["services"]) == (b"READY", [])
    second = desk.task(b"n2")  # was on its way
    assert desk.answer(first) == ["TASKREPLY"]
    desk.hear(wire.READYOK)
    assert desk.state is WorkerState.SERVING
    assert desk.answer(second) == ["TASKREPLY", "DISCONNECT"]
    assert desk.state is WorkerState.LEFT


def test_draining_without_tasks_waits_for_those_on_their_way():
    desk = Desk().serve()
    desk.session.drain(desk.now)
    desk.sent()
    assert desk.state is WorkerState.SERVING
    assert desk.hear(wire.READYOK) == ["DISCONNECT"]
    assert desk.state is WorkerState.LEFT


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_draining_before_serving_leaves_at_once(steps: int):
    desk = Desk()
    moves = [desk.link, desk.config, desk.link]
    for move in moves[:steps]:
        move()
    desk.session.drain(desk.now)
    assert desk.state is WorkerState.LEFT


def test_draining_while_the_configuration_changes():
    desk = Desk().serve()
    task = desk.task()
    desk.session.drain(desk.now)
    desk.hear(wire.FORCENEGOTIATE, code=426)
    desk.config(version=2)
    desk.hear(wire.READYOK)
    assert desk.answer(task) == ["TASKREPLY", "DISCONNECT"]
    assert desk.state is WorkerState.LEFT


def test_draining_ends_when_the_connection_breaks():
    desk = Desk().serve()
    desk.task()
    desk.session.drain(desk.now)
    desk.unlink()
    assert desk.state is WorkerState.LEFT


def test_stopping_leaves_at_once():
    desk = Desk().serve()
    task = desk.task()
    desk.session.stop(desk.now)
    assert desk.commands() == ["DISCONNECT"]
    assert desk.state is WorkerState.LEFT
    assert desk.answer(task) == []
    assert desk.session.next_deadline() is None


# --- anything ---------------------------------------------------------------------------------------------------------


NEWS = [
    wire.CONFIGACK, wire.READYOK, wire.HEARTBEAT, wire.FORCENEGOTIATE, wire.DISCONNECTERROR, wire.ERROR,
    wire.CHANGEBROKER, wire.TASK, wire.PONG, b"WHAT",
]  # fmt: skip


def happen_anything(desk: Desk, random: Random) -> None:
    chance = random.random()
    if chance < 0.2 and desk.session.address:
        desk.link()
    elif chance < 0.3:
        desk.unlink()
    elif chance < 0.4:
        desk.config(random.choice([ALONE, TWO]), random.randint(1, 3))
    elif chance < 0.8:
        command = random.choice(NEWS)
        body = (b"echo", b"n%d" % random.randint(0, 9)) if command == wire.TASK else ()
        options = random.choice([{}, {"code": 415, "types": ["JSON"]}, {"code": 503}, {"config_version": 1}])
        desk.hear(command, *body, **options)
    elif chance < 0.9 and desk.tasks:
        desk.answer(random.choice(desk.tasks))
    else:
        desk.sleep(random.uniform(0, 4))


def behave_well(desk: Desk) -> None:
    """Do what a broker does, for a while."""
    for _ in range(200):
        if desk.state is WorkerState.SERVING:
            break
        desk.sleep(0.5)
        if desk.session.address and not desk.session.linked:
            asks = desk.link()
            if asks and asks[0].command == b"NEEDBROKER":
                desk.hear(wire.ERROR, code=503)
        if desk.state in (WorkerState.LOCATING, WorkerState.CHECKING) and not desk.session.route.asking:
            desk.config(ALONE)
        if desk.state is WorkerState.OFFERING:
            desk.hear(wire.READYOK)


def test_whatever_comes_a_worker_lives_on_and_comes_back():
    random = Random(11)
    for seed in range(40):
        desk = Desk(Stored(1, TWO) if seed % 2 else None)
        for _ in range(60):
            happen_anything(desk, random)
        behave_well(desk)
        assert desk.state is WorkerState.SERVING


def test_the_table_draws_a_diagram():
    drawn = draw(WORKER)
    assert "checking --> offering: CONFIG or CONFIGACK" in drawn
    assert {state for state, _ in WORKER} | set(WORKER.values()) == set(WorkerState)


# --- cancelling -------------------------------------------------------------------------------------------------------


class CancelDesk(Desk):
    def __init__(self, **options) -> None:
        self.cancelled: list[Task] = []
        super().__init__(cancel=self.cancelled.append, **options)


def test_a_cancelled_task_is_handed_on_once_and_stays_in_hand_until_it_is_answered():
    desk = CancelDesk().serve()
    task = desk.task()
    desk.hear(wire.CANCEL, b"echo", b"n1")
    desk.hear(wire.CANCEL, b"echo", b"n1")
    assert (desk.cancelled, task.over, task.alive, list(desk.session.in_hand)) == ([task], 410, True, [b"n1"])
    assert desk.answer(task) == ["TASKREPLY"]
    assert desk.session.in_hand == {}


def test_a_cancel_for_what_is_not_in_hand_is_counted():
    desk = CancelDesk().serve()
    desk.answer(desk.task())
    desk.hear(wire.CANCEL, b"echo", b"n1")
    desk.hear(wire.CANCEL, b"echo", b"never")
    assert (desk.cancelled, desk.session.late_cancels, desk.session.malformed) == ([], 2, 0)


@pytest.mark.parametrize("body", [(), (b"echo",), (b"echo", b"n1", b"more")])
def test_a_cancel_that_cannot_be_read_is_counted_and_harms_nothing(body: tuple[bytes, ...]):
    desk = CancelDesk().serve()
    desk.task()
    desk.hear(wire.CANCEL, *body)
    assert (desk.cancelled, desk.session.malformed) == ([], 1)


def test_a_worker_stops_what_is_past_its_deadline_by_itself():
    desk = CancelDesk().serve()
    desk.hear(wire.TASK, b"echo", b"long", b"x", timeout=60_000)
    desk.hear(wire.TASK, b"echo", b"short", b"x", timeout=2000)
    desk.hear(wire.TASK, b"echo", b"endless", b"x")
    desk.sleep(2.0 + OVERTIME - 0.001, answered=True)
    assert desk.cancelled == []
    desk.sleep(0.06, answered=True)
    assert [(task.number, task.over) for task in desk.cancelled] == [(b"short", 504)]
    desk.sleep(3600, answered=True)
    assert [task.number for task in desk.cancelled] == [b"short", b"long"]


def test_a_task_without_a_timeout_has_the_broker_s():
    desk = CancelDesk().serve()
    desk.hear(wire.READYOK, hbeatinterval=1000, liveness=3, config_version=1, task_timeout=2000)
    desk.task(b"default")
    desk.hear(wire.TASK, b"echo", b"own", b"x", timeout=60_000)
    desk.sleep(2.0 + OVERTIME + 0.06, answered=True)
    assert [task.number for task in desk.cancelled] == [b"default"]


def test_a_deadline_ends_with_its_task():
    desk = CancelDesk().serve()
    desk.hear(wire.TASK, b"echo", b"n1", b"x", timeout=2000)
    desk.answer(desk.tasks[-1])
    desk.sleep(10, answered=True)
    assert desk.cancelled == []


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_what_cannot_be_answered_any_more_is_stopped(how: str):
    desk = CancelDesk().serve()
    task = desk.task()
    desk.unlink() if how == "lost" else desk.session.stop(desk.now)
    assert (desk.cancelled, task.alive) == ([task], False)
    desk.sleep(10)
    assert desk.cancelled == [task]
