"""Remove old conflicts: first the rows that list them, then their losing rows, then what people said of them.

A conflict without its losing row would read as a lost delete. What a death leaves in between the next purge removes.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mergerepl.delta.small_tables import count_rows, read_rows, text_literals, timestamp_literal
from mergerepl.model.conflicts import ConflictFilter, PurgeResult
from mergerepl.monitoring.conflicts import conditions_of
from mergerepl.store.lease import lease
from mergerepl.store.replica import Replica
from mergerepl.systables import conflict_resolutions, conflicts_info
from mergerepl.systables.conflicts_info import CONFLICT_ID
from mergerepl.systables.table import Plane, SystemTable

_IDS_AT_ONCE = 10_000


def purge_conflicts(
    root: Path, chosen: ConflictFilter, *, older_than: timedelta | None = None, dry_run: bool = False
) -> PurgeResult:
    """Remove the conflicts that are meant and older than some time; without one, than their publication keeps them.

    Starts no engine. Raises: ConfigurationError if the folder is no replica or a name is unknown; LeaseError, StoreError.
    """
    with lease(root, purpose="mergerepl conflicts purge"):
        replica = Replica(root).require()
        now = datetime.now(UTC)
        ids: set[str] = set()
        for pubid, days in {row.pubid: row.conflict_retention for row in replica.publications}.items():
            kept = older_than if older_than is not None else timedelta(days=days) if days else None
            conditions = conditions_of(replica, chosen)
            if kept is None or conditions is None:
                continue
            conditions += [f"pubid = '{pubid}'", f'"MSrepl_create_time" < {timestamp_literal(now - kept)}']
            path = replica.folder / conflicts_info.NAME
            ids |= {
                row[CONFLICT_ID] for row in read_rows(path, (CONFLICT_ID,), where=" and ".join(conditions))
            }
        losers = [_table(path.name) for path in replica.conflict_tables()]
        infos = _removed(replica, conflicts_info.TABLE, ids, dry_run=dry_run)
        rows = sum(_removed(replica, table, ids, dry_run=dry_run) for table in losers)
        resolutions = _removed(replica, conflict_resolutions.TABLE, ids, dry_run=dry_run)
        return PurgeResult(infos, rows, resolutions, dry_run=dry_run)


def _table(name: str) -> SystemTable:
    return SystemTable(name, Plane.DATA, ())


def _removed(replica: Replica, table: SystemTable, ids: Iterable[str], *, dry_run: bool) -> int:
    if not replica.control.exists(table):
        return 0
    listed, count = sorted(ids), 0
    for begin in range(0, len(listed), _IDS_AT_ONCE):
        where = f"{CONFLICT_ID} in ({text_literals(listed[begin : begin + _IDS_AT_ONCE])})"
        count += count_rows(replica.control.path(table.name), where=where)
        if not dry_run:
            replica.control.delete(table, where=where)
    return count
