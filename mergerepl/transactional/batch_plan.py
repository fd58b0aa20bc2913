"""The plan of a distribution batch: its transactions, durable at the subscriber before the first write."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mergerepl.delta.marks import CommitMark
from mergerepl.store.location import Location
from mergerepl.store.redo import RedoLog
from mergerepl.systables.transactional import FOLDER, ArticleRow, PositionRow, TransactionRow
from mergerepl.transactional.catalog import Subscriber
from mergerepl.transactional.position import batch_step, is_written


@dataclass(frozen=True)
class BatchPlan:
    """A batch: transactions after `from_seqno` through `through_seqno`; article -> version judged first.

    `places` are the versions of the tables that procedures write to: table -> head, -1 for a missing table.
    """

    number: int
    from_seqno: bytes
    through_seqno: bytes
    heads: Mapping[int, int]
    places: Mapping[str, int] = field(default_factory=dict)

    def is_written(self, guid: str, article_id: int, table: Location) -> bool:
        """True if the log shows that a subscription's table of an article has the batch; transactions may expire."""
        mark = CommitMark(guid, batch_step(self.number))
        return article_id in self.heads and is_written(table, mark, self.heads[article_id])


def redo_log(subscriber: Location, guid: str) -> RedoLog[BatchPlan]:
    """Return the redo log of a subscription, at its subscriber."""
    return RedoLog(subscriber / FOLDER, BatchPlan, "distribute", f"plan-{guid}", "The batch")


def begun_plan(
    subscriber: Subscriber, position: PositionRow, tables: Mapping[int, Location]
) -> BatchPlan | None:
    """Return the batch that a dead run had begun to apply to the articles' tables (by number), or None.

    A finished batch, one of another position, and one that reached no table are ignored: they are decided again.
    """
    guid = position.subscription_guid
    plan = redo_log(subscriber.root, guid).pending()
    if plan is None:
        return None
    is_next = plan.number == position.batch + 1 and plan.from_seqno == position.transaction_timestamp
    return plan if is_next and any(plan.is_written(guid, *each) for each in tables.items()) else None


def next_transactions(
    rows: Sequence[TransactionRow],
    shapes: Collection[ArticleRow],
    *,
    most_transactions: int,
    most_commands: int,
) -> list[TransactionRow]:
    """Return the transactions of the next batch: it ends before a change of columns; one at its start is a batch alone.

    Args:
        rows: All transactions after the position.
        shapes: The publication's articles in all shapes that they have had.
        most_transactions: The most transactions of a batch.
        most_commands: The most commands of a batch of several transactions; 0: no limit.
    """
    mine = {row.article_id for row in shapes}
    changes = {row.first_seqno for row in shapes if row.schema_version > 1}
    chosen: list[TransactionRow] = []
    commands = 0
    for row in rows:
        count = sum(n for article, n in row.commands.items() if article in mine)
        is_full = len(chosen) >= most_transactions
        is_over = bool(most_commands) and commands + count > most_commands
        if chosen and (is_full or is_over or row.xact_seqno in changes):
            break
        chosen.append(row)
        commands += count
    return chosen


def transactions_through(rows: Sequence[TransactionRow], seqno: bytes) -> list[TransactionRow]:
    """Return the transactions through an LSN."""
    return [row for row in rows if row.xact_seqno <= seqno]
