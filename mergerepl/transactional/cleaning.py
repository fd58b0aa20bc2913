"""Cleanup of the distribution store (transactional.md 13)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta import appended
from mergerepl.delta.log import is_delta_table
from mergerepl.systables.transactional import ACTIVE, INACTIVE, TRANSACTIONS, ArticleRow
from mergerepl.transactional.catalog import Distributor, Root, required
from mergerepl.transactional.log_reader import held, log_reader, spark_of
from mergerepl.transactional.monitoring import position_of


def cleanup(root: Root, *, spark: SparkSession | None = None) -> Mapping[str, int]:
    """Remove commands that all active subscriptions have, and those above the longest retention.

    A subscription that lacks such commands becomes inactive first (21074). Returns how many commands and transactions went,
    and how many subscriptions became inactive. Times are those of the newest transaction, not of this machine.
    """
    distributor = required(root)
    with held(log_reader(distributor), "transactional cleanup"):
        newest = distributor.control.rows(TRANSACTIONS, order_limit="order by xact_seqno desc limit 1")
        if not newest:
            return {"commands": 0, "transactions": 0, "inactive": 0}
        inactive = transactions = commands = 0
        bounds: list[bytes] = []
        for publication in distributor.publications():
            oldest = newest[0].commit_time - timedelta(hours=publication.max_distretention)
            delivered = newest[0].commit_time - timedelta(hours=publication.min_distretention)
            forced = _through(distributor, oldest)
            mine = {each.article_id for each in distributor.articles(publication.publication_id)}
            active = []
            for row in distributor.subscriptions(publication.publication_id):
                if row.status != ACTIVE:
                    continue
                position = position_of(row)
                lacking = [
                    each
                    for each in distributor.transactions_after(position)
                    if each.xact_seqno <= forced and (each.kind == "schema" or mine & set(each.commands))
                ]
                if lacking:
                    distributor.save_subscription(replace(row, status=INACTIVE))
                    inactive += 1
                else:
                    active.append(position)
            through = max(forced, min([*active, _through(distributor, delivered)]))
            bounds.append(through)
            for shape in distributor.shapes():
                if shape.article_id in mine:
                    commands += _removed(distributor, shape, through, spark_of(spark))
        keep = min(bounds)
        gone = [
            row
            for row in distributor.control.rows(TRANSACTIONS)
            if row.xact_seqno <= keep and row.xact_seqno < newest[0].xact_seqno
        ]
        if gone:
            transactions = len(gone)
            with distributor.writing():
                distributor.control.delete(
                    TRANSACTIONS, where=f"xact_seqno <= X'{max(r.xact_seqno for r in gone).hex()}'"
                )
    return {"commands": commands, "transactions": transactions, "inactive": inactive}


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
