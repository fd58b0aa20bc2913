"""The procedures and functions of SQL Server by their names, for scripts and readers that know them: one line each.

`database` is the folder. Parameters have SQL Server's names without `@`. `index` is new: Delta declares no primary key.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from mergerepl.cdc import queries
from mergerepl.cdc.database import Database
from mergerepl.cdc.instance import Instance
from mergerepl.cdc.instances import FILES_KEPT, disable, enable_empty
from mergerepl.cdc.jobs import CAPTURE
from mergerepl.cdc.new_instance import DBO
from mergerepl.cdc.tables import lsn_of_text, tables_at
from mergerepl.logreader.lsn import ZERO, Lsn
from mergerepl.model.cdc import (
    CapturedColumn,
    CaptureInstance,
    DdlEntry,
    Job,
    RemovedChanges,
    ScanError,
    ScanResult,
    ScanSession,
)
from mergerepl.model.listing import Listing

Folder = str | os.PathLike[str]


def sp_cdc_enable_db(database: Folder, *, log_retention: str = FILES_KEPT) -> bool:
    """Enable a folder before its first table. Returns False if it was enabled already."""
    return enable_empty(tables_at(database), log_retention)


def sp_cdc_disable_db(database: Folder) -> tuple[str, ...]:
    """End the capture of all tables. Returns the names of their instances."""
    return Database(database).disable()


def sp_cdc_enable_table(
    database: Folder,
    source_schema: str,
    source_name: str,
    role_name: str | None = None,
    capture_instance: str | None = None,
    supports_net_changes: bool | None = None,
    index_name: str | None = None,
    captured_column_list: Sequence[str] | str | None = None,
    *,
    index: Sequence[str] | str | None = None,
) -> Instance:
    """Capture a table."""
    return Database(database).enable(
        _path(source_schema, source_name),
        key=index,
        columns=captured_column_list,
        name=capture_instance,
        net=supports_net_changes,
        role_name=role_name,
        index_name=index_name,
    )


def sp_cdc_disable_table(
    database: Folder, source_schema: str, source_name: str, capture_instance: str
) -> tuple[str, ...]:
    """End a capture instance of a table, or `all`. Returns their names. The folder stays enabled."""
    name = None if capture_instance == "all" else capture_instance
    return tuple(disable(tables_at(database), _path(source_schema, source_name), name, keeps_root=True))


def sp_cdc_help_change_data_capture(
    database: Folder, source_schema: str | None = None, source_name: str | None = None
) -> Listing[CaptureInstance]:
    """Return the capture instances of all tables, or of one."""
    return Database(database).instances(source_name and _path(source_schema or DBO, source_name))


def sp_cdc_get_captured_columns(database: Folder, capture_instance: str) -> Listing[CapturedColumn]:
    """Return the captured columns of an instance."""
    return Database(database).instance(capture_instance).columns()


def sp_cdc_get_ddl_history(database: Folder, capture_instance: str) -> Listing[DdlEntry]:
    """Return the column changes of the table of an instance."""
    return Database(database).instance(capture_instance).ddl_history()


def sp_cdc_scan(database: Folder, maxtrans: int = 1000, maxscans: int = 10) -> ScanResult:
    """Capture new changes."""
    return Database(database).capture(maxtrans=maxtrans, maxscans=maxscans)


def sp_cdc_cleanup_change_table(
    database: Folder, capture_instance: str, low_water_mark: bytes | str | None = None, threshold: int = 5000
) -> RemovedChanges:
    """Raise the low end of an instance."""
    return Database(database).instance(capture_instance).cleanup(low_water_mark, threshold=threshold)


def sp_cdc_add_job(database: Folder, job_type: str, start_job: bool = True, **parameters: Any) -> Job:
    """Create a job."""
    return Database(database).jobs.add(job_type, start=start_job, **parameters)


def sp_cdc_change_job(database: Folder, job_type: str = CAPTURE, **parameters: Any) -> Job:
    """Change parameters of a job."""
    return Database(database).jobs.change(job_type, **parameters)


def sp_cdc_drop_job(database: Folder, job_type: str) -> None:
    """Remove a job."""
    Database(database).jobs.drop(job_type)


def sp_cdc_start_job(database: Folder, job_type: str = CAPTURE) -> Job:
    """Start a job."""
    return Database(database).jobs.start(job_type)


def sp_cdc_stop_job(database: Folder, job_type: str = CAPTURE) -> Job:
    """Stop a job."""
    return Database(database).jobs.stop(job_type)


def sp_cdc_help_jobs(database: Folder) -> Listing[Job]:
    """Return the jobs."""
    return Database(database).jobs.list()


def fn_cdc_get_all_changes(
    database: Folder,
    capture_instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter_option: str = "all",
) -> DataFrame:
    """Return all changes: `cdc.fn_cdc_get_all_changes_<capture_instance>`. A missing LSN is error 313."""
    return queries.all_changes(tables_at(database), capture_instance, from_lsn, to_lsn, row_filter_option)


def fn_cdc_get_net_changes(
    database: Folder,
    capture_instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter_option: str = "all",
) -> DataFrame:
    """Return net changes: `cdc.fn_cdc_get_net_changes_<capture_instance>`. A missing LSN is error 313."""
    return queries.net_changes(tables_at(database), capture_instance, from_lsn, to_lsn, row_filter_option)


def fn_cdc_get_min_lsn(database: Folder, capture_instance: str) -> Lsn:
    """Return the low end of an instance; zero if it does not exist."""
    lows = {row.capture_instance.lower(): row.start_lsn for row in Database(database).instances()}
    return Lsn(lows.get(capture_instance.lower(), ZERO))


def fn_cdc_get_max_lsn(database: Folder) -> Lsn | None:
    """Return the highest LSN."""
    return Database(database).max_lsn()


def fn_cdc_increment_lsn(lsn: bytes | str) -> Lsn:
    """Return the next LSN."""
    return lsn_of_text(lsn).next()


def fn_cdc_decrement_lsn(lsn: bytes | str) -> Lsn:
    """Return the LSN before."""
    return lsn_of_text(lsn).previous()


def fn_cdc_map_time_to_lsn(database: Folder, relational_operator: str, tracking_time: datetime) -> Lsn | None:
    """Return the LSN that an operator finds for a time."""
    return Database(database).lsn_at(tracking_time, relational_operator)


def fn_cdc_map_lsn_to_time(database: Folder, lsn: bytes | str) -> datetime | None:
    """Return the time of an LSN."""
    return Database(database).time_of(lsn)


def fn_cdc_get_column_ordinal(database: Folder, capture_instance: str, column_name: str) -> int | None:
    """Return the ordinal of a captured column; None if the instance does not capture it."""
    columns = Database(database).instance(capture_instance).columns()
    return next((c.column_ordinal for c in columns if c.column_name.lower() == column_name.lower()), None)


def fn_cdc_is_bit_set(position: int, update_mask: bytes | None) -> bool:
    """True if a mask has the bit of an ordinal."""
    return queries.is_bit_set(position, update_mask)


def fn_cdc_has_column_changed(
    database: Folder, capture_instance: str, column_name: str, update_mask: bytes
) -> bool:
    """True if a mask marks a column as changed."""
    return Database(database).instance(capture_instance).has_changed(column_name, update_mask)


def dm_cdc_log_scan_sessions(database: Folder) -> Listing[ScanSession]:
    """Return the newest scan sessions."""
    return Database(database).history()


def dm_cdc_errors(database: Folder) -> Listing[ScanError]:
    """Return the newest errors of scans."""
    return Database(database).history(failed=True)


def _path(schema: str, name: str) -> str:
    return name if schema == DBO else f"{schema}/{name}"
