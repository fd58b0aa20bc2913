"""Capture instances: begun, ended and shown; the root that they lie in (cdc.md 1, 4 and 8).

A command takes the root's lock first, where it sets table properties, then the log reader's.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from mergerepl.cdc.consumer import begin_step
from mergerepl.cdc.jobs import with_default_jobs
from mergerepl.cdc.new_instance import NewInstance, check_key, checked, source_path
from mergerepl.cdc.refusals import CdcError, CdcUsageError, refuse_in_store
from mergerepl.cdc.sources import tidied
from mergerepl.cdc.tables import NAME, CdcTables, is_shared, require_place
from mergerepl.delta.feed.column_changes import added_fields, column_id
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, GENERATION_EXPRESSION
from mergerepl.delta.properties import FILE_RETENTION, LOG_RETENTION, retention_properties, set_properties
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.consumer import COMPARE, STOP
from mergerepl.logreader.log_reader import LogReader, make_log_reader, recover
from mergerepl.logreader.lsn import Lsn, epoch_of
from mergerepl.logreader.plan import Plan, redo_log
from mergerepl.logreader.positions import LogState, has_log_reader, read_state, save_state
from mergerepl.logreader.scan import Begin, begin, checked_state, leave
from mergerepl.logreader.sources import metadata_of
from mergerepl.model.cdc import CapturedColumn, CaptureInstance
from mergerepl.model.folders import TableCapture
from mergerepl.model.listing import Listing
from mergerepl.model.words import parse_duration
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, is_there, remove_leftover, remove_table
from mergerepl.systables import logreader
from mergerepl.systables.cdc import CDC_JOBS, CHANGE_TABLES, FOLDER, ChangeTable, IndexColumn
from mergerepl.systables.logreader import LogReaderRow

FILES_KEPT = "7 days"
"""How long removed files of captured tables are kept, if the first one states nothing."""

_LOG_KEPT = timedelta(days=30)


def enable(
    found: CdcTables,
    stated: TableCapture,
    *,
    role_name: str | None = None,
    index_name: str | None = None,
    log_retention: timedelta | str = FILES_KEPT,
) -> str:
    """Begin an instance, as `Database.enable` says; the first one enables the root. Returns its name."""
    if stated.on_gap not in (COMPARE, STOP):
        raise CdcUsageError.bad_parameter(22990, "on_gap", stated.on_gap, "it is compare or stop")
    retention = _retention_of(log_retention)
    require_place(found.root)
    with (
        plain_errors("a table was enabled for Change Data Capture"),
        lease(found.root, purpose="cdc enable", wait_s=found.lock_wait_s),
        found.held("cdc enable") as reader,
    ):
        state = tidied(reader, found) if found.is_enabled else _state_of_others(found, reader)
        wanted = checked(found, stated)
        if wanted.is_new and wanted.key:
            check_key(reader.spark, wanted)
        if state is None or not found.is_enabled:
            enable_root(found, reader, retention)
            state = checked_state(reader)
        if wanted.is_new:
            _set_properties(reader, wanted, timedelta(seconds=state.database.file_retention or 0))
        if not found.instances():
            default = partial(with_default_jobs, state.database.database_id, is_shared=is_shared(state))
            found.control.edit(CDC_JOBS, default)
        begin(
            reader,
            NAME,
            [Begin(wanted.path, wanted.schema, wanted.name)],
            lambda plan, rows, numbers: _decided(
                plan, rows[0], numbers[0], wanted, role_name, index_name, stated.on_gap
            ),
            object_ids=1,
        )
        return wanted.instance


def _retention_of(stated: timedelta | str) -> timedelta:
    """Return how long removed files of sources are kept at least. Raises: CdcUsageError 22994."""
    found = parse_duration(stated) if isinstance(stated, str) else stated
    if found is None or found < timedelta(hours=1):
        raise CdcUsageError.bad_parameter(
            22994, "log_retention", stated, "write it as `7 days` or `36 hours`"
        )
    return found


def enable_empty(found: CdcTables, log_retention: timedelta | str) -> bool:
    """Enable a root before its first table. Returns False if it was enabled already."""
    retention = _retention_of(log_retention)
    require_place(found.root)
    with found.held("cdc enable") as reader:
        if found.is_enabled:
            return False
        _state_of_others(found, reader)
        enable_root(found, reader, retention)
    return True


def enable_root(found: CdcTables, reader: LogReader, retention: timedelta) -> None:
    """Make the tables of the log reader and of Change Data Capture. The caller holds the log."""
    make_log_reader(reader, retention)
    failpoint("cdc.after_log_reader")
    found.create()
    failpoint("cdc.after_enable_db")


def _state_of_others(found: CdcTables, reader: LogReader) -> LogState | None:
    """Finish a `disable` that died, then return the state of a log that other products read; None without one."""
    _leave(found, reader)
    if not has_log_reader(reader.control) or not read_state(reader.control).sources:
        return None
    return checked_state(reader)


def _leave(found: CdcTables, reader: LogReader) -> None:
    """Remove what a root has of Change Data Capture that is not enabled any more."""
    if has_log_reader(reader.control):
        leave(reader, NAME)
    if is_local(found.root):
        # In a store these are tables of an `enable` that died: the next one makes the rest.
        remove_leftover(found.root / FOLDER)


def _set_properties(reader: LogReader, wanted: NewInstance, retention: timedelta) -> None:
    """Set missing properties of the source: the feed on, files kept for the database's retention, the log 30 days."""
    table = wanted.state
    missing = {} if table.metadata.change_data_feed else {CDF_PROPERTY: "true"}
    files = retention_properties(table.properties, retention)
    logs = retention_properties(table.properties, _LOG_KEPT)
    missing |= {name: value for name, value in files.items() if name == FILE_RETENTION}
    missing |= {name: value for name, value in logs.items() if name == LOG_RETENTION}
    if FILE_RETENTION in missing and LOG_RETENTION not in missing and LOG_RETENTION in table.properties:
        # Delta compares the two, with its default for one that a command does not state.
        missing[LOG_RETENTION] = table.properties[LOG_RETENTION]
    if not missing:
        return
    database_id = read_state(reader.control).database.database_id
    try:
        set_properties(reader.spark, table, missing, CommitMark(database_id, "cdc:enable"))
    except PublicationError as error:
        raise CdcError(
            22832,
            f"Table '{wanted.path}' cannot be captured: the properties it needs cannot be set ({error.message}). "
            "Nothing was changed. See to the cause, such as permissions, then run again.",
            source=wanted.path,
        ) from error


