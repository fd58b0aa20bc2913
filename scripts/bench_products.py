"""Benchmarks of the other products: Compact change tracking, Change Data Capture, transactional replication."""

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import yaml
from bench_tables import changes_of, edit, merge_changes, next_job, timed, write_table
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import cdc, transactional


class Tracked:
    """A tracked table and a consumer."""

    def __init__(
        self, spark: SparkSession, folder: Path, rows: int, *, vectors: bool = False, files: int | None = None
    ) -> None:
        """Write the table and enable tracking."""
        write_table(spark, folder / "orders", rows, files)
        if vectors:
            table = f"delta.`{folder / 'orders'}`"
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        self.tracking = mergerepl.ChangeTracking(folder)
        self.tracking.enable("orders", key="id")
        self.reader = self.tracking.consumer("bench")
        self.rows = rows

    def update_one(self, number: int) -> None:
        """Update a row in a transaction of its own."""
        done = self.tracking.update("orders", {"qty": "qty + 1000"}, where=f"id = {number}")
        assert done.changes == {"orders": 1}, done

    def put_one(self, number: int) -> None:
        """Update a row that is given, in a transaction of its own: without Java."""
        done = self.tracking.upsert("orders", [{"id": number, "qty": -number - 1}])
        assert done.changes == {"orders": 1}, done

    def update_thousand(self, *, scattered: bool) -> None:
        """Update 1,000 rows: neighbours, or every n-th."""
        where = f"id % {self.rows // 1000} = 0" if scattered else "id < 1000"
        done = self.tracking.update("orders", {"qty": "qty + 1000"}, where=where)
        assert done.changes == {"orders": 1000}, done

    def enumerate(self) -> None:
        """Read a window of the changes."""
        counts = self.reader.enumerate().counts()
        assert counts == {"orders": {"deletes": 0, "inserts": 0, "updates": 1000}}, counts


def merge_one(spark: SparkSession, table: Path, number: int) -> None:
    """MERGE one row by its key."""
    source = spark.createDataFrame([(number, number)], "id long, qty int")
    target = DeltaTable.forPath(spark, str(table)).alias("t")
    target.merge(source.alias("s"), "t.id = s.id").whenMatchedUpdate(set={"qty": "s.qty + 1000"}).execute()


