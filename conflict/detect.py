"""Distinguish real conflicts from changes that merge.

Merge session step: after get_metadata, before resolve, for the rows changed at both sides (verdict
candidate). Pure. Rules: design section 5, merge_replication.md 2.4, 3.2.
"""

from collections.abc import Callable

from mergerepl.changes import (
    ARTICLE,
    BORN_GENERATION,
    CLASHING_COLUMNS,
    COLUMN_TRACKING,
    COLV1,
    CONFLICT_COLUMNS,
    DELETED,
    FIELDS,
    FLOOR,
    FRESH_AFTER_OF,
    LINEAGE,
    NAMED_FIELDS,
    NAMES,
    OTHER_SIDE,
    PUBLISHER,
    ROW,
    SUBSCRIBER,
    UNKNOWN,
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
FIELD = "field"
PUBLISHER_CHANGED = "publisher_changed"
SUBSCRIBER_CHANGED = "subscriber_changed"
DIFFERENT = "different"
PUBLISHER_SAYS = "publisher_says"
SUBSCRIBER_SAYS = "subscriber_says"
"""The latter two only where a side may say nothing of a field (`is_any_unknown`): then it changed nothing there either."""

_ARRAY_OF = {
    name: f"{SIDES}_{name}"
    for name in (PUBLISHER_SAYS, SUBSCRIBER_SAYS, PUBLISHER_CHANGED, SUBSCRIBER_CHANGED, DIFFERENT)
}
"""Field of `sides` -> the column that holds its values where fields are written out."""


def detect(pairs: DataFrame, fields: Fields = INTERPRETED, *, is_any_unknown: bool = False) -> DataFrame:
    """Return the pairs with each candidate decided: verdict merge or conflict, conflict_columns and sides.

    Two deletes, or two equal rows, do not conflict. An update against a delete does. Two updates conflict, row-tracked or
    with `whole_rows`, if the rows differ; column-tracked, if one column was changed at both sides to different values, or
    to equal ones where the article's resolver counts both changes.

    Args:
        pairs: PAIRS with `article`, and with `fields`, or `row` where fields are written out.
        fields: The way to iterate over the fields of a row.
        is_any_unknown: Whether a row may say nothing of a field: only fields are compared of which both sides say
            something.

    Returns: PAIRS, sides, conflict_columns.
    """
    is_candidate, conflict_columns, verdict = _detection(fields, is_any_unknown=is_any_unknown)
    if fields.is_written_out:
        pairs = pairs.withColumns(_arrays(fields, is_any_unknown=is_any_unknown))
    return (
        pairs.withColumn(SIDES, F.when(is_candidate, _sides(fields, is_any_unknown=is_any_unknown)))
        .withColumn(CONFLICT_COLUMNS, conflict_columns)
        .withColumn(VERDICT, verdict)
    )


def is_conflict() -> Column:
    """True if a detected row is a conflict."""
    return F.col(VERDICT) == Verdict.CONFLICT.value


@cached
def _detection(fields: Fields, *, is_any_unknown: bool) -> tuple[Column, Column, Column]:
    publisher_deleted, subscriber_deleted = F.col(f"{PUBLISHER}.{DELETED}"), F.col(f"{SUBSCRIBER}.{DELETED}")
    both_live = ~publisher_deleted & ~subscriber_deleted
    clashing = fields.present(
        sides(fields, is_any_unknown=is_any_unknown),
        lambda side: F.when(_clashes(side, is_any_unknown=is_any_unknown), side[NAME]),
    )
    is_candidate = F.col(VERDICT) == Verdict.CANDIDATE.value
    has_conflict = (publisher_deleted != subscriber_deleted) | (both_live & (F.size(CONFLICT_COLUMNS) > 0))
    verdict = F.when(
        is_candidate, F.when(has_conflict, Verdict.CONFLICT.value).otherwise(Verdict.MERGE.value)
    ).otherwise(F.col(VERDICT))
    return is_candidate, F.when(is_candidate & both_live, clashing).otherwise(no_names()), verdict


def _clashes(side: Struct, *, is_any_unknown: bool) -> Column:
    changed_by_both = side[PUBLISHER_CHANGED] & side[SUBSCRIBER_CHANGED]
    is_asked = F.col(f"{ARTICLE}.{WHOLE_ROWS}") | changed_by_both
    if is_any_unknown:
        is_asked &= both_say(side)
    clashes_if_equal = F.array_contains(F.col(f"{ARTICLE}.{CLASHING_COLUMNS}"), side[NAME]) & changed_by_both
    return side[NAME].isNotNull() & ((side[DIFFERENT] & is_asked) | clashes_if_equal)


def both_say(side: Struct) -> Column:
    """True if both sides say something of a field."""
    return side[PUBLISHER_SAYS] & side[SUBSCRIBER_SAYS]


def sides(fields: Fields, *, is_any_unknown: bool) -> Structs:
    """Return `sides`; where fields are written out, as an array for each field of its structs.

    The code that Spark makes for an array of structs is several times as long.
    """
    if not fields.is_written_out:
        return F.col(SIDES)
    named = {NAME: F.col(f"{ARTICLE}.{NAMES}"), FIELD: F.col(f"{ARTICLE}.{NAMED_FIELDS}")}
    return named | {name: F.col(_ARRAY_OF[name]) for name in _facts_of(is_any_unknown)}


@cached
def _sides(fields: Fields, *, is_any_unknown: bool) -> Column:
    if fields.is_written_out:
        names = NAME, FIELD, *_facts_of(is_any_unknown)
        return fields.each_struct(
            sides(fields, is_any_unknown=is_any_unknown),
            lambda side: F.struct(*(side[name].alias(name) for name in names)),
        )
    facts = _facts(fields, is_any_unknown=is_any_unknown)
    return fields.each(
        F.col(f"{ARTICLE}.{NAMED_FIELDS}"),
        lambda field, number: F.struct(
            F.get(F.col(f"{ARTICLE}.{NAMES}"), number).alias(NAME),
            field.alias(FIELD),
            *(fact(field, number).alias(each) for each, fact in facts.items()),
        ),
    )


@cached
def _arrays(fields: Fields, *, is_any_unknown: bool) -> dict[str, Column]:
    named = F.col(f"{ARTICLE}.{NAMED_FIELDS}")
    facts = _facts(fields, is_any_unknown=is_any_unknown)
    arrays = {_ARRAY_OF[each]: fields.each(named, fact) for each, fact in facts.items()}
    # Values that are equal for all rows are constants to Spark only if they do not depend on the verdict.
    is_candidate = F.col(VERDICT) == Verdict.CANDIDATE.value
    return arrays | {_ARRAY_OF[DIFFERENT]: F.when(is_candidate, arrays[_ARRAY_OF[DIFFERENT]])}


def _facts_of(is_any_unknown: bool) -> list[str]:
    return [name for name in _ARRAY_OF if is_any_unknown or name not in (PUBLISHER_SAYS, SUBSCRIBER_SAYS)]


def _facts(fields: Fields, *, is_any_unknown: bool) -> dict[str, Callable[[Column, Column | int], Column]]:
    """Return, for each fact of `sides`, the function that computes it from a field and its place."""

    def is_same(number: Column | int) -> Column:
        if fields.written is None:
            one, other = (F.get(F.col(f"{each}.{FIELDS}"), number) for each in (PUBLISHER, SUBSCRIBER))
            return one.eqNullSafe(other)
        assert isinstance(number, int)
        field = fields.written.fields[number]
        one, other = (F.col(f"{each}.{ROW}.{field.name}") for each in (PUBLISHER, SUBSCRIBER))
        return same_value(one, other, field.dataType)

    def changed(side: str, field: Column) -> Column:
        return _changed(side, field) & _says(side, field) if is_any_unknown else _changed(side, field)

    facts: dict[str, Callable[[Column, Column | int], Column]] = {
        PUBLISHER_SAYS: lambda field, _: _says(PUBLISHER, field),
        SUBSCRIBER_SAYS: lambda field, _: _says(SUBSCRIBER, field),
        PUBLISHER_CHANGED: lambda field, _: changed(PUBLISHER, field),
        SUBSCRIBER_CHANGED: lambda field, _: changed(SUBSCRIBER, field),
        DIFFERENT: lambda _, number: ~is_same(number),
    }
    return {name: facts[name] for name in _facts_of(is_any_unknown)}


def _says(side: str, field: Column) -> Column:
    """True if a side's row says something of a field."""
    return ~F.coalesce(F.array_contains(F.col(f"{side}.{UNKNOWN}"), field), F.lit(False))


def _changed(side: str, field: Column) -> Column:
    """True if a side changed a field: its last change there is not part of the other side's lineage.

    A row-tracked article has one answer for the whole row: both sides changed it. A version that was made while the
    article was row-tracked has no colv1: it counts as changed in every column. So does a row that the other side's new
    row of its key does not continue.
    """
    # A side that has the publication's row has its columns as well, until they are changed.
    is_published = lineage.version_of(F.col(f"{side}.{LINEAGE}"), F.lit(PUBLICATION)) > 0
    published = F.struct(F.lit(PUBLICATION).alias("nickname"), F.lit(1).cast("bigint").alias("version"))
    entry = F.try_element_at(F.col(f"{side}.{COLV1}"), field)
    version = F.coalesce(entry, F.when(is_published, published))
    known = F.col(f"{OTHER_SIDE[side]}.{LINEAGE}")
    other = OTHER_SIDE[side]
    born = F.col(f"{other}.{BORN_GENERATION}")
    fresh_after, floor = (parameter_column(f"{ARTICLE}.{name}") for name in (FRESH_AFTER_OF[other], FLOOR))
    is_covered = lineage.is_covered(version, known, floor=lineage.known_floor(born, fresh_after, floor))
    deleted = (F.col(f"{each}.{DELETED}") for each in (other, side))
    is_known = is_covered & ~lineage.is_another_row(born, fresh_after, *deleted)
    is_by_column = F.col(f"{side}.{COLV1}").isNotNull() | F.col(f"{side}.{DELETED}")
    return ~(F.col(f"{ARTICLE}.{COLUMN_TRACKING}") & is_by_column & is_known)
