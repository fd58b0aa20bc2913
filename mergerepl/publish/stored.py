"""The state of a publication's replicas before `apply` changes anything, read once, as values."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from enumeration.plan import Destination
from mergerepl.delta.tables import TableState, is_delta_table, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PublicationError, StoreError
from mergerepl.merge.partitions.filtered import partition_groups
from mergerepl.model.definition import FIRST_VERSION, Definition
from mergerepl.model.publication import Publication, Subscription, Tracking
from mergerepl.model.words import counted
from mergerepl.publish.check_article import read_article_table
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.counted_filters import counted_filters
from mergerepl.replica.damage import require_schema_version
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import former_place
from mergerepl.store.location import Location
from mergerepl.store.notes import has_staged_session
from mergerepl.store.storage import is_folder, is_writable
from mergerepl.systables import catalog, contents, registry, replinfo
from mergerepl.systables.catalog import (
    ArticleRow,
    ArticleState,
    PublicationRow,
    SubscriptionRow,
    SubscriptionState,
    relations,
)
from mergerepl.systables.partitions import PartitionGroup
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER, TypedTable
from triggers.errors import table_gone

if TYPE_CHECKING:
    from mergerepl.store.changeset import Changeset


@dataclass(frozen=True)
class ReplicaState:
    """One replica root and the rows of its publications; without `info` it is not a replica yet.

    `sessions` are interrupted sessions; they are staged at publishers. `unsettled` are the publications (pubid) whose row
    has the filters before those that count.
    """

    root: Location
    info: ReplicaInfo | None = None
    publications: list[PublicationRow] = field(default_factory=list)
    articles: list[ArticleRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    sessions: tuple["Changeset", ...] = ()
    unsettled: frozenset[str] = frozenset()

    @property
    def repid(self) -> str:
        """The identity of the replica, or ''."""
        return self.info.repid if self.info else ""

    @property
    def captured(self) -> Mapping[int, int]:
        """Article nickname to captured version."""
        return self.info.captured if self.info else {}

    def publication(self, name: str) -> PublicationRow | None:
        """The row of a publication."""
        return next((row for row in self.publications if row.name == name), None)

    def articles_of(self, pubid: str) -> list[ArticleRow]:
        """The article rows of a publication."""
        return [row for row in self.articles if row.pubid == pubid]

    def is_active(self, subid: str) -> bool:
        """True if a subscription is active here."""
        return any(row.subid == subid and row.is_active for row in self.subscriptions)

    def others_of(self, pubid: str, *, are_ended: bool = False) -> list[SubscriptionRow]:
        """Return the rows of a publication's active (or ended) subscriptions about the other side."""
        return [row for row in relations(self.subscriptions, pubid) if row.is_ended == are_ended]


@dataclass(frozen=True)
class SubscriberState:
    """A subscription of the file, the subscriber's replica, and the publisher's row (None for a new subscription)."""

    subscription: Subscription
    replica: ReplicaState
    row: SubscriptionRow | None = None

    @property
    def is_active(self) -> bool:
        """True if the subscriber was initialised."""
        return self.row is not None and self.row.is_active

    def missing(self, articles: Sequence[ArticleRow]) -> list[ArticleRow]:
        """The articles that the subscriber does not have yet."""
        if not self.is_active:
            return list(articles)
        # A subscriber without an article that ends has forgotten it: its publisher was restored from an older copy.
        return [row for row in articles if not self.has(row) and row.status != ArticleState.ENDING]

    def has(self, article: ArticleRow) -> bool:
        """True if the subscriber was initialised with an article, and has not forgotten it."""
        held = {row.artid for row in self.replica.articles if row.status == ArticleState.ACTIVE}
        return self.is_active and article.artid in held


