"""What Change Data Capture returns: values without an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True)
class CaptureInstance:
    """A capture instance: the result set of `sp_cdc_help_change_data_capture`. LSNs are 10 bytes."""

    source_schema: str
    source_table: str
    capture_instance: str
    object_id: int
    source_object_id: int
    start_lsn: bytes
    end_lsn: bytes | None
    supports_net_changes: bool
    has_drop_pending: bool
    role_name: str | None
    index_name: str | None
    filegroup_name: str | None
    create_date: datetime
    index_column_list: tuple[str, ...]
    captured_column_list: tuple[str, ...]


@dataclass(frozen=True)
class ScanResult:
    """What one `scan` did, over all its cycles.

    `last_lsn` is None where nothing was new. `paused` are the sources that could not be read on: path -> reason.
    """

    cycles: int
    transactions: int
    rows: int
    last_lsn: bytes | None
    paused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceStatus:
    """How far a source was read. `vacuum_safe_until` and `log_safe_until` are None where nothing is unread.

    `has_feed`: whether its Change Data Feed is on at the position: RESTORE, for one, may have switched it off.
    """

    source: str
    object_id: int
    status: str
    position: int
    head: int | None
    unread_commits: int
    oldest_unread: datetime | None
    vacuum_safe_until: datetime | None
    log_safe_until: datetime | None
    log_reuse_wait: str
    error_number: int | None
    reason: str | None
    capture_instances: tuple[str, ...]
    has_feed: bool = True


@dataclass(frozen=True)
class DatabaseStatus:
    """The state of a database: LSNs are 10 bytes, None before the first one."""

    database: str
    database_id: str
    epoch: int
    min_lsn: bytes | None
    max_lsn: bytes | None
    max_time: datetime | None
    sources: tuple[SourceStatus, ...]
    has_plan: bool


LATENCY = timedelta(seconds=30)
"""Commits that are not read, and commands that are not applied, may be this old without a warning."""

WARNING, CRITICAL = "warning", "critical"
"""Levels of a `StatusWarning`."""


@dataclass(frozen=True)
class StatusWarning:
    """What is wrong with a source, or soon will be: `level` is warning or critical."""

    source: str
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class CapturedColumn:
    """A row of `captured_columns`."""

    object_id: int
    column_name: str
    column_id: int
    column_type: str
    column_ordinal: int
    is_computed: bool = False
    source_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class DdlEntry:
    """A row of `ddl_history`."""

    source_object_id: int
    object_id: int
    required_column_update: bool
    ddl_command: str
    ddl_lsn: bytes
    ddl_time: datetime


@dataclass(frozen=True, kw_only=True)
class ScanSession:
    """A row of `scan_sessions`."""

    session_id: int
    start_time: datetime
    end_time: datetime | None = None
    duration: int = 0
    scan_phase: str = "Done"
    error_count: int = 0
    start_lsn: bytes | None = None
    current_lsn: bytes | None = None
    end_lsn: bytes | None = None
    tran_count: int = 0
    last_commit_lsn: bytes | None = None
    last_commit_time: datetime | None = None
    log_record_count: int = 0
    schema_change_count: int = 0
    command_count: int = 0
    first_begin_cdc_lsn: bytes | None = None
    last_commit_cdc_lsn: bytes | None = None
    last_commit_cdc_time: datetime | None = None
    latency: int = 0
    empty_scan_count: int = 0
    failed_sessions_count: int = 0


@dataclass(frozen=True, kw_only=True)
class ScanError:
    """A row of `errors`."""

    session_id: int
    phase_number: int = 0
    entry_time: datetime
    error_number: int
    error_severity: int = 16
    error_state: int = 1
    error_message: str = ""
    start_lsn: bytes | None = None
    begin_lsn: bytes | None = None
    sequence_value: bytes | None = None


@dataclass(frozen=True)
class CleanupResult:
    """What one cleanup did.

    `low_water_mark` is the LSN below which change rows went, None if there are none to be cleaned yet. `rows` are the
    change rows removed by capture instance, `entries` those of lsn_time_mapping. `failed` are the change tables that could
    not be cleaned: instance -> reason.
    """

    low_water_mark: bytes | None
    rows: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AppliedChanges:
    """What one `apply_changes` brought to its target.

    `from_lsn` is None where the target was filled from a snapshot; both are None where nothing was new. `upserted` are rows
    inserted or updated, `deleted` rows deleted, by the net changes. `foreign_commits` are those by which other writers
    changed rows of the target since the last batch. `paused` is why the source is not captured, None if it is;
    `unread_commits` are those of the source that were not captured yet.
    """

    target: str
    from_lsn: bytes | None
    to_lsn: bytes | None
    upserted: int = 0
    deleted: int = 0
    is_snapshot: bool = False
    foreign_commits: int = 0
    paused: str | None = None
    unread_commits: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of `cdc_jobs`: the result set of `sp_cdc_help_jobs`, and what was asked of the job."""

    database_id: str
    job_type: str
    job_id: str
    maxtrans: int | None = None
    maxscans: int | None = None
    continuous: bool | None = None
    pollinginterval: int | None = None
    retention: int | None = None
    threshold: int | None = None
    requested: str = "started"
    schedule: str | None = None
    last_run: datetime | None = None
    starts: int = 0


@dataclass(frozen=True)
class JobEvent:
    """Something that an agent did: `job` is capture, logreader, cleanup or agent."""

    time: datetime
    database: str
    job: str
    text: str
    is_failed: bool = False


@dataclass(frozen=True)
class AgentStatus:
    """The agent that runs the jobs of a root; without a pid there is none. `since` is when it started, in UTC."""

    root: str
    pid: int | None = None
    host: str | None = None
    since: str | None = None


@dataclass(frozen=True)
class Vacuumed:
    """What `vacuum` kept: files of so many hours.

    `read_through` is the version through which everybody has read the table, None if nothing is unread.
    """

    source: str
    retention_hours: int
    read_through: int | None = None
