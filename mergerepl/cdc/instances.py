"""Databases and capture instances: enable, disable, adopt and resume (cdc.md 1, 4 and 8).

A command takes the root's lock first, where it sets table properties, then the log reader's.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.cdc.consumer import NAME, is_shared
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.job_rows import with_default_jobs
from mergerepl.cdc.mask import MAX_COLUMNS
from mergerepl.cdc.refusals import CdcError, CdcUsageError, ScanInProgressError
from mergerepl.delta.log import is_delta_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, GENERATION_EXPRESSION
from mergerepl.delta.plain_files import read_columns
from mergerepl.delta.properties import (
    FILE_RETENTION,
    LOG_RETENTION,
    interval_of,
    retention_properties,
    set_properties,
)
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.engine.errors import told_plainly
from mergerepl.errors import LeaseError, PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.column_changes import column_id
from mergerepl.logreader.consumer import COMPARE, STOP
from mergerepl.logreader.guard import key_of, refuse_other_key
from mergerepl.logreader.log_reader import LogReader, make_log_reader
from mergerepl.logreader.lsn import Lsn, epoch_of
from mergerepl.logreader.plan import Plan
from mergerepl.logreader.positions import LogState, has_log_reader, read_state, save_state
from mergerepl.logreader.recover import recover
from mergerepl.logreader.scan import Begin, begin, checked_state, leave
from mergerepl.logreader.sources import look_at, metadata_of
from mergerepl.model.cdc import CapturedColumn, CaptureInstance
from mergerepl.rows.images import with_readable
from mergerepl.rows.rowguid import base_type
from mergerepl.rows.sql import quote
from mergerepl.store.lease import lease
from mergerepl.store.log_reader_files import (
    file_system_now_ns,
    folders_in,
    is_there,
    read_plan,
    remove_folder,
)
from mergerepl.store.replica import Replica
from mergerepl.systables import logreader
from mergerepl.systables.catalog import ARTICLES
from mergerepl.systables.cdc import (
    CAPTURED_COLUMNS,
    CDC_JOBS,
    CHANGE_TABLE_SUFFIX,
    CHANGE_TABLES,
    CREATED,
    FOLDER,
    INDEX_COLUMNS,
    RESERVED_PREFIX,
    ChangeTable,
    IndexColumn,
)
from mergerepl.systables.logreader import LogReaderRow

T = TypeVar("T")

LONGEST_NAME = 100
DBO = "dbo"
DEFAULT_LOG_RETENTION = "7 days"

_LOG_KEPT = timedelta(days=30)
_SYSTEM_COLUMNS = "__sys"
SYSTEM_FOLDERS = ("_mergerepl", "_tracking", "_logreader", "_cdc", "_transactional", "_delta_log")
_NAME = re.compile(r"[^\W\d][\w@$#]*")
_KEY_TYPES = (
    *("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz"),
    *("decimal", "boolean", "binary"),
)
_NAMED_KEYS = 3


def log_reader(
    database: Database,
    *,
    spark: SparkSession | None = None,
    wait_s: float = 0.0,
    is_long_running: bool = False,
) -> LogReader:
    """Return the log reader of a database. It serves publications of the same folder, too."""
    return LogReader(database.root, spark, wait_s, is_long_running)


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for a command.

    Raises: ScanInProgressError (22903) if somebody else holds it.
    """
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise ScanInProgressError(22903, error.message, database=str(reader.root)) from error


# -- databases ---------------------------------------------------------------------------------------------------------


def enable_db(database: str | os.PathLike[str], *, log_retention: str = DEFAULT_LOG_RETENTION) -> bool:
    """Enable a folder of Delta tables for Change Data Capture. Returns False if it was already: nothing is changed then.

    `log_retention` is how long removed files of captured tables are kept at least (`enable_table` sets it).

    Raises: ConfigurationError if there is no such folder; CdcUsageError; ScanInProgressError.
    """
    found = database_at(database)
    retention = _retention(log_retention)
    reader = log_reader(found)
    with held(reader, "cdc enable-db"):
        if found.is_enabled:
            return False
        make_log_reader(reader, retention)
        failpoint("cdc.after_log_reader")
        for table in CREATED:
            if not found.control.exists(table):
                found.control.replace(table, ())
        failpoint("cdc.after_enable_db")
    return True