@dataclass(frozen=True)
class Stored:
    """The stored state of a publication and its replicas, matched to the file's subscriptions.

    Attributes:
        pubid: Generated if the publication is new.
        subscribers: In the order of the file.
        left: Subscriptions that the file no longer names, each with its replica if in reach.
        back: Replicas that are in reach again, whose subscription ended in the meantime.
        moved: The former folders of moved replicas, by root.
        groups: The active partitions.
        has_generations: Whether changes of the publication were ever captured. Read only without subscribers.
        image_types: The columns of MSmerge_contents with their types, if there are articles to publish.
        tables: The articles' tables at the publisher and at initialised subscribers, by path; None if the table is
            gone.
        unsent: By subid of `left`, a description of the changes that never reached the publisher.
        unusable: By article, the CHECK constraints that a subscriber cannot have.
    """

    name: str
    pubid: str
    publisher: ReplicaState
    subscribers: list[SubscriberState] = field(default_factory=list)
    left: list[tuple[SubscriptionRow, ReplicaState | None]] = field(default_factory=list)
    back: list[ReplicaState] = field(default_factory=list)
    moved: Mapping[Location, Location] = field(default_factory=dict)
    groups: list[PartitionGroup] = field(default_factory=list)
    has_generations: bool = False
    image_types: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[Location, TableState | StoreError | None] = field(default_factory=dict)
    unsent: Mapping[str, str] = field(default_factory=dict)
    unusable: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def row(self) -> PublicationRow | None:
        """The publication's row; None while it is new."""
        return self.publisher.publication(self.name)

    @property
    def articles(self) -> list[ArticleRow]:
        """The rows of the articles that are already published."""
        return self.publisher.articles_of(self.pubid)

    @property
    def active(self) -> list[ReplicaState]:
        """The subscribers that are initialised."""
        return [each.replica for each in self.subscribers if each.is_active]

    @property
    def live(self) -> list[SubscriberState]:
        """The subscribers of the file that are initialised and have not expired."""
        return [each for each in self.subscribers if each.row is not None and each.row.is_live]

    @property
    def is_subscribed(self) -> bool:
        """True if a subscriber is initialised, including one that the file no longer names and that has not ended yet."""
        return bool(self.active) or any(row.is_active for row, _ in self.left)

    @property
    def is_waited_for(self) -> bool:
        """True if a subscriber still has to get articles that are already published."""
        return any(each.missing(self.articles) for each in self.subscribers)

    @property
    def is_idle(self) -> bool:
        """True if only the publisher has rows of the publication, so that its changes need not be sent."""
        return not self.is_subscribed and not self.has_generations

    @property
    def interrupted(self) -> list[tuple["Changeset", ReplicaState | None]]:
        """The sessions to finish because their subscription ends or has ended; each with its subscriber if in reach."""
        leaving = {row.subid: replica for row, replica in self.left}
        return [
            (session, leaving.get(subid))
            for session in self.publisher.sessions
            if (subid := session.manifest.subid) in leaving or not self.publisher.is_active(subid)
        ]

    def definition(self, row: ArticleRow) -> Definition:
        """The definition of a published article that counts."""
        versions = self.publisher.info.article_versions if self.publisher.info is not None else {}
        return row.definitions[versions.get(row.nickname, FIRST_VERSION)]

    def is_vertical(self, row: ArticleRow) -> bool:
        """Whether only some columns of a published article are published."""
        return row.is_vertical(self.definition(row))

    def tracking(self, row: ArticleRow) -> Tracking:
        """The tracking of a published article."""
        return Tracking.COLUMN if row.is_by_column(self.definition(row)) else Tracking.ROW

    def table(self, replica: ReplicaState, row: ArticleRow) -> TableState:
        """Return the table of a published article.

        Raises: CaptureError if it is gone; StoreError if it cannot be read.
        """
        path = replica.root / row.source_table
        found = self.tables[path]
        if found is None:
            raise table_gone(row.name, path, replica.root, is_publisher=replica is self.publisher)
        if isinstance(found, StoreError):
            raise found
        return found


def read_replicas(publication: Publication) -> list[ReplicaState]:
    """Return the replicas the file names, publisher first, and those of subscriptions it no longer names.

    A replica of an ended subscription is included only until it records the end.
    """
    publisher = read_replica(Location.of(publication.publisher))
    seen = [publisher, *(read_replica(Location.of(s.subscriber)) for s in publication.subscriptions)]
    row = publisher.publication(publication.name)
    if row is not None:
        known = {replica.repid for replica in seen}
        gone = [
            Location.of(r.subscriber_server) for r in publisher.others_of(row.pubid) if r.replid not in known
        ]
        named = {str(replica.root) for replica in seen}
        seen += [_if_readable(root) for root in gone if str(root) not in named]
        for ended in publisher.others_of(row.pubid, are_ended=True):
            if all(ended.replid != replica.repid for replica in seen):
                replica = _if_readable(Location.of(ended.subscriber_server))
                # A replica on a read-only disk is left alone: the publication goes on without it.
                if replica.is_active(ended.subid) and is_writable(replica.root):
                    seen.append(replica)
    return seen


