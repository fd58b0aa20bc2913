"""A resolver that reads the common ancestor of two changes finds it in filtered articles and in late rounds, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.model.resolvers import CUSTOM, RESOLVERS, TypeFamily
from tests.networks import publish, writing_late

pytestmark = pytest.mark.spark

Values = tuple[Any, Any, Any, Any]
"""The value before, the publisher's, the subscriber's, and what both come to."""

OF_TYPE: Mapping[TypeFamily | None, tuple[pa.DataType, Values]] = {
    TypeFamily.NUMBER: (pa.int32(), (10, 13, 15, 18)),
    TypeFamily.ARRAY: (pa.list_(pa.int32()), ([1, 9], [9, 2], [1, 9, 3], [9, 2, 3])),
    TypeFamily.FIELDS: (
        pa.struct({"a": pa.int32(), "b": pa.int32()}),
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}),
    ),
}
READERS = {each.name: each.reads for each in RESOLVERS.values() if each.needs_base and each.name != CUSTOM}
MET, MOVED, LATE = 1, 2, 3
"""Rows: both sides change it; it leaves with its customer; both change it late."""

ARTICLES = {**{f"child_{name}": name for name in READERS}, "own_delta": "delta", "whole_delta": "delta"}
"""Articles that follow customers, one with a filter of its own, and one without filters; and their resolvers."""


def values_of(article: str) -> Values:
    return OF_TYPE[READERS[ARTICLES[article]]][1]


def schema_of(article: str) -> pa.Schema:
    type_, _ = OF_TYPE[READERS[ARTICLES[article]]]
    return pa.schema({"id": pa.int64(), "region": pa.string(), "v": type_})


def publish_all(folder: Path) -> None:
    ids, regions = [MET, MOVED, LATE], ["N"] * 3
    write_deltalake(str(folder / "hq/customers"), pa.table({"id": ids, "region": regions}))
    own = {"filter": "region = HOST_NAME()"}
    stated: list[Mapping[str, Any]] = [{"name": "customers", "key": ["id"], **own}]
    joins = []
    for article, name in ARTICLES.items():
        rows = {"id": ids, "region": regions, "v": [values_of(article)[0]] * 3}
        write_deltalake(str(folder / "hq" / article), pa.table(rows, schema=schema_of(article)))
        resolver = {"name": name, "column": "v"}
        more = own if article.startswith("own") else {}
        stated.append({"name": article, "key": ["id"], "tracking": "column", "resolver": resolver, **more})
        if article.startswith("child"):
            on = f"{article}.id = customers.id"
            joins.append({"article": article, "parent": "customers", "on": on, "unique": True})
    publish(folder, "shop", stated, [{"subscriber": "./north", "host_name": "N"}], joins=joins)


def write(folder: Path, key: int, number: int) -> None:
    """Give a row the value with a number, in every article."""
    for article in ARTICLES:
        row = {"id": key, "region": "N", "v": values_of(article)[number]}
        source = pa.Table.from_pylist([row], schema=schema_of(article))
        merge = DeltaTable(str(folder / article)).merge(source, "t.id = s.id", "s", "t")
        merge.when_matched_update_all().execute()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_changes_of_filtered_rows_are_merged_by_their_ancestor_when_others_move_and_in_late_rounds(
    spark: SparkSession, replica_dir: Path, engine: Literal["auto", "spark"]
) -> None:
    publish_all(replica_dir)
    hq, north = replica_dir / "hq", replica_dir / "north"
    # One capture takes in a change of a row and the move of another one.
    write(hq, MET, 1)
    for article in ("customers", "own_delta"):
        DeltaTable(str(hq / article)).update(predicate=f"id = {MOVED}", new_values={"region": "S"})
    write(north, MET, 2)

    def write_late() -> None:
        # Only the late rounds capture the first change of this row, at both sides.
        write(hq, LATE, 1)
        write(north, LATE, 2)

    with writing_late(write_late):
        mergerepl.Project.load(hq).sync(engine=engine)
    mergerepl.Project.load(hq).sync(engine=engine)
    for article in ARTICLES:
        before, _, _, both = values_of(article)
        wanted = {MET: both, MOVED: before, LATE: both}
        found = {}
        for root in (hq, north):
            rows = DeltaTable(str(root / article)).to_pyarrow_table().to_pylist()
            found[root] = {row["id"]: row["v"] for row in rows}
        assert found[hq] == wanted, article
        if not article.startswith("whole"):
            del wanted[MOVED]
        assert found[north] == wanted, article
