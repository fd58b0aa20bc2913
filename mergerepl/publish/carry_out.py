"""The steps of `apply` at the replicas of a merge publication, and their checks of rows beforehand.

Each function takes the run last. A step writes last the row that tells the next `apply` that it is done, and writes to
the publisher after its subscribers.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.properties import missing_properties, set_properties
from mergerepl.delta.store_proof import require_shared_folders
from mergerepl.delta.tables import TableState, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PublicationError, SchemaMismatchError
from mergerepl.failpoints import failpoint
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Article, Publication, Subscription, SyncType
from mergerepl.publish.agent import Agent, DefinitionChange
from mergerepl.publish.check_article import check_article, published_fields
from mergerepl.publish.check_subscriber import columns_changed, publish_again_otherwise
from mergerepl.publish.filters import Values
from mergerepl.publish.partitions import add_partition, partition_column
from mergerepl.publish.rows import (
    PUBLISHER_NICKNAME,
    Columns,
    article_row,
    change_info,
    definition,
    filter_columns,
    note_captured,
    publication_row,
    publisher_row,
    subscriber_row,
    subscription_columns,
    update_rows,
)
from mergerepl.publish.stated import NewArticle, Stated
from mergerepl.publish.steps import Step
from mergerepl.publish.stored import ReplicaState, Stored, SubscriberState, describe_unsent
from mergerepl.publish.system_tables import (
    add_image_columns,
    check_unwritten,
    create_conflict_table,
    create_replica,
    drop_unfinished,
    is_unfinished,
)
from mergerepl.replica.ended import end_article, is_staged
from mergerepl.replica.named_tables import Name
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import record_jvm
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, ArticleState, SubscriptionRow, SubscriptionState
from mergerepl.systables.conflicts_info import conflict_table_name
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import RowT, TypedTable
from triggers.errors import FeedGapError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class ApplyRun:
    """The publication being applied, its identity and its session.

    `uncaptured` are the tables of a publication without subscribers so far, by nickname, as they were checked.
    """

    publication: Publication
    pubid: str
    publisher: Location
    agent: Agent
    progress: Progress
    held: tuple[Location, ...] = ()
    uncaptured: dict[int, TableState] | None = None
    id: str = field(default_factory=lambda: f"apply {uuid.uuid4()}")

    @cached_property
    def spark(self) -> "SparkSession":
        """The session, started when the first step needs it."""
        from mergerepl.spark.session import session

        subscribers = [Location.of(each.subscriber) for each in self.publication.subscriptions]
        for root in (self.publisher, *subscribers):
            root.require_spark()
        spark = session()
        self._record_jvm()
        return require_shared_folders(spark, *self.held)

    def hold(self, roots: Sequence[Location]) -> None:
        """Note these replicas as leased from now on."""
        self.held = tuple(roots)
        if "spark" in self.__dict__:
            self._record_jvm()
            require_shared_folders(self.spark, *roots)

    def _record_jvm(self) -> None:
        """Note the JVM that writes for us, so that the next process after a kill waits for its end."""
        from mergerepl.spark.session import jvm_pid

        for root in self.held:
            record_jvm(root, jvm_pid())

    @property
    def retention(self) -> timedelta:
        """The retention of metadata and files."""
        return self.publication.retention

    def mark(self, step: str) -> CommitMark:
        """Return the mark of a commit of this run."""
        return CommitMark(self.id, f"{SETUP}:{step}")

    def article(self, row: ArticleRow) -> Article:
        """Return a published article as the file states it."""
        return next(article for article in self.publication.articles if article.name == row.name)


MergeStep = Step[ApplyRun]

# ---- places


def move(replica: ReplicaState, others: Sequence[Location], run: ApplyRun) -> None:
    """Record a replica's new place, at the replicas that know it and at itself."""
    for root in others:
        note_place(root, replica, run)
    # Last: the next `apply` concludes from it that every replica has the new place.
    change_info(replica.root, root=str(replica.root))


