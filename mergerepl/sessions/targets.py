"""The subscriptions that documents and folders have: merge ones, and the transactional ones of a publisher."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mergerepl import roots
from mergerepl.model.folders import Document
from mergerepl.model.products import MERGE, TRANSACTIONAL
from mergerepl.model.publication import Publication
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.places import types_at
from mergerepl.store.location import Location


@dataclass(frozen=True)
class Target:
    """One merge subscription: both replica roots and the publication."""

    publisher: Location
    subscriber: Location
    publication: str
    engine: str = "auto"


Item = Document | Location
"""A document, or the root of a replica."""


@dataclass(frozen=True)
class Distribution:
    """The transactional subscriptions of a publisher; None: of all its publications, to all subscribers."""

    publisher: Location
    publication: str | None = None
    subscriber: str | None = None


def root_of(replica: str | os.PathLike[str]) -> Location:
    """Return the folder of a replica. Messages about an invalid text mask its credentials."""
    return Location.of(roots.existing(str(replica), may_be_stored=True))


def merge_targets(items: Sequence[Item | Target], chosen: Collection[str] | None = None) -> list[Target]:
    """Return the merge subscriptions of items, each once; `chosen`: only those with one of these roots.

    Raises: ConfigurationError if a root is not a replica.
    """
    found = {
        (each.publisher, each.subscriber, each.publication): each for item in items for each in _merge(item)
    }
    return [
        each
        for each in found.values()
        # The recorded folder may have become a link to the new place; a chosen one has no links.
        if chosen is None or {str(each.publisher), roots.resolved(each.subscriber)} & set(chosen)
    ]


def _merge(item: Item | Target) -> list[Target]:
    if isinstance(item, Target):
        return [item]
    if isinstance(item, Publication):
        publisher = Location.of(roots.parse(item.publisher, may_be_stored=True))
        return [
            Target(
                publisher,
                Location.of(roots.parse(each.subscriber, may_be_stored=True)),
                item.name,
                item.engine,
            )
            for each in item.subscriptions
        ]
    if not isinstance(item, Location) or (MERGE not in types_at(item) and types_at(item)):
        return []
    from mergerepl.monitoring.quiet import noted_subscriptions

    noted = noted_subscriptions(item)
    if noted is None:
        from mergerepl.replica.subscription import subscriptions_of_root

        noted = subscriptions_of_root(item)
    return [Target(*each) for each in noted]


def distributions(
    items: Sequence[Item | Target], chosen: Collection[str] | None = None
) -> list[Distribution]:
    """Return the transactional subscriptions of items; `chosen`: only those with one of these roots."""
    found = [each for item in items for each in _distributions(item)]
    if chosen is None:
        return found
    narrowed = []
    for each in found:
        if str(each.publisher) in chosen:
            narrowed.append(each)
            continue
        subscribers = {row for row in _subscribers(each) if row in chosen}
        narrowed += [replace(each, subscriber=subscriber) for subscriber in sorted(subscribers)]
    return narrowed


def _distributions(item: Item | Target) -> list[Distribution]:
    if isinstance(item, TransactionalPublication):
        return [Distribution(Location.of(roots.parse(item.publisher, may_be_stored=True)), item.name)]
    if not isinstance(item, Location) or TRANSACTIONAL not in types_at(item):
        return []
    from mergerepl.transactional.catalog import DistributionStore, SubscriberStore

    if DistributionStore(item).is_there:
        return [Distribution(item)]
    received = SubscriberStore(item).positions()
    return [Distribution(Location.of(row.publisher), row.publication, str(item)) for row in received]


def _subscribers(of: Distribution) -> list[str]:
    from mergerepl.transactional.catalog import DistributionStore, subscriptions_of

    found = subscriptions_of(DistributionStore(of.publisher), publication=of.publication)
    return [row.subscriber for _, row in found if of.subscriber in (None, row.subscriber)]
