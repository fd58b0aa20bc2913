"""The rows that Arrow makes of conflicts, batch by batch, are those that Spark makes, bit for bit."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.merge.apply import conflict_log
from mergerepl.merge.apply.conflict_log import Works, log_conflicts
from mergerepl.merge.apply.conflicts_by_arrow import Conflicts
from mergerepl.replica import staged_rows
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import Changeset
from mergerepl.systables import conflicts_info
from tests.networks import Pair
from tests.staging.few_rows import ARTICLES, ODD, bits, edit

pytestmark = pytest.mark.spark

GUID = "lpad(cast(id as string), 32, 'A')"
WITH_ROWGUID = {
    "guids": (
        f"select concat_ws('-', substring({GUID}, 25, 8), 'AAAA-AAAA-AAAA', substring({GUID}, 1, 12)) RowGuid, "
        f"id, cast(id as string) a, {ODD} from range(10)",
        {"rowguid": "RowGuid"},
    )
}
WITH_CONFLICTS = ("by_row", "by_column", "days", "guids")


@pytest.mark.slow
def test_arrow_logs_conflicts_as_spark_does(
    spark: SparkSession, replica_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by_spark: list[str] = []
    compared: list[str] = []
    info_rows = conflict_log._info_rows

    def seen(spark: SparkSession, of: Conflicts) -> object:
        made_by_spark.append(of.article.name)
        return info_rows(spark, of)

    def logged_twice(changeset: Changeset, replica: Replica, works: Works, choice: EngineChoice) -> None:
        twin = Replica(tmp_path / changeset.manifest.session)
        shutil.copytree(replica.root, twin.root)
        assert choice.uses_arrow
        log_conflicts(changeset, replica, works, choice)
        assert made_by_spark == []
        log_conflicts(changeset, twin, works, EngineChoice(uses_arrow=False, spark_of=lambda: spark))
        counts = changeset.manifest.conflicts
        chosen = [article for article in replica.articles if counts.get(article.nickname)]
        assert sorted(made_by_spark) == sorted(article.name for article in chosen)
        made_by_spark.clear()
        for table in (conflicts_info.NAME, *(article.conflict_table for article in chosen)):
            one, other = (
                spark.read.format("delta").load(str(each.folder / table)) for each in (replica, twin)
            )
            assert one.schema == other.schema
            assert bits(one) == bits(other)
            compared.append(table)

    monkeypatch.setattr(staged_rows, "_ROWS_OF_BATCH", 3)
    monkeypatch.setattr(conflict_log, "_info_rows", seen)
    monkeypatch.setattr(conflict_log, "log_conflicts", logged_twice)
    pair = Pair(spark, replica_dir, ARTICLES | WITH_ROWGUID)
    edit(pair, 0)
    pair.edit("update hq.guids set a = 'h' where id < 6", "update north.guids set a = 'n' where id > 2")
    pair.sync()
    assert compared == [conflicts_info.NAME, *(f"MSmerge_conflict_pair_{name}" for name in WITH_CONFLICTS)]


def test_what_arrow_may_not_write_after_some_batches_spark_logs_as_a_whole(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are texts of dates, the last of which Spark writes with a sign."""
    monkeypatch.setattr(staged_rows, "_ROWS_OF_BATCH", 1)
    days = "select date_add(if(id = 2, date'9999-12-31', date'2024-01-01'), cast(id as int)) id, 'x' a from range(3)"
    pair = Pair(spark, replica_dir, {"days": (days, {"key": ["id"]})})
    pair.edit("update hq.days set a = 'h' where a = 'x'", "update north.days set a = 'n' where a = 'x'")
    pair.sync()
    logged = Replica(pair.folder / "hq").folder
    keys = spark.read.format("delta").load(str(logged / conflicts_info.NAME)).select("rowkey.id").collect()
    assert sorted(key for (key,) in keys) == ["+10000-01-02", "2024-01-01", "2024-01-02"]
    for table in (conflicts_info.NAME, "MSmerge_conflict_pair_days"):
        files = {file.name for file in (Path(logged) / table).glob("*.parquet")}
        assert files == {Path(file).name for file in LogTable(str(logged / table)).file_uris()}
