"""The table of servers: whatever they report, the fathers form one tree, and counts are right."""

from __future__ import annotations

import contextlib

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import records
from scale0_musicquest.service.broker.report import Report, endpoint_in, identity
from scale0_musicquest.service.broker.table import OVERDUE, Entry, Table, TableFullError, merged, rows

LEASE = 10.0
IDS = list("abcdefgh")


def report(ident, **fields):
    told = {"children_endpoint": f"tcp://{ident}:4444", "slots": 2, "wants_father": True, **fields}
    return Report(id=ident, endpoint=f"tcp://{ident}:5556", **told)


def check_tree(table):
    """Insist on what always holds: no circle, one root, nobody over the limit, told servers apart."""
    tree = table.tree
    roots = [ident for ident in tree if tree.father(ident) == ""]
    assert roots == ([tree.root] if tree.root in tree else [])
    for ident in tree:
        above, steps = ident, 0
        while above and above in tree:
            above = tree.father(above)
            steps += 1
            assert steps <= len(tree), "a circle"
        assert above in (None, "") or table._expecting is not None, "a father that nobody knows"
        assert len(tree.children(ident)) <= table[ident].report.slots
        assert ident in table
    for ident in [*IDS, *tree]:
        assert all(tree.father(child) == ident for child in tree.children(ident))
    assert {server.report.endpoint: server.report.id for server in table} == table._at


# --- lies -------------------------------------------------------------------------------------------------------------

some_ids = st.lists(st.sampled_from(IDS), max_size=4, unique=True).map(tuple)
lies = st.fixed_dictionaries(
    {},
    optional={
        "father": st.sampled_from(["", *IDS, "stranger"]),
        "path": st.lists(st.sampled_from([*IDS, "stranger"]), max_size=4).map(tuple),
        "children": some_ids,
        "lost": some_ids,
        "slots": st.integers(0, 3),
        "wants_father": st.booleans(),
        "version": st.tuples(st.integers(0, 2), st.integers(0, 5)),
        "capacity": st.integers(0, 3),
        "clients": st.integers(0, 5),
    },
)
steps = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(IDS), lies),
    st.tuples(st.just("honest"), st.sampled_from(IDS), st.just({})),
    st.tuples(st.just("original"), st.sampled_from(IDS), st.just({})),
    st.tuples(st.just("bye"), st.sampled_from(IDS), st.just({})),
    st.tuples(st.just("sleep"), st.floats(0.0, 12.0), st.just({})),
    st.tuples(st.just("client"), some_ids, st.just({})),
)


class World:
    """Servers that follow what the table says, when they are honest; dead ones are noticed by their children."""

    def __init__(self, **options):
        self.table = Table(lease=LEASE, **options)
        self.now = 100.0
        self.fathers: dict[str, str] = {}

    def sleep(self, seconds):
        self.now += seconds
        self.table.expire(self.now)
        due = self.table.next_deadline()
        assert due is None or due > self.now
        check_tree(self.table)

    def path(self, ident):
        path = []
        while (ident := self.fathers.get(ident, "")) and ident not in path:
            path.append(ident)
        return tuple(path)

    def hear(self, ident, **fields):
        told = report(ident, **fields)
        before = ident in self.table and told.version is not None and told.version <= self.table[ident].version
        placing = self.table.hear(told, self.now)
        check_tree(self.table)
        if ident in self.table.tree and not before:
            assert placing.father not in told.lost or not placing.father
            assert not placing.father or not self.table.tree.is_below(placing.father, ident)
        return placing

    def honest(self, ident, **fields):
        """Report what is true, and take the father that comes back."""
        father = self.fathers.get(ident, "")
        children = tuple(child for child in self.fathers if self.fathers[child] == ident)
        lost = tuple(fields.pop("lost", ()))
        if father and father not in self.fathers:
            lost, father = (*lost, father), ""
            self.fathers[ident] = ""
        placing = self.hear(ident, father=father, path=self.path(ident), children=children, lost=lost, **fields)
        self.fathers[ident] = placing.father
        return placing

    def die(self, ident):
        self.fathers.pop(ident, None)

    def settle(self, idents=None):
        """Let all report honestly for a while, as they do three times a lease."""
        for _ in range(12):
            for ident in idents or list(self.fathers):
                self.fathers.setdefault(ident, "")
                self.honest(ident)
            self.sleep(LEASE / 3)

    def is_one_tree(self):
        roots = [ident for ident, father in self.fathers.items() if not father]
        assert roots == [self.table.tree.root]
        for ident in self.fathers:
            assert ident in roots or self.path(ident)[-1] == roots[0]
        return True


