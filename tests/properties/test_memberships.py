"""The engine's memberships are those of the full evaluation: few rows changed in tables of few rows, orphans among them."""

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession

from mergerepl.changes import ROW, ROWGUID
from mergerepl.filters.clause import SessionFunction
from mergerepl.filters.parse import parse_filter, parse_on
from mergerepl.filters.prepare import prepare_clause
from mergerepl.filters.publication_filters import JoinFilter, PublicationFilters
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.membership import (
    AFTER,
    BEFORE,
    IS,
    WAS,
    WRITTEN,
    Changed,
    MembershipPass,
    group_rows,
    with_rowguid,
)
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import row_image
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.partitions import PartitionGroup
from tests.interpreted import interpreted
from tests.properties.partition_engine import CLAUSES, schema_of
from tests.properties.partition_histories import KEYS, SOME, VALUES, VARIANTS, draw_row
from tests.properties.partition_model import full_members

DDL = {pa.int64(): "bigint", pa.string(): "string"}
PARTS: dict[int, object] = dict(enumerate(VALUES, start=1))
Tables = dict[str, dict[int, Any]]


def drawn(rng: random.Random, article: str, columns: tuple[str, ...], key: int) -> dict[str, Any]:
    values = draw_row(rng, SOME)
    return {"key": key, **{name: values[name] for name in columns}, "tok": str(rng.random())}


def tables_of(rng: random.Random, variant: str, chance: float) -> Tables:
    articles = VARIANTS[variant]["filters"].articles
    return {
        name: {key: drawn(rng, name, a.columns, key) for key in range(KEYS[name]) if rng.random() < chance}
        for name, a in articles.items()
    }


def changed_of(rng: random.Random, variant: str, before: Tables) -> Tables:
    """Return tables in which one to three rows are others: inserted, updated or deleted."""
    after = {name: dict(rows) for name, rows in before.items()}
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(after))
        key = rng.randrange(KEYS[name])
        if key in after[name] and rng.random() < 0.3:
            del after[name][key]
        else:
            after[name][key] = drawn(rng, name, VARIANTS[variant]["filters"].articles[name].columns, key)
    return after


class Memberships:
    """The pass over tables in memory."""

    def __init__(self, spark: SparkSession, variant: str) -> None:
        self.spark, filters = spark, VARIANTS[variant]["filters"]
        self.schemas = {name: schema_of(filters, name) for name in filters.articles}
        types = {name: {f.name: DDL[f.type] for f in schema} for name, schema in self.schemas.items()}
        clauses = CLAUSES[variant]
        own = {n: prepare_clause(parse_filter(c), {None: types[n]}) for n, c in clauses["filters"].items()}
        joins = [
            JoinFilter(a, p, prepare_clause(parse_on(on, parent=p, article=a), {n: types[n] for n in (p, a)}))
            for a, p, on in clauses["joins"]
        ]
        of_publication = PublicationFilters(own, tuple(joins))
        articles = {
            name: PublishedArticle(
                "p", "p", name, name, number, name, ("key",), tuple(types[name]), tuple(types[name].values()),
                column_tracking=False, resolution="row", resolver="priority", conflict_table="c", vertical=False,
            )
            for number, name in enumerate(of_publication.order, start=1)
        }  # fmt: skip
        groups = tuple(
            PartitionGroup(
                partition_id=number, publication_number=1, maxgen_whenadded=0, HOST_NAME_FN=str(value)
            )
            for number, value in PARTS.items()
        )
        assert of_publication.functions == (SessionFunction.HOST_NAME,)
        self.publication = FilteredPublication("p", 1, of_publication, groups, articles)

    def _frame(self, name: str, rows: list[dict[str, Any]]) -> DataFrame:
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, schema=self.schemas[name]))

    def found(self, before: Tables, after: Tables) -> dict[str, dict[int, tuple[list[int], list[int]]]]:
        """Return was and is of the rows that the pass computes, by article and key."""

        def base(name: str, condition: Column | None) -> DataFrame:
            rows = [row for key, row in before[name].items() if after[name].get(key) == row]
            table = self._frame(name, rows)
            table = table if condition is None else table.where(condition)
            return table.select(row_image(self.publication.articles[name].columns).alias(ROW))

        changed = {}
        for name in self.publication.articles:
            keys = [k for k in {*before[name], *after[name]} if before[name].get(k) != after[name].get(k)]
            if keys:
                changed[name] = Changed(self._changed(name, before, after, keys), len(keys))
        kept = Kept()
        try:
            groups = group_rows(self.spark, self.publication.groups)
            pass_ = MembershipPass(self.publication, groups, base, kept)
            return {
                name: {(each[AFTER] or each[BEFORE])["c0"]: (each[WAS], each[IS]) for each in rows.collect()}
                for name, rows in pass_.run(changed).items()
            }
        finally:
            kept.release()

    def _changed(self, name: str, before: Tables, after: Tables, keys: list[int]) -> DataFrame:
        image = self._frame(name, []).select(row_image(self.publication.articles[name].columns).alias(ROW))
        type_ = image.schema[ROW].dataType.simpleString()
        schema = f"{BEFORE} {type_}, {AFTER} {type_}"

        def row(values: dict[str, Any] | None) -> Row | None:
            return None if values is None else Row(*(values[field.name] for field in self.schemas[name]))

        rows = self.spark.createDataFrame(
            [(row(before[name].get(k)), row(after[name].get(k))) for k in keys], schema
        )
        either = rows.selectExpr("*", f"coalesce({BEFORE}, {AFTER}) as {ROW}", f"true as {WRITTEN}")
        return with_rowguid(either, self.publication.articles[name]).select(ROWGUID, BEFORE, AFTER, WRITTEN)


def play(spark: SparkSession, variant: str, seeds: range) -> None:
    filters, engine = VARIANTS[variant]["filters"], Memberships(spark, variant)
    for seed in seeds:
        rng = random.Random(f"{variant} {seed}")
        # Few rows, so that tables without a parent, and without a row, are met often.
        before = tables_of(rng, variant, rng.choice([0.2, 0.5, 0.8]))
        after = changed_of(rng, variant, before)
        found = engine.found(before, after)
        was, is_ = (full_members(filters, PARTS, each) for each in (before, after))
        for name in filters.articles:
            for key in {*before[name], *after[name]}:
                truth = sorted(was[name].get(key, ())), sorted(is_[name].get(key, ()))
                if key in found.get(name, {}):
                    assert found[name][key] == truth, f"{variant}, seed {seed}: {name} {key}"
                else:
                    assert truth[0] == truth[1], (
                        f"{variant}, seed {seed}: {name} {key} moves, and is not found"
                    )
                    assert before[name].get(key) == after[name].get(key)


def test_memberships_are_those_of_the_full_evaluation(spark: SparkSession) -> None:
    with interpreted(spark):
        play(spark, "terms", range(1))


@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(CLAUSES))
def test_memberships_of_many_drawn_changes(spark: SparkSession, variant: str) -> None:
    with interpreted(spark):
        play(spark, variant, range(100))
