"""A small world of clients and workers around the broker, which knows what may happen and insists on it.

It is written with lists and no thought of speed, and chooses nothing: who gets which request it learns from what the
broker sends, and checks that it was allowed.
"""

from __future__ import annotations

from itertools import count

import attrs

from .conversation import SOCKET, Majordomo, conserved, nothing_left

HEADS = {b"MDPC02": "0.2", b"S0MC01": "own", b"MDPW02": "0.2", b"S0MW01": "own"}
SLACK = 0.06
"""The broker looks for expired requests so often at most."""


@attrs.define(eq=False)
class Wish:
    """A request."""

    number: int
    client: str
    version: str
    service: str
    priority: int = 0
    key: str = ""
    deadline: float = float("inf")
    due: float = float("inf")
    tries: int = 0
    holder: Hand | None = None
    order: int = 0
    ended: str = ""
    parts: int = 0
    passed_on: bool = False
    put_back: bool = False
    """Whether the broker may have given it to a worker that was dead, and got it back."""

    @property
    def body(self):
        return b"%d" % self.number


@attrs.define(eq=False)
class Hand:
    """A worker."""

    peer: str
    version: str
    service: str
    credit: int
    holds: dict[bytes, Wish] = attrs.field(factory=dict)
    dead: bool = False
    draining: bool = False


