"""Commits that went through no transaction of this database, found in a table's log (compact.md 10). No Spark.

A commit that changes no data (OPTIMIZE, properties, a fence) only moves the version.
"""

from collections.abc import Iterator

from mergerepl.compact.database import Database, facts_of, last_commit, snapshot_version, tracked_tables
from mergerepl.compact.errors import ForeignCommitError
from mergerepl.delta.log import Commit, TruncatedLogError, commits, head_version
from mergerepl.model.tracking import ForeignCommit, TrackedTable


def foreign_commits(
    database: Database, table: TrackedTable, *, from_version_exclusive: int, through_version_inclusive: int
) -> Iterator[Commit]:
    """Yield the foreign commits of a range of versions, in order.

    Raises: ForeignCommitError if the log does not hold the range any more.
    """
    try:
        for commit in commits(
            database.path(table.name),
            from_version_exclusive=from_version_exclusive,
            through_version_inclusive=through_version_inclusive,
        ):
            if commit.data_change and not database.is_own(commit.mark):
                yield commit
    except TruncatedLogError as error:
        why = "its log was cleaned up before it was looked at"
        raise ForeignCommitError.unreadable(table.name, from_version_exclusive + 1, why) from error


def quiet_through(database: Database, table: TrackedTable, *, from_version_exclusive: int) -> int:
    """Return the last version after a published one up to which no row was changed past the transactions."""
    head = head_version(database.path(table.name))
    found = foreign_commits(
        database, table, from_version_exclusive=from_version_exclusive, through_version_inclusive=head
    )
    first = next(found, None)
    return head if first is None else first.version - 1


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


def writer_of(commit: Commit) -> str:
    """Return who wrote a commit, for people."""
    by = commit.engine or "an unknown writer"
    return by if commit.mark is None else f"mergerepl ({commit.mark.step})"