def _if_readable(root: Location) -> ReplicaState:
    try:
        return read_replica(root)
    except (PublicationError, StoreError, OSError):
        # Absent, damaged, or on a mount that does not answer: nothing can be recorded there.
        return ReplicaState(root)


def read_stored(publication: Publication, replicas: Sequence[ReplicaState]) -> Stored:
    """Read the inputs of a decision about the publication; `replicas` as `read_replicas` returns them.

    Raises: PublicationError if a replica is a copy, or the table of a new article cannot be read.
    """
    stored = match(publication, replicas)
    publisher, row = stored.publisher, stored.row
    moved = {
        replica.root: before
        for replica in replicas[: 1 + len(publication.subscriptions)]
        if replica.info is not None and (before := former_place(replica.root, replica.info)) is not None
    }
    is_filtered = publication.joins or any(article.filter is not None for article in publication.articles)
    control = Replica(publisher.root)
    groups = partition_groups(control, row.publication_number or 0) if row is not None and is_filtered else []
    known = {each.name: each for each in stored.articles}
    new = [article for article in publication.articles if article.name not in known]
    tables: dict[Location, TableState | StoreError | None] = {}
    for article in new:
        path = publisher.root / article.table
        tables[path] = read_article_table(article, path)
    stated = {article.name for article in publication.articles}
    for replica in (publisher, *stored.active):
        for each in replica.articles_of(stored.pubid):
            if each.name in stated:
                path = replica.root / each.source_table
                try:
                    tables[path] = open_table(path) if is_delta_table(path) else None
                except StoreError as error:
                    tables[path] = error
    images = {}
    if new and publisher.info is not None:
        fields = open_table(publisher.root / FOLDER / contents.NAME).fields
        images = {each["name"]: ddl_of(each["type"]) for each in fields}
    is_unknown = stored.is_waited_for and not stored.is_subscribed
    staged = [guid for session in publisher.sessions for guid in session.manifest.uploaded_guids]
    return replace(
        stored,
        moved=moved,
        groups=[group for group in groups if group.is_active],
        has_generations=is_unknown and control.last_generation(stored.pubid) is not None,
        image_types=images,
        tables=tables,
        unsent={
            left.subid: describe_unsent(publisher.root, replica.root, stored.pubid, staged)
            for left, replica in stored.left
            if replica is not None and left.status != SubscriptionState.INACTIVE
        },
    )


def match(publication: Publication, replicas: Sequence[ReplicaState]) -> Stored:
    """Match the file's subscriptions to the publisher's rows, and these rows to their replicas."""
    publisher = replicas[0]
    row = publisher.publication(publication.name)
    pubid = row.pubid if row else str(uuid.uuid4())
    rows = publisher.others_of(pubid)
    named = replicas[1 : 1 + len(publication.subscriptions)]
    # By identity first: a new replica may be in the former folder of a moved one.
    by_id = [next((r for r in rows if r.replid == replica.repid), None) for replica in named]
    taken = {id(found) for found in by_id}
    subscribers = []
    for subscription, replica, known in zip(publication.subscriptions, named, by_id, strict=True):
        at_root = (r for r in rows if r.subscriber_server == str(replica.root) and id(r) not in taken)
        subscribers.append(SubscriberState(subscription, replica, known or next(at_root, None)))
    matched = {id(each.row) for each in subscribers}
    at = {replica.repid: replica for replica in replicas if replica.info}
    known_yet = {publisher.repid, *(replica.repid for replica in named), *(r.replid for r in rows)}
    return Stored(
        publication.name,
        pubid,
        publisher,
        subscribers,
        left=[(r, at.get(r.replid)) for r in rows if id(r) not in matched],
        back=[replica for repid, replica in at.items() if repid not in known_yet],
    )


