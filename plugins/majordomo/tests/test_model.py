"""Long random conversations of many peers with the broker, against a world that knows what is allowed."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.testing.frames import as_delivered

from .conversation import SOCKET, conserved, make_service
from .world import World, step

SCHEDULING = ["lru", "least", "priority", "sticky"]


@pytest.mark.parametrize("scheduling", SCHEDULING)
@pytest.mark.seeds(4)
def test_long_conversations(scheduling, seed):
    """Each request is answered at most once, to its client, and none is lost without a reason that is counted."""
    random = Random(f"{scheduling} {seed}")
    world = World(scheduling)
    for _ in range(1500):
        step(world, random)
    world.finish()
    ends = {wish.ended for wish in world.wishes}
    assert {"replies", "expired", "refused", "cancelled", "errors"} <= ends


@given(st.sampled_from(SCHEDULING), st.randoms(use_true_random=False), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_short_conversations(scheduling, random, steps):
    """The same, from ever other beginnings."""
    world = World(scheduling, max_queue=3)
    for _ in range(steps):
        step(world, random)
    world.finish()


# --- a million malformed messages -------------------------------------------------------------------------------------

GOOD = [
    (b"", b"MDPC01", b"echo", b"x"), (b"", b"MDPW01", b"\1", b"echo"), (b"", b"MDPW01", b"\3", b"1", b"", b"x"),
    (b"", b"MDPW01", b"\4"), (b"", b"MDPW01", b"\5"), (b"MDPC02", b"\1", b"echo", b"x"), (b"MDPW02", b"\1", b"echo"),
    (b"MDPW02", b"\3", b"1", b"", b"x"), (b"MDPW02", b"\4", b"1", b"", b"x"), (b"MDPW02", b"\5"), (b"MDPW02", b"\6"),
    (b"S0MC01", b"\1", b"id", b"echo", b'{"timeout": 9}', b"x"), (b"S0MC01", b"\5", b"id"),
    (b"S0MW01", b"\1", b"echo", b'{"credit": 2}'), (b"S0MW01", b"\4", b"1", b"", b"x"),
    (b"S0MW01", b"\7", b"1", b"500", b"x"), (b"S0MW01", b"\x09", b"1"), (b"", b"MDPC01", b"mmi.service", b"echo"),
]  # fmt: skip
ODD = [b"", b"\0", b"\1", b"\xff" * 9, b"MDPC01", b"MDPW02", b"S0MW01", b"echo", b"x" * 300, b"x" * 9000, b"{"]


def torture(messages, seed=0):
    """Feed a service with damaged messages; give it back."""
    random = Random(seed)
    service = make_service(max_queue=50, max_services=20, expiry=1.0, heartbeat=0.1)
    now = 0.0
    for number in range(messages):
        frames = list(random.choice(GOOD))
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            place = random.randrange(len(frames) + 1)
            if random.random() < 0.3:
                del frames[place:]
            elif random.random() < 0.5:
                frames[place : place + 1] = [random.choice(ODD)]
            else:
                frames.insert(place, random.choice(ODD))
        service.receive(SOCKET, as_delivered((b"\0%d" % random.randrange(30), *frames), 8192), now)
        now += 0.001
        due = service.next_deadline()
        if due is not None and due <= now:
            service.on_deadline(now)
        if number % 997 == 0:
            conserved(service)
    return service


def test_damaged_messages_do_no_harm():
    """bench/majordomo_faults.py has a million of them, for a real broker too."""
    service = torture(20_000)
    totals = service.totals()
    assert totals["malformed"] > 5000
    assert totals["requests"] > 500
    json.dumps(totals)
    conserved(service)
