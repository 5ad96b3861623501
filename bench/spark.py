"""What the jobs cost in Spark: trends and popularity of generated events, beside DuckDB on the same files.

Both compute the same four tables (trends by minute, hour and day, and popularity) from Parquet files to Arrow tables in
memory, on two cores, taking turns. What they found is compared: counts must be equal, percentiles within their error.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import (
    BenchError,
    Figures,
    NotMeasured,
    Report,
    Samples,
    Target,
    bench_folder,
    cpu_seconds,
    make_parser,
    print_table,
    ratio,
    run_bench,
    show,
    take_sizes,
    take_turns,
)

CORES = 2
DAYS = 7
"""The events are of one week: 10,080 minutes of 12 services, about 120,000 rows of trends."""
BROKERS = 2
SEED = 7
WINDOWS = ("minute", "hour", "day")
REQUESTS, SONGS = ("task", "rpc"), ("song_search", "song_download")
"""The kinds of events that each job reads."""

TABLES = (*(f"trends_{window}" for window in WINDOWS), "popularity")
COUNTED = (
    "window_start", "service", "kind", "requests", "errors", "rate_per_s", "error_share",
    "passed_on", "passed_on_errors",
)  # fmt: skip
"""Columns of trends in which both must agree to the last digit."""
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NEEDED = ("pyspark", "duckdb", "scale0_spark", "scale0_telemetry")

FULL = {"rows": 10_000_000, "small": 1_000_000, "large": 30_000_000, "rounds": 3, "pipe_rows": 2_000_000}
QUICK = {"rows": 500_000, "small": 100_000, "large": 1_500_000, "rounds": 1, "pipe_rows": 200_000}

TARGETS = (
    Target("warm_vs_duckdb", 6.0, "seconds for all tables: Spark, warm / DuckDB, warm"),
    Target("zpipes_rows_per_s", 300_000, "rows of 100 bytes from a pipe into a windowed aggregation", at_least=True),
    Target("growth_30m_vs_1m", 1.5, "Spark's seconds per further row: from 10 to 30 million / from 1 to 10 million"),
)

Tables = Mapping[str, Any]


def generate(folder: Path, rows: int) -> tuple[str, dict[str, float]]:
    """Write events; give the folder, and what it took."""
    from scale0_telemetry.generator import generate as write_events

    events = folder / f"events-{rows}"
    summary = write_events(events, rows=rows, seed=SEED, days=DAYS, brokers=BROKERS)
    return str(events), {"rows_per_s": summary.rows_per_s, "bytes": summary.bytes, "files": summary.files}


# --- the two of them --------------------------------------------------------------------------------------------------


@dataclass
class Spark:
    """Computes the tables by the jobs of the plugin."""

    session: Any

    def cpu_seconds(self) -> float:
        """Give the CPU seconds that this process and Java have used."""
        return time.process_time() + cpu_seconds(self.session.sparkContext._gateway.proc.pid)  # noqa: SLF001

    def tables(self, events: str) -> Iterator[tuple[str, Any]]:
        """Compute one table after the other, as the commands do: after a look for events that came twice."""
        from scale0_spark.events import deduplicated, read_events
        from scale0_spark.jobs import JOBS, run

        for name in ("trends", "popularity"):
            job = JOBS[name]
            for table, frame in run(job, deduplicated(read_events(self.session, events, job.kinds))).items():
                yield table, frame.toArrow()


@contextmanager
def started_spark() -> Iterator[tuple[Spark, float]]:
    """Start Spark on two cores; give it, and the seconds until it was there."""
    from scale0_spark.session import open_session

    begin = time.perf_counter()
    with open_session("bench", f"local[{CORES}]") as session:
        yield Spark(session), time.perf_counter() - begin


class Duck:
    """Computes the tables by SQL."""

    def __init__(self) -> None:
        import duckdb

        self.connection = duckdb.connect()
        self.connection.execute(f"SET threads = {CORES}; SET TimeZone = 'UTC'")

    def cpu_seconds(self) -> float:
        """Give the CPU seconds that this process has used."""
        return time.process_time()

    def tables(self, events: str) -> Iterator[tuple[str, Any]]:
        """Compute one table after the other, each job after a look for events that came twice."""
        self.look_for_repeats(events, *REQUESTS)
        for window in WINDOWS:
            yield f"trends_{window}", self.connection.sql(trends_sql(events, window)).to_arrow_table()
        self.look_for_repeats(events, *SONGS)
        yield "popularity", self.connection.sql(popularity_sql(events)).to_arrow_table()

    def look_for_repeats(self, events: str, *kinds: str) -> None:
        """Insist that no event is there twice; by numbers of 64 events at a time, as the plugin does it."""
        (repeats,) = self.connection.sql(repeats_sql(events, *kinds)).to_arrow_table().column(0).to_pylist()
        assert not repeats, f"{repeats} blocks of 64 events have some twice"


def repeats_sql(events: str, *kinds: str) -> str:
    """Count blocks of events in which some came twice, in SQL."""
    return f"""
        SELECT count(*) FROM (
            SELECT 1 FROM {source_sql(events, *kinds)} GROUP BY broker, epoch, seq >> 6
            HAVING count(*) > bit_count(bit_or(1::UBIGINT << (seq & 63))))"""


def source_sql(events: str, *kinds: str) -> str:
    """Name the events of some kinds in SQL."""
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    return f"read_parquet('{events}/*/*/*.parquet', hive_partitioning = true) WHERE kind IN ({listed})"


def trends_sql(events: str, window: str) -> str:
    """Write the trends of a window in SQL."""
    seconds = {"minute": 60, "hour": 3600, "day": 86400}[window]
    ranks = ", ".join(map(str, PERCENTILES.values()))
    values = ", ".join(
        f"{column}s[{place}]::DOUBLE AS {column}_{name}"
        for column in ("queue", "service")
        for place, name in enumerate(PERCENTILES, 1)
    )
    failed = "CASE WHEN outcome IN ('ok', 'cancelled') THEN 0 ELSE weight END"
    passed_on = "kind = 'task' AND peer IS NULL AND service_us IS NOT NULL"
    return f"""
        SELECT window_start, service, kind, requests, errors, requests / {seconds} AS rate_per_s,
               errors / requests AS error_share, {values}, passed_on, passed_on_errors
        FROM (SELECT date_trunc('{window}', ts) AS window_start, service, kind, sum(weight) AS requests,
                     sum({failed}) AS errors,
                     sum(CASE WHEN {passed_on} THEN weight ELSE 0 END) AS passed_on,
                     sum(CASE WHEN {passed_on} THEN {failed} ELSE 0 END) AS passed_on_errors,
                     quantile_disc(queue_us, [{ranks}]) AS queues, quantile_disc(service_us, [{ranks}]) AS services
              FROM {source_sql(events, *REQUESTS)} GROUP BY ALL)
        ORDER BY window_start, service, kind"""


def popularity_sql(events: str) -> str:
    """Write the popularity of songs in SQL, as of the last event, with a half-life of seven days."""
    return f"""
        WITH wanted AS (SELECT subject AS song, kind, weight, epoch_us(ts) / 1e6 AS moment
                        FROM {source_sql(events, *SONGS)} AND subject IS NOT NULL),
             last AS (SELECT max(moment) AS moment FROM wanted)
        SELECT song, sum(CASE WHEN kind = 'song_search' THEN weight ELSE 0 END) AS requests,
               sum(CASE WHEN kind = 'song_download' THEN weight ELSE 0 END) AS downloads,
               sum(weight * pow(2.0, (wanted.moment - last.moment) / (7 * 86400))) AS score,
               row_number() OVER (ORDER BY score DESC, song) AS rank
        FROM wanted, last GROUP BY song ORDER BY rank"""


def timed(engine: Spark | Duck, events: str) -> tuple[Tables, dict[str, float]]:
    """Compute all tables; give them, the seconds that each took, and the CPU seconds of all."""
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    begin, cpu = time.perf_counter(), engine.cpu_seconds()
    for name, table in engine.tables(events):
        found[name], seconds[name] = table, time.perf_counter() - begin
        begin = time.perf_counter()
    return found, {**seconds, "all": sum(seconds.values()), "cpu": engine.cpu_seconds() - cpu}


# --- whether both found the same --------------------------------------------------------------------------------------


def compare(spark: Tables, duck: Tables, connection: Any, events: str) -> Figures:
    """Insist that both computed the same; give by how much percentiles are off, in ranks."""
    worst = 0.0
    for window in WINDOWS:
        ours, theirs = spark[f"trends_{window}"], duck[f"trends_{window}"]
        for column in COUNTED:
            if ours[column].to_pylist() != theirs[column].to_pylist():
                raise BenchError(f"Spark and DuckDB differ in {column} of trends_{window}")
        worst = max(worst, rank_error(ours, connection, events, window))
    songs, others = spark["popularity"], duck["popularity"]
    for column in ("song", "requests", "downloads", "rank"):
        if songs[column].to_pylist() != others[column].to_pylist():
            raise BenchError(f"Spark and DuckDB differ in {column} of popularity")
    for one, other in zip(songs["score"].to_pylist(), others["score"].to_pylist(), strict=True):
        if abs(one - other) > 1e-9 * other:
            raise BenchError(f"Spark and DuckDB differ in a score: {one} and {other}")
    return {"rank_error": round(worst, 6), "trends_rows": spark["trends_minute"].num_rows, "songs": songs.num_rows}


def rank_error(trends: Any, connection: Any, events: str, window: str) -> float:
    """Give how far the ranks of Spark's percentiles are from those asked for, beyond one event, at worst.

    A value has all ranks from the share of smaller values to the share of those that are not larger.
    """
    from scale0_spark.transforms.trends import ACCURACY

    connection.register("trends", trends)
    checks = []
    for column in ("queue", "service"):
        count = f"count({column}_us)"
        for name, rank in PERCENTILES.items():
            value = f"any_value({column}_{name})"
            below = f"count(*) FILTER ({column}_us < {column}_{name})"
            upto = f"count(*) FILTER ({column}_us <= {column}_{name})"
            off = f"greatest({below} - {rank} * {count}, {rank} * {count} - {upto}) - 1"
            checks.append(f"coalesce(CASE WHEN {value} IS NULL AND {count} > 0 THEN 1 ELSE ({off}) / {count} END, 0)")
    sql = f"""
        SELECT max(off) FROM (
            SELECT greatest({", ".join(checks)}) AS off
            FROM (SELECT date_trunc('{window}', ts) AS window_start, * FROM {source_sql(events, "task", "rpc")})
            JOIN trends USING (window_start, service, kind) GROUP BY window_start, service, kind)"""
    worst = max(0.0, float(connection.sql(sql).fetchall()[0][0]))
    connection.unregister("trends")
    if worst > 1 / ACCURACY:
        raise BenchError(f"a percentile of trends_{window} is off by {worst:.5f} in rank, and 1/{ACCURACY} is stated")
    return worst


# --- measuring --------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Tell on stderr how far it is: a run takes minutes."""
    print(f"spark.py: {text}", file=sys.stderr, flush=True)


