"""Messages that a service did not expect: random ones, and mutations of good ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias

from scale0_core.service import Endpoint, Frames, SocketKind
from scale0_core.testing.frames import Text, as_delivered, as_frames

Sample: TypeAlias = tuple[str, Sequence[Text]]
"""A message a service understands: the socket, and the frames as ``receive`` gets them."""

HUGE = 100_000
MANY = 1000
PEERS = 8
WORDS: tuple[bytes, ...] = (
    b"", b"\0", b"\1", b"\xff", b"\xff\xfe\xfd", b"\xc3\x28", b"0", b"-1", b"1e999", b"nan",
    b"99999999999999999999", b"{", b"{}", b'{"a": [1]}', b"[[[[[[[[", b"<a>", b"../../etc/passwd", b"%s%n", b"a b",
    b"\r\n", b"\xe2\x82\xac", b"OK", b"PING", b"READY", b"x" * 255, b"x" * 256,
)  # fmt: skip
SPECIALS: tuple[Callable[[Random], Frames], ...] = (
    lambda _: (),
    lambda _: (b"",),
    lambda _: (b"", b""),
    lambda _: (b"\xff\xfe",),
    lambda random: (random.randbytes(HUGE),),
    lambda random: (b"", b"x", random.randbytes(HUGE), b"y"),
    lambda _: (b"",) * MANY,
    lambda random: tuple(random.randbytes(3) for _ in range(MANY)),
)


class Fuzzer:
    """Makes messages for the sockets of one service, the same ones for the same ``random``.

    Each socket gets every special message first (empty, huge, many frames), then random ones, now and then a
    special one again. Messages come from a few peers, so that they build up state, and now and then from a new one.
    """

    def __init__(self, random: Random, endpoints: Mapping[str, Endpoint], samples: Iterable[Sample] = ()) -> None:
        self._random = random
        self._endpoints = endpoints
        self._peers = [self._new_peer() for _ in range(PEERS)]
        self._words = list(WORDS)
        self._mutations = (
            self._insert, self._remove, self._repeat, self._replace, self._swap, self._cut, self._flip, self._extend,
        )  # fmt: skip
        self._samples: dict[str, list[Frames]] = {}
        self._specials_due = dict.fromkeys(endpoints, len(SPECIALS))
        for socket, frames in samples:
            if socket not in endpoints:
                raise ValueError(f"a sample is for socket {socket!r}, which the service does not have")
            self._add_sample(socket, as_frames(frames))

    def message(self, socket: str) -> Frames:
        """Make the next message for a socket, as ``receive`` would get it."""
        endpoint = self._endpoints[socket]
        frames = self._body(socket, endpoint.kind)
        if any(len(frame) > endpoint.max_message for frame in frames):
            frames = tuple(frame[: endpoint.max_message] for frame in frames)
        if endpoint.kind is SocketKind.ROUTER:
            frames = (self._random.choice(self._peers), *frames)
        return as_delivered(frames, endpoint.blob_over)

    def retire(self, peer: bytes) -> None:
        """Let a new peer take the place of one that is gone."""
        if peer in self._peers:
            self._peers[self._peers.index(peer)] = self._new_peer()

    def _add_sample(self, socket: str, frames: Frames) -> None:
        if self._endpoints[socket].kind is SocketKind.ROUTER:
            peer, *body = frames
            self._peers.append(peer)
            frames = tuple(body)
        self._samples.setdefault(socket, []).append(frames)
        self._words.extend(frames)

    def _new_peer(self) -> bytes:
        return b"\0" + self._random.randbytes(4)

    def _body(self, socket: str, kind: SocketKind) -> Frames:
        random = self._random
        if self._specials_due[socket]:
            self._specials_due[socket] -= 1
            return SPECIALS[self._specials_due[socket]](random)
        roll = random.random()
        if roll < 0.002:
            return random.choice(SPECIALS)(random)
        if roll < 0.01:
            self.retire(random.choice(self._peers))
        if kind is SocketKind.XPUB and roll < 0.8:
            return (random.choice((b"\1", b"\0")) + self._frame(),)
        samples = self._samples.get(socket)
        if samples and roll < 0.7:
            sample = random.choice(samples)
            return sample if roll < 0.2 else self._mutated(sample)
        return tuple([self._frame() for _ in range(int(random.random() * 8))])

    def _frame(self) -> bytes:
        random = self._random
        if random.random() < 0.6:
            return self._words[int(random.random() * len(self._words))]
        return random.randbytes(int(random.expovariate(0.1)))

    def _mutated(self, sample: Frames) -> Frames:
        frames = list(sample)
        for _ in range(self._random.choice((1, 1, 2, 3))):
            self._random.choice(self._mutations)(frames)
        return tuple(frames)

    def _place(self, frames: list[bytes]) -> int:
        return int(self._random.random() * len(frames))

    def _insert(self, frames: list[bytes]) -> None:
        frames.insert(self._random.randint(0, len(frames)), self._frame())

    def _remove(self, frames: list[bytes]) -> None:
        if frames:
            del frames[self._place(frames)]

    def _repeat(self, frames: list[bytes]) -> None:
        if frames:
            frames.insert(self._place(frames), frames[self._place(frames)])

    def _replace(self, frames: list[bytes]) -> None:
        if frames:
            frames[self._place(frames)] = self._frame()

    def _swap(self, frames: list[bytes]) -> None:
        if frames:
            one, other = self._place(frames), self._place(frames)
            frames[one], frames[other] = frames[other], frames[one]

    def _cut(self, frames: list[bytes]) -> None:
        if frames:
            place = self._place(frames)
            frames[place] = frames[place][: self._random.randint(0, len(frames[place]))]

    def _flip(self, frames: list[bytes]) -> None:
        if frames and (frame := bytearray(frames[place := self._place(frames)])):
            frame[int(self._random.random() * len(frame))] ^= 1 << self._random.randrange(8)
            frames[place] = bytes(frame)

    def _extend(self, frames: list[bytes]) -> None:
        if frames:
            frames[self._place(frames)] += self._frame()
