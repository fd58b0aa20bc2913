"""What users do to a published table that a naive reader of its feed would get wrong (invariant I24, I42).

One publication, one article per trap, so that a single sync carries most of them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.log import head_version
from tests.calls import merge_capture
from tests.networks import Site, versions_but_history
from triggers.errors import FeedGapError


def optimize(site: Site, table: str, path: Path) -> int:
    site.spark.sql(f"optimize {table}")
    return 0


def overwrite(site: Site, table: str, path: Path) -> int:
    """Replace all rows: 4 stay as they are, 2 go, 1 comes."""
    rows = site.spark.read.format("delta").load(str(path)).where("id < 4").collect()
    frame = site.spark.createDataFrame([*rows, (9, "new", 9.0)], "id long, a string, b double")
    frame.write.format("delta").mode("overwrite").save(str(path))
    return 3


def restore(site: Site, table: str, path: Path) -> int:
    """Change two rows and undo one of them by going back in time."""
    site.spark.sql(f"update {table} set a = 'kept' where id = 1")
    version = head_version(path)
    site.spark.sql(f"update {table} set a = 'undone' where id = 2")
    site.spark.sql(f"restore table {table} to version as of {version}")
    return 1


def odd_values(site: Site, table: str, path: Path) -> int:
    """-0.0, which Spark takes for 0.0, and bytes that are no UTF-8, which Delta's own reader of the feed replaces."""
    site.spark.sql(f"update {table} set b = cast('-0.0' as double) where id = 0")
    site.spark.sql(f"update {table} set a = cast(X'C041' as string) where id = 1")
    return 2


def feed_off_and_on(site: Site, table: str, path: Path) -> int:
    """A change made while the feed was off is found by comparing versions."""
    site.spark.sql(f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'false')")
    site.spark.sql(f"update {table} set a = 'dark' where id = 1")
    site.spark.sql(f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'true')")
    site.spark.sql(f"update {table} set a = 'light' where id = 2")
    return 2


def vacuumed_feed(site: Site, table: str, path: Path) -> int:
    site.spark.sql(f"update {table} set a = 'vacuumed' where id = 1")
    shutil.rmtree(path / "_change_data")
    return 1


def delta_rs_writer(site: Site, table: str, path: Path) -> int:
    """`deltalake` inserts, updates and deletes."""
    row = pa.table({"id": pa.array([60], pa.int64()), "a": ["rs"], "b": [6.0]})
    write_deltalake(str(path), row, mode="append")
    DeltaTable(str(path)).update(updates={"a": "'by rs'"}, predicate="id = 1")
    DeltaTable(str(path)).delete("id = 2")
    return 3


def delta_rs_computes_again(site: Site, table: str, path: Path) -> int:
    """For its change feed `deltalake` computes an UPDATE again, and takes zeros of either sign for the same."""
    site.spark.sql(f"update {table} set b = 7.5 where id = 3")
    DeltaTable(str(path)).update(updates={"a": "concat('r', random())"}, predicate="id in (1, 2)")
    signs = "case when id = 0 then -0.0 else 40.0 end"
    DeltaTable(str(path)).update(updates={"b": signs}, predicate="id in (0, 4)")
    return 5


def delta_rs_replaces(site: Site, table: str, path: Path) -> int:
    """`deltalake` replaces the rows of a predicate: 3 stays as it is, 4 becomes another, 5 goes, 9 comes."""
    rows = {"id": [3, 4, 9], "a": ["a3", "other", "new"], "b": [3.0, 4.0, 9.0]}
    write_deltalake(str(path), pa.table(rows), mode="overwrite", predicate="id >= 3")
    return 3


def vectors_dropped(site: Site, table: str, path: Path) -> int:
    """Delta reads a feed under the protocol of its end, which then knows of no deletion vectors."""
    site.spark.sql(f"delete from {table} where id = 2")
    site.spark.sql(f"alter table {table} drop feature deletionVectors")
    site.spark.sql(f"insert into {table} values (70, 'new', 7.0)")
    return 2


def give_vectors(site: Site, table: str) -> None:
    """Let the table's one file have a deletion vector that is captured already."""
    site.spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    site.spark.sql(f"delete from {table} where id = 1")
    site.sync()


def no_pre_images(site: Site, table: str, path: Path) -> int:
    """An engine that records only the row after an update, not before it: its rows are no new ones."""
    site.spark.sql(f"update {table} set a = 'after' where id in (1, 2)")
    leave_out_pre_images(path)
    site.spark.sql(f"delete from {table} where id = 2")
    site.spark.sql(f"update {table} set id = 30 where id = 3")
    leave_out_pre_images(path)
    return 4


