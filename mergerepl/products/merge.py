"""The tasks of merge publications."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mergerepl.errors import ConfigurationError
from mergerepl.merge.session.table_problems import table_problems
from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.listing import Listing
from mergerepl.model.products import MERGE
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Publication
from mergerepl.model.replica_status import ReplicaStatus, SessionRecord
from mergerepl.model.results import ApplyResult, SessionResult
from mergerepl.model.snapshot import MOST_RUNS, HeldMetadata
from mergerepl.model.tasks import (
    Captured,
    CleanupResult,
    Pending,
    Reinit,
    Removed,
    Repair,
    Run,
    Status,
    Vacuumed,
)
from mergerepl.roots import MERGE_FOLDER
from mergerepl.sessions import session_request
from mergerepl.sessions.targets import Target, merge_targets
from mergerepl.store.lease import WAIT_S
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.merge.reinit.unsent import ReinitTerms
    from mergerepl.merge.repair.repair import RepairTerms
    from mergerepl.model.conflicts import ConflictCount
    from mergerepl.monitoring.pending import SchemaChanges


def apply(publication: Publication, dry_run: bool, progress: Progress) -> ApplyResult:
    """Publish the tables and fill the subscribers of a publication."""
    from mergerepl.products.merge_apply import session_agent
    from mergerepl.publish.apply import apply_publication

    agent = session_agent(publication, progress)
    return apply_publication(publication, agent, dry_run=dry_run, progress=progress)


def status(root: Location, *, alerts: Alerts = DEFAULT) -> Status:
    """Return the state of a replica."""
    from mergerepl.monitoring.status import replica_status

    return replica_status(root, table_problems=table_problems, schema=_schema_changes(), alerts=alerts)


def pending(root: Location) -> list[Pending]:
    """Return the waiting changes of a replica's subscriptions, by article and direction."""
    from mergerepl.monitoring.pending import pending_changes

    return pending_changes(root, table_problems=table_problems, schema=_schema_changes())


def _schema_changes() -> SchemaChanges:
    from mergerepl.merge.schema.waiting import recorded_changes, unfollowed_changes
    from mergerepl.monitoring.pending import SchemaChanges

    return SchemaChanges(recorded_changes, unfollowed_changes)


def history(root: Location, *, failed: bool, limit: int, subscriber: str | None) -> list[Run]:
    """Return the last sessions."""
    from mergerepl.monitoring.history import session_history

    found = session_history(root, limit=limit, subscriber=subscriber, failed=failed)
    return [_run(root, each) for each in found]


def recent(root: Location, since: datetime) -> list[Run]:
    """Return the sessions since a time."""
    from mergerepl.monitoring.history import recent_sessions

    return [_run(root, each) for each in recent_sessions(root, since, limit=MOST_RUNS)]


def logged_conflicts(root: Location) -> Listing[ConflictCount]:
    """Return the conflicts that a replica has logged, counted."""
    from mergerepl.conflicts.listing import conflict_summary

    return Listing(conflict_summary(root, ConflictFilter()))


def held_metadata(root: Location, found: ReplicaStatus) -> list[HeldMetadata]:
    """Return the changes at a publisher whose metadata stays because of the subscribers that are furthest behind."""
    from mergerepl.replica.replica import Replica

    held = []
    for each in found.metadata:
        behind = [row for row in found.subscriptions if row.subscriber in each.holders]
        if not behind:
            continue
        through = min(row.through for row in behind)
        reached = through if through < each.clock else min(row.knows for row in behind)
        later = [row for row in Replica(root).genhistory() if (row.maxversion or 0) > reached]
        changes = sum(row.changecount for row in later)
        held += [HeldMetadata(each.publication, row.subscriber, changes) for row in behind if changes]
    return held


def count_history(root: Location, *, failed: bool, subscriber: str | None) -> int:
    """Return the number of sessions."""
    from mergerepl.monitoring.history import count_sessions

    return count_sessions(root, subscriber=subscriber, failed=failed)


def _run(root: Location, each: SessionRecord) -> Run:
    return Run(
        MERGE,
        "session",
        each.session_id,
        str(root),
        each.publication,
        each.subscriber,
        each.start_time,
        each.duration_s,
        each.runstatus,
        each.upload.total + each.download.total,
        " ".join(each.messages),
        each,
    )


