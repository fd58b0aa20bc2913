"""Are these two replicas the ones of the subscription, and in the state in which their last session left them?"""

from pathlib import Path

from mergerepl.errors import INITIALISE_AGAIN, EnumerationError, PublicationError
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER


def require_same_session(
    publisher: Replica,
    subscriber: Replica,
    rows: dict[str, SubscriptionRow | None],
) -> dict[str, SubscriptionRow]:
    """Return each side's row about the other.

    Args:
        publisher: The publisher.
        subscriber: The subscriber.
        rows: `publisher` and `subscriber` -> that side's row of sysmergesubscriptions about the other, if
        found.

    Raises: PublicationError if a replica is not the one subscribed, or the subscription is not active (any more);
    EnumerationError if one of them was put back to an older state.
    """
    found = {name: row for name, row in rows.items() if row is not None}
    if len(found) < 2:
        at = "publisher" if rows.get("publisher") is None else "subscriber"
        raise PublicationError(
            f"'{subscriber.root}' and '{publisher.root}' do not know each other: the {at} has no such "
            f"subscription for this replica. The folder was replaced by another replica. Nothing was changed. "
            f"{INITIALISE_AGAIN}",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    if not all(row.is_active for row in found.values()):
        raise PublicationError(
            f"The subscription of '{subscriber.root}' at publisher '{publisher.root}' was ended meanwhile, or an `apply` "
            "of it did not finish. Nothing was changed. Run `mergerepl apply FILE`, then synchronize again.",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    if found["publisher"].replicastate != found["subscriber"].replicastate:
        raise EnumerationError(
            f"'{subscriber.root}' and '{publisher.root}' do not end with the same session: one of the two "
            "was restored from an older copy, so it is not certain what it already sent or received. Nothing was changed. "
            f"{INITIALISE_AGAIN}",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return found


def require_same_articles(
    publisher: Replica,
    subscriber: Replica,
    at_publisher: dict[int, PublishedArticle],
    at_subscriber: dict[int, PublishedArticle],
) -> None:
    """Check that both sides have the same articles, by nickname.

    Raises: PublicationError naming one that a side lacks: an `apply` was cut short.
    """
    for nickname in sorted({*at_publisher} ^ {*at_subscriber}):
        there = at_publisher.get(nickname) or at_subscriber[nickname]
        lacking = subscriber if nickname in at_publisher else publisher
        raise PublicationError(
            f"Article '{there.name}' is not there at '{lacking.root}' yet: an `apply` did not finish. "
            "Nothing was changed. Run `mergerepl apply FILE`, then synchronize again.",
            replica=str(lacking.root),
            article=there.name,
        )


def refuse_copies(*replicas: Replica) -> None:
    """Check that each replica is where it always was, or was moved: the original is not there any more.

    This check comes before any session is finished: a copy has the same identity as the replica of a staged session.

    Raises: PublicationError naming the original.
    """
    for replica in replicas:
        _refuse_copy(replica, replica.info())


def _refuse_copy(replica: Replica, info: ReplicaInfo) -> None:
    former = Path(info.root)
    if not (former / FOLDER).is_dir() or former.samefile(replica.root):
        # Moved, or the same folder by another path.
        return
    try:
        is_same = Replica(former).info().replid == info.replid
    except Exception:
        return
    if is_same:
        raise PublicationError(
            f"'{replica.root}' is a copy of the replica '{former}': both have replica id {info.replid}. Two "
            "replicas with one identity lose changes. Nothing was changed. Remove the copy's '_mergerepl' folder and "
            "subscribe it with `sync_type: none`, or remove the original if the replica was moved.",
            replica=str(replica.root),
            original=str(former),
        )
