"""The arguments of `Database.enable`, checked against the table and the existing instances (cdc.md 1 and 2)."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from mergerepl import roots
from mergerepl.cdc.change_rows import MAX_COLUMNS
from mergerepl.cdc.refusals import NOTHING, CdcError, CdcUsageError
from mergerepl.cdc.tables import NAME, CdcTables
from mergerepl.delta.contract.problems import OF_STORES, Code, TableContract
from mergerepl.delta.contract.rules import NULL, bad_keys_of
from mergerepl.delta.tables import TableState, is_delta_table, open_table
from mergerepl.logreader.log_reader import LogReader, key_of
from mergerepl.logreader.positions import has_log_reader, read_state
from mergerepl.model.folders import TableCapture
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.catalog import ARTICLES
from mergerepl.systables.cdc import RESERVED_PREFIX, ChangeTable

LONGEST_NAME = 100
DBO = "dbo"
_SYSTEM_COLUMNS = "__sys"
_NAME = re.compile(r"[^\W\d][\w@$#]*")
_NAMED_KEYS = 3


@dataclass(frozen=True)
class NewInstance:
    """The checked arguments of `Database.enable`."""

    path: str
    schema: str
    name: str
    instance: str
    state: TableState
    columns: tuple[str, ...]
    key: tuple[str, ...]
    supports_net_changes: bool
    is_new: bool
    """Whether the capture of its table begins."""


def names_in(stated: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Return a list of columns; a text has comma-separated names, optionally in "" or []."""
    if isinstance(stated, str):
        parts = re.findall(r'\s*(?:"([^"]*)"|\[([^\]]*)\]|([^,]+))\s*(?:,|$)', stated)
        return tuple((quoted or bracketed or plain.strip()) for quoted, bracketed, plain in parts)
    return None if stated is None else tuple(stated)


def source_path(table: str) -> str:
    """Return the path of a source below its database. Raises: CdcUsageError 22931, 22974."""
    path = table.rstrip("/")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise CdcUsageError.no_such_source(path, "it is no path of a table below the database")
    if any(part in roots.RESERVED_FOLDERS for part in parts):
        raise CdcUsageError(
            22974, f"Table '{path}' lies in a folder of system tables and is not captured. {NOTHING}"
        )
    return path


def checked(found: CdcTables, stated: TableCapture, ending: Collection[str] = ()) -> NewInstance:
    """Check a table by its log; return its instance as it would be.

    `ending` are names of instances that end before this one begins.

    Raises: CdcUsageError, CdcError, LogReaderError.
    """
    path = source_path(stated.table)
    reader = LogReader(found.root)
    state = read_state(found.log) if has_log_reader(found.log) else None
    known = None if state is None else state.source_at(path)
    folder = found.root / path
    if not is_delta_table(folder):
        raise CdcUsageError.no_such_source(path, f"'{folder}' is no Delta table")
    table = open_table(folder)
    if problem := TableContract(table).explain(OF_STORES):
        raise CdcUsageError.unfenceable(path, *problem)
    schema, _, table_name = path.rpartition("/")
    stored = found.instances() if found.is_enabled else []
    instances = [each for each in stored if each.capture_instance not in ending]
    instance = _instance_name(replace(stated, table=path).instance, instances)
    same = [each for each in instances if known and each.source_object_id == known.source_object_id]
    if len(same) >= 2:
        names = ", ".join(each.capture_instance for each in same)
        raise CdcUsageError(
            22962,
            f"Table '{path}' has two capture instances already: {names}. {NOTHING} Disable one of them first.",
            source=path,
        )
    if known is not None and known.status != "active":
        raise CdcError.gone(
            path, f"its capture is paused: {known.reason} Nothing was changed; resume or disable it first"
        )
    by_lower = {each["name"].lower(): each["name"] for each in table.fields}
    key = stated.key
    if not key and not same:
        key = (state and key_of(state, reader.consumers, path)) or _article_key(found.root, path)
    chosen = _columns(path, key or (), by_lower)
    if same:
        chosen = chosen or tuple(row.column_name for row in found.key(same[0].object_id))
    if bad := TableContract(table, key=chosen).find(Code.KEY_TYPE):
        why = f"column '{bad.column}' of type {bad.detail} cannot be part of the key"
        remedy = "Keys are whole numbers, strings, dates, times, decimals, booleans and binary."
        raise CdcUsageError.bad_columns(22929, path, why, remedy)
    everything = (each for each in by_lower.values() if not each.lower().startswith(_SYSTEM_COLUMNS))
    captured = tuple(everything) if stated.columns is None else _columns(path, stated.columns, by_lower)
    _check_columns(path, captured, chosen)
    has_net = bool(chosen) if stated.net is None else stated.net
    if has_net and not chosen:
        remedy = "Name its columns (`key`), or capture without net changes."
        raise CdcUsageError.bad_columns(22939, path, "net changes need a key", remedy)
    is_new = known is None or NAME not in known.consumers
    return NewInstance(path, schema or DBO, table_name, instance, table, captured, chosen, has_net, is_new)


