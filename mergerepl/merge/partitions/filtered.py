"""The filters of a publication and its partitions: at the publisher, they select the rows of each subscriber."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from enumeration.plan import Partition
from mergerepl.filters.clause import SessionFunction
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.partition_generations import generations_for
from mergerepl.replica.replica import Replica
from mergerepl.systables import partitions
from mergerepl.systables.catalog import PublicationRow, SubscriptionRow
from mergerepl.systables.partitions import PartitionGroup


def function_column(name: SessionFunction) -> str:
    """Return the column of MSmerge_partition_groups with the values of a function."""
    return f"{name}_FN"


@dataclass(frozen=True)
class FilteredPublication:
    """The filters of a publication, its active partitions and the articles that the filters name.

    `articles` are by name, parents first; `subscribed` are the partitions that subscriptions have.
    """

    pubid: str
    number: int
    filters: PublicationFilters
    groups: tuple[PartitionGroup, ...]
    articles: Mapping[str, PublishedArticle]
    subscribed: frozenset[int] = frozenset()

    @property
    def tablenicks(self) -> frozenset[int]:
        """The articles that some subscriber gets only in part."""
        return frozenset(
            article.nickname for name, article in self.articles.items() if self.filters.is_filtered(name)
        )


def filtered_publication(replica: Replica, pubid: str) -> FilteredPublication | None:
    """Return the filters and partitions of a publication; None if the replica does not publish it with filters."""
    row = publication_with_filters(replica, pubid)
    if row is None or row.filters is None:
        return None
    filters = PublicationFilters.from_json(row.filters)
    by_name = {article.name: article for article in replica.articles_of(pubid)}
    number = row.publication_number or 0
    return FilteredPublication(
        pubid,
        number,
        filters,
        tuple(group for group in partition_groups(replica, number) if group.is_active),
        {name: by_name[name] for name in filters.order if name in by_name},
        frozenset(
            row.partition_id
            for row in replica.relations(pubid)
            if row.partition_id is not None and not row.is_ended
        ),
    )


def publication_with_filters(replica: Replica, pubid: str) -> PublicationRow | None:
    """Return the row of a publication that this replica publishes with filters, or None."""
    if not any(row.filters for row in replica.publications):
        return None
    return next((row for row in replica.published if row.pubid == pubid and row.filters), None)


def partition_groups(replica: Replica, number: int) -> list[PartitionGroup]:
    """Return the partitions of a publication, including dropped ones."""
    rows = replica.control.rows(partitions.PARTITION_GROUPS)
    return [row for row in rows if row.publication_number == number]


def sent_partition(
    replica: Replica, number: int, tablenicks: Collection[int], subscription: SubscriptionRow
) -> Partition:
    """Return the part of its filtered articles that a publisher sends a subscriber. No engine is needed.

    `number` is the publication's (publication_number), `subscription` the publisher's row about the subscriber.
    """

    def relevant(from_generation_exclusive: int) -> frozenset[int]:
        named = generations_for(
            replica, number, subscription, from_generation_exclusive=from_generation_exclusive
        )
        return frozenset(row.generation for row in named)

    return Partition(tablenicks, relevant)