def note_place(root: Location, replica: ReplicaState, run: ApplyRun) -> None:
    """Note a replica's place in the tables of the replica at `root`; all publications there have one publisher."""
    update_rows(root, catalog.PUBLICATIONS, {"publisher": str(run.publisher)})
    failpoint("move.between_tables")
    update_rows(root, catalog.SUBSCRIPTIONS, {"subscriber_server": str(replica.root)}, replid=replica.repid)
    failpoint("move.after_replica")


# ---- the publication


def create(stated: Stated, stored: Stored, run: ApplyRun) -> None:
    """Create the publication's rows, after its system tables if the publisher lacks them."""
    publisher = stored.publisher
    info = publisher.info
    if info is None:
        info = ReplicaInfo(repid=str(uuid.uuid4()), replnickname=PUBLISHER_NICKNAME, root=str(publisher.root))
        images = {new.nickname: new.fields for new in stated.new}
        create_replica(publisher.root, info, images, retention=run.retention, mark=run.mark("system tables"))
        failpoint("create.after_system_tables")
    number = len(publisher.publications) + 1
    row = publication_row(
        run.publication, run.pubid, number, publisher_replid=info.replid, filters=stated.filters
    )
    control = Replica(publisher.root).control
    # A run that was cut short here left a row of a publication that was never published.
    known = {each.pubid for each in publisher.publications}
    subscriptions = [each for each in control.rows(catalog.SUBSCRIPTIONS) if each.pubid in known]
    control.replace(catalog.SUBSCRIPTIONS, [*subscriptions, publisher_row(info, run.pubid)])
    failpoint("create.after_subscriptions")
    control.edit(catalog.PUBLICATIONS, lambda rows: [*rows, row])


def change_filters(filters: PublicationFilters, run: ApplyRun) -> None:
    """Store changed filters of new articles, or of articles without subscribers."""
    update_rows(run.publisher, catalog.PUBLICATIONS, filter_columns(filters), pubid=run.pubid)


def check_late_columns(stored: Stored, columns: Mapping[str, Sequence[str]], run: ApplyRun) -> None:
    """Check that no changes wait at subscribers that may say nothing of columns (by article), which filters newly read.

    Raises: PublicationError.
    """
    staged = [guid for each in stored.publisher.sessions for guid in each.manifest.uploaded_guids]
    for replica in stored.active if columns else ():
        if unsent := describe_unsent(run.publisher, replica.root, run.pubid, staged):
            name = next(iter(columns))
            raise PublicationError(
                f"Article '{name}': its filter needs the column '{columns[name][0]}', which was added after it was "
                f"published. Subscriber '{replica.root}' has {unsent} that may have been made before. Put the filter back, "
                "run `mergerepl sync`, and then change it.",
                article=name,
            )


def change_definition(change: DefinitionChange, run: ApplyRun, *, is_subscribed: bool) -> None:
    """Change what the publication states; each subscriber follows with its next session."""
    run.agent.change(run.publisher, run.pubid, change, is_subscribed=is_subscribed)


def change_everywhere(
    roots: Sequence[Location], table: TypedTable[RowT], change: Columns, where: Columns, run: ApplyRun
) -> None:
    """Change rows at all replicas, the publisher (the first) last: the next `apply` continues from its rows."""
    del run
    for root in reversed(roots):
        update_rows(root, table, change, **where)
        failpoint("change.after_replica")


def change_subscription(row: SubscriptionRow, subscriber: Location, change: Columns, run: ApplyRun) -> None:
    """Change a subscription at both sides. The subscriber has two rows: about itself and about the publisher."""
    for subid in sorted({row.subid, row.pubid}):
        update_rows(subscriber, catalog.SUBSCRIPTIONS, change, subid=subid)
    failpoint("change.between_sides")
    update_rows(run.publisher, catalog.SUBSCRIPTIONS, change, subid=row.subid)


