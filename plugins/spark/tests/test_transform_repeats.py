"""Each event counts once, however often it was stored."""

from __future__ import annotations

import random
import secrets

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from scale0_spark import events
from scale0_spark.events import deduplicated

from .event_rows import Log, Row, cases, frame, shuffled


def test_of_events_with_the_same_id_one_is_kept(spark: SparkSession):
    one, other, again = Log(), Log("b2"), Log(started=1.0)
    for log in (one, other, again):  # the same numbers, and others' events
        for number in range(130):
            log.add("task", float(number), service="echo", outcome="ok", count=number)
    rows = [*one.rows, *other.rows, *again.rows]
    found = frame(spark, rows, one.rows[63:65], other.rows[:1], one.rows[64:65])
    assertDataFrameEqual(deduplicated(found), frame(spark, rows))


@pytest.mark.parametrize("many_blocks", [events.MANY_BLOCKS, 1])
def test_repeats_by_chance_change_nothing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, many_blocks: int):
    monkeypatch.setattr(events, "MANY_BLOCKS", many_blocks)
    seed = secrets.randbelow(2**32)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    rows = cases([seed, seed + 1], 400)
    repeats: list[Row] = [row for row in rows for _ in range(chance.choice((0, 0, 0, 1, 3)) if row["seq"] < 70 else 0)]
    assert repeats
    assertDataFrameEqual(deduplicated(frame(spark, shuffled([*rows, *repeats], seed))), frame(spark, rows))
