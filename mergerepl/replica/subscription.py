"""The subscription between two replica roots, and the check that both are in the state of their last session.

At the publisher, a subscription is the row of sysmergesubscriptions about the subscriber; at the subscriber, the one
about the publisher. Each replica also has a row about itself.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.feed.window import FeedPosition
from mergerepl.errors import (
    SUBSCRIBE_AGAIN,
    CaptureError,
    ConfigurationError,
    ConflictError,
    EnumerationError,
    MergeReplError,
    OutOfReachError,
    PublicationError,
    begin_again,
    reinit_advice,
)
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.replica.replica import Replica
from mergerepl.roots import is_absent
from mergerepl.store.changeset import is_staged
from mergerepl.store.lease import LOCK_FILE, lease
from mergerepl.store.location import Location
from mergerepl.store.register import is_void, register_of, state_of
from mergerepl.store.storage import (
    HALF_WRITTEN,
    files_in,
    has_system_tables,
    is_folder,
    is_local,
    put_text,
    read_text,
    same_place,
    storage,
)
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo


def require_ends(publisher: Location, subscriber: Location) -> tuple[Replica, Replica]:
    """Return the replicas at both ends of a subscription.

    Raises: OutOfReachError if one end is absent but the other knows it: it may come back. Else as `Replica.require`.
    """
    ends = Replica(publisher), Replica(subscriber)
    for absent, other in (ends, ends[::-1]):
        if not is_absent(absent.root) or is_absent(other.root):
            continue
        relations = other.require().relations()
        if any(row.subscriber_server == str(absent.root) and row.is_active for row in relations):
            raise OutOfReachError(
                f"Replica '{absent.root}' is out of reach: '{other.root}' has a subscription with it, and the folder "
                "does not exist or is empty. If it is not mounted, mount it. If it was moved, write its new path in "
                "the file and run `mergerepl apply`. If a subscriber's folder is lost, see 'Recover' in docs/tasks.md.",
                replica=str(absent.root),
            )
    return ends[0].require(), ends[1].require()


def find_subscription(
    publisher: Location, subscriber: Location, publication: str
) -> tuple[Replica, Replica, SubscriptionRow]:
    """Return both replicas and the publisher's row about the subscriber.

    A subscriber whose folder was moved is known by its replica id.

    Raises: ConfigurationError if a folder is not a replica or no subscription matches; PublicationError if it is not
    active; StoreError if a folder is missing, OutOfReachError (run again) if the other end knows it.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    names = {row.pubid: row.name for row in at_publisher.published}
    rows = [row for row in at_publisher.relations() if names.get(row.pubid) == publication]
    chosen = _about(rows, at_subscriber)
    if not chosen:
        raise ConfigurationError(
            f"'{at_subscriber.root}' has no subscription to publication '{publication}' at publisher "
            f"'{at_publisher.root}'. Subscribers known there: {_known(rows)}. Add the subscription to the file and run "
            "`mergerepl apply`.",
            publisher=str(at_publisher.root),
            subscriber=str(at_subscriber.root),
        )
    active = next((row for row in chosen if row.is_active), None)
    if active is None:
        was = (
            "has ended. To subscribe it again, put it in the file, move its old tables away and run `mergerepl apply`"
            ". To record the end at the subscriber too, run `mergerepl apply`."
            if all(row.is_ended for row in chosen)
            else "is not initialised yet. Run `mergerepl apply`."
        )
        raise PublicationError(
            f"The subscription of '{at_subscriber.root}' at publisher '{at_publisher.root}' {was}",
            publisher=str(at_publisher.root),
            subscriber=str(at_subscriber.root),
        )
    return at_publisher, at_subscriber, active


