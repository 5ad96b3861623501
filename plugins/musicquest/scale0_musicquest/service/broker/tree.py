"""Who is whose father: what this broker has decided, and what it believes of what servers report.

The servers that leave their father to the broker are the *members*. A member is the root, or has a father, or stands
apart until it can be given one. Whatever the reports say, three things hold after each call:

- following the fathers upwards never leads in a circle,
- there is at most one root, and one as soon as a member has asked,
- no member has more children than slots.

For a short time after the start, fathers may be servers that are not known yet: their children were quicker to report
than they. Such a father is *expected*; ``end_expecting`` drops those that did not come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

import attrs


@attrs.define(eq=False)
class Member:
    """One server in the tree."""

    slots: int
    claimed: Collection[str]
    """The children that it says it has."""
    father: str | None = None
    """An id; nothing for the root; None for one that stands apart."""


class Tree:
    """The fathers of all members."""

    def __init__(self) -> None:
        self.root = ""
        """The root's id, which may be expected still; nothing when there is none."""
        self._members: dict[str, Member] = {}
        self._children: dict[str, dict[str, None]] = {}

    def __contains__(self, server: str) -> bool:
        return server in self._members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def father(self, server: str) -> str | None:
        """Give a member's father: an id, nothing for the root, None when it stands apart."""
        return self._members[server].father

    def children(self, server: str) -> Collection[str]:
        """Give the members below a server."""
        return self._children.get(server, {}).keys()

    def is_below(self, server: str, other: str) -> bool:
        """Whether a server is in the subtree of another, or that one itself."""
        above: str | None = server
        while above:
            if above == other:
                return True
            member = self._members.get(above)
            above = member.father if member else None
        return False

    # --- coming and going ---------------------------------------------------------------------------------------------

    def put(self, server: str, slots: int, claimed: Collection[str]) -> None:
        """Take note of a member, new or known; children beyond its slots stand apart from now on."""
        member = self._members.get(server)
        if member is None:
            self._members[server] = Member(slots, claimed, "" if server == self.root else None)
        else:
            member.slots, member.claimed = slots, claimed
        children = list(self.children(server))
        if len(children) > slots:
            # those that the father does not know of go first, then the latest
            children.sort(key=lambda child: child not in claimed)
            for child in children[slots:]:
                self._move(child, None)

    def remove(self, server: str) -> None:
        """Forget a server; its children stand apart."""
        if server in self._members:
            self._move(server, None)
            del self._members[server]
        if self.root == server:
            self.root = ""
        for child in list(self.children(server)):
            self._move(child, None)

    def end_expecting(self) -> None:
        """Give up on fathers that were named and did not come."""
        expected = [father for father in self._children if father not in self._members]
        for father in [*expected, self.root]:
            if father not in self._members:
                self.remove(father)

    # --- fathers ------------------------------------------------------------------------------------------------------

    def adopt(self, server: str, father: str, *, expected: bool = False) -> bool:
        """Believe a member that says who its father is, if that can be so."""
        if self._members[server].father == father:
            return True
        if server == self.root or self.is_below(father, server):
            return False
        if not (expected if father not in self._members else self._is_free(father, server)):
            return False
        self._move(server, father)
        return True

    def expect_root(self, server: str) -> bool:
        """Believe that a server is the root and has not come yet, if there is no other; says whether it is the root."""
        if not self.root and server not in self._members:
            self.root = server
        return self.root == server

    def unseat(self) -> None:
        """Let the root stand apart, so that another can take its place."""
        before, self.root = self.root, ""
        if before in self._members:
            self._move(before, None)

    def place(self, server: str, lost: Collection[str] = ()) -> str:
        """Find a place for a member that stands apart; says why there is none."""
        if not self.root:
            self._move(server, "")
            return ""
        # those below a lost one may be about to look for a father themselves
        father = self._shallowest(server, lost, skipped=lost) or self._shallowest(server, lost)
        if father:
            self._move(server, father)
            return ""
        if lost and self._shallowest(server):
            return "all servers that could be the father are among those that were lost"
        return self._turn_over(server)

    def leave_father(self, server: str) -> None:
        """Let a member stand apart; the root stays where it is."""
        if server != self.root:
            self._move(server, None)

    def _turn_over(self, server: str) -> str:
        """Hang a tree without a free slot below a member that has one."""
        below = self._shallowest("", start=[server])
        if not below or self.root not in self._members:
            return "no server has a free slot"
        root, self.root = self.root, ""
        self._move(root, below)
        self._move(server, "")
        return ""

    def _shallowest(
        self, server: str, lost: Collection[str] = (), *, skipped: Collection[str] = (), start: Collection[str] = ()
    ) -> str:
        """Find the nearest to the root with a free slot that is neither below ``server`` nor among the skipped."""
        # children of servers that are expected still hang from nowhere as yet
        queue = deque(start or dict.fromkeys([self.root, *(i for i in self._children if i not in self._members)]))
        while queue:
            candidate = queue.popleft()
            if candidate == server or candidate in skipped:
                continue
            if candidate in self._members and candidate not in lost and self._is_free(candidate, server):
                return candidate
            queue.extend(self.children(candidate))
        return ""

    def _is_free(self, father: str, child: str) -> bool:
        """Whether a member has a slot for a child, beside those it was given and those it says it has."""
        member = self._members[father]
        taken = set(self.children(father))
        for claimed in member.claimed:
            other = self._members.get(claimed)
            if other is None or other.father is None:
                taken.add(claimed)
        taken.discard(child)
        return len(taken) < member.slots

    def _move(self, server: str, father: str | None) -> None:
        member = self._members[server]
        if member.father:
            siblings = self._children[member.father]
            del siblings[server]
            if not siblings:
                del self._children[member.father]
        elif member.father == "" and self.root == server:
            self.root = ""
        member.father = father
        if father:
            self._children.setdefault(father, {})[server] = None
        elif father == "":
            self.root = server