def _retention(text: str) -> timedelta:
    found = interval_of(text)
    if found is None or found < timedelta(hours=1):
        raise CdcUsageError.bad_parameter(22994, "log_retention", text, "write it as `7 days` or `36 hours`")
    return found


def disable_db(database: str | os.PathLike[str]) -> bool:
    """Disable a database: all capture instances with their rows, and the jobs. Returns False if it was not enabled.

    The log reader's table stays: LSNs of another life of the database are higher.

    Raises: ScanInProgressError.
    """
    found = database_at(database)
    reader = log_reader(found)
    with held(reader, "cdc disable-db"):
        if not found.is_enabled and not is_there(found.root / FOLDER):
            return False
        if found.is_enabled and read_plan(found.root) is not None:
            recover(reader)
        # Not enabled any more, from here on; the rest can be repeated.
        remove_folder(found.control.path(CHANGE_TABLES.name))
        failpoint("cdc.after_disable")
        if has_log_reader(reader.control):
            leave(reader, NAME)
        remove_folder(found.root / FOLDER)
    return True


def is_cdc_enabled(database: str | os.PathLike[str]) -> bool:
    """Return whether a database is enabled."""
    return database_at(database).is_enabled


# -- instances ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    """What `enable_table` was asked for, checked."""

    path: str
    schema: str
    name: str
    instance: str
    state: TableState
    columns: tuple[str, ...]
    key: tuple[str, ...]
    supports_net_changes: bool


