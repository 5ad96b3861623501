"""error_clients: connections that break the protocol again and again are met with silence for a while.

Counted by connection, not by the identity it claims: identities are chosen by the sender, and a stranger must not be
able to lock somebody else out.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs

from scale0_core.network.workers import ClientKey

MOST_REMEMBERED = 10_000
"""Connections whose errors are remembered; the ones heard of longest ago are forgotten first."""


@attrs.define
class Offender:
    """What one connection did wrong."""

    identity: str = ""
    errors: int = 0
    recent: deque[float] = attrs.field(factory=deque)
    reason: str = ""
    since: float = 0.0
    until: float = 0.0
    penalties: int = 0


class Offenders:
    """Counts errors and says who is to be ignored."""

    def __init__(self, threshold: int, window: float, penalty: float) -> None:
        self.threshold, self.window, self.penalty = threshold, window, penalty
        self._known: OrderedDict[ClientKey, Offender] = OrderedDict()
        self.silenced: dict[ClientKey, Offender] = {}

    def note(self, key: ClientKey, reason: str, now: float, identity: str = "") -> bool:
        """Count an error; tell whether the connection is silenced from now on."""
        offender = self._known.get(key)
        if offender is None:
            offender = self._known[key] = Offender()
            if len(self._known) > MOST_REMEMBERED:
                self._forget_oldest()
        self._known.move_to_end(key)
        offender.identity = identity or offender.identity
        offender.errors += 1
        offender.reason = reason
        offender.recent.append(now)
        while offender.recent[0] < now - self.window:
            offender.recent.popleft()
        if len(offender.recent) < self.threshold:
            return False
        offender.recent.clear()
        offender.since = now
        offender.until = now + self.penalty * 2**offender.penalties
        offender.penalties = min(offender.penalties + 1, 10)
        self.silenced[key] = offender
        return True

    def ignores(self, key: ClientKey, now: float) -> bool:
        """Tell whether a message from this connection is to be dropped without an answer."""
        offender = self.silenced.get(key)
        if offender is None:
            return False
        if now < offender.until:
            return True
        del self.silenced[key]
        return False

    def listing(self, now: float) -> list[dict[str, object]]:
        """List who is silenced, why, and for how long still."""
        return [
            {
                "connection": f"{socket}/{routing_id.hex()}",
                "identity": offender.identity,
                "errors": offender.errors,
                "reason": offender.reason,
                "for_seconds": round(now - offender.since, 3),
                "seconds_left": round(offender.until - now, 3),
            }
            for (socket, routing_id), offender in self.silenced.items()
            if now < offender.until
        ]

    def clear(self, identity: str = "") -> int:
        """Forgive those that claim an identity, or all; give their number."""
        keys = [
            key
            for key, offender in self._known.items()
            if not identity or identity in (offender.identity, f"{key[0]}/{key[1].hex()}")
        ]
        forgiven = sum(1 for key in keys if self.silenced.pop(key, None) is not None)
        for key in keys:
            del self._known[key]
        return forgiven

    def _forget_oldest(self) -> None:
        key, _ = self._known.popitem(last=False)
        self.silenced.pop(key, None)
