"""The text dialect against a simple model, in long random conversations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scale0_core.testing import Script
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings

from .text_model import Model

MOST = 6
PEERS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["p", "q"])


class Conversation(RuleBasedStateMachine):
    """Three peers and two pipes; a peer may vanish, and comes back under another name."""

    @initialize()
    def begin(self) -> None:
        self.service = ZpipesService(ZpipesSettings(max_pipe_chunks=MOST))
        self.script = Script(self.service)
        self.model = Model(MOST)
        self.names = {peer: peer for peer in "abc"}
        self.number = 0

    def ask(self, peer: str, *frames: str) -> None:
        self.script.sleep(0.01)
        self.script.feed("pipes", self.names[peer], *frames)
        self.model.ask(self.names[peer], frames[0].lower(), *frames[1:])

    @rule(peer=PEERS, name=NAMES)
    def open(self, peer: str, name: str) -> None:
        self.ask(peer, "OPEN", name)

    @rule(peer=PEERS, name=NAMES)
    def close(self, peer: str, name: str) -> None:
        self.ask(peer, "CLOSE", name)

    @rule(peer=PEERS, name=NAMES, times=st.integers(1, 4))
    def write(self, peer: str, name: str, times: int) -> None:
        for _ in range(times):
            self.number += 1
            self.ask(peer, "WRITE", name, f"{self.number}")

    @rule(peer=PEERS, name=NAMES, times=st.integers(1, 4))
    def read(self, peer: str, name: str, times: int) -> None:
        for _ in range(times):
            self.ask(peer, "READ", name)

    @rule(peer=PEERS)
    def vanish(self, peer: str) -> None:
        self.script.refuse("pipes", self.names[peer])
        self.model.gone.add(self.names[peer])
        self.names[peer] += "'"

    @invariant()
    def same_answers(self) -> None:
        if not hasattr(self, "script"):
            return
        self.script.sleep(0.01)
        said = [
            (frames[0].decode(), int(frames[2]) if frames[1] == b"ERROR" and len(frames) > 2 else frames[1])
            for _, frames in self.script.sent
        ]
        self.script.sent.clear()
        assert said == self.model.take()

    @invariant()
    def same_depth(self) -> None:
        if hasattr(self, "script"):
            found = {name.decode(): pipe.depth for name, pipe in self.service._pipes.items()}
            assert found == {name: pipe.depth for name, pipe in self.model.pipes.items()}
            assert self.service._stock.depth == sum(found.values())


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