def _decided(
    plan: Plan,
    row: LogReaderRow,
    object_id: int,
    wanted: NewInstance,
    role_name: str | None,
    index_name: str | None,
    on_gap: str,
) -> dict[str, Any]:
    """Return the step in which the instance begins."""
    # A second instance begins where the source was read to: a newer column is filled from when its commit is read.
    at_position = {each["name"]: each for each in metadata_of(row).fields}
    newest = {each["name"]: each for each in wanted.state.fields}
    found = {name: at_position.get(name, newest[name]) for name in wanted.columns}
    for name, field in found.items():
        if added_fields(field["type"], newest[name]["type"], name):
            found[name] = newest[name]
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
    types = {object_id: {name: found[name]["type"] for name in wanted.columns}}
    return begin_step([instance], captured, index, types)


def disable(found: CdcTables, table: str | None, name: str | None, *, keeps_root: bool = False) -> list[str]:
    """End instances, as `Database.disable` says; `keeps_root`: also without instances. Returns their names."""
    path = None if table is None else source_path(table)
    if path is not None:
        found.require_enabled()
    with plain_errors("capture instances were disabled"), found.held("cdc disable") as reader:
        if not found.is_enabled:
            _leave(found, reader)
            return []
        if path is not None:
            tidied(reader, found)
        wanted = chosen_instances(found, table, name)
        # In a store the tables of a database stay: a displaced agent may still remove what a later one would make again.
        if len(wanted) == len(found.instances()) and not keeps_root and is_local(found.root):
            _disable_root(found, reader)
        else:
            found.control.remove_where(CHANGE_TABLES, object_id={each.object_id for each in wanted})
            failpoint("cdc.after_disable_table")
            tidied(reader, found)
    return [each.capture_instance for each in wanted]


def chosen_instances(found: CdcTables, table: str | None, name: str | None) -> list[ChangeTable]:
    """Return the instances of a table, or of all tables; with a name that one. Case of names is ignored.

    Raises: CdcUsageError 22901 if the folder is not enabled, 22985 if a table or a name is given and no instance is chosen.
    """
    found.require_enabled()
    path = None if table is None else source_path(table)
    known = None if path is None else read_state(found.log).source_at(path)
    of_table = [
        each
        for each in found.instances()
        if path is None or (known and each.source_object_id == known.source_object_id)
    ]
    wanted = [each for each in of_table if name is None or each.capture_instance.lower() == name.lower()]
    if not wanted and (table is not None or name is not None):
        names = [each.capture_instance for each in of_table]
        raise CdcUsageError.no_such_instance(f"{name or 'any'} of table {path or 'any'}", names)
    return wanted


def _disable_root(found: CdcTables, reader: LogReader) -> None:
    """Remove all of Change Data Capture. The log reader's table stays: LSNs are higher once it is enabled again."""
    if redo_log(found.root).is_pending:
        recover(reader)
    # Not enabled any more, from here on; the rest can be repeated.
    remove_table(found.control.path(CHANGE_TABLES.name))
    failpoint("cdc.after_disable")
    _leave(found, reader)


def relocate(found: CdcTables) -> bool:
    """Take over a moved or copied folder, as `Database.relocate` says."""
    refuse_in_store(found.root, "`cdc relocate`", "enable the tables at the new place")
    with found.held("cdc relocate") as reader:
        state = read_state(reader.control)
        stored = Location.of(state.database.root)
        if stored == found.root:
            return False
        is_copy = is_there(stored / logreader.FOLDER)
        row = replace(state.database, root=str(found.root))
        if is_copy:
            epoch = max(epoch_of(datetime.now(UTC)), row.epoch + 1)
            row = replace(row, epoch=epoch, database_id=str(uuid.uuid4()))
        save_state(reader.control, replace(state, database=row))
    return is_copy


def instances_of(
    found: CdcTables, *, table: str | None = None, name: str | None = None
) -> Listing[CaptureInstance]:
    """Return the capture instances of all tables, of one, or one by its name. Raises: CdcUsageError 22901, 22985."""
    chosen = found.instances() if name is None else [found.instance(name)]
    sources = read_state(found.log).sources
    # The cycle in which an instance begins may have been cut short: it is there when that is finished.
    begun = [each for each in chosen if each.source_object_id in sources]
    if name is not None and not begun:
        raise CdcUsageError.no_such_instance(name, [])
    path = None if table is None else source_path(table)
    return Listing(
        _shown(found, sources[each.source_object_id], each)
        for each in begun
        if path is None or sources[each.source_object_id].source_path == path
    )


def _shown(database: CdcTables, source: LogReaderRow, instance: ChangeTable) -> CaptureInstance:
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
