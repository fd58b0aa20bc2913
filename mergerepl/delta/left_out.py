"""The former values of rows that are inserted again, in columns that their article leaves out."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import Action
from mergerepl.delta.versions import read_version
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import KeyBounds, same_key
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.in_memory import keep_in_memory, let_go

log = logging.getLogger(__name__)


@contextmanager
def with_left_out(
    source: DataFrame,
    table: Path,
    article: PublishedArticle,
    bounds: KeyBounds,
    version: int,
    wanted: Sequence[str],
) -> Iterator[tuple[DataFrame, dict[str, str]]]:
    """Yield the source with columns that the article leaves out, as the table had them at a version; name -> field.

    If that version cannot be read any more, yield the source alone: the session must finish.
    """
    held = None
    left_out: dict[str, str] = {}
    if wanted:
        try:
            before = read_version(source.sparkSession, table, version)
            left_out = {name: f"left_out_{i}" for i, name in enumerate(wanted) if name in before.columns}
            if left_out:
                held = keep_in_memory(_held_then(before, source, article, bounds, left_out), now=True)
        except (PySparkException, Py4JJavaError) as error:
            if gone_reason(error) is None:
                # A full disk or memory, say: the version is there, and the next run may read it.
                raise
            log.warning(
                "%s: rows come back from a delete without the columns %s: version %s cannot be read: %s",
                *(table, ", ".join(wanted), version, error),
            )
    if held is None:
        yield source, {}
        return
    try:
        yield source.join(held, on=list(article.identity_fields), how="left"), left_out
    finally:
        let_go(held)


def _held_then(
    before: DataFrame,
    source: DataFrame,
    article: PublishedArticle,
    bounds: KeyBounds,
    left_out: Mapping[str, str],
) -> DataFrame:
    """Return the former values of rows to be inserted in columns left out: identity fields, fields of `left_out`.

    There is one row for each key: a user may have added a second row of it, and Delta would insert both.
    """
    inserted = source.where(F.col("action") == Action.INSERT.value)
    then = before.alias("t").join(inserted.alias("s"), on=same_key(article, bounds))
    return then.select(
        *(F.col(f"s.{field}") for field in article.identity_fields),
        *(F.col(f"t.{quote(name)}").alias(field) for name, field in left_out.items()),
    ).dropDuplicates(list(article.identity_fields))
