"""Merge two versions of a row column by column: the side whose value each field gets, and the last writer of each.

The decision is a mask over encoded fields; `resolved_rows` picks the typed values by it. Pure. Rules: decisions/0005.
"""

from functools import reduce
from operator import and_

from pyspark.sql.types import StructField, StructType

from conflict.detect import (
    DIFFERENT,
    FIELD,
    NAME,
    PUBLISHER_CHANGED,
    PUBLISHER_SAYS,
    SUBSCRIBER_CHANGED,
    SUBSCRIBER_SAYS,
    both_say,
    is_conflict,
    sides,
)
from conflict.resolvers.adapter import IS_MADE, VALUE, one_deleted
from mergerepl.changes import (
    ARTICLE,
    BY_COLUMNS,
    COLUMN_TRACKING,
    COLV1,
    DELETED,
    LOSER,
    LOSER_COLUMNS,
    MADE,
    MADE_COLUMNS,
    OF_SUBSCRIBER,
    OF_TWO,
    PUBLISHER,
    PUBLISHER_WINS,
    RESOLVED_COLUMNS,
    ROW,
    SUBSCRIBER,
    VERDICT,
    Verdict,
    made_column,
)
from mergerepl.frames import Column, DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import image_type
from mergerepl.rows.nested import Fields, Struct
from mergerepl.rows.sql import free_name

PUBLISHER_ROW = "publisher_row"
SUBSCRIBER_ROW = "subscriber_row"
"""The typed rows of both sides, for `resolved_rows`; NULL where a side has none."""


def of_subscriber(
    takes_columns: Column, takes_made: Column | None, fields: Fields, *, is_any_unknown: bool
) -> Column:
    """True by field if its value is the subscriber's.

    Where columns are taken, the value is that of the side that changed it, a clashing one the winner's; else all values
    are the winner's. `takes_made`, if a rule makes values: whether the columns of such a rule are taken like that in any
    case. A change of one side alone does not belong to a sum, and survives even if its row loses.

    A field of which the winner says nothing is the loser's (`is_any_unknown`); where neither says anything, it stays as
    the publisher has it. Where the publisher's row wins over a delete, it stays whole.
    """
    publisher_prevails = F.coalesce(PUBLISHER_WINS, F.lit(True))

    def is_taken(side: Struct) -> Column:
        prevails = side[SUBSCRIBER_CHANGED] & ~(side[PUBLISHER_CHANGED] & publisher_prevails)
        is_by_column = (
            takes_columns if takes_made is None else takes_columns | (takes_made & _is_of_maker(side))
        )
        taken = F.when(is_by_column, side[NAME].isNotNull() & prevails).otherwise(~F.col(PUBLISHER_WINS))
        if not is_any_unknown:
            return taken
        is_whole = one_deleted() & publisher_prevails & ~F.col(f"{PUBLISHER}.{DELETED}")
        by_word = F.when(both_say(side), taken).otherwise(side[SUBSCRIBER_SAYS] & ~side[PUBLISHER_SAYS])
        return F.when(is_whole, False).otherwise(by_word)

    return fields.each_struct(sides(fields, is_any_unknown=is_any_unknown), is_taken)


def _is_of_maker(side: Struct) -> Column:
    return F.coalesce(F.array_contains(F.col(f"{ARTICLE}.{MADE_COLUMNS}"), side[NAME]), F.lit(False))


def is_changed_for(side: str, *, is_any_made: bool, is_any_unknown: bool, fields: Fields) -> Column:
    """True if a decided row differs from a side's row: it gets the other side's value, or a computed one."""

    def differs(each: Struct, is_of_subscriber: Column) -> Column:
        from_other = (is_of_subscriber if side == PUBLISHER else ~is_of_subscriber) & each[DIFFERENT]
        if not is_any_made:
            return from_other
        return F.coalesce(F.try_element_at(MADE, each[NAME])[side], from_other)

    return fields.any_struct(sides(fields, is_any_unknown=is_any_unknown), F.col(OF_SUBSCRIBER), differs)


