"""Rows of a subscriber that a reinitialisation takes away: exported as Delta tables before anything changes."""

import json

from mergerepl.changes import ROW
from mergerepl.delta import appended
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import NewTable, Transaction, create_table
from mergerepl.frames import DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.application_ids import RUN_APP_ID
from mergerepl.store.location import Location

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


def export(rows: DataFrame, article: PublishedArticle, folder: Location, mark: CommitMark) -> None:
    """Write rows (`rows_taken_away`) with an article's columns to a new Delta table."""
    named = zip(article.fields, article.columns, strict=True)
    flat = rows.select(*(F.col(f"{ROW}.{field}").alias(name) for field, name in named), KIND)
    create_table(folder, NewTable(json.loads(flat.schema.json())["fields"]), mark)
    appended.append(flat, folder, Transaction(RUN_APP_ID, 1, mark))
