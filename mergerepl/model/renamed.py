"""Commands, options and public names that are gone, each with the one that does its work now. Nothing answers to them."""

from typing import Final

IN_PYTHON: Final = "in Python: "

COMMANDS: Final[dict[str, str]] = {
    "partition": "partitions",
    "partition list": "partitions list",
    "partition add": "partitions add",
    "partition drop": "partitions drop PARTITION",
    "conflicts summary": "conflicts list --count-by day,table,type,resolver",
    "conflicts purge": "conflicts drop ID... (or `mergerepl cleanup` for old ones)",
    "agent start": "agent run --detach",
    "transactional logreader": "capture",
    "transactional distribute": "sync",
    "transactional errors": "history --failed",
    "cdc enable-db": "cdc enable TABLE (the first table enables the folder)",
    "cdc enable-table": "cdc enable TABLE",
    "cdc disable-db": "cdc disable --all",
    "cdc disable-table": "cdc disable TABLE",
    "cdc help": "cdc list",
    "cdc columns": "cdc show INSTANCE",
    "cdc ddl-history": "cdc show INSTANCE",
    "cdc errors": "history --failed",
    "cdc sessions": "history",
    "cdc adopt": "cdc relocate",
    "cdc net": "cdc changes INSTANCE --net",
    "cdc apply": "cdc load INSTANCE --into PATH --consumer NAME",
    "tracking transactions": "history",
    "tracking upgrade": "status",
    "tracking key": f"{IN_PYTHON}ChangeTracking(PATH).pack_key(TABLE, VALUES), or .unpack_key(TABLE, KEY)",
    "tracking sql": f"{IN_PYTHON}ChangeTracking.sql(TABLE)",
}
"""A command that is gone -> the words after `mergerepl` that do its work, or the call in Python.

One of a group that is a command of all products now is not listed.
"""

OPTIONS: Final[dict[str, str]] = {
    "--subscriber": "REPLICA, the name of the subscriber after the command",
    "skip --subscriber": "--at",
    "script --subscriber": "--at",
    "--article": "--table",
    "row --article": "TABLE, after the command",
    "conflicts --type": "--conflict-type",
    "--since": "--from",
    "--until": "--to",
    "--from-lsn": "--from",
    "--from-time": "--from",
    "--to-lsn": "--to",
    "--to-time": "--to",
    "conflicts export --to": "-o",
    "conflicts report --to": "-o",
    "--rows": "--limit",
    "purge --table": "TABLE, after the command",
    "cleanup --retention": "--older-than, as in `mergerepl cleanup --older-than 3d`",
    "--mend": "--fix",
    "doctor --engine": "--start-engine",
    "--give-up": "mergerepl abort SESSION",
    "--index": "--key",
    "--keys": "--key",
    "--guid": "--rowguid",
    "--options": "--track",
    "--option": "--row-filter",
    "cdc enable --capture-instance": "--name",
    "cdc disable --capture-instance": "--name",
    "--capture-instance": "INSTANCE, after the command",
    "--instance": "INSTANCE, after the command",
    "--low-water-mark": "--to",
    "--days": "--older-than, as in --older-than 90d",
    "--csn": "--to",
    "--open": "mergerepl status, which lists open transactions",
    "lsn --show": "the LSN after the command",
    "tracking --consumer": "CONSUMER, after the command",
    "--net": "nothing: instances with a key support net changes, unless --no-net",
    "--initial": "nothing: it is the default",
    "jobs --start": "nothing: it is the default",
}
"""An option that is gone, after the words that it is known by -> what it is now."""

_DISTRIBUTOR = "Distributor(PATH)"

_DATABASE = "Database(PATH)"
_REPLICA = "Replica(PATH)"

