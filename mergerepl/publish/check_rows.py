"""Check that a table's rows can be replicated: no NULL or duplicate keys, and GUIDs in the GUID columns.

The files must lie in the table's folder, and a copy must compute the same generated columns and keep the texts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.contract.rules import NO_GUID, NULL, SHARED, bad_keys, bad_keys_of, copy_rules
from mergerepl.delta.tables import TableState, foreign_file, read_version
from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article, Tracking
from mergerepl.publish.check_article import published_fields, refusal
from mergerepl.publish.snapshot import is_computable
from mergerepl.rows.images import differs_from_expression, with_readable
from mergerepl.rows.sql import quote
from mergerepl.spark.session import require_utc
from mergerepl.store.location import Location

MOST_NAMED = 5
MOST_TEXTS_NAMED = 3

_MORE = " and more"
_RULE = "__mr_rule"
_DIFFERS = "differs"
_REASONS = {NULL: "NULL values", SHARED: "duplicate values", NO_GUID: "values that are no GUIDs"}


def check_rows(spark_of: Callable[[], SparkSession], article: Article, table: TableState) -> None:
    """Check the identities and the generated columns of a table's rows, in one job.

    Raises: PublicationError naming up to five of the offending keys, or a generated column; or a file elsewhere;
    EngineError if the session would read timestamp partition columns otherwise.
    """
    if table.metadata.timestamp_partitions:
        require_utc(spark_of(), article.name, table.path, table.metadata.timestamp_partitions)
    foreign = foreign_file(spark_of, table.path, table.version)
    if foreign is not None:
        why = f"table '{table.path}' has files outside its folder, such as '{foreign}' (a shallow clone?)"
        raise refusal(article, why, "Copy it with CREATE TABLE … AS SELECT and publish the copy.")
    _check_computable(spark_of, article, table)
    check_texts(spark_of, article, table)
    published = {field["name"] for field in published_fields(article, table)}
    generated = {
        name: expression for name, expression in table.generated_columns.items() if name in published
    }
    most, is_guid = MOST_NAMED + 1, bool(article.rowguid)
    if generated:
        rows = read_version(spark_of(), table.path, table.version)
        differs = reduce(or_, differs_from_expression(generated).values(), F.lit(False))
        also = {_DIFFERS: F.bool_or(differs)}
        found = bad_keys(rows, article.identity, most=most, is_guid=is_guid, also=also)
    else:
        found = bad_keys_of(spark_of, table, article.identity, most=most, is_guid=is_guid)
    bad = [each for each in found if each.reason != _DIFFERS]
    if found and not bad:
        check_generated(rows, generated, article=article.name, table=table.path)
    if not bad:
        return
    named = named_rows(article.identity, [each.values for each in bad], most=MOST_NAMED)
    what = "rowguid column" if article.rowguid else "key"
    reasons = sorted({_REASONS[each.reason] for each in bad})
    raise refusal(
        article,
        f"its {what} ({', '.join(article.identity)}) has {' and '.join(reasons)} in table '{table.path}': {named}",
        "Correct these rows, or choose another key.",
        keys=named.removesuffix(_MORE),
    )


def check_texts(spark_of: Callable[[], SparkSession], article: Article, table: TableState) -> None:
    """Check that a copy of a table would take its values and keep them.

    Other engines write texts of any length, and values that break a column's rules.

    Raises: PublicationError naming the column and up to three keys.
    """
    names = [field["name"] for field in published_fields(article, table)]
    if not any(map(table.may_hold_uncopied, names)):
        return
    spark = spark_of()
    rules = copy_rules(table, names)
    if not rules:
        return
    rule = F.coalesce(*(F.when(~is_kept, F.lit(name)) for name, is_kept in rules.items()))
    rows = read_version(spark, table.path, table.version)
    # Partition columns are read from the log alone.
    broken = rows.select(*(quote(name) for name in article.identity), rule.alias(_RULE)).where(
        F.col(_RULE).isNotNull()
    )
    first = broken.select(_RULE).first()
    if first is None:
        return
    alike = with_readable(broken.where(F.col(_RULE) == first[_RULE]), article.identity).take(
        MOST_TEXTS_NAMED + 1
    )
    keys = [[row[name] for name in article.identity] for row in alike]
    named = named_rows(article.identity, keys, most=MOST_TEXTS_NAMED)
    raise refusal(
        article,
        f"table '{table.path}' breaks the {first[_RULE]}, so that a copy would hold something else, or nothing, or not "
        f"take the row: {named}",
        "Give these rows another value (or NULL), or leave the column out with `columns:`.",
        keys=named.removesuffix(_MORE),
    )


def check_generated(rows: DataFrame, generated: Mapping[str, str], *, article: str, table: Location) -> None:
    """Check that generated columns (name -> expression) have the values that this session computes.

    A snapshot of rows with other values would fail halfway: Delta checks them as well.

    Raises: PublicationError naming the column and the number of rows that differ.
    """
    if not generated:
        return
    counts = rows.agg(
        *(F.count_if(differs).alias(name) for name, differs in differs_from_expression(generated).items())
    ).first()
    assert counts is not None
    for name, expression in generated.items():
        if counts[name]:
            count = f"{counts[name]} row{'' if counts[name] == 1 else 's'}"
            zone = rows.sparkSession.conf.get("spark.sql.session.timeZone")
            raise PublicationError(
                f"Article '{article}': in {count} of table '{table}', generated column '{name}' is not what its "
                f"expression ({expression}) gives in this session, whose time zone is {zone}. They were written in "
                "another time zone, perhaps, and no copy of the table would take them. Delete these rows and "
                f"insert them again, and later ones too, in a session with spark.sql.session.timeZone {zone}, "
                "or leave the column out with `columns:`.",
                article=article,
                table=str(table),
            )


def _check_computable(spark_of: Callable[[], SparkSession], article: Article, table: TableState) -> None:
    """Refuse a column generated from columns left out: its values from a subscriber could not be stored here.

    Also refuse a generated part of the key that may change when two halves of a row are merged.
    """
    names = [field["name"] for field in published_fields(article, table)]
    written = [name for name in names if name not in table.generated_columns]
    written_key = [name for name in article.identity if name in written]
    for name, expression in table.generated_columns.items():
        if name in names and not is_computable(spark_of, table, names, expression):
            raise refusal(
                article,
                f"its column '{name}' is generated from columns that `columns:` leaves out ({expression}), so what a "
                f"subscriber writes into it could not be stored in '{table.path}'",
                "Publish those columns, or leave this one out, too.",
            )
        is_divisible = name in article.identity and article.tracking is Tracking.COLUMN
        # With one such column a change keeps the key or makes another row. With two, each replica may change one of them.
        sources = [[*written_key, other] for other in written if other not in written_key] or [written_key]
        if is_divisible and not any(is_computable(spark_of, table, some, expression) for some in sources):
            raise refusal(
                article,
                f"its key column '{name}' is generated from several columns outside of the key ({expression}); with "
                "`tracking: column` two replicas may change one of these each, and the row that both come to would have "
                "another key",
                "Use `tracking: row`, or another key.",
            )


def named_rows(names: Sequence[str], rows: Sequence[Sequence[object]], *, most: int) -> str:
    """Name rows by their keys, the first ones: `id=1, n=2; id=NULL, n=3 and more`."""
    named = (
        ", ".join(f"{n}={'NULL' if v is None else v}" for n, v in zip(names, row, strict=True))
        for row in rows[:most]
    )
    return "; ".join(named) + (_MORE if len(rows) > most else "")