def describe_unsent(publisher: Location, subscriber: Location, pubid: str, staged: Collection[str]) -> str:
    """Describe the subscriber's changes that never reached the publisher; '' if all did.

    `staged` are guids of generations that an interrupted session uploads: it is finished first.
    """
    from mergerepl.monitoring.waiting import uncaptured, unsent_generations

    def held(guids: Collection[str]) -> Collection[str]:
        return {*Replica(publisher).held(guids), *staged}

    try:
        replica = Replica(subscriber)
        info = replica.info()
        # Also if the subscription has already ended here: a run may have been cut short before it ended at the publisher.
        about_publisher = replica.relations(pubid)
        if not about_publisher:
            return ""
        articles = replica.articles_of(pubid)
        # The publisher's watermark is not read: even if the publisher was restored, the subscription ends.
        destination = Destination(str(publisher), held, settled=Replica(publisher).settled(pubid))
        generations = unsent_generations(replica, about_publisher[0], articles, destination=destination)
        looks = [uncaptured(replica, article, info) for article in articles]
    except StoreError as error:
        # It is about to leave; damage there must not keep it.
        return f"an unknown number of changes ({error.message})"
    changes, commits = sum(row.changecount for row in generations), sum(look.commits for look in looks)
    parts = [counted(changes, "change")] if changes else []
    parts += [f"{counted(commits, 'commit')} not captured yet"] if commits else []
    parts += [f"an unknown number of changes ({look.problem})" for look in looks if look.problem]
    return " and ".join(parts)


def read_replica(root: Location) -> ReplicaState:
    """Read the replica at `root`.

    Raises: PublicationError if system tables are missing or of another version of mergerepl; StoreError if one cannot
    be read.
    """
    replica = Replica(root)
    control = replica.control
    if not control.exists(replinfo.TABLE):
        _refuse_orphans(root, control)
        return ReplicaState(root)
    missing = [table.name for table in registry.ALL if not is_delta_table(control.path(table.name))]
    if missing:
        raise PublicationError(
            f"Replica '{root}' has lost its system tables {', '.join(missing)}. Restore the folder "
            f"'{root / FOLDER}' from a copy taken together with the tables, or initialise the replica again: "
            f"remove '{root / FOLDER}', take the subscription out of the file, run `mergerepl apply`, and "
            "put it in again.",
            replica=str(root),
            table=missing[0],
        )
    require_schema_version(root, replica.info().schema_version)
    publications = control.rows(catalog.PUBLICATIONS)
    articles = [row for row in control.rows(catalog.ARTICLES) if row.status != ArticleState.ENDED]
    subscriptions = control.rows(catalog.SUBSCRIPTIONS)
    sessions: tuple[Changeset, ...] = ()
    if has_staged_session(root):
        from mergerepl.store.changeset import staged_changesets

        # By name; one without a manifest does not count.
        sessions = tuple(staged_changesets(replica.staging))
    # Last, since no lease is held: a session writes it before the watermarks; it must not look restored.
    info = replica.info()
    counted = [counted_filters(row, articles, info.article_versions) for row in publications]
    unsettled = frozenset(row.pubid for row, now in zip(publications, counted, strict=True) if row != now)
    return ReplicaState(root, info, counted, articles, subscriptions, sessions, unsettled)


def _refuse_orphans(root: Location, control: ControlPlane) -> None:
    """Refuse system tables that have rows but no MSmerge_replinfo, which identifies the replica.

    MSmerge_replinfo is made last: if a first `apply` was cut short, all the others are still empty.
    """
    if not root.is_local and not is_folder(control.folder):
        return
    tables: tuple[TypedTable[Any], ...] = (catalog.ARTICLES, catalog.SUBSCRIPTIONS, catalog.PUBLICATIONS)
    for table in tables:
        if control.exists(table) and control.rows(table):
            raise PublicationError(
                f"Replica '{root}' has lost its system table {replinfo.NAME}. Restore the folder "
                f"'{root / FOLDER}' from a copy.",
                replica=str(root),
                table=replinfo.NAME,
            )
