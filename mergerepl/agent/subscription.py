"""Which subscription two replica roots mean, and which subscriptions a root has; told by the control plane.

At the publisher, a subscription is the row of sysmergesubscriptions about the subscriber; at the subscriber,
the one about the publisher. Each replica also has a row about itself.
"""

from collections.abc import Iterable
from pathlib import Path

from mergerepl.changes import PUBLISHER
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.store.control import Row
from mergerepl.store.replica import Replica, require_ends
from mergerepl.systables.catalog import SubscriberKind, SubscriptionState


def find_subscription(publisher: Path, subscriber: Path, publication: str) -> tuple[Replica, Replica, Row]:
    """Return both replicas and the publisher's row about the subscriber.

    A subscriber whose folder was moved is known by its replica id.

    Raises: ConfigurationError if a folder is no replica or no subscription fits; PublicationError if it is
        not active; StoreError if a folder is not there, OutOfReachError (run again) if the other end knows it.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    info = at_publisher.info()
    names = {row["pubid"]: row["name"] for row in at_publisher.publications if info.role == PUBLISHER}
    rows = [row for row in at_publisher.subscriptions() if row["replid"] != info.replid]
    rows = [row for row in rows if names.get(row["pubid"]) == publication]
    chosen = _about(rows, at_subscriber)
    if not chosen:
        raise ConfigurationError(
            f"'{at_subscriber.root}' has no subscription to publication '{publication}' at publisher "
            f"'{at_publisher.root}'. Subscribers known there: {_known(rows)}. Add the subscription to the file and run "
            "`mergerepl apply FILE`.",
            publisher=str(at_publisher.root),
            subscriber=str(at_subscriber.root),
        )
    active = next((row for row in chosen if row["status"] == SubscriptionState.ACTIVE), None)
    if active is None:
        was = (
            "has ended. To subscribe it again, put it in the file and move its old tables away; then, or to tell it of "
            "that end, run `mergerepl apply FILE`."
            if all(row["status"] == SubscriptionState.DELETED for row in chosen)
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

    For a publisher those of all its subscribers, for a subscriber its own.

    Raises: ConfigurationError if the folder is no replica.
    """
    replica = Replica(root).require()
    info = replica.info()
    names = {row["pubid"]: row["name"] for row in replica.publications}
    others = [
        row
        for row in replica.subscriptions()
        if row["replid"] != info.replid
        and row["status"] == SubscriptionState.ACTIVE
        and row["pubid"] in names
    ]
    if info.role == PUBLISHER:
        return [(replica.root, Path(row["subscriber_server"]), names[row["pubid"]]) for row in others]
    return [(Path(row["subscriber_server"]), replica.root, names[row["pubid"]]) for row in others]


def row_about(rows: Iterable[Row], subid: str, replid: str) -> Row | None:
    """Return a replica's row of a subscription about the replica with this id, None if it has none."""
    return next((row for row in rows if row["subid"] == subid and row["replid"] == replid), None)


def own_priority(side: str, subscription: Row) -> float:
    """Return the priority of the changes made at one side of a subscription (merge_replication.md 3.3)."""
    if side == PUBLISHER:
        return PUBLISHER_PRIORITY
    return 0.0 if is_client(subscription) else float(subscription["priority"] or 0.0)


def is_client(subscription: Row) -> bool:
    """Return whether the subscriber is a client: its changes become the publisher's once they are there."""
    return bool(subscription["subscriber_type"] == SubscriberKind.CLIENT)


def _about(rows: list[Row], subscriber: Replica) -> list[Row]:
    """Return the rows about a subscriber: by its root, else by its replica id."""
    by_root = [row for row in rows if row["subscriber_server"] == str(subscriber.root)]
    if any(row["status"] != SubscriptionState.DELETED for row in by_root):
        return by_root
    replid = subscriber.info().replid
    return [row for row in rows if row["replid"] == replid] or by_root


def _known(rows: list[Row]) -> str:
    return (
        ", ".join(
            sorted({row["subscriber_server"] for row in rows if row["status"] != SubscriptionState.DELETED})
        )
        or "none"
    )
