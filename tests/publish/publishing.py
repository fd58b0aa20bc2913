"""A publisher and its subscribers in a scratch folder, for the tests of `apply`."""

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable as LogTable
from pyspark.sql import DataFrame, SparkSession

from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.tables import TableState
from mergerepl.delta.types import field
from mergerepl.merge.session.capture_replica import capture_held
from mergerepl.model.article import PublishedArticle
from mergerepl.model.progress import NoProgress
from mergerepl.model.publication import Article
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.networks import Hub

READY = {"delta.enableChangeDataFeed": "true", "delta.deletedFileRetentionDuration": "interval 14 days"}


def table(path: Location, *names: str, **properties: str) -> TableState:
    """Return a table of integers as its log would state it."""
    fields = [column(name, "integer") for name in ("id", *names)]
    metadata = TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), properties or READY, ())
    return TableState(path, 3, metadata, 1, 4, frozenset(), frozenset(), None, None)  # type: ignore[arg-type]


def orders(**settings: Any) -> Article:
    """Return the usual article."""
    return Article("orders", "orders", **{"key": ("id",), **settings})


def column(name: str, data_type: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """Return a field of a Delta schema."""
    return {**field(name, data_type), "nullable": nullable, "metadata": metadata}


def article(
    rows: DataFrame, *, key: tuple[str, ...] = ("id",), rowguid: str | None = None
) -> PublishedArticle:
    """Return an article with the columns of some rows, as the phases see it."""
    return PublishedArticle(
        publication="sales",
        pubid="p",
        name="orders",
        artid="a",
        nickname=1,
        table="orders",
        identity=(rowguid,) if rowguid else key,
        columns=tuple(field.name for field in rows.schema),
        types=tuple(field.dataType.simpleString() for field in rows.schema),
        column_tracking=False,
        resolution="row",
        resolver="priority",
        conflict_table="c",
        vertical=False,
        rowguid_column=rowguid,
    )


def capture(root: Path, pubid: str) -> None:
    capture_held(Replica(root), pubid, progress=NoProgress())


def notes(hub: Hub, name: str) -> dict[int, str]:
    rows = LogTable(str(hub.root(name) / "orders")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["note"] for row in rows}


def metadata(spark: SparkSession, hub: Hub, name: str, table: str) -> list[tuple[object, ...]]:
    rows = spark.read.format("delta").load(str(hub.root(name) / "_mergerepl" / table))
    return sorted(
        (row["rowguid"], tuple(sorted(row["lineage"].items())), row["generation"], str(row["row_1"]))
        for row in rows.collect()
    )
