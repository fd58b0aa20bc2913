"""The rules of a table for its rows beyond their types. Delta refuses the whole commit if a row breaks one.

All rules map a name to a condition that is never NULL, on columns by their own names. Engines other than Spark check only
some of them when they write.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from mergerepl.delta.commit_files import few_rows, frame_here
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.reads import read_columns
from mergerepl.delta.table import TableState
from mergerepl.frames import Column, DataFrame, F, in_process
from mergerepl.rows.images import with_readable
from mergerepl.rows.nested import holds_inside
from mergerepl.rows.sql import quote

log = logging.getLogger(__name__)

_NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME = 255
"""Bytes of a folder's name, on all usual file systems."""

_ESCAPED = r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]"
"""The characters that Spark writes as % and two digits."""


def table_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return the rules of a table for rows with these columns."""
    return value_rules(table, columns) | partition_rules(table, columns)


def copy_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return the rules of a copy of a table for these columns that rows of the table itself may break."""
    return (
        partition_rules(table, columns, of_copy=True)
        | _length_rules(table, columns)
        | declared_rules(table, columns)
    )


def value_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return a table's rules except those of its partition columns' folders."""
    # NOT NULL is first: a NULL breaks most CHECKs, too.
    rules = {
        f"NOT NULL of column '{name}'": F.col(quote(name)).isNotNull()
        for name in columns
        if (field := table.field(name)) is not None and not field["nullable"]
    }
    rules |= {
        f"CHECK constraint '{key.removeprefix(CONSTRAINT_PREFIX)}' ({text})": _is_true(text)
        for key, text in table.properties.items()
        if key.startswith(CONSTRAINT_PREFIX)
    }
    return rules | declared_rules(table, columns) | _length_rules(table, columns)


def _is_true(text: str) -> Column:
    # Delta takes a row only if the condition is true. NULL passes in SQL, but breaks the rule here.
    return F.coalesce(F.expr(text), F.lit(False))


def declared_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return NOT NULL rules inside these columns, and all invariants of the table (`delta.invariants`, the older CHECK)."""
    rules: dict[str, Column] = {}
    for field in table.fields:
        if field["name"] not in columns:
            continue
        data_type = T.StructField.fromJson({**field, "metadata": {}}).dataType
        inside = holds_inside(F.col(quote(field["name"])), data_type)
        if inside is not None:
            rules[f"NOT NULL inside of column '{field['name']}'"] = inside
    for name, text in table.invariants.items():
        rules[f"invariant of column '{name}' ({text})"] = _is_true(text)
    return rules


def partition_rules(
    table: TableState, columns: Collection[str], *, of_copy: bool = False
) -> dict[str, Column]:
    """Return the rules for texts in partition columns: Spark names folders after them and reads them from the names.

    `of_copy`: the rules of a copy of the table. Only the original may have column mapping, under which folders are not
    named after values.
    """
    has_folders = table.names_folders_after_values or (of_copy and not table.has_random_folders)
    rules: dict[str, Column] = {}
    for name in columns:
        if not table.keeps_empty_as_null(name):
            continue
        text = F.col(quote(name)).cast("string")
        conditions = {
            "no value is empty (Delta stores NULL)": text != "",
            f"no value is '{_NULL_NAME}' (Delta stores NULL)": text != _NULL_NAME,
            "every value is UTF-8 (Delta stores U+FFFD in place of other bytes)": F.is_valid_utf8(text),
        }
        if has_folders:
            folder = (re.sub(_ESCAPED, "%00", name) + "=").encode()
            length = F.octet_length(F.regexp_replace(text, _ESCAPED, "%00")) + len(folder)
            conditions |= {
                "no value has the character U+0000 (no folder's name can)": ~F.contains(text, F.lit("\0")),
                f"no value makes a folder's name of more than {_LONGEST_NAME} bytes": length <= _LONGEST_NAME,
            }
        rules |= {
            f"rule of partition column '{name}' that {rule}": F.coalesce(condition, F.lit(True))
            for rule, condition in conditions.items()
        }
    return rules


def _length_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return the lengths of char(n) and varchar(n): Spark checks them when it writes, other engines do not."""
    rules: dict[str, Column] = {}
    for name in columns:
        declared = table.declared_lengths(name)
        fits = _fits(F.col(quote(name)), T.DataType.fromDDL(declared)) if declared else None
        if fits is not None:
            rules[f"type {declared} of column '{name}'"] = F.coalesce(fits, F.lit(True))
    return rules


def _fits(value: Column, declared: T.DataType) -> Column | None:
    """Return whether every text in a value is short enough; None if the type sets no limit."""
    match declared:
        case T.CharType() | T.VarcharType():
            return F.char_length(value) <= declared.length
        case T.ArrayType():
            return _all_fit(value, declared.elementType)
        case T.MapType():
            parts = [
                _all_fit(F.map_keys(value), declared.keyType),
                _all_fit(F.map_values(value), declared.valueType),
            ]
        case T.StructType():
            parts = [_fits(value.getField(field.name), field.dataType) for field in declared]
        case _:
            return None
    rules = [part for part in parts if part is not None]
    return reduce(and_, rules) if rules else None


def _all_fit(values: Column, declared: T.DataType) -> Column | None:
    if _fits(F.lit(None), declared) is None:
        return None

    def fits(value: Column) -> Column:
        rule = _fits(value, declared)
        assert rule is not None
        return rule

    return F.forall(values, fits)


GUID_PATTERN = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""Pattern of a GUID in lower case."""

NULL, SHARED, NO_GUID = "null", "shared", "no GUID"
_REASON, _ROWS = "__mr_reason", "__mr_rows"


class BadKey(NamedTuple):
    """A key that does not identify one row, as text, and the reason."""

    reason: str
    values: tuple[str, ...]


def bad_keys_of(
    spark_of: Callable[[], SparkSession],
    table: TableState,
    key: Sequence[str],
    *,
    most: int,
    is_guid: bool = False,
) -> list[BadKey]:
    """Return up to `most` keys that fail to identify one row of a table: in process if it is small, else on Spark."""
    try:
        keys = few_rows(table, key)
    except NeedsSparkError as error:
        log.info("Spark checks the keys of '%s': %s", table.path, error)
        rows = read_columns(spark_of(), table.path, table.version, list(key))
        return bad_keys(rows, key, most=most, is_guid=is_guid)
    with in_process():
        return bad_keys(frame_here(keys, table), key, most=most, is_guid=is_guid)


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