def change_properties(row: ArticleRow, root: Location, table: TableState, run: ApplyRun) -> None:
    """Give a published table the properties that replication needs."""
    mark = run.mark(f"properties of {row.name} at {root}")
    set_properties(lambda: run.spark, table, missing_properties(table, run.retention), mark)


def record(replicas: Sequence[Location], run: ApplyRun) -> None:
    """Store the file as applied; a new publication becomes active."""
    shared = definition(run.publication, with_subscriptions=False)
    for root in replicas:
        update_rows(root, catalog.PUBLICATIONS, {"definition": shared}, pubid=run.pubid)
        failpoint("record.after_subscriber")
    # The publisher last: the next `apply` recognises the applied file by its row.
    applied = {"definition": definition(run.publication), "status": 1}
    update_rows(run.publisher, catalog.PUBLICATIONS, applied, pubid=run.pubid)


def register_name(name: Name, run: ApplyRun) -> None:
    """Give a subscriber's table its name in the catalog of the caller's session."""
    run.spark.sql(name.statement)


def partition(values: Values, run: ApplyRun) -> None:
    """Add a partition."""
    add_partition(Replica(run.publisher), run.pubid, values)
    failpoint("partition.after_group")


# ---- articles


def check_new_rows(new: NewArticle, run: ApplyRun) -> None:
    """Check the rows of a table before it is published."""
    _check_rows(new.article, new.table, run)


def _check_rows(article: Article, table: TableState, run: ApplyRun) -> None:
    from mergerepl.publish.check_rows import check_rows

    run.progress.step("check", article=article.name)
    check_rows(lambda: run.spark, article, table)


def publish(new: NewArticle, run: ApplyRun) -> None:
    """Publish one table. Its row in sysmergearticles is the commit point: without it, a run starts over."""
    root, table = run.publisher, new.table
    name = new.article.name
    failpoint("publish.before_alter")
    captured = set_properties(
        lambda: run.spark, table, missing_properties(table, run.retention), run.mark(f"publish {name}")
    )
    failpoint("publish.after_alter")
    _check_again(new, captured, run)
    create_conflict_table(
        root,
        conflict_table_name(run.publication.name, name),
        new.fields,
        spark_of=lambda: run.spark,
        retention=run.retention,
        mark=run.mark(f"system tables of {name}"),
    )
    add_image_columns(lambda: run.spark, root, {new.nickname: new.fields})
    failpoint("publish.after_system_tables")
    note_captured(root, {new.nickname: (table.path, captured, table.metadata.table_id)})
    failpoint("publish.after_captured")
    row = article_row(
        run.publication, new.article, table, pubid=run.pubid, artid=str(uuid.uuid4()), nickname=new.nickname
    )
    Replica(root).control.edit(catalog.ARTICLES, lambda rows: [*rows, row])
    failpoint("publish.after_article")


def _check_again(new: NewArticle, captured: int, run: ApplyRun) -> None:
    """Check the rows written between the plan's check and the captured version: the feed has later writes."""
    article, path = new.article, new.table.path
    table = open_table(path, captured)
    since = [commit for commit in table.commits_after(new.table.version) if commit.kind != SETUP]
    if not since:
        return
    check_article(article, table)
    if published_fields(article, table) != new.fields:
        raise PublicationError(
            f"Article '{article.name}': the columns of table '{path}' changed while it was being published. Run "
            "`mergerepl apply` again.",
            article=article.name,
            table=str(path),
        )
    if any(commit.data_change for commit in since):
        _check_rows(article, table, run)


def unpublish(artid: str, run: ApplyRun) -> None:
    """Take an article out of the publication. Its table keeps the feed; the nickname is not reused."""
    Replica(run.publisher).control.remove_where(catalog.ARTICLES, artid=artid)


def end(row: ArticleRow, subids: Sequence[str], run: ApplyRun) -> None:
    """Let an article end after one more upload of each of these subscriptions; without any, at once."""
    publisher = Replica(run.publisher)
    change = {"status": int(ArticleState.ENDING), "ends_after": tuple(subids)}
    publisher.control.change_where(catalog.ARTICLES, change, artid=row.artid)
    if not subids and not is_staged(publisher, row.nickname):
        end_article(publisher, row)