def enable_table(
    database: str | os.PathLike[str],
    source_name: str,
    *,
    source_schema: str = DBO,
    capture_instance: str | None = None,
    supports_net_changes: bool | None = None,
    role_name: str | None = None,
    index: Sequence[str] | str | None = None,
    index_name: str | None = None,
    captured_column_list: Sequence[str] | str | None = None,
    large_columns: Mapping[str, str] | None = None,
    on_gap: str = COMPARE,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> CaptureInstance:
    """Capture a table: an instance begins.

    Args:
        database: The folder.
        source_name: The table's folder; with its schema before it (`bronze/eu/orders`) if `source_schema` is not given.
        source_schema: The folder below the database that holds the table; `dbo` for the database itself.
        capture_instance: The instance's name; by default `<schema>_<table>`.
        supports_net_changes: Whether net changes can be asked for; by default if there is a key.
        role_name: Stored and shown only.
        index: The columns that identify a row: without NULLs and duplicates. A list, or names with commas between them; by
            default the key of the article that publishes the table, if there is one.
        index_name: A name for the key; stored and shown only.
        captured_column_list: The columns to capture; by default all whose names do not begin with `__sys`.
        large_columns: Not supported yet.
        on_gap: What becomes of versions whose feed is gone: `compare` or `stop`.
        spark: The Spark session; by default the running one, or an embedded one.
        lock_wait_s: Seconds to wait for others that hold the folder.

    Raises: CdcUsageError, with nothing changed; CdcError 22838 for a key with NULLs or duplicates, 22832 if the table's
        properties cannot be set; ScanInProgressError; LeaseError.
    """
    found = database_at(database)
    found.require_enabled()
    if large_columns:
        raise CdcUsageError.later("large_columns", "Leave it out: all columns are captured whole.")
    if on_gap not in (COMPARE, STOP):
        raise CdcUsageError.bad_parameter(22990, "on_gap", on_gap, "it is compare or stop")
    reader = log_reader(found, spark=spark, wait_s=lock_wait_s)
    with (
        told_plainly("a table was enabled for Change Data Capture"),
        lease(found.root, purpose="cdc enable-table", wait_s=lock_wait_s),
        held(reader, "cdc enable-table"),
    ):
        state = _tidied(reader, found)
        wanted = _checked(
            found,
            state,
            *_source_of(source_name, source_schema),
            capture_instance=capture_instance,
            supports_net_changes=supports_net_changes,
            index=_names(index),
            captured=_names(captured_column_list),
            published=lambda path: key_of(state, reader.consumers, path) or _article_key(found.root, path),
        )
        refuse_other_key(state, reader.consumers, wanted.path, wanted.key)
        known = state.source_at(wanted.path)
        if known is None or NAME not in known.consumers:
            if wanted.key:
                _check_key(reader.spark(), wanted)
            _set_properties(reader, wanted, timedelta(seconds=state.database.file_retention or 0))
        if not found.instances():
            jobs = found.control.rows(CDC_JOBS)
            database_id = state.database.database_id
            found.control.replace(CDC_JOBS, with_default_jobs(jobs, database_id, is_shared=is_shared(state)))
        plan = begin(
            reader,
            NAME,
            [Begin(wanted.path, wanted.schema, wanted.name)],
            lambda plan, rows, numbers: {
                "begin": _decided(plan, rows[0], numbers[0], wanted, role_name, index_name, on_gap)
            },
            object_ids=1,
        )
        del plan
        return help_instance(found, wanted.instance)


def _names(stated: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Return a list of columns; as text they have commas between them, and may stand in "" or []."""
    if stated is None:
        return None
    if isinstance(stated, str):
        parts = re.findall(r'\s*(?:"([^"]*)"|\[([^\]]*)\]|([^,]+))\s*(?:,|$)', stated)
        return tuple((quoted or bracketed or plain.strip()) for quoted, bracketed, plain in parts)
    return tuple(stated)


def _source_of(source_name: str, source_schema: str) -> tuple[str, str, str]:
    """Return path, schema and name of a source."""
    path = source_name.strip("/") if source_schema == DBO else f"{source_schema.strip('/')}/{source_name}"
    schema, _, name = path.rpartition("/")
    parts = path.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or source_name.startswith("/"):
        raise CdcUsageError.no_such_source(path, "it is no path of a table below the database")
    if any(part in SYSTEM_FOLDERS for part in parts):
        raise CdcUsageError.reserved_source(path)
    return path, schema or DBO, name


def _checked(
    database: Database,
    state: LogState,
    path: str,
    schema: str,
    name: str,
    *,
    capture_instance: str | None,
    supports_net_changes: bool | None,
    index: tuple[str, ...] | None,
    captured: tuple[str, ...] | None,
    published: Callable[[str], tuple[str, ...]],
) -> _Wanted:
    folder = database.root / path
    if not is_delta_table(folder):
        raise CdcUsageError.no_such_source(path, f"'{folder}' is no Delta table")
    table = open_table(folder)
    instances = database.instances()
    instance = _instance_name(database, capture_instance or f"{schema}_{name}".replace("/", "_"), instances)
    known = state.source_at(path)
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
    _check_key_types(table, path, key)
    everything = (name for name in by_lower.values() if not name.lower().startswith(_SYSTEM_COLUMNS))
    columns = tuple(everything) if captured is None else _columns(path, captured, by_lower)
    _check_columns(path, columns, key)
    net = bool(key) if supports_net_changes is None else supports_net_changes
    if net and not key:
        raise CdcUsageError.net_without_key(path)
    return _Wanted(path, schema, name, instance, table, columns, key, net)


def _article_key(root: Path, path: str) -> tuple[str, ...]:
    """Return the key of the merge article that a table is; none if it is none."""
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


def _check_key_types(table: TableState, path: str, key: Sequence[str]) -> None:
    for name in key:
        type_ = ddl_of((table.field(name) or {})["type"])
        if base_type(type_) not in _KEY_TYPES or "collate" in type_:
            raise CdcUsageError.key_type(path, name, type_)


def _check_key(spark: SparkSession, wanted: _Wanted) -> None:
    """Check that the key has neither NULLs nor duplicates.

    Raises: CdcError 22838.
    """
    rows = read_columns(spark, wanted.state.path, wanted.state.version, wanted.key)
    keys = [F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(wanted.key)]
    names = [f"k{i}" for i in range(len(keys))]
    has_null = F.lit(False)
    for name in names:
        has_null = has_null | F.col(name).isNull()
    counted = rows.select(*keys).groupBy(*names).agg(F.count(F.lit(1)).alias("rows"))
    bad = counted.where(has_null | (F.col("rows") > 1)).limit(_NAMED_KEYS)
    found = with_readable(bad, names).collect()
    if found:
        has_nulls = any(row[name] is None for row in found for name in names)
        why = "rows have a key that is NULL" if has_nulls else "rows share a key"
        raise CdcError.bad_key(
            wanted.path, wanted.key, why, [", ".join(str(row[name]) for name in names) for row in found]
        )


def _set_properties(reader: LogReader, wanted: _Wanted, retention: timedelta) -> None:
    """Set on the source what is missing: the feed on, files kept as long as the database says, the log 30 days."""
    table = wanted.state
    missing = {} if table.metadata.change_data_feed else {CDF_PROPERTY: "true"}
    files = retention_properties(table.properties, retention)
    logs = retention_properties(table.properties, _LOG_KEPT)
    missing |= {name: value for name, value in files.items() if name == FILE_RETENTION}
    missing |= {name: value for name, value in logs.items() if name == LOG_RETENTION}
    if FILE_RETENTION in missing and LOG_RETENTION not in missing and LOG_RETENTION in table.properties:
        # Delta compares the two, and takes its default where a command does not state the other one.
        missing[LOG_RETENTION] = table.properties[LOG_RETENTION]
    if not missing:
        return
    database_id = read_state(reader.control).database.database_id
    try:
        set_properties(reader.spark(), table, missing, CommitMark(database_id, "cdc:enable"))
    except PublicationError as error:
        raise CdcError.properties_refused(wanted.path, error.message) from error


def _decided(
    plan: Plan,
    row: LogReaderRow,
    object_id: int,
    wanted: _Wanted,
    role_name: str | None,
    index_name: str | None,
    on_gap: str,
) -> dict[str, Any]:
    """Return the rows of the instance that begins, as JSON."""
    # A second instance begins where the source was read to: a newer column is filled from when its commit is read.
    at_position = {each["name"]: each for each in metadata_of(row).fields}
    newest = {each["name"]: each for each in wanted.state.fields}
    found = {name: at_position.get(name, newest[name]) for name in wanted.columns}
    ids = {name: column_id(wanted.state.fields, name) for name in newest}
    lsn = plan.lsn(plan.entries[0])
    instance = ChangeTable(
        object_id=object_id,
        source_object_id=row.source_object_id,
        capture_instance=wanted.instance,
        start_lsn=lsn,
        supports_net_changes=wanted.supports_net_changes,
        role_name=role_name,
        index_name=index_name,
        create_date=datetime.now(UTC),
        start_version=row.position,
        on_gap=on_gap,
    )
    captured = [
        CapturedColumn(
            object_id=object_id,
            column_name=name,
            column_id=ids[name],
            column_type=ddl_of(found[name]["type"]),
            column_ordinal=ordinal,
            is_computed=GENERATION_EXPRESSION in found[name]["metadata"],
            source_name=name if name in at_position else None,
        )
        for ordinal, name in enumerate(wanted.columns, 1)
    ]
    index = [
        IndexColumn(object_id=object_id, column_name=name, index_ordinal=place, column_id=ids[name])
        for place, name in enumerate(wanted.key, 1)
    ]
    stated = asdict(instance)
    return {
        "instances": [{**stated, "start_lsn": lsn.hex(), "create_date": instance.create_date.isoformat()}],
        "captured": [asdict(each) for each in captured],
        "index": [asdict(each) for each in index],
        "types": {str(object_id): {name: found[name]["type"] for name in wanted.columns}},
    }


def _tidied(reader: LogReader, database: Database) -> LogState:
    """Finish what a dead cycle or command left: its plan, and the rest of instances that were being disabled."""
    state = checked_state(reader)
    instances = database.instances()
    numbers = {each.object_id for each in instances}
    control = database.control
    for stored in (CAPTURED_COLUMNS, INDEX_COLUMNS):
        _keep_of(control, stored, numbers)
    known = {each.folder for each in instances}
    for name in folders_in(database.root / FOLDER):
        if name.endswith(CHANGE_TABLE_SUFFIX) and name not in known:
            remove_folder(database.root / FOLDER / name)
    sources = {each.source_object_id for each in instances}
    return leave(reader, NAME, frozenset(state.sources.keys() - sources))


def _keep_of(control: Any, stored: Any, numbers: set[int]) -> None:
    rows = control.rows(stored)
    kept = [row for row in rows if row.object_id in numbers]
    if kept != rows:
        control.replace(stored, kept)


def disable_table(
    database: str | os.PathLike[str],
    source_name: str,
    *,
    source_schema: str = DBO,
    capture_instance: str,
    lock_wait_s: float = 0.0,
) -> list[str]:
    """End an instance of a table, or `all`: its change table goes with all its rows. Returns the names.

    Raises: CdcUsageError if there is none; ScanInProgressError.
    """
    found = database_at(database)
    found.require_enabled()
    reader = log_reader(found, wait_s=lock_wait_s)
    with told_plainly("a capture instance was disabled"), held(reader, "cdc disable-table"):
        state = _tidied(reader, found)
        path = _source_of(source_name, source_schema)[0]
        known = state.source_at(path)
        instances = found.instances()
        of_source = [each for each in instances if known and each.source_object_id == known.source_object_id]
        wanted = [
            each
            for each in of_source
            if capture_instance == "all" or each.capture_instance.lower() == capture_instance.lower()
        ]
        if not wanted:
            names = [each.capture_instance for each in of_source]
            raise CdcUsageError.no_such_instance(f"{capture_instance} of table {path}", names)
        found.control.replace(CHANGE_TABLES, [each for each in instances if each not in wanted])
        failpoint("cdc.after_disable_table")
        _tidied(reader, found)
    return [each.capture_instance for each in wanted]


# -- what there is -----------------------------------------------------------------------------------------------------


def help_change_data_capture(
    database: str | os.PathLike[str], source_name: str | None = None, *, source_schema: str | None = None
) -> list[CaptureInstance]:
    """Return the capture instances: of all tables, or of one.

    Raises: CdcUsageError if the database is not enabled.
    """
    found = database_at(database)
    sources = _sources(found)
    wanted = None if source_name is None else _source_of(source_name, source_schema or DBO)[0]
    return [
        _shown(found, sources[each.source_object_id], each)
        for each in found.instances()
        if wanted is None or sources[each.source_object_id].source_path == wanted
    ]


def help_instance(database: Database, name: str) -> CaptureInstance:
    """Return one capture instance."""
    instance = database.instance(name)
    return _shown(database, _sources(database)[instance.source_object_id], instance)


def _sources(database: Database) -> Mapping[int, LogReaderRow]:
    database.require_enabled()
    return read_state(database.log).sources


def _shown(database: Database, source: LogReaderRow, instance: ChangeTable) -> CaptureInstance:
    return CaptureInstance(
        source_schema=source.source_schema,
        source_table=source.source_name,
        capture_instance=instance.capture_instance,
        object_id=instance.object_id,
        source_object_id=instance.source_object_id,
        start_lsn=Lsn(instance.start_lsn),
        end_lsn=None if instance.end_lsn is None else Lsn(instance.end_lsn),
        supports_net_changes=instance.supports_net_changes,
        has_drop_pending=instance.has_drop_pending,
        role_name=instance.role_name,
        index_name=instance.index_name,
        filegroup_name=instance.filegroup_name,
        create_date=instance.create_date,
        index_column_list=tuple(row.column_name for row in database.key(instance.object_id)),
        captured_column_list=tuple(row.column_name for row in database.captured(instance.object_id)),
    )


def is_tracked_by_cdc(
    database: str | os.PathLike[str], source_name: str, *, source_schema: str = DBO
) -> bool:
    """Return whether a table has a capture instance."""
    found = database_at(database)
    return found.is_enabled and bool(
        help_change_data_capture(database, source_name, source_schema=source_schema)
    )


def get_captured_columns(database: str | os.PathLike[str], instance: str) -> list[CapturedColumn]:
    """Return the captured columns of an instance, by ordinal.

    Raises: CdcUsageError if there is no such instance.
    """
    found = database_at(database)
    return found.captured(found.instance(instance).object_id)


# -- adopt and resume --------------------------------------------------------------------------------------------------


def adopt(database: str | os.PathLike[str]) -> bool:
    """Take over a database whose folder was moved or copied. Returns whether a new epoch began: it was a copy.

    Raises: LogReaderError if there is no log reader; ScanInProgressError.
    """
    found = database_at(database)
    reader = log_reader(found)
    with held(reader, "cdc adopt"):
        state = read_state(reader.control)
        stored = Path(state.database.root)
        if stored == found.root:
            return False
        is_copy = is_there(stored / logreader.FOLDER)
        row = replace(state.database, root=str(found.root))
        if is_copy:
            epoch = max(epoch_of(datetime.now(UTC)), row.epoch + 1)
            row = replace(row, epoch=epoch, database_id=str(uuid.uuid4()))
        save_state(reader.control, replace(state, database=row))
    return is_copy


def resume(
    database: str | os.PathLike[str],
    instance: str,
    *,
    compare: bool = False,
    restart: bool = False,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> bool:
    """Let a paused source in again: what is unread gets new LSNs. Returns False if it was not paused, and `restart` is.

    Args:
        database: The folder.
        instance: A capture instance of the source.
        compare: Let a gap be compared from now on.
        restart: Begin all instances of the source again at its head; consumers get 313 and take a snapshot.
        spark: The Spark session.
        lock_wait_s: Seconds to wait for others that hold the log.

    Raises: CdcUsageError if there is no such instance; CdcError if the source is still gone; ScanInProgressError.
    """
    if compare and restart:
        raise CdcUsageError.bad_parameter(22990, "compare and restart", True, "choose one of them")
    found = database_at(database)
    chosen = found.instance(instance)
    reader = log_reader(found, spark=spark, wait_s=lock_wait_s)
    with told_plainly("a source was resumed"), held(reader, "cdc resume"):
        state = _tidied(reader, found)
        row = state.sources[chosen.source_object_id]
        same = [each for each in found.instances() if each.source_object_id == chosen.source_object_id]
        if compare:
            changed = [replace(each, on_gap=COMPARE) if each in same else each for each in found.instances()]
            found.control.replace(CHANGE_TABLES, changed)
        if restart:
            if set(row.consumers) != {NAME}:
                raise CdcError.restart_is_shared(row.source_path)
            _restart(reader, found, row, same)
            return True
        if row.status == "active":
            return False
        active = replace(row, status="active", error_number=None, reason=None)
        look = look_at(found.root, active, began_ns=file_system_now_ns(found.root), most=1, on_gap=COMPARE)
        if look.paused is not None:
            raise CdcError(look.paused.number, look.paused.reason, source=row.source_path)
        if not look.units and not look.has_waiting:
            # Nothing is unread: no cycle would say that the instances do not end any more.
            open_again = [
                replace(each, end_lsn=None, has_drop_pending=False) if each in same else each
                for each in found.instances()
            ]
            found.control.replace(CHANGE_TABLES, open_again)
        save_state(reader.control, state.with_source(active))
    return True


def _restart(
    reader: LogReader, database: Database, row: LogReaderRow, instances: Sequence[ChangeTable]
) -> None:
    """Begin the instances of a source again at its head: the columns that they have, in the types of the head, no rows."""
    if not is_delta_table(database.root / row.source_path):
        raise CdcUsageError.no_such_source(row.source_path, "there is no Delta table at its path")
    head = {each["name"]: each for each in open_table(database.root / row.source_path).fields}
    captured: list[CapturedColumn] = []
    types: dict[str, dict[str, Any]] = {}
    for instance in instances:
        known = {each["name"]: each for each in open_table(database.change_table(instance)).fields}
        of_instance = types[str(instance.object_id)] = {}
        for column in database.captured(instance.object_id):
            name = column.source_name or column.column_name
            found = head.get(name, known[column.column_name])
            of_instance[column.column_name] = found["type"]
            source = name if name in head else None
            captured.append(replace(column, source_name=source, column_type=ddl_of(found["type"])))

    def steps(plan: Plan, rows: Sequence[LogReaderRow], numbers: range) -> dict[str, Any]:
        lsn = plan.lsn(plan.entries[0])
        begun = [
            replace(
                *(each,),
                start_lsn=lsn,
                end_lsn=None,
                has_drop_pending=False,
                start_version=rows[0].position,
            )
            for each in instances
        ]
        stated = [
            {
                **asdict(each),
                "start_lsn": lsn.hex(),
                "create_date": each.create_date.isoformat(),
            }
            for each in begun
        ]
        index = [asdict(c) for each in instances for c in database.key(each.object_id)]
        columns = [asdict(column) for column in captured]
        return {"begin": {"instances": stated, "captured": columns, "index": index, "types": types}}

    begin(
        reader,
        NAME,
        [Begin(row.source_path, row.source_schema, row.source_name, from_head=True)],
        steps,
    )
