"""How far a subscriber is, and what waits for it. Without Spark."""

from pathlib import Path

from mergerepl.delta.log import head_version, is_delta_table
from mergerepl.logreader.lsn import Lsn
from mergerepl.systables.transactional import (
    INACTIVE,
    SUBSCRIBED,
    PositionRow,
    SubscriptionRow,
    TransactionRow,
)
from mergerepl.transactional.catalog import Distributor, Subscriber
from mergerepl.transactional.refusals import TransactionalError


def position_of(distributor: Distributor, subscription: SubscriptionRow) -> PositionRow:
    """Return how far a subscriber is.

    Raises: TransactionalError 21074 if the subscription cannot go on from there.
    """
    subscriber = Subscriber(Path(subscription.subscriber))
    root = subscriber.root
    position = subscriber.position(subscription.subscription_guid)
    if position is None or subscription.status == SUBSCRIBED:
        raise TransactionalError.expired(distributor.root, root, "its snapshot is not done")
    if subscription.status == INACTIVE:
        raise TransactionalError.expired(
            distributor.root, root, "it is inactive, since commands that it lacks were removed"
        )
    if Lsn(position.transaction_timestamp).scan_cycle > distributor.gate_cycle:
        raise TransactionalError.restored(
            distributor.root,
            root,
            distributor.root,
            f"its last scan cycle is {distributor.gate_cycle}, and subscriber '{root}' has transaction "
            f"{Lsn(position.transaction_timestamp)}",
        )
    articles = {row.article: row for row in distributor.articles(subscription.publication_id)}
    for name, version in position.table_versions.items():
        table = subscriber.table(subscription, articles[name]) if name in articles else None
        if table is None or (is_delta_table(table) and head_version(table) >= version):
            continue
        now = "is older" if is_delta_table(table) else "is no Delta table now"
        what = f"it had version {version} after the last batch and {now}"
        raise TransactionalError.restored(distributor.root, root, table, what)
    return position


def waiting_after(
    distributor: Distributor, subscription: SubscriptionRow, position: PositionRow
) -> list[TransactionRow]:
    """Return the transactions after a position of a subscription.

    Raises: TransactionalError 21074 if cleanup removed some of them.
    """
    rows = distributor.transactions_after(position.transaction_timestamp)
    # After the gate: cleanup raises it before it removes anything.
    publication = distributor.publication_of(subscription.publication_id)
    if publication.removed_through > position.transaction_timestamp:
        raise TransactionalError.expired(
            distributor.root,
            Path(subscription.subscriber),
            f"it has everything through {Lsn(position.transaction_timestamp)}, and commands through "
            f"{Lsn(publication.removed_through)} were removed",
        )
    return rows