RENAMED: Final[dict[str, dict[str, str]]] = {
    "mergerepl": {
        "load": "Project.load",
        **{
            name: f"Project.{name}"
            for name in ("capture", "history", "pending", "status", "sync", "validate")
        },
        **{name: f"{_REPLICA}.{name}" for name in ("row", "tune")},
        "partitions": f"{_REPLICA}.partitions.list",
        "add_partition": f"{_REPLICA}.partitions.add",
        "drop_partition": f"{_REPLICA}.partitions.drop",
        "ConflictFilter": "Conflicts.where",
        "conflicts": "Conflicts.rows",
        "conflict_count": "Conflicts.count",
        "conflict_records": "Conflicts.list",
        "conflict_report": "Conflicts.report",
        "conflict_summary": "Conflicts.count_by",
        "export_conflicts": "Conflicts.export",
        "purge_conflicts": "Conflicts.drop",
        "resolve_conflicts": "Conflicts.resolve",
        "retry_failed": "Conflicts.retry",
    },
    "mergerepl.cdc": {
        **{name: f"{_DATABASE}.{name}" for name in ("cleanup", "resume", "status", "vacuum")},
        **dict.fromkeys(("enable_db", "enable_table"), f"{_DATABASE}.enable"),
        **dict.fromkeys(("disable_db", "disable_table"), f"{_DATABASE}.disable"),
        **dict.fromkeys(("errors", "scan_sessions"), f"{_DATABASE}.history"),
        **{f"{name}_job": f"Jobs.{name}" for name in ("add", "change", "drop", "start", "stop")},
        **{
            name: f"Instance.{name}"
            for name in ("lsn_of", "snapshot", "switch_lsn", "to_debezium", "version_of")
        },
        **dict.fromkeys(
            ("generate_wrapper_function", "get_all_changes", "register_functions", "register_source"),
            "Instance.changes",
        ),
        "adopt": f"{_DATABASE}.relocate",
        "apply_changes": "Instance.load",
        "cleanup_change_table": "Instance.cleanup",
        "decrement_lsn": "Lsn.previous",
        "get_captured_columns": "Instance.columns",
        "get_column_ordinal": "Instance.ordinal",
        "get_ddl_history": "Instance.ddl_history",
        "get_max_lsn": f"{_DATABASE}.max_lsn",
        "get_min_lsn": "Instance.min_lsn",
        "get_net_changes": "Instance.net_changes",
        "has_column_changed": "Instance.has_changed",
        "help_change_data_capture": f"{_DATABASE}.instances",
        "help_jobs": "Jobs.list",
        "increment_lsn": "Lsn.next",
        "is_cdc_enabled": f"{_DATABASE}.is_enabled",
        "is_tracked_by_cdc": f"{_DATABASE}.is_captured",
        "map_lsn_to_time": f"{_DATABASE}.time_of",
        "map_time_to_lsn": f"{_DATABASE}.lsn_at",
        "scan": f"{_DATABASE}.capture",
        "warnings_of": f"{_DATABASE}.status",
    },
    "mergerepl.tracking.ChangeTracking": {
        "disable_tracking": "disable",
        "enable_tracking": "enable",
        "enumeration_sql": "sql",
        "forget_consumer": "forget",
        "get_last_committed_csn": "last_csn",
        "get_tracking_options": "options",
        "pack_tombstone_key": "pack_key",
        "purge_tombstone_table_data": "purge",
        "purge_transaction_sequence_data": "purge",
        "unpack_tombstone_key": "unpack_key",
        "upgrade_public_tracking": "mergerepl.tracking.SqlCeChangeTracking.UpgradePublicTracking",
    },
    "mergerepl.transactional": {
        **{
            name: f"{_DISTRIBUTOR}.{name}"
            for name in (
                *(
                    "browse",
                    "cleanup",
                    "errors",
                    "history",
                    "pending",
                    "reinit",
                    "repair",
                    "resume",
                    "script",
                ),
                *("skip", "status", "validate"),
            )
        },
        "apply_transactional": "mergerepl.Project.load(FILE).apply",
        "distribute": f"{_DISTRIBUTOR}.deliver",
        "logreader": f"{_DISTRIBUTOR}.capture",
        "net": "Call.net",
        "read": "Subscriber(PATH).read",
        "shown": "Subscriber(PATH).first_rows",
        "warnings_of": f"{_DISTRIBUTOR}.warnings",
        **{f"Transactional{name}": name for name in ("Article", "Publication", "Subscription")},
    },
}
"""Package or class -> old name -> new name."""


def missing(place: str, owner: str, name: str) -> AttributeError:
    """Return the error about a name that the package or class `place` lacks; `owner` names it in the text."""
    now = RENAMED.get(place, {}).get(name)
    return AttributeError(f"{owner} has no attribute '{name}'" + (f": it is `{now}` now" if now else ""))
