"""What `sync --dry-run` shows of conflicts: who would win, both rows as text."""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl import changes
from mergerepl.agent.stage import StagedArticle
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ConflictPreview
from mergerepl.rows.images import readable
from mergerepl.store.staged_rows import read_staged

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


def row_texts(image: Column, article: PublishedArticle) -> Column:
    """Return a row image as a map of column name to readable text."""
    columns = zip(article.columns, article.fields, article.types, strict=True)
    texts = {name: readable(image[field], T.DataType.fromDDL(type_)) for name, field, type_ in columns}
    return F.map_from_entries(F.array(*(F.struct(F.lit(name), text) for name, text in texts.items())))


def _of_article(conflicts: DataFrame, article: PublishedArticle) -> list[ConflictPreview]:
    by_key = conflicts.orderBy(*(F.col(f"{changes.ROW}.{field}") for field in article.identity_fields))
    told = by_key.limit(SHOWN).select(
        F.col(changes.CONFLICT_TYPE).alias("conflict_type"),
        F.when(F.col(changes.PUBLISHER_WINS), changes.PUBLISHER)
        .otherwise(changes.SUBSCRIBER)
        .alias("winner"),
        *(
            F.when(
                ~F.col(f"{side}.{changes.DELETED}"), row_texts(F.col(f"{side}.{changes.ROW}"), article)
            ).alias(name)
            for side, name in ((changes.WINNER, "winning_row"), (changes.LOSER, "losing_row"))
        ),
    )
    return [
        ConflictPreview(
            article.name,
            {name: (row["losing_row"] or row["winning_row"])[name] for name in article.identity},
            row["conflict_type"],
            row["winner"],
            row["winning_row"],
            row["losing_row"],
        )
        for row in told.collect()
    ]
