"""What `sync --dry-run` shows of conflicts: who would win and lose, by which resolver, both rows as text."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl import changes
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ConflictPreview
from mergerepl.model.value_text import text_of
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.arrow_values import python_values
from mergerepl.rows.images import no_names, readable

SHOWN = 100
"""Conflicts shown per article; the counts are of all."""


def conflict_previews(
    spark: SparkSession, folder: Path, staged: dict[int, StagedArticle], articles: dict[int, PublishedArticle]
) -> tuple[ConflictPreview, ...]:
    """Return the first conflicts of each staged article, by key."""
    previews: list[ConflictPreview] = []
    for nickname, result in staged.items():
        if result.conflicts:
            rows = read_staged(spark, folder / str(nickname))
            previews += _of_article(rows.where(F.col(changes.CONFLICT_TYPE).isNotNull()), articles[nickname])
    return tuple(previews)


def _of_article(conflicts: DataFrame, article: PublishedArticle) -> list[ConflictPreview]:
    by_key = conflicts.orderBy(*(F.col(f"{changes.ROW}.{field}") for field in article.identity_fields))
    keys = {
        field: readable(F.col(f"{changes.ROW}.{field}"), T.DataType.fromDDL(type_))
        for field, type_ in zip(article.fields, article.types, strict=True)
        if field in article.identity_fields
    }
    columns = (changes.CONFLICT_COLUMNS, changes.MADE_COLUMNS)
    has_winner = F.col(changes.WINNER).isNotNull() & ~F.col(changes.DELETED)
    shown = (
        by_key.limit(SHOWN)
        .select(
            F.struct(*(key.alias(field) for field, key in keys.items())),
            F.col(changes.CONFLICT_TYPE),
            F.when(F.col(changes.PUBLISHER_WINS), changes.PUBLISHER).otherwise(changes.SUBSCRIBER),
            F.when(has_winner, F.col(changes.ROW)),
            F.when(~F.col(f"{changes.LOSER}.{changes.DELETED}"), F.col(f"{changes.LOSER}.{changes.ROW}")),
            F.col(changes.RESOLVER),
            F.col(changes.NOTE),
            *(F.coalesce(name, no_names()) for name in columns),
        )
        .toArrow()
    )
    return [
        ConflictPreview(
            article.name,
            {name: key[field] for name, field in zip(article.identity, article.identity_fields, strict=True)},
            conflict_type,
            winner,
            _texts(winning, article),
            _texts(losing, article),
            resolver,
            note,
            tuple(conflict_columns),
            tuple(made_columns),
        )
        for key, conflict_type, winner, winning, losing, resolver, note, conflict_columns, made_columns in zip(
            *map(python_values, shown), strict=True
        )
    ]


def _texts(row: Mapping[str, object] | None, article: PublishedArticle) -> dict[str, str | None] | None:
    if row is None:
        return None
    return {name: text_of(row[field]) for name, field in zip(article.columns, article.fields, strict=True)}
