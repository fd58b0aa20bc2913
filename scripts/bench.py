"""Time mergerepl: medians and ratios of one run, as a Markdown table on standard output.

    scripts/bench                      every part, about 30 minutes
    scripts/bench mr1 small            some parts
    scripts/bench --rounds 3 mr1

Parts: mr1 (60,000 updates a side in 1 M rows, 6,000 of them on both), hundred (100,000 changes in 1 M rows),
small (1,000 changes in 1 M rows), scale (the same 100,000 changes in 1 M and 10 M rows), idle (nothing to
do), few (few edits in small tables, written by Spark and with `--engine auto`),
updates (five rows of 3 M and of 10 M rows, changed by MERGE and by UPDATE of delta-rs, in turns),
cold (MR-1 as a new process), large (the same with 600,000 updates a side in 10 M rows),
counts (Spark jobs and Delta commits of a sync), tracking (Compact change
tracking: an implicit transaction of one row beside a MERGE of it; 1,000 changes enumerated in 1 M and 10 M rows), cdc
(Change Data Capture: an idle scan, 1,000 commits in one cycle, 1,000 changes captured in 1 M and 10 M rows), partitions
(row filters: the same changes with 10, 100 and 1,000 partitions, and in 1 M and 10 M rows), transactional (commands: an
idle run; 100,000 updates beside the same by hand, in turns; 1,000 in 1 M and 10 M rows), conflicts (1 M rows changed at
both sides beside 1 M changed at one, the newest 20 of the conflicts listed, and the purge of all), aged (what a session
reads and writes after 100, 1,000 and 10,000 sessions), real (after 100 and 1,000 sessions that were run), reinit (a
subscriber of 1 M rows, 100 of them different, filled again; beside a new one), columns (three subscribers of 1 M rows:
ADD COLUMN, 100 updates, and a replaced table with 100 other rows).

The yardstick is what people write by hand: read each table's change feed, MERGE it into the other one, the
publisher's rows win. It keeps no losing row, no lineage and nothing to recover with. Both run in one session,
in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import yaml
from bench_products import captures, commands, tracking
from bench_sessions import aged_sessions, changed_tables, filled_again
from bench_tables import (
    changes_of,
    commits_below,
    edit,
    merge_changes,
    merge_seconds,
    next_job,
    timed,
    write_table,
)
from deltalake import DeltaTable as LogTable
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import Replica
from mergerepl.sessions import Engine
from mergerepl.spark import session as engine
from tests.calls import validated


@dataclass(frozen=True)
class Load:
    """Rows of the table, which ids each side updates (half-open ranges), and its files (None: one for each core)."""

    rows: int
    publisher: tuple[int, int]
    subscriber: tuple[int, int]
    files: int | None = None

    @property
    def conflicts(self) -> int:
        """Rows updated at both sides."""
        return max(0, min(self.publisher[1], self.subscriber[1]) - max(self.publisher[0], self.subscriber[0]))


MR1 = Load(1_000_000, (0, 60_000), (54_000, 114_000))
MR1_IN_10M = Load(10_000_000, (0, 600_000), (540_000, 1_140_000))
HUNDRED = Load(1_000_000, (0, 50_000), (45_000, 95_000))
CLUSTERED = Load(1_000_000, (0, 50_000), (45_000, 95_000), files=2)
CLUSTERED_IN_10M = Load(10_000_000, (0, 50_000), (45_000, 95_000), files=20)
LARGE = Load(3_000_000, (0, 0), (0, 0), files=1)
LARGE_IN_10M = Load(10_000_000, (0, 0), (0, 0), files=4)
ALL = (0, 1_000_000)
SMALL = Load(1_000_000, (0, 500), (450, 950))


class Ours:
    """Publisher and subscriber under mergerepl."""

    def __init__(self, spark: SparkSession, folder: Path, load: Load) -> None:
        """Publish the table and initialise the subscriber."""
        self.spark, self.load = spark, load
        self.publisher, self.subscriber = folder / "hq", folder / "north"
        write_table(spark, self.publisher / "orders", load.rows, load.files)
        folder.mkdir(exist_ok=True)
        file = folder / "bench.yml"
        file.write_text(
            yaml.safe_dump(
                {
                    "publication": "bench",
                    "publisher": str(self.publisher),
                    "articles": [{"name": "orders", "key": ["id"]}],
                    "subscriptions": [{"subscriber": str(self.subscriber)}],
                }
            )
        )
        mergerepl.Project.load(file).apply()

    def edit(self) -> None:
        """Make both sides' edits."""
        edit(self.spark, self.publisher / "orders", self.load.publisher, 1)
        edit(self.spark, self.subscriber / "orders", self.load.subscriber, 7)

    def run(self) -> None:
        """Synchronise."""
        done = mergerepl.Project.load(self.publisher).sync().sessions[0]
        if done.upload.conflicts != self.load.conflicts:
            raise SystemExit(f"{done.upload.conflicts} conflicts, not {self.load.conflicts}")

    def check(self, rounds: int) -> None:
        """Check that both sides are equal and every loser was kept."""
        for _, articles in validated(self.publisher).items():
            assert all(article.ok for article in articles), articles
        losers = mergerepl.Replica(self.publisher).conflicts.rows("orders").count()
        assert losers == rounds * self.load.conflicts, (losers, rounds)


