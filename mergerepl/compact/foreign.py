"""Commits that went through no transaction of this database, found in a table's log (compact.md 10). No Spark.

A commit that changes no data (OPTIMIZE, properties, a fence) only moves the version.
"""

from mergerepl.compact.database import Database, facts_of, last_commit, snapshot_version, tracked_tables
from mergerepl.compact.errors import ForeignCommitError, TrackingError
from mergerepl.compact.table_rules import unwritable
from mergerepl.delta.log import Commit, TruncatedLogError, commits, head_version
from mergerepl.delta.table import TableState
from mergerepl.model.tracking import ForeignCommit, TrackedTable


def foreign_commits(
    database: Database, table: TrackedTable, *, from_version_exclusive: int, through_version_inclusive: int
) -> list[Commit]:
    """Return the foreign commits of a range of versions, in order, without those that a RESTORE to its beginning undid.

    Raises: ForeignCommitError if the log does not hold the range any more.
    """
    try:
        found = [
            commit
            for commit in commits(
                database.path(table.name),
                from_version_exclusive=from_version_exclusive,
                through_version_inclusive=through_version_inclusive,
            )
            if commit.data_change and not database.is_own(commit.mark)
        ]
    except TruncatedLogError as error:
        why = "its log was cleaned up before it was looked at"
        raise ForeignCommitError.unreadable(table.name, from_version_exclusive + 1, why) from error
    undone = [
        i
        for i, commit in enumerate(found)
        if commit.restored_version is not None
        and from_version_exclusive <= commit.restored_version < found[0].version
    ]
    return found[undone[-1] + 1 :] if undone else found


def quiet_through(database: Database, table: TrackedTable, *, from_version_exclusive: int) -> int:
    """Return the last version after a published one up to which no row was changed past the transactions."""
    head = head_version(database.path(table.name))
    found = foreign_commits(
        database, table, from_version_exclusive=from_version_exclusive, through_version_inclusive=head
    )
    return found[0].version - 1 if found else head


def unadopted(database: Database) -> list[ForeignCommit]:
    """Return the foreign commits that are not adopted yet, by table and version."""
    published = last_commit(database)
    versions = published.versions if published else {}
    found = []
    for table in tracked_tables(database).values():
        head = head_version(facts_of(database, table).path)
        since = snapshot_version(table, versions)
        for commit in foreign_commits(
            database, table, from_version_exclusive=since, through_version_inclusive=head
        ):
            found.append(ForeignCommit(table.name, commit.version, commit.operation, writer_of(commit)))
    return found


def writable_facts(database: Database, table: TrackedTable) -> TableState:
    """Return what a tracked table is at its head, if a transaction can write it.

    Raises: TrackingError if it was altered so that none can; as `facts_of`.
    """
    facts = facts_of(database, table)
    problem = unwritable(facts)
    if problem is not None:
        raise TrackingError.cannot_write(table.name, *problem)
    return facts


def writer_of(commit: Commit) -> str:
    """Return who wrote a commit, for people."""
    by = commit.engine or "an unknown writer"
    return by if commit.mark is None else f"mergerepl ({commit.mark.step})"
