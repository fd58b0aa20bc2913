"""Give a subscriber the articles it lacks: tables, rows and metadata, from one version of each article.

Invariant 20: the copied version is the publisher's captured one. So every change is either in the copied rows, with its
lineage in the copied metadata, or is captured later and sent. Sessions see a subscriber's part once the publisher's
subscription row becomes active, which is the last commit; until then the next `apply` drops it and starts over.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from enumeration.horizon import clock_of, publishers_horizon, with_horizon
from mergerepl.changes import PUBLISHER, ROWGUID, SUBSCRIBER
from mergerepl.delta.marks import SETUP
from mergerepl.delta.properties import missing_properties, set_properties
from mergerepl.delta.tables import (
    TableState,
    Transaction,
    create_table,
    foreign_file,
    open_table,
    read_version,
)
from mergerepl.delta.types import Field
from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.merge.partitions.membership import base_rows, group_rows, partition_rows, with_rowguid
from mergerepl.merge.partitions.scratch import require_scratch_outside
from mergerepl.model.definition import FIRST_VERSION
from mergerepl.model.horizon import Horizon
from mergerepl.model.publication import Subscription, SyncType
from mergerepl.publish.carry_out import ApplyRun
from mergerepl.publish.check_rows import check_generated
from mergerepl.publish.check_subscriber import columns_changed
from mergerepl.publish.metadata import forget_metadata, give_metadata, last_generation
from mergerepl.publish.rows import definition, note_captured, publication_row, rows_at_subscriber
from mergerepl.publish.snapshot import KEY_PREFIX, copied_table, copy_rows, differing_rows
from mergerepl.publish.stored import ReplicaState, read_replica
from mergerepl.publish.system_tables import (
    add_definition_columns,
    add_image_columns,
    create_conflict_table,
    create_replica,
    drop_unfinished,
    drop_unfinished_replica,
    initialise_mark,
)
from mergerepl.replica.application_ids import RUN_APP_ID, copy_app_id
from mergerepl.replica.expiry import staged_again
from mergerepl.replica.fence import fence_new_table
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import update_subscription
from mergerepl.rows.images import with_readable
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import require_utc
from mergerepl.store.location import Location
from mergerepl.systables import catalog, contents, tombstone
from mergerepl.systables.catalog import ArticleRow, SubscriptionRow, SubscriptionState, relations
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER

MOST_NAMED = 5


class Initialisation:
    """All articles for a new subscriber, or those of these names for an active one.

    The publisher's rows are read again, since earlier steps wrote them.
    """

    def __init__(
        self, run: ApplyRun, subscription: Subscription, subid: str, names: Sequence[str] | None = None
    ) -> None:
        self.run = run
        self.publisher = read_replica(run.publisher)
        self.row = next(row for row in relations(self.publisher.subscriptions) if row.subid == subid)
        self.root = Location.of(subscription.subscriber)
        self.is_adopted = subscription.sync_type is SyncType.NONE
        self.is_new = names is None
        published = self.publisher.articles_of(run.pubid)
        self.articles = [each for each in published if names is None or each.name in names]
        self.mark = initialise_mark(subid, "create", self.row.replid)
        assert self.publisher.info is not None
        self.clock = clock_of(self.publisher.info, self.publisher.subscriptions)

    def carry_out(self) -> None:
        """Make the tables with their rows and metadata, then the rows of the control plane.

        Raises: PublicationError, EngineError.
        """
        run, root, row = self.run, self.root, self.row
        failpoint("initialise.begin")
        self.prepare()
        failpoint("initialise.after_system_tables")
        tables = {}
        kept = Kept()
        try:
            only = self.rows_of_partition(kept)
            for article in self.articles:
                run.progress.step("copy", article=article.name)
                version, table_id = self.make_table(article, only.get(article.nickname))
                tables[article.nickname] = root / article.source_table, version, table_id
                failpoint("initialise.after_article")
            guids = {
                article.nickname: with_rowguid(only[article.nickname], article).select(ROWGUID)
                for article in Replica(run.publisher).articles
                if article.nickname in only
            }
            mark = initialise_mark(row.subid, "metadata", row.replid)
            give_metadata(run, self.publisher, list(tables), root, row.replnickname, mark, only=guids)
        finally:
            kept.release()
        assert self.publisher.info is not None
        known = self.publisher.info.article_versions
        versions = {nickname: known.get(nickname, FIRST_VERSION) for nickname in tables}
        note_captured(root, tables, clock=self.clock, versions=versions)
        failpoint("initialise.after_captured")
        control = Replica(root).control
        if self.is_new:
            self.enter_publication()
        artids = {article.artid for article in self.articles}
        control.replace_where(catalog.ARTICLES, self.articles, artid=artids)
        changes = Replica(run.publisher).schema_changes()
        control.replace_where(catalog.SCHEMACHANGE, [c for c in changes if c.artid in artids], artid=artids)
        failpoint("initialise.after_articles")
        if self.is_new:
            self.enter_subscription()

    def rows_of_partition(self, kept: Kept) -> dict[int, DataFrame]:
        """Return the subscriber's rows of filtered articles, by tablenick, at their captured versions."""
        replica = Replica(self.run.publisher)
        publication = filtered_publication(replica, self.run.pubid)
        if publication is None:
            return {}
        spark = self.run.spark
        require_scratch_outside(spark, replica, self.run.pubid, Location.of(self.row.subscriber_server))
        mine = [group for group in publication.groups if group.partition_id == self.row.partition_id]
        groups = group_rows(spark, mine)
        base = base_rows(spark, replica, publication.articles, self.publisher.captured)
        nickname_of = {name: article.nickname for name, article in publication.articles.items()}
        nicknames = {article.nickname for article in self.articles} & {*publication.tablenicks}
        wanted = [name for name, nickname in nickname_of.items() if nickname in nicknames]
        found = partition_rows(publication, groups, base, kept, wanted)
        return {nickname_of[name]: rows for name, rows in found.items()}

    def prepare(self) -> None:
        """Drop the tables of an unfinished run, and create the missing system tables."""
        run, row, root = self.run, self.row, self.root
        drop_unfinished([root / article.source_table for article in self.articles], row.subid)
        if row.status == SubscriptionState.INACTIVE and not self.is_shared(read_replica(root)):
            drop_unfinished_replica(root, row.subid)
        columns = {article.nickname: self.fields(article) for article in self.articles}
        # Images of columns that changed have the numbers of their fields.
        changed = [article for article in self.articles if article.fields is not None]
        images = {n: each for n, each in columns.items() if n not in {row.nickname for row in changed}}
        state = read_replica(root)
        if state.info is None:
            info = ReplicaInfo(repid=row.replid, replnickname=row.replnickname, root=str(root))
            create_replica(root, info, images, retention=run.retention, mark=self.mark)
            for name in (contents.NAME, tombstone.NAME):
                fence_new_table(root.join(FOLDER, name), [RUN_APP_ID])
        else:
            Replica(root).require_unedited()
            # A former subscriber may have articles that the publication no longer has.
            published = {article.artid for article in self.publisher.articles_of(run.pubid)}
            gone = [article for article in state.articles_of(run.pubid) if article.artid not in published]
            forget_metadata(run, state, [article.nickname for article in (*self.articles, *gone)])
            add_image_columns(lambda: run.spark, root, images)
        for article in self.articles:
            create_conflict_table(
                root,
                article.conflict_table,
                columns[article.nickname],
                spark_of=lambda: run.spark,
                retention=run.retention,
                mark=self.mark,
            )
        for article in changed:
            for each in article.definitions.values():
                add_definition_columns(lambda: run.spark, root, article, each)

    def is_shared(self, subscriber: ReplicaState) -> bool:
        """True if a replica also belongs to a publication other than the one that created it.

        Another one may have joined while the first was unfinished: the replica has its metadata and conflicts too.
        """
        row = self.row
        pubids = {each.pubid for each in subscriber.subscriptions}
        pubids |= {each.pubid for each in subscriber.articles}
        return not pubids <= {row.pubid} or any(
            each.replid == row.replid and each.subid != row.subid and each.is_active
            for each in self.publisher.subscriptions
        )

    def fields(self, article: ArticleRow) -> list[Field]:
        """Return the columns in the order of publication, which identifies them in images.

        Raises: PublicationError.
        """
        table = open_table(self.publisher.root / article.source_table)
        fields = {field["name"]: field for field in table.fields}
        if not fields.keys() >= set(article.published_columns):
            raise columns_changed(article, table)
        return [fields[name] for name in article.published_columns]

    def make_table(self, article: ArticleRow, only: DataFrame | None) -> tuple[int, str]:
        """Create or check one article's table; return its captured version and its id."""
        run = self.run
        source = open_table(self.publisher.root / article.source_table)
        _require_utc(run, article, source)
        captured = self.publisher.captured[article.nickname]
        target = self.root / article.source_table
        if self.is_adopted:
            table = open_table(target)
            _require_utc(run, article, table)
            mark = run.mark(f"publish {article.name} at {self.root}")
            version = set_properties(lambda: run.spark, table, missing_properties(table, run.retention), mark)
            failpoint("initialise.after_adopt")
            # Again: both tables may have been written to since the plan was made.
            check_same_rows(run, article, source, captured, table, version)
            return version, table.metadata.table_id
        columns = list(article.published_columns)
        new = copied_table(lambda: run.spark, source, target, columns, run.retention)
        table_id = create_table(target, new, self.mark)
        made = fence_new_table(target, [copy_app_id(self.row.subid)])
        failpoint("initialise.after_create")
        version = copy_rows(
            lambda: run.spark,
            source.path,
            captured,
            target,
            columns=columns,
            partition_columns=new.partition_columns,
            transaction=Transaction(copy_app_id(self.row.subid), 1, replace(self.mark, step=f"{SETUP}:rows")),
            only=only,
        )
        # A commit between the two is a user's write, which is captured later.
        return (version if version == made + 1 else made), table_id

    def enter_publication(self) -> None:
        """Write the publication's row at a new subscriber; replaces the old row of a former subscriber."""
        run, control = self.run, Replica(self.root).control
        publications = control.rows(catalog.PUBLICATIONS)
        former = next((row for row in publications if row.pubid == run.pubid), None)
        number = len(publications) + 1 if former is None else former.publication_number
        row = publication_row(run.publication, run.pubid, number, publisher_replid=self.publisher.repid)
        row = replace(row, status=1, definition=definition(run.publication, with_subscriptions=False))
        if row != former:
            control.replace_where(catalog.PUBLICATIONS, [row], pubid=run.pubid)

    def enter_subscription(self) -> None:
        """Write the subscriber's two rows of the subscription, then make the publisher's active: the commit point."""
        assert self.publisher.info is not None
        pubid = self.run.pubid
        there, here = last_generation(self.run.publisher, pubid), last_generation(self.root, pubid)
        itself, other = rows_at_subscriber(self.publisher.info, self.row)
        to, info = self.horizon(), self.publisher.info
        rows = [itself, other]
        itself, other = with_horizon(rows, subid=other.subid, side=SUBSCRIBER, to=to, info=info)
        other = replace(other, schemaversion=self.schemaversion())
        other = replace(other, recgen=there[0], recguid=there[1], sentgen=here[0], sentguid=here[1])
        Replica(self.root).control.replace_where(catalog.SUBSCRIPTIONS, [itself, other], pubid=pubid)
        failpoint("initialise.before_active")
        change = {"sentgen": there[0], "sentguid": there[1], "recgen": here[0], "recguid": here[1]}
        change |= {"status": SubscriptionState.ACTIVE, "schemaversion": self.schemaversion()}

        publisher = Replica(self.run.publisher)
        staged = staged_again(publisher)

        def also(rows: list[SubscriptionRow]) -> list[SubscriptionRow]:
            subid = self.row.subid
            return with_horizon(rows, subid=subid, side=PUBLISHER, to=to, info=info, staged=staged)

        update_subscription(publisher, self.row.subid, self.row.replid, change, also)
        failpoint("initialise.after_active")

    def schemaversion(self) -> int:
        """Return the last schema change of the publication: its tables are copied as they are now."""
        rows = Replica(self.run.publisher).schema_changes()
        return max((row.schemaversion or 0 for row in rows if row.pubid == self.run.pubid), default=0)

    def horizon(self) -> Horizon:
        """Return what the publisher's rows, as they were copied, make known to the subscriber."""
        replica = Replica(self.run.publisher)
        settled, known = publishers_horizon(
            replica.rows_of(self.run.pubid), self.clock, staged_again(replica)
        )
        return Horizon(through=self.clock, knows=known, settled=settled, known=known)


