"""What happens between two captures to the log of a published table, and to the session that reads it.

Other columns, another partitioning and older copies are in the case tables of `tests/unit/test_feed_window.py`.
"""

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
from mergerepl.errors import EngineError
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
