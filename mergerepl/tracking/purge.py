"""Remove tombstones and rows of the commit sequence that all consumers have passed (compact.md 9). No Spark.

With L the lowest LCSN of all consumers, a tombstone may go if its CSN is below L, a row of the sequence if both its
numbers are: then a BSN without a row, read as its own CSN, lies on the same side of every later window. The purge is noted
first, and consumers below the mark are refused, so windows have no gaps.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.delta.sql_text import quoted, text_literal, timestamp_literal
from mergerepl.delta.tables import count_rows, read_rows
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import Purged, PurgeType
from mergerepl.systables.tracking import (
    COMMIT_SEQUENCE,
    COMMITS,
    DELETE_CSN,
    DELETED_ROWS,
    DELETED_TIME,
    TABLE_NAME,
    OutOfSequence,
)
from mergerepl.tracking.consumers import consumer_states
from mergerepl.tracking.counters import change_counters
from mergerepl.tracking.database import Database, Session, commit_before, read_commits, tracked_table
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.predicates import unpacked
from mergerepl.tracking.sweep import sweep


def purge_tombstones(session: Session, name: str, kind: PurgeType, value: int, *, dry_run: bool) -> Purged:
    """Remove tombstones of a table.

    Raises: TrackingError if the table is not tracked, or the value is negative.
    """
    cutoff, database = _cutoff(kind, value), session.database
    with session.held("tracking purge"):
        sweep(session)
        tracked_table(database, name)
        bound, path = _bound(database), database.deleted_rows
        chosen = f"{quoted(TABLE_NAME)} = {text_literal(name)} and "
        if cutoff is None:
            chosen += f"{quoted(DELETE_CSN)} < {value}"
        else:
            chosen += f"{quoted(DELETED_TIME)} < {timestamp_literal(cutoff)}"
        free = chosen if bound is None else f"{chosen} and {quoted(DELETE_CSN)} < {bound}"
        removed, wanted = count_rows(path, where=free), count_rows(path, where=chosen)
        if removed and not dry_run:
            _note(database, name, _highest(database, free) + 1)
            failpoint("tracking.after_purge_mark")
            database.control.delete(DELETED_ROWS, where=free)
        return Purged(name, removed, wanted - removed, bound, dry_run)


def purge_sequence(session: Session, kind: PurgeType, value: int, *, dry_run: bool) -> Purged:
    """Remove rows of the commit sequence, and rows of `tracking_commits` that all windows have passed.

    Raises: TrackingError if the value is negative, or no consumer is registered.
    """
    cutoff, database = _cutoff(kind, value), session.database
    with session.held("tracking purge"):
        sweep(session)
        bound = _bound(database)
        if bound is None:
            raise TrackingError.later(
                "Purging the commit sequence without a registered consumer (`force`)",
                "Register the consumers first: `ct.consumer(name)`.",
            )
        rows = database.control.rows(COMMIT_SEQUENCE)
        wanted = [row for row in rows if _is_wanted(row, cutoff, value)]
        gone = [row for row in wanted if max(unpacked(row.bsn), unpacked(row.csn)) < bound]
        if not dry_run:
            kept = [row for row in rows if row not in gone]
            _purge_commits(database, bound, cutoff, value)
            if gone:
                highest = max(max(unpacked(row.bsn), unpacked(row.csn)) for row in gone)
                _note(database, COMMIT_SEQUENCE.name, highest + 1)
                failpoint("tracking.after_purge_mark")
                database.control.replace(COMMIT_SEQUENCE, kept)
        return Purged(COMMIT_SEQUENCE.name, len(gone), len(wanted) - len(gone), bound, dry_run)


def _is_wanted(row: OutOfSequence, cutoff: datetime | None, value: int) -> bool:
    return unpacked(row.csn) < value if cutoff is None else row.commit_time < cutoff


def _purge_commits(database: Database, bound: int, cutoff: datetime | None, value: int) -> None:
    """Remove published transactions below the last one that a consumer begins at."""
    below = bound if cutoff is not None else min(bound, value)
    first = commit_before(database, below)
    if first is None:
        return
    chosen = f"csn < {first.csn}"
    if cutoff is not None:
        chosen += f" and commit_time < {timestamp_literal(cutoff)}"
    newest = read_commits(database, where=chosen, order_limit="order by csn desc limit 1")
    if newest:
        # A window that begins right after the newest removed transaction has lost its first snapshot.
        _note(database, COMMIT_SEQUENCE.name, newest[0].csn + 2)
        database.control.delete(COMMITS, where=chosen)


def _cutoff(kind: PurgeType, value: int) -> datetime | None:
    """Return the time before which rows go, None where they go by CSN.

    Raises: TrackingError.
    """
    try:
        kind = PurgeType(kind)
    except ValueError as error:
        raise TrackingError.reserved("PurgeType", kind) from error
    try:
        if value < 0:
            raise ValueError
        return datetime.now(UTC) - timedelta(days=value) if kind is PurgeType.TIME_BASED else None
    except (OverflowError, ValueError) as error:
        raise TrackingError.reserved(
            "value of a purge (0 or more; days within the calendar)", value
        ) from error


def _bound(database: Database) -> int | None:
    return min((each.lcsn for each in consumer_states(database)), default=None)


def _highest(database: Database, where: str) -> int:
    newest = read_rows(
        database.deleted_rows,
        [DELETE_CSN],
        where=where,
        order_limit=f"order by {quoted(DELETE_CSN)} desc limit 1",
    )
    return int(newest[0][DELETE_CSN])


def _note(database: Database, what: str, lowest_lcsn: int) -> None:
    """Note the lowest LCSN that is still served exactly, before anything is removed."""
    change_counters(
        database.root,
        lambda each: replace(
            each,
            purged_through={**each.purged_through, what: max(lowest_lcsn, each.purged_through.get(what, 0))},
        ),
    )
