"""Bounds of the values that rows match through a join filter: files outside these bounds need not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from mergerepl.changes import ROW
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.filters.clause import Column as ClauseColumn
from mergerepl.filters.publication_filters import JoinFilter, terms_of_on
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.model.article import BOUNDED_TYPES, PublishedArticle
from mergerepl.rows.key_bounds import found_between, measures_of, within
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import collected, in_one_task

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Values:
    """What a lookup in process seeks in a table: the values of one column."""

    column: str
    values: "pa.Array[Any]"


Sought = Column | Values
"""What matching rows of a table meet: a condition on its columns, in process the values of one."""

_FEW = 32
"""So many rows are looked for one by one: they may lie far apart, and all files between them."""

_ROWS = "rows"
_VALUES = "values"


def looked_for(
    rows: DataFrame,
    name: str,
    joins: Sequence[JoinFilter],
    articles: Mapping[str, PublishedArticle],
    *,
    most: int | None,
) -> tuple[int, dict[JoinFilter, Sought]]:
    """Count rows, and return by join what matching rows of the other article meet.

    The conditions are on columns of the other article's table, for its files' bounds; more rows meet them than match.
    `rows` has `row` of the article `name`, which is the parent or the child in all joins. `articles` are all articles
    of the joins, by name. There are at most `most` rows; None if unknown.

    Raises: NeedsSparkError in process, for a join without an equality of columns.
    """
    if is_in_process():
        return rows.count(), {join: _values(rows, join, name, articles) for join in joins}
    pairs = {
        f"{place}_{number}": (join, *pair)
        for place, join in enumerate(joins)
        for number, pair in enumerate(equal_columns(join, name, articles))
    }
    measures = {_ROWS: F.count(F.lit(1))}
    for label, (_, field, _, type_) in pairs.items():
        value = F.col(f"{ROW}.{field}")
        measures |= measures_of(label, value, type_)
        if most is not None and most <= _FEW:
            measures[f"{_VALUES}_{label}"] = F.collect_set(value.cast("string"))
    found = in_one_task(rows, most).agg(*(each.alias(label) for label, each in measures.items())).first()
    assert found is not None
    measured = found.asDict()
    conditions = dict.fromkeys(joins, F.lit(True))
    for label, (join, _, column, type_) in pairs.items():
        bounds = found_between(label, measured)
        if bounds is None:
            continue
        values = measured.get(f"{_VALUES}_{label}") or ()
        ranges = [(each, each) for each in sorted(values)] or [bounds]
        of_values = [within(F.col(quote(column)), *each, type_) for each in ranges]
        conditions[join] = conditions[join] & reduce(or_, of_values)
    return int(measured[_ROWS]), {**conditions}


def _values(rows: DataFrame, join: JoinFilter, name: str, articles: Mapping[str, PublishedArticle]) -> Values:
    equal = equal_columns(join, name, articles)
    if not equal:
        raise NeedsSparkError("a join filter has no equality of two columns of one type")
    field, column, _ = equal[0]
    found = collected(rows.select(F.col(f"{ROW}.{field}").alias(field)))
    # NULL matches nothing, and many rows of the table may have it.
    return Values(column, found[field].combine_chunks().drop_null().unique())


def equal_columns(
    join: JoinFilter, name: str, articles: Mapping[str, PublishedArticle]
) -> list[tuple[str, str, str]]:
    """Return field of the article, column of the other one and type, for plain columns that must be equal."""
    found = []
    for equality in terms_of_on(join.on, article=join.article).equalities:
        one, other = equality.of_row, equality.of_other
        if name != join.article:
            one, other = other, one
        if isinstance(one, ClauseColumn) and isinstance(other, ClauseColumn):
            (field, type_), (_, other_type) = (_field_and_type(articles, each) for each in (one, other))
            if type_ == other_type and type_ in BOUNDED_TYPES:
                found.append((field, other.name, type_))
    return found


def _field_and_type(articles: Mapping[str, PublishedArticle], column: ClauseColumn) -> tuple[str, str]:
    assert column.article is not None
    article = articles[column.article]
    place = article.columns.index(column.name)
    return article.fields[place], article.types[place]
