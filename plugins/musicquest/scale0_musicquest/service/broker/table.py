"""The servers that a music broker knows: their leases, how many clients each has, and their tree.

How brokers would share it
--------------------------
``Table.entries`` gives the table as values that need no common clock: an entry has the server's id, its *version* (the
epoch, which grows with each start of the server, and the sequence, which grows with each report), and its *age* in
seconds instead of a time. Brokers that tell each other their entries now and then, in any order and as often as they
like, would come to the same table by ``merged``:

- Of two entries of a server the one with the higher version counts. A farewell is an entry as well (``gone``), with
  the version of the last report; at the same version it wins, and it is kept for one lease, until all have heard of it.
- At the same version the smaller age is nearer to the truth: whoever heard the server directly has it.
- A broker adds the time that an entry was with it to its age, and drops it when the age exceeds the lease. So a server
  has to report to one of the brokers only.
- Clients assigned since the report are counted by each broker for itself and added up by the reader: they are the one
  field that a broker may know better than a newer entry says, and they go with the next report.
- Fathers are decided by one broker only, the one with the lowest name among those that hear each other; the others pass
  ``wants_father`` on. The fathers in its entries are what the others tell their servers. When that broker is gone, the
  next one adopts the fathers that servers report, exactly as after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

import attrs

from scale0_core.api import Deadlines
from scale0_musicquest.service.broker.report import Report
from scale0_musicquest.service.broker.tree import Tree

OVERDUE = 0.4
"""The part of a lease after which a server has missed a report; the next of those who lost it ends its lease."""

GRAIN = 0.05


class TableFullError(Exception):
    """There are as many servers as there may be."""


@attrs.define(eq=False)
class Server:
    """One server, as this broker knows it."""

    report: Report
    heard: float
    version: tuple[int, int] = (0, 0)
    assigned: int = 0
    """Clients that were given this server since its last report."""
    turn: int = 0
    """When it was given to a client last; 0 for never."""
    ticket: int = 0
    """Its newest place in the queue of those that may be given to clients."""

    @property
    def clients(self) -> int:
        """How many clients it has: those it reported, and those that were sent to it since."""
        return self.report.clients + self.assigned


@attrs.frozen(kw_only=True)
class Entry:
    """What brokers would tell each other of one server."""

    report: Report
    version: tuple[int, int]
    age: float
    assigned: int = 0
    father: str | None = None
    gone: bool = False


def merged(one: Entry, other: Entry) -> Entry:
    """Give the one of two entries of a server that counts."""
    return max(one, other, key=lambda entry: (entry.version, entry.gone, -entry.age, repr(entry)))


@attrs.frozen
class Placing:
    """What a server is told of its place in the tree."""

    father: str
    """An id; nothing for a root, and for a server that stands apart."""
    father_endpoint: str
    root: str
    refused: str = ""
    """Why a server that wants a father has none."""


class Table:
    """All servers."""

    def __init__(
        self,
        *,
        lease: float = 10.0,
        original_lease: float = 86400.0,
        original_stay: float = 600.0,
        max_servers: int = 1_000,
    ) -> None:
        self.tree = Tree()
        self._lease, self._original_lease, self._original_stay = lease, original_lease, original_stay
        self._max_servers = max_servers
        self._servers: dict[str, Server] = {}
        self._at: dict[str, str] = {}
        """The id of the server at each endpoint."""
        self._leases: Deadlines[str, str] = Deadlines(GRAIN)
        self._stays: Deadlines[str, str] = Deadlines(GRAIN)
        self._expecting: float | None = None
        """Until when fathers may be named that did not report yet."""
        self._queue: list[tuple[float, int, int, str]] = []
        self._tickets = 0
        self._turns = 0

    def __len__(self) -> int:
        return len(self._servers)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def __contains__(self, server: str) -> bool:
        return server in self._servers

    def __getitem__(self, server: str) -> Server:
        return self._servers[server]

    def entries(self, now: float) -> list[Entry]:
        """Give the table as values that another broker could use."""
        return [
            Entry(
                report=server.report,
                version=server.version,
                age=max(0.0, now - server.heard),
                assigned=server.assigned,
                father=self.tree.father(ident) if ident in self.tree else server.report.father,
            )
            for ident, server in self._servers.items()
        ]

    def father(self, server: str) -> str:
        """Give the id of a server's father; nothing when it has none."""
        return (self.tree.father(server) or "") if server in self.tree else self._servers[server].report.father

    def is_root(self, server: str) -> bool:
        """Whether a server is at the top of a tree: of the broker's, or of one of its own."""
        if server in self.tree:
            return self.tree.root == server
        report = self._servers[server].report
        return not report.original and not report.father

    # --- registration -------------------------------------------------------------------------------------------------

    def hear(self, report: Report, now: float) -> Placing:
        """Take a report, which begins or renews a lease, and say where the server's place in the tree is."""
        known = self._servers.get(report.id)
        if known is not None and report.version is not None and report.version <= known.version:
            return self._placing(report.id)  # repeated, or overtaken by a later one
        self._make_room(report)
        server = self._note(report, now)
        refused = self._find_place(report, now, new=known is None)
        self._enqueue(server)
        return self._placing(report.id, refused)

    def forget(self, server: str) -> None:
        """Forget a server; those below it will be given another father when they report next."""
        known = self._servers.pop(server, None)
        if known is not None:
            self._at.pop(known.report.endpoint, None)
            self._leases.remove(server)
            self._stays.remove(server)
            self.tree.remove(server)

    def leave(self, endpoint: str, server: str = "") -> bool:
        """Let the server at an endpoint go, if it is the one that is named; says whether it was known."""
        known = self._at.get(endpoint)
        if known is None or (server and server != known):
            return False
        self.forget(known)
        return True

    def _make_room(self, report: Report) -> None:
        """Have the newest announcement of an endpoint count, and see that there are not too many servers."""
        before = self._at.get(report.endpoint)
        if before is not None and before != report.id:
            self.forget(before)
        if report.id in self._servers or len(self._servers) < self._max_servers:
            return
        originals = [server for server in self._servers.values() if server.report.original]
        if report.original or not originals:
            raise TableFullError(f"there are {self._max_servers} servers already")
        # nobody knows whether these are still there
        self.forget(min(originals, key=lambda server: server.heard).report.id)

    def _note(self, report: Report, now: float) -> Server:
        server = self._servers.get(report.id)
        if server is None:
            server = self._servers[report.id] = Server(report, now)
        else:
            del self._at[server.report.endpoint]
            server.report, server.heard, server.assigned = report, now, 0
        epoch, sequence = server.version
        server.version = report.version or (epoch, sequence + 1)
        self._at[report.endpoint] = report.id
        lease = self._original_lease if report.original else self._lease
        if lease:
            self._leases.set(report.id, now + lease, report.id)
        else:
            self._leases.remove(report.id)
        return server

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _find_place(self, report: Report, now: float, *, new: bool) -> str:
        tree, ident = self.tree, report.id
        if not self._is_managed(report):
            tree.remove(ident)
            return self._circle(report)
        if not len(tree):
            self._expecting = now + self._lease
        tree.put(ident, report.slots, report.children)
        if tree.father(ident) in report.lost:
            tree.leave_father(ident)
        self._end_leases_of_lost(report, now)
        if new and report.children and not report.father:
            self._prefer_root_of_before(ident)
        if report.father and report.father not in report.lost:
            self._believe(report)
        return tree.place(ident, report.lost) if tree.father(ident) is None else ""

    def _is_managed(self, report: Report) -> bool:
        """Whether this broker decides on a server's father."""
        if report.original or report.wants_father:
            return not report.original
        if report.id not in self.tree:
            return False
        # one that asks no more, since it has what it was given or was sent on from there, is still the broker's
        return self.tree.father(report.id) == report.father or (
            report.father in self.tree and self.tree.adopt(report.id, report.father)
        )

    def _believe(self, report: Report) -> None:
        """Adopt the father that a server says it has: it may have moved by itself, or this broker be new."""
        father, path = report.father, report.path
        expected = False
        if self._expecting is not None and father not in self._servers:
            is_whole = bool(path) and path[0] == father and report.id not in path
            if is_whole and path[-1] not in self.tree:
                self._prefer_root_of_before(path[-1])
            expected = is_whole and self.tree.expect_root(path[-1])
        self.tree.adopt(report.id, father, expected=expected)

    def _prefer_root_of_before(self, ident: str) -> None:
        """Make way for the root of a tree that is older than this broker, when a newcomer was made root meanwhile."""
        root = self._servers.get(self.tree.root)
        if self._expecting is None or root is None or root.report.id == ident:
            return
        if not root.report.children and not self.tree.children(root.report.id):
            self.tree.unseat()

    def _end_leases_of_lost(self, report: Report, now: float) -> None:
        """Forget servers that have missed a report and that another one lost as well."""
        for lost in report.lost:
            server = self._servers.get(lost)
            if server and lost != report.id and lost in self.tree and now - server.heard > OVERDUE * self._lease:
                self.forget(lost)

    def _circle(self, report: Report) -> str:
        """Say so when servers that were told their fathers stand in a circle: nobody but their owner can help."""
        seen = {report.id}
        above = report.father
        while above in self._servers and above not in self.tree:
            if above in seen:
                return "the fathers that were told lead in a circle"
            seen.add(above)
            above = self._servers[above].report.father
        return ""

    def _placing(self, ident: str, refused: str = "") -> Placing:
        report = self._servers[ident].report
        father = self.father(ident)
        known = self._servers.get(father)
        endpoint = known.report.children_endpoint if known else report.father_endpoint if father else ""
        if ident in self.tree:
            return Placing(father, endpoint, self.tree.root, refused)
        return Placing(father if known else "", endpoint if known else "", self._top(ident), refused)

    def _top(self, ident: str) -> str:
        """Give the root of a tree that was told."""
        seen = {ident}
        while (above := self.father(ident)) and above not in seen:
            seen.add(above)
            ident = above
            if ident in self.tree or ident not in self._servers:
                break
        return self.tree.root if ident in self.tree else ident

    # --- clients ------------------------------------------------------------------------------------------------------

    def assign(self, now: float, avoid: Collection[str] = ()) -> Server | None:
        """Choose the server for one more client: with the fewest for its capacity, then the longest not chosen."""
        aside = []
        chosen = None
        while self._queue:
            place = heapq.heappop(self._queue)
            server = self._servers.get(place[3])
            if server is None or server.ticket != place[2]:
                continue  # it is gone, or has a newer place
            if server.report.endpoint not in avoid:
                chosen = server
                break
            aside.append(place)
        for place in aside:
            heapq.heappush(self._queue, place)
        if chosen is None:
            return None
        self._turns += 1
        chosen.turn = self._turns
        chosen.assigned += 1
        if chosen.report.original and chosen.report.id not in self._stays:
            self._stays.set(chosen.report.id, now + self._original_stay, chosen.report.id)
        self._enqueue(chosen)
        return chosen

    def take_back(self, endpoint: str) -> None:
        """Count a client off that could not be told its server."""
        server = self._servers.get(self._at.get(endpoint, ""))
        if server is not None and server.assigned:
            server.assigned -= 1
            self._enqueue(server)

    def _enqueue(self, server: Server) -> None:
        report = server.report
        self._tickets += 1
        server.ticket = self._tickets
        if report.capacity:
            place = (server.clients / report.capacity, server.turn, server.ticket, report.id)
            heapq.heappush(self._queue, place)
        if len(self._queue) > 2 * len(self._servers) + 64:
            self._queue = [place for place in self._queue if self._is_current(place[3], place[2])]
            heapq.heapify(self._queue)

    def _is_current(self, server: str, ticket: int) -> bool:
        return server in self._servers and self._servers[server].ticket == ticket

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when the next lease ends, or what else is due."""
        due = [when for when in (self._leases.next(), self._stays.next(), self._expecting) if when is not None]
        return min(due, default=None)

    def expire(self, now: float) -> list[Report]:
        """Do all that is due; gives the servers whose lease has ended."""
        ended = [self._servers[server].report for server in self._leases.take(now)]
        for report in ended:
            self.forget(report.id)
        if self._expecting is not None and self._expecting <= now:
            self._expecting = None
            self.tree.end_expecting()
        for ident in self._stays.take(now):
            self._fade(self._servers[ident], now)
        return ended

    def _fade(self, server: Server, now: float) -> None:
        """Let half of the clients leave that an original server never says anything of."""
        server.assigned //= 2
        self._enqueue(server)
        if server.assigned:
            self._stays.set(server.report.id, now + self._original_stay, server.report.id)


def rows(table: Table) -> list[dict[str, object]]:
    """Give the table for people: one row for each server, in the order in which they came."""
    return [
        {
            "id": server.report.id,
            "endpoint": server.report.endpoint,
            "children_endpoint": server.report.children_endpoint,
            "father": table.father(server.report.id),
            "clients": server.clients,
            "capacity": server.report.capacity,
            "songs": server.report.songs,
            "root": table.is_root(server.report.id),
        }
        for server in table
    ]
