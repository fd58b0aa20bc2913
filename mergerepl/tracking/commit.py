"""Commit: sweep, adopt foreign commits or refuse them, check our keys since the snapshot, decide, carry out."""

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.delta.feed.schema_walk import is_replacement
from mergerepl.delta.properties import lost_properties, set_properties
from mergerepl.delta.tables import head_version, open_table, transaction_version
from mergerepl.errors import LeaseError, MergeReplError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import TransactionResult
from mergerepl.model.tracking_options import Foreign
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.store.register import register_of
from mergerepl.systables.tracking import COMMITS
from mergerepl.tracking import counters, foreign, staged_rows
from mergerepl.tracking.adoption import plan, stage
from mergerepl.tracking.carry_out import carry_out
from mergerepl.tracking.counters import (
    Begun,
    Intent,
    Planned,
    Write,
    decide,
    has_intent,
    read_counters,
    redo_log,
)
from mergerepl.tracking.database import Database, Session, facts_of, require_unedited, tracked_tables
from mergerepl.tracking.errors import ForeignCommitError, TrackingError, TransactionConflictError
from mergerepl.tracking.foreign import Looked, events_of, look_at_all, readable_window, writable_facts
from mergerepl.tracking.staged_rows import Touched
from mergerepl.tracking.sweep import has_work, sweep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """The net change of one table: where it is staged."""

    touched: Touched
    folder: Location
    schema: StructType

    @property
    def table(self) -> str:
        """The table's name."""
        return self.touched.table.name


def commit(session: Session, begun: Begun, changes: Sequence[Change]) -> TransactionResult:
    """Publish a transaction; return its numbers and its changes.

    Raises: TransactionConflictError if a key of ours was changed since our snapshot, or another process aborted it;
        ForeignCommitError; LeaseError; TrackingError if it was decided and could not be finished now.
    """
    database = session.database
    with session.held("tracking commit"):
        sweep(session)
        _, looked = adopt_or_refuse(session, {change.table for change in changes})
        versions = published_versions(looked)
        for change in changes:
            _refuse_older_copy(database, change.table)
            _refuse_conflict(session, begun.bsn, change)
        intent = _decided(database, begun, changes, versions)
        _decide(database, begun, intent)
        try:
            with plain_errors(f"committing transaction {begun.bsn}"):
                done = carry_out(session, begun.folder)
        except Exception as error:
            # The next holder of the folder carries it out: running it again would make its changes twice.
            is_lost = not begun.is_held(asks=True)
            raise TrackingError.unfinished(begun.bsn, error, is_lost=is_lost) from error
        ours = done.transactions[0]
        return TransactionResult(ours.bsn, ours.csn, ours.changes, done.overwritten)


def _decide(database: Database, begun: Begun, intent: Intent) -> None:
    """Decide a transaction. In a bucket an error of the store may hide that it is decided.

    Raises: TransactionConflictError if it was not, and the root was taken over; TrackingError if it was, or may be.
    """
    try:
        decide(begun.folder, intent)
        return
    except (LeaseError, StoreError, OSError) as error:
        if database.root.is_local:
            raise
        failure = error
    try:
        register_of(database.root).settle()
        if has_intent(begun.folder):
            return
    except LeaseError as error:
        # The register first: it forgets an intent after it was published.
        is_named = redo_log(begun.folder).is_named(intent)
        if not is_named and not database.control.rows(COMMITS, where=f"bsn = {begun.bsn}"):
            raise TransactionConflictError.was_taken_over(begun.bsn) from error
        raise TrackingError.unfinished(begun.bsn, error, is_lost=True) from error
    except (StoreError, OSError) as error:
        raise TrackingError.in_doubt(begun.bsn, str(error)) from error
    raise failure


def published_versions(looked: Sequence[Looked]) -> dict[str, int]:
    """Return, by table, the version through which all commits are ours or adopted: the snapshot of the next commit."""
    return {each.table.name: each.quiet_through for each in looked}


def _decided(database: Database, begun: Begun, changes: Sequence[Change], versions: dict[str, int]) -> Intent:
    csn = read_counters(database.root).last_csn + 1
    writes, counted = [], {}
    for change in changes:
        counts = staged_rows.counts_of(change.folder)
        if not counts.changes:
            continue
        touched = change.touched
        counted[change.table] = counts.changes
        writes.append(
            Write(
                change.table,
                csn,
                str(change.folder.relative_to(begun.folder)),
                change.schema.jsonValue(),
                int(touched.table.options),
                versions[change.table],
                counts,
                staged_rows.bounds_of(change.folder, touched.table),
            )
        )
    context = staged_rows.context_of([begun.folder / write.folder for write in writes])
    planned = Planned(begun.bsn, csn, uuid.uuid4().hex, context, counted)
    return Intent(datetime.now(UTC), (planned,), tuple(writes), versions)


def empty_intent(database: Database, bsn: int, versions: dict[str, int]) -> Intent:
    """Return the intent of a transaction that changes nothing."""
    csn = read_counters(database.root).last_csn + 1
    return Intent(datetime.now(UTC), (Planned(bsn, csn, uuid.uuid4().hex, None, {}),), (), versions)


