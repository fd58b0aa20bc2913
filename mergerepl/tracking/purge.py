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
from mergerepl.model.durations import parse_duration
from mergerepl.model.tracking import Purged
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


def purge(
    session: Session, name: str | None, *, older_than: timedelta | str | None, to: int | None, dry_run: bool
) -> Purged:
    """Remove tombstones of a table; without one, rows of the commit sequence.

    Raises: TrackingError, with nothing removed, if the table is not tracked, an argument is wrong, or the commit sequence
        is to be purged and no consumer is registered.
    """
    cutoff = _cutoff(older_than, to)
    below = 0 if to is None else to + 1
    with session.held("tracking purge"):
        sweep(session)
        if name is None:
            return _purge_sequence(session.database, cutoff, below, dry_run=dry_run)
        return _purge_tombstones(session.database, name, cutoff, below, dry_run=dry_run)


def _purge_tombstones(
    database: Database, name: str, cutoff: datetime | None, below: int, *, dry_run: bool
) -> Purged:
    tracked_table(database, name)
    bound, path = _bound(database), database.deleted_rows
    chosen = f"{quoted(TABLE_NAME)} = {text_literal(name)} and "
    if cutoff is None:
        chosen += f"{quoted(DELETE_CSN)} < {below}"
    else:
        chosen += f"{quoted(DELETED_TIME)} < {timestamp_literal(cutoff)}"
    free = chosen if bound is None else f"{chosen} and {quoted(DELETE_CSN)} < {bound}"
    removed, wanted = count_rows(path, where=free), count_rows(path, where=chosen)
    if removed and not dry_run:
        _note(database, name, _highest(database, free) + 1)
        failpoint("tracking.after_purge_mark")
        database.control.delete(DELETED_ROWS, where=free)
    return Purged(name, removed, wanted - removed, bound, dry_run)


def _purge_sequence(database: Database, cutoff: datetime | None, below: int, *, dry_run: bool) -> Purged:
    """Remove rows of the commit sequence, and rows of `tracking_commits` that all windows have passed."""
    bound = _bound(database)
    if bound is None:
        raise TrackingError.later(
            "Purging the commit sequence without a registered consumer (`force`)",
            "Register the consumers first: `ct.consumer(name)`.",
        )
    rows = database.control.rows(COMMIT_SEQUENCE)
    wanted = [row for row in rows if _is_wanted(row, cutoff, below)]
    gone = [row for row in wanted if max(unpacked(row.bsn), unpacked(row.csn)) < bound]
    if not dry_run:
        kept = [row for row in rows if row not in gone]
        _purge_commits(database, bound, cutoff, below)
        if gone:
            highest = max(max(unpacked(row.bsn), unpacked(row.csn)) for row in gone)
            _note(database, COMMIT_SEQUENCE.name, highest + 1)
            failpoint("tracking.after_purge_mark")
            database.control.replace(COMMIT_SEQUENCE, kept)
    return Purged(COMMIT_SEQUENCE.name, len(gone), len(wanted) - len(gone), bound, dry_run)


def _is_wanted(row: OutOfSequence, cutoff: datetime | None, below: int) -> bool:
    return unpacked(row.csn) < below if cutoff is None else row.commit_time < cutoff


def _purge_commits(database: Database, bound: int, cutoff: datetime | None, to_csn: int) -> None:
    """Remove published transactions below the last one that a consumer begins at."""
    below = bound if cutoff is not None else min(bound, to_csn)
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


def _cutoff(older_than: timedelta | str | None, to: int | None) -> datetime | None:
    """Return the time before which rows go, None where they go by CSN.

    Raises: TrackingError.
    """
    if (older_than is None) == (to is None):
        raise TrackingError.reserved("range of a purge (either `older_than` or `to`)", (older_than, to))
    if older_than is None:
        if to is not None and to < -1:
            raise TrackingError.reserved("CSN of a purge", to)
        return None
    age = parse_duration(older_than) if isinstance(older_than, str) else older_than
    try:
        if age is None or age < timedelta():
            raise ValueError
        return datetime.now(UTC) - age
    except (OverflowError, ValueError) as error:
        raise TrackingError.reserved("age of a purge (such as '90 days')", older_than) from error


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
