"""Tables that dbt builds each night, captured and published: nobody's hand is needed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import cdc
from mergerepl.cdc.tables import tables_at
from mergerepl.delta.table import open_table
from tests.cdc.databases import changes
from tests.dbt_statements import AGAIN, FIRST, FULL_REFRESH, OTHER_COLUMNS, forget, play

pytestmark = pytest.mark.spark


@pytest.fixture
def models(spark: SparkSession, replica_dir: Path) -> Iterator[Path]:
    """The folder of the models' tables."""
    root = replica_dir / "hq"
    play(spark, root, FIRST)
    yield root
    forget(spark)


@pytest.mark.slow
def test_a_nightly_run_and_a_full_refresh_are_captured_as_the_rows_that_differ(
    spark: SparkSession, models: Path
) -> None:
    database = cdc.Database(models)
    for name in ("orders", "stock"):
        database.enable(name, key="id", on_gap="stop")
    for statements in (AGAIN, FULL_REFRESH):
        play(spark, models, statements)
        assert database.capture().paused == {}
        assert {open_table(models / name).metadata.change_data_feed for name in ("orders", "stock")} == {True}
    night = [(0, 3, "04", 1, "a", 1), (0, 4, "04", 1, "a", 2)]
    refreshed = {
        (1, 4, "04", 1, "a", 3),
        (1, 3, "04", 1, "a", 2),
        (1, 1, "07", 2, "b", 5),
        (1, 2, "07", 3, "c", 7),
    }
    for name in ("dbo_orders", "dbo_stock"):
        found = changes(tables_at(models), name)
        assert (found[:2], set(found[2:])) == (night, refreshed)
    play(spark, models, OTHER_COLUMNS)
    assert database.capture().paused == {}
    # The note is captured no more: a row that lost nothing else is no change.
    assert {row[1:] for row in changes(tables_at(models), "dbo_orders")[6:]} == {
        *((3, "04", 3, None, 7), (4, "04", 3, None, 8))
    }
    said = [each.ddl_command.partition("` ")[2] for each in database.instance("dbo_orders").ddl_history()]
    assert said == ["", "", "DROP COLUMN `note`", "ADD COLUMNS (`price` DOUBLE)", ""]


@pytest.mark.slow
def test_a_published_table_that_is_built_anew_reaches_its_subscriber_as_the_rows_that_differ(
    spark: SparkSession, models: Path
) -> None:
    file, north = models.parent / "mergerepl.yml", models.parent / "north"
    file.write_text(
        "publication: shop\npublisher: ./hq\nretention: 14 days\n"
        "articles: [{name: orders, key: [id]}, {name: stock, key: [id]}]\n"
        "subscriptions: [{subscriber: ./north, type: server, priority: 50}]\n",
        encoding="utf-8",
    )
    project = mergerepl.Project.load(file)
    project.apply()
    for statements, rows in ((AGAIN, 1), (FULL_REFRESH, 3)):
        play(spark, models, statements)
        (session,) = project.sync().sessions
        assert session.error is None
        assert [article.download.total for article in session.articles] == [rows, rows]
        for name in ("orders", "stock"):
            assert values(north / name) == values(models / name)
            assert open_table(models / name).metadata.change_data_feed


def values(table: Path) -> dict[int, dict[str, object]]:
    return {row["id"]: row for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}
