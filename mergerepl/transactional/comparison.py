"""Compare a subscriber's table with its expected rows: the publisher's, in the form that the article sends.

| the subscriber lacks | has additionally | has with other values | |
|---|---|---|---|
| `missing` | `extra` | `different` | `twice`: a key has several rows |

Some rows are unknown, since no command describes their changes. These kinds are counted separately and never differ.

| operation | without commands (NONE), or by a procedure that did not call `call.default()` |
|---|---|
| insert | `missing` |
| update | `different`; where updates of keys are sent as updates, `missing` and `extra`, too |
| delete | `extra` |
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.delta.tables import TableState
from mergerepl.publish import snapshot
from mergerepl.publish.snapshot import KEY_PREFIX, compared_rows
from mergerepl.rows.images import readable
from mergerepl.rows.sql import quote
from mergerepl.systables.tracking import SYSTEM_PREFIX
from mergerepl.systables.transactional import ArticleRow
from mergerepl.transactional.call_syntax import KEYS, Method, Operation
from mergerepl.transactional.catalog import shape_of

SHOWN = 20

MISSING, EXTRA, DIFFERENT, TWICE = "missing", "extra", "different", "twice"
KINDS = {
    snapshot.MISSING: MISSING,
    snapshot.EXTRA: EXTRA,
    snapshot.DIFFERENT: DIFFERENT,
    snapshot.TWICE: TWICE,
}
"""The kinds as the comparison of rows names them -> as results do."""

_CHAR = re.compile(r"char\((\d+)\)")


@dataclass(frozen=True)
class Difference:
    """The numbers of differing keys by kind, and some of them as (key, kind); `unknown`: rows that cannot be known."""

    publisher_rows: int
    subscriber_rows: int
    counts: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        """The number of keys that differ."""
        return sum(self.counts.values())

    @property
    def shown(self) -> str:
        """Some keys with their kind."""
        return "; ".join(f"{key} ({kind})" for key, kind in self.examples[:3])


def unknown_kinds(article: ArticleRow, by_procedure: Collection[str] = ()) -> dict[str, str]:
    """Return the kinds of differences that commands cannot rule out, each with the reason.

    `by_procedure` are the operations whose rows custom procedures made differently from the generated ones.
    """
    shape = shape_of(article)
    found: dict[str, str] = {}
    for operation in Operation:
        command = shape.command(operation)
        if command.method is Method.NONE:
            why = f"{KEYS[operation]} is NONE"
        elif operation in by_procedure:
            why = f"a procedure wrote other rows than {KEYS[operation]} {command.method} sends"
        else:
            continue
        moves = (MISSING, EXTRA) if article.singleton_key_updates else ()
        kinds = {
            Operation.INSERT: (MISSING,),
            Operation.UPDATE: (DIFFERENT, *moves),
            Operation.DELETE: (EXTRA,),
        }
        for kind in kinds[operation]:
            found.setdefault(kind, why)
    return found


def lacking_columns(article: ArticleRow, table: TableState) -> list[str]:
    """Return the columns of an article that a subscriber's table lacks."""
    there = {each["name"].lower() for each in table.fields}
    return [name for name in article.columns if name.lower() not in there]


def own_columns(article: ArticleRow, table: TableState) -> list[str]:
    """Return the columns of a subscriber's table that the article does not have: they are never compared."""
    known = {name.lower() for name in article.columns}
    names = (each["name"] for each in table.fields)
    return [
        name for name in names if name.lower() not in known and not name.lower().startswith(SYSTEM_PREFIX)
    ]


def compared(
    publisher: DataFrame, subscriber: DataFrame, article: ArticleRow, table: TableState
) -> DataFrame:
    """Return every key of both sides once (`compared_rows`), the publisher's values as the table stores them."""
    types = {each.name.lower(): each.dataType.simpleString() for each in subscriber.schema}

    def stored(name: str) -> Column:
        value = F.col(quote(name))
        if publisher.schema[name].dataType.simpleString() != types[name.lower()]:
            value = value.try_cast(types[name.lower()])
        if padded := _CHAR.fullmatch(table.declared_lengths(name)):
            value = F.when(F.length(value) < int(padded[1]), F.rpad(value, int(padded[1]), " ")).otherwise(
                value
            )
        return F.nullif(value, F.lit("")) if table.keeps_empty_as_null(name) else value

    rows = publisher.select(*(stored(name).alias(name) for name in article.columns))
    return compared_rows(rows, subscriber, article.columns, article.key_columns)


def differing(rows: DataFrame, article: ArticleRow, unknown: Collection[str] = ()) -> Difference:
    """Return the differences among the rows of `compared`."""
    is_of = {kind: F.col("kind") == word for word, kind in KINDS.items()}
    counted = (
        rows.agg(
            F.count("ours").alias("p"),
            F.sum("times").alias("s"),
            *(F.count_if(each).alias(kind) for kind, each in is_of.items()),
        )
        .collect()[0]
        .asDict()
    )
    by_kind = {kind: counted[kind] for kind in is_of if counted[kind]}
    counts = {kind: n for kind, n in by_kind.items() if kind not in unknown}
    examples = tuple(shown_keys(rows, article, list(counts))) if counts else ()
    left = {kind: n for kind, n in by_kind.items() if kind in unknown}
    return Difference(counted["p"], counted["s"] or 0, counts, left, examples)


def shown_keys(rows: DataFrame, article: ArticleRow, kinds: Collection[str]) -> list[tuple[str, str]]:
    """Return the first SHOWN keys of these kinds, by key, as (text, kind)."""
    names = [f"{KEY_PREFIX}{i}" for i, _ in enumerate(article.key_columns)]
    chosen = rows.where(F.col("kind").isin([word for word, kind in KINDS.items() if kind in kinds]))
    texts = [readable(F.col(name), rows.schema[name].dataType).alias(f"t{i}") for i, name in enumerate(names)]
    found = chosen.orderBy(*names).limit(SHOWN).select(*texts, "kind").collect()
    return [
        (
            ", ".join(f"{column} = {row[f't{i}']}" for i, column in enumerate(article.key_columns)),
            KINDS[row["kind"]],
        )
        for row in found
    ]
