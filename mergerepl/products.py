"""The products that use a folder, by type: what each knows of the place."""

from __future__ import annotations

from mergerepl.places import (
    CDC,
    DATABASE,
    MERGE,
    PUBLISHER,
    SUBSCRIBER,
    TRACKING,
    TRANSACTIONAL,
    NamedRoot,
    named_root,
    types_at,
)
from mergerepl.sessions import distributions, merge_targets
from mergerepl.store.location import Location


def roots_known_at(folder: Location) -> tuple[NamedRoot, ...]:
    """Return a folder, and the replicas at the other ends of its subscriptions, with their names.

    A folder that no product uses is known by its own name.

    Raises: ConfigurationError, StoreError if a catalog cannot be read.
    """
    types = types_at(folder)
    ends: list[tuple[str, str, str, str]] = []
    if MERGE in types:
        for target in merge_targets([folder]):
            ends.append((str(target.publisher), MERGE, PUBLISHER, target.publication))
            ends.append((str(target.subscriber), MERGE, SUBSCRIBER, target.publication))
    if TRANSACTIONAL in types:
        from mergerepl.transactional.catalog import DistributionStore, subscriptions_of

        for each in distributions([folder]):
            found = subscriptions_of(DistributionStore(each.publisher), publication=each.publication)
            for publication, row in found:
                if each.subscriber in (None, row.subscriber):
                    ends.append((str(each.publisher), TRANSACTIONAL, PUBLISHER, publication))
                    ends.append((row.subscriber, TRANSACTIONAL, SUBSCRIBER, publication))
    ends += [(str(folder), kind, DATABASE, "") for kind in (CDC, TRACKING) if kind in types]
    if all(root != str(folder) for root, *_ in ends):
        ends.append((str(folder), types[0] if types else "", DATABASE, ""))
    return tuple(named_root(*end) for end in dict.fromkeys(ends))