class World:
    """Everybody but the broker."""

    def __init__(self, scheduling="lru", **settings):
        self.settings = {"max_queue": 6, "expiry": 5.0, "max_tries": 2, "heartbeat": 1.0, **settings}
        self.scheduling = scheduling
        self.broker = Majordomo(scheduling=scheduling, **self.settings)
        self.hands: dict[str, Hand] = {}
        self.queues: dict[str, list[Wish]] = {"s": [], "t": []}
        self.wishes: list[Wish] = []
        self.names = count(1)
        self.heads = count(-1, -1)
        self.owners: dict[str, str] = {}
        self.turns: dict[str, list[str]] = {"s": [], "t": []}
        """Clients with requests that wait and were not put back, the next one first."""
        self.gone: set[str] = set()

    # --- what peers do ---

    def join(self, version, service, credit):
        if version != "own":
            credit = 1
        hand = Hand(f"w{next(self.names)}", version, service, credit)
        self.hands[hand.peer] = hand
        self.owners.clear()
        self.broker.ready(hand.peer, service=service, version=version, **({"credit": credit} if credit > 1 else {}))
        self.listen()

    def leave(self, hand):
        self.forget(hand)
        self.broker.leave(hand.peer, hand.version)
        self.listen()

    def misbehave(self, hand):
        """Say what a worker may not say: it is sent away."""
        self.forget(hand)
        self.broker.ready(hand.peer, service=hand.service, version=hand.version)
        self.broker.sent_away(hand.peer, hand.version)
        self.listen()

    def drain(self, hand, begun):
        """Finish what was begun, and leave; the rest was on its way to the worker, and costs nobody a try."""
        hand.draining = True
        self.owners.clear()
        crossed = {address: wish for address, wish in hand.holds.items() if address not in begun}
        back = [wish for wish in crossed.values() if not wish.ended]
        for address in crossed:
            del hand.holds[address]
        for wish in reversed(back):
            assert not wish.parts
            wish.holder = None
            wish.tries -= 1
            self.wait(wish, first=True)
        self.broker.drain(hand.peer, *begun)
        self.listen()

    def die(self, hand):
        """Without a word; the broker notices when it sends something."""
        busy = bool(hand.holds)
        hand.dead = True
        self.broker.refuse(SOCKET, hand.peer)
        if busy:
            self.forget(hand)
        self.broker.lose_peer(SOCKET)
        self.sleep(0.1)

    def forget(self, hand):
        self.hands.pop(hand.peer, None)
        self.owners.clear()
        held = [wish for wish in hand.holds.values() if not wish.ended]
        back = []
        for wish in held:
            wish.holder = None
            wish.parts = 0
            if wish.passed_on or wish.tries >= self.settings["max_tries"]:
                self.end(wish, "failed")
            else:
                back.append(wish)
        for wish in reversed(back):
            self.wait(wish, first=True)

    def ask(self, client, version, service, **options):
        wish = Wish(len(self.wishes) + 1, f"c{client}", version, service)
        if version == "own":
            wish.priority, wish.key = options.get("priority", 0), options.get("key", "")
            wish.deadline = self.broker.now + options.get("timeout", float("inf")) / 1000
        else:
            options = {}
        wish.put_back = any(hand.dead and hand.service == service for hand in self.hands.values())
        self.wishes.append(wish)
        self.wait(wish)
        self.broker.ask(wish.client, wish.body, service=service, version=version, ident=str(wish.number), **options)
        self.listen()
        if wish in self.queues[service] and not self.has_room(wish) and version != "own":
            self.end(wish, "refused")  # those of our own dialect are told
        self.check()

    def has_room(self, wish):
        """Tell whether a request may wait that has just come: a client has at most four times what is free."""
        others = [each for each in self.queues[wish.service] if each is not wish]
        free = self.settings["max_queue"] - len(others)
        return free > 0 and sum(each.client == wish.client for each in others) < 4 * free

    def wait(self, wish, *, first=False):
        wish.due = self.broker.now + self.settings["expiry"]
        wish.order = next(self.heads) if first else wish.number
        self.queues[wish.service].append(wish)
        self.queues[wish.service].sort(key=lambda each: each.order)
        if not first and wish.client not in self.turns[wish.service]:
            self.turns[wish.service].append(wish.client)

    def end(self, wish, how):
        assert not wish.ended, (wish, how)
        wish.ended = how
        queue = self.queues[wish.service]
        if wish in queue:
            queue.remove(wish)
            self.leave_turn(wish)

    def leave_turn(self, wish):
        """Take a client out of those that have their turns, if it has nothing more there."""
        others = [each for each in self.queues[wish.service] if each.client == wish.client and each.order >= 0]
        if not others and wish.order >= 0:
            self.turns[wish.service].remove(wish.client)

    def reply(self, hand, address, how):
        wish = hand.holds[address]
        if how == "part" and hand.version != "0.1":
            if not wish.ended:
                wish.parts += 1
            self.broker.part(hand.peer, address, wish.body + b".%d" % wish.parts, version=hand.version)
        elif how == "error" and hand.version == "own":
            del hand.holds[address]
            if wish.version != "own" and not wish.ended:
                self.end(wish, "errors")
            self.broker.worker_error(hand.peer, address, "555", "broken")
        else:
            del hand.holds[address]
            self.broker.reply(hand.peer, address, wish.body + b"!", version=hand.version)
        self.listen()

    def cancel(self, wish):
        self.broker.cancel(wish.client, str(wish.number))
        self.listen()
        if wish.version == "own":
            assert wish.ended

    def sleep(self, seconds):
        """Let time pass; the living send heartbeats."""
        until = self.broker.now + seconds
        while self.broker.now < until:
            self.broker.sleep(min(0.5, until - self.broker.now))
            self.listen()
            for hand in list(self.hands.values()):
                if not hand.dead:
                    self.broker.beat(hand.peer, hand.version)
            self.listen()
            self.notice_expired()
        self.check()

    def notice_expired(self):
        """MDP's clients are not told when a request expires: look for those the broker has no more."""
        there = {bytes(r.body[0]) for s in self.broker.service._services.values() for r in s.all_waiting()}
        for queue in self.queues.values():
            for wish in [wish for wish in queue if wish.body not in there]:
                assert wish.version != "own", "it would have been told"
                assert wish.due <= self.broker.now, "it vanished before its time"
                self.end(wish, "expired")

    # --- what they hear ---

    def listen(self):
        for frames in self.broker.all_sent():
            self.hear(frames[0].decode(), frames[1:])

    def hear(self, peer, frames):
        if peer.startswith("w"):
            hand = self.hands[peer]
            assert not hand.dead
            skip = 2 if hand.version == "0.1" else 1
            command = frames[skip]
            if command == b"\x02":
                self.given(hand, frames[skip + 1 :])
            elif command == b"\x08":
                assert hand.version == "own"
                assert frames[skip + 1] in hand.holds
            else:
                assert command == (b"\x04" if hand.version == "0.1" else b"\x05"), "nobody is sent away without reason"
        elif frames[0] == b"":
            _, header, service, *body = frames
            assert header == b"MDPC01"
            self.answered(peer, "0.1", service, body, b"")
        else:
            version = HEADS[frames[0]]
            command = frames[1]
            ident = frames[2] if version == "own" else b""
            service, *body = frames[2:] if version == "0.2" else (frames[3], *frames[4:])
            if command == b"\x04":
                self.failed(peer, ident, int(body[0]))
            else:
                body = body if version == "0.2" else body[1:]
                self.answered(peer, version, service, body, ident, part=command == b"\x02")

    def given(self, hand, frames):
        address = frames[0]
        wish = self.wishes[int(frames[-1]) - 1]
        assert not wish.ended, "what has ended is not given to anybody"
        assert wish.holder is None, "nobody else has it"
        assert wish.service == hand.service
        assert not hand.draining, "it takes no more"
        assert len(hand.holds) < hand.credit, "nobody gets more than it can take"
        queue = self.queues[wish.service]
        if self.scheduling in ("lru", "least"):
            self.check_turn(queue, wish)
        elif self.scheduling == "priority":
            most = max(each.priority for each in queue)
            assert wish.priority == most
            assert wish is self.first_of(wish, [each for each in queue if each.priority == most])
        elif wish.key and not any(each.dead for each in self.hands.values()):
            assert self.owners.setdefault(wish.service + wish.key, hand.peer) == hand.peer
        queue.remove(wish)
        wish.holder = hand
        wish.tries += 1
        assert wish.tries <= self.settings["max_tries"]
        hand.holds[address] = wish

    def check_turn(self, queue, wish):
        """Insist on first come, first served within a client, and on turns between clients."""
        assert wish is self.first_of(wish, queue)
        if wish.order < 0:
            return
        turns = self.turns[wish.service]
        more = any(each is not wish and each.client == wish.client and each.order >= 0 for each in queue)
        if not wish.put_back:
            # what has expired for a client of MDP is noticed later; what was put back has no turn
            before = turns[: turns.index(wish.client)]
            passed = [each for each in queue if each.client in before]
            assert all(each.due <= self.broker.now or each.put_back for each in passed), "round robin by client"
        turns.remove(wish.client)
        if more:
            turns.append(wish.client)

    def first_of(self, wish, queue):
        """Give the request that a client would get first; what was put back comes before all others."""
        again = [each for each in queue if each.order < 0]
        return min(again or [each for each in queue if each.client == wish.client], key=lambda each: each.order)

    def answered(self, client, version, service, body, ident, *, part=False):
        wish = self.wishes[int(body[-1].rstrip(b"!").split(b".")[0]) - 1]
        assert (wish.client, wish.version, wish.service.encode()) == (client, version, service)
        assert not ident or int(ident) == wish.number
        assert wish.holder is not None
        if part:
            assert body == [wish.body + b".%d" % wish.parts]
            wish.passed_on = True
            return
        collected = [wish.body + b".%d" % (number + 1) for number in range(wish.parts)] if version == "0.1" else []
        assert body == [*collected, wish.body + b"!"]
        self.end(wish, "replies")

    def failed(self, client, ident, code):
        wish = self.wishes[int(ident) - 1]
        assert wish.client == client
        now = self.broker.now
        if code == 502:
            assert wish.ended == "failed"
            wish.ended = "failed and told"
            return
        waiting = wish in self.queues[wish.service]
        if code == 429:
            assert waiting
            assert not self.has_room(wish)
        self.end(wish, {408: "expired", 410: "cancelled", 429: "refused", 555: "errors"}[code])
        if code == 408:
            assert wish.deadline <= now or (waiting and wish.due <= now)

    # --- what must hold at any time ---

    def check(self):
        conserved(self.broker.service)
        service = self.broker.service
        for name, queue in self.queues.items():
            desk = service._services.get(name.encode())
            waiting = [] if desk is None else [int(bytes(r.body[0])) for r in desk.all_waiting()]
            assert sorted(waiting) == sorted(wish.number for wish in queue)
            late = self.broker.now - SLACK
            assert all(wish.due > late and wish.deadline > late for wish in queue), "it should have expired"
            there = [h for h in self.hands.values() if h.service == name and not (h.dead or h.draining)]
            free = [h for h in there if len(h.holds) < h.credit]
            if self.scheduling != "sticky":
                assert not (queue and free), "nobody idles while requests wait"
        for hand in self.hands.values():
            known = service._workers.get(hand.peer.encode())
            assert known is not None or hand.dead
            assert hand.dead or set(known.in_hand) == set(hand.holds)
        for wish in self.wishes:
            if not wish.ended:
                assert wish.holder is not None or wish in self.queues[wish.service], "no request is lost"
            if wish.ended == "failed":
                assert wish.version != "own", "it was to be told"

    def finish(self):
        """Let everybody go: nothing is left, and every request has ended one way."""
        for hand in list(self.hands.values()):
            if hand.dead:
                del self.hands[hand.peer]
        self.sleep(4.0)
        for hand in list(self.hands.values()):
            self.leave(hand)
        self.sleep(self.settings["expiry"] + 1.0)
        nothing_left(self.broker.service)
        totals = self.broker.totals
        assert totals["requests"] == len(self.wishes)
        for how in ("replies", "expired", "refused", "errors", "cancelled", "failed"):
            assert totals[how] == sum(wish.ended.split()[0] == how for wish in self.wishes), how


