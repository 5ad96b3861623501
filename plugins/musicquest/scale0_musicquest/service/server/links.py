"""A server's place in the tree: its father, its children, and the broker that names the father.

No cycles: a server refuses a child that is one of its ancestors, and leaves a father whose path has itself in it. A
father that is lost is replaced: by his own father, else by whom the broker names. Without an answer of the broker the
server goes on with what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import attrs

from scale0_core.api import Connect, Disconnect, Effect, Frames, get_logger, printable, records
from scale0_musicquest import wire
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.neighbours import (
    CHILDREN,
    FATHER,
    Introduction,
    Neighbour,
    ident_of,
    path_of,
    read_addresses,
)
from scale0_musicquest.songs import endpoint_of

LOG = get_logger("plugin.musicquest-server")

BROKER = "broker"
ROOT = "none"
NEVER = float("inf")
FIRST_LEASE = 3.0
"""Seconds between reports, times three, until the broker has said how long its lease is."""
LONGEST_LEASE = 3600.0
ASK_AGAIN = 0.1
"""Seconds until a message is tried again that could not be sent, since the connection is not there yet."""
SHORTEST_PAUSE = 0.05
"""Seconds between two reports to the broker."""
PROBES = (0.05, 0.2, 1.0)
"""Seconds after a lost connection at which the children are asked whether they are still there."""
MOST_TRIES = 16
"""Servers that are asked to be the father before the broker is asked again."""


@attrs.define(eq=False)
class Attempt:
    """A server that was asked to be the father."""

    address: str
    ident: str
    ends: float
    again: float = NEVER


class Links:
    """Keeps the connections of the tree. ``gone`` collects neighbours that were lost, for whoever waits for them.

    Large, since looking for a father, having one, and taking children are one state machine.
    """

    def __init__(self, settings: MusicServerSettings, ident: str, report: Callable[[], dict[str, Any]]) -> None:
        self.ident = ident
        self.endpoint = settings.endpoint or settings.clients[0]
        self.children_endpoint = settings.children_endpoint or settings.children[0]
        self.father: Neighbour | None = None
        self.children: dict[bytes, Neighbour] = {}
        self.neighbours: set[Neighbour] = set()
        self.path: tuple[str, ...] = ()
        self.grandfather = ""
        self.gone: list[Neighbour] = []
        self.rejoined = 0
        self.broker_heard: float | None = None
        self._settings = settings
        self._beat = settings.heartbeat
        self._silence = settings.heartbeat * settings.liveness
        self._report = report
        self._told_father = settings.father if settings.father != ROOT else ""
        self._by_broker = not settings.father and bool(settings.broker)
        self._attempt: Attempt | None = None
        self._candidates: deque[tuple[str, str]] = deque()
        self._tried: set[str] = set()
        self._first = ""
        """The id of the father that the broker has named."""
        self._connected = ""
        self._lost: dict[str, float] = {}
        self._lease = FIRST_LEASE
        self._report_due = 0.0 if settings.broker else NEVER
        self._reported = -NEVER
        self._reports = count(1)
        self._left = False
        self._refused = ""
        self._beat_due = 0.0
        self._join_due = 0.0 if self._told_father else NEVER
        self._probes: deque[float] = deque()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When something is to be done."""
        attempt = self._attempt
        joining = min(attempt.ends, attempt.again) if attempt is not None else self._join_due
        probe = self._probes[0] if self._probes else NEVER
        return min(self._report_due, self._beat_due, joining, probe)

    def on_deadline(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self._beat_due <= now:
            effects += self._heartbeat(now)
        if self._probes and self._probes[0] <= now:
            while self._probes and self._probes[0] <= now:
                self._probes.popleft()
            effects += [child.say(wire.HUGZ, self._hugz()) for child in self.children.values() if child.extended]
        attempt = self._attempt
        if attempt is not None and attempt.ends <= now:
            self._note_lost(attempt.ident, now)
            effects += self._give_up(now, "no answer")
        elif attempt is not None and attempt.again <= now:
            attempt.again = NEVER
            effects += [(FATHER, (wire.ADD, self._introduction()))]
        elif attempt is None and self._join_due <= now:
            effects += self._join_told(now)
        if self._report_due <= now:
            effects += self._tell_broker(now)
        return effects

    def _heartbeat(self, now: float) -> list[Effect]:
        self._beat_due = now + self._beat
        self._lost = {ident: until for ident, until in self._lost.items() if until > now}
        effects: list[Effect] = []
        for neighbour in list(self.neighbours):
            if not neighbour.extended:
                continue
            if now - neighbour.heard > self._silence:
                effects += self.lose(neighbour, now, "silent")
            else:
                effects.append(neighbour.say(wire.HUGZ, self._hugz()))
        return effects

    def _hugz(self) -> bytes:
        return wire.to_json({"path": self.path, "grandfather": self._father_address})

    @property
    def _father_address(self) -> str:
        return self.father.children_endpoint if self.father is not None else ""

    # --- the broker ---------------------------------------------------------------------------------------------------

    @property
    def _needs_father(self) -> bool:
        """Whether the broker is to name a father now."""
        return self._by_broker and self.father is None and self._attempt is None

    def _tell_broker(self, now: float) -> list[Effect]:
        self._reported = now
        soon = self._needs_father and self.broker_heard is None
        self._report_due = now + (self._beat / 2 if soon else self._lease / 3)
        table = {
            "id": self.ident,
            "children_endpoint": self.children_endpoint,
            "slots": self._settings.slots,
            "capacity": self._settings.capacity,
            "children": [child.ident for child in self.children.values() if child.ident],
            "father": self.father.ident if self.father is not None else "",
            "path": self.path,
            "father_endpoint": self._father_address,
            "wants_father": self._by_broker,
            "lost": list(self._lost),
            "sequence": next(self._reports),
            **self._report(),
        }
        return [(BROKER, (b"", self.endpoint.encode(), wire.to_json(table)))]

    def from_broker(self, frames: Frames, now: float) -> list[Effect]:
        """Take an answer of the broker."""
        body = frames[1:] if frames and not len(frames[0]) else frames
        if not body or bytes(body[0]) != wire.OK:
            LOG.warning("the music broker refuses this server", answer=printable(b" ".join(map(bytes, body[:2]))))
            return []
        self.broker_heard = now
        if len(body) == 1:  # an original broker: it names no father
            return []
        table = records.table_of(wire.from_json(body[1]))
        lease = records.whole_of(table, "lease_ms", 10_000) / 1000
        self._lease = min(max(lease, 0.03), LONGEST_LEASE)
        self._report_by(now + self._lease / 3, now)
        refused = records.text_of(table, "refused", "")
        if refused and refused != self._refused:
            LOG.warning("the music broker names no father", reason=refused)
        self._refused = refused
        father = table.get("father")
        if father is None or not self._needs_father:
            return []
        named = records.table_of(father)
        return self._try([(endpoint_of(named, "children_endpoint"), ident_of(named, "id"))], now)

    def tell_broker_soon(self, now: float) -> None:
        """Report at once: something has changed that the broker decides by."""
        self._report_by(self._reported + SHORTEST_PAUSE, now)

    def _report_by(self, when: float, now: float) -> None:
        if self._settings.broker and not self._left:
            self._report_due = min(self._report_due, max(when, now))

    # --- finding a father ---------------------------------------------------------------------------------------------

    def _join_told(self, now: float) -> list[Effect]:
        self._join_due = NEVER
        return self._try([(self._told_father, "")], now) if self.father is None else []

    def _try(self, candidates: Iterable[tuple[str, str]], now: float) -> list[Effect]:
        """Begin a round: ask these servers, one after the other, and those that they name."""
        self._tried = set()
        self._candidates = deque(candidates)
        self._first = self._candidates[0][1] if self._candidates else ""
        return self._next(now)

    def _next(self, now: float) -> list[Effect]:
        """Ask the next server to be the father; when there is none left, the broker."""
        self._attempt = None
        effects: list[Effect] = []
        if self.path:  # the father is lost for good: until there is another, this is a root
            self.path, self.grandfather = (), ""
            effects += self._tell_children()
        below = {child.children_endpoint for child in self.children.values()}
        while self._candidates and len(self._tried) < MOST_TRIES:
            address, ident = self._candidates.popleft()
            if address in self._tried or address == self.children_endpoint or address in below:
                continue
            self._tried.add(address)
            self._attempt = Attempt(address, ident, now + self._beat)
            return [*effects, *self._connect(address), (FATHER, (wire.ADD, self._introduction()))]
        if self._told_father:
            self._join_due = now + self._beat
        elif self._by_broker:
            if self._first:  # neither he nor those below him: the broker shall name another
                self._note_lost(self._first, now)
            self._report_by(self._reported + self._beat / 4, now)
        return [*effects, *self._connect("")]

    def _connect(self, address: str) -> list[Effect]:
        effects: list[Effect] = []
        if self._connected:
            effects.append(Disconnect(FATHER, self._connected))
        if address:
            effects.append(Connect(FATHER, address))
        self._connected = address
        return effects

    def _introduction(self) -> bytes:
        return wire.to_json({"id": self.ident, "endpoint": self.endpoint, "children_endpoint": self.children_endpoint})

    def _give_up(self, now: float, why: str) -> list[Effect]:
        if self._attempt is not None:
            LOG.debug("a server does not become the father", address=self._attempt.address, why=why)
        return self._next(now)

    def accepted(self, frames: Frames, now: float) -> list[Effect]:
        """Take the father's ``OK``."""
        attempt = self._attempt
        if attempt is None:
            return []
        if not frames:  # an original server: all that is known of it is its address
            self._join(Neighbour(b"", "", "", attempt.address, extended=False, heard=now), (), "", now)
            return self._tell_children()
        told = Introduction.read(frames[0])
        if not self._is_asked(attempt, told):
            # from a server that was asked before; the one that is asked now may still answer
            LOG.debug("the answer is not of the server that was asked", id=told.ident, asked=attempt.address)
            return []
        path = (told.ident, *told.path)
        if self.ident in path or any(child.ident == told.ident for child in self.children.values()):
            return self._give_up(now, "it is below this server")
        father = Neighbour(b"", told.ident, told.endpoint, attempt.address, extended=True, heard=now)
        self._join(father, path, told.grandfather, now)
        return self._tell_children()

    def _is_asked(self, attempt: Attempt, told: Introduction) -> bool:
        """Tell whether an answer is of the server that was asked; who has started anew there is another, but is it."""
        if told.children_endpoint == attempt.address or (attempt.ident and told.ident == attempt.ident):
            return True
        # an operator may write the address of a father in another way than he does himself
        return attempt.address == self._told_father and told.children_endpoint not in self._tried

    def _join(self, father: Neighbour, path: tuple[str, ...], grandfather: str, now: float) -> None:
        self._attempt = None
        self._candidates.clear()
        self.father = father
        self.neighbours.add(father)
        self.path, self.grandfather = path, grandfather
        self.rejoined += 1
        self.tell_broker_soon(now)
        LOG.info("joined the tree", father=father.children_endpoint, ancestors=len(path))

    def full(self, frames: Frames, now: float) -> list[Effect]:
        """Take the answer that a server has as many children as it may, and ask those."""
        if self._attempt is None:
            return []
        self._candidates.extend((address, "") for address in (read_addresses(frames[0]) if frames else ()))
        return self._give_up(now, "full")

    def refused(self, reason: str, now: float) -> list[Effect]:
        """Take the answer that a server does not want this one below it."""
        if self._attempt is None:
            return []
        self._note_lost(self._attempt.ident, now)
        return self._give_up(now, reason)

    def forgotten(self, now: float) -> list[Effect]:
        """Take the father's word that he does not know this server."""
        return self._add_again(now)

    def cannot_connect(self, address: str, reason: str, now: float) -> list[Effect]:
        """Take note that the father's address is not one that may be used."""
        LOG.warning("the father's address cannot be used", address=printable(address), reason=reason)
        if self._attempt is None or self._attempt.address != address:
            return []
        self._connected = ""
        return self._give_up(now, reason)

    def _add_again(self, now: float) -> list[Effect]:
        """Introduce this server to its father once more; without an answer, the father is lost."""
        father = self.father
        if father is None or self._attempt is not None:
            return []
        self.neighbours.discard(father)
        self.gone.append(father)
        self.father = None
        self._attempt = Attempt(father.children_endpoint, father.ident, now + self._beat)
        self._tried = {father.children_endpoint}
        self._candidates = deque(self._above())
        return [(FATHER, (wire.ADD, self._introduction()))]

    # --- the father ---------------------------------------------------------------------------------------------------

    def father_says(self, table: object, now: float) -> list[Effect]:
        """Take the father's sign of life: his ancestors, and his father's address."""
        father = self.father
        told = records.table_of(table)
        if father is None:
            return []
        path = (father.ident, *path_of(told))
        self.grandfather = endpoint_of(told, "grandfather", "")
        if path == self.path:
            return []
        if self.ident in path:
            LOG.warning("the father is below this server; leaving it", father=father.ident)
            return self.lose(father, now, "below this server")
        self.path = path
        self.tell_broker_soon(now)
        return self._tell_children()

    def _tell_children(self) -> list[Effect]:
        hugz = self._hugz()
        return [child.say(wire.HUGZ, hugz) for child in self.children.values() if child.extended]

    def connection_lost(self, socket: str, now: float) -> list[Effect]:
        """Take note that a connection has ended."""
        if socket == CHILDREN:
            self._probes = deque(now + pause for pause in PROBES)
            return []
        return self._add_again(now)

    def undelivered(self, socket: str, peer: bytes, now: float) -> list[Effect]:
        """Take note that a message to a neighbour or the broker could not be sent."""
        if socket == CHILDREN:
            child = self.children.get(peer)
            return self.lose(child, now, "not reachable") if child is not None else []
        if socket == BROKER:
            self._report_by(now + max(ASK_AGAIN, self._beat / 4), now)
            return []
        if self._attempt is not None:
            self._attempt.again = now + ASK_AGAIN
            return []
        return self._add_again(now)

    # --- the children -------------------------------------------------------------------------------------------------

    def add(self, peer: bytes, frames: Frames, now: float) -> list[Effect]:
        """Take a child, or send it on to others."""
        told = Introduction.read(frames[0]) if frames else None
        known = self._known_child(peer, told)
        if told is not None and (why := self._refusal(told)):
            effects = self.lose(known, now, why) if known is not None else []
            return [*effects, (CHILDREN, (peer, wire.ERROR, why.encode()))]
        if known is None and len(self.children) >= self._settings.slots:
            others = [child.children_endpoint for child in self.children.values() if child.children_endpoint]
            return [(CHILDREN, (peer, wire.FULL, wire.to_json(others)))]
        if known is not None:  # it has come back by another connection, or has forgotten what it asked for
            self._forget(known)
        if told is None:
            child = Neighbour(peer, "", "", "", extended=False, heard=now)
        else:
            child = Neighbour(peer, told.ident, told.endpoint, told.children_endpoint, extended=True, heard=now)
        self.children[peer] = child
        self.neighbours.add(child)
        self.tell_broker_soon(now)
        return [child.send(wire.OK) if told is None else child.send(wire.OK, self._acceptance())]

    def _known_child(self, peer: bytes, told: Introduction | None) -> Neighbour | None:
        if peer in self.children or told is None:
            return self.children.get(peer)
        return next((child for child in self.children.values() if child.ident == told.ident), None)

    def _refusal(self, told: Introduction) -> str:
        """Say why a server cannot be a child; nothing, when it can."""
        if told.ident == self.ident:
            return "this is the server itself"
        if told.ident in self.path or (self.father is not None and told.ident == self.father.ident):
            return "this server is below the one that asks"
        attempt = self._attempt
        both = attempt is not None and told.children_endpoint == attempt.address
        # each wants to be the child of the other: one of them must give in
        return "this server asks to be below the one that asks" if both and self.ident < told.ident else ""

    def _acceptance(self) -> bytes:
        return wire.to_json(
            {
                "id": self.ident,
                "endpoint": self.endpoint,
                "children_endpoint": self.children_endpoint,
                "path": self.path,
                "grandfather": self._father_address,
                "heartbeat_ms": round(self._beat * 1000),
            }
        )

    # --- losing neighbours --------------------------------------------------------------------------------------------

    def lose(self, neighbour: Neighbour, now: float, why: str) -> list[Effect]:
        """Do without a neighbour; a father is replaced."""
        if neighbour not in self.neighbours:
            return []
        LOG.info("lost a neighbour", id=neighbour.ident, father=neighbour.is_father, why=why)
        self._forget(neighbour)
        self.tell_broker_soon(now)
        if not neighbour.is_father:
            return []
        self._note_lost(neighbour.ident, now)
        following = self._above()
        if self._told_father:
            following.append((self._told_father, ""))
        effects = self._try(following, now)
        self._first = ""  # the broker has named none of these
        return effects

    def _above(self) -> list[tuple[str, str]]:
        """Give the father's father, if there is one: his address, and his id."""
        return [(self.grandfather, self.path[1] if len(self.path) > 1 else "")] if self.grandfather else []

    def _forget(self, neighbour: Neighbour) -> None:
        self.neighbours.discard(neighbour)
        self.gone.append(neighbour)
        if neighbour.is_father:
            self.father = None
        else:
            self.children.pop(neighbour.peer, None)

    def _note_lost(self, ident: str, now: float) -> None:
        if ident:
            self._lost[ident] = now + 1.5 * self._lease

    def goodbye(self) -> list[Effect]:
        """Give the last words to all neighbours and the broker."""
        words: list[Effect] = [neighbour.say(wire.BYE) for neighbour in self.neighbours if neighbour.extended]
        if self._settings.broker:
            words.append((BROKER, (b"", wire.BYE, self.endpoint.encode(), wire.to_json({"id": self.ident}))))
        self._left = True
        self._report_due = self._beat_due = NEVER
        return words


def describe(neighbours: Sequence[Neighbour]) -> list[dict[str, str]]:
    """Give what is known of some neighbours as JSON's types."""
    return [
        {"id": one.ident, "endpoint": one.endpoint, "children_endpoint": one.children_endpoint} for one in neighbours
    ]
