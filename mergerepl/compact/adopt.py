"""Take foreign commits over, or refuse them: the second thing that a holder of the lease does, after the sweep."""

from dataclasses import replace
from datetime import UTC, datetime

from mergerepl.compact import counters
from mergerepl.compact.adoption import plan, stage
from mergerepl.compact.carry_out import carry_out
from mergerepl.compact.database import last_commit, snapshot_version, tracked_tables
from mergerepl.compact.errors import ForeignCommitError
from mergerepl.compact.foreign import foreign_commits, quiet_through, writer_of
from mergerepl.compact.intent import Intent, write_intent
from mergerepl.compact.session import Session
from mergerepl.delta.log import Commit, head_version
from mergerepl.model.tracking import Foreign, TrackedTable


def adopt_or_refuse(session: Session, *, also_refused: bool = False) -> int:
    """Make one implicit transaction of each foreign commit, in version order, tables by name; returns how many.

    The caller holds the lease and has swept.

    Args:
        session: The database.
        also_refused: Adopt also where the table says `refuse`.

    Raises: ForeignCommitError if a table refuses foreign commits, or they cannot be adopted; nothing was changed.
    """
    found = _found(session)
    for table, commits, _ in found:
        if table.foreign is Foreign.REFUSE and not also_refused:
            first = commits[0]
            raise ForeignCommitError.refused(table.name, first.version, first.operation, writer_of(first))
    if not found:
        return 0
    database = session.database
    count = sum(len(commits) for _, commits, _ in found)
    begun = counters.begin(database.root, count=count)
    try:
        intent = Intent(datetime.now(UTC), (), (), _versions(session, found))
        csn = counters.read_counters(database.root).last_csn + 1
        for table, commits, head in found:
            at = len(intent.transactions)
            bsns = range(begun.bsn + at, begun.bsn + at + len(commits))
            planned = plan(database, table, commits, bsns, first_csn=csn + at)
            since = commits[0].version - 1
            folder = counters.staging_folder(begun.folder, table.name)
            write, planned = stage(
                session, begun.folder, folder, table, planned, commits, since, head, own=set()
            )
            intent = intent.extended(replace(intent, transactions=planned, writes=(write,)))
        write_intent(begun.folder, intent)
        carry_out(session, begun.folder)
    except BaseException:
        counters.mark_aborted(begun.folder)
        raise
    finally:
        begun.let_go()
    return count


def _found(session: Session) -> list[tuple[TrackedTable, list[Commit], int]]:
    """Return the tables with foreign commits, these, and the head that was looked at."""
    database = session.database
    published = last_commit(database)
    versions = published.versions if published else {}
    found = []
    for name, table in tracked_tables(database).items():
        head = head_version(database.path(name))
        commits = foreign_commits(
            database,
            table,
            from_version_exclusive=snapshot_version(table, versions),
            through_version_inclusive=head,
        )
        if commits:
            found.append((table, commits, head))
    return found


def _versions(session: Session, found: list[tuple[TrackedTable, list[Commit], int]]) -> dict[str, int]:
    """Return the version of each table that was looked at."""
    database = session.database
    published = last_commit(database)
    versions = published.versions if published else {}
    looked = {
        name: quiet_through(database, table, from_version_exclusive=snapshot_version(table, versions))
        for name, table in tracked_tables(database).items()
    }
    return {**looked, **{table.name: head for table, _, head in found}}