def keep(row: ArticleRow, run: ApplyRun) -> None:
    """Take the end of an article back, which the file has again."""
    change = {"status": int(ArticleState.ACTIVE), "ends_after": ()}
    update_rows(run.publisher, catalog.ARTICLES, change, artid=row.artid)


def check_columns(row: ArticleRow, columns: tuple[str, ...], run: ApplyRun) -> None:
    """Check that subscribers can get the columns that an article publishes from now on."""
    run.agent.check_columns(run.publisher, row.nickname, columns)


def synchronise(subscriber: Location, run: ApplyRun) -> None:
    """Send what a subscriber has not sent, before an article changes."""
    run.agent.synchronise(run.publication, subscriber, run.progress)


def reinitialise(subscriber: Location, articles: Sequence[str], run: ApplyRun) -> None:
    """Make articles that were upload_only equal at a subscriber, before they get another resolver."""
    run.agent.reinitialise(run.publication, subscriber, articles, run.progress)


# ---- capture


def check_captured(stored: Stored, run: ApplyRun) -> None:
    """Check the rows of published articles that a new subscriber gets.

    Tables without subscribers so far are checked as a capture would: columns as published, real keys. For other tables,
    a copy must be able to take and keep the values, including those written since publication.

    Raises: PublicationError naming the columns or some of the offending keys.
    """
    if stored.is_idle:
        run.uncaptured = {}
        for article in stored.articles:
            run.uncaptured[article.nickname] = table = open_table(run.publisher / article.source_table)
            _check_columns(stored, article, table)
            _check_rows(run.article(article), table, run)
        return
    copying = [each for each in stored.subscribers if each.subscription.sync_type is SyncType.AUTOMATIC]
    for article in stored.articles:
        if not any(each.missing([article]) for each in copying):
            continue
        table = open_table(run.publisher / article.source_table)
        if any(table.may_hold_uncopied(name) for name in article.published_columns):
            from mergerepl.publish.check_rows import check_texts

            run.progress.step("check", article=article.name)
            check_texts(lambda: run.spark, run.article(article), table)


def capture(stored: Stored, run: ApplyRun) -> None:
    """Bring the publisher's metadata up to date."""
    if run.uncaptured is not None:
        _skip_to_head(stored, run.uncaptured, run)
    elif stored.is_subscribed:
        run.agent.capture(run.publisher, run.pubid)
    else:
        with publish_again_otherwise(FeedGapError, SchemaMismatchError):
            run.agent.capture(run.publisher, run.pubid)


def _skip_to_head(stored: Stored, checked: Mapping[int, TableState], run: ApplyRun) -> None:
    """Note the publisher's tables as captured at their present versions: no subscriber has rows of them yet.

    The rows written since `checked` are checked too.
    """
    tables = {}
    for article in stored.articles:
        table = open_table(run.publisher / article.source_table)
        _check_columns(stored, article, table)
        before = checked[article.nickname].version
        if any(commit.data_change and commit.kind != SETUP for commit in table.commits_after(before)):
            _check_rows(run.article(article), table, run)
        tables[article.nickname] = table.path, table.version, table.metadata.table_id
    note_captured(run.publisher, tables)


def _check_columns(stored: Stored, article: ArticleRow, table: TableState) -> None:
    definition = stored.definition(article)
    types = {field["name"]: ddl_of(field["type"]) for field in table.fields}
    published = {field.name: field.type for field in definition.fields}
    generated = {name: text for name, text in table.generated_columns.items() if name in published}
    if (
        any(types.get(name) != type_ for name, type_ in published.items())
        or (not article.is_vertical(definition) and len(types) != len(published))
        or generated != dict(article.generated_columns)
    ):
        raise columns_changed(article, table)


# ---- subscriptions

