"""`catalog`: names in the catalog of a Spark session are looked up by `apply` and by sessions; new tables get one."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.errors import ConfigurationError, EngineError, PublicationError
from mergerepl.failpoints import FailpointError
from mergerepl.rows.sql import literal
from mergerepl.spark.callers import GIVEN
from mergerepl.spark.metastore import callers_catalog

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "qty": pa.array([0, 0], pa.int32())})


class Lake:
    """A project whose tables have names: those of `hq` in one schema, those of `north` in another."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.hq, self.north = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("hq", "north"))
        self.sql(f"CREATE SCHEMA {self.hq} LOCATION {literal(f'{folder}/hq')}")
        self.sql(f"CREATE SCHEMA {self.north}")
        write_deltalake(folder / "hq" / "orders", ROWS)
        (folder / "mergerepl.yml").write_text(
            f"publication: sales\npublisher: ./hq\ncatalog: spark_catalog.{self.hq}\narticles:\n"
            "  - {name: orders, key: [id]}\nsubscriptions:\n"
            f"  - {{subscriber: ./north, name: north, catalog: {self.north}}}\n"
        )

    def sql(self, *statements: str) -> None:
        for each in statements:
            self.spark.sql(each)

    def name(self, schema: str, name: str = "orders", folder: str = "hq/orders") -> str:
        return f"CREATE TABLE {schema}.{name} USING delta LOCATION {literal(f'{self.folder}/{folder}')}"

    def project(self, *, with_catalog: bool = True) -> Project:
        return Project.load(self.folder / "mergerepl.yml", spark=self.spark if with_catalog else None)

    def rows(self, schema: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.spark.table(f"{schema}.orders").collect()))

    def edit(self, qty: int) -> None:
        DeltaTable(self.folder / "hq" / "orders").update(updates={"qty": str(qty)}, predicate="id = 1")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    # A quote is part of a place's name.
    (folder := tmp_path / "jo's").mkdir()
    made = Lake(spark, folder)
    yield made
    made.sql(*(f"DROP SCHEMA {each} CASCADE" for each in (made.hq, made.north)))


def refused(kind: type[Exception], call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.spark
def test_names_lead_to_the_articles_and_new_tables_get_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "this process has none" in refused(ConfigurationError, lake.project(with_catalog=False).apply)
    assert lake.name(lake.hq) in refused(PublicationError, lake.project().apply)
    lake.sql(lake.name(lake.hq))
    assert lake.project().apply().steps[-1].action == "register"
    assert not lake.project().apply().steps
    assert not lake.project(with_catalog=False).apply().steps
    assert lake.rows(lake.north) == [(1, 0), (2, 0)]

    lake.edit(7)
    lake.project().sync()
    assert lake.rows(lake.north) == lake.rows(lake.hq) == [(1, 7), (2, 0)]

    for point in ("apply.before_register", "apply.after_register"):
        lake.sql(f"DROP TABLE {lake.north}.orders")
        assert "apply()" in refused(PublicationError, lake.project().sync)
        with monkeypatch.context() as dying:
            dying.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
            refused(FailpointError, lake.project().apply)
        assert [each.action for each in lake.project().apply().steps] == ["register"] * ("before" in point)
        assert lake.rows(lake.north) == lake.rows(lake.hq)


@pytest.mark.spark
def test_a_name_that_leads_elsewhere_is_another_table(lake: Lake) -> None:
    lake.sql(lake.name(lake.hq))
    lake.project().apply()
    write_deltalake(lake.folder / "other", ROWS)
    lake.sql(f"DROP TABLE {lake.hq}.orders", lake.name(lake.hq, folder="other"))
    lake.edit(8)
    for call in (lake.project().sync, lake.project().apply):
        found = refused(PublicationError, call)
        assert (
            f"'{lake.hq}.orders' in the catalog is another table: it lies at '{lake.folder}/other'" in found
        )
    # Without that session the places decide.
    assert lake.project(with_catalog=False).sync().sessions[0].status == "succeeded"


@pytest.mark.spark
def test_two_names_are_refused_and_a_managed_table_is_told(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.sql(lake.name(lake.hq), lake.name(lake.hq, "sales"))
    assert f"another name in the catalog, '{lake.hq}.sales'" in refused(
        PublicationError, lake.project().apply
    )
    lake.sql(f"DROP TABLE {lake.hq}.orders")
    assert f"ALTER TABLE {lake.hq}.sales RENAME" in refused(PublicationError, lake.project().apply)
    lake.sql(f"DROP TABLE {lake.hq}.sales")
    (lake.folder / "hq" / "orders").rename(lake.folder / "away")
    lake.sql(f"CREATE TABLE {lake.hq}.orders (id BIGINT, qty INT) USING delta")
    with caplog.at_level(logging.WARNING, "mergerepl"):
        lake.project().apply(dry_run=True)
    assert "DROP TABLE would remove its files" in caplog.text


@pytest.mark.spark
def test_unity_catalog_and_unknown_schemas_are_refused(lake: Lake) -> None:
    lake.sql(f"DROP SCHEMA {lake.north}")
    lake.sql(lake.name(lake.hq))
    assert f"CREATE SCHEMA {lake.north}" in refused(ConfigurationError, lake.project().apply)
    lake.sql(f"CREATE SCHEMA {lake.north}")
    theirs = lake.spark.newSession()
    theirs.conf.set("spark.sql.catalog.spark_catalog", "io.unitycatalog.spark.UCSingleCatalog")
    given = GIVEN.set(theirs)
    try:
        assert "Unity Catalog" in refused(EngineError, callers_catalog)
    finally:
        GIVEN.reset(given)