def _refuse_older_copy(database: Database, table: str) -> None:
    last_csn = read_counters(database.root).last_csn
    number = transaction_version(database.path(table), database.app_id)
    if number > last_csn:
        raise TrackingError(
            f"Table '{table}' holds transaction {number} of this database, and the counters end at {last_csn}: the "
            "folder '_tracking' was put back to an older copy than the tables. Put both back to copies of one "
            "moment.",
            table=table,
        )


def _refuse_conflict(session: Session, bsn: int, change: Change) -> None:
    """Check that our keys are unchanged since our version: the first committer wins."""
    touched, database = change.touched, session.database
    known = tracked_tables(database).get(change.table)
    if known is None or replace(known, foreign=touched.table.foreign) != touched.table:
        # Its rows were staged with other options: their stamps would not match the present tracking.
        raise TransactionConflictError(
            f"Transaction {bsn} was aborted: the tracking of '{change.table}' was changed while it was open. Nothing "
            "of it was written. Run it again.",
            bsn=bsn,
            table=change.table,
        )
    head = head_version(touched.facts.path)
    if head == touched.version:
        return
    facts = facts_of(database, touched.table)
    # Some properties are rules for rows (CHECK constraints).
    is_altered = facts.metadata.schema_json != touched.facts.metadata.schema_json
    if is_altered or facts.properties != touched.facts.properties:
        raise TransactionConflictError(
            f"Transaction {bsn} was aborted: columns or properties of '{touched.table.name}' were changed while it "
            "was open. Nothing of it was written. Run it again.",
            bsn=bsn,
            table=touched.table.name,
        )
    window = readable_window(
        touched.facts.path,
        touched.table,
        from_version_exclusive=touched.version,
        through_version_inclusive=head,
    )
    if not window.changes(lambda _: False):
        return
    events = events_of(session.spark, touched.table, window)
    # A writer that rewrites files writes unchanged rows again: they are not conflicts.
    is_change = F.col(foreign.BEFORE).isNull() | F.col(foreign.AFTER).isNull() | F.col(foreign.DIFFERS)
    keys = events.where(is_change).select(*touched.keys)
    ours = staged_rows.read_staged(session.spark, change.folder, change.schema).select(*touched.keys)
    met = keys.join(ours, on=touched.keys, how="left_semi").distinct().limit(4).collect()
    if met:
        named = staged_rows.key_texts(met)
        raise TransactionConflictError(
            f"Transaction {bsn} was aborted: rows of '{touched.table.name}' that it changed were changed by a "
            f"transaction that committed first: {', '.join(named)}. Nothing of it was written. Run it again.",
            bsn=bsn,
            table=touched.table.name,
        )


def adopt_or_refuse(
    session: Session, needed: Collection[str] | None = None, *, also_refused: bool = False
) -> tuple[int, list[Looked]]:
    """Make one implicit transaction of each foreign commit, in version order, tables by name.

    A table whose foreign commits cannot be adopted stays at its published snapshot; the other tables go on. `also_refused`
    adopts also for tables with `foreign: refuse`. The caller holds the lease and has swept.

    Returns: Their number, and the tables afterwards.

    Raises: ForeignCommitError if one of the `needed` tables (None: all) refuses foreign commits, or they cannot be adopted;
        TrackingError or StoreError if it cannot be read.
    """
    looked = look_at_all(session.database)
    if _set_properties_again(session, looked, also_refused=also_refused):
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
    return count, look_at_all(session.database) if count else looked


def _set_properties_again(session: Session, looked: Sequence[Looked], *, also_refused: bool) -> bool:
    """Set the properties that replacements took away from tables before they are adopted; True if some were set."""
    is_set = False
    for each in looked:
        replaced = [commit for commit in each.commits if is_replacement(commit)]
        if not replaced or (each.table.foreign is Foreign.REFUSE and not also_refused):
            continue
        path = session.database.path(each.table.name)
        lost = lost_properties(open_table(path, replaced[0].version - 1).metadata, replaced)
        table = open_table(path)
        missing = {name: value for name, value in lost.items() if name not in table.properties}
        if missing:
            set_properties(lambda: session.spark, table, missing, session.database.setup_mark("properties"))
            failpoint("tracking.after_properties")
            is_set = True
    return is_set


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


def catch_up(session: Session, purpose: str, needed: Collection[str] | None = None) -> bool:
    """Finish dead transactions and adopt foreign commits, where there are some: only then the lease is taken.

    Returns: Whether there were some; then the ids of tracked tables may be others.

    Raises: As `adopt_or_refuse`; LeaseError; StoreError if a system table was edited.
    """
    database = session.database
    require_unedited(database)
    if has_work(database.root) or any(each.commits or each.problem for each in look_at_all(database)):
        with session.held(purpose):
            sweep(session)
            adopt_or_refuse(session, needed)
        return True
    return False
