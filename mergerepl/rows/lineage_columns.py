"""Lineage and colv1 as Spark column expressions, by the rules of `lineage_value`; a property test ties the two."""

from collections.abc import Iterable
from functools import partial, reduce
from operator import and_

from mergerepl.frames import Column, F
from mergerepl.rows.lineage_value import LATE_STRIDE, PUBLICATION, PUBLISHED
from mergerepl.systables.contents import COLV1_TYPE, LINEAGE_TYPE

_WRITTEN_OUT = 4
"""The number of entries written out for many rows; a longer lineage is interpreted (`rows.nested.Fields`)."""


def empty_lineage() -> Column:
    """Return the lineage of a row that never existed, from which an insert starts."""
    return F.create_map().cast(LINEAGE_TYPE)


def published_lineage() -> Column:
    """Return the lineage of a row that exists without a recorded change."""
    return F.create_map(F.lit(PUBLICATION), F.lit(PUBLISHED[PUBLICATION])).cast(LINEAGE_TYPE)


def empty_colv() -> Column:
    """Return the colv1 of a row without a column change since the snapshot."""
    return F.create_map().cast(COLV1_TYPE)


def no_colv() -> Column:
    """Return the colv1 of every row of a row-tracked article."""
    return F.lit(None).cast(COLV1_TYPE)


def version_of(lineage: Column, nickname: Column) -> Column:
    """Return the version a lineage holds for a nickname, 0 if none."""
    return F.coalesce(F.try_element_at(lineage, nickname), F.lit(0).cast("bigint"))


def replica_nickname(writer: Column) -> Column:
    """Return the replica of a lineage entry."""
    return F.abs(writer) % LATE_STRIDE


def next_version(lineage: Column, *, floor: int | Column) -> Column:
    """Return the version of one more change: above every version in the lineage and the floor."""
    highest = F.coalesce(F.array_max(F.map_values(lineage)), F.lit(0).cast("bigint"))
    return F.greatest(highest, F.lit(floor).cast("bigint")) + F.lit(1)


def with_version(
    lineage: Column, nickname: Column, version: Column, *, is_written_out: bool = False
) -> Column:
    """Return the lineage with one entry set."""
    if is_written_out:
        nicknames, versions = F.map_keys(lineage), F.map_values(lineage)
        place = F.array_position(nicknames, nickname).cast("int")
        before = F.slice(versions, 1, F.greatest(place - 1, F.lit(0)))
        after = F.slice(versions, place + 1, F.size(versions))
        of_others = F.when(place > 0, F.concat(before, after)).otherwise(versions)
        return F.map_from_arrays(
            F.array_append(F.array_remove(nicknames, nickname), nickname), F.array_append(of_others, version)
        )
    others = F.map_filter(lineage, lambda key, _: key != nickname)
    return F.map_concat(others, F.create_map(nickname, version))


def covers(known: Column, other: Column, *, floor: int | Column, is_written_out: bool = False) -> Column:
    """Return whether `known` includes every change of `other`; versions up to the floor count as known."""

    def is_known(nickname: Column, version: Column) -> Column:
        return version <= F.greatest(version_of(known, nickname), F.lit(floor).cast("bigint"))

    by_entry = F.forall(F.map_entries(other), lambda entry: is_known(entry["key"], entry["value"]))
    if not is_written_out:
        return by_entry
    nicknames, versions = F.map_keys(other), F.map_values(other)
    known_or_none = [
        F.coalesce(is_known(F.get(nicknames, i), F.get(versions, i)), F.lit(True))
        for i in range(_WRITTEN_OUT)
    ]
    return F.when(F.size(other) > _WRITTEN_OUT, by_entry).otherwise(reduce(and_, known_or_none))


def is_fresh(born: Column, fresh_after: Column) -> Column:
    """True if a row with this `born_generation` (NULL: an older row) is new to all other replicas."""
    return F.coalesce(born > fresh_after, F.lit(False))


def known_floor(born: Column, fresh_after: Column, floor: Column) -> Column:
    """Return the version up to which a replica knows all changes of a row of its own.

    A fresh row says nothing of other rows of its key, which the replica may not have had.
    """
    return F.when(is_fresh(born, fresh_after), 0).otherwise(floor)


def is_another_row(born: Column, fresh_after: Column, deleted: Column, other_deleted: Column) -> Column:
    """True if a live row is new to the other side, which has a live row of that key: it is not a version of that row.

    Its lineage may still include the other one's: a replica numbers its versions of both. (decisions/0155)
    """
    return is_fresh(born, fresh_after) & ~deleted & ~other_deleted


def writers(one: Column, other: Column) -> Column:
    """Return the nicknames in two lineages, each once."""
    return F.array_union(F.map_keys(one), F.map_keys(other))


def merge(one: Column, other: Column) -> Column:
    """Return the lineage that includes the changes of both."""
    return F.map_zip_with(one, other, lambda _, version, of_other: F.greatest(version, of_other))


def later_version(one: Column, other: Column, nickname: Column) -> Column:
    """Return the later version that two lineages hold for a nickname, or NULL."""
    return F.greatest(*(F.try_element_at(each, nickname) for each in (one, other)))


def versions_of(one: Column, other: Column, nicknames: Column) -> Column:
    """Return `later_version` of each of some nicknames.

    Compiled code reads the nicknames once for each entry, so they have to be a column.
    """
    later = partial(later_version, one, other)
    entries = (later(F.get(nicknames, i)) for i in range(_WRITTEN_OUT))
    written_out = F.slice(F.array(*entries), F.lit(1), F.size(nicknames))
    is_longer = F.size(nicknames) > _WRITTEN_OUT
    return F.when(is_longer, F.transform(nicknames, later)).otherwise(written_out)


def of_entries(nicknames: Column, versions: Column, nickname: Column, version: Column) -> Column:
    """Return the lineage of these entries plus one more, if its version is not NULL."""
    has_more = version.isNotNull()
    return F.map_from_arrays(
        F.when(has_more, F.array_append(nicknames, nickname)).otherwise(nicknames),
        F.when(has_more, F.array_append(versions, version)).otherwise(versions),
    )


def is_covered(column_version: Column, known: Column, *, floor: int | Column) -> Column:
    """Return whether the last change of a column (struct nickname, version; NULL: none) is included in a lineage."""
    included = column_version["version"] <= F.greatest(
        version_of(known, column_version["nickname"]), F.lit(floor).cast("bigint")
    )
    return F.coalesce(included, F.lit(True))


def field_names(fields: Iterable[str]) -> Column:
    """Return fields of colv1 as an array."""
    return F.array(*(F.lit(field) for field in fields)).cast("array<string>")


def fields_to_stamp(is_recorded: Column, colv: Column, changed: Column, every: Iterable[str]) -> Column:
    """Return the fields of colv1 that a change sets: `changed`, or all on top of a version that has no colv1.

    Such a version (`is_recorded`) was made under row tracking. (decisions/0133)
    """
    return F.when(is_recorded & colv.isNull(), field_names(every)).otherwise(changed)


def with_columns_changed(colv: Column, changed: Column, nickname: Column, version: Column) -> Column:
    """Return colv1 with the columns of the array `changed` set to (nickname, version)."""
    kept = F.map_filter(colv, lambda column, _: ~F.array_contains(changed, column))
    entry = F.struct(nickname.cast("int").alias("nickname"), version.cast("bigint").alias("version"))
    return F.map_concat(kept, F.map_from_arrays(changed, F.transform(changed, lambda _: entry)))
