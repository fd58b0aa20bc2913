"""Finish decided transactions and end dead ones: the first step of every holder of the root's lease.

Intents are carried out in CSN order. Then each aborted transaction, and each whose owner is dead, takes a
CSN: after a sweep the difference of the last BSN and the last CSN is the number of open transactions.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from mergerepl.failpoints import failpoint
from mergerepl.store.location import Location
from mergerepl.store.register import state_of
from mergerepl.store.storage import is_local
from mergerepl.tracking import counters
from mergerepl.tracking.counters import Counters

if TYPE_CHECKING:
    from mergerepl.tracking.database import Session


def has_work(root: Location) -> bool:
    """True if an unfinished transaction waits that its owner will not finish."""
    if not counters.is_database(root):
        return False
    if not is_local(root):
        # An open transaction holds the root: nobody waits for it. One that is decided is about to end.
        # The counters first: what begins in between is held, or has ended.
        found = counters.read_counters(root)
        state = state_of(root)
        return state.intent is not None or (state.holder is None and found.last_csn < found.last_bsn)
    return any(
        counters.is_aborted(folder) or counters.is_dead(folder)
        for folder in counters.transaction_folders(root)
    )


def is_unfinished(root: Location) -> bool:
    """True if a decided transaction has to be carried out: its commits are not all there."""
    if not is_local(root):
        return state_of(root).intent is not None
    return counters.is_database(root) and any(map(counters.has_intent, counters.transaction_folders(root)))


def sweep_root(root: Location, *, lock_wait_s: float = 60.0) -> None:
    """Finish the transactions that a dead process left decided below a root. The caller holds its lease.

    For commands of other products, which must not read partial transactions. Without tracking it lists one folder.
    """
    if is_unfinished(root):
        # Spark is loaded only if there is something to do: commands of other products call this.
        from mergerepl.tracking.database import Database, Session

        sweep(Session(Database(root), lock_wait_s))


def sweep(session: "Session") -> None:
    """Finish decided transactions and end dead ones. The caller holds the lease."""
    from mergerepl.tracking.carry_out import carry_out
    from mergerepl.tracking.counters import read_intent

    root = session.database.root
    decided = [folder for folder in counters.transaction_folders(root) if counters.has_intent(folder)]
    for folder in sorted(decided, key=lambda each: read_intent(each).last_csn):
        carry_out(session, folder)
    _end_aborted(root)


def _end_aborted(root: Location) -> None:
    """Give aborted transactions their CSNs, in one write of the counters, before their folders are removed."""
    gone: list[Location] = []

    def ended(before: Counters) -> Counters:
        folders = counters.transaction_folders(root)
        gone.extend(each for each in folders if counters.is_aborted(each) or counters.is_dead(each))
        # What has ended has a CSN; numbers whose process died before it made the folder have ended, too.
        taken = before.last_bsn - (len(folders) - len(gone))
        # Never lower: a folder that could not be removed has taken its CSN.
        return replace(before, last_csn=max(taken, before.last_csn))

    before = counters.read_counters(root)
    after = counters.change_counters(root, ended)
    failpoint("tracking.after_aborts")
    for folder in gone:
        counters.drop(folder)
    if after != before and not is_local(root):
        counters.remove_left(root)
