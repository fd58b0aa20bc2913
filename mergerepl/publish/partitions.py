"""Partitions of row filters: `mergerepl partitions` (`sp_addmergepartition`), and those that `apply` adds.

No engine is needed.
"""

from collections.abc import Mapping, Sequence

from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.filters.clause import SessionFunction
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.merge.partitions.filtered import function_column, partition_groups
from mergerepl.model.publication import Subscription
from mergerepl.model.replica_status import PartitionInfo
from mergerepl.publish.filters import Values, check_values, stored_filters, values_of
from mergerepl.publish.rows import Columns
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables import partitions
from mergerepl.systables.catalog import PublicationRow
from mergerepl.systables.partitions import PartitionGroup, PartitionStatus


def list_partitions(root: Location, *, publication: str | None = None) -> tuple[PartitionInfo, ...]:
    """Return the active partitions of a publisher's publications with row filters.

    Raises: ConfigurationError if the folder is not a replica, or has no such publication.
    """
    publisher = Replica(root).require()
    rows = [_named(publisher, publication)] if publication is not None else _filtered(publisher)
    return tuple(
        _info(publisher, row, group)
        for row in rows
        for group in partition_groups(publisher, row.publication_number or 0)
        if group.is_active
    )


def add(
    root: Location, values: Mapping[SessionFunction, str | None], *, publication: str | None
) -> PartitionInfo:
    """Add the partition of these values; an existing one is marked as added explicitly.

    Raises: ConfigurationError; PublicationError if the publication's filters need another value, or cannot use this
    one; LeaseError (run again).
    """
    publisher = Replica(root).require()
    row = _named(publisher, publication)
    filters = stored_filters(row)
    chosen = _values(row, filters, values)
    check_values(filters, chosen, of="The partition")
    with lease(publisher.root, purpose="mergerepl partitions add"):
        group = add_partition(publisher, row.pubid, chosen, is_explicit=True)
    return _info(publisher, row, group)


def drop(root: Location, partition_id: int) -> PartitionInfo:
    """Drop a partition that no active subscription has: later captures compute no memberships for it.

    Raises: ConfigurationError if it does not exist; PublicationError if it is in use; LeaseError (run again).
    """
    publisher = Replica(root).require()
    with lease(publisher.root, purpose="mergerepl partitions drop"):
        groups = publisher.control.rows(partitions.PARTITION_GROUPS)
        found = next((g for g in groups if g.partition_id == partition_id and g.is_active), None)
        if found is None:
            raise ConfigurationError(
                f"Publisher '{publisher.root}' has no partition {partition_id}. `mergerepl partitions list -f "
                f"{publisher.root}` shows those it has.",
                replica=str(publisher.root),
            )
        row = next(r for r in publisher.published if r.publication_number == found.publication_number)
        info = _info(publisher, row, found)
        if info.subscribers:
            raise PublicationError(
                f"Partition {partition_id} has the subscriber '{info.subscribers[0]}'. Nothing was changed. Take its "
                "subscription out of the file and run `mergerepl apply`, then drop the partition.",
                replica=str(publisher.root),
            )
        dropped = {"status": PartitionStatus.DROPPED}
        publisher.control.change_where(partitions.PARTITION_GROUPS, dropped, partition_id=partition_id)
    return info


def _filtered(publisher: Replica) -> list[PublicationRow]:
    return [row for row in publisher.published if row.filters]


def _named(publisher: Replica, publication: str | None) -> PublicationRow:
    rows = [row for row in _filtered(publisher) if publication in (None, row.name)]
    if len(rows) == 1:
        return rows[0]
    named = f" named '{publication}'" if publication is not None else ""
    if not rows:
        raise ConfigurationError(
            f"'{publisher.root}' publishes nothing{named} with row filters: partitions belong to such a publication. Write "
            "a `filter` in its file and run `mergerepl apply`.",
            replica=str(publisher.root),
        )
    raise ConfigurationError(
        f"'{publisher.root}' has several publications with row filters ({', '.join(row.name for row in rows)}): name one "
        "with --publication.",
        replica=str(publisher.root),
    )


def _values(
    row: PublicationRow, filters: PublicationFilters, values: Mapping[SessionFunction, str | None]
) -> dict[SessionFunction, str | None]:
    for function, value in values.items():
        option = f"--{function.lower().replace('_', '-')}"
        if function in filters.functions and value is None:
            raise PublicationError(
                f"The filters of publication '{row.name}' use {function}(): give its value with {option}.",
                publication=row.name,
            )
        if function not in filters.functions and value is not None:
            raise PublicationError(
                f"The filters of publication '{row.name}' do not use {function}(): leave {option} out.",
                publication=row.name,
            )
    return {function: values.get(function) for function in filters.functions}


def _info(publisher: Replica, row: PublicationRow, group: PartitionGroup) -> PartitionInfo:
    subscribers = [
        each.subscriber_server
        for each in publisher.relations(row.pubid)
        if each.partition_id == group.partition_id and not each.is_ended
    ]
    return PartitionInfo(
        publication=row.name,
        partition_id=group.partition_id,
        host_name=group.HOST_NAME_FN,
        suser_sname=group.SUSER_SNAME_FN,
        subscribers=tuple(subscribers),
        added_at_generation=group.maxgen_whenadded,
        is_explicit=bool(group.is_explicit),
    )


def values_of_group(
    group: PartitionGroup, functions: Sequence[SessionFunction]
) -> dict[SessionFunction, str | None]:
    """Return the values of a publication's functions for a partition."""
    return {function: getattr(group, function_column(function)) for function in functions}


def _row_and_group(
    publisher: Replica, pubid: str, values: Values
) -> tuple[PublicationRow, PartitionGroup | None]:
    """Return a publication's row, and its active partition of these values."""
    row = next(row for row in publisher.reread().publications if row.pubid == pubid)
    groups = partition_groups(publisher, row.publication_number or 0)
    same = (each for each in groups if each.is_active and values_of_group(each, list(values)) == values)
    return row, next(same, None)


def add_partition(
    publisher: Replica, pubid: str, values: Values, *, is_explicit: bool = False
) -> PartitionGroup:
    """Add the partition of these values at a publisher; an active one is returned as it is.

    The caller holds the publisher. The next capture computes memberships for it.
    """
    row, found = _row_and_group(publisher, pubid, values)
    if found is not None:
        return found
    groups = publisher.control.rows(partitions.PARTITION_GROUPS)
    added = PartitionGroup(
        partition_id=max((group.partition_id for group in groups), default=0) + 1,
        publication_number=row.publication_number or 0,
        maxgen_whenadded=publisher.info().last_generation,
        is_explicit=int(is_explicit),
        HOST_NAME_FN=values.get(SessionFunction.HOST_NAME),
        SUSER_SNAME_FN=values.get(SessionFunction.SUSER_SNAME),
    )
    publisher.control.replace(partitions.PARTITION_GROUPS, [*groups, added])
    return added


def partition_column(publisher: Replica, pubid: str, subscription: Subscription) -> Columns:
    """Return the column of a subscription's partition, for its row of sysmergesubscriptions at the publisher."""
    row = next(row for row in publisher.reread().publications if row.pubid == pubid)
    filters = stored_filters(row)
    if filters == NO_FILTERS:
        return {"partition_id": None}
    _, group = _row_and_group(publisher, pubid, values_of(subscription, filters.functions))
    if group is not None:
        return {"partition_id": group.partition_id}
    raise PublicationError(
        f"Publication '{row.name}' has no partition for the subscriber '{subscription.subscriber}'. Run `mergerepl apply` "
        "again.",
        subscriber=subscription.subscriber,
    )
