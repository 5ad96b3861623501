"""What is told of pipes while somebody observes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import EventSource
from scale0_core.testing import Script, SimDisk
from scale0_zpipes.batches import pack_chunks
from scale0_zpipes.service import activity, binary
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings

SOCKET = "pipes"


class Observed(Script):
    """Pipes that somebody observes."""

    def __init__(self, *, durable=False, **settings):
        journal = Journal(SimDisk()) if durable else None
        super().__init__(ZpipesService(ZpipesSettings(durable=("*",) if durable else (), **settings), journal=journal))
        self.events = self.observe_events()

    def say(self, peer, *frames):
        self.feed(SOCKET, peer, *frames)

    def told(self):
        """Give what was told since the last look: the kind, the pipe, the count and the bytes."""
        told = [(event[0].name, *event[2:]) for event in self.events]
        assert all(event[1] <= self.now and len(event) == 2 + len(event[0].fields) for event in self.events)
        self.events.clear()
        return told


@pytest.fixture
def pipes():
    script = Observed()
    script.say("w", "OPEN", "tube")
    return script


def test_nobody_pays_who_does_not_observe():
    script = Script(ZpipesService())
    assert isinstance(script.service, EventSource)
    plain = [path.take for path in script.service.fast_paths]
    script.observe_events()
    assert not set(plain) & {path.take for path in script.service.fast_paths}
    script = Script(ZpipesService())
    script.feed(SOCKET, "w", "OPEN", "tube")
    script.feed(SOCKET, "w", "WRITE", "tube", "chunk")
    script.sleep(5)
    assert script.service.events is None


def test_what_was_written_and_read_is_told_once_a_second(pipes):
    for chunk in ("one", "two", "three"):
        pipes.say("w", "WRITE", "tube", chunk)
    pipes.say("r", "READ", "tube")
    assert pipes.told() == []
    pipes.sleep(1.0)
    assert pipes.told() == [("pipe_write", "tube", 3, 11), ("pipe_read", "tube", 1, 3)]
    pipes.say("r", "READ", "tube")
    pipes.sleep(0.5)
    pipes.say("w", "", "WRITE", "tube", "four")  # a REQ socket
    pipes.sleep(0.5)
    assert pipes.told() == [("pipe_write", "tube", 1, 4), ("pipe_read", "tube", 1, 3)]
    pipes.sleep(10)
    assert pipes.told() == []


def test_a_reader_that_waits_gets_what_is_told_too(pipes):
    pipes.say("r", "READ", "tube")
    pipes.say("w", "WRITE", "tube", "chunk")
    pipes.sleep(1.0)
    assert pipes.told() == [("pipe_write", "tube", 1, 5), ("pipe_read", "tube", 1, 5)]


def test_nothing_is_due_while_nothing_happens(pipes):
    idle = Observed()
    assert pipes.service.next_deadline() == idle.service.next_deadline()
    pipes.say("w", "WRITE", "tube", "chunk")
    assert pipes.service.next_deadline() <= pipes.now + activity.EVERY
    pipes.sleep(3 * activity.EVERY)
    assert pipes.service._activity.due == activity.NEVER
    assert not pipes.service._activity._busy


@pytest.mark.parametrize("durable", [False, True])
def test_batches_and_groups_are_told(durable: bool):
    pipes = Observed(durable=durable)
    pipes.sleep(0.1)
    pipes.say("w", "OPEN", "tube")
    pipes.say("w", "GROUP", "tube", "g")
    pipes.say("w", "PUT", "tube", "me", "1", pack_chunks([b"one", b"", b"three"]))
    pipes.sleep(1.0)
    assert pipes.told() == [("pipe_write", "tube", 3, 8)]
    pipes.say("r", "FETCH", "tube", "g", "1", "10", "1000", "0")
    pipes.say("r", "ACK", "tube", "g", "2")
    pipes.sleep(2.0)
    assert pipes.told() == [("pipe_read", "tube", 2, 3)]


def test_a_write_that_had_to_wait_for_room_is_told_when_it_had_some():
    pipes = Observed(max_pipe_chunks=1)
    pipes.say("w", "OPEN", "tube")
    pipes.say("w", "WRITE", "tube", "one")
    pipes.say("v", "WRITE", "tube", "second")
    pipes.sleep(2.0)
    assert pipes.told() == [("pipe_write", "tube", 1, 3)]
    pipes.say("r", "READ", "tube")
    pipes.sleep(1.5)
    assert pipes.told() == [("pipe_write", "tube", 1, 6), ("pipe_read", "tube", 1, 3)]


def test_what_is_purged_or_expires_was_not_read():
    pipes = Observed(expire=5.0, expire_empty=5.0)
    for name in ("a", "b"):
        pipes.say("w", "OPEN", name)
        pipes.say("w", "WRITE", name, "chunk")
    pipes.say("w", "PURGE", "a")
    pipes.sleep(30)
    assert pipes.told() == [("pipe_write", "a", 1, 5), ("pipe_write", "b", 1, 5)]
    assert not pipes.service._pipes


def test_what_was_not_told_yet_is_told_at_the_end(pipes):
    pipes.say("w", "WRITE", "tube", "chunk")
    pipes.stop()
    assert pipes.told() == [("pipe_write", "tube", 1, 5)]


def test_of_very_many_pipes_some_are_told_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(activity, "SLICE", 10)
    pipes = Observed()
    for number in range(95):
        pipes.say("w", "OPEN", str(number))
        pipes.say("w", "WRITE", str(number), "chunk")
    pipes.sleep(activity.EVERY)
    assert len(pipes.told()) == 10
    pipes.sleep(20 * activity.PAUSE)
    assert len(pipes.told()) == 85
    pipes.sleep(20 * activity.EVERY)
    assert pipes.told() == []
    assert not pipes.service._activity._busy


def test_names_may_be_any_bytes():
    pipes = Observed()
    pipes.say("w", "OPEN", b"\xff\xfe")
    pipes.say("w", "WRITE", b"\xff\xfe", "chunk")
    pipes.sleep(1)
    assert pipes.told() == [("pipe_write", "\\xff\\xfe", 1, 5)]


def test_whatever_comes_is_answered_as_if_nobody_observed():
    for frames in (["w"], ["w", ""], ["w", "", ""], ["w", "WRITE"], ["w", "WRITE", "no"], ["w", "WRITE", "no", "x"]):
        observed, plain = Observed(), Script(ZpipesService())
        for script in (observed, plain):
            script.feed(SOCKET, *frames)
        assert observed.sent == plain.sent
        assert observed.told() == []


# --- the binary dialect -------------------------------------------------------------------------------------------


def open_stream(name=b"tube"):
    script = Observed()
    script.say("r", binary.with_string(binary.INPUT, name))
    script.say("w", binary.with_string(binary.OUTPUT, name))
    return script


def test_streams_are_told_of_once_a_second():
    script = open_stream()
    script.say("w", binary.write(b"12345"))
    script.say("w", binary.write(b"678"))
    script.say("r", binary.read(5))
    assert script.told() == []
    script.sleep(1.0)
    assert script.told() == [("pipe_write", "tube", 2, 8), ("pipe_read", "tube", 1, 5)]
    script.say("r", binary.read(3))
    script.say("r", binary.read(4))
    script.say("w", binary.write(b"1234"))  # the reader waits for it
    script.sleep(1.0)
    assert script.told() == [("pipe_write", "tube", 1, 4), ("pipe_read", "tube", 2, 7)]
    script.sleep(60)
    assert script.told() == []
    assert script.service._activity.due == activity.NEVER


def test_what_streams_did_is_told_at_the_end():
    script = open_stream()
    script.say("w", binary.write(b"12345"))
    script.service.on_stop(script.now)
    assert script.told() == [("pipe_write", "tube", 1, 5)]


def test_many_streams_are_told_of_in_slices(monkeypatch):
    monkeypatch.setattr(activity, "SLICE", 10)
    script = Observed()
    for number in range(25):
        script.say(f"w{number}", binary.with_string(binary.OUTPUT, b"tube-%d" % number))
        script.say(f"r{number}", binary.with_string(binary.INPUT, b"tube-%d" % number))
        script.say(f"w{number}", binary.write(b"x"))
    script.sleep(activity.EVERY)
    assert len(script.told()) == 10
    script.sleep(20 * activity.PAUSE)
    assert len(script.told()) == 15


REQUESTS = st.sampled_from(
    [
        binary.with_string(binary.INPUT, b"tube"), binary.with_string(binary.OUTPUT, b"tube"), binary.write(b"12345"),
        binary.write(b"12345", 300), binary.read(5), binary.read(5, 300), binary.read(10), binary.CLOSE, binary.PING,
    ]
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from("abc"), REQUESTS, st.sampled_from([0.0, 0.2, 1.0])), max_size=60)


@settings(deadline=None)
@given(STEPS)
def test_all_that_streams_took_and_gave_is_told(steps):
    """As many writes as there were WRITE_OK, as many bytes as are in all READ_OK; whichever way they took."""
    script = Observed(max_pipe_bytes=12)
    script.say("r", binary.with_string(binary.INPUT, b"tube"))
    script.say("w", binary.with_string(binary.OUTPUT, b"tube"))
    for peer, request, seconds in steps:
        script.say({"a": "r", "b": "w", "c": "c"}[peer], request)
        script.sleep(seconds)
    script.sleep(120)
    replies = [frames[1] for _, frames in script.sent]
    told = script.told()
    sums = {kind: [sum(each) for each in zip((0, 0), *(row[2:] for row in told if row[0] == kind), strict=True)]
            for kind in ("pipe_write", "pipe_read")}  # fmt: skip
    writes = sum(reply == binary.WRITE_OK for reply in replies)
    reads = [binary.decode(reply).body for reply in replies if reply[:3] == binary.READ_OK]
    assert sums == {"pipe_write": [writes, 5 * writes], "pipe_read": [len(reads), sum(map(len, reads))]}
