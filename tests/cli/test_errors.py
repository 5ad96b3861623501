"""`scale0 errors`: every code is explained."""

import pytest

from scale0_core.cli.errors import EXITS
from scale0_core.errors import Exit
from scale0_core.protocol.codes import CODES, Code


def test_every_code_is_explained():
    assert list(CODES) == list(Code)
    assert list(EXITS) == list(Exit)
    assert all(info.meaning and info.remedy for info in CODES.values())


def test_the_list_has_all(scale0):
    done = scale0("errors", "-o", "json")
    assert (done.code, done.json["schema"]) == (0, "scale0.errors/1")
    listed = {(row["kind"], row["code"]) for row in done.json["items"]}
    assert listed == {("protocol", int(code)) for code in Code} | {("exit", int(code)) for code in Exit}


@pytest.mark.parametrize("code", ["404", "no_service", "NO-SERVICE"])
def test_one_code_is_explained(scale0, code):
    done = scale0("errors", code)
    assert done.code == 0
    assert done.out.startswith("404 no_service: no such service known here\n")


def test_an_exit_code_is_explained(scale0):
    (row,) = scale0("errors", "78", "-o", "json").json["items"]
    assert (row["kind"], row["remedy"]) == ("exit", "scale0 config check")


@pytest.mark.parametrize(("code", "near"), [("405", "404"), ("7", "1"), ("dedline", "deadline")])
def test_an_unknown_code_exits_with_1_and_names_the_nearest(scale0, code, near):
    done = scale0("errors", code)
    assert done.code == 1
    assert near in done.err


def test_codes_are_those_of_the_specification():
    # section 3.6 of the protocol, and 410 for a task that was cancelled
    numbers = [200, 301, 400, 401, 403, 404, 408, 409, 410, 412, 413, 415, 426, 429, 444, 500, 501, 503, 504]
    assert [int(code) for code in Code] == numbers
