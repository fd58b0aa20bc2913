"""Adopt foreign commits, or refuse them: the second step of a holder of the lease, after the sweep."""

from dataclasses import replace
from datetime import UTC, datetime

from mergerepl.compact import counters
from mergerepl.compact.adoption import plan, stage
from mergerepl.compact.carry_out import carry_out
from mergerepl.compact.errors import ForeignCommitError
from mergerepl.compact.foreign import look_at_all, unadopted
from mergerepl.compact.intent import Intent, write_intent
from mergerepl.compact.session import Session
from mergerepl.compact.sweep import has_work, sweep
from mergerepl.model.tracking import Foreign


def adopt_or_refuse(session: Session, *, also_refused: bool = False) -> int:
    """Make one implicit transaction of each foreign commit, in version order, tables by name; returns how many.

    The caller holds the lease and has swept.

    Args:
        session: The database.
        also_refused: Adopt also where the table says `refuse`.

    Raises: ForeignCommitError if a table refuses foreign commits, or they cannot be adopted; nothing was changed.
    """
    database = session.database
    looked = look_at_all(database)
    found = [each for each in looked if each.commits]
    for each in found:
        if each.table.foreign is Foreign.REFUSE and not also_refused:
            raise ForeignCommitError.refused(each.named[0])
    if not found:
        return 0
    count = sum(len(each.commits) for each in found)
    begun = counters.begin(database.root, count=count)
    try:
        intent = Intent(datetime.now(UTC), (), (), {each.table.name: each.head for each in looked})
        csn = counters.read_counters(database.root).last_csn + 1
        for each in found:
            table, commits = each.table, each.commits
            at = len(intent.transactions)
            bsns = range(begun.bsn + at, begun.bsn + at + len(commits))
            planned = plan(database, table, commits, bsns, first_csn=csn + at)
            since = commits[0].version - 1
            folder = counters.staging_folder(begun.folder, table.name)
            write, planned = stage(
                session, begun.folder, folder, table, planned, commits, since, each.head, own=set()
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


def catch_up(session: Session, purpose: str) -> None:
    """Finish dead transactions and adopt foreign commits, where there are some: only then the lease is taken.

    Raises: As `adopt_or_refuse`; LeaseError.
    """
    if has_work(session.database.root) or unadopted(session.database):
        with session.held(purpose):
            sweep(session)
            adopt_or_refuse(session)
