"""The partitions of a publication with row filters: what `apply` refuses, stores and adds."""

from collections.abc import Iterator, Sequence

from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.filters.clause import SessionFunction
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.filters.stated import value_of
from mergerepl.merge.partitions.filtered import function_column, partition_groups
from mergerepl.model import refused_pairs
from mergerepl.model.publication import ConflictLogging, Publication, Subscription, SyncType
from mergerepl.model.resolvers import CUSTOM, RESOLVERS
from mergerepl.model.results import PlanStep
from mergerepl.publish.changes import update_rows
from mergerepl.publish.filters import PUBLISH_AGAIN, check_filters_unchanged
from mergerepl.publish.rows import Columns, filter_columns
from mergerepl.publish.situation import Pair, Situation
from mergerepl.publish.work import Step, Work
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, partitions
from mergerepl.systables.catalog import PublicationRow, SubscriptionRow
from mergerepl.systables.partitions import PartitionGroup

Values = dict[SessionFunction, str | None]


def stored_filters(row: PublicationRow | None) -> PublicationFilters:
    """Return the filters that a publisher has stored of a publication."""
    return NO_FILTERS if row is None or row.filters is None else PublicationFilters.from_json(row.filters)


def check_filtered(situation: Situation) -> None:
    """Refuse settings of row filters that are not supported yet, and filters other than those in use.

    Raises: PublicationError.
    """
    publication, filters = situation.work.publication, situation.filters
    before = stored_filters(situation.row)
    if situation.active:
        kept = [row.name for row in situation.articles if row.name in {a.name for a in publication.articles}]
        check_filters_unchanged(before, filters, kept)
        if before == NO_FILTERS != filters:
            raise PublicationError(
                f"Publication '{publication.name}' has active subscriptions and no row filter, and is to get one: its "
                f"subscribers have no partition yet. Take the filter out; or {PUBLISH_AGAIN}.",
                publication=publication.name,
            )
        for pair in situation.pairs:
            if pair.is_active and pair.row is not None:
                _check_values_unchanged(pair.subscription, pair.row, filters.functions)
    if filters != NO_FILTERS:
        _check_supported(publication, filters)


def _check_supported(publication: Publication, filters: PublicationFilters) -> None:
    for join in filters.joins:
        if not filters.is_filtered(join.parent):
            raise PublicationError(
                refused_pairs.FILTERED_PARENT.says(article=join.article, parent=join.parent),
                article=join.article,
            )
    for article in publication.articles:
        if RESOLVERS[article.resolver].rejects is not None:
            raise PublicationError(
                refused_pairs.FILTERED_ONE_WAY.says(article=article.name, resolver=article.resolver),
                article=article.name,
            )
        if article.resolver == CUSTOM:
            raise PublicationError(
                refused_pairs.FILTERED_CUSTOM.says(article=article.name),
                article=article.name,
            )
    if publication.conflict_logging is not ConflictLogging.PUBLISHER:
        raise PublicationError(
            refused_pairs.FILTERED_LOGGING.says(
                publication=publication.name, logging=publication.conflict_logging
            ),
            publication=publication.name,
        )
    for subscription in publication.subscriptions:
        if subscription.sync_type is SyncType.NONE:
            raise PublicationError(
                refused_pairs.FILTERED_SYNC_TYPE.says(subscriber=subscription.subscriber),
                subscriber=subscription.subscriber,
            )


def _check_values_unchanged(
    subscription: Subscription, row: SubscriptionRow, functions: Sequence[SessionFunction]
) -> None:
    before = {SessionFunction.HOST_NAME: row.host_name, SessionFunction.SUSER_SNAME: row.suser_sname}
    for function in functions:
        now = value_of(subscription, function)
        if now != before[function]:
            raise PublicationError(
                f"Subscriber '{subscription.subscriber}': its {function.lower()} was '{before[function]}' and is '{now}'; "
                "it decides which rows the subscriber has. Put it back; or take the subscription out of the file, run "
                "`mergerepl apply`, and subscribe it again.",
                subscriber=subscription.subscriber,
            )


