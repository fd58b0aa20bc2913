"""The plan of a distribution batch: which transactions it has, durably at the subscriber before anything is applied."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mergerepl.delta.marks import CommitMark
from mergerepl.store.subscriber_files import read_batch, remove_batch
from mergerepl.systables.transactional import ArticleRow, PositionRow, TransactionRow
from mergerepl.transactional.catalog import Subscriber
from mergerepl.transactional.position import batch_step, is_written


@dataclass(frozen=True)
class BatchPlan:
    """A batch: transactions after `from_seqno` through `through_seqno`; article -> version judged first.

    `places` are the versions of the tables that procedures write to: table -> head, -1 if there was none.
    """

    number: int
    from_seqno: bytes
    through_seqno: bytes
    heads: Mapping[int, int]
    places: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the plan as its file has it."""
        return json.dumps(
            {
                "number": self.number,
                "from_seqno": self.from_seqno.hex(),
                "through_seqno": self.through_seqno.hex(),
                "heads": dict(self.heads),
                "places": dict(self.places),
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
            stated["places"],
        )

    def is_written(self, guid: str, article_id: int, table: Path) -> bool:
        """Return whether a subscription's table of an article has the batch: the log says so, transactions may expire."""
        mark = CommitMark(guid, batch_step(self.number))
        return article_id in self.heads and is_written(table, mark, self.heads[article_id])


def begun_plan(subscriber: Subscriber, position: PositionRow, tables: Mapping[int, Path]) -> BatchPlan | None:
    """Return the batch that a run which died had begun to apply to the articles' tables (by number); None if there is none.

    One that is done, of another position, or of which no table has anything does not count.
    """
    guid = position.subscription_guid
    text = read_batch(subscriber.root, guid)
    if text is None:
        return None
    plan = BatchPlan.of_json(text)
    is_next = plan.number == position.batch + 1 and plan.from_seqno == position.transaction_timestamp
    return plan if is_next and any(plan.is_written(guid, *each) for each in tables.items()) else None


def unfinished_plan(
    subscriber: Subscriber, position: PositionRow, tables: Mapping[int, Path]
) -> BatchPlan | None:
    """Return `begun_plan`; one that does not count is removed: it is decided again."""
    plan = begun_plan(subscriber, position, tables)
    if plan is None:
        remove_batch(subscriber.root, position.subscription_guid)
    return plan


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
