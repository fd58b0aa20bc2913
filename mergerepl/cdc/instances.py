"""Capture instances: begun, ended and shown (cdc.md 1 and 8).

A command takes the root's lock first, where it sets table properties, then the log reader's.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.cdc.capture import held, log_reader, tidied
from mergerepl.cdc.consumer import NAME, is_shared
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.job_rows import with_default_jobs
from mergerepl.cdc.new_instance import DBO, NewInstance, article_key, check_key, checked, names_in, source_of
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, GENERATION_EXPRESSION
from mergerepl.delta.properties import FILE_RETENTION, LOG_RETENTION, retention_properties, set_properties
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.column_changes import added_fields, column_id
from mergerepl.logreader.consumer import COMPARE, STOP
from mergerepl.logreader.log_reader import LogReader, key_of, refuse_other_key
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.plan import Plan
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.scan import Begin, begin
from mergerepl.logreader.sources import metadata_of
from mergerepl.model.cdc import CapturedColumn, CaptureInstance
from mergerepl.model.later import answers_later
from mergerepl.spark.errors import plain_errors
from mergerepl.store.lease import lease
from mergerepl.systables.cdc import CDC_JOBS, CHANGE_TABLES, ChangeTable, IndexColumn
from mergerepl.systables.logreader import LogReaderRow

_LOG_KEPT = timedelta(days=30)


@answers_later("cdc", CdcUsageError.later)
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
        supports_net_changes: Whether net changes can be queried; by default True if the table has a key.
        role_name: Stored and shown only.
        index: The columns that identify a row: without NULLs and duplicates. A list, or comma-separated names; by default
            the key of the article that publishes the table.
        index_name: A name for the key; stored and shown only.
        captured_column_list: The columns to capture; by default all whose names do not begin with `__sys`.
        on_gap: How versions without a feed are handled: `compare` or `stop`.
        spark: The Spark session; by default the running one, or an embedded one.
        lock_wait_s: Seconds to wait for others that hold the folder.

    Raises: CdcUsageError, with nothing changed; CdcError 22838 for a key with NULLs or duplicates, 22832 if the table's
        properties cannot be set; ScanInProgressError; LeaseError.
    """
    found = database_at(database)
    found.require_enabled()
    if on_gap not in (COMPARE, STOP):
        raise CdcUsageError.bad_parameter(22990, "on_gap", on_gap, "it is compare or stop")
    reader = log_reader(found, spark=spark, wait_s=lock_wait_s)
    with (
        plain_errors("a table was enabled for Change Data Capture"),
        lease(found.root, purpose="cdc enable-table", wait_s=lock_wait_s),
        held(reader, "cdc enable-table"),
    ):
        state = tidied(reader, found)
        wanted = checked(
            found,
            state,
            *source_of(source_name, source_schema),
            capture_instance=capture_instance,
            supports_net_changes=supports_net_changes,
            index=names_in(index),
            captured=names_in(captured_column_list),
            published=lambda path: key_of(state, reader.consumers, path) or article_key(found.root, path),
        )
        refuse_other_key(state, reader.consumers, wanted.path, wanted.key)
        known = state.source_at(wanted.path)
        if known is None or NAME not in known.consumers:
            if wanted.key:
                check_key(reader.spark(), wanted)
            _set_properties(reader, wanted, timedelta(seconds=state.database.file_retention or 0))
        if not found.instances():
            default = partial(with_default_jobs, state.database.database_id, is_shared=is_shared(state))
            found.control.edit(CDC_JOBS, default)
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
        set_properties(reader.spark(), table, missing, CommitMark(database_id, "cdc:enable"))
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
    """Return the rows of the instance that begins, as JSON."""
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
    stated = asdict(instance)
    return {
        "instances": [{**stated, "start_lsn": lsn.hex(), "create_date": instance.create_date.isoformat()}],
        "captured": [asdict(each) for each in captured],
        "index": [asdict(each) for each in index],
        "types": {str(object_id): {name: found[name]["type"] for name in wanted.columns}},
    }


def disable_table(
    database: str | os.PathLike[str],
    source_name: str,
    *,
    source_schema: str = DBO,
    capture_instance: str,
    lock_wait_s: float = 0.0,
) -> list[str]:
    """End an instance of a table, or `all`: its change table is removed with all its rows. Returns the names.

    Raises: CdcUsageError if the table has none; ScanInProgressError.
    """
    found = database_at(database)
    found.require_enabled()
    reader = log_reader(found, wait_s=lock_wait_s)
    with plain_errors("a capture instance was disabled"), held(reader, "cdc disable-table"):
        state = tidied(reader, found)
        path = source_of(source_name, source_schema)[0]
        known = state.source_at(path)
        of_source = [
            each for each in found.instances() if known and each.source_object_id == known.source_object_id
        ]
        wanted = [
            each
            for each in of_source
            if capture_instance == "all" or each.capture_instance.lower() == capture_instance.lower()
        ]
        if not wanted:
            names = [each.capture_instance for each in of_source]
            raise CdcUsageError.no_such_instance(f"{capture_instance} of table {path}", names)
        found.control.remove_where(CHANGE_TABLES, object_id={each.object_id for each in wanted})
        failpoint("cdc.after_disable_table")
        tidied(reader, found)
    return [each.capture_instance for each in wanted]


def help_change_data_capture(
    database: str | os.PathLike[str], source_name: str | None = None, *, source_schema: str | None = None
) -> list[CaptureInstance]:
    """Return the capture instances of all tables, or of one.

    Raises: CdcUsageError if the database is not enabled.
    """
    found = database_at(database)
    sources = _sources(found)
    wanted = None if source_name is None else source_of(source_name, source_schema or DBO)[0]
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
    """True if a table has a capture instance."""
    found = database_at(database)
    return found.is_enabled and bool(
        help_change_data_capture(database, source_name, source_schema=source_schema)
    )


def get_captured_columns(database: str | os.PathLike[str], instance: str) -> list[CapturedColumn]:
    """Return the captured columns of an instance, by ordinal.

    Raises: CdcUsageError if the instance does not exist.
    """
    found = database_at(database)
    return found.captured(found.instance(instance).object_id)
