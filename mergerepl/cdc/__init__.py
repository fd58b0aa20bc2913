"""Change Data Capture over a folder of Delta tables, with the names of SQL Server's procedures and functions.

Public names are loaded on first use: calls without Spark start none. No module of the package has a public name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergerepl.cdc.capture import scan
    from mergerepl.cdc.cleaning import cleanup, cleanup_change_table
    from mergerepl.cdc.consumers import apply_changes
    from mergerepl.cdc.enabling import adopt, disable_db, enable_db, is_cdc_enabled
    from mergerepl.cdc.envelopes import to_debezium
    from mergerepl.cdc.instances import (
        disable_table,
        enable_table,
        get_captured_columns,
        help_change_data_capture,
        is_tracked_by_cdc,
    )
    from mergerepl.cdc.jobs import add_job, change_job, drop_job, help_jobs, start_job, stop_job
    from mergerepl.cdc.lsn_times import (
        decrement_lsn,
        get_max_lsn,
        get_min_lsn,
        increment_lsn,
        lsn_of,
        map_lsn_to_time,
        map_time_to_lsn,
        switch_lsn,
        version_of,
    )
    from mergerepl.cdc.monitoring import errors, get_ddl_history, scan_sessions, status, warnings_of
    from mergerepl.cdc.queries import (
        get_all_changes,
        get_column_ordinal,
        get_net_changes,
        has_column_changed,
        is_bit_set,
    )
    from mergerepl.cdc.refusals import CdcError, CdcUsageError, LsnRangeError, ScanInProgressError
    from mergerepl.cdc.resuming import resume
    from mergerepl.cdc.retention import vacuum
    from mergerepl.cdc.source_rows import Snapshot, snapshot
    from mergerepl.logreader.lsn import Lsn
    from mergerepl.model.cdc import AppliedChanges, CaptureInstance, CleanupResult, Job, ScanResult

__all__ = [
    "AppliedChanges",
    "CaptureInstance",
    "CdcError",
    "CdcUsageError",
    "CleanupResult",
    "Job",
    "Lsn",
    "LsnRangeError",
    "ScanInProgressError",
    "ScanResult",
    "Snapshot",
    "add_job",
    "adopt",
    "apply_changes",
    "change_job",
    "cleanup",
    "cleanup_change_table",
    "decrement_lsn",
    "disable_db",
    "disable_table",
    "drop_job",
    "enable_db",
    "enable_table",
    "errors",
    "get_all_changes",
    "get_captured_columns",
    "get_column_ordinal",
    "get_ddl_history",
    "get_max_lsn",
    "get_min_lsn",
    "get_net_changes",
    "has_column_changed",
    "help_change_data_capture",
    "help_jobs",
    "increment_lsn",
    "is_bit_set",
    "is_cdc_enabled",
    "is_tracked_by_cdc",
    "lsn_of",
    "map_lsn_to_time",
    "map_time_to_lsn",
    "resume",
    "scan",
    "scan_sessions",
    "snapshot",
    "start_job",
    "status",
    "stop_job",
    "switch_lsn",
    "to_debezium",
    "vacuum",
    "version_of",
    "warnings_of",
]

_HOMES = {
    **dict.fromkeys(
        ("AppliedChanges", "CleanupResult", "Job", "CaptureInstance", "ScanResult"), "mergerepl.model.cdc"
    ),
    **dict.fromkeys(
        ("CdcError", "CdcUsageError", "LsnRangeError", "ScanInProgressError"), "mergerepl.cdc.refusals"
    ),
    **dict.fromkeys(
        ("errors", "get_ddl_history", "scan_sessions", "status", "warnings_of"), "mergerepl.cdc.monitoring"
    ),
    **dict.fromkeys(
        (
            *("decrement_lsn", "get_max_lsn", "get_min_lsn", "increment_lsn", "lsn_of", "map_lsn_to_time"),
            *("map_time_to_lsn", "switch_lsn", "version_of"),
        ),
        "mergerepl.cdc.lsn_times",
    ),
    **dict.fromkeys(
        ("get_all_changes", "get_column_ordinal", "get_net_changes", "has_column_changed", "is_bit_set"),
        "mergerepl.cdc.queries",
    ),
    **dict.fromkeys(("Snapshot", "snapshot"), "mergerepl.cdc.source_rows"),
    **dict.fromkeys(("cleanup", "cleanup_change_table"), "mergerepl.cdc.cleaning"),
    **dict.fromkeys(
        ("add_job", "change_job", "drop_job", "help_jobs", "start_job", "stop_job"), "mergerepl.cdc.jobs"
    ),
    **dict.fromkeys(("adopt", "disable_db", "enable_db", "is_cdc_enabled"), "mergerepl.cdc.enabling"),
    "resume": "mergerepl.cdc.resuming",
    "to_debezium": "mergerepl.cdc.envelopes",
    "apply_changes": "mergerepl.cdc.consumers",
    "vacuum": "mergerepl.cdc.retention",
    "Lsn": "mergerepl.logreader.lsn",
    "scan": "mergerepl.cdc.capture",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module. No function changes the caller's active session."""
    if name not in __all__:
        from mergerepl.model.later import instead_of

        if (instead := instead_of("cdc", name)) is not None:
            from mergerepl.cdc.refusals import CdcUsageError

            raise CdcUsageError.later(name, instead)
        raise AttributeError(f"module 'mergerepl.cdc' has no attribute '{name}'")
    from mergerepl.spark.callers import public

    return public(_HOMES.get(name, "mergerepl.cdc.instances"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