def _article_key(root: Location, path: str) -> tuple[str, ...]:
    """Return the key of the merge article that publishes a table, or an empty tuple."""
    replica = Replica(root)
    if not replica.control.exists(ARTICLES):
        return ()
    return next((each.identity for each in replica.articles if each.table == path), ())


def _instance_name(name: str, instances: Sequence[ChangeTable]) -> str:
    name = name.rstrip()
    if len(name) > LONGEST_NAME:
        raise CdcUsageError.bad_instance_name(22927, name, f"it has more than {LONGEST_NAME} characters")
    if not _NAME.fullmatch(name):
        raise CdcUsageError.bad_instance_name(
            22932, name, "a name has letters, digits, _, @, $ and # only, and begins with a letter or _"
        )
    if any(each.capture_instance.lower() == name.lower() for each in instances):
        raise CdcUsageError.bad_instance_name(22926, name, "there is an instance of this name")
    return name


def _columns(path: str, names: Sequence[str], by_lower: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        if name.lower() not in by_lower:
            raise CdcUsageError.unknown_column(path, name, list(by_lower.values()))
        if by_lower[name.lower()] in found:
            raise CdcUsageError.bad_columns(22928, path, f"column '{name}' stands twice in the list")
        found.append(by_lower[name.lower()])
    return tuple(found)


def _check_columns(path: str, columns: Sequence[str], key: Sequence[str]) -> None:
    if reserved := next((name for name in columns if name.startswith(RESERVED_PREFIX)), None):
        why = f"column '{reserved}' cannot be captured: names that begin with __$ are the change table's"
        raise CdcUsageError.bad_columns(22975, path, why, "Leave it out of the columns, or rename it.")
    if not columns:
        raise CdcUsageError.bad_columns(22928, path, "it has no column to capture")
    if len(columns) > MAX_COLUMNS:
        raise CdcUsageError.bad_columns(
            22925,
            path,
            f"{len(columns)} columns are more than the {MAX_COLUMNS} that an instance can capture",
        )
    missing = [name for name in key if name not in columns]
    if missing:
        raise CdcUsageError.bad_columns(
            22938, path, f"the captured column list lacks the key column '{missing[0]}'"
        )


def check_key(spark_of: Callable[[], SparkSession], wanted: NewInstance) -> None:
    """Check that the key has neither NULLs nor duplicates. Raises: CdcError 22838."""
    found = bad_keys_of(spark_of, wanted.state, wanted.key, most=_NAMED_KEYS)
    if found:
        has_nulls = any(each.reason == NULL for each in found)
        why = "rows have a key that is NULL" if has_nulls else "rows share a key"
        keys = "; ".join(", ".join(each.values) for each in found)
        raise CdcError(
            22838,
            f"Table '{wanted.path}' cannot be captured by the key ({', '.join(wanted.key)}): {why}: {keys}. {NOTHING} "
            "Correct these rows, name another key (`key`), or capture without one, which has no net changes.",
            source=wanted.path,
        )
