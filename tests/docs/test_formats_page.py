"""The page on formats shows one configuration four times: each is read, and all are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scale0_core.cli.convert import EXTENSIONS, Source, convert

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^```(toml|json|xml|zfl)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_there_is_an_example_for_each_format():
    assert {name.upper() for name in EXAMPLES} == set(EXTENSIONS.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_the_same_configuration(name: str):
    expected = convert(Source("page", EXAMPLES["toml"].encode(), "TOML"), "network", "json")
    assert b'"broker-b"' in expected
    assert convert(Source("page", EXAMPLES[name].encode(), name.upper()), "network", "json") == expected