@pytest.mark.requirement("M18")
@pytest.mark.requirement("M41")
@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=60))
def test_whatever_is_reported_the_fathers_form_one_tree_and_honest_servers_find_together(script):
    world = World(max_servers=6)
    for kind, what, fields in script:
        try:
            if kind == "report":
                world.hear(what, **fields)
            elif kind == "honest":
                world.honest(what)
            elif kind == "original":
                endpoint = f"tcp://{what}:5556"
                world.table.hear(Report(id=endpoint, endpoint=endpoint, original=True), world.now)
            elif kind == "bye":
                world.table.leave(f"tcp://{what}:5556")
                world.die(what)
            elif kind == "sleep":
                world.sleep(what)
            else:
                world.table.assign(world.now, {f"tcp://{ident}:5556" for ident in what})
        except TableFullError:
            assert len(world.table) == 6
        check_tree(world.table)
        assert len(world.table) <= 6
    world.fathers.clear()
    world.sleep(2 * LEASE)  # the liars are gone
    world.settle(IDS[:6])
    assert world.is_one_tree()


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40), st.lists(st.sampled_from(IDS), min_size=1, unique=True))
def test_honest_servers_find_together_from_any_state_that_liars_left(script, honest):
    world = World()
    for kind, what, fields in script:
        if kind == "report":
            world.hear(what, **{**fields, "version": None})
        elif kind == "honest":
            world.honest(what)
        elif kind == "sleep":
            world.sleep(what)
    world.fathers = {ident: father for ident, father in world.fathers.items() if ident in honest}
    world.settle(honest)
    assert set(world.table.tree) == set(honest)
    assert world.is_one_tree()


# --- the tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M18")
@pytest.mark.requirement("M40")
def test_newcomers_go_to_the_shallowest_server_with_a_free_slot():
    world = World()
    placings = [world.hear(ident) for ident in "abcdefg"]
    assert [placing.father for placing in placings] == ["", "a", "a", "b", "b", "c", "c"]
    assert {placing.root for placing in placings} == {"a"}
    assert placings[1].father_endpoint == "tcp://a:4444"


def test_children_that_were_sent_but_did_not_come_yet_take_a_slot():
    world = World()
    world.hear("a", slots=1)
    assert world.hear("b").father == "a"
    world.hear("a", slots=1, children=())
    assert world.hear("c").father == "b"


def test_children_that_only_their_father_knows_take_a_slot():
    world = World()
    world.hear("a", children=("x", "y"))
    assert world.hear("b").root == "b", "there is no room below a, but there is below b"
    assert world.hear("a", children=("x", "y")).father == "b"


def test_the_only_root_with_slots_goes_above_one_without():
    world = World()
    assert world.hear("a", slots=0).root == "a"
    placing = world.hear("b", slots=1)
    assert (placing.father, placing.root) == ("", "b")
    assert world.hear("a", slots=0).father == "b"
    refused = world.hear("c", slots=0)
    assert (refused.father, refused.root, refused.refused) == ("", "b", "no server has a free slot")
    assert world.hear("b", slots=2).root == "b"
    assert world.hear("c", slots=0).father == "b"


@pytest.mark.requirement("M41")
def test_a_father_is_never_below_its_child():
    world = World()
    for ident in "abcd":
        world.honest(ident)
    assert world.table.tree.is_below("d", "b")
    for lie in ("b", "d"):
        placing = world.hear("b", father=lie, path=(lie,))
        assert placing.father == "a"
    assert world.hear("a", father="d", path=("d", "b")).father == ""
    assert world.table.tree.root == "a"


