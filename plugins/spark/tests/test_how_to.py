"""The how-to works as written, block by block: what one wrote, the next does not take away."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from scale0_spark import tables
from scale0_spark.merging import SHAPES

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-the-pipeline.md"
SECTIONS = ("A first report, in three commands", "One job, part of the time, other numbers", "Read the tables")


def lines() -> list[list[str]]:
    """Give the commands of these sections, in order, with fewer rows than a reader has."""
    found = []
    for title in SECTIONS:
        section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
            found += [shlex.split(line.removeprefix("$ scale0 ")) for line in block.splitlines()]
    return [[word.replace("1000000", "20000") for word in words] for words in found if "prepare" not in words]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not PAGE.exists(), reason="the docs are not here")
def test_every_block_of_the_how_to_works_and_none_empties_a_table(
    run_here: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert len(lines()) >= 10
    before: dict[str, int] = {}
    for words in lines():
        if words[0] == "telemetry":
            subprocess.run([sys.executable, "-m", "scale0_core", *words], check=True, timeout=120, capture_output=True)
            continue
        run_here(*words[1:])
        after = {entry.name: entry.rows for entry in tables.entries(Path("tables"))}
        fewer = {name for name, rows in before.items() if rows > after[name]}
        assert not {name for name in fewer if not SHAPES[name].shrinks or not after[name]}, words
        before = after
    assert before["trends_minute"] > 1000
