"""Music servers of the generated world: songs, who holds them, and how the taste of the day changes."""

from __future__ import annotations

import attrs
import numpy as np

from scale0_telemetry.generator.plan import DAY_US, Plan

SERVERS = 6
FIRST_PORT = 4401
EXPONENT = 1.0
"""Of Zipf's law: the n-th song is asked for 1/n times as often as the first."""
MOST_SONGS = 5000
REPLICAS_A_DAY = 3
NEVER = np.int32(2**31 - 1)
ADJECTIVES = ("Blue", "Silent", "Golden", "Broken", "Distant", "Electric", "Paper", "Wild", "Hidden", "Early")
NOUNS = ("River", "Harbour", "Summer", "Machine", "Garden", "Signal", "Window", "Mountain", "Letter", "Parade")


@attrs.frozen(eq=False)
class Music:
    """Songs and servers; ``held_since`` says from which day on a server has a song."""

    songs: tuple[str, ...]
    servers: tuple[str, ...]
    server_share: np.ndarray
    cumulated: np.ndarray
    """The chance that a request is for one of the first n of the day's ranking."""
    ranking: np.ndarray
    """For each day the songs, the most popular first."""
    home: np.ndarray
    """For each song the server that always had it."""
    held_since: np.ndarray
    replicas: tuple[tuple[int, int, int, int], ...]
    """Time, song, server and source of each copy that is made."""


def make_music(plan: Plan) -> Music:
    """Draw songs and servers."""
    chance = plan.chance(2)
    count = int(np.clip(plan.originals // 100, 40, MOST_SONGS))
    weights = 1.0 / np.arange(1, count + 1) ** EXPONENT
    ranking = _rankings(plan, count, chance)
    home = chance.integers(0, SERVERS, count)
    held_since = np.full((count, SERVERS), NEVER, dtype=np.int32)
    held_since[np.arange(count), home] = 0
    known = ranking[0, : max(2, count // 20)]  # what was popular at the beginning is at two places by then
    held_since[known, (home[known] + 1) % SERVERS] = 0
    replicas = _replicas(plan, ranking, home, held_since, chance)
    share = 1.0 / np.arange(1, SERVERS + 1) ** 0.5
    return Music(
        songs=tuple(f"{ADJECTIVES[n % 10]} {NOUNS[n // 10 % 10]} {n:04d}.ogg" for n in range(count)),
        servers=tuple(f"tcp://127.0.0.1:{FIRST_PORT + n}" for n in range(SERVERS)),
        server_share=share / share.sum(),
        cumulated=np.cumsum(weights / weights.sum()).astype(np.float32),
        ranking=ranking,
        home=home,
        held_since=held_since,
        replicas=replicas,
    )


def _rankings(plan: Plan, count: int, chance: np.random.Generator) -> np.ndarray:
    """Let some songs rise to the top every day, and those that were there fall."""
    order = chance.permutation(count).astype(np.int16)
    rankings = np.empty((plan.days, count), dtype=np.int16)
    top = max(1, count // 50)
    for day in range(plan.days):
        for _ in range(2):
            high, low = int(chance.integers(0, top)), int(chance.integers(0, count))
            order[[high, low]] = order[[low, high]]
        rankings[day] = order
    return rankings


def _replicas(
    plan: Plan, ranking: np.ndarray, home: np.ndarray, held_since: np.ndarray, chance: np.random.Generator
) -> tuple[tuple[int, int, int, int], ...]:
    """Copy a few popular songs every day to servers that lack them; they have them from the next day on."""
    made = []
    most = min(REPLICAS_A_DAY, plan.originals // (plan.days * 50))
    for day in range(plan.days):
        for when in np.sort(chance.integers(0, DAY_US, most)):
            song = int(ranking[day, chance.integers(0, min(50, ranking.shape[1]))])
            server = int(chance.integers(0, SERVERS))
            if held_since[song, server] == NEVER:
                held_since[song, server] = day + 1
                made.append((plan.start_us + day * DAY_US + int(when), song, server, int(home[song])))
    return tuple(made)
