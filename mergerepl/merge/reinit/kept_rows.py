"""Rows of a subscriber that a reinitialisation takes away: exported as Delta tables before anything changes."""

import json
from typing import TYPE_CHECKING

from mergerepl.changes import ROW, SUBSCRIBER
from mergerepl.delta import appended
from mergerepl.delta.differing_rows import columns_here
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import NewTable, TableState, Transaction, create_table, open_table, read_columns
from mergerepl.delta.types import field
from mergerepl.frames import DataFrame, F, is_in_process
from mergerepl.merge.reinit.differences import ReinitArticle
from mergerepl.replica.application_ids import RUN_APP_ID
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import collected
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "mergerepl_kind"
"""The column that says what becomes of a row: `replaced`, `removed`, or `brought back` (its delete was not sent)."""


def rows_taken_away(decided: DataFrame, unsent: DataFrame | None) -> DataFrame:
    """Return row and kind of the subscriber's rows that are replaced or removed, and of deletes that are undone.

    `decided` are the rows that the subscriber gets from the publisher; `unsent` the changes among them that are given up.
    """
    kind = F.when(F.col("ours").isNull(), "removed").otherwise("replaced")
    has_row = F.col("kind").isNotNull() & F.col("theirs").isNotNull()
    lost = decided.where(has_row).select(F.col("theirs").alias(ROW), kind.alias(KIND))
    if unsent is None:
        return lost
    undone = unsent.where(F.col("theirs").isNull())
    return lost.unionByName(undone.select(F.col(f"sent.{ROW}").alias(ROW), F.lit("brought back").alias(KIND)))


def own_columns(of: ReinitArticle) -> list[str]:
    """Return the columns of the subscriber's table that are not published: no other replica has their values."""
    published = {name.lower() for name in of.article.columns}
    return [each["name"] for each in _table(of).fields if each["name"].lower() not in published]


def export(rows: DataFrame, of: ReinitArticle, folder: Location, mark: CommitMark) -> None:
    """Write rows (`rows_taken_away`) to a new Delta table, with all columns that the subscriber's table has.

    Raises: NeedsSparkError in process, if only Spark reads the columns that are not published.
    """
    article, own = of.article, own_columns(of)
    named = zip(article.fields, article.columns, strict=True)
    flat = rows.select(*(F.col(f"{ROW}.{part}").alias(name) for part, name in named), KIND)
    fields = [field(each["name"], each["type"]) for each in json.loads(flat.schema.json())["fields"]]
    fields += [field(each["name"], each["type"]) for each in _table(of).fields if each["name"] in own]
    names, key = [each["name"] for each in fields], [*article.identity]
    found: DataFrame | pa.Table = flat
    if own and is_in_process():
        theirs = columns_here(_table(of), [*key, *own])
        found = collected(flat).join(theirs, keys=key, join_type="left outer").select(names)
    elif own:
        table = _table(of)
        columns = read_columns(rows.sparkSession, table.path, table.version, [*key, *own])
        found = flat.join(columns, on=key, how="left").select(*map(quote, names))
    create_table(folder, NewTable(fields), mark)
    appended.append(found, folder, Transaction(RUN_APP_ID, 1, mark))


def _table(of: ReinitArticle) -> TableState:
    side = of.sides[SUBSCRIBER]
    return open_table(side.replica.table(side.articles[of.nickname]), of.versions[SUBSCRIBER])