@pytest.mark.requirement("M41")
def test_a_lost_father_is_replaced_by_one_outside_the_own_subtree():
    world = World()
    for ident in "abcdefg":
        world.honest(ident)
    assert world.honest("d", lost=("b",)).father == "f", "not e, which is below the lost one"
    placing = world.honest("b", lost=("a",))
    assert placing.father not in ("a", "b", "d", "e")
    assert world.table.tree.root == "a"


@pytest.mark.requirement("M41")
@pytest.mark.parametrize("orphans", ["bc", "cb"])
def test_the_root_dies_one_child_becomes_root_and_the_others_join_it(orphans):
    world = World()
    for ident in "abcdefg":
        world.honest(ident)
    world.sleep(1.0)
    for ident in "bcdefg":
        world.honest(ident)
    world.die("a")
    world.sleep(OVERDUE * LEASE)
    first, second = (world.honest(ident) for ident in orphans)
    assert (first.father, first.root) == ("", orphans[0])
    assert world.path(orphans[1])[-1] == orphans[0]
    assert second.root == orphans[0]
    for ident in "defg":
        assert world.honest(ident).root == orphans[0]
    assert world.is_one_tree()


def test_one_that_lost_a_root_which_lives_waits_and_makes_no_second_one():
    world = World()
    world.honest("a")
    world.honest("b")
    placing = world.hear("b", lost=("a",))
    assert (placing.father, placing.root) == ("", "a")
    assert "lost" in placing.refused
    assert world.hear("b").father == "a"


def test_a_root_that_was_taken_for_dead_comes_back_below_the_new_one():
    world = World()
    for ident in "abc":
        world.honest(ident)
    world.sleep(5.0)
    assert world.hear("b", lost=("a",)).root == "b"
    assert world.hear("c", lost=("a",)).father == "b"
    placing = world.hear("a", children=("b", "c"))
    assert placing.root == "b"
    assert world.table.tree.is_below("a", "b")
    assert world.hear("b", father="a", path=("a",)).father == "", "what it knew before"


@pytest.mark.requirement("M40")
def test_a_server_that_was_sent_on_by_a_full_father_keeps_the_one_it_found():
    world = World()
    for ident in "abc":
        world.honest(ident)
    assert world.hear("d").father == "b"
    assert world.hear("d", father="c", path=("c", "a")).father == "c"


def test_slots_that_are_taken_back_move_children_on():
    world = World()
    for ident in "abc":
        world.honest(ident)
    world.hear("a", slots=1, children=("b", "c"))
    assert world.honest("b").father == "a"
    assert world.honest("c").father == "b"


@pytest.mark.requirement("M35")
def test_servers_that_were_told_a_father_or_none_are_left_alone():
    world = World()
    assert world.hear("a").root == "a"
    none = world.hear("b", wants_father=False)
    assert (none.father, none.root, none.refused) == ("", "b", "")
    told = world.hear("c", wants_father=False, father="b", path=("b",))
    assert (told.father, told.father_endpoint, told.root) == ("b", "tcp://b:4444", "b")
    below = world.hear("d", wants_father=False, father="a")
    assert (below.father, below.root) == ("a", "a")
    assert world.hear("e", wants_father=False, father="nobody").root == "nobody"
    assert [row["id"] for row in rows(world.table) if row["root"]] == ["a", "b"], "several trees"
    world.hear("a", children=("d",))
    assert [world.hear(ident).father for ident in "fg"] == ["a", "f"], "no father but a managed one, within its slots"


def test_servers_that_were_told_a_circle_are_told_so():
    world = World()
    world.hear("a", wants_father=False, father="b")
    assert "circle" in world.hear("b", wants_father=False, father="a").refused
    assert "circle" in world.hear("a", wants_father=False, father="a").refused