_ENDED = {"status": int(SubscriptionState.DELETED)}


def finish(subscriber: Location | None, session: str, run: ApplyRun) -> None:
    """Finish an interrupted session."""
    run.agent.finish(run.publisher, subscriber, session)


def check_unfinished(
    row: SubscriptionRow, subscriber: Location, articles: Sequence[ArticleRow], run: ApplyRun
) -> None:
    """Check that ending an unfinished subscription drops only tables that `apply` made."""
    del run
    for article in articles:
        table = subscriber / article.source_table
        if is_unfinished(table, row.subid):
            check_unwritten(subscriber, table)


def unsubscribe(
    row: SubscriptionRow, subscriber: Location | None, unfinished: Sequence[ArticleRow], run: ApplyRun
) -> None:
    """End a subscription. The subscriber keeps its tables, unless they are `unfinished`."""
    if subscriber is not None:
        drop_unfinished([subscriber / each.source_table for each in unfinished], row.subid)
        record_end(subscriber, run)
        failpoint("unsubscribe.between_sides")
    # The publisher last: no later `apply` finishes or cleans up a subscription that is ended there.
    update_rows(run.publisher, catalog.SUBSCRIPTIONS, _ENDED, subid=row.subid)


def record_end(subscriber: Location, run: ApplyRun) -> None:
    """Record at a subscriber that its subscription has ended."""
    update_rows(subscriber, catalog.SUBSCRIPTIONS, _ENDED, pubid=run.pubid)


def check_rows_there(subscriber: Location, articles: Sequence[ArticleRow], run: ApplyRun) -> None:
    """Check that a subscriber's own tables have the publisher's rows as they are now."""
    from mergerepl.publish.initialise import check_same_rows

    for article in articles:
        run.progress.step("compare", article=article.name)
        source = open_table(run.publisher / article.source_table)
        target = open_table(subscriber / article.source_table)
        check_same_rows(run, article, source, source.version, target, target.version)


def start_engine_of_copies(articles: Sequence[ArticleRow], run: ApplyRun) -> None:
    """Start Spark if it copies rows of these articles: where it cannot start, nothing was changed."""
    from mergerepl.delta.copy_files import can_copy_files

    is_filtered = bool(run.publication.joins) or any(each.filter for each in run.publication.articles)
    sources = ((each, open_table(run.publisher / each.source_table)) for each in articles)
    if any(is_filtered or not can_copy_files(source, each.published_columns) for each, source in sources):
        _ = run.spark


def subscribe(subscriber: SubscriberState, nickname: int, run: ApplyRun) -> None:
    """Initialise a new subscriber, or one whose initialisation was interrupted."""
    from mergerepl.publish.initialise import Initialisation

    subscription, row = subscriber.subscription, subscriber.row
    publisher = Replica(run.publisher)
    belongs_to = partition_column(publisher, run.pubid, subscription)
    if row is None:
        row = subscriber_row(
            subscription,
            run.pubid,
            subid=str(uuid.uuid4()),
            replid=subscriber.replica.repid or str(uuid.uuid4()),
            nickname=nickname,
            replicastate=str(uuid.uuid4()),
        )
        added = replace(row, **belongs_to)
        publisher.control.edit(catalog.SUBSCRIPTIONS, lambda rows: [*rows, added])
    else:
        # The file may have changed, and the replica may belong to another publication.
        columns = subscription_columns(subscription) | belongs_to
        columns |= {"replid": subscriber.replica.repid or row.replid, "replnickname": nickname}
        update_rows(run.publisher, catalog.SUBSCRIPTIONS, columns, subid=row.subid)
    failpoint("subscribe.after_row")
    Initialisation(run, subscription, row.subid).carry_out()


def initialise_new(subscription: Subscription, subid: str, names: Sequence[str], run: ApplyRun) -> None:
    """Initialise new articles at an active subscriber."""
    from mergerepl.publish.initialise import Initialisation

    Initialisation(run, subscription, subid, names).carry_out()
