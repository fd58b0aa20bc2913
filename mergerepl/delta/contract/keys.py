"""Whether a key identifies a table's rows: it is never NULL, no two rows share it, GUIDs are well-formed."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.rows.images import with_readable
from mergerepl.rows.sql import quote

GUID_PATTERN = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""Pattern of a GUID in lower case."""

NULL, SHARED, NO_GUID = "null", "shared", "no GUID"
_REASON, _ROWS = "__mr_reason", "__mr_rows"


class BadKey(NamedTuple):
    """A key that does not identify one row, as text, and the reason."""

    reason: str
    values: tuple[str, ...]


def bad_keys(
    rows: DataFrame,
    key: Sequence[str],
    *,
    most: int,
    is_guid: bool = False,
    also: Mapping[str, Column] | None = None,
) -> list[BadKey]:
    """Return up to `most` keys that fail to identify one row, in one scan.

    `also` are further reasons, tested last: aggregates over a key's rows that are true for a bad key.
    """
    names = [f"k{i}" for i in range(len(key))]
    columns = [F.col(quote(name)) for name in key]
    if is_guid:
        # GUIDs are compared without regard to case.
        columns = [F.lower(columns[0])]
    others = {f"__mr_also{i}": each for i, each in enumerate((also or {}).items())}
    counted = rows.groupBy(*(column.alias(name) for column, name in zip(columns, names, strict=True))).agg(
        F.count(F.lit(1)).alias(_ROWS), *(is_bad.alias(name) for name, (_, is_bad) in others.items())
    )
    has_null = reduce(or_, (F.col(name).isNull() for name in names))
    reason = F.when(has_null, NULL).when(F.col(_ROWS) > 1, SHARED)
    if is_guid:
        reason = reason.when(~F.col(names[0]).rlike(GUID_PATTERN), NO_GUID)
    for name, (other, _) in others.items():
        reason = reason.when(F.col(name), other)
    bad = counted.select(*names, reason.alias(_REASON)).where(F.col(_REASON).isNotNull())
    return [
        BadKey(row[_REASON], tuple("NULL" if row[name] is None else str(row[name]) for name in names))
        for row in with_readable(bad, names).take(most)
    ]
