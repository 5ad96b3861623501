"""Any conversation, compared with a model that is too simple to be wrong."""

from collections import defaultdict

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scale0_zpipes.service import binary
from scale0_zpipes.service.streams import Streams

from .streams_model import Model

PEERS = [b"a", b"b", b"c", b"d"]
NAMES = [b"", b"p\0q"]
TICK = 2.0**-20
"""Between two messages, so that no two things are due at the very same moment: their order would be anybody's guess."""

TIMEOUT = 0.2005
LIMIT = 12

SIZES = [1, 2, 3, 5, 5, 8, 13, 30, 0]
TIMES = [0, 0, 30, 70, 500]


def all_frames():
    """Give 256 messages, one for each byte: most of them sensible, the simplest first."""
    opening = [binary.with_string(kind, name) for name in NAMES for kind in (binary.INPUT, binary.OUTPUT)]
    reading = [binary.read(size, time) for size in SIZES for time in TIMES]
    writing = [binary.write(bytes(range(65, 65 + size)), time) for size in SIZES for time in TIMES]
    odd = [kind for kind in binary.NAMES if kind not in binary.REQUESTS]
    odd += [binary.read(5)[:end] for end in (0, 2, 3, 10)] + [binary.write(b"abc")[:end] for end in (3, 7, 10, 13)]
    odd += [opening[2][:-1], opening[0] + b"more", binary.read(5) + b"more", binary.write(b"abc") + b"more", b"OPEN"]
    frames = [binary.PING, *opening * 6, *reading * 2, *writing * 2, *[binary.CLOSE] * 7, *odd]
    return frames + odd[: 256 - len(frames)]


FRAMES = all_frames()


class Conversation(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1.0
        self.streams = Streams(timeout=TIMEOUT, max_buffered=LIMIT, max_mailbox=4)
        self.model = Model(timeout=TIMEOUT, max_buffered=LIMIT, max_mailbox=4)
        self.sent = defaultdict(list)

    def note(self, replies):
        for _, (peer, frame) in replies:
            self.sent[peer].append(frame)

    @rule(program=st.binary(min_size=60, max_size=160))
    def messages(self, program):
        """Take two bytes for each message, who and what: drawn one by one they would take most of the time."""
        for who, what in zip(program[::2], program[1::2], strict=False):
            peer, frame = PEERS[who % len(PEERS)], FRAMES[what]
            self.now += TICK
            self.note(self.streams.receive(peer, frame, self.now))
            self.model.receive(peer, frame, self.now)

    @rule(ms=st.sampled_from([1, 20, 50, 100, 190]))
    def time(self, ms):
        end = self.now + ms / 1000
        while (due := self.streams.next_deadline()) is not None and due <= end:
            self.note(self.streams.on_deadline(due))
            self.model.on_deadline(due)
            assert self.streams.next_deadline() is None or self.streams.next_deadline() > due
        self.model.on_deadline(end)
        self.now = end

    @rule(ms=st.sampled_from([40, 250]))
    def a_stall(self, ms):
        self.now += ms / 1000
        self.note(self.streams.on_deadline(self.now))
        self.model.on_deadline(self.now)

    @rule(peer=st.sampled_from(PEERS), frame=st.sampled_from([binary.WRITE_OK, binary.PING_OK, binary.read_ok(b"x")]))
    def lost(self, peer, frame):
        self.now += TICK
        self.note(self.streams.undelivered(peer, frame, gone=True, now=self.now))
        self.model.gone(peer, self.now)

    @invariant()
    def every_client_got_the_same(self):
        assert self.sent == {peer: frames for peer, frames in self.model.replies.items() if frames}
        self.sent.clear()
        self.model.replies.clear()

    @invariant()
    def the_same_is_kept(self):
        kept = [client for client in self.model.clients.values() if client.role]
        assert self.streams.clients == len(kept)
        assert self.streams.pipes == len(self.model.pipes)
        assert self.streams.buffered == sum(len(client.data) for client in kept)
        assert sum(row["bytes"] for row in self.streams.rows()) == self.streams.buffered


def test_every_byte_of_a_program_is_a_message():
    assert len(FRAMES) == 256


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
