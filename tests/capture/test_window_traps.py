"""What happens to a published table between two captures beyond its rows: other columns, an older copy of its folder."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.log import head_version, log_path
from mergerepl.errors import CaptureError, EngineError, SchemaMismatchError
from mergerepl.spark import session as engine
from mergerepl.spark.confs import PASSES_OVER_FILES
from tests.calls import conflicts_of, merge_capture, validated
from tests.networks import Site, versions_but_history


def refused(site: Site, error: type[mergerepl.MergeReplError], words: str) -> None:
    """Check that a sync ends with this error and changes nothing."""
    before = versions_but_history(site.folder)
    with pytest.raises(error, match=words):
        site.sync()
    assert versions_but_history(site.folder) == before


@pytest.mark.slow
def test_inv_24_a_schema_change_that_is_undone_is_no_obstacle(spark: SparkSession, replica_dir: Path) -> None:
    site = Site(spark, replica_dir, ["restored", "altered"])
    restored, altered = site.table("hq", "restored"), site.table("hq", "altered")
    spark.sql(f"update {restored} set a = 'before' where id = 1")
    version = head_version(site.path("hq", "restored"))
    spark.sql(f"alter table {restored} add columns (more int)")
    spark.sql(f"update {restored} set a = 'taken back' where id = 2")
    refused(site, SchemaMismatchError, r"restored.*'more' was added.*RESTORE TABLE")
    spark.sql(f"restore table {restored} to version as of {version}")
    spark.sql(
        f"alter table {altered} set tblproperties ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    spark.sql(f"alter table {altered} add columns (more int)")
    spark.sql(f"update {altered} set a = 'kept' where id = 3")
    refused(site, SchemaMismatchError, r"altered.*'more' was added.*ALTER TABLE")
    spark.sql(f"alter table {altered} drop column more")
    site.sync()
    assert (1, "before", 1.0) in site.rows("north", "restored")
    assert (3, "kept", 3.0) in site.rows("north", "altered")
    for name in ("restored", "altered"):
        assert site.rows("north", name) == site.rows("hq", name)
    spark.sql(f"update {altered} set a = 'after' where id = 4")
    site.sync()
    assert (4, "after", 4.0) in site.rows("north", "altered")
    assert site.sync().status == "nothing_to_do"


def test_inv_24_commits_that_no_checkpoint_lies_before_are_captured(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Older writers clean up a log so: the captured version is gone, what came after it is there, and no state of it."""
    site = Site(spark, replica_dir, ["orders"])
    path = site.path("hq", "orders")
    captured = head_version(path)
    for number in range(3):
        write_deltalake(str(path), pa.table({"id": [70 + number], "a": ["late"], "b": [1.0]}), mode="append")
    DeltaTable(str(path)).update(predicate="id = 1", updates={"a": "'changed'"})
    DeltaTable(str(path)).create_checkpoint()
    for version in range(captured + 1):
        log_path(path, version).unlink()
    site.sync()
    assert site.rows("north", "orders") == site.rows("hq", "orders")
    assert (70, "late", 1.0) in site.rows("north", "orders")


@pytest.mark.slow
def test_inv_24_an_older_copy_that_was_written_to_since_is_refused(
    spark: SparkSession, replica_dir: Path
) -> None:
    site = Site(spark, replica_dir, ["orders", "others"])
    path, table = site.path("hq", "orders"), site.table("hq", "orders")
    copy, newest = replica_dir / "copy", replica_dir / "newest"
    shutil.copytree(path, copy)
    # One commit captured at the publisher, one applied from the subscriber, one that changes no rows.
    spark.sql(f"update {table} set a = 'captured' where id = 1")
    spark.sql(f"update {site.table('north', 'orders')} set a = 'applied' where id = 2")
    site.sync()
    spark.sql(f"optimize {table}")
    site.sync()
    captured = head_version(path)
    shutil.move(path, newest)
    shutil.copytree(copy, path)
    while head_version(path) <= captured:
        spark.sql(f"update {table} set a = concat(a, '!') where id = 3")
    refused(site, CaptureError, "orders.*another commit as version.*older copy")
    shutil.rmtree(path)
    shutil.move(newest, path)
    spark.catalog.clearCache()
    spark.sql(f"update {table} set a = 'newest' where id = 4")
    site.sync()
    assert {(1, "captured", 1.0), (2, "applied", 2.0), (4, "newest", 4.0)} < site.rows("north", "orders")


