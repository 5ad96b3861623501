"""Trees of music servers on virtual time, with the real music broker: all find each other, whoever fails."""

from __future__ import annotations

import json
import random

import pytest

from .server_world import BROKER, Talk, World, children_endpoint, endpoint, holders

FAR = {"lease_ms": 10_000, "root": "dad", "father": {"id": "dad", "children_endpoint": "tcp://127.0.0.1:4400"}}


def one_song_each(count):
    return {number: {f"song{number}.ogg": b"%d" % number} for number in range(count)}


# --- everybody finds everything ---------------------------------------------------------------------------------------


@pytest.mark.requirement("M19")
@pytest.mark.requirement("M22")
@pytest.mark.requirement("M38")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_member_of_a_tree_finds_the_songs_of_every_other(tmp_path, count):
    """Trees of one and two servers hung in the original."""
    world = World(tmp_path, count, one_song_each(count), grace=0.0)
    world.settle()
    for asker in range(count):
        for holder in range(count):
            told = world.search(asker, f"{asker}-{holder}", name=f"song{holder}.ogg")
            assert holders(told) == [endpoint(holder)]
            assert told["complete"]
        assert world.ask(asker, "search", f"{asker}-none", "nobody.ogg") == (b"NF",)
        told = world.search(asker, f"{asker}-all", text="song", limit=100)
        assert sorted(holders(told)) == sorted(map(endpoint, range(count)))