def tracking(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time one-row transactions beside MERGEs of one row, and enumerations in tables of two sizes."""
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = Tracked(spark, Path(name) / "ours", 100_000), Path(name) / "by-hand"
        write_table(spark, theirs, 100_000)
        seconds: tuple[list[float], list[float], list[float]] = ([], [], [])
        for number in range(warm_up + rounds):
            took = (
                timed(partial(ours.update_one, number)),
                timed(partial(merge_one, spark, theirs, number)),
                timed(partial(ours.put_one, number)),
            )
            sys.stderr.write(
                f"  by condition: {took[0]:.2f} s, MERGE: {took[1]:.2f} s, given: {took[2]:.2f} s\n"
            )
            if number >= warm_up:
                for kind in (0, 1, 2):
                    seconds[kind].append(took[kind])
        one, other, given = (statistics.median(kind) for kind in seconds)
        print(f"| one row, by a condition | {one:.2f} s | {other:.2f} s | {one / other:.2f} | 2 |")
        print(f"| one row, given as a list, without Java | {given:.2f} s | | | 0.1 s |")
    for vectors, kind in ((False, "one range of keys"), (True, "all over, deletion vectors")):
        with tempfile.TemporaryDirectory() as name:
            # Files of one size: a table that grows gets more of them.
            tables = [
                Tracked(spark, Path(name) / str(rows), rows, vectors=vectors, files=rows // 250_000)
                for rows in (1_000_000, 10_000_000)
            ]
            for table in tables:
                table.update_thousand(scattered=vectors)
            found: tuple[list[float], list[float]] = ([], [])
            for number in range(warm_up + 3 * rounds):
                for at, table in enumerate(tables):
                    took = timed(table.enumerate)
                    if number >= warm_up:
                        found[at].append(took)
            small, large = (statistics.median(each) for each in found)
            print(f"| 1,000 changes, {kind} | {small:.2f} s | {large:.2f} s | {large / small:.2f} | 1.3 |")


def append_row(table: Path, number: int) -> None:
    """Append a row by deltalake; the table's feed is on."""
    rows = pa.table({"id": pa.array([number], pa.int64())})
    write_deltalake(str(table), rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"})


def capture_thousand(root: Path) -> None:
    """Scan once, for 1,000 updated rows."""
    assert (done := cdc.Database(root).capture()).rows == 2000, done


def captures(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time idle scans, scans of 1,000 changes in tables of two sizes, and one scan of 1,000 commits."""
    with tempfile.TemporaryDirectory() as name:
        root, tables = Path(name), 50
        database = cdc.Database(root)
        for number in range(tables):
            append_row(root / f"t{number}", 0)
            database.enable(f"t{number}")
        idle_ms = [1000 * timed(database.capture) / tables for _ in range(3 + rounds)][3:]
        print(f"| idle scan, a source of {tables} | {statistics.median(idle_ms):.1f} ms | | | 10 ms |")
        for number in range(1000):
            append_row(root / "t0", number)
        before = next_job(spark)
        seconds = timed(database.capture)
        jobs = next_job(spark) - before - 1
        print(f"| 1,000 commits in one cycle | {seconds:.1f} s | {jobs} Spark jobs | | |")
    with tempfile.TemporaryDirectory() as name:
        found: tuple[list[float], list[float]] = ([], [])
        sizes = (1_000_000, 10_000_000)
        for rows in sizes:
            root = Path(name) / str(rows)
            # Files of one size: a table that grows gets more of them.
            write_table(spark, root / "orders", rows, rows // 250_000)
            cdc.Database(root).enable("orders", key="id")
        for number in range(warm_up + rounds):
            for at, rows in enumerate(sizes):
                root = Path(name) / str(rows)
                spark.sql(f"UPDATE delta.`{root / 'orders'}` SET qty = qty + 1 WHERE id < 1000")
                took = timed(partial(capture_thousand, root))
                sys.stderr.write(f"  {rows:,} rows: {took:.2f} s\n")
                if number >= warm_up:
                    found[at].append(took)
        small, large = (statistics.median(each) for each in found)
        print(f"| 1,000 changes captured | {small:.2f} s | {large:.2f} s | {large / small:.2f} | 1.3 |")


class Feed:
    """A publisher and a subscriber of commands, and the same subscriber by hand."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        """Publish the table and initialise the subscriber."""
        self.spark, self.publisher, self.north = spark, folder / "hq", folder / "north"
        self.by_hand = folder / "hand" / "orders"
        # The same files everywhere: a MERGE costs what the files have that it rewrites.
        for table in (self.publisher / "orders", self.north / "orders", self.by_hand):
            # Files of one size: a table that grows gets more of them.
            write_table(spark, table, rows, rows // 250_000)
        file = folder / "feed.yml"
        stated = {
            "publication": "feed",
            "type": "transactional",
            "publisher": str(self.publisher),
            "articles": [{"name": "orders", "key": ["id"]}],
            "subscriptions": [{"subscriber": str(self.north), "sync_type": "none", "verify": False}],
        }
        file.write_text(yaml.safe_dump(stated))
        mergerepl.Project.load(file).apply()

    def edit(self, count: int) -> None:
        """Update the quantity of as many rows."""
        edit(self.spark, self.publisher / "orders", (0, count), 1)

    def read(self) -> None:
        """Read the log."""
        transactional.logreader(self.publisher)

    def distribute(self) -> None:
        """Apply the commands."""
        transactional.distribute(self.publisher)

    def idle(self) -> None:
        """Look for commits and commands."""
        self.read()
        self.distribute()

    def merge(self) -> None:
        """Read the change feed and MERGE it, by hand."""
        merge_changes(self.spark, self.by_hand, changes_of(self.spark, self.publisher / "orders"))

    def check(self) -> None:
        """Check that the subscriber equals the publisher."""
        assert all(each.differing == 0 for each in transactional.validate(self.publisher))


def commands(spark: SparkSession, rounds: int, warm_up: int) -> None:
    """Time an idle run, 100,000 commands beside the same by hand, and 1,000 in tables of two sizes."""
    with tempfile.TemporaryDirectory() as name:
        small = Feed(spark, Path(name) / "small", 1_000_000)
        taken: dict[str, list[float]] = {"read": [], "distribute": [], "merge": []}
        for number in range(warm_up + rounds):
            small.edit(100_000)
            for part, seconds in taken.items():
                took = timed(getattr(small, part))
                sys.stderr.write(f"  {part}: {took:.2f} s\n")
                if number >= warm_up:
                    seconds.append(took)
        small.check()
        read, agent, hand = (statistics.median(each) for each in taken.values())
        print(f"| 100,000 commands in 1 M rows | {agent:.2f} s | {hand:.2f} s | {agent / hand:.2f} | 1.2 |")
        print(f"| their log reader | {read:.2f} s | | | |")
        command = [sys.executable, "-m", "mergerepl", "sync", "-f", str(small.publisher)]
        tables = [str(root / "orders") for root in (small.publisher, small.north)]
        opening = [
            sys.executable,
            "-c",
            f"from deltalake import DeltaTable\nfor t in {tables!r}: DeltaTable(t)",
        ]
        idle_s, opened_s = (
            statistics.median(
                timed(partial(subprocess.run, each, check=True, stdout=subprocess.DEVNULL))
                for _ in range(3 * rounds)
            )
            for each in (command, opening)
        )
        print(
            f"| idle, beside opening two tables with deltalake: new processes | {idle_s:.2f} s | {opened_s:.2f} s | "
            f"{idle_s / opened_s:.2f} | 0.3 s |"
        )
        warm_s = statistics.median(timed(small.idle) for _ in range(rounds))
        print(f"| idle within a process | {warm_s:.2f} s | | | |")
        large = Feed(spark, Path(name) / "large", 10_000_000)
        found: tuple[list[float], list[float]] = ([], [])
        for number in range(warm_up + rounds):
            for at, feed in enumerate((small, large)):
                feed.edit(1_000)
                feed.read()
                took = timed(feed.distribute)
                sys.stderr.write(f"  1,000 commands: {took:.2f} s\n")
                if number >= warm_up:
                    found[at].append(took)
        few, many = (statistics.median(each) for each in found)
        print(f"| 1,000 commands in 1 M, 10 M rows | {few:.2f} s | {many:.2f} s | {many / few:.2f} | 1.3 |")