def filter_step(situation: Situation) -> Iterator[Step]:
    """Yield the step that stores changed filters: of new articles, or of articles without subscribers."""
    work, filters, row = situation.work, situation.filters, situation.row
    if row is None or stored_filters(row) == filters:
        return
    change = filter_columns(filters)

    def run() -> None:
        update_rows(work.publisher, catalog.PUBLICATIONS, change, pubid=work.pubid)

    yield Step(PlanStep("change", work.publication.name, "row filters"), run)


def values_of(subscription: Subscription, functions: Sequence[SessionFunction]) -> Values:
    """Return the values of a publication's functions for a subscription."""
    return {function: value_of(subscription, function) for function in functions}


def partition_steps(situation: Situation) -> Iterator[Step]:
    """Yield the steps that add missing partitions of subscriptions that are not initialised yet.

    A partition is added before the capture that precedes its first snapshot: so a change is in the snapshot or has
    mappings.
    """
    work, filters = situation.work, situation.filters
    if filters == NO_FILTERS:
        return
    known = _known(situation)
    for pair in situation.pairs:
        values = values_of(pair.subscription, filters.functions)
        if not pair.is_active and values not in known:
            known.append(values)
            yield _partition_step(work, pair, values)


def _known(situation: Situation) -> list[Values]:
    if situation.row is None:
        return []
    groups = partition_groups(Replica(situation.work.publisher), situation.row.publication_number or 0)
    return [_values(group, situation.filters.functions) for group in groups if group.is_active]


def _values(group: PartitionGroup, functions: Sequence[SessionFunction]) -> Values:
    return {function: getattr(group, function_column(function)) for function in functions}


def _partition_step(work: Work, pair: Pair, values: Values) -> Step:
    given = ", ".join(f"{function}() = '{value}'" for function, value in values.items()) or "everybody's rows"

    def run() -> None:
        add_partition(Replica(work.publisher), work.pubid, values)
        failpoint("partition.after_group")

    return Step(PlanStep("partition", pair.subscription.subscriber, f"add the partition with {given}"), run)


def add_partition(
    publisher: Replica, pubid: str, values: Values, *, is_explicit: bool = False
) -> PartitionGroup:
    """Add the partition of these values at a publisher; one that is active already is returned as it is.

    The caller holds the publisher. The next capture computes memberships for it.
    """
    row = next(row for row in publisher.reread().publications if row.pubid == pubid)
    number = row.publication_number or 0
    groups = publisher.control.rows(partitions.PARTITION_GROUPS)
    functions = list(values)
    for group in groups:
        if group.publication_number == number and group.is_active and _values(group, functions) == values:
            return group
    added = PartitionGroup(
        partition_id=max((group.partition_id for group in groups), default=0) + 1,
        publication_number=number,
        maxgen_whenadded=publisher.info().last_generation,
        is_explicit=int(is_explicit),
        HOST_NAME_FN=values.get(SessionFunction.HOST_NAME),
        SUSER_SNAME_FN=values.get(SessionFunction.SUSER_SNAME),
    )
    publisher.control.replace(partitions.PARTITION_GROUPS, [*groups, added])
    return added


def partition_column(publisher: Replica, pubid: str, subscription: Subscription) -> Columns:
    """Return the partition of a subscription, for its row of sysmergesubscriptions at the publisher."""
    row = next(row for row in publisher.reread().publications if row.pubid == pubid)
    filters = stored_filters(row)
    if filters == NO_FILTERS:
        return {"partition_id": None}
    values = values_of(subscription, filters.functions)
    for group in partition_groups(publisher, row.publication_number or 0):
        if group.is_active and _values(group, filters.functions) == values:
            return {"partition_id": group.partition_id}
    raise PublicationError(
        f"Publication '{row.name}' has no partition for the subscriber '{subscription.subscriber}'. Run `mergerepl apply` "
        "again.",
        subscriber=subscription.subscriber,
    )
