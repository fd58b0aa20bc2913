"""Distinguish real conflicts from changes that merge.

Merge session step: after get_metadata, before resolve, for the rows changed at both sides (verdict
candidate). Pure. Rules: design section 5, merge_replication.md 2.4, 3.2.
"""

from collections.abc import Callable

from mergerepl.changes import (
    ARTICLE,
    CLASHING_COLUMNS,
    COLUMN_TRACKING,
    COLV1,
    CONFLICT_COLUMNS,
    DELETED,
    FIELDS,
    FLOOR,
    LINEAGE,
    NAMES,
    OTHER_SIDE,
    PUBLISHER,
    ROW,
    SUBSCRIBER,
    VERDICT,
    WHOLE_ROWS,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import no_names, same_value
from mergerepl.rows.lineage_value import PUBLICATION
from mergerepl.rows.nested import INTERPRETED, Fields, Struct, Structs
from mergerepl.spark.expression_cost import parameter_column

SIDES = "sides"
"""By field of a candidate: its column (NULL for the key), the sides that changed it, and whether the values differ."""

NAME = "name"
PUBLISHER_CHANGED = "publisher_changed"
SUBSCRIBER_CHANGED = "subscriber_changed"
DIFFERENT = "different"

_ARRAY_OF = {name: f"{SIDES}_{name}" for name in (PUBLISHER_CHANGED, SUBSCRIBER_CHANGED, DIFFERENT)}
"""Field of `sides` -> the column that holds its values where fields are written out."""


def detect(pairs: DataFrame, fields: Fields = INTERPRETED) -> DataFrame:
    """Return the pairs with each candidate decided: verdict merge or conflict, conflict_columns and sides.

    Two deletes, or two equal rows, do not conflict. An update against a delete does. Two updates conflict, row-tracked or
    with `whole_rows`, if the rows differ; column-tracked, if one column was changed at both sides to different values, or
    to equal ones where the article's resolver counts both changes.

    Args:
        pairs: PAIRS with `article`, and with `fields`, or `row` where fields are written out.
        fields: The way to iterate over the fields of a row.

    Returns: PAIRS, sides, conflict_columns.
    """
    is_candidate, conflict_columns, verdict = _detection(fields)
    if fields.is_written_out:
        pairs = pairs.withColumns(_arrays(fields))
    return (
        pairs.withColumn(SIDES, F.when(is_candidate, _sides(fields)))
        .withColumn(CONFLICT_COLUMNS, conflict_columns)
        .withColumn(VERDICT, verdict)
    )


def is_conflict() -> Column:
    """True if a detected row is a conflict."""
    return F.col(VERDICT) == Verdict.CONFLICT.value


@cached
def _detection(fields: Fields) -> tuple[Column, Column, Column]:
    publisher_deleted, subscriber_deleted = F.col(f"{PUBLISHER}.{DELETED}"), F.col(f"{SUBSCRIBER}.{DELETED}")
    both_live = ~publisher_deleted & ~subscriber_deleted
    clashing = fields.present(sides(fields), lambda side: F.when(_clashes(side), side[NAME]))
    is_candidate = F.col(VERDICT) == Verdict.CANDIDATE.value
    has_conflict = (publisher_deleted != subscriber_deleted) | (both_live & (F.size(CONFLICT_COLUMNS) > 0))
    verdict = F.when(
        is_candidate, F.when(has_conflict, Verdict.CONFLICT.value).otherwise(Verdict.MERGE.value)
    ).otherwise(F.col(VERDICT))
    return is_candidate, F.when(is_candidate & both_live, clashing).otherwise(no_names()), verdict


def _clashes(side: Struct) -> Column:
    changed_by_both = side[PUBLISHER_CHANGED] & side[SUBSCRIBER_CHANGED]
    is_asked = F.col(f"{ARTICLE}.{WHOLE_ROWS}") | changed_by_both
    clashes_if_equal = F.array_contains(F.col(f"{ARTICLE}.{CLASHING_COLUMNS}"), side[NAME]) & changed_by_both
    return side[NAME].isNotNull() & ((side[DIFFERENT] & is_asked) | clashes_if_equal)


def sides(fields: Fields) -> Structs:
    """Return `sides`; where fields are written out, as an array for each field of its structs.

    The code that Spark makes for an array of structs is several times as long.
    """
    if not fields.is_written_out:
        return F.col(SIDES)
    return {NAME: F.col(f"{ARTICLE}.{NAMES}")} | {name: F.col(array) for name, array in _ARRAY_OF.items()}


@cached
def _sides(fields: Fields) -> Column:
    if fields.is_written_out:
        return fields.each_struct(
            sides(fields), lambda side: F.struct(*(side[name].alias(name) for name in (NAME, *_ARRAY_OF)))
        )
    facts = _facts(fields)
    return fields.each(
        F.col(f"{ARTICLE}.{NAMES}"),
        lambda name, number: F.struct(
            name.alias(NAME), *(fact(name, number).alias(each) for each, fact in facts.items())
        ),
    )


@cached
def _arrays(fields: Fields) -> dict[str, Column]:
    names = F.col(f"{ARTICLE}.{NAMES}")
    arrays = {_ARRAY_OF[each]: fields.each(names, fact) for each, fact in _facts(fields).items()}
    # Values that are equal for all rows are constants to Spark only if they do not depend on the verdict.
    is_candidate = F.col(VERDICT) == Verdict.CANDIDATE.value
    return arrays | {_ARRAY_OF[DIFFERENT]: F.when(is_candidate, arrays[_ARRAY_OF[DIFFERENT]])}


def _facts(fields: Fields) -> dict[str, Callable[[Column, Column | int], Column]]:
    """Return, for each field of `sides`, the function that computes it from the name and number of a field."""

    def is_same(number: Column | int) -> Column:
        if fields.written is None:
            one, other = (F.get(F.col(f"{each}.{FIELDS}"), number) for each in (PUBLISHER, SUBSCRIBER))
            return one.eqNullSafe(other)
        assert isinstance(number, int)
        field = fields.written.fields[number]
        one, other = (F.col(f"{each}.{ROW}.{field.name}") for each in (PUBLISHER, SUBSCRIBER))
        return same_value(one, other, field.dataType)

    return {
        PUBLISHER_CHANGED: lambda name, _: _changed(PUBLISHER, name),
        SUBSCRIBER_CHANGED: lambda name, _: _changed(SUBSCRIBER, name),
        DIFFERENT: lambda _, number: ~is_same(number),
    }


def _changed(side: str, column: Column) -> Column:
    """True if a side changed a column: its last change there is not part of the other side's lineage.

    A row-tracked article has one answer for the whole row: both sides changed it.
    """
    # A side that has the publication's row has its columns as well, until they are changed.
    is_published = lineage.version_of(F.col(f"{side}.{LINEAGE}"), F.lit(PUBLICATION)) > 0
    published = F.struct(F.lit(PUBLICATION).alias("nickname"), F.lit(1).cast("bigint").alias("version"))
    entry = F.try_element_at(F.col(f"{side}.{COLV1}"), column)
    version = F.coalesce(entry, F.when(is_published, published))
    known = F.col(f"{OTHER_SIDE[side]}.{LINEAGE}")
    is_known = lineage.is_covered(version, known, floor=parameter_column(f"{ARTICLE}.{FLOOR}"))
    return ~(F.col(f"{ARTICLE}.{COLUMN_TRACKING}") & is_known)
