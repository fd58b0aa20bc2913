"""The state of a tracked folder: tables, numbers, open transactions, consumers, foreign commits. No Spark, no lock."""

from mergerepl.model.tracking import CommittedTransaction, TrackingStatus
from mergerepl.tracking import counters
from mergerepl.tracking.consumers import consumer_states
from mergerepl.tracking.database import Database, last_commit, read_commits, require_database, tracked_tables
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.foreign import look_at_all


def status(database: Database) -> TrackingStatus:
    """Return the state of a tracked folder.

    Raises: TrackingError if the folder is not tracked.
    """
    require_database(database)
    looked = look_at_all(database)
    numbers = counters.read_counters(database.root)
    last = last_commit(database)
    return TrackingStatus(
        str(database.root),
        numbers.database_id,
        numbers.last_bsn,
        numbers.last_csn,
        last.csn if last else 0,
        tuple(tracked_tables(database).values()),
        tuple(counters.open_transactions(database.root)),
        tuple(consumer_states(database)),
        tuple(commit for each in looked for commit in each.named),
        dict(numbers.purged_through),
        {each.table.name: each.problem.message for each in looked if each.problem is not None},
    )


def committed(database: Database, *, limit: int) -> list[CommittedTransaction]:
    """Return published transactions, newest first."""
    require_database(database)
    return read_commits(database, where=None, order_limit=f"order by csn desc limit {limit}")


def abort(database: Database, bsn: int) -> None:
    """End an open transaction, of this process or another; its owner finds out at its next call.

    Raises: TrackingError if it is not open, or decided already.
    """
    require_database(database)
    folder = counters.transaction_folder(database.root, bsn)
    if not counters.is_begun(folder):
        raise TrackingError.cannot_abort(bsn, "it has ended, or never began")
    if not counters.mark_aborted(folder):
        raise TrackingError.cannot_abort(bsn, "its commit was decided, and is carried out")


def upgrade(database: Database) -> bool:
    """Bring the tracking data of a folder to this version; there is one version so far.

    Returns: True if they are, or nothing is tracked; False if a transaction is open.

    Raises: TrackingError if another version wrote them.
    """
    if not counters.is_database(database.root):
        return True
    counters.read_counters(database.root)
    return not any(each.state in ("open", "committing") for each in counters.open_transactions(database.root))