def test_a_server_that_asks_no_more_keeps_its_place():
    world = World()
    for ident in "abc":
        world.honest(ident)
    world.hear("b", wants_father=False, father="a")
    world.hear("a", wants_father=False)
    world.hear("c", wants_father=False, father="b")
    assert set(world.table.tree) == set("abc")
    assert world.table.tree.father("c") == "b"
    world.hear("c", wants_father=False)
    assert set(world.table.tree) == set("ab"), "told that it is a root of its own"


# --- after a restart of the broker ------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.permutations(IDS), st.integers(1, 3))
def test_after_a_restart_of_the_broker_every_server_keeps_its_father(order, slots):
    world = World()
    for ident in IDS:
        world.honest(ident, slots=slots)
    before = dict(world.fathers)
    world.table = Table(lease=LEASE)
    for _ in range(4):
        for ident in order:
            world.honest(ident, slots=slots)
        assert world.fathers == before
        world.sleep(LEASE / 3)
    assert world.is_one_tree()


@settings(max_examples=100, deadline=None)
@given(st.permutations(IDS), st.sampled_from(IDS))
def test_after_a_restart_those_whose_father_did_not_come_back_find_another(order, dead):
    world = World()
    for ident in IDS:
        world.honest(ident)
    before = dict(world.fathers)
    world.table = Table(lease=LEASE)
    world.table.hear(report("new"), world.now) if order[0] == "a" else None
    alive = [ident for ident in order if ident != dead]
    for ident in alive:  # they do not know yet
        children = tuple(child for child in IDS if before[child] == ident)
        world.hear(ident, father=before[ident], path=world.path(ident), children=children)
    world.die(dead)
    world.settle(alive)
    moved = {ident for ident in alive if world.fathers[ident] != before[ident]}
    assert moved <= {ident for ident in alive if before[ident] in (dead, "")} | {world.table.tree.root}


def test_a_newcomer_that_was_first_after_a_restart_gives_way_to_the_root_of_before():
    world = World()
    assert world.hear("new").root == "new"
    assert world.hear("a", children=("b", "c")).root == "a"
    assert world.hear("b", father="a", path=("a",)).father == "a"
    assert world.hear("new").father == "b"


def test_fathers_that_nobody_heard_of_are_not_believed_later():
    world = World()
    world.hear("a")
    world.sleep(LEASE * 0.7)
    world.hear("a")
    world.sleep(LEASE * 0.7)
    assert world.hear("b", father="ghost", path=("ghost", "a")).father == "a"


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M11")
@pytest.mark.requirement("M13")
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("report"), st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 3)),
            st.tuples(st.just("assign"), st.lists(st.sampled_from("abcd"), max_size=2), st.just(0), st.just(0)),
            st.tuples(st.just("bye"), st.sampled_from("abcd"), st.just(0), st.just(0)),
        ),
        max_size=60,
    )
)
def test_each_client_goes_to_the_server_with_the_fewest_for_its_capacity(script):
    table, model, turn = Table(), {}, 0
    for kind, what, clients, capacity in script:
        if kind == "report":
            table.hear(report(what, clients=clients, capacity=capacity), 0.0)
            last = model[what][2] if what in model else 0
            model[what] = [clients, capacity, last]
        elif kind == "bye":
            assert table.leave(f"tcp://{what}:5556") == (model.pop(what, None) is not None)
        else:
            server = table.assign(0.0, {f"tcp://{ident}:5556" for ident in what})
            able = {ident: row for ident, row in model.items() if row[1] and ident not in what}
            if not able:
                assert server is None
                continue
            best = min((row[0] / row[1], row[2]) for row in able.values())
            row = model[server.report.id]
            assert (row[0] / row[1], row[2]) == best
            turn += 1
            row[0], row[2] = row[0] + 1, turn
        assert {server.report.id: server.clients for server in table} == {i: row[0] for i, row in model.items()}
    assert len(table._queue) <= 2 * len(table) + 65


