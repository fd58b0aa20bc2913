"""Remove old conflicts: first the rows that list them, then their losing rows, then their resolutions.

A conflict without its losing row would look like a lost delete. The next purge completes an interrupted one. A change
that a table refuses stays listed as long as it waits.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache

from mergerepl.conflicts.listing import conditions_of, refused_and_gone, settled_ids
from mergerepl.delta.sql_text import text_literal, text_literals, time_before, timestamp_literal
from mergerepl.delta.tables import count_rows, read_rows
from mergerepl.errors import MergeReplError
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.conflicts import PurgeResult
from mergerepl.monitoring.parties import in_reach
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.notes import read_note, write_note
from mergerepl.systables import conflict_resolutions, conflicts_info
from mergerepl.systables.conflicts_info import CONFLICT_ID, MODIFIED_DATE
from mergerepl.systables.table import Plane, SystemTable

log = logging.getLogger(__name__)

_IDS_AT_ONCE = 10_000
_NOTE = "conflicts-purged"


def purge_conflicts(
    root: Location, chosen: ConflictFilter, *, older_than: timedelta | None = None, dry_run: bool = False
) -> PurgeResult:
    """Remove the chosen conflicts older than a time; by default than the retention of their publication.

    Starts no engine.

    Raises: ConfigurationError if the folder is not a replica or a name is unknown; LeaseError, StoreError.
    """
    with lease(root, purpose="mergerepl conflicts drop"):
        replica = Replica(root).require()
        now = replica.present()
        ids: set[str] = set()
        waits_no_more = cache(lambda: _waits_no_more(in_reach(replica)))
        for pubid, days in {row.pubid: row.conflict_retention for row in replica.publications}.items():
            kept = older_than if older_than is not None else timedelta(days=days) if days else None
            conditions = conditions_of(replica, chosen)
            if kept is None or conditions is None:
                continue
            conditions += [_older(pubid, time_before(now, kept)), waits_no_more()]
            path = replica.folder / conflicts_info.NAME
            ids |= {
                row[CONFLICT_ID] for row in read_rows(path, (CONFLICT_ID,), where=" and ".join(conditions))
            }
        tables = [
            conflicts_info.TABLE,
            *(_table(path.name) for path in replica.conflict_tables()),
            conflict_resolutions.TABLE,
        ]
        infos, *rows, resolutions = (_removed(replica, table, ids, dry_run=dry_run) for table in tables)
        return PurgeResult(infos, sum(rows), resolutions, dry_run=dry_run)


def purge_when_due(replicas: Sequence[Replica], *, now: datetime | None = None) -> list[Replica]:
    """Once a day, remove the conflicts past the retention of their publications; return the replicas where it was due.

    The caller holds these replicas.

    A failure is only logged: the session itself is complete.
    """
    from deltalake.exceptions import DeltaError

    waits_no_more = cache(lambda: _waits_no_more(replicas))
    due = []
    for replica in replicas:
        today = now or replica.present()
        stated = {"day": today.strftime("%Y-%m-%d")}
        # Another's interrupted session may have logged its losing rows but not yet their list.
        if replica.has_staged() or read_note(replica.root, _NOTE) == stated:
            continue
        due.append(replica)
        try:
            for row in replica.publications:
                if row.conflict_retention:
                    before = today - timedelta(days=row.conflict_retention)
                    _purge_older(replica, row.pubid, before, waits_no_more)
            write_note(replica.root, _NOTE, stated)
        except (MergeReplError, DeltaError, OSError) as error:
            log.warning("%s: its old conflicts could not be removed: %s", replica.root, error)
    return due


def _purge_older(replica: Replica, pubid: str, before: datetime, waits_no_more: Callable[[], str]) -> None:
    """Remove a publication's conflicts from before a moment, by conditions, without listing them."""
    info, control = replica.folder / conflicts_info.NAME, replica.control
    old = _older(pubid, before)
    where = f"{old} and {waits_no_more()}"
    if not count_rows(info, where=where):
        return
    control.delete(conflicts_info.TABLE, where=where)
    wait = [row[CONFLICT_ID] for row in read_rows(info, (CONFLICT_ID,), where=old)]
    lost = f'"{MODIFIED_DATE}" < {timestamp_literal(before)}'
    if wait:
        lost += f" and {CONFLICT_ID} not in ({text_literals(wait)})"
    for name in replica.conflict_tables_of(pubid):
        control.delete(_table(name), where=lost)
    settled = sorted(settled_ids(replica))
    for begin in range(0, len(settled), _IDS_AT_ONCE):
        ids = settled[begin : begin + _IDS_AT_ONCE]
        among = f"{CONFLICT_ID} in ({text_literals(ids)})"
        listed = {row[CONFLICT_ID] for row in read_rows(info, (CONFLICT_ID,), where=among)}
        _removed(replica, conflict_resolutions.TABLE, set(ids) - listed, dry_run=False)


def _older(pubid: str, before: datetime) -> str:
    return f'pubid = {text_literal(pubid)} and "MSrepl_create_time" < {timestamp_literal(before)}'


def _waits_no_more(sources: Iterable[Replica]) -> str:
    """SQL condition of a conflict whose change was not refused, was undone, or no longer waits at any of these replicas.

    The state at other replicas is unknown.
    """
    refused = ", ".join(map(str, conflicts_info.FAILED_CHANGES))
    return f"(conflict_type not in ({refused}) or resolver is not null or {refused_and_gone(sources)})"


def _table(name: str) -> SystemTable:
    return SystemTable(name, Plane.DATA, ())


def _removed(replica: Replica, table: SystemTable, ids: Collection[str], *, dry_run: bool) -> int:
    """Remove the rows of some conflicts and return their number; `dry_run` only counts."""
    if not ids or not replica.control.exists(table):
        return 0
    path = replica.control.path(table.name)
    there = {row[CONFLICT_ID] for row in read_rows(path, (CONFLICT_ID,))}
    listed, left = sorted(there.intersection(ids)), sorted(there.difference(ids))
    if dry_run or not listed:
        return len(listed)
    if len(left) < min(len(listed), _IDS_AT_ONCE):
        # One commit removes a million rows if few stay.
        replica.control.delete(
            table, where=f"{CONFLICT_ID} not in ({text_literals(left)})" if left else "true"
        )
        return len(listed)
    for begin in range(0, len(listed), _IDS_AT_ONCE):
        among = text_literals(listed[begin : begin + _IDS_AT_ONCE])
        replica.control.delete(table, where=f"{CONFLICT_ID} in ({among})")
    return len(listed)
