"""The generations of a publisher with row filters that have changes for a partition. No engine is needed."""

from collections.abc import Callable

from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.replica.replica import Replica
from mergerepl.systables import partitions
from mergerepl.systables.catalog import PublicationRow, SubscriptionRow
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.partitions import EVERYBODY, GenerationPartition, addressed_to


def generations_for(
    replica: Replica, number: int, subscription: SubscriptionRow, *, from_generation_exclusive: int
) -> list[GenerationPartition]:
    """Return the generations after one that have changes for a subscriber's partition or for everybody."""
    where = (
        f"publication_number = {number} and ({_is_for(subscription)}) "
        f"and generation > {from_generation_exclusive} and seq <= {replica.info().last_seq}"
    )
    return replica.control.rows(partitions.GENERATION_PARTITIONS, where=where)


def _is_for(subscription: SubscriptionRow) -> str:
    """Return the condition of the mapping rows that a subscriber gets, those of its former partition among them."""
    if subscription.former_partition_id is None:
        ids = ", ".join(str(each) for each in (EVERYBODY, subscription.partition_id) if each is not None)
        return f"partition_id in ({ids})"
    return (
        f"partition_id = {EVERYBODY} or partition_id = {subscription.partition_id} "
        f"and seq > {subscription.moved_at_seq} or {_is_of_move(subscription)}"
    )


def _is_of_move(subscription: SubscriptionRow) -> str:
    own, at = addressed_to(subscription.replnickname), subscription.moved_at_seq
    former = subscription.former_partition_id
    return f"partition_id = {former} and seq <= {at} or partition_id = {own} and seq = {at}"


def is_moving(
    replica: Replica, number: int, subscription: SubscriptionRow, *, from_generation_exclusive: int
) -> bool:
    """True if generations after one have changes for a subscriber's former partition, or move it to the present one."""
    if subscription.former_partition_id is None:
        return False
    where = (
        f"publication_number = {number} and ({_is_of_move(subscription)}) "
        f"and generation > {from_generation_exclusive} and seq <= {replica.info().last_seq}"
    )
    return bool(replica.control.rows(partitions.GENERATION_PARTITIONS, where=where))


def unacknowledged_for(
    replica: Replica, publication: PublicationRow, subscription: SubscriptionRow
) -> Callable[[Generation], bool]:
    """Return a function: whether a generation that a subscriber has not acknowledged is for it.

    Without row filters, and of an article without one, each generation is.
    """
    if publication.filters is None:
        return lambda _: True
    filters = PublicationFilters.from_json(publication.filters)
    filtered = {
        article.nickname
        for article in replica.articles_of(publication.pubid)
        if filters.is_filtered(article.name)
    }
    named = generations_for(
        replica,
        publication.publication_number or 0,
        subscription,
        from_generation_exclusive=subscription.sentgen,
    )
    numbers = {row.generation for row in named}
    return lambda row: row.art_nick not in filtered or row.generation in numbers