class Pair:
    """The same by hand."""

    def __init__(self, spark: SparkSession, folder: Path, load: Load) -> None:
        """Write both tables."""
        self.spark, self.load = spark, load
        self.tables = {name: folder / "pair" / name for name in ("hq", "north")}
        for path in self.tables.values():
            write_table(spark, path, load.rows, load.files)

    def edit(self) -> None:
        """Make both sides' edits."""
        edit(self.spark, self.tables["hq"], self.load.publisher, 1)
        edit(self.spark, self.tables["north"], self.load.subscriber, 7)

    def run(self) -> None:
        """MERGE each side's feed into the other; the publisher's rows win."""
        at_publisher, at_subscriber = (changes_of(self.spark, each) for each in self.tables.values())
        won = at_subscriber.join(at_publisher.select("id"), on="id", how="left_anti")
        merge_changes(self.spark, self.tables["hq"], won)
        merge_changes(self.spark, self.tables["north"], at_publisher)


def conflicts(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Compare a session of 1 M conflicts with one of 1 M changes of one side, in turns on fresh tables."""
    loads = Load(ALL[1], ALL, (0, 0)), Load(ALL[1], ALL, ALL)
    with tempfile.TemporaryDirectory() as name:
        contenders = [Ours(spark, Path(name) / str(load.conflicts), load) for load in loads]
        seconds: tuple[list[float], list[float]] = ([], [])
        for number in range(warm_up + rounds):
            for kind, contender in enumerate(contenders):
                contender.edit()
                took = timed(contender.run)
                if number >= warm_up:
                    seconds[kind].append(took)
                sys.stderr.write(f"  {('plain', 'conflicts')[kind]}: {took:.1f} s\n")
        plain, both = (statistics.median(kind) for kind in seconds)
        print(
            f"| a session of {ALL[1]:,} changes, or conflicts | {plain:.1f} s | {both:.1f} s | {both / plain:.2f} | 2.0 |"
        )
        hq = contenders[1].publisher
        total = (warm_up + rounds) * loads[1].conflicts
        listing = timed(lambda: mergerepl.Replica(hq).conflicts.list(limit=20))
        print(f"| the newest 20 of {total:,} conflicts | | {listing:.1f} s | | 1.0 s |")
        removing = timed(lambda: mergerepl.Replica(hq).conflicts.drop(older_than=timedelta(0)))
        assert mergerepl.Replica(hq).conflicts.count() == 0
        print(f"| `conflicts purge` of all | | {removing:.1f} s | | |")


def in_turns(spark: SparkSession, load: Load, rounds: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Return the seconds of our rounds and of the pair's, run in turns on fresh tables."""
    with tempfile.TemporaryDirectory() as name:
        ours, pair = Ours(spark, Path(name), load), Pair(spark, Path(name), load)
        seconds: tuple[list[float], list[float]] = ([], [])
        for number in range(warm_up + rounds):
            for kind, contender in enumerate((ours, pair)):
                contender.edit()
                took = timed(contender.run)
                if number >= warm_up:
                    seconds[kind].append(took)
                sys.stderr.write(f"  {('mergerepl', 'by hand')[kind]}: {took:.1f} s\n")
        ours.check(warm_up + rounds)
        return seconds


def report_turns(name: str, load: Load, seconds: tuple[list[float], list[float]], limit: str) -> None:
    """Print one line of the table."""
    ours, pair = (statistics.median(kind) for kind in seconds)
    changes = (load.publisher[1] - load.publisher[0]) + (load.subscriber[1] - load.subscriber[0])
    print(
        f"| {name} | {load.rows:,} | {changes:,} | {load.conflicts:,} | {ours:.1f} s | {pair:.1f} s | "
        f"{ours / pair:.2f} | "
        f"{limit} |"
    )


def scale(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Compare the same changes of one range of keys in 1 M and in 10 M rows, in files of 500,000 rows.

    The time inside the MERGE is reported separately.
    """
    for load in (CLUSTERED, CLUSTERED_IN_10M):
        with tempfile.TemporaryDirectory() as name:
            ours = Ours(spark, Path(name), load)
            totals, merges = [], []
            for number in range(warm_up + rounds):
                ours.edit()
                took = timed(ours.run)
                if number >= warm_up:
                    totals.append(took)
                    merges.append(
                        max(merge_seconds(root / "orders") for root in (ours.publisher, ours.subscriber))
                    )
            total, merge = statistics.median(totals), statistics.median(merges)
            rest = statistics.median([t - m for t, m in zip(totals, merges, strict=True)])
            print(f"| {load.rows:,} | {total:.1f} s | {merge:.1f} s | {rest:.1f} s |")


def updates(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time sessions after five rows were changed by delta-rs, by MERGE and by UPDATE in turns on the same table."""
    for load in (LARGE, LARGE_IN_10M):
        seconds: dict[str, list[float]] = {"MERGE": [], "UPDATE": []}
        with tempfile.TemporaryDirectory() as name:
            ours = Ours(spark, Path(name), load)
            for number in range(2 * (warm_up + rounds)):
                kind = (*seconds,)[number % 2]
                first = 5 * number
                table = LogTable(str(ours.publisher / "orders"))
                if kind == "UPDATE":
                    table.update(predicate=f"id >= {first} AND id < {first + 5}", updates={"qty": "qty + 1"})
                else:
                    rows = pa.table({"id": range(first, first + 5)})
                    merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
                    merge.when_matched_update({"qty": "t.qty + 1"}).execute()
                took = timed(ours.run)
                sys.stderr.write(f"  {kind}: {took:.1f} s\n")
                if number >= 2 * warm_up:
                    seconds[kind].append(took)
            ours.check(0)
        merged, updated = (statistics.median(each) for each in seconds.values())
        load_now = os.getloadavg()[0]
        print(
            f"| {load.rows:,} | {merged:.2f} s | {updated:.2f} s | {updated / merged:.2f} | 1.3 | {load_now:.0f} |",
            flush=True,
        )


def idle(spark: SparkSession, rounds: int) -> None:
    """Compare a sync with nothing to do, as a command, with opening the same two tables with `deltalake`."""
    with tempfile.TemporaryDirectory() as name:
        ours = Ours(spark, Path(name), SMALL)
        executable = str(Path(sys.executable).with_name("mergerepl"))
        command = [executable, "sync", "-f", str(ours.publisher)]
        tables = [str(root / "orders") for root in (ours.publisher, ours.subscriber)]
        script = f"from deltalake import DeltaTable\nfor t in {tables!r}: DeltaTable(t)"

        def run(arguments: list[str]) -> None:
            subprocess.run(arguments, check=True, capture_output=True)

        run(command)
        run(command)
        ours_s = statistics.median(timed(lambda: run(command)) for _ in range(rounds * 3))
        opened = statistics.median(
            timed(lambda: run([sys.executable, "-c", script])) for _ in range(rounds * 3)
        )
        print(
            f"| nothing to do | {ours_s * 1000:.0f} ms | {opened * 1000:.0f} ms | {ours_s / opened:.2f} | 2 |"
        )


def cold(spark: SparkSession, name: str, load: Load, rounds: int) -> None:
    """Time a sync as a command (a new Python, a new JVM), and the pair in this session, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        ours, pair = Ours(spark, Path(folder) / "ours", load), Pair(spark, Path(folder), load)
        executable = str(Path(sys.executable).with_name("mergerepl"))
        command = [executable, "sync", "-f", str(ours.publisher)]
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            ours.edit()
            pair.edit()
            seconds[1].append(timed(pair.run))
            seconds[0].append(timed(lambda: subprocess.run(command, check=True)))
        report_turns(f"{name}: a command", load, seconds, "")


def counts(spark: SparkSession) -> None:
    """Count the Spark jobs and the Delta commits of one sync with changes on both sides."""
    with tempfile.TemporaryDirectory() as name:
        ours = Ours(spark, Path(name), SMALL)
        ours.edit()
        before = commits_below(Path(name))
        first = next_job(spark)
        ours.run()
        jobs = next_job(spark) - first - 1
        after = commits_below(Path(name))
        print(f"| Spark jobs | {jobs} |")
        for table, number in sorted(after.items()):
            if number != before.get(table, 0):
                print(f"| commits of {table} | {number - before.get(table, 0)} |")


class Filtered:
    """A publisher whose 1,000 regions are partitions, with a line of each order, and the subscriber of one region."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, partitions: int) -> None:
        """Publish the table, initialise the subscriber and add the other partitions."""
        self.spark = spark
        self.publisher, self.subscriber = folder / "hq", folder / "north"
        spark.range(0, rows, 1, rows // 500_000).selectExpr(
            "id", "concat('region-', id % 1000) as region", "cast(id % 100 as int) as qty"
        ).write.format("delta").save(str(self.publisher / "orders"))
        spark.range(0, rows, 1, rows // 500_000).selectExpr(
            "id", "id as order_id", "cast(id % 100 as int) as qty"
        ).write.format("delta").save(str(self.publisher / "lines"))
        articles = [
            {"name": "orders", "key": ["id"], "filter": "region = HOST_NAME()"},
            {"name": "lines", "key": ["id"]},
        ]
        join = {"article": "lines", "parent": "orders", "on": "orders.id = lines.order_id", "unique": True}
        subscription = {"subscriber": str(self.subscriber), "host_name": "region-0"}
        stated = {
            "publication": "bench",
            "publisher": str(self.publisher),
            "articles": articles,
            "joins": [join],
        }
        file = folder / "bench.yml"
        file.write_text(yaml.safe_dump({**stated, "subscriptions": [subscription]}))
        mergerepl.Project.load(file).apply()
        for number in range(1, partitions):
            Replica(self.publisher).partitions.add(host_name=f"region-{number}")

    def edit(self) -> None:
        """Update 20,000 orders, 20 of each region, and as many lines of others."""
        edit(self.spark, self.publisher / "orders", (0, 20_000), 1)
        edit(self.spark, self.publisher / "lines", (20_000, 40_000), 1)

    def run(self) -> None:
        """Download the 20 and 20 of the subscriber's region."""
        done = mergerepl.Project.load(self.publisher).sync().sessions[0]
        assert done.download.updates == 40, done

    def seconds(self, rounds: int, warm_up: int) -> tuple[float, float]:
        """Return the medians of the whole time, and of that outside of Delta's MERGE."""
        totals, rests = [], []
        for number in range(warm_up + rounds):
            self.edit()
            took = timed(self.run)
            sys.stderr.write(f"  {took:.1f} s\n")
            if number >= warm_up:
                totals.append(took)
                merges = (merge_seconds(self.subscriber / name) for name in ("orders", "lines"))
                rests.append(took - sum(merges))
        return statistics.median(totals), statistics.median(rests)


def partitions(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time one download of the same changes beside more partitions, and in more rows."""
    found = []
    for rows, count in ((1_000_000, 10), (1_000_000, 100), (1_000_000, 1_000), (10_000_000, 10)):
        with tempfile.TemporaryDirectory() as name:
            found.append(Filtered(spark, Path(name), rows, count).seconds(rounds, warm_up))
            total, rest = found[-1]
            ratio = rest / found[0][1]
            print(f"| {rows:,} | {count:,} | {total:.1f} s | {rest:.1f} s | {ratio:.2f} | 1.3 |", flush=True)


class Few:
    """Small tables in which few rows change between sessions.

    One changes: five rows at each side, one of them at both. Several: two rows of each at the publisher, one of them at the
    subscriber, too, in the first.
    """

    def __init__(self, folder: Path, tables: int, changing: int) -> None:
        """Publish tables of 3,000 rows."""
        self.publisher, self.subscriber, self.changing = folder / "hq", folder / "north", changing
        for path in (self.publisher, self.subscriber):
            path.mkdir()
        ids = range(3000)
        rows = pa.table({"id": ids, "qty": [i % 100 for i in ids], "note": [f"note {i}" for i in ids]})
        names = [f"orders_{number}" for number in range(tables)]
        for name in names:
            write_deltalake(str(self.publisher / name), rows)
        folder.mkdir(exist_ok=True)
        file = folder / "bench.yml"
        file.write_text(
            yaml.safe_dump(
                {
                    "publication": "bench",
                    "publisher": str(self.publisher),
                    "articles": [{"name": name, "key": ["id"]} for name in names],
                    "subscriptions": [{"subscriber": str(self.subscriber)}],
                }
            )
        )
        mergerepl.Project.load(file).apply()

    def edit(self, number: int) -> None:
        """Make the edits of one round."""
        first, count = number * 20 % 2900, 5 if self.changing == 1 else 2
        for table in range(self.changing):
            self._add(self.publisher / f"orders_{table}", first, first + count, 1)
        last = first + count - 1
        self._add(self.subscriber / "orders_0", last, last + (count if self.changing == 1 else 1), 7)

    def _add(self, table: Path, first: int, end: int, add: int) -> None:
        where = f"id >= {first} and id < {end}"
        LogTable(str(table)).update(updates={"qty": f"qty + {add}"}, predicate=where)

    def run(self, by: Engine) -> None:
        """Synchronise."""
        done = mergerepl.Project.load(self.publisher).sync(engine=by).sessions[0]
        assert done.upload.conflicts == 1, done


def few(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time sessions of few edits, both engines in turns on the same tables."""
    for tables, changing in ((1, 1), (5, 5), (20, 1)):
        seconds: dict[Engine, list[float]] = {"spark": [], "auto": []}
        jobs = dict.fromkeys(seconds, 0)
        with tempfile.TemporaryDirectory() as name:
            network = Few(Path(name), tables, changing)
            for number in range(2 * (warm_up + rounds)):
                by = (*seconds,)[number % 2]
                network.edit(number)
                before = next_job(spark)
                took = timed(partial(network.run, by))
                jobs[by] = next_job(spark) - before - 1
                if number >= 2 * warm_up:
                    seconds[by].append(took)
        one, other = (statistics.median(each) for each in seconds.values())
        print(
            f"| {tables}, {changing} changing | {one:.2f} s, {jobs['spark']} jobs | {other:.2f} s, {jobs['auto']} jobs | "
            f"{other / one:.2f} | {os.getloadavg()[0]:.0f} |",
            flush=True,
        )


def main() -> None:
    """Run the chosen parts."""
    every = (
        *("mr1", "hundred", "small", "scale", "idle", "few", "updates", "cold", "large", "counts"),
        *("tracking", "cdc", "partitions", "transactional", "conflicts", "aged", "real", "reinit", "columns"),
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(every))
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    # An agent runs for weeks; Java's compiler still takes a tenth of a session's time after eight rounds.
    parser.add_argument("--warm-up", type=int, default=8, help="rounds before (default 8)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(every):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    parts = options.parts or every
    for part in ("aged", "real"):
        if part in parts:
            print(
                "| sessions | reads | bytes read | bytes written | commits | limit |\n|---|---|---|---|---|---|"
            )
            aged_sessions(options.rounds, are_real=part == "real")
    if "columns" in parts:
        print("| change | sync | rows sent | users' commits | files written |\n|---|---|---|---|---|")
        changed_tables(options.rounds)
    if set(parts) <= {"aged", "real", "columns"}:
        return
    spark = engine.session(long_running=True)
    header = "| load | rows | changes | conflicts | mergerepl | by hand | ratio | limit |"
    if {"mr1", "hundred", "small", "cold", "large"} & set(parts):
        print(f"{header}\n|{'---|' * 8}")
    for name, load, limit in (("mr1", MR1, ""), ("hundred", HUNDRED, "1.5"), ("small", SMALL, "2.5")):
        if name in parts:
            report_turns(name, load, in_turns(spark, load, options.rounds, options.warm_up), limit)
    for name, load in (("cold", MR1), ("large", MR1_IN_10M)):
        if name in parts:
            cold(spark, name, load, options.rounds)
    if "scale" in parts:
        print("\n| rows | total | inside the MERGE | the rest |\n|---|---|---|---|")
        scale(spark, options.rounds, options.warm_up)
    print("\n| | mergerepl | opening with deltalake | ratio | limit |\n|---|---|---|---|---|")
    if "idle" in parts:
        idle(spark, options.rounds)
    if "few" in parts:
        print("\n| tables | written by Spark | `--engine auto` | ratio | load |\n|---|---|---|---|---|")
        few(spark, options.rounds, options.warm_up)
    if "updates" in parts:
        print("\n| rows | MERGE | UPDATE | ratio | limit | load |\n|---|---|---|---|---|---|")
        updates(spark, options.rounds, options.warm_up)
    print("\n| | |\n|---|---|")
    if "counts" in parts:
        counts(spark)
    if "tracking" in parts:
        print("\n| | mergerepl, or 1 M rows | MERGE, or 10 M rows | ratio | limit |\n|---|---|---|---|---|")
        tracking(spark, options.rounds, options.warm_up)
    if "cdc" in parts:
        print("\n| | mergerepl, or 1 M rows | 10 M rows | ratio | limit |\n|---|---|---|---|---|")
        captures(spark, options.rounds, options.warm_up)
    if "conflicts" in parts:
        print("\n| | one side | both sides | ratio | limit |\n|---|---|---|---|---|")
        conflicts(spark, options.rounds, options.warm_up)
    if "reinit" in parts:
        print("\n| | reinit | a new subscriber | ratio | limit |\n|---|---|---|---|---|")
        filled_again(spark, options.rounds, options.warm_up)
    if "partitions" in parts:
        print("\n| rows | partitions | total | outside of MERGE | ratio | limit |\n|---|---|---|---|---|---|")
        partitions(spark, options.rounds, options.warm_up)
    if "transactional" in parts:
        print("\n| | mergerepl, or 1 M rows | by hand, or 10 M rows | ratio | limit |\n|---|---|---|---|---|")
        commands(spark, options.rounds, options.warm_up)


if __name__ == "__main__":
    main()
