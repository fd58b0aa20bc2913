"""Results of Change Data Capture: values without an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.model.listing import HtmlResult
from mergerepl.model.tasks import CRITICAL as CRITICAL
from mergerepl.model.tasks import WARNING as WARNING
from mergerepl.model.tasks import StatusWarning as StatusWarning


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
class ScanResult(HtmlResult):
    """The outcome of one `capture`, over all its cycles.

    `last_lsn` is None if nothing was new. `paused`: path of a source that cannot be read further -> reason.
    """

    cycles: int
    transactions: int
    rows: int
    last_lsn: bytes | None
    paused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceStatus:
    """The progress of reading a source. `vacuum_safe_until` and `log_safe_until` are None if nothing is unread.

    `has_feed`: whether its Change Data Feed is on at the position; a RESTORE, for example, may have switched it off.
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


LATENCY = timedelta(seconds=30)
"""Unread commits and unapplied commands may be this old without a warning."""


@dataclass(frozen=True)
class DatabaseStatus(HtmlResult):
    """The state of a database: LSNs are 10 bytes, None before the first one."""

    database: str
    database_id: str
    epoch: int
    min_lsn: bytes | None
    max_lsn: bytes | None
    max_time: datetime | None
    sources: tuple[SourceStatus, ...]
    has_plan: bool
    warnings: tuple[StatusWarning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CapturedColumn:
    """A row of `captured_columns`."""

    object_id: Annotated[int, "number of the change table"]
    column_name: Annotated[str, "name of the column in the change table"]
    column_id: Annotated[int, "id of the column mapping, else position in the source, from 1"]
    column_type: Annotated[str, "type, as Spark DDL"]
    column_ordinal: Annotated[int, "position among the captured columns, from 1: its bit in the mask"]
    is_computed: Annotated[bool, "whether the source generates it"] = False
    source_name: Annotated[str | None, "present name in the source; NULL if it was dropped"] = None


@dataclass(frozen=True, kw_only=True)
class DdlEntry:
    """A row of `ddl_history`."""

    source_object_id: Annotated[int, "number of the source"]
    object_id: Annotated[int, "number of the change table"]
    required_column_update: Annotated[bool, "whether a type of the change table was changed"]
    ddl_command: Annotated[str, "what was done, rebuilt from the difference of the columns"]
    ddl_lsn: Annotated[bytes, "LSN of the commit"]
    ddl_time: Annotated[datetime, "tran_end_time of that LSN"]


@dataclass(frozen=True, kw_only=True)
class ScanSession:
    """A row of `scan_sessions`."""

    session_id: Annotated[int, "number of the session"]
    start_time: Annotated[datetime, "when the cycle began"]
    end_time: Annotated[datetime | None, "when it ended; NULL if it did not"] = None
    duration: Annotated[Bigint, "seconds"] = 0
    scan_phase: Annotated[str, "always Done: a cycle is recorded at its end"] = "Done"
    error_count: Annotated[int, "sources that were paused, and other errors"] = 0
    start_lsn: Annotated[bytes | None, "first LSN of the cycle"] = None
    current_lsn: Annotated[bytes | None, "LSN that was being written"] = None
    end_lsn: Annotated[bytes | None, "last LSN of the cycle"] = None
    tran_count: Annotated[Bigint, "transactions"] = 0
    last_commit_lsn: Annotated[bytes | None, "LSN of the last transaction"] = None
    last_commit_time: Annotated[datetime | None, "its tran_end_time"] = None
    log_record_count: Annotated[Bigint, "commits that were read"] = 0
    schema_change_count: Annotated[int, "commits that changed columns"] = 0
    command_count: Annotated[Bigint, "rows that were written to change tables"] = 0
    first_begin_cdc_lsn: Annotated[bytes | None, "first LSN that changes were written under"] = None
    last_commit_cdc_lsn: Annotated[bytes | None, "last LSN that changes were written under"] = None
    last_commit_cdc_time: Annotated[datetime | None, "its tran_end_time"] = None
    latency: Annotated[int, "seconds from last_commit_cdc_time to end_time"] = 0


@dataclass(frozen=True, kw_only=True)
class ScanError:
    """A row of `errors`."""

    session_id: Annotated[int, "session in which it occurred"]
    entry_time: Annotated[datetime, "when it was recorded"]
    error_number: Annotated[int, "number of the error"]
    error_severity: Annotated[int, "10 is a notice, 16 an error"] = 16
    error_state: Annotated[int, "always 1"] = 1
    error_message: Annotated[str, "what failed, on which source, why, and what to do next"] = ""


@dataclass(frozen=True)
class RemovedChanges(HtmlResult):
    """The outcome of one cleanup.

    `low_water_mark` is the LSN below which change rows were removed, None if nothing was due. `rows` are the removed
    change rows by capture instance, `entries` those of lsn_time_mapping. `failed`: instance whose change table could
    not be cleaned -> reason.
    """

    low_water_mark: bytes | None
    rows: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if all change tables could be cleaned."""
        return not self.failed


@dataclass(frozen=True)
class AppliedChanges(HtmlResult):
    """The changes that one `Instance.load` brought to its target.

    `from_lsn` is None if the target was filled from a snapshot; both LSNs are None if nothing was new. `upserted` are
    rows inserted or updated, `deleted` rows deleted, by the net changes. `foreign_commits` are those by which other
    writers changed rows of the target since the last batch. `paused` is why the source is not captured, or None;
    `unread_commits` are the source's commits not captured yet.
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

    @property
    def ok(self) -> bool:
        """True if the source is not paused."""
        return self.paused is None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of `cdc_jobs`: the result set of `sp_cdc_help_jobs`, and the job's requested state."""

    database_id: Annotated[str, "identity of the database"]
    job_type: Annotated[str, "capture or cleanup; logreader, not capture, where publications share the log"]
    job_id: Annotated[str, "identity of the job"]
    maxtrans: Annotated[int | None, "capture: transactions of a scan cycle at most"] = None
    maxscans: Annotated[int | None, "capture: cycles before it waits"] = None
    continuous: Annotated[bool | None, "capture: whether it continues after a wait"] = None
    pollinginterval: Annotated[Bigint | None, "capture: seconds to wait"] = None
    retention: Annotated[Bigint | None, "cleanup: minutes that change rows are kept"] = None
    threshold: Annotated[Bigint | None, "cleanup: rows of a statement at most"] = None
    requested: Annotated[str, "started or stopped"] = "started"
    schedule: Annotated[str | None, "cleanup: time of day"] = None
    last_run: Annotated[datetime | None, "cleanup: when it ran last"] = None
    starts: Annotated[Bigint, NOT_NULL, "how often it was started: a new start takes changed parameters"] = 0


@dataclass(frozen=True)
class InstanceDescription(HtmlResult):
    """A capture instance, its interval, its captured columns and the changes of its table's columns."""

    instance: CaptureInstance
    min_lsn: bytes
    max_lsn: bytes | None
    columns: tuple[CapturedColumn, ...]
    ddl_history: tuple[DdlEntry, ...]


@dataclass(frozen=True)
class JobEvent:
    """An event of an agent: `job` is capture, logreader, cleanup, distribute, sync or agent."""

    time: datetime
    database: str
    job: str
    text: str
    is_failed: bool = False


@dataclass(frozen=True)
class AgentStatus:
    """The agent that runs the jobs of a root; without a pid none runs. `since` is its start, in UTC."""

    root: str
    pid: int | None = None
    host: str | None = None
    since: str | None = None
    jobs: tuple[Job, ...] = ()
