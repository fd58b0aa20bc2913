"""Whether a table's rows can be told apart: no NULL or duplicate keys, GUIDs where GUIDs are promised."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article
from mergerepl.publish.check_article import published_fields
from mergerepl.publish.table_facts import TableFacts
from mergerepl.snapshot.replica_table import is_computable
from mergerepl.store.delta import read_version
from mergerepl.store.images import with_readable
from mergerepl.store.sql import quote

MOST_NAMED = 5
GUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"

_ROWS = "__mr_rows"


def check_rows(spark: SparkSession, article: Article, table: TableFacts) -> None:
    """Check the identities of a table's rows, in one job.

    Raises: PublicationError naming up to five of the offending keys.
    """
    rows = read_version(spark, table.path, table.version)
    _check_files(rows, article, table)
    _check_generated(spark, article, table)
    bad = with_readable(bad_identities(rows, article), article.identity).take(MOST_NAMED + 1)
    if not bad:
        return
    named = [", ".join(f"{name}={_text(row[name])}" for name in article.identity) for row in bad[:MOST_NAMED]]
    what = "rowguid column" if article.rowguid else "key"
    more = " and more" if len(bad) > MOST_NAMED else ""
    reasons = sorted({str(row["__mr_reason"]) for row in bad})
    raise PublicationError(
        f"Article '{article.name}' cannot be published: its {what} ({', '.join(article.identity)}) has "
        f"{' and '.join(reasons)} in table '{table.path}': {'; '.join(named)}{more}. "
        "Correct these rows, or choose another key.",
        article=article.name,
        keys="; ".join(named),
    )


def _check_files(rows: DataFrame, article: Article, table: TableFacts) -> None:
    """Refuse a table whose files lie elsewhere: their owner may remove them, and a log may name any file at all."""
    foreign = [file for file in rows.inputFiles() if not file.startswith(f"file:{table.path}/")]
    if foreign:
        raise PublicationError(
            f"Article '{article.name}' cannot be published: table '{table.path}' has files outside its "
            f"folder, such as '{foreign[0]}' (a shallow clone?). Copy it with CREATE TABLE … AS SELECT and "
            "publish the copy.",
            article=article.name,
            table=str(table.path),
        )


def _check_generated(spark: SparkSession, article: Article, table: TableFacts) -> None:
    """Refuse a column generated from ones left out: what a subscriber writes into it could not be stored here."""
    names = [field["name"] for field in published_fields(article, table)]
    for name, expression in table.generated_columns.items():
        if name in names and not is_computable(spark, table, names, expression):
            raise PublicationError(
                f"Article '{article.name}' cannot be published: its column '{name}' is generated from columns that "
                f"`columns:` leaves out ({expression}), so what a subscriber writes into it could not be stored in "
                f"'{table.path}'. Publish those columns, or leave this one out, too.",
                article=article.name,
                table=str(table.path),
            )


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)


def bad_identities(rows: DataFrame, article: Article) -> DataFrame:
    """Return the identities that are no identities: columns, how many rows have it, and why it is bad."""
    columns = [F.col(quote(name)) for name in article.identity]
    # a GUID is the same in either case
    identity: list[Column] = [F.lower(columns[0]).alias(article.identity[0])] if article.rowguid else columns
    counted = rows.groupBy(*identity).agg(F.count(F.lit(1)).alias(_ROWS))
    has_null = F.lit(False)
    for column in columns:
        has_null = has_null | column.isNull()
    reason = F.when(has_null, F.lit("NULL values")).when(F.col(_ROWS) > 1, F.lit("duplicate values"))
    if article.rowguid:
        reason = reason.when(~columns[0].rlike(GUID_PATTERN), F.lit("values that are no GUIDs"))
    return counted.select("*", reason.alias("__mr_reason")).where(F.col("__mr_reason").isNotNull())
