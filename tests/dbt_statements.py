"""The statements that dbt issues for three models, recorded from dbt-core 1.10.23 with dbt-spark 1.9.3 (session method).

The models have `file_format: delta` and a `location_root`; the queries on the catalog are left out. dbt issues
`drop table if exists` only while the relation is unknown to the catalog: the files of a location stay.
"""

from pathlib import Path

from pyspark.sql import SparkSession

SCHEMA = "shop"

FIRST = (
    "create schema if not exists shop",
    "drop table if exists shop.orders",
    """create or replace table shop.orders
    using delta
    location '{root}/orders'
      as
select 1L as id, 'a' as note, 1 as qty union all select 2L, 'b', 5""",
    """create or replace table shop.stock
    using delta
    location '{root}/stock'
      as
select 1L as id, 'a' as note, 1 as qty union all select 2L, 'b', 5""",
)
"""The first run: `orders` is materialized as a table, `stock` as incremental (merge by id)."""

AGAIN = (
    """create or replace table shop.orders
    using delta
    location '{root}/orders'
      as
select 1L as id, 'a' as note, 2 as qty union all select 2L, 'b', 5""",
    """create or replace temporary view stock__dbt_tmp as
select 1L as id, 'a' as note, 2 as qty union all select 2L, 'b', 5""",
    """-- back compat for old kwarg name
  merge into shop.stock as DBT_INTERNAL_DEST
      using stock__dbt_tmp as DBT_INTERNAL_SOURCE
      on
              DBT_INTERNAL_SOURCE.id = DBT_INTERNAL_DEST.id
      when matched then update set
         *
      when not matched then insert *""",
)
"""The same models a night later, with another quantity."""

FULL_REFRESH = (
    """create or replace table shop.orders
    using delta
    location '{root}/orders'
      as
select 1L as id, 'a' as note, 3 as qty union all select 3L, 'c', 7""",
    """create or replace table shop.stock
    using delta
    location '{root}/stock'
      as
select 1L as id, 'a' as note, 3 as qty union all select 3L, 'c', 7""",
)
"""`dbt run --full-refresh`, with a row more and a row less."""

OTHER_COLUMNS = (
    """create or replace table shop.orders
    using delta
    location '{root}/orders'
      as
select 1L as id, 3 as qty, 1.5D as price union all select 3L, 8, 2.5D""",
)
"""The model of `orders` without the note, with a price."""


def play(spark: SparkSession, root: Path, statements: tuple[str, ...]) -> None:
    """Carry out statements, with the models' tables below a folder."""
    for statement in statements:
        spark.sql(statement.format(root=root))


def forget(spark: SparkSession) -> None:
    """Take dbt's tables out of the catalog; their files stay."""
    spark.sql(f"drop schema if exists {SCHEMA} cascade")
    spark.sql("drop view if exists stock__dbt_tmp")
