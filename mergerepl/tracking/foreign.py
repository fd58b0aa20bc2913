"""Commits outside of this database's transactions, found in a table's log (compact.md 10). No Spark.

A commit that changes no data (OPTIMIZE, properties, a fence) only moves the version.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mergerepl.delta.tables import Commit, TableState, TruncatedLogError, commits, head_version
from mergerepl.errors import MergeReplError, StoreError
from mergerepl.model.tracking import ForeignCommit, TrackedTable
from mergerepl.tracking.database import (
    Database,
    facts_of,
    last_commit,
    snapshot_version,
    tracked_tables,
    versions_of,
)
from mergerepl.tracking.errors import ForeignCommitError, TrackingError
from mergerepl.tracking.table_rules import unwritable


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


@dataclass(frozen=True)
class Looked:
    """A tracked table, and the commits to its log since a published version."""

    table: TrackedTable
    commits: list[Commit]
    """The foreign commits that are not adopted yet, in order."""
    head: int
    problem: MergeReplError | None = None
    """Why the table cannot be read: it stays at its published snapshot, and other tables go on."""

    @property
    def quiet_through(self) -> int:
        """The last version before the first foreign commit that is not adopted; else the head."""
        return self.commits[0].version - 1 if self.commits else self.head

    @property
    def named(self) -> list[ForeignCommit]:
        """The foreign commits as shown to users."""
        return [
            ForeignCommit(self.table.name, each.version, each.operation, _writer_of(each))
            for each in self.commits
        ]


def look(database: Database, table: TrackedTable, versions: Mapping[str, int]) -> Looked:
    """Read a table's log after the version of a published snapshot.

    Raises: TrackingError as `facts_of`; ForeignCommitError as `foreign_commits`.
    """
    head = head_version(facts_of(database, table).path)
    since = snapshot_version(table, versions)
    found = foreign_commits(database, table, from_version_exclusive=since, through_version_inclusive=head)
    return Looked(table, found, head)


def look_at_all(database: Database) -> list[Looked]:
    """Read the logs of all tracked tables, by name, after the last published snapshot."""
    versions = versions_of(last_commit(database))
    return [_looked_at(database, table, versions) for table in tracked_tables(database).values()]


def _looked_at(database: Database, table: TrackedTable, versions: Mapping[str, int]) -> Looked:
    try:
        return look(database, table, versions)
    except (TrackingError, StoreError) as error:
        return Looked(table, [], snapshot_version(table, versions), error)


def writable_facts(database: Database, table: TrackedTable) -> TableState:
    """Return the facts of a tracked table at its head, if a transaction can write it.

    Raises: TrackingError if it was altered so that transactions cannot write it; as `facts_of`.
    """
    facts = facts_of(database, table)
    problem = unwritable(facts)
    if problem is not None:
        why, remedy = problem
        raise TrackingError(
            f"Table '{table.name}' cannot be written: {why}. Nothing was changed. {remedy}", table=table.name
        )
    return facts


def _writer_of(commit: Commit) -> str:
    by = commit.engine or "an unknown writer"
    return by if commit.mark is None else f"mergerepl ({commit.mark.step})"
