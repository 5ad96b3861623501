"""Plans as messages: rows are checked, answers of any kind are read, nothing becomes too large. Needs no Spark."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_spark import plans
from scale0_spark.plans import Answer, Details, PlanError, Wanted

HERE, THERE = "tcp://127.0.0.1:4401", "tcp://127.0.0.1:4402"
NOON = "2026-01-31T12:00:00Z"
SHA256 = "ab" * 32


def row(**more):
    return {"song": "a.ogg", "server": HERE, "source": THERE, "score": 1.5, "wanted": 7, "reason": "wanted", **more}


def advice(**more):
    return {
        "service": "x", "group": "eu", "workers_now": 2, "workers_wanted": 3, "utilisation": 0.9, "share": 0.5,
        "advice": "add", "reason": "busy", **more,
    }  # fmt: skip


# --- replication ------------------------------------------------------------------------------------------------------


def test_a_song_is_asked_for_once_a_server():
    found, wrong = plans.read_replication([row(), row(source="tcp://127.0.0.1:1"), row(server=THERE, source=HERE)])
    assert wrong == []
    assert found == [Wanted("a.ogg", HERE, THERE), Wanted("a.ogg", THERE, HERE)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"song": ""}, {"song": None}, {"song": "x" * 256}, {"server": "nowhere"}, {"server": "inproc://x"},
        {"server": None}, {"source": 5}, {"source": float("nan")}, {"source": "tcp://" + "x" * 300},
    ],
)  # fmt: skip
def test_a_wrong_row_is_told_and_the_others_are_followed(wrong):
    found, ((_, why),) = plans.read_replication([row(**wrong), row()])
    assert found == [Wanted("a.ogg", HERE, THERE)]
    assert "such as tcp://" in why or "song is" in why


def test_another_table_is_no_plan():
    with pytest.raises(PlanError, match="row 2 has no source"):
        plans.read_replication([row(), {"song": "a.ogg", "server": HERE}])


def song(name="a.ogg", tags=None):
    return Details(name, 5, SHA256, tags or {}, (THERE,))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=200).map(lambda title: {"title": title * 5}), max_size=600))
def test_plans_have_every_song_once_and_are_not_too_large(tags):
    songs = [song(f"{number}.ogg", each) for number, each in enumerate(tags)]
    written = list(plans.write_plans(songs))
    assert [name for _, names in written for name in names] == [each.name for each in songs]
    for body, names in written:
        assert len(names) <= plans.MOST_IN_A_PLAN
        assert len(body) < 2 * plans.LARGEST_PLAN
        assert [each["name"] for each in json.loads(body)["songs"]] == names


def test_a_plan_says_where_to_fetch_a_song_and_how_to_know_it():
    ((body, _),) = plans.write_plans([song(tags={"title": "A"})])
    assert json.loads(body) == {
        "songs": [{"name": "a.ogg", "size": 5, "sha256": SHA256, "title": "A", "holders": [THERE]}]
    }


def test_what_a_server_says_to_a_plan():
    told = {"accepted": ["a", "other", 5], "refused": [{"name": "b", "why": "it is\x1b full"}, {"name": []}, "b", {}]}
    verdict = plans.read_verdict(told, ["a", "b", "c"])
    assert verdict == {"a": "", "b": "it is\\x1b full", "c": "the server said nothing of it"}


def test_what_a_holder_says_of_a_song():
    told = {"name": "a.ogg", "size": 5, "sha256": SHA256, "title": "A", "album": 5, "chunk": 100}
    assert plans.read_details(told, "a.ogg", [THERE]) == song(tags={"title": "A"})
    for wrong in ({"name": "b"}, {"size": -1}, {"size": True}, {"size": 1.0}, {"sha256": "x"}, {"sha256": "0" * 64}):
        assert plans.read_details({**told, **wrong}, "a.ogg", [THERE]) is None


def test_what_a_search_finds():
    hit = {"name": "a.ogg", "size": 5, "sha256": SHA256, "holders": [{"endpoint": THERE}, {"endpoint": 5}, "x"]}
    assert plans.read_found({"hits": ["x", {**hit, "holders": []}, hit]}, "a.ogg") == song()
    assert plans.read_found({"hits": [hit]}, "b.ogg") is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=5,
)
NEARLY = st.fixed_dictionaries(
    {}, optional={
        "name": st.just("a") | ANY, "size": ANY, "sha256": st.just(SHA256) | ANY, "title": ANY, "why": ANY,
        "holders": st.lists(st.fixed_dictionaries({"endpoint": st.just(THERE) | ANY}) | ANY, max_size=3) | ANY,
    },
)  # fmt: skip
TOLD = NEARLY | ANY | st.fixed_dictionaries(
    {}, optional={key: st.lists(NEARLY | ANY, max_size=3) | ANY for key in ("hits", "accepted", "refused")}
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(TOLD)
def test_any_json_is_read_without_a_fault(told):
    assert set(plans.read_verdict(told, ["a", "b"])) == {"a", "b"}
    for found in (plans.read_details(told, "a", [THERE]), plans.read_found(told, "a")):
        if found is not None:
            assert found.name == "a"
            json.dumps(found.to_json())


@settings(deadline=None, max_examples=300)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"ZMQ01", b"ERROR", b"t", b"{}"]), max_size=6))
def test_any_frames_are_read_without_a_fault(frames):
    found = plans.read_answer(frames)
    if found is not None:
        plans.read_json(found[1])
        assert plans.refusal(found[1]).isprintable()


def test_deep_json_is_no_answer():
    assert plans.read_json(Answer(b"OK", (b"[" * 100_000,))) is None


# --- placement --------------------------------------------------------------------------------------------------------


def test_advice_has_all_that_discovery_wants():
    nan = float("nan")
    message = plans.write_advice([advice(), advice(service="y", group=nan, utilisation=None, share=nan)], NOON)
    told = json.loads(message.body)
    assert told["as_of"] == NOON
    assert told["rows"] == [advice(), advice(service="y", group=None, utilisation=None, share=None)]
    assert (message.rows, message.left_out) == (2, 0)


def test_small_errors_of_rounding_are_mended_and_long_reasons_are_cut():
    (told,) = json.loads(plans.write_advice([advice(share=1.0000001, reason="x" * 999)], NOON).body)["rows"]
    assert (told["share"], len(told["reason"])) == (1.0, plans.LONGEST_REASON)


def test_what_does_not_fit_is_counted_and_changes_go_first():
    keep = [advice(service=f"k{number}", advice="keep") for number in range(1500)]
    add = [advice(service=f"a{number}") for number in range(1500)]
    message = plans.write_advice(keep + add, NOON)
    assert (message.rows, message.left_out) == (2000, 1000)
    rows = json.loads(message.body)["rows"]
    assert [row["advice"] for row in rows] == ["add"] * 1500 + ["keep"] * 500
    assert plans.write_advice(reversed(keep + add), NOON) == message
    large = plans.write_advice([advice(service=str(number), reason="x" * 500) for number in range(1500)], NOON)
    assert (large.rows + large.left_out, len(large.body) <= plans.LARGEST_ADVICE) == (1500, True)
    assert large.left_out > 0


def test_what_matters_most_is_never_crowded_out():
    idle = [advice(service=f"i{number}", advice="remove", load=99.0, requests=1e9) for number in range(2500)]
    small = [advice(service=f"s{number}", load=0.5, requests=1e6) for number in range(2500)]
    overloaded = advice(service="z", group="zz", load=0.9, requests=10.0)
    asked, also = (advice(service=name, load=0.5, requests=2e6) for name in ("zz", "zy"))
    message = plans.write_advice([*idle, *small, asked, overloaded, also], NOON)
    rows = json.loads(message.body)["rows"]
    assert (message.rows, message.left_out) == (2000, 3003)
    assert [row["service"] for row in rows[:4]] == ["z", "zy", "zz", "s0"]
    assert rows[0] == advice(service="z", group="zz")  # discovery is not told what it does not know
    fewer = json.loads(plans.write_advice([*idle, overloaded], NOON).body)["rows"]
    assert [row["service"] for row in fewer[:2]] == ["z", "i0"]


@pytest.mark.parametrize("odd", [{"service": None}, {"service": ""}, {"service": "x" * 256}, {"group": 5}])
def test_names_that_discovery_does_not_take_are_left_out(odd):
    message = plans.write_advice([advice(**odd), advice()], NOON)
    assert (message.rows, message.left_out, json.loads(message.body)["rows"]) == (1, 1, [advice()])


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers_now": None}, {"workers_wanted": 1.5}, {"workers_now": -1},
        {"utilisation": "high"}, {"utilisation": float("inf")}, {"share": -1}, {"advice": None},
        {"workers_now": 10**400},
    ],
)  # fmt: skip
def test_wrong_advice_is_told_by_its_row(wrong):
    with pytest.raises(PlanError, match="row 2: "):
        plans.write_advice([advice(), advice(**wrong)], NOON)
