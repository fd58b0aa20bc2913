"""Runs of the partition mappings: few EVENTS of Arrow and many of Spark make the same rows, also beside each other."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.transactions import Transaction
from mergerepl.merge.partitions import runs
from mergerepl.merge.partitions.runs import Events, append_events

Rows = list[Mapping[str, Any]]


def events(*rows: tuple[str, int, str, str | None, int]) -> pa.Table:
    names = ("rowguid", "partition_id", "kind", "reason", "generation")
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    types = (pa.string(), pa.int32(), pa.string(), pa.string(), pa.int64())
    return pa.table(
        [column.cast(type_) for column, type_ in zip(columns, types, strict=True)], names=list(names)
    )


OF_ONE = events(("a", 1, "enter", None, 7), ("b", 2, "leave", "moved", 7), ("c", 1, "data", None, 6))
OF_OTHER = events(("a", 5, "stay", None, 9))


def test_few_and_many_events_are_appended_together(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: dict[str, Rows] = {}

    def append(rows: DataFrame | pa.Table, table: Path, _: Transaction) -> None:
        found = rows.toArrow() if isinstance(rows, DataFrame) else rows
        appended[table.name] = sorted(found.to_pylist(), key=lambda row: sorted(map(str, row.items())))

    monkeypatch.setattr(runs.appended, "append", append)
    replica = cast("Any", SimpleNamespace(folder=Path("replica")))
    found = []
    for frames in ((), (1,), (2,), (1, 2)):
        append_events(
            replica,
            [
                Events(n, n * 10, spark.createDataFrame(rows) if n in frames else rows)
                for n, rows in ((1, OF_ONE), (2, OF_OTHER))
            ],
            Transaction("app", 4, CommitMark("session", "run")),
        )
        found.append(dict(appended))
    assert [len(rows) for rows in found[0].values()] == [2, 1, 4]
    assert found[1:] == found[:1] * 3
