"""The state of a database: positions, errors, scan sessions, columns. Nothing here starts Spark."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.cdc.tables import CdcTables
from mergerepl.delta.properties import FILE_RETENTION, LOG_RETENTION, RETENTION_DEFAULTS, interval_of
from mergerepl.delta.tables import head_version, is_delta_table, written_ns
from mergerepl.delta.vacuum import moment_of_ns
from mergerepl.errors import StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.sources import metadata_of
from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.cdc import CRITICAL, LATENCY, WARNING, DatabaseStatus, SourceStatus, StatusWarning
from mergerepl.systables.cdc import ChangeTable
from mergerepl.systables.logreader import LogReaderRow

NOTHING, REPLICATION = "NOTHING", "REPLICATION"
_WARNED = 0.25
_NONE = timedelta(0)
_FEED_OFF = (
    "Its Change Data Feed is off: somebody switched it off, or restored an older version. Whole versions are compared, and "
    "states in between are lost. Set 'delta.enableChangeDataFeed' to 'true'."
)


def status(found: CdcTables, alerts: Alerts = DEFAULT) -> DatabaseStatus:
    """Return the position of each source, the latest safe time for VACUUM, the validity interval, and the problems.

    Raises: CdcUsageError if the database is not enabled.
    """
    instances = found.instances()
    state = read_state(found.log)
    newest = found.newest_entry()
    state_now = DatabaseStatus(
        database=str(found.root),
        database_id=state.database.database_id,
        epoch=state.database.epoch,
        min_lsn=Lsn(min(each.start_lsn for each in instances)) if instances else None,
        max_lsn=None if newest is None else Lsn(newest.start_lsn),
        max_time=None if newest is None else newest.tran_end_time,
        sources=tuple(
            _source(found, row, [each for each in instances if each.source_object_id == number])
            for number, row in sorted(state.sources.items())
        ),
        has_plan=redo_log(found.root).is_pending,
    )
    return replace(state_now, warnings=tuple(warnings_of(state_now, datetime.now(UTC), alerts)))


def source_status(database: CdcTables, instance: ChangeTable) -> SourceStatus:
    """Return the position of an instance's source."""
    return _source(database, read_state(database.log).sources[instance.source_object_id], [instance])


def _source(database: CdcTables, row: LogReaderRow, instances: list[ChangeTable]) -> SourceStatus:
    path = database.root / row.source_path
    head: int | None = None
    oldest: datetime | None = None
    try:
        head = head_version(path) if is_delta_table(path) else None
        if head is not None and head > row.position:
            oldest = moment_of_ns(written_ns(path, row.position + 1))
    except (StoreError, FileNotFoundError):
        # A truncated log: the time of the oldest unread commit is unknown.
        oldest = None
    metadata = metadata_of(row)
    kept = metadata.configuration
    until = {
        name: oldest + (interval_of(kept.get(name, "")) or default) if oldest is not None else None
        for name, default in RETENTION_DEFAULTS.items()
    }
    unread = 0 if head is None else max(0, head - row.position)
    return SourceStatus(
        source=row.source_path,
        object_id=row.source_object_id,
        status=row.status,
        position=row.position,
        head=head,
        unread_commits=unread,
        oldest_unread=oldest,
        vacuum_safe_until=until[FILE_RETENTION],
        log_safe_until=until[LOG_RETENTION],
        log_reuse_wait=REPLICATION if unread else NOTHING,
        error_number=row.error_number,
        reason=row.reason,
        capture_instances=tuple(each.capture_instance for each in instances),
        has_feed=metadata.change_data_feed,
    )


def warnings_of(found: DatabaseStatus, now: datetime, alerts: Alerts = DEFAULT) -> list[StatusWarning]:
    """Return the problems of sources: paused ones, and unread commits whose files or log entries may soon be removed.

    Warnings: unread commits older than 30 seconds (consumers have an older state), less than a quarter of the time left, a
    feed that is off. Critical: no time left, or a paused source. `alerts` may state another part of the time. Pure.
    """
    warnings = []
    warned = _WARNED if alerts.capture_lag is None else 1 - alerts.capture_lag
    for each in found.sources:
        if each.status != "active":
            warnings.append(StatusWarning(each.source, CRITICAL, str(each.reason)))
        if not each.has_feed:
            warnings.append(StatusWarning(each.source, WARNING, _FEED_OFF))
        of_time = len(warnings)
        for until, what in (
            (each.vacuum_safe_until, "VACUUM may remove files"),
            (each.log_safe_until, "Delta may remove entries of its log"),
        ):
            if until is None or each.oldest_unread is None:
                continue
            left, whole = until - now, until - each.oldest_unread
            if left < whole * warned:
                text = (
                    f"Unread commits: {each.unread_commits:,}, the oldest of {each.oldest_unread:%Y-%m-%d %H:%M}Z. "
                    f"From {until:%Y-%m-%d %H:%M}Z on {what} that they need. Run `mergerepl capture -f {found.database}` "
                    "before."
                )
                warnings.append(StatusWarning(each.source, CRITICAL if left <= _NONE else WARNING, text))
        is_late = (
            each.status == "active" and each.oldest_unread is not None and now - each.oldest_unread > LATENCY
        )
        if is_late and len(warnings) == of_time:
            text = (
                f"Unread commits: {each.unread_commits:,}, the oldest of {each.oldest_unread:%Y-%m-%d %H:%M}Z: consumers "
                f"have an older state. Run `mergerepl capture -f {found.database}`, or the agent (`mergerepl cdc jobs "
                "list` shows a stopped job)."
            )
            warnings.append(StatusWarning(each.source, WARNING, text))
    return warnings
