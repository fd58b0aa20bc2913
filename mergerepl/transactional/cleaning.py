"""Cleanup of the distribution store (transactional.md 13)."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta

from mergerepl.delta.sql_text import timestamp_literal
from mergerepl.delta.tables import count_rows, delete_rows, is_delta_table, remove_unused
from mergerepl.errors import LeaseError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import LogReader, refuse_copy
from mergerepl.logreader.positions import read_state
from mergerepl.model.listing import Listing
from mergerepl.model.products import TRANSACTIONAL
from mergerepl.model.tasks import CleanupResult, Removed
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.transactional import (
    ACTIVE,
    ERRORS,
    FOLDER,
    HISTORY,
    INACTIVE,
    PUBLICATIONS,
    SUBSCRIBED,
    TRANSACTIONS,
    TransactionRow,
)
from mergerepl.transactional.agents import held
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.catalog import DistributionStore, Root, SubscriberStore, required
from mergerepl.transactional.position import delivered_through, redo_log

log = logging.getLogger(__name__)

A_DAY = timedelta(days=1)


def cleanup(root: Root, *, dry_run: bool = False) -> CleanupResult:
    """Remove commands that all active subscriptions have, and those above the longest retention.

    A subscription that lacks such commands becomes inactive first (21074); one that is being initialised keeps the
    commands after its snapshot. `dry_run` only counts. Times are those of the newest transaction, not of this machine.
    Starts no JVM.
    """
    distributor = required(root)
    with nullcontext() if dry_run else held(LogReader(distributor.root), "transactional cleanup"):
        # A copy would vacuum the positions of the original's subscribers.
        refuse_copy(distributor.root, read_state(distributor.log))
        # The log reader is held, so the table does not grow.
        gate = sorted(distributor.control.rows(TRANSACTIONS), key=lambda row: row.xact_seqno)
        if not gate:
            return CleanupResult(Listing(), dry_run)
        newest = gate[-1]
        inactive = 0
        bounds: dict[int, bytes] = {}
        for publication in distributor.publications():
            forced = _through(gate, newest.commit_time - timedelta(hours=publication.max_distretention))
            delivered = _through(gate, newest.commit_time - timedelta(hours=publication.min_distretention))
            of_publication = distributor.meant_for(publication.publication_id, gate)
            served = []
            for row in distributor.subscriptions(publication.publication_id):
                if row.status == ACTIVE:
                    position = delivered_through(distributor, row)
                    if any(position < each.xact_seqno <= forced for each in of_publication):
                        if not dry_run:
                            distributor.change_subscription(row.subscription_guid, status=INACTIVE)
                        inactive += 1
                    else:
                        served.append(position)
                elif row.status == SUBSCRIBED and row.snapshot_seqno is not None:
                    served.append(row.snapshot_seqno)
            bounds[publication.publication_id] = max(forced, min([*served, delivered]))
        if not dry_run:
            # A concurrent agent checks this after the gate, so it never mistakes removed commands for an empty range.
            _raise_removed_through(distributor, gate, bounds)
            failpoint("transactional.after_removed_through")
        commands = sum(
            _removed(distributor, gate, shape, bounds[shape.publication_id], dry_run=dry_run)
            for shape in distributor.shapes()
        )
        keep = min(bounds.values(), default=newest.xact_seqno)
        gone = [row.xact_seqno for row in gate[:-1] if row.xact_seqno <= keep]
        removed = (("commands", FOLDER, commands), ("transactions", TRANSACTIONS.name, len(gone)))
        done = CleanupResult(
            Listing(Removed(TRANSACTIONAL, str(distributor.root), *each) for each in removed),
            dry_run,
            inactive,
        )
        if dry_run:
            return done
        if gone:
            with distributor.writing():
                distributor.control.delete(TRANSACTIONS, where=f"xact_seqno <= X'{gone[-1].hex()}'")
        _forget_history(distributor, newest.commit_time)
        stores = {distributor.subscriber(row) for row in distributor.subscriptions()}
        remove_unused(distributor.control.folder)
        for each in stores:
            _remove_unused(each, distributor)
    return done


def _remove_unused(subscriber: SubscriberStore, distributor: DistributionStore) -> None:
    """Remove files that no reader of a subscriber's tables of positions needs; in a store also plans of earlier holders."""
    if is_local(subscriber.root):
        remove_unused(subscriber.control.folder)
        return
    try:
        with lease(subscriber.root, purpose="transactional cleanup"):
            remove_unused(subscriber.control.folder)
            for row in distributor.subscriptions():
                if Location.of(row.subscriber) == subscriber.root:
                    redo_log(subscriber.root, row.subscription_guid).remove_left()
    except (LeaseError, StoreError) as error:
        # The next cleanup finds it free, and in reach.
        log.info("%s", error)


def clean_up_once_a_day(root: Root) -> bool:
    """Clean up if the oldest transaction is a day older than the newest one; the next run does it if the log is held.

    Returns: True if it cleaned up.
    """
    ends = required(root).ends()
    if ends and ends[-1].commit_time - ends[0].commit_time > A_DAY:
        with suppress(LeaseError):
            cleanup(root)
            return True
    return False


def _raise_removed_through(
    distributor: DistributionStore, gate: Sequence[TransactionRow], bounds: Mapping[int, bytes]
) -> None:
    rows = distributor.publications()
    raised = []
    for row in rows:
        of_row = distributor.meant_for(row.publication_id, gate)
        going = [each.xact_seqno for each in of_row if each.xact_seqno <= bounds[row.publication_id]]
        raised.append(replace(row, removed_through=max([row.removed_through, *going])))
    if raised != rows:
        with distributor.writing():
            distributor.control.replace(PUBLICATIONS, raised)


def _through(gate: Sequence[TransactionRow], moment: datetime) -> bytes:
    return max((row.xact_seqno for row in gate if row.commit_time < moment), default=bytes(10))


def _removed(
    distributor: DistributionStore,
    gate: Sequence[TransactionRow],
    shape: Shape,
    through: bytes,
    *,
    dry_run: bool,
) -> int:
    """Remove the commands of scan cycles that lie wholly below an LSN: whole files, without rewriting any."""
    table = distributor.commands_table(shape)
    later = [row.scan_cycle for row in gate if row.xact_seqno > through]
    if not is_delta_table(table) or not later:
        return 0
    where = f"scan_cycle < {min(later)}"
    count = count_rows(table, where=where)
    if count and not dry_run:
        delete_rows(table, where=where)
    return count


def _forget_history(distributor: DistributionStore, newest: datetime) -> None:
    """Remove history after SQL Server's 48 hours; entries about skips and stops are kept for 14 days."""
    with distributor.writing():
        for table, hours in ((HISTORY, 48), (ERRORS, 336)):
            oldest = timestamp_literal(newest - timedelta(hours=hours))
            if count_rows(distributor.control.path(table.name), where=f"time < {oldest}"):
                distributor.control.delete(table, where=f"time < {oldest}")