def options_from(random):
    """Give options of a request, most of the time none."""
    choices = {
        "timeout": lambda: random.choice([200, 1500, 3000]), "priority": lambda: random.randrange(3),
        "key": lambda: random.choice("xyz"),
    }  # fmt: skip
    return {name: choose() for name, choose in choices.items() if random.random() < 0.4}


def drain(world, random, hand):
    """Let a worker drain that has begun some of its requests, and surely those of which it has sent a part."""
    begun = [address for address, wish in hand.holds.items() if wish.parts or wish.passed_on or random.random() < 0.5]
    world.drain(hand, begun)


def step(world, random):
    """Do something at random."""
    hands = [hand for hand in world.hands.values() if not hand.dead]
    busy = [hand for hand in hands if hand.holds]
    roll = random.random()
    if roll < 0.4:
        version, service = random.choice(["0.1", "0.2", "own"]), random.choice("sst")
        world.ask(random.randrange(3), version, service, **options_from(random))
    elif roll < 0.75 and busy:
        hand = random.choice(busy)
        how = random.choice(["final", "final", "final", "part", "error"])
        world.reply(hand, random.choice(list(hand.holds)), how)
    elif roll < 0.83:
        if len(hands) < 6:
            world.join(random.choice(["0.1", "0.2", "own"]), random.choice("sst"), random.choice([1, 2, 4]))
    elif roll < 0.9:
        world.sleep(random.choice([0.01, 0.3, 1.0, 3.0]))
    elif roll < 0.95 and world.wishes:
        wish = random.choice(world.wishes[-10:])
        if wish.version == "own" and not wish.ended:
            world.cancel(wish)
    elif roll < 0.97:
        own = [hand for hand in hands if hand.version == "own" and not hand.draining]
        if own:
            drain(world, random, random.choice(own))
    elif hands:
        random.choice([world.leave, world.die, world.misbehave])(random.choice(hands))
    world.check()
