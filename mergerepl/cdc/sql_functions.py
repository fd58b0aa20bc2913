"""The query functions of capture instances as table functions of SQL, in a Spark session of the user's.

`fn_cdc_get_all_changes_<instance>` and `fn_cdc_get_net_changes_<instance>` are SQL text: no Python runs in them. A query
reads the tables as they are, so each function checks its range twice, before and after the change table: whichever Spark
opens first, one check has a gate that is no newer than the rows, and one a low end that is no older.
"""

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import SparkSession

from mergerepl.cdc.change_rows import ALL_WITH_MASK, ALL_WITH_MERGE, MERGE, NET_OPTIONS, mask_chunks
from mergerepl.cdc.queries import ALL_OPTIONS, ALL_UPDATE_OLD
from mergerepl.cdc.tables import RANGE_ERRORS, CdcTables, range_error
from mergerepl.delta.types import json_of
from mergerepl.model.cdc import CapturedColumn
from mergerepl.rows.sql import literal, quote, table_text
from mergerepl.systables.cdc import (
    CHANGE_TABLES,
    DELETE,
    INSERT,
    LSN_TIME_MAPPING,
    OPERATION,
    SCAN_CYCLE,
    SEQVAL,
    START_LSN,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    UPDATE_MASK,
    ChangeTable,
)

ALL_CHANGES, NET_CHANGES = "fn_cdc_get_all_changes_", "fn_cdc_get_net_changes_"
MIN_LSN, MAX_LSN = "fn_cdc_get_min_lsn", "fn_cdc_get_max_lsn"

_LSN, _SEQVAL, _OPERATION, _MASK, _CYCLE = map(quote, (START_LSN, SEQVAL, OPERATION, UPDATE_MASK, SCAN_CYCLE))


def register(tables: CdcTables, spark: SparkSession) -> tuple[str, ...]:
    """Make the functions of all instances in a session, replacing earlier ones. Returns their names."""
    made = dict(_functions(tables))
    for name, text in made.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {quote(name)}{text}")
    return tuple(made)


def _functions(tables: CdcTables) -> Iterator[tuple[str, str]]:
    gate = table_text(str(tables.control.path(LSN_TIME_MAPPING.name)))
    instances = table_text(str(tables.control.path(CHANGE_TABLES.name)))
    yield MAX_LSN, f"() RETURNS BINARY RETURN (SELECT max(start_lsn) FROM {gate})"
    yield (
        MIN_LSN,
        "(capture_instance STRING) RETURNS BINARY RETURN coalesce((SELECT min(start_lsn) FROM "
        f"{instances} c WHERE lower(c.capture_instance) = lower({MIN_LSN}.capture_instance)), X'{bytes(10).hex()}')",
    )
    for instance in tables.instances():
        captured = tables.captured(instance.object_id)
        yield _all_changes(tables, instance, captured, gate, instances)
        if instance.supports_net_changes:
            yield _net_changes(tables, instance, captured, gate, instances)


