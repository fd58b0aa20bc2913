"""The subscription between two replica roots, and the subscriptions of a root, read from the control plane.

At the publisher, a subscription is the row of sysmergesubscriptions about the subscriber; at the subscriber,
the one about the publisher. Each replica also has a row about itself.
"""

from pathlib import Path

from mergerepl.changes import PUBLISHER
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.replica.replica import Replica, require_ends
from mergerepl.systables.catalog import SubscriptionRow


def find_subscription(
    publisher: Path, subscriber: Path, publication: str
) -> tuple[Replica, Replica, SubscriptionRow]:
    """Return both replicas and the publisher's row about the subscriber.

    A subscriber whose folder was moved is known by its replica id.

    Raises: ConfigurationError if a folder is no replica or no subscription fits; PublicationError if it is
        not active; StoreError if a folder is not there, OutOfReachError (run again) if the other end knows it.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    names = {row.pubid: row.name for row in at_publisher.published}
    rows = [row for row in at_publisher.relations() if names.get(row.pubid) == publication]
    chosen = _about(rows, at_subscriber)
    if not chosen:
        raise ConfigurationError(
            f"'{at_subscriber.root}' has no subscription to publication '{publication}' at publisher "
            f"'{at_publisher.root}'. Subscribers known there: {_known(rows)}. Add the subscription to the file and run "
            "`mergerepl apply FILE`.",
            publisher=str(at_publisher.root),
            subscriber=str(at_subscriber.root),
        )
    active = next((row for row in chosen if row.is_active), None)
    if active is None:
        was = (
            "has ended. To subscribe it again, put it in the file, move its old tables away and run `mergerepl apply "
            "FILE`. To record the end at the subscriber too, run `mergerepl apply FILE`."
            if all(row.is_ended for row in chosen)
            else "is not initialised yet. Run `mergerepl apply FILE`."
        )
        raise PublicationError(
            f"The subscription of '{at_subscriber.root}' at publisher '{at_publisher.root}' {was}",
            publisher=str(at_publisher.root),
            subscriber=str(at_subscriber.root),
        )
    return at_publisher, at_subscriber, active


def subscriptions_of_root(root: Path) -> list[tuple[Path, Path, str]]:
    """Return (publisher root, subscriber root, publication name) of each active subscription of a replica.

    For what it publishes, those of all its subscribers; for what it receives, its own.

    Raises: ConfigurationError if the folder is no replica.
    """
    replica = Replica(root).require()
    names = {row.pubid: row.name for row in replica.publications}
    found = []
    for row in replica.relations():
        if row.is_active and row.pubid in names:
            ends = replica.root, Path(row.subscriber_server)
            publisher, subscriber = ends if replica.publishes(row.pubid) else ends[::-1]
            found.append((publisher, subscriber, names[row.pubid]))
    return found


def own_priority(side: str, subscription: SubscriptionRow) -> float:
    """Return the priority of the changes made at one side of a subscription (merge_replication.md 3.3)."""
    if side == PUBLISHER:
        return PUBLISHER_PRIORITY
    return 0.0 if subscription.is_client else subscription.priority


def _about(rows: list[SubscriptionRow], subscriber: Replica) -> list[SubscriptionRow]:
    """Return the rows about a subscriber: by its root, else by its replica id."""
    by_root = [row for row in rows if row.subscriber_server == str(subscriber.root)]
    if any(not row.is_ended for row in by_root):
        return by_root
    replid = subscriber.info().replid
    return [row for row in rows if row.replid == replid] or by_root


def _known(rows: list[SubscriptionRow]) -> str:
    return ", ".join(sorted({row.subscriber_server for row in rows if not row.is_ended})) or "none"