@pytest.mark.slow
def test_inv_24_a_table_that_is_partitioned_again_has_only_its_changed_rows_changed(
    spark: SparkSession, replica_dir: Path
) -> None:
    """The feed has NULL for the new partition columns of rows written before: every row would seem changed."""
    site = Site(spark, replica_dir, ["orders"])
    path, table = str(site.path("hq", "orders")), site.table("hq", "orders")
    rows = spark.read.format("delta").load(path).where("id <> 3")
    rows = rows.selectExpr("id", "if(id = 2, 'moved', a) as a", "b")
    replaced = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    replaced.partitionBy("a").save(path)
    spark.sql(f"update {table} set a = 'later' where id = 4")
    spark.sql(f"update {site.table('north', 'orders')} set b = 50 where id = 1")
    done = site.sync()
    assert (done.upload.updates, done.upload.conflicts, done.download.conflicts) == (1, 0, 0)
    assert (done.download.inserts, done.download.updates, done.download.deletes) == (0, 2, 1)
    assert {(2, "moved", 2.0), (4, "later", 4.0)} < site.rows("north", "orders")
    assert site.rows("north", "orders") == site.rows("hq", "orders")


@pytest.mark.slow
def test_inv_24_in_a_session_that_passes_over_missing_files_nothing_is_read(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change files that are gone would look like no changes, and the captured version would move past the write."""
    site = Site(spark, replica_dir, ["orders"])
    hq = replica_dir / "hq"
    spark.sql(f"update {site.table('hq', 'orders')} set a = 'gone from the feed' where id = 1")
    shutil.rmtree(site.path("hq", "orders") / "_change_data")
    stated = site.file.read_text()
    site.file.write_text(stated + "- {subscriber: ./south}\n")
    # A notebook's own session, not the embedded one.
    with monkeypatch.context() as notebook:
        notebook.setattr(engine, "_embedded", None)
        notebook.setattr(engine, "users_session", lambda: spark)
        for name in PASSES_OVER_FILES:
            spark.conf.set(name, "true")
            try:
                refused(site, EngineError, f"{name}=true")
                for call in (
                    lambda: mergerepl.Project.load(hq).sync(dry_run=True),
                    lambda: merge_capture(hq),
                    lambda: validated(hq),
                    lambda: conflicts_of(hq).rows("orders"),
                    lambda: mergerepl.Project.load(site.file).apply(),
                ):
                    with pytest.raises(EngineError, match=f"{name}=true"):
                        call()
            finally:
                spark.conf.set(name, "false")
        assert site.sync().download.updates == 1
        assert (1, "gone from the feed", 1.0) in site.rows("north", "orders")
        mergerepl.Project.load(site.file).apply()
    assert site.rows("south", "orders") == site.rows("north", "orders") == site.rows("hq", "orders")


@pytest.mark.slow
def test_inv_24_versions_are_compared_however_long_ago_the_table_was_written(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Delta would not read a version whose commit is older than removed files are kept, though they are all there."""
    site = Site(spark, replica_dir, ["orders"])
    table = site.table("hq", "orders")
    spark.sql(
        f"alter table {table} set tblproperties ('delta.deletedFileRetentionDuration' = 'interval 15 days')"
    )
    assert site.sync().status == "nothing_to_do"
    long_ago = time.time() - timedelta(days=20).total_seconds()
    for commit in (site.path("hq", "orders") / "_delta_log").glob("*.json"):
        os.utime(commit, (long_ago, long_ago))
    # The feed has an insert first and a delete last: only the version before shows which of the two rows went.
    spark.sql(f"insert into {table} values (1, 'new', 0.5)")
    spark.sql(f"delete from {table} where id = 1 and a = 'a1'")
    with pytest.raises(AnalysisException, match="BEYOND_DELETED_FILE_RETENTION"):
        spark.sql(f"select * from {table} version as of 0").collect()
    site.sync()
    assert (1, "new", 0.5) in site.rows("north", "orders")
    assert site.rows("hq", "orders") == site.rows("north", "orders")
    assert site.sync().status == "nothing_to_do"