@pytest.mark.requirement("M37")
def test_clients_of_an_original_server_are_taken_to_leave():
    table = Table(original_stay=60.0, original_lease=0.0)
    table.hear(Report(id="tcp://o:1", endpoint="tcp://o:1", original=True), 0.0)
    for _ in range(8):
        table.assign(0.0)
    counts = []
    while (due := table.next_deadline()) is not None:
        table.expire(due)
        counts.append(table["tcp://o:1"].clients)
    assert counts == [4, 2, 1, 0]


# --- limits and versions ----------------------------------------------------------------------------------------------


def test_the_table_is_bounded_and_originals_give_way():
    table = Table(max_servers=2)
    for number, address in enumerate(("tcp://o:1", "tcp://o:2")):
        table.hear(Report(id=address, endpoint=address, original=True), number)
    with pytest.raises(TableFullError):
        table.hear(Report(id="tcp://o:3", endpoint="tcp://o:3", original=True), 2.0)
    table.hear(report("a"), 3.0)
    assert [server.report.id for server in table] == ["tcp://o:2", "a"]
    table.hear(report("b"), 4.0)
    with pytest.raises(TableFullError):
        table.hear(report("c"), 5.0)
    table.hear(report("b"), 6.0)


def test_the_newest_server_at_an_address_counts():
    table = Table()
    table.hear(report("old"), 0.0)
    table.hear(attrs.evolve(report("new"), endpoint="tcp://old:5556"), 1.0)
    assert [server.report.id for server in table] == ["new"]
    assert not table.leave("tcp://old:5556", "old"), "a late farewell of the one before"
    assert table.leave("tcp://old:5556", "new")
    assert len(table) == 0


def test_reports_that_were_overtaken_change_nothing():
    table = Table()
    table.hear(report("a", version=(7, 2), clients=5), 0.0)
    for stale in ((7, 2), (7, 1), (6, 9)):
        assert table.hear(report("a", version=stale, clients=1), 1.0).root == "a"
        assert table["a"].clients == 5
    table.hear(report("a", version=(8, 0), clients=2), 2.0)
    assert table["a"].clients == 2


entries = st.builds(
    Entry,
    report=st.builds(report, st.just("a"), clients=st.integers(0, 3)),
    version=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    age=st.floats(0.0, 3.0),
    assigned=st.integers(0, 2),
    father=st.sampled_from([None, "", "b"]),
    gone=st.booleans(),
)


@given(entries, entries, entries)
def test_tables_can_be_merged_in_any_order(one, two, three):
    assert merged(one, one) == one
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))


def test_the_table_as_a_value_needs_no_clock():
    table = Table()
    table.hear(report("a", version=(3, 1)), 100.0)
    table.hear(report("b"), 103.0)
    table.assign(104.0)
    (first, second) = table.entries(105.0)
    assert (first.version, first.age, first.father, first.assigned) == ((3, 1), 5.0, "", 1)
    assert (second.version, second.age, second.father, second.assigned) == ((0, 1), 2.0, "a", 0)


# --- reading ----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = [field.name for field in attrs.fields(Report)] + ["epoch", "sequence"]


@settings(max_examples=300)
@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["a", 1, ["a"], True])))
def test_any_json_is_a_report_or_malformed(value):
    try:
        read = Report.from_json("tcp://h:1", value)
    except records.MalformedError:
        return
    Table().hear(read, 0.0)


@given(st.binary(max_size=400))
def test_any_frame_is_an_address_or_malformed(frame):
    with contextlib.suppress(records.MalformedError):
        assert endpoint_in(frame).encode() == frame


@pytest.mark.parametrize("ident", ["", "x" * 65, "a b", "a\n", "é", 5, None, ["a"]])
def test_other_ids_are_malformed(ident):
    with pytest.raises(records.MalformedError):
        identity(ident)


def test_a_report_says_little_or_much():
    assert Report.from_json("tcp://h:1", {"id": "a"}) == Report(id="a", endpoint="tcp://h:1", wants_father=True)
    read = Report.from_json("tcp://h:1", {"id": "a", "slots": 3, "epoch": 4, "sequence": 5, "father": "b"})
    assert (read.slots, read.version, read.father) == (0, (4, 5), "b"), "no slots without an address for children"