def removed_in_few_words(site: Site, table: str, path: Path) -> int:
    """An engine that removes files and says no more of them than it has to."""
    DeltaTable(str(path)).delete()
    log = path / "_delta_log" / f"{head_version(path):020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    removed = [action["remove"] for action in actions if "remove" in action]
    assert removed
    for remove in removed:
        for name in ("extendedFileMetadata", "partitionValues", "size", "tags", "stats"):
            remove.pop(name, None)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions if "cdc" not in action))
    return 6


def leave_out_pre_images(path: Path) -> None:
    """Rewrite the last commit as if its writer had no pre-images."""
    log = path / "_delta_log" / f"{head_version(path):020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    feeds = [action["cdc"] for action in actions if "cdc" in action]
    assert feeds
    for feed in feeds:
        file = path / feed["path"]
        rows = pq.read_table(file)
        pq.write_table(rows.filter(pc.not_equal(rows["_change_type"], "update_preimage")), file)
        feed["size"] = file.stat().st_size
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    (log.parent / f".{log.name}.crc").unlink(missing_ok=True)


def stream(site: Site, table: str, path: Path) -> int:
    """A streaming job appends."""
    source = path.parent / "source"
    site.spark.range(100, 103).selectExpr("id", "'s' as a", "1.0d as b").write.format("delta").save(
        str(source)
    )
    query = (
        site.spark.readStream.format("delta")
        .load(str(source))
        .writeStream.format("delta")
        .option("checkpointLocation", str(path.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination(120)
    return 3


Trap = Callable[[Site, str, Path], int]
TRAPS: tuple[Trap, ...] = (delta_rs_computes_again, no_pre_images)
MORE_TRAPS: tuple[Trap, ...] = (
    # What is captured of these is in the case tables of `tests/triggers` and `tests/rows`.
    odd_values,
    feed_off_and_on,
    overwrite,
    restore,
    optimize,
    delta_rs_writer,
    vacuumed_feed,
    delta_rs_replaces,
    vectors_dropped,
    removed_in_few_words,
    stream,
)


@pytest.mark.parametrize(
    "traps",
    [pytest.param(TRAPS, id="some"), pytest.param(MORE_TRAPS, id="the others", marks=pytest.mark.slow)],
)
def test_inv_24_every_trap_is_captured_exactly(
    spark: SparkSession, replica_dir: Path, traps: tuple[Trap, ...]
) -> None:
    site = Site(spark, replica_dir, [trap.__name__ for trap in traps])
    if vectors_dropped in traps:
        give_vectors(site, site.table("hq", vectors_dropped.__name__))
    expected = {}
    for trap in traps:
        expected[trap.__name__] = trap(site, site.table("hq", trap.__name__), site.path("hq", trap.__name__))
    captured = {item.article: item for item in merge_capture(replica_dir / "hq").articles}
    found = {name: item.inserts + item.updates + item.deletes for name, item in captured.items()}
    assert found == expected
    if no_pre_images in traps:
        half = captured["no_pre_images"]
        assert (half.inserts, half.updates, half.deletes) == (1, 1, 2)
    result = site.sync()
    applied = {item.article: item.download.total for item in result.articles}
    assert applied == {name: count for name, count in expected.items() if count}
    for trap in traps:
        assert site.rows("hq", trap.__name__) == site.rows("north", trap.__name__), trap.__name__
    if odd_values in traps:
        assert str({row[0]: row[2] for row in site.rows("north", "odd_values")}[0]) == "-0.0"
        stored = spark.read.format("delta").load(str(site.path("north", "odd_values")))
        assert [row[0] for row in stored.where("id = 1").selectExpr("hex(a)").collect()] == ["C041"]
    assert site.sync().status == "nothing_to_do"


@pytest.mark.slow
def test_inv_24_an_update_of_delta_rs_whose_replaced_files_are_gone_is_refused(
    spark: SparkSession, replica_dir: Path
) -> None:
    """The VACUUM of `deltalake` leaves its change files, which nothing proves any more."""
    site = Site(spark, replica_dir, ["orders"])
    table = DeltaTable(str(site.path("hq", "orders")))
    table.update(updates={"a": "concat('r', random())"}, predicate="id in (1, 2)")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    before = versions_but_history(replica_dir)
    with pytest.raises(FeedGapError, match="cannot be computed any more: files of its changes were removed"):
        site.sync()
    assert versions_but_history(replica_dir) == before
