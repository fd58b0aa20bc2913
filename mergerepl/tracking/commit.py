"""Commit: sweep, adopt, check that our keys are unchanged since the snapshot, decide, carry out."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.delta.tables import head_version, transaction_version
from mergerepl.model.tracking import TransactionResult
from mergerepl.spark.errors import plain_errors
from mergerepl.store.location import Location
from mergerepl.tracking import foreign, staged_files
from mergerepl.tracking.adopt import adopt_or_refuse
from mergerepl.tracking.carry_out import carry_out
from mergerepl.tracking.counters import Begun, Intent, Planned, Write, decide, read_counters
from mergerepl.tracking.database import Database, Session, facts_of, tracked_tables
from mergerepl.tracking.errors import TrackingError, TransactionConflictError
from mergerepl.tracking.foreign import events_of, look_at_all, readable_window
from mergerepl.tracking.overlay import Touched
from mergerepl.tracking.sweep import sweep


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
        adopt_or_refuse(session, {change.table for change in changes})
        versions = published_versions(database)
        for change in changes:
            _refuse_older_copy(database, change.table)
            _refuse_conflict(session, begun.bsn, change)
        intent = _decided(database, begun, changes, versions)
        decide(begun.folder, intent)
        try:
            with plain_errors(f"committing transaction {begun.bsn}"):
                done = carry_out(session, begun.folder)
        except Exception as error:
            # The next holder of the folder carries it out: running it again would make its changes twice.
            raise TrackingError(
                f"Transaction {begun.bsn} was decided and could not be finished: {error} Do not repeat the "
                "transaction: its changes would be made twice. The next command that takes the folder's lock "
                "finishes it, as `mergerepl tracking recover` does. If a table can never take them, end its "
                "tracking: `mergerepl tracking disable -f TABLE --keep-columns`.",
                bsn=begun.bsn,
            ) from error
        ours = done.transactions[0]
        return TransactionResult(ours.bsn, ours.csn, ours.changes, done.overwritten)


def published_versions(database: Database) -> dict[str, int]:
    """Return, by tracked table, the version up to which all commits are ours or adopted: the snapshot of the next commit.

    The caller holds the lease and has adopted the existing foreign commits.
    """
    return {each.table.name: each.quiet_through for each in look_at_all(database)}


def _decided(database: Database, begun: Begun, changes: Sequence[Change], versions: dict[str, int]) -> Intent:
    csn = read_counters(database.root).last_csn + 1
    writes, counted = [], {}
    for change in changes:
        counts = staged_files.counts_of(change.folder)
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
                staged_files.bounds_of(change.folder, touched.table),
            )
        )
    context = staged_files.context_of([begun.folder / write.folder for write in writes])
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
    ours = session.spark.read.schema(change.schema).parquet(str(change.folder)).select(*touched.keys)
    met = keys.join(ours, on=touched.keys, how="left_semi").distinct().limit(4).collect()
    if met:
        named = staged_files.key_texts(met)
        raise TransactionConflictError(
            f"Transaction {bsn} was aborted: rows of '{touched.table.name}' that it changed were changed by a "
            f"transaction that committed first: {', '.join(named)}. Nothing of it was written. Run it again.",
            bsn=bsn,
            table=touched.table.name,
        )