def _signature(name: str, columns: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{quote(column)} {type_}" for column, type_ in columns)
    return f"(from_lsn BINARY, to_lsn BINARY, row_filter_option STRING) RETURNS TABLE ({shown}) RETURN "


def _all_changes(
    tables: CdcTables, instance: ChangeTable, captured: Sequence[CapturedColumn], gate: str, instances: str
) -> tuple[str, str]:
    name = ALL_CHANGES + instance.capture_instance
    values = [(column.column_name, column.column_type) for column in captured]
    columns = [
        (START_LSN, "BINARY"),
        (SEQVAL, "BINARY"),
        (OPERATION, "INT"),
        (UPDATE_MASK, "BINARY"),
        *values,
    ]
    old = f"lower({_of(name, 'row_filter_option')}) = '{ALL_UPDATE_OLD}'"
    rows = (
        f"SELECT {', '.join(quote(column) for column, _ in columns)} FROM {_change_table(tables, instance)} "
        f"WHERE {_in_range(name)} AND ({_OPERATION} <> {UPDATE_BEFORE} OR {old})"
    )
    check = _check(name, instance, columns, gate, instances, ALL_OPTIONS)
    return name, _signature(name, columns) + f"{check} UNION ALL {rows} UNION ALL {check}"


def _net_changes(
    tables: CdcTables, instance: ChangeTable, captured: Sequence[CapturedColumn], gate: str, instances: str
) -> tuple[str, str]:
    name = NET_CHANGES + instance.capture_instance
    option = f"lower({_of(name, 'row_filter_option')})"
    values = [(column.column_name, column.column_type) for column in captured]
    columns = [(START_LSN, "BINARY"), (OPERATION, "INT"), (UPDATE_MASK, "BINARY"), *values]
    key = ", ".join(quote(row.column_name) for row in tables.key(instance.object_id))
    before = f"{_OPERATION} IN ({DELETE}, {UPDATE_BEFORE})"
    order = f"struct({_LSN}, {_SEQVAL}, NOT {before})"
    row = f"struct({', '.join(quote(column) for column, _ in values)})"
    image = _hash(captured)
    parts = [
        f"lpad(hex(bit_or(cast(conv(hex(substring({_MASK}, {at + 1}, {wide})), 16, 10) AS BIGINT))), {2 * wide}, '0')"
        for at, wide in mask_chunks(len(captured))
    ]
    keys = (
        f"SELECT min_by(struct({before} AS was, {image} AS image), {order}) AS first, "
        f"max_by(struct(NOT {before} AS is_there, {image} AS image, {row} AS row, {_LSN} AS lsn), {order}) AS last, "
        f"sum(IF({before}, -1, 1)) AS balance, bit_xor({image}) AS left_over, "
        f"unhex(concat({', '.join(parts)})) AS mask "
        f"FROM {_change_table(tables, instance)} WHERE {_in_range(name)} GROUP BY {key}"
    )
    is_odd = (
        "balance <> cast(last.is_there AS INT) - cast(first.was AS INT) OR left_over <> "
        "(IF(first.was, first.image, 0L) ^ IF(last.is_there, last.image, 0L))"
    )
    twice = literal(
        f"Capture instance '{instance.capture_instance}': a key may have had more than one row at once (22838), or a "
        "captured column was dropped since the functions were registered. Register them again, or take "
        "`Instance.net_changes`."
    )
    there = f"IF({option} = '{ALL_WITH_MERGE}', {MERGE}, IF(first.was, {UPDATE_AFTER}, {INSERT}))"
    mask = f"IF({option} = '{ALL_WITH_MASK}' AND first.was AND last.is_there, mask, NULL)"
    rows = (
        f"SELECT last.lsn, IF(last.is_there, {there}, {DELETE}), {mask}, "
        f"{', '.join(f'last.row.{quote(column)}' for column, _ in values)} FROM ({keys}) "
        f"WHERE IF({is_odd}, cast(raise_error({twice}) AS BOOLEAN), first.was OR last.is_there)"
    )
    check = _check(name, instance, columns, gate, instances, NET_OPTIONS)
    return name, _signature(name, columns) + f"{check} UNION ALL {rows} UNION ALL {check}"


def _hash(captured: Sequence[CapturedColumn]) -> str:
    """Return a number that differs between rows of different values, by the columns that the source still has."""
    parts = []
    for column in captured:
        if column.source_name is None:
            continue
        value = quote(column.column_name)
        is_plain = isinstance(json_of(column.column_type), str)
        parts += [value if is_plain else f"to_json(struct({value}))", f"{value} IS NULL"]
        if column.column_type in ("float", "double"):
            # 0 and -0 have one hash.
            parts.append(f"cast({value} AS STRING)")
    return f"xxhash64({', '.join(parts)})"


def _change_table(tables: CdcTables, instance: ChangeTable) -> str:
    return table_text(str(tables.change_table(instance)))


def _of(name: str, parameter: str) -> str:
    """Return a parameter; a captured column may have its name."""
    return f"{quote(name)}.{parameter}"


def _in_range(name: str) -> str:
    """Return the condition of rows in the range, with one on the scan cycle, of which Delta knows the bounds of files."""
    first, last = _of(name, "from_lsn"), _of(name, "to_lsn")
    cycles = " AND ".join(
        f"{_CYCLE} {compared} cast(conv(hex(substring({lsn}, 1, 8)), 16, 10) AS BIGINT)"
        for compared, lsn in ((">=", first), ("<=", last))
    )
    return f"{cycles} AND {_LSN} BETWEEN {first} AND {last}"


def _check(
    name: str,
    instance: ChangeTable,
    columns: Sequence[tuple[str, str]],
    gate: str,
    instances: str,
    options: Sequence[str],
) -> str:
    """Return a query without rows that raises the errors of `check_range` and of the row filter option."""
    first, last, option = (_of(name, each) for each in ("from_lsn", "to_lsn", "row_filter_option"))
    shown = {
        "from_lsn": _shown(first, "nothing"),
        "to_lsn": _shown(last, "nothing"),
        "low": _shown("low", "none"),
        "high": _shown("high", "none"),
    }
    allowed = ", ".join(f"'{each}'" for each in options)
    bad = f"concat('row_filter is ', {option}, '; it is one of: {', '.join(options)}. Nothing was changed.')"
    gone = literal(f"Capture instance '{instance.capture_instance}' does not exist any more (22985).")
    cases: list[tuple[str, str]] = [
        (f"NOT coalesce(lower({option}) IN ({allowed}), false)", bad),
        ("low IS NULL", gone),
    ]
    conditions: Mapping[str, str] = {
        "null": f"{first} IS NULL OR {last} IS NULL",
        "reversed": f"{first} > {last}",
        "below_low": f"{first} < low",
        "paused": f"high < gate AND {last} > high AND {last} <= gate",
        "above_high": f"high IS NULL OR {last} > high",
    }
    assert set(conditions) == set(RANGE_ERRORS)
    cases += [
        (condition, _concat(range_error(instance, reason), shown)) for reason, condition in conditions.items()
    ]
    raised = " ".join(
        f"WHEN {condition} THEN cast(raise_error({text}) AS BOOLEAN)" for condition, text in cases
    )
    nothing = ", ".join(f"cast(NULL AS {type_})" for _, type_ in columns)
    number = instance.object_id
    facts = (
        f"SELECT g.gate, c.low, least(g.gate, c.ends) AS high FROM (SELECT max(start_lsn) AS gate FROM {gate}) g "
        f"CROSS JOIN (SELECT min(start_lsn) AS low, min(end_lsn) AS ends FROM {instances} WHERE object_id = {number}) c"
    )
    return f"SELECT {nothing} FROM ({facts}) WHERE CASE {raised} ELSE false END"


def _shown(lsn: str, otherwise: str) -> str:
    return f"coalesce(concat('0x', hex({lsn})), '{otherwise}')"


def _concat(template: str, values: Mapping[str, str]) -> str:
    """Return the SQL of a text with fields, such as `{low}`, that are SQL themselves."""
    marked = template
    for each in values:
        marked = marked.replace(f"{{{each}}}", f"\0{each}\0")
    parts = marked.split("\0")
    return f"concat({', '.join(values[part] if at % 2 else literal(part) for at, part in enumerate(parts))})"
