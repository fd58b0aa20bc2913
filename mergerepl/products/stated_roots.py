"""The replicas and databases that a document of a project file states, or that a folder knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from mergerepl.model.alerts import Alerts
from mergerepl.model.folders import Capture, Document, FolderTracking
from mergerepl.model.products import CDC, MERGE, TRACKING, TRANSACTIONAL
from mergerepl.model.publication import Publication
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.places import DATABASE, PUBLISHER, SUBSCRIBER, NamedRoot, named_root, types_at
from mergerepl.roots import parse
from mergerepl.sessions.targets import distributions, merge_targets
from mergerepl.store.location import Location


def type_of(document: Document) -> str:
    """Return the type of a document."""
    return _TYPES[type(document)]


_TYPES: dict[type, str] = {
    Publication: MERGE,
    TransactionalPublication: TRANSACTIONAL,
    Capture: CDC,
    FolderTracking: TRACKING,
}


def roots_stated_by(document: Document) -> list[NamedRoot]:
    """Return the replicas and databases that a document states, with their names."""
    kind = type_of(document)
    if isinstance(document, Capture | FolderTracking):
        return [named_root(document.root, kind, DATABASE)]
    ends = [
        (document.publisher, PUBLISHER, None),
        *((each.subscriber, SUBSCRIBER, each.name) for each in document.subscriptions),
    ]
    return [
        named_root(parse(root, may_be_stored=True), kind, role, document.name, name)
        for root, role, name in ends
    ]


def alerts_of(documents: Iterable[Document], kind: str, root: str) -> Alerts:
    """Return the thresholds of the documents of one type whose publisher or database is a folder."""
    found = (
        each.alerts
        for each in documents
        if not isinstance(each, FolderTracking)
        and type_of(each) == kind
        and any(own.root == root and own.role != SUBSCRIBER for own in roots_stated_by(each))
    )
    return reduce(or_, found, Alerts())


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
