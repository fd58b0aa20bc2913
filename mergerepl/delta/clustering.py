"""The columns by which a table is clustered, as Delta on Spark reports them."""

import re
from typing import TYPE_CHECKING

from mergerepl.delta.table import TableState
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
"""A part of a column's path: quoted where its name has a dot."""


def clustering_columns(spark: "SparkSession", table: TableState) -> list[list[str]]:
    """Return the columns a table is clustered by, each as its path of names; none if it is not."""
    if "clustering" not in table.features:
        return []
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.{quote(str(table.path))}").collect()
    return [path_of(name) for name in detail["clusteringColumns"] or ()]


def path_of(name: str) -> list[str]:
    """Return the parts of a column's dotted name."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(name)]
