"""The plan of a distribution batch: which transactions it has, durably at the subscriber before anything is applied."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mergerepl.delta.log import is_delta_table
from mergerepl.delta.transactions import transaction_version
from mergerepl.store.subscriber_files import read_batch, remove_batch
from mergerepl.systables.transactional import ArticleRow, PositionRow, TransactionRow
from mergerepl.transactional.catalog import Subscriber


@dataclass(frozen=True)
class BatchPlan:
    """A batch: transactions after `from_seqno` through `through_seqno`; article -> version judged first."""

    number: int
    from_seqno: bytes
    through_seqno: bytes
    heads: Mapping[int, int]

    def to_json(self) -> str:
        """Return the plan as its file has it."""
        return json.dumps(
            {
                "number": self.number,
                "from_seqno": self.from_seqno.hex(),
                "through_seqno": self.through_seqno.hex(),
                "heads": dict(self.heads),
            }
        )

    @staticmethod
    def of_json(text: str) -> "BatchPlan":
        """Read a plan."""
        stated = json.loads(text)
        return BatchPlan(
            stated["number"],
            bytes.fromhex(stated["from_seqno"]),
            bytes.fromhex(stated["through_seqno"]),
            {int(key): version for key, version in stated["heads"].items()},
        )


def unfinished_plan(
    subscriber: Subscriber, position: PositionRow, tables: Iterable[Path], app: str
) -> BatchPlan | None:
    """Return the batch that a run which died had begun to apply to the articles' tables, under a transaction application.

    A plan that is done, of another position, or of which no table has anything is removed: it is decided again.
    """
    text = read_batch(subscriber.root, position.subscription_guid)
    if text is None:
        return None
    plan = BatchPlan.of_json(text)
    is_next = plan.number == position.batch + 1 and plan.from_seqno == position.transaction_timestamp
    if is_next and any(is_delta_table(t) and transaction_version(t, app) >= plan.number for t in tables):
        return plan
    remove_batch(subscriber.root, position.subscription_guid)
    return None


def next_transactions(
    rows: Sequence[TransactionRow],
    shapes: Collection[ArticleRow],
    *,
    most_transactions: int,
    most_commands: int,
) -> list[TransactionRow]:
    """Return the transactions of the next batch: it ends before a change of columns, and begins with one alone.

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
