"""Cleanup of the distribution store (transactional.md 13)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.log import is_delta_table
from mergerepl.failpoints import failpoint
from mergerepl.systables.transactional import (
    ACTIVE,
    INACTIVE,
    PUBLICATIONS,
    SUBSCRIBED,
    TRANSACTIONS,
    ArticleRow,
)
from mergerepl.transactional.catalog import Distributor, Root, required
from mergerepl.transactional.log_reader import held, log_reader, spark_of
from mergerepl.transactional.monitoring import position_of


def cleanup(root: Root, *, spark: SparkSession | None = None) -> Mapping[str, int]:
    """Remove commands that all active subscriptions have, and those above the longest retention.

    A subscription that lacks such commands becomes inactive first (21074); one that is being initialised keeps what comes
    after its snapshot. Returns how many commands and transactions went, and how many subscriptions became inactive. Times
    are those of the newest transaction, not of this machine.
    """
    distributor = required(root)
    with held(log_reader(distributor), "transactional cleanup"):
        newest = distributor.control.rows(TRANSACTIONS, order_limit="order by xact_seqno desc limit 1")
        if not newest:
            return {"commands": 0, "transactions": 0, "inactive": 0}
        inactive = 0
        bounds: dict[int, bytes] = {}
        for publication in distributor.publications():
            oldest = newest[0].commit_time - timedelta(hours=publication.max_distretention)
            delivered = newest[0].commit_time - timedelta(hours=publication.min_distretention)
            forced = _through(distributor, oldest)
            served = []
            for row in distributor.subscriptions(publication.publication_id):
                if row.status == ACTIVE:
                    position = position_of(row)
                    if _has_lost(distributor, publication.publication_id, position, forced):
                        distributor.change_subscription(row.subscription_guid, status=INACTIVE)
                        inactive += 1
                    else:
                        served.append(position)
                elif row.status == SUBSCRIBED and row.snapshot_seqno is not None:
                    served.append(row.snapshot_seqno)
            bounds[publication.publication_id] = max(forced, min([*served, _through(distributor, delivered)]))
        # An agent that reads beside us looks at this after the gate: it never takes what is gone for nothing.
        _raise_removed_through(distributor, bounds)
        failpoint("transactional.after_removed_through")
        commands = sum(
            _removed(distributor, shape, bounds[shape.publication_id], spark_of(spark))
            for shape in distributor.shapes()
        )
        keep = min(bounds.values(), default=newest[0].xact_seqno)
        gone = [
            row
            for row in distributor.control.rows(TRANSACTIONS)
            if row.xact_seqno <= keep and row.xact_seqno < newest[0].xact_seqno
        ]
        if gone:
            with distributor.writing():
                distributor.control.delete(
                    TRANSACTIONS, where=f"xact_seqno <= X'{max(r.xact_seqno for r in gone).hex()}'"
                )
    return {"commands": commands, "transactions": len(gone), "inactive": inactive}


def _has_lost(distributor: Distributor, publication_id: int, position: bytes, through: bytes) -> bool:
    after = distributor.transactions_after(position)
    return any(each.xact_seqno <= through for each in distributor.meant_for(publication_id, after))


def _raise_removed_through(distributor: Distributor, bounds: Mapping[int, bytes]) -> None:
    """Record of each publication the last of its transactions that goes."""
    rows = distributor.publications()
    gate = distributor.control.rows(TRANSACTIONS)
    raised = []
    for row in rows:
        of_row = distributor.meant_for(row.publication_id, gate)
        going = [each.xact_seqno for each in of_row if each.xact_seqno <= bounds[row.publication_id]]
        raised.append(replace(row, removed_through=max([row.removed_through, *going])))
    if raised != rows:
        with distributor.writing():
            distributor.control.replace(PUBLICATIONS, raised)


def _through(distributor: Distributor, moment: datetime) -> bytes:
    """Return the highest LSN whose transaction is older than a time."""
    rows = distributor.control.rows(TRANSACTIONS)
    return max((row.xact_seqno for row in rows if row.commit_time < moment), default=bytes(10))


def _removed(
    distributor: Distributor, shape: ArticleRow, through: bytes, spark: Callable[[], SparkSession]
) -> int:
    table = distributor.commands_table(shape)
    if not is_delta_table(table) or through == bytes(10):
        return 0
    condition = F.col("xact_seqno") <= F.lit(through)
    count = appended.read(spark(), table).where(condition).count()
    if count:
        appended.delete_where(spark(), table, condition)
    return count