def subscriptions_of_root(root: Location) -> list[tuple[Location, Location, str]]:
    """Return (publisher root, subscriber root, publication name) of each active subscription of a replica.

    A publisher has those of all its subscribers, a subscriber its own.

    Raises: ConfigurationError if the folder is not a replica.
    """
    replica = Replica(root).require()
    names = {row.pubid: row.name for row in replica.publications}
    found = []
    for row in replica.relations():
        if row.is_active and row.pubid in names:
            ends = replica.root, Location.of(row.subscriber_server)
            publisher, subscriber = ends if replica.publishes(row.pubid) else ends[::-1]
            found.append((publisher, subscriber, names[row.pubid]))
    return found


def own_priority(side: str, subscription: SubscriptionRow) -> float:
    """Return the priority of changes from one side of a subscription (merge_replication.md 3.3)."""
    if side == PUBLISHER:
        return PUBLISHER_PRIORITY
    return 0.0 if subscription.is_client else subscription.priority


def own_priorities(replica: Replica) -> dict[str, float]:
    """Return pubid -> the priority of local changes, for the publications of the replica."""
    # The tables of an ended subscription belong to the user again, and may be gone.
    received = {row.pubid: own_priority(SUBSCRIBER, row) for row in replica.relations() if not row.is_ended}
    return received | {row.pubid: PUBLISHER_PRIORITY for row in replica.published}


def _about(rows: list[SubscriptionRow], subscriber: Replica) -> list[SubscriptionRow]:
    """Return the rows about a subscriber: by its root, else by its replica id."""
    by_root = [row for row in rows if row.subscriber_server == str(subscriber.root)]
    if any(not row.is_ended for row in by_root):
        return by_root
    replid = subscriber.info().replid
    return [row for row in rows if row.replid == replid] or by_root


def _known(rows: list[SubscriptionRow]) -> str:
    return ", ".join(sorted({row.subscriber_server for row in rows if not row.is_ended})) or "none"


