"""The names of tables in the catalog of a caller's Spark session, such as a Hive metastore: aliases of places."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mergerepl import roots
from mergerepl.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNITY = "Publish an external table by its location without `catalog`, or copy it to one."
"""What to do with a table that Unity Catalog manages, or to which it lends credentials."""

_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"
_UNITY_CLASSES = ("io.unitycatalog.", "com.databricks.sql.managedcatalog.")


@dataclass(frozen=True)
class NamedTable:
    """A table of a schema: its name, where it lies, and whether dropping it removes its files."""

    name: str
    place: str
    is_managed: bool


def callers_catalog() -> SparkSession | None:
    """Return the caller's Spark session, whose catalog has names; None if there is none: ours has no metastore.

    Raises: EngineError: The session is of Spark Connect, lacks Delta, or its catalog is Unity Catalog.
    """
    from mergerepl.spark.callers import GIVEN

    is_loaded = "pyspark.sql" in sys.modules or GIVEN.get() is not None
    if not is_loaded and not {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & {*os.environ}:
        return None
    from mergerepl.spark.session import callers_own

    spark = callers_own()
    if spark is not None and (spark.conf.get(_SESSION_CATALOG, "") or "").startswith(_UNITY_CLASSES):
        raise EngineError(
            "The catalog of the running Spark session is Unity Catalog. The tables that it manages are not written by "
            f"path, and credentials that it lends are not taken. {UNITY}"
        )
    return spark


def tables_of(spark: SparkSession, schema: str) -> list[NamedTable]:
    """Return the tables of a schema that have a location.

    Raises: ConfigurationError: The catalog has no such schema.
    """
    catalog: Any = spark._jsparkSession.sessionState().catalog().externalCatalog()
    if not catalog.databaseExists(schema):
        raise ConfigurationError(
            f"The catalog of the running Spark session has no schema '{schema}'. Check `catalog` in the file; or create "
            f"it: `CREATE SCHEMA {schema}`."
        )
    found = catalog.getTablesByName(schema, catalog.listTables(schema))
    tables = (found.apply(index) for index in range(found.size()))
    return [
        NamedTable(
            each.identifier().table(),
            place_of(each.storage().locationUri().get().toString()),
            each.tableType().name() == "MANAGED",
        )
        for each in tables
        if each.storage().locationUri().isDefined()
    ]


def place_of(uri: str) -> str:
    """Return a location of a catalog as places are compared; that of another file system as it is."""
    try:
        return roots.parse(uri, may_be_stored=True)
    except ConfigurationError:
        return uri
