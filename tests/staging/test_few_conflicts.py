"""The rows that few conflicts get of Arrow are those that Spark makes, bit for bit."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.agent import carry_out
from mergerepl.apply import conflict_log
from mergerepl.apply.conflict_log import Works, log_conflicts
from mergerepl.engine import confs
from mergerepl.model.article import PublishedArticle
from mergerepl.store.changeset import Changeset
from mergerepl.store.replica import Replica
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


@pytest.fixture(autouse=True)
def _engine(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(confs.ENGINE)


def test_few_conflicts_are_logged_as_spark_logs_them(
    spark: SparkSession, replica_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by_spark: list[str] = []
    compared: list[str] = []
    info_rows = conflict_log._info_rows

    def seen(spark: SparkSession, changeset: Changeset, article: PublishedArticle, works: Works) -> object:
        made_by_spark.append(article.name)
        return info_rows(spark, changeset, article, works)

    def logged_twice(
        spark: SparkSession,
        changeset: Changeset,
        replica: Replica,
        articles: dict[int, PublishedArticle],
        works: Works,
    ) -> None:
        twin = Replica(tmp_path / changeset.manifest.session)
        shutil.copytree(replica.root, twin.root)
        log_conflicts(spark, changeset, replica, articles, works)
        assert made_by_spark == []
        log_conflicts(spark.newSession(), changeset, twin, articles, works)
        chosen = [articles[n] for n, count in changeset.manifest.conflicts.items() if count]
        assert sorted(made_by_spark) == sorted(article.name for article in chosen)
        made_by_spark.clear()
        for table in (conflicts_info.NAME, *(article.conflict_table for article in chosen)):
            one, other = (
                spark.read.format("delta").load(str(each.folder / table)) for each in (replica, twin)
            )
            assert one.schema == other.schema
            assert bits(one) == bits(other)
            compared.append(table)

    monkeypatch.setattr(conflict_log, "_info_rows", seen)
    monkeypatch.setattr(carry_out, "log_conflicts", logged_twice)
    spark.conf.set(confs.ENGINE, "auto")
    pair = Pair(spark, replica_dir, ARTICLES | WITH_ROWGUID)
    edit(pair, 0)
    pair.edit("update hq.guids set a = 'h' where id < 6", "update north.guids set a = 'n' where id > 2")
    pair.sync()
    assert compared == [conflicts_info.NAME, *(f"MSmerge_conflict_pair_{name}" for name in WITH_CONFLICTS)]
