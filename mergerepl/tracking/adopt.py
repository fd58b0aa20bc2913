"""Adopt foreign commits, or refuse them: the second step of a holder of the lease, after the sweep."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mergerepl.errors import MergeReplError
from mergerepl.model.tracking import Foreign
from mergerepl.tracking import counters
from mergerepl.tracking.adoption import plan, stage
from mergerepl.tracking.carry_out import carry_out
from mergerepl.tracking.counters import Intent
from mergerepl.tracking.database import Database, Session
from mergerepl.tracking.errors import ForeignCommitError, TrackingError
from mergerepl.tracking.foreign import Looked, look_at_all, readable_window, writable_facts
from mergerepl.tracking.sweep import has_work, sweep

log = logging.getLogger(__name__)


def adopt_or_refuse(
    session: Session, needed: Collection[str] | None = None, *, also_refused: bool = False
) -> int:
    """Make one implicit transaction of each foreign commit, in version order, tables by name; return their number.

    A table whose foreign commits cannot be adopted stays at its published snapshot; the other tables go on. The caller
    holds the lease and has swept.

    Args:
        session: The database.
        needed: The tables that must be adopted; None: all of them.
        also_refused: Adopt also for tables with `foreign: refuse`.

    Raises: ForeignCommitError if a needed table refuses foreign commits, or they cannot be adopted; TrackingError or
        StoreError if a needed table cannot be read.
    """
    looked = look_at_all(session.database)
    problems = {
        each.table.name: problem
        for each in looked
        if (problem := each.problem or _problem(session.database, each, also_refused=also_refused))
        is not None
    }
    count = 0
    while not count and (
        found := [each for each in looked if each.commits and each.table.name not in problems]
    ):
        count = _adopt(session, found, [each for each in looked if each not in found], problems)
    for name, problem in problems.items():
        if needed is None or name in needed:
            raise problem
        log.warning("table %s stays at its published snapshot: %s", name, problem)
    return count


def _problem(database: Database, looked: Looked, *, also_refused: bool) -> TrackingError | None:
    """Return why a table's foreign commits cannot be adopted, as far as its log shows: then they get no numbers."""
    if not looked.commits:
        return None
    if looked.table.foreign is Foreign.REFUSE and not also_refused:
        return ForeignCommitError(
            f"Table '{looked.named[0].table}' was written past its transactions: version {looked.named[0].version}, "
            f"{looked.named[0].operation} by {looked.named[0].writer}. It was enabled with foreign='refuse'. Nothing "
            "was changed. Take the commit over with `mergerepl tracking adopt`, or undo it: RESTORE TABLE to "
            f"version {looked.named[0].version - 1}.",
            table=looked.named[0].table,
            version=looked.named[0].version,
        )
    try:
        readable_window(
            writable_facts(database, looked.table).path,
            looked.table,
            from_version_exclusive=looked.commits[0].version - 1,
            through_version_inclusive=looked.head,
        )
    except TrackingError as error:
        return error
    return None


def _adopt(
    session: Session, found: Sequence[Looked], others: Sequence[Looked], problems: dict[str, MergeReplError]
) -> int:
    """Adopt the foreign commits of some tables; return their number, 0 with a further problem if one cannot be adopted."""
    database = session.database
    count = sum(len(each.commits) for each in found)
    begun = counters.begin(database.root, count=count)
    try:
        versions = {each.table.name: each.head for each in found}
        versions |= {each.table.name: each.quiet_through for each in others}
        intent = Intent(datetime.now(UTC), (), (), versions)
        csn = counters.read_counters(database.root).last_csn + 1
        for each in found:
            table, commits = each.table, each.commits
            at = len(intent.transactions)
            bsns = range(begun.bsn + at, begun.bsn + at + len(commits))
            planned = plan(database, table, commits, bsns, first_csn=csn + at)
            since = commits[0].version - 1
            folder = counters.staging_folder(begun.folder, table.name)
            try:
                write, planned = stage(
                    session, begun.folder, folder, table, planned, commits, since, each.head, own=set()
                )
            except TrackingError as error:
                problems[table.name] = error
                counters.mark_aborted(begun.folder)
                return 0
            intent = intent.extended(replace(intent, transactions=planned, writes=(write,)))
        counters.decide(begun.folder, intent)
        carry_out(session, begun.folder)
    except BaseException:
        counters.mark_aborted(begun.folder)
        raise
    finally:
        begun.let_go()
    return count


def catch_up(session: Session, purpose: str, needed: Collection[str] | None = None) -> None:
    """Finish dead transactions and adopt foreign commits, where there are some: only then the lease is taken.

    Raises: As `adopt_or_refuse`; LeaseError.
    """
    database = session.database
    if has_work(database.root) or any(each.commits or each.problem for each in look_at_all(database)):
        with session.held(purpose):
            sweep(session)
            adopt_or_refuse(session, needed)
