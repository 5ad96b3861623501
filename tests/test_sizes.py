"""Nothing is there twice, and what is large says why."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*ROOT.glob("scale0_core/**/*.py"), *ROOT.glob("plugins/*/scale0_*/**/*.py")])

MOST_ATTRIBUTES = 20
MOST_METHODS = 30
MOST_EQUAL_LINES = 12
REASON = re.compile(r"\n\s*Large, since \w", re.MULTILINE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def package_of(path: Path) -> str:
    """Name the package that a module is installed with."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "plugins" else parts[0]


def trees() -> Iterator[tuple[Path, ast.ClassDef]]:
    """Give all classes."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path, node


CLASSES = list(trees())


def attributes(node: ast.ClassDef) -> set[str]:
    """Name what an instance keeps: what is declared, and what its methods set."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and "ClassVar" not in ast.dump(each)
    }
    in_methods = {
        each.attr
        for method in node.body
        if isinstance(method, FUNCTIONS)
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return declared | in_methods


def holds_settings(path: Path, node: ast.ClassDef) -> bool:
    """Tell whether a class is a table of a configuration, which has as many entries as there are settings."""
    return node.name.endswith("Settings") or path.is_relative_to(ROOT / "scale0_core" / "config")


def large(path: Path, node: ast.ClassDef) -> str:
    """Say how a class is large; empty if it is not, or says why."""
    methods = sum(isinstance(each, FUNCTIONS) for each in node.body)
    kept = len(attributes(node))
    if (methods <= MOST_METHODS and kept <= MOST_ATTRIBUTES) or holds_settings(path, node):
        return ""
    if REASON.search(ast.get_docstring(node) or ""):
        return ""
    return f"{path.relative_to(ROOT)}: {node.name} has {kept} attributes and {methods} methods"


def test_a_large_class_says_why():
    assert [told for path, node in CLASSES if (told := large(path, node))] == []


@pytest.mark.parametrize(
    ("attributes", "methods", "more", "allowed"),
    [
        (20, 30, "", True), (21, 1, "", False), (0, 31, "", False),
        (21, 31, "Large, since it is", True), (21, 0, "It is large.", False),
    ],
)  # fmt: skip
def test_the_size_of_a_class_is_seen(attributes: int, methods: int, more: str, allowed: bool):
    lines = [f'    """A class.\n\n    {more}\n    """', *(f"    def m{number}(self): ..." for number in range(methods))]
    lines += [f"    a{number}: int" for number in range(attributes)]
    (node,) = ast.parse("\n".join(["class Some:", *lines])).body
    assert isinstance(node, ast.ClassDef)
    assert (large(ROOT / "scale0_core" / "some.py", node) == "") is allowed


@pytest.mark.parametrize("name", ["Link", "Engine", "Stream", "FutureSink"])
def test_the_client_layer_is_there_once(name: str):
    (path,) = [path for path, node in CLASSES if node.name == name]
    assert path.parent == ROOT / "scale0_core" / "client" / "kit"


def lines_of(text: str) -> list[tuple[int, str]]:
    """Give the lines that say something, with their numbers: no blank ones, no comments, no imports."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare and not bare.startswith(("#", "import ", "from ")):
            found.append((number, bare))
    return found


def runs(texts: dict[Path, str]) -> list[str]:
    """Find runs of more than ``MOST_EQUAL_LINES`` equal lines in two packages."""
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, text in texts.items():
        lines = lines_of(text)
        for at in range(len(lines) - MOST_EQUAL_LINES):
            window = lines[at : at + MOST_EQUAL_LINES + 1]
            places[tuple(line for _, line in window)].append((path, window[0][0]))
    return [
        " = ".join(f"{path.relative_to(ROOT)}:{number}" for path, number in found)
        for found in places.values()
        if len({package_of(path) for path, _ in found}) > 1
    ]


def test_no_lines_are_there_in_two_packages():
    assert runs({path: path.read_text("utf-8") for path in SOURCES}) == []


@pytest.mark.parametrize("count", [MOST_EQUAL_LINES, MOST_EQUAL_LINES + 1])
def test_equal_lines_are_seen(count: int):
    text = "\n\n".join(f"line = {number}" for number in range(count))
    one, other = ROOT / "scale0_core" / "one.py", ROOT / "plugins" / "echo" / "scale0_echo" / "other.py"
    assert bool(runs({one: text, other: f"first = 0\n{text}\nlast = 0"})) is (count > MOST_EQUAL_LINES)
    assert not runs({one: text, one.with_name("two.py"): text})