@pytest.mark.requirement("M18")
@pytest.mark.requirement("M40")
@pytest.mark.real  # takes seconds
def test_a_tree_of_fifty_answers_a_thousand_searches_and_no_server_has_too_many_children(tmp_path):
    world = World(tmp_path, 50, one_song_each(50), slots=3, max_searches=100_000)
    world.settle()
    assert max(len(server.links.children) for server in world.servers) <= 3
    assert max(len(server.links.path) for server in world.servers) <= 6
    # every member asks twenty times, and every one is asked for; five songs are nobody's
    wanted = {f"q{number}": (number % 50, (number // 50 * 11 + number) % 55) for number in range(1000)}
    assert {asker for asker, _ in wanted.values()} == set(range(50))
    assert {holder for _, holder in wanted.values()} == set(range(55))
    for uuid, (asker, holder) in wanted.items():
        world.say(asker, "ZMQ01", "search", uuid, json.dumps({"name": f"song{holder}.ogg"}))
    came = {}

    def all_came():
        for asker in range(50):
            listener = world.listener(asker)
            came.update({frames[2].decode(): json.loads(frames[3]) for _, frames in listener.came})
        return len(came) == 1000

    began = world.net.now
    assert world.net.run_until(all_came, 10.0)
    assert world.net.now - began < 0.5
    for uuid, (_, holder) in wanted.items():
        assert holders(came[uuid]) == ([endpoint(holder)] if holder < 50 else [])


@pytest.mark.requirement("M41")
def test_a_search_is_one_message_per_link_and_way(tmp_path):
    world = World(tmp_path, 7, one_song_each(7), grace=0.0)
    world.settle()
    before = [server.searches.counts.passed_on for server in world.servers]
    world.search(0, "u", name="song3.ogg")
    after = [server.searches.counts.passed_on for server in world.servers]
    asked = [late - early for early, late in zip(before, after, strict=True)]
    assert asked == [0, 1, 1, 1, 1, 1, 1]


def test_holders_of_the_same_song_are_all_told_the_idle_one_first(tmp_path):
    songs = {number: {"same.ogg": b"same"} for number in (1, 4, 6)}
    world = World(tmp_path, 7, songs, grace=0.0, capacity=10)
    world.settle()
    for _ in range(3):
        world.extended(4, "hello", "t")  # a client, which is some load
    told = world.search(0, "u", name="same.ogg")
    assert len(told["hits"]) == 1
    assert set(holders(told)) == {endpoint(number) for number in (1, 4, 6)}
    assert holders(told)[-1] == endpoint(4)


# --- one fails during a search ----------------------------------------------------------------------------------------


@pytest.mark.requirement("M38")
@pytest.mark.parametrize("victim", range(7))
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_search_is_answered_though_a_server_fails_meanwhile(tmp_path, victim, how):
    world = World(tmp_path, 7, one_song_each(7), grace=0.0, weather={"delay": (0.05, 0.1)})
    world.settle()
    asker = (victim + 1) % 7
    listener = world.say(asker, "ZMQ01", "search", "u", json.dumps({"text": "song", "limit": 50}))
    world.net.run(0.12)
    getattr(world.net, how)(f"s{victim}")
    assert world.net.run_until(lambda: listener.came, 5.5)
    told = json.loads(listener.came[0][1][3])
    assert endpoint(asker) in holders(told)


def test_an_idle_tree_does_not_lose_anybody(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    joins = [server.links.rejoined for server in world.servers]
    world.net.run(120)
    assert [server.links.rejoined for server in world.servers] == joins
    assert world.is_one_tree()


# --- the tree mends itself --------------------------------------------------------------------------------------------


def root_of(world):
    return next(number for number in range(world.count) if world.server(number).links.father is None)


def number_of(world, ident):
    return next(number for number in range(world.count) if world.server(number).ident == ident)


@pytest.mark.requirement("M41")
def test_a_lost_father_is_replaced_by_the_grandfather(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    leaf = next(number for number in range(7) if len(world.server(number).links.path) == 2)
    father, grandfather = world.server(leaf).links.path
    world.net.kill("broker")  # nobody else can help
    world.net.kill(f"s{number_of(world, father)}")
    assert world.net.run_until(world.is_one_tree, 30)
    assert grandfather in world.server(leaf).links.path
    told = world.search(leaf, "after", name=f"song{root_of_up(world)}.ogg")
    assert holders(told)


def root_of_up(world):
    return next(int(server.ident[1:].split(".")[0]) for server in world.servers if server.links.father is None)


@pytest.mark.requirement("M41")
def test_when_the_root_dies_the_broker_makes_one_of_its_children_the_root(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    world.net.kill(f"s{root_of(world)}")
    assert world.net.run_until(world.is_one_tree, 60), world.describe()
    for server in world.servers:
        number = int(server.ident[1:].split(".")[0])
        told = world.search(number, f"after-{number}", text="song", limit=50)
        assert len(told["hits"]) == 6


@pytest.mark.requirement("M26")
def test_without_a_broker_the_servers_go_on_and_a_new_one_learns_the_tree(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    fathers = {server.ident: server.links.path for server in world.servers}
    world.net.kill("broker")
    world.net.run(60)
    assert {server.ident: server.links.path for server in world.servers} == fathers
    assert holders(world.search(0, "without", name="song5.ogg")) == [endpoint(5)]
    world.net.restart("broker")
    assert world.net.run_until(lambda: len(world.broker.table) == 7, 30)
    world.net.run(30)
    assert {server.ident: server.links.path for server in world.servers} == fathers


def test_a_broker_that_comes_late_brings_the_servers_together(tmp_path):
    world = World(tmp_path, 3, one_song_each(3))
    world.net.kill("broker")
    world.net.run(20)
    assert all(server.links.father is None for server in world.servers)
    assert holders(world.search(1, "alone", name="song1.ogg")) == [endpoint(1)]
    world.net.restart("broker")
    world.settle()


def test_a_server_that_stood_still_comes_back(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    middle = next(n for n in range(7) if world.server(n).links.children and world.server(n).links.father)
    world.net.pause(f"s{middle}")
    world.net.run(20)
    others = [server for server in world.servers if server is not world.server(middle)]
    assert sum(server.links.father is None for server in others) == 1
    world.net.resume(f"s{middle}")
    assert world.net.run_until(world.is_one_tree, 60), world.describe()


def test_a_server_that_leaves_is_replaced_at_once(tmp_path):
    world = World(tmp_path, 7, one_song_each(7))
    world.settle()
    middle = next(n for n in range(7) if world.server(n).links.children and world.server(n).links.father)
    ident = world.server(middle).ident
    host = world.net.nodes[f"s{middle}"].hosts[0]
    host._driver.stop()
    world.net.run(0.5)
    world.net.kill(f"s{middle}")
    assert world.net.run_until(world.is_one_tree, 2.0), world.describe()
    assert ident not in world.broker.table


def no_cycle(world):
    """Follow the fathers from every server: no way may come back. Circles by stale news end within moments."""

    def check():
        by_ident = {server.ident: server for server in world.servers}
        for start in world.servers:
            seen, server = set(), start
            while server is not None and server.ident not in seen:
                seen.add(server.ident)
                father = server.links.father
                server = by_ident.get(father.ident) if father is not None else None
            if server is not None:
                return False
        return True

    return check


@pytest.mark.requirement("M41")
@pytest.mark.seeds(12)
def test_whoever_is_killed_and_comes_back_the_tree_mends_without_cycles(tmp_path, seed):
    world = World(tmp_path, 9, one_song_each(9), seed=seed, weather={"delay": (0.0, 0.05), "reconnect": (0.01, 0.2)})
    world.settle()
    chance = random.Random(seed)
    circles = []

    def look():
        circles.append(world.net.now) if not no_cycle(world)() else circles.clear()
        assert not circles or world.net.now - circles[0] < 10.0, world.describe()

    world.net.invariant(look)
    for _ in range(8):
        name = f"s{chance.randrange(9)}"
        action = chance.choice([world.net.kill, world.net.restart, world.net.restart, world.net.pause])
        action(name)
        world.net.run(chance.uniform(0.0, 5.0))
        if action == world.net.pause:
            world.net.resume(name)
        if chance.random() < 0.2:
            world.net.restart("broker")
    for number in range(9):
        if not world.net.nodes[f"s{number}"].up:
            world.net.restart(f"s{number}")
    assert world.net.run_until(world.is_one_tree, 90), world.describe()
    world.settle()
    for number in range(9):
        assert holders(world.search(number, f"end-{number}", name=f"song{8 - number}.ogg")) == [endpoint(8 - number)]


@pytest.mark.seeds(4)
def test_a_network_that_falls_apart_grows_together(tmp_path, seed):
    world = World(tmp_path, 8, one_song_each(8), seed=seed)
    world.settle()
    some = [f"s{number}" for number in range(4)]
    world.net.partition(some, [f"s{number}" for number in range(4, 8)])
    world.net.run(25)
    told = world.search(0, "parted", text="song", limit=50)
    assert endpoint(0) in holders(told)
    world.net.heal()
    assert world.net.run_until(world.is_one_tree, 90), world.describe()


# --- several trees, and fathers that were told ------------------------------------------------------------------------


def told_world(folder, fathers):
    """Make servers whose fathers are told, each with a song."""
    world = World(folder, 0)
    songs = one_song_each(len(fathers))
    for number, father in enumerate(fathers):
        world.songs[number] = songs[number]
        world.count += 1

        def make(node, number=number, father=father):
            world.settings["father"] = father
            return [world.make(node, number)]

        world.net.add(f"s{number}", make)
    return world


@pytest.mark.requirement("M35")
def test_servers_may_be_roots_of_their_own_and_be_told_their_father(tmp_path):
    world = told_world(tmp_path, ["none", children_endpoint(0), "none", children_endpoint(2)])

    def known():
        joined = all(world.server(number).links.father for number in (1, 3))
        return joined and all(len(server.library) for server in world.servers)

    assert world.net.run_until(known, 30)
    world.net.run(20)
    assert world.server(0).links.father is world.server(2).links.father is None
    assert holders(world.search(1, "own", name="song0.ogg")) == [endpoint(0)]
    assert holders(world.search(1, "other", name="song2.ogg")) == []
    assert len(world.broker.table) == 4
    world.net.restart("s0")
    assert world.net.run_until(lambda: world.server(1).links.path == ("s0.2",), 60)


@pytest.mark.requirement("M41")
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_servers_told_to_stand_in_a_circle_do_not(tmp_path, count):
    world = told_world(tmp_path, [children_endpoint((number + 1) % count) for number in range(count)])
    assert world.net.run_until(world.is_one_tree, 60), world.describe()
    joins = [server.links.rejoined for server in world.servers]
    world.net.run(60)
    assert world.is_one_tree()
    assert [server.links.rejoined for server in world.servers] == joins
    assert len(world.search(0, "all", text="song")["hits"]) == count


# --- joining, word by word --------------------------------------------------------------------------------------------


def introduce(ident, port, **more):
    return json.dumps(
        {"id": ident, "endpoint": f"tcp://127.0.0.1:{port}", "children_endpoint": f"tcp://127.0.0.1:{port + 1}", **more}
    )


@pytest.mark.requirement("M31")
@pytest.mark.requirement("M26")
def test_a_server_announces_itself_to_the_broker_and_joins_the_father_it_names(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    first = talk.expect("broker", "", "tcp://127.0.0.1:5556", ...)
    told = json.loads(first[2])
    assert told["id"] == "me"
    assert told["wants_father"]
    assert told["children_endpoint"] == "tcp://127.0.0.1:4444"
    talk.feed("broker", "", "OK", json.dumps(FAR))
    talk.expect_connect("father", "tcp://127.0.0.1:4400")
    added = talk.expect("father", "add", ...)
    assert json.loads(added[1])["id"] == "me"
    talk.feed("father", "OK", introduce("dad", 4399, path=["grandad"], grandfather="tcp://127.0.0.1:4300"))
    assert talk.service.links.path == ("dad", "grandad")
    talk.sleep(0.1)
    report = json.loads(talk.expect("broker", "", "tcp://127.0.0.1:5556", ...)[2])
    assert report["father"] == "dad"
    assert report["path"] == ["dad", "grandad"]


@pytest.mark.requirement("M18")
@pytest.mark.requirement("M40")
def test_a_full_father_sends_the_newcomer_to_its_children(tmp_path):
    talk = Talk(tmp_path, {}, slots=1)
    assert talk.join("k", "kid", 7000)[0] == b"OK"
    assert talk.join("q", "late", 7100) == (b"full", b'["tcp://127.0.0.1:7001"]')
    assert talk.join("k2", "kid", 7000)[0] == b"OK"  # the same, by another connection
    assert len(talk.service.links.children) == 1


@pytest.mark.requirement("M40")
def test_a_newcomer_tries_the_children_of_a_full_father_and_then_the_broker(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    talk.expect("broker", "", ..., ...)
    talk.feed("broker", "", "OK", json.dumps(FAR))
    talk.expect_connect("father", "tcp://127.0.0.1:4400")
    talk.expect("father", "add", ...)
    talk.feed("father", "full", '["tcp://127.0.0.1:4501", "tcp://127.0.0.1:4444", "tcp://127.0.0.1:4601"]')
    talk.expect_disconnect("father", "tcp://127.0.0.1:4400")
    talk.expect_connect("father", "tcp://127.0.0.1:4501")
    talk.expect("father", "add", ...)
    talk.feed("father", "ERROR", "not below you")
    talk.expect_disconnect("father", "tcp://127.0.0.1:4501")
    talk.expect_connect("father", "tcp://127.0.0.1:4601")  # not itself
    talk.expect("father", "add", ...)
    talk.sleep(1.0)
    talk.expect("broker", "", ..., ...)
    talk.sleep(1.0)  # no answer
    talk.expect_disconnect("father", "tcp://127.0.0.1:4601")
    report = json.loads(talk.expect("broker", "", ..., ...)[2])
    assert report["lost"] == ["dad"]
    assert not report["father"]


@pytest.mark.requirement("M41")
def test_an_ancestor_is_refused_as_a_child_and_a_father_below_is_left(tmp_path):
    talk = Talk(tmp_path, {}, father="tcp://127.0.0.1:4400", heartbeat=2.0)
    talk.feed("father", "OK", introduce("dad", 4399, path=["grandad"]))
    assert talk.join("g", "grandad", 7000)[0] == b"ERROR"
    assert talk.join("d", "dad", 4399)[0] == b"ERROR"
    assert talk.join("m", "me", 7200)[0] == b"ERROR"
    talk.join("k", "kid", 7300)
    talk.tell("", "hugz", {"path": ["grandad", "kid", "me"], "grandfather": ""}, socket="father")
    assert talk.service.links.father is None
    assert talk.service.links.path == ()
    assert talk.told("hugz")[-1]["path"] == []
    talk.feed("father", "OK", introduce("kid", 4399, path=[]))  # its own child
    assert talk.service.links.father is None


def test_a_late_answer_is_not_taken_for_that_of_the_server_that_is_asked_now(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    talk.feed("broker", "", "OK", json.dumps(FAR))
    talk.feed("father", "full", '["tcp://127.0.0.1:4501"]')
    talk.feed("father", "OK", introduce("dad", 4399))
    assert talk.service.links.father is None
    talk.feed("father", "OK", introduce("brother", 4500, path=["dad"], grandfather="tcp://127.0.0.1:4400"))
    father = talk.service.links.father
    assert (father.ident, father.children_endpoint) == ("brother", "tcp://127.0.0.1:4501")


def test_a_late_answer_of_another_is_not_taken_for_that_of_a_named_father(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    talk.feed("broker", "", "OK", json.dumps(FAR))
    talk.feed("father", "OK", introduce("other", 4600))
    assert talk.service.links.father is None
    talk.feed("father", "OK", introduce("dad-again", 4399))  # started anew, at the same address
    assert talk.service.links.father.ident == "dad-again"


def test_the_address_of_a_told_father_may_be_another_than_he_says(tmp_path):
    talk = Talk(tmp_path, {}, father="tcp://localhost:4400", heartbeat=2.0)
    talk.feed("father", "full", '["tcp://127.0.0.1:4501"]')
    talk.feed("father", "ERROR", "not below you")
    talk.sleep(2.1)
    assert talk.service.links._attempt.address == "tcp://localhost:4400"
    talk.feed("father", "OK", introduce("dad", 4399, path=["grandad"], grandfather="tcp://grandad:4300"))
    assert talk.service.links.father.ident == "dad"
    talk.feed("father", "ZMQ01", "bye")
    assert talk.service.links._attempt.address == "tcp://grandad:4300"
    talk.feed("father", "OK", introduce("grandad", 4299))  # who calls himself otherwise, but is known
    assert talk.service.links.father.ident == "grandad"


def test_news_of_the_path_are_passed_down_at_once(tmp_path):
    talk = Talk(tmp_path, {}, father="tcp://127.0.0.1:4400")
    talk.join("k", "kid", 7300)
    talk.feed("father", "OK", introduce("dad", 4399, path=["grandad"]))
    assert talk.told("hugz")[-1] == {"path": ["dad", "grandad"], "grandfather": "tcp://127.0.0.1:4400"}
    talk.tell("", "hugz", {"path": ["grandad", "old"], "grandfather": ""}, socket="father")
    assert talk.told("hugz")[-1]["path"] == ["dad", "grandad", "old"]


def test_a_father_whose_connection_breaks_is_asked_again_before_another_is(tmp_path):
    talk = Talk(tmp_path, {}, father="tcp://127.0.0.1:4400", heartbeat=2.0)
    talk.feed("father", "OK", introduce("dad", 4399, grandfather="tcp://127.0.0.1:4300"))
    before = len(talk.sent_on("father"))
    talk.lose_peer("father")
    assert talk.sent_on("father")[before][0] == b"add"
    talk.feed("father", "OK", introduce("dad", 4399, grandfather="tcp://127.0.0.1:4300"))
    assert talk.service.links.father.ident == "dad"
    talk.lose_peer("father")
    talk.sleep(2.1)
    assert talk.service.links._connected == "tcp://127.0.0.1:4300"


def test_a_father_that_has_forgotten_this_server_is_told_of_it_again(tmp_path):
    talk = Talk(tmp_path, {}, father="tcp://127.0.0.1:4400", heartbeat=2.0)
    talk.feed("father", "OK", introduce("dad", 4399))
    talk.feed("father", "ZMQ01", "ERROR", "404", "add yourself first")
    assert talk.sent_on("father")[-1][0] == b"add"
    other = Talk(tmp_path / "other", {})
    other.feed("children", "stranger", "ZMQ01", "hugz", "{}")
    other.expect("children", "stranger", "ZMQ01", "ERROR", "404", ...)
    other.feed("children", "stranger", "ZMQ01", "bye")
    other.expect_nothing()


def test_an_address_that_may_not_be_used_is_not_waited_for(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    talk.refuse_connect("tcp://192.0.2.1:4400")
    far = {**FAR, "father": {"id": "dad", "children_endpoint": "tcp://192.0.2.1:4400"}}
    talk.feed("broker", "", "OK", json.dumps(far))
    talk.sleep(0.6)
    assert json.loads(talk.sent_on("broker")[-1][2])["lost"] == ["dad"]


def test_last_words_go_to_the_broker_and_all_neighbours(tmp_path):
    talk = Talk(tmp_path, {}, broker=BROKER, father="", heartbeat=2.0)
    talk.feed("broker", "", "OK", json.dumps(FAR))
    talk.feed("father", "OK", introduce("dad", 4399))
    talk.join("k", "kid", 7300)
    talk.stop()
    assert talk.sent_on("broker")[-1] == (b"", b"bye", b"tcp://127.0.0.1:5556", b'{"id":"me"}')
    assert talk.sent_on("father")[-1] == (b"ZMQ01", b"bye")
    assert talk.sent_on("children")[-1] == (b"k", b"ZMQ01", b"bye")