def measure_tables(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure both engines, cold and warm, and Spark with fewer and more events."""
    events, made = generate(folder, options.rows)
    figures: Figures = {f"generator_{name}": value for name, value in made.items()}
    say(f"{options.rows:,} events are there; starting Spark")
    with started_spark() as (spark, start_s):
        figures["spark_start_s"] = round(start_s, 2)
        duck = Duck()
        _, cold_duck = timed(duck, events)
        _, cold_spark = timed(spark, events)
        say(f"cold: Spark {cold_spark['all']:.1f} s, DuckDB {cold_duck['all']:.1f} s")
        figures |= {"spark_cold_s": round(cold_spark["all"], 2), "duckdb_cold_s": round(cold_duck["all"], 2)}
        found: dict[str, Tables] = {}

        def measuring(name: str, engine: Spark | Duck) -> Callable[[], Mapping[str, float]]:
            def once() -> Mapping[str, float]:
                found[name], seconds = timed(engine, events)
                say(f"warm: {name} {seconds['all']:.1f} s")
                return seconds

            return once

        samples: Samples[str] = {}
        take_turns({"spark": measuring("spark", spark), "duckdb": measuring("duckdb", duck)}, options.rounds, samples)
        figures |= ratio("warm_vs_duckdb", samples["spark"]["all"], samples["duckdb"]["all"])
        figures |= ratio("warm_cpu_vs_duckdb", samples["spark"]["cpu"], samples["duckdb"]["cpu"])
        for engine in ("spark", "duckdb"):
            for table in (*TABLES, "all", "cpu"):
                figures[f"{engine}_warm_s_{table}"] = round(min(samples[engine][table]), 3)
        figures |= compare(found["spark"], found["duckdb"], duck.connection, events)
        say("both found the same")
        warm = samples["spark"]
        figures |= measure_growth(options, folder, spark, {"all": min(warm["all"]), "cpu": min(warm["cpu"])})
    return figures


def measure_growth(options: argparse.Namespace, folder: Path, spark: Spark, middle: Mapping[str, float]) -> Figures:
    """Measure warm Spark with fewer and with more events; what it takes in any case is left out of the ratio."""
    seconds, cpu = ({options.rows: middle[name]} for name in ("all", "cpu"))
    for rows in (options.small, options.large):
        events, _ = generate(folder, rows)
        runs = [timed(spark, events)[1] for _ in range(1 if options.quick or rows > options.rows else 2)]
        seconds[rows], cpu[rows] = (min(run[name] for run in runs) for name in ("all", "cpu"))
        say(f"{rows:,} events: Spark {seconds[rows]:.1f} s, {cpu[rows]:.1f} s of CPU")
    figures: Figures = {f"growth_s_{rows}": round(value, 2) for rows, value in sorted(seconds.items())}
    figures |= {f"growth_cpu_s_{rows}": round(value, 2) for rows, value in sorted(cpu.items())}
    return {**figures, "growth_30m_vs_1m": bend(seconds), "growth_cpu_30m_vs_1m": bend(cpu)}


def bend(seconds: Mapping[int, float]) -> float | None:
    """Give what a further row costs from the middle to the most rows over that from the fewest to the middle."""
    small, middle, large = sorted(seconds)
    early = (seconds[middle] - seconds[small]) / (middle - small)
    late = (seconds[large] - seconds[middle]) / (large - middle)
    return round(late / early, 3) if early > 0 else None  # so few rows that noise is larger


def measure_pipes(options: argparse.Namespace) -> Figures:
    """Measure how fast a pipe is read."""
    if importlib.util.find_spec("scale0_zpipes") is None:
        raise NotMeasured("the plugin zpipes is not installed")
    import spark_zpipes

    say("reading a pipe")
    return {"zpipes_rows_per_s": round(spark_zpipes.measure(options.pipe_rows, cores=CORES, runs=options.rounds))}


def measure(options: argparse.Namespace) -> Report:
    """Measure all of it, or say what is missing."""
    take_sizes(options, FULL, QUICK)
    report = Report("Spark: trends and popularity beside DuckDB, growth, and pipes", TARGETS, {"rows": options.rows})
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        report.notes.append(f"not measured: {', '.join(missing)} not installed")
        return report
    with bench_folder() as folder:
        report.figures |= measure_tables(options, folder)
    try:
        report.figures |= measure_pipes(options)
    except NotMeasured as reason:
        report.notes.append(f"zpipes_rows_per_s is not measured: {reason}")
    return report


def print_details(figures: Mapping[str, Any]) -> None:
    """Print both engines' seconds, and Spark's by the number of events."""
    if "spark_cold_s" not in figures:
        return
    rows = [
        [f"{table}, warm", *(show(figures[f"{engine}_warm_s_{table}"]) for engine in ("spark", "duckdb"))]
        for table in (*TABLES, "all", "cpu")
    ]
    cold = ["all, cold", show(figures["spark_cold_s"]), show(figures["duckdb_cold_s"])]
    start = ["start", show(figures["spark_start_s"]), "-"]
    print_table([f"seconds for {figures['rows']:,} events", "Spark", "DuckDB"], [start, cold, *rows])
    sizes = sorted(int(name.removeprefix("growth_s_")) for name in figures if name.startswith("growth_s_"))
    growth = [
        [f"{size:,}", show(figures[f"growth_s_{size}"]), show(figures[f"growth_s_{size}"] / size * 1e6)]
        for size in sizes
    ]
    print_table(["events", "Spark, warm, s", "s per million"], growth)
    print(
        f"generator: {figures['generator_rows_per_s']:,.0f} rows/s, {figures['generator_files']} files,"
        f" {figures['generator_bytes'] / 1e6:,.0f} MB; percentiles off by {figures['rank_error']:.5f} in rank at most\n"
    )


def main() -> int:
    """Run the bench."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help=f"events to compare with (default {FULL['rows']:,})")
    parser.add_argument("--small", type=int, help=f"the fewest events of the growth (default {FULL['small']:,})")
    parser.add_argument("--large", type=int, help=f"the most events of the growth (default {FULL['large']:,})")
    parser.add_argument("--rounds", type=int, help=f"warm rounds (default {FULL['rounds']})")
    parser.add_argument("--pipe-rows", type=int, help=f"rows in the pipe (default {FULL['pipe_rows']:,})")
    return run_bench(parser, measure, print_details)


if __name__ == "__main__":
    sys.exit(main())
