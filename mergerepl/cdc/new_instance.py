"""The arguments of `enable_table`, checked against the table and the existing instances (cdc.md 1 and 2)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from mergerepl.cdc.change_rows import MAX_COLUMNS
from mergerepl.cdc.database import Database
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.delta.contract.problems import Code, TableContract
from mergerepl.delta.contract.rules import NULL, bad_keys
from mergerepl.delta.tables import TableState, is_delta_table, open_table, read_columns
from mergerepl.logreader.positions import LogState
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.catalog import ARTICLES
from mergerepl.systables.cdc import RESERVED_PREFIX, ChangeTable

LONGEST_NAME = 100
DBO = "dbo"
SYSTEM_FOLDERS = ("_mergerepl", "_tracking", "_logreader", "_cdc", "_transactional", "_delta_log")
_SYSTEM_COLUMNS = "__sys"
_NAME = re.compile(r"[^\W\d][\w@$#]*")
_NAMED_KEYS = 3


@dataclass(frozen=True)
class NewInstance:
    """The checked arguments of `enable_table`."""

    path: str
    schema: str
    name: str
    instance: str
    state: TableState
    columns: tuple[str, ...]
    key: tuple[str, ...]
    supports_net_changes: bool


def names_in(stated: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Return a list of columns; a text has comma-separated names, optionally in "" or []."""
    if stated is None:
        return None
    if isinstance(stated, str):
        parts = re.findall(r'\s*(?:"([^"]*)"|\[([^\]]*)\]|([^,]+))\s*(?:,|$)', stated)
        return tuple((quoted or bracketed or plain.strip()) for quoted, bracketed, plain in parts)
    return tuple(stated)


def source_of(source_name: str, source_schema: str) -> tuple[str, str, str]:
    """Return path, schema and name of a source."""
    path = source_name.strip("/") if source_schema == DBO else f"{source_schema.strip('/')}/{source_name}"
    schema, _, name = path.rpartition("/")
    parts = path.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or source_name.startswith("/"):
        raise CdcUsageError.no_such_source(path, "it is no path of a table below the database")
    if any(part in SYSTEM_FOLDERS for part in parts):
        raise CdcUsageError.reserved_source(path)
    return path, schema or DBO, name


def checked(
    database: Database,
    state: LogState | None,
    path: str,
    schema: str,
    name: str,
    *,
    capture_instance: str | None,
    supports_net_changes: bool | None,
    index: tuple[str, ...] | None,
    captured: tuple[str, ...] | None,
    published: Callable[[str], tuple[str, ...]],
) -> NewInstance:
    """Return the arguments with their defaults: `published(path)` is the key of the article that publishes a table.

    `state` is None for a folder without a log reader.

    Raises: CdcUsageError.
    """
    folder = database.root / path
    if not is_delta_table(folder):
        raise CdcUsageError.no_such_source(path, f"'{folder}' is no Delta table")
    table = open_table(folder)
    instances = database.instances() if database.is_enabled else []
    instance = _instance_name(database, capture_instance or f"{schema}_{name}".replace("/", "_"), instances)
    known = None if state is None else state.source_at(path)
    same = [each for each in instances if known and each.source_object_id == known.source_object_id]
    if len(same) >= 2:
        raise CdcUsageError.two_instances(path, [each.capture_instance for each in same])
    if known is not None and known.status != "active":
        raise CdcError.gone(
            path, f"its capture is paused: {known.reason} Nothing was changed; resume or disable it first"
        )
    by_lower = {each["name"].lower(): each["name"] for each in table.fields}
    key = _columns(path, index or (published(path) if not same else ()), by_lower)
    if same:
        before = tuple(row.column_name for row in database.key(same[0].object_id))
        if key and key != before:
            raise CdcUsageError.bad_columns(
                22939,
                path,
                f"instance '{same[0].capture_instance}' identifies its rows by ({', '.join(before) or 'no key'}), and both "
                "instances must have the same key",
            )
        key = before
    if bad := TableContract(table, key=key).find(Code.KEY_TYPE):
        raise CdcUsageError.key_type(path, bad.column, bad.detail)
    everything = (name for name in by_lower.values() if not name.lower().startswith(_SYSTEM_COLUMNS))
    columns = tuple(everything) if captured is None else _columns(path, captured, by_lower)
    _check_columns(path, columns, key)
    net = bool(key) if supports_net_changes is None else supports_net_changes
    if net and not key:
        raise CdcUsageError.net_without_key(path)
    return NewInstance(path, schema, name, instance, table, columns, key, net)


def article_key(root: Location, path: str) -> tuple[str, ...]:
    """Return the key of the merge article that publishes a table, or an empty tuple."""
    replica = Replica(root)
    if not replica.control.exists(ARTICLES):
        return ()
    return next((each.identity for each in replica.articles if each.table == path), ())


def _instance_name(database: Database, name: str, instances: Sequence[ChangeTable]) -> str:
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
    reserved = next((name for name in columns if name.startswith(RESERVED_PREFIX)), None)
    if reserved is not None:
        raise CdcUsageError.reserved_column(path, reserved)
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


def check_key(spark: SparkSession, wanted: NewInstance) -> None:
    """Check that the key has neither NULLs nor duplicates.

    Raises: CdcError 22838.
    """
    rows = read_columns(spark, wanted.state.path, wanted.state.version, wanted.key)
    found = bad_keys(rows, wanted.key, most=_NAMED_KEYS)
    if found:
        has_nulls = any(each.reason == NULL for each in found)
        why = "rows have a key that is NULL" if has_nulls else "rows share a key"
        raise CdcError.bad_key(wanted.path, wanted.key, why, [", ".join(each.values) for each in found])
