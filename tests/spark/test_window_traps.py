"""What happens to a published table between two captures beyond its rows: other columns, an older copy of its folder."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.errors import SchemaMismatchError
from mergerepl.store.deltalog import head_version
from tests.spark.test_capture_traps import Site, versions


def refused(site: Site, error: type[mergerepl.MergeReplError], words: str) -> None:
    """Check that a sync ends with this error and changes nothing."""
    before = versions(site.folder)
    with pytest.raises(error, match=words):
        site.sync()
    assert versions(site.folder) == before


@pytest.mark.timeout(900)
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