def check_same_rows(
    run: ApplyRun,
    article: ArticleRow,
    source: TableState,
    source_version: int,
    target: TableState,
    target_version: int,
) -> None:
    """Check that a subscriber's table has the publisher's rows, in files of its own.

    Raises: PublicationError naming up to five keys that differ; EngineError if the Spark session would read timestamp
    partition columns otherwise.
    """
    _require_utc(run, article, source, target)
    table = target.path
    rows = read_version(run.spark, table, target_version)
    foreign = foreign_file(lambda: run.spark, table, target_version)
    if foreign is not None:
        raise PublicationError(
            f"Article '{article.name}': table '{table}' has files outside its folder, such as '{foreign}' (a "
            "shallow clone?), whose owner may remove them. Copy it with CREATE TABLE … AS SELECT and put the copy in "
            "its place, or move it away and leave `sync_type` out: the rows are then copied from the publisher.",
            article=article.name,
            table=str(table),
        )
    check_generated(rows, target.generated_columns, article=article.name, table=table)
    differing = differing_rows(
        read_version(run.spark, source.path, source_version),
        rows,
        article.published_columns,
        article.key_columns,
    )
    keys = [f"{KEY_PREFIX}{i}" for i, _ in enumerate(article.key_columns)]
    found = with_readable(differing, keys).take(MOST_NAMED + 1)
    if not found:
        return
    named = [
        ", ".join(f"{name}={row[key]}" for name, key in zip(article.key_columns, keys, strict=True))
        + f" ({row['kind']})"
        for row in found[:MOST_NAMED]
    ]
    more = " and more" if len(found) > MOST_NAMED else ""
    raise PublicationError(
        f"Article '{article.name}': table '{table}' does not hold the publisher's rows, as `sync_type: "
        f"none` promises: {'; '.join(named)}{more}. Make the tables equal, or move this one away and leave "
        "`sync_type` out: the rows are then copied from the publisher.",
        article=article.name,
        table=str(table),
        keys="; ".join(named),
    )


def _require_utc(run: ApplyRun, article: ArticleRow, *tables: TableState) -> None:
    for table in (each for each in tables if each.metadata.timestamp_partitions):
        require_utc(run.spark, article.name, table.path, table.metadata.timestamp_partitions)