def require_same_session(
    publisher: Replica, subscriber: Replica, rows: dict[str, SubscriptionRow | None]
) -> dict[str, SubscriptionRow]:
    """Return each side's row about the other.

    `rows` has them under `publisher` and `subscriber`, or None.

    Raises: PublicationError as `require_subscribed`; EnumerationError if one of them was restored to an older state.
    """
    found = require_subscribed(publisher, subscriber, rows)
    if found["publisher"].replicastate != found["subscriber"].replicastate or _is_one_older(
        publisher, subscriber, found
    ):
        raise EnumerationError(
            f"'{subscriber.root}' and '{publisher.root}' do not end with the same session: one of the two "
            "was restored from an older copy, so it is not certain what it already sent or received. Nothing was changed. "
            f"{reinit_advice(publisher.root, subscriber.root)}",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return found


def require_subscribed(
    publisher: Replica, subscriber: Replica, rows: dict[str, SubscriptionRow | None]
) -> dict[str, SubscriptionRow]:
    """Return each side's row about the other, as `require_same_session`, whatever their last sessions were.

    Raises: PublicationError if a replica is not the subscribed one, or the subscription is not active (any more).
    """
    found = {name: row for name, row in rows.items() if row is not None}
    if len(found) < 2:
        at = "publisher" if rows.get("publisher") is None else "subscriber"
        raise PublicationError(
            f"'{subscriber.root}' and '{publisher.root}' do not know each other: the {at} has no such "
            f"subscription for this replica. The folder was replaced by another replica. Nothing was changed. "
            f"{SUBSCRIBE_AGAIN}",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    if not all(row.is_active for row in found.values()):
        raise PublicationError(
            f"The subscription of '{subscriber.root}' at publisher '{publisher.root}' was ended meanwhile, or an `apply` "
            "of it did not finish. Nothing was changed. Run `mergerepl apply`, then synchronize again.",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return found


def _is_one_older(publisher: Replica, subscriber: Replica, about: Mapping[str, SubscriptionRow]) -> bool:
    """True if one side lacks what a session without changes, which keeps `replicastate`, has stored there first.

    Its clock is older, too: what it captures would get versions that count as known to all replicas.
    """
    there, here = about["publisher"], about["subscriber"]
    is_told = here.through >= there.through and here.knows >= there.knows
    return not is_told or subscriber.settled(there.pubid) > publisher.settled(there.pubid)


def require_same_articles(
    publisher: Replica,
    subscriber: Replica,
    at_publisher: dict[int, PublishedArticle],
    at_subscriber: dict[int, PublishedArticle],
) -> None:
    """Check that both sides have the same articles, by nickname.

    Raises: PublicationError naming an article that a side lacks: an `apply` was interrupted.
    """
    for nickname in sorted({*at_publisher} ^ {*at_subscriber}):
        there = at_publisher.get(nickname) or at_subscriber[nickname]
        lacking = subscriber if nickname in at_publisher else publisher
        raise PublicationError(
            f"Article '{there.name}' is not there at '{lacking.root}' yet: an `apply` did not finish. "
            "Nothing was changed. Run `mergerepl apply`, then synchronize again.",
            replica=str(lacking.root),
            article=there.name,
        )


def refuse_copies(*replicas: Replica) -> None:
    """Check that each replica is in its original place, or was moved: the original is gone.

    This check comes before any session is finished: a copy has the same identity as the replica of a staged session.

    Raises: PublicationError naming the original.
    """
    for replica in replicas:
        former_place(replica.root, replica.info())


def former_place(root: Location, info: ReplicaInfo) -> Location | None:
    """Return the folder that a replica was moved from; None if it was not moved.

    Raises: PublicationError if the replica is still there too, so that one of the two is a copy.
    """
    former = Location.of(info.root)
    if same_place(former, root):
        return None
    try:
        is_there = has_system_tables(former) and Replica(former).info().replid == info.replid
    except (MergeReplError, OSError):
        # The folder is not a replica any more, or cannot be read: no evidence that this one is a copy of it.
        is_there = False
    if is_there:
        raise PublicationError(
            f"'{root}' is a copy of the replica '{former}': both have replica id {info.replid}. Two "
            "replicas with one identity lose changes. Nothing was changed. Remove the copy's '_mergerepl' folder and "
            "subscribe it with `sync_type: none`, or remove the original if the replica was moved.",
            replica=str(root),
            original=str(former),
        )
    return former


def refuse_staged(replica: Replica) -> None:
    """Check that no session is staged here, and no pointer names one.

    Raises: ConflictError.
    """
    if replica.has_staged():
        raise ConflictError(
            f"A session of '{replica.root}' was interrupted and has rows to write. Nothing was changed. Run "
            "`mergerepl sync` first, which finishes it.",
            replica=str(replica.root),
        )


def position_of(article: PublishedArticle, info: ReplicaInfo) -> FeedPosition | None:
    """Return the position up to which an article's table is captured; None if MSmerge_replinfo lacks it."""
    version = info.captured.get(article.nickname)
    if version is None:
        return None
    commit = info.captured_commits.get(article.nickname, "")
    is_of_version = commit.startswith(f"{version}:")
    return FeedPosition(info.table_ids.get(article.nickname, ""), version, commit if is_of_version else None)


def captured_position(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> FeedPosition:
    """Return the position up to which an article's table is captured.

    Raises: CaptureError if MSmerge_replinfo lacks it.
    """
    position = position_of(article, info)
    if position is None:
        raise CaptureError(
            f"Article '{article.name}': MSmerge_replinfo of '{replica.root}' does not say up to which version "
            f"its table '{replica.table(article)}' was captured: it was edited or damaged. Nothing was changed. "
            "Restore the '_mergerepl' folder from a copy taken together with the tables, or "
            f"{begin_again()}.",
            replica=str(replica.root),
            article=article.name,
        )
    return position


class Pointer(NamedTuple):
    """A subscriber's record of an unfinished session; the publisher is None if the file is damaged."""

    session: str
    file: Location
    publisher: Replica | None
    replid: str

    @property
    def is_publisher_there(self) -> bool:
        """True if the publisher is still in the folder that the file names: another replica may be there now."""
        publisher = self.publisher
        return (
            publisher is not None and is_folder(publisher.folder) and publisher.info().replid == self.replid
        )

    @property
    def is_staged(self) -> bool:
        """True if the session was staged whole, so that it will be carried out."""
        return self.publisher is not None and is_staged(self.publisher.staging / self.session)


def pointers(subscriber: Replica) -> Iterator[Pointer]:
    """Yield the pointers of a subscriber, by session: files, on a store entries of its register."""
    if not is_local(subscriber.root):
        for session, each in sorted(state_of(subscriber.root).pointers.items()):
            yield Pointer(
                session, subscriber.root / LOCK_FILE, Replica(Location.of(each.publisher)), each.replid
            )
        return
    staging = Location.of(subscriber.staging)
    for file in (staging / name for name in storage(staging).list_from(staging) if name.endswith(".json")):
        try:
            text = read_text(file)
            if text is not None:
                stated = json.loads(text)
                publisher = Replica(Location.of(stated["publisher"]))
                yield Pointer(file.stem, file, publisher, str(stated["replid"]))
        except (ValueError, KeyError, TypeError):
            yield Pointer(file.stem, file, None, "")


def write_pointer(publisher: Replica, subscriber: Replica, session: str) -> None:
    """Write the pointer of a session that is about to be staged."""
    replid = publisher.info().replid
    if not is_local(subscriber.root):
        register_of(subscriber.root).point(session, str(publisher.root), replid)
        return
    stated = json.dumps({"publisher": str(publisher.root), "replid": replid})
    put_text(_file(subscriber, session), stated)


def drop_pointer(subscriber: Replica, session: str) -> None:
    """Remove the pointer of a session that is over, and can be staged no more."""
    if not is_local(subscriber.root):
        register_of(subscriber.root).unpoint(session)
        return
    storage(at := _file(subscriber, session)).delete(at)


def drop_half_written_pointers(subscriber: Replica) -> None:
    """Remove half-written pointers that a killed process left."""
    if not is_local(subscriber.root):
        return
    staging = Location.of(subscriber.staging)
    storage(staging).delete(*files_in(staging, HALF_WRITTEN))


def require_publisher(publisher: Replica) -> None:
    """Check that this process still holds a publisher: what it has not staged by now, no earlier holder will stage.

    Raises: LeaseError.
    """
    if not is_local(publisher.root):
        register_of(publisher.root).settle()


def settle_pointers(subscriber: Replica, held: Collection[Location]) -> bool:
    """Drop the pointers of sessions that were not staged, and make sure that they never are.

    The caller holds the subscriber and the publishers `held`, whose sessions it finishes. Between folders nothing is to
    be settled: the lock of the subscriber ends with the process that would stage the session.

    Returns: False if one was staged by now.

    Raises: LeaseError if the publisher is a folder in use.
    """
    for pointer in [*pointers(subscriber)]:
        publisher = pointer.publisher
        if publisher is None or publisher.root in held:
            continue
        if is_local(publisher.root):
            if is_local(subscriber.root):
                continue
            with lease(publisher.root, purpose=f"settling a session of {subscriber.root}"):
                if pointer.is_staged:
                    return False
        elif not is_void(storage(publisher.root), publisher.root / LOCK_FILE, pointer.session):
            return False
        drop_pointer(subscriber, pointer.session)
    return True


def _file(subscriber: Replica, session: str) -> Location:
    return Location.of(subscriber.staging) / f"{session}.json"


def update_subscription(
    replica: Replica,
    subid: str,
    other_replid: str,
    changed: dict[str, Any],
    also: Callable[[list[SubscriptionRow]], list[SubscriptionRow]] = list,
) -> None:
    """Change one replica's row about the other side of a subscription, and rows of the table by `also`, in one commit.

    No commit if nothing changes.
    """

    def change(rows: list[SubscriptionRow]) -> list[SubscriptionRow]:
        other = [row for row in catalog.relations(rows) if (row.subid, row.replid) == (subid, other_replid)]
        return also([replace(row, **changed) if row in other else row for row in rows])

    replica.control.edit(catalog.SUBSCRIPTIONS, change)