def merged_colv(stamp: Column, *, is_any_made: bool, is_any_unknown: bool, fields: Fields) -> Column:
    """Return colv1 of both sides joined: per column the entry of the side that changed it; the publisher's if both did,
    since other subscribers may know it; the later one if neither did.

    In a conflict a column whose loser's change is overridden gets the stamp of the resolution instead, and so does a made
    value that differs from both sides' values. A column that the loser did not change keeps its entry: otherwise an edit
    made with knowledge of it would conflict with a change that never happened.
    """

    def entry(side: Struct) -> Column:
        at_publisher, at_subscriber = (
            F.try_element_at(F.col(f"{each}.{COLV1}"), side[FIELD]) for each in (PUBLISHER, SUBSCRIBER)
        )
        by_publisher, by_subscriber = side[PUBLISHER_CHANGED], side[SUBSCRIBER_CHANGED]
        merged = (
            F.when(by_subscriber & ~by_publisher, at_subscriber)
            .when(by_publisher, at_publisher)
            .otherwise(_later(at_publisher, at_subscriber))
        )
        by_loser = F.when(F.col(PUBLISHER_WINS), by_subscriber).otherwise(by_publisher)
        is_by_column = F.col(f"{ARTICLE}.{BY_COLUMNS}")
        if is_any_made:
            is_by_column = is_by_column | _is_of_maker(side)
        is_overridden = (
            F.when(is_by_column, by_publisher & by_subscriber).otherwise(by_loser) & side[DIFFERENT]
        )
        if is_any_unknown:
            is_overridden &= both_say(side)
        if is_any_made:
            made = F.try_element_at(MADE, side[NAME])
            is_overridden = F.coalesce(made[PUBLISHER] | made[SUBSCRIBER], is_overridden)
        is_stamped = is_conflict() & is_overridden
        last = F.when(is_stamped, stamp).otherwise(merged)
        has_entry = side[NAME].isNotNull() & last.isNotNull()
        return F.when(has_entry, F.struct(side[FIELD].alias("key"), last.alias("value")))

    entries = fields.present(sides(fields, is_any_unknown=is_any_unknown), entry)
    # On top of a version without colv1 every column counts as changed.
    by_column = (F.col(f"{each}.{COLV1}").isNotNull() for each in (PUBLISHER, SUBSCRIBER))
    return F.when(reduce(and_, by_column, F.col(f"{ARTICLE}.{COLUMN_TRACKING}")), F.map_from_entries(entries))


def _later(one: Column, other: Column) -> Column:
    """Return the entry with the higher (version, nickname); a missing one is lower than any."""
    one_is_later = (one["version"] > other["version"]) | (
        (one["version"] == other["version"]) & (one["nickname"] >= other["nickname"])
    )
    return F.when(other.isNull() | one_is_later, one).otherwise(other)


def resolved_rows(decided: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return RESOLVED of one article: the decision with the values that it chose, generated columns computed from them.

    Reads: DECIDED of the article, with its made column if its resolver makes values; publisher_row, subscriber_row. The
    loser may have its row already.
    """
    image = image_type(decided, PUBLISHER_ROW)
    is_upload = F.col(VERDICT) == Verdict.UPLOAD.value
    name = made_column(article.nickname)
    made_fields = image_type(decided, name).names if name in decided.columns else ()
    number_of = {field: number for number, field in enumerate(article.written_fields)}

    def value(field: StructField) -> Column:
        number = number_of.get(field.name)
        mask = F.lit(None).cast("boolean") if number is None else F.get(OF_SUBSCRIBER, F.lit(number))
        of_subscriber_ = F.coalesce(mask, is_upload)
        at_publisher, at_subscriber = (
            F.col(f"{row}.{field.name}") for row in (PUBLISHER_ROW, SUBSCRIBER_ROW)
        )
        one_of_both = F.when(of_subscriber_, at_subscriber).otherwise(at_publisher)
        if field.name not in made_fields:
            return one_of_both.alias(field.name)
        made = F.col(f"{made_column(article.nickname)}.{field.name}")
        return F.when(made[IS_MADE], made[VALUE]).otherwise(one_of_both).alias(field.name)

    rows = decided.withColumn(ROW, F.struct(*(value(field) for field in image)))
    if ROW not in image_type(decided, LOSER).names:
        losing = F.when(F.col(PUBLISHER_WINS), F.col(SUBSCRIBER_ROW)).otherwise(F.col(PUBLISHER_ROW))
        loser = F.struct(*(F.col(f"{LOSER}.{each}") for each in LOSER_COLUMNS), losing.alias(ROW))
        rows = rows.withColumn(LOSER, F.when(F.col(LOSER).isNotNull(), loser))
    if article.generated:
        rows = with_generated(rows, article, image, F.col(VERDICT).isin(*OF_TWO))
    return rows.select(*RESOLVED_COLUMNS)


def with_generated(
    rows: DataFrame, article: PublishedArticle, image: StructType, is_composed: Column
) -> DataFrame:
    """Return the rows with generated columns as Delta will compute them: a row that is composed of parts has values that
    neither side sent.
    """
    state, composed = free_name("state", article.columns), free_name("is_composed", rows.columns)
    by_name = (
        F.col(f"{ROW}.{field}").alias(name)
        for name, field in zip(article.columns, article.fields, strict=True)
    )
    named = rows.withColumn(composed, is_composed).select(F.struct("*").alias(state), *by_name)
    # A key stays: it is the row's identity, and equal in both halves.
    text_of = {
        article.fields[article.columns.index(name)]: text
        for name, text in article.generated
        if name not in article.identity
    }

    def value(field: StructField) -> Column:
        sent = F.col(f"{state}.{ROW}.{field.name}")
        if field.name not in text_of:
            return sent
        computed = F.expr(text_of[field.name]).cast(field.dataType)
        return F.when(F.col(f"{state}.{composed}"), computed).otherwise(sent)

    row = F.struct(*(value(field).alias(field.name) for field in image))
    values = {name: F.col(f"{state}.{name}") for name in rows.columns} | {ROW: row}
    return named.select(*(value.alias(name) for name, value in values.items()))
