"""Every requirement that is due has a test that carries its number.

``python tests/requirements/test_requirements.py`` prints the table; so does ``pytest -s tests/requirements``.
The marks are read from the sources: nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "requirements.toml").read_text(encoding="utf-8"))
NOW: dict[str, str] = TABLE["now"]
LATER: dict[str, str] = TABLE["later"]
ALL = {f"R{number}" for number in range(1, 117)} | {f"M{number}" for number in range(1, 42)}
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def files_with_tests() -> list[Path]:
    found = [*(ROOT / "tests").rglob("*.py"), *ROOT.glob("plugins/*/tests/**/*.py")]
    return sorted(path for path in found if "build" not in path.parts)


def marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give every (requirement, test) of a module; a mark of a class or module counts for what stands in it."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inside = name
            if isinstance(child, Scope):
                inside = f"{name}::{child.name}" if name else child.name
            elif isinstance(child, ast.Call) and is_mark(child.func):
                for argument in child.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield argument.value, name or "the whole module"
            yield from walk(child, inside)

    return walk(tree, "")


def is_mark(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "requirement"
        and isinstance(function.value, ast.Attribute)
        and function.value.attr == "mark"
    )


@functools.cache
def proofs() -> dict[str, list[str]]:
    """Give the tests of each requirement."""
    found: dict[str, list[str]] = {}
    for path in files_with_tests():
        for number, test in marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(number, []).append(f"{path.relative_to(ROOT).as_posix()}::{test}")
    return found


def in_order(number: str) -> tuple[str, int]:
    return number[0], int(number[1:])


def table(proven: dict[str, list[str]]) -> str:
    lines = []
    for number in sorted({*NOW, *LATER, *proven}, key=in_order):
        what = NOW.get(number) or f"(later) {LATER[number]}"
        lines.append(f"{number:5} {what}")
        lines += [f"        {test}" for test in proven.get(number, ["-"] if number in NOW else [])]
    return "\n".join(lines)


def test_every_requirement_that_is_due_has_a_test():
    proven = proofs()
    print("\n" + table(proven))
    missing = {number: what for number, what in NOW.items() if number not in proven}
    assert missing == {}


def test_every_requirement_is_decided_once():
    assert {*NOW, *LATER} == ALL
    assert not set(NOW) & set(LATER)
    assert all(NOW.values())
    assert all(LATER.values())


def test_marks_carry_numbers_that_exist():
    assert {number: tests for number, tests in proofs().items() if number not in ALL} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("@pytest.mark.requirement('R1')\ndef test_a(): ...", [("R1", "test_a")]),
        ("@pytest.mark.requirement('R1', 'R2')\nasync def test_a(): ...", [("R1", "test_a"), ("R2", "test_a")]),
        ("@pytest.mark.requirement('R1')\nclass TestA:\n    def test_b(self): ...", [("R1", "TestA")]),
        ("class TestA:\n    @pytest.mark.requirement('R1')\n    def test_b(self): ...", [("R1", "TestA::test_b")]),
        ("pytestmark = pytest.mark.requirement('R1')", [("R1", "the whole module")]),
        ("pytestmark = [pytest.mark.slow, pytest.mark.requirement('R1')]", [("R1", "the whole module")]),
        ("x = [pytest.param(1, marks=pytest.mark.requirement('R1'))]", [("R1", "the whole module")]),
        ("@pytest.mark.slow\ndef test_a(): requirement('R1')", []),
        ("# @pytest.mark.requirement('R1')\n'pytest.mark.requirement(\"R2\")'", []),
    ],
)
def test_marks_are_found_where_they_stand(source: str, found: list[tuple[str, str]]):
    assert list(marks(ast.parse(source))) == found


if __name__ == "__main__":
    print(table(proofs()))