def capture(root: Location, *, progress: Progress) -> Captured:
    """Record the users' changes of a replica."""
    from mergerepl.merge.session.capture_replica import capture_replica

    done = capture_replica(root, progress=progress)
    changes = sum(each.inserts + each.updates + each.deletes for each in done.articles)
    return Captured(MERGE, str(root), changes, details=done)


def cleanup(
    root: Location, *, kinds: Collection[str], older_than: timedelta | None, dry_run: bool
) -> CleanupResult:
    """Remove metadata that all replicas know, conflicts and old sessions past their retention, and unused files."""
    if older_than is not None and set(kinds) == {"files"}:
        raise ConfigurationError(
            f"Unused files of '{root}' go an hour or a day after a cleanup found them, at no other age. Leave out "
            "`--older-than`, or choose other kinds with `--only`."
        )
    removed: list[Removed] = []
    if "metadata" in kinds:
        from mergerepl.merge.session.clean_up import clean_up_metadata

        is_asked = set(kinds) == {"metadata"}
        cleaned = clean_up_metadata(root, older_than=older_than, dry_run=dry_run, accepts_clock=is_asked)
        removed += [Removed(MERGE, str(root), "metadata", name, rows) for name, rows in cleaned.rows.items()]
        removed += [
            Removed(MERGE, str(root), "metadata", name, 0, note=reason)
            for name, reason in cleaned.kept.items()
        ]
    if "conflicts" in kinds:
        from mergerepl.conflicts.purge import purge_conflicts

        done = purge_conflicts(root, ConflictFilter(), older_than=older_than, dry_run=dry_run)
        removed.append(Removed(MERGE, str(root), "conflicts", "MSmerge_conflicts_info", done.conflicts))
    if "history" in kinds:
        from mergerepl.merge.session.history_cleanup import HISTORY_RETENTION, purge_history

        age = HISTORY_RETENTION if older_than is None else older_than
        history = purge_history(root, older_than=age, dry_run=dry_run)
        removed.append(Removed(MERGE, str(root), "history", "MSmerge_sessions", history.sessions))
    if "files" in kinds:
        from mergerepl.merge.session.clean_up import clean_up_files

        files, note = clean_up_files(root, dry_run=dry_run)
        removed.append(Removed(MERGE, str(root), "files", MERGE_FOLDER, files, note=note))
    return CleanupResult(Listing(removed), dry_run)


def vacuum(root: Location, tables: Sequence[str]) -> list[Vacuumed]:
    """Capture, then remove old files of the tables that no reader of changes needs."""
    from mergerepl.merge.session.vacuum import vacuum_replica
    from mergerepl.products.upkeep import read_through

    return vacuum_replica(root, tables, others=read_through(root))


def is_known(root: Location, name: str) -> bool:
    """True if an article of the replica, or its table, is called so."""
    from mergerepl.replica.replica import Replica

    return any(name in (each.name, each.table) for each in Replica(root).require().articles)


def repair(item: Target, terms: RepairTerms) -> list[Repair]:
    """Give differing rows of one subscription new versions at the right side."""
    from mergerepl.merge.repair.repair import repair_subscription

    return repair_subscription(item.publisher, item.subscriber, item.publication, terms)


def reinit(item: Target, terms: ReinitTerms, progress: Progress) -> list[Reinit]:
    """Reinitialise one subscription by difference."""
    from mergerepl.merge.reinit.reinit import reinitialise

    return reinitialise(session_request(item, progress), terms, lease_wait_s=WAIT_S.get())


def abort(
    roots: Sequence[Location], session: str, *, are_publishers: bool, lock_wait_s: float
) -> SessionResult:
    """End a staged session at the only publisher of some folders, as `Project.abort` says."""
    from mergerepl.merge.session.recovery import give_up_session
    from mergerepl.replica.replica import Replica
    from mergerepl.spark import session as engine

    publishers: set[Location] = set()
    for root in roots:
        is_publisher = are_publishers or Replica(root).require().published
        publishers |= {root} if is_publisher else {each.publisher for each in merge_targets([root])}
    if len(publishers) != 1:
        named = ", ".join(map(str, sorted(publishers))) or "none"
        raise ConfigurationError(
            f"A session is aborted at one publisher; here are {named}. Name its folder with `-f`."
        )
    replica = Replica(publishers.pop()).require()
    return give_up_session(replica, session, spark_of=engine.session, lease_wait_s=lock_wait_s)
