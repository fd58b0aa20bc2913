"""The state of all products of some folders at one moment, for the dashboard and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from mergerepl.errors import MergeReplError
from mergerepl.model.listing import Listing
from mergerepl.model.products import TYPES
from mergerepl.model.replica_status import ReplicaStatus
from mergerepl.model.snapshot import HeldMetadata, ReplicaConflicts, Snapshot
from mergerepl.model.tasks import Run
from mergerepl.products import AlertsOf, default_alerts, of_products, status
from mergerepl.store.location import Location

log = logging.getLogger(__name__)

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def snapshot(
    roots: Sequence[Location],
    types: Collection[str] = TYPES,
    *,
    since: datetime,
    alerts_of: AlertsOf = default_alerts,
) -> Snapshot:
    """Return the state of each product at each folder, with its runs since a time. Starts no Java.

    A part that cannot be read is left out: the state has a problem then.

    Raises: as `status`.
    """
    statuses = status(roots, types, alerts_of=alerts_of)
    runs: list[Run] = []
    for root, recent in of_products("recent", roots, types):
        try:
            runs += recent(root, since)
        except MergeReplError as error:
            log.info("%s: %s", root, error.message)
    conflicts: list[ReplicaConflicts] = []
    held: list[HeldMetadata] = []
    for each in statuses:
        if not isinstance(each.details, ReplicaStatus):
            continue
        from mergerepl.products import merge

        root = Location.of(each.replica)
        try:
            conflicts.append(ReplicaConflicts(each.replica, merge.logged_conflicts(root)))
            held += merge.held_metadata(root, each.details)
        except MergeReplError as error:
            log.info("%s: %s", root, error.message)
    newest = sorted(runs, key=lambda run: run.time or _LONG_AGO, reverse=True)
    return Snapshot(datetime.now(UTC), since, statuses, Listing(newest), Listing(conflicts), Listing(held))
