"""`apply` of a changed file: what is carried out, what is refused, and what a running publication keeps."""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.config.project_file import load
from mergerepl.delta.table import open_table
from mergerepl.errors import PublicationError, StoreError
from mergerepl.merge.session.capture_replica import capture_replica
from mergerepl.model.progress import NoProgress
from mergerepl.model.publication import (
    Article,
    ConflictLogging,
    Resolution,
    SubscriberType,
    SyncType,
    Tracking,
)
from mergerepl.publish.apply import apply_publication
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, replinfo
from mergerepl.systables.catalog import SubscriptionState, SyncKind
from tests.networks import FILE, Hub, Network, commit
from tests.publish.publishing import capture, metadata, notes, orders

pytestmark = pytest.mark.spark


def capture_all(hub: Hub) -> None:
    capture_replica(hub.publisher, progress=NoProgress())


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    """A running publication of one article with one subscriber."""
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", "b", "c"]})
    hub.table("lines", {"order_id": [1], "item": ["x"]})
    hub.articles(orders(tracking=Tracking.COLUMN))
    hub.subscribe("north")
    hub.apply()
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """A copy of it."""
    return published.copied(replica_dir)


LINES = Article("lines", "lines", ("order_id",))


def change_rows(hub: Hub) -> None:
    """Update one row, delete one, insert one, at the publisher."""
    table = LogTable(str(hub.publisher / "orders"))
    table.update(predicate="id = 1", updates={"note": "'changed'"})
    table.delete("id = 2")
    hub.table("orders", {"id": [4], "note": ["d"]}, mode="append")


@pytest.fixture(scope="module")
def joined(published: Hub, worker_folder: Path) -> Hub:
    """The publication after changes, some captured and one not, when `south` came to it."""
    hub = published.copied(worker_folder / uuid.uuid4().hex[:12])
    change_rows(hub)
    capture_all(hub)
    LogTable(str(hub.publisher / "orders")).update(predicate="id = 3", updates={"note": "'late'"})
    hub.subscribe("south", type=SubscriberType.CLIENT)
    hub.apply(capture=capture)
    return hub


def test_a_new_subscriber_gets_rows_and_metadata_of_a_running_publication(
    spark: SparkSession, joined: Hub
) -> None:
    assert notes(joined, "south") == {1: "changed", 3: "late", 4: "d"}
    assert metadata(spark, joined, "south", "MSmerge_tombstone") == metadata(
        spark, joined, "hq", "MSmerge_tombstone"
    )
    contents = metadata(spark, joined, "south", "MSmerge_contents")
    assert contents == metadata(spark, joined, "hq", "MSmerge_contents")
    assert len(contents) == 3


def test_a_new_subscribers_watermarks_are_at_the_publishers_last_generation(
    joined: Hub,
) -> None:
    (at_hq,) = Replica(joined.root("hq")).genhistory()
    (at_south,) = Replica(joined.root("south")).genhistory()
    assert (at_hq.genstatus, at_south.genstatus) == (1, 2)
    assert at_hq.guidsrc == at_south.guidsrc
    assert at_hq.nicknames == (1,)
    assert at_south.nicknames == (1, 3)
    sent = next(row for row in joined.rows("hq", catalog.SUBSCRIPTIONS) if row.replnickname == 3)
    received = next(row for row in joined.rows("south", catalog.SUBSCRIPTIONS) if row.replnickname == 1)
    marks = ("sentgen", "sentguid", "recgen", "recguid")
    assert [getattr(sent, name) for name in marks] == [1, at_hq.guidsrc, 1, at_hq.guidsrc]
    assert [getattr(received, name) for name in marks] == [1, at_hq.guidsrc, 1, at_hq.guidsrc]
    (info,) = joined.rows("south", replinfo.TABLE)
    assert (info.last_seq, info.last_generation) == (1, 1)
    # and the subscriber that was there before still has the generation to come
    before = next(row for row in joined.rows("hq", catalog.SUBSCRIPTIONS) if row.replnickname == 2)
    assert (before.sentgen, before.recgen) == (0, 0)


def test_later_changes_never_join_a_generation_that_counts_as_sent(
    spark: SparkSession, joined: Hub, replica_dir: Path
) -> None:
    hub = joined.copied(replica_dir)
    LogTable(str(hub.publisher / "orders")).update(predicate="id = 4", updates={"note": "'after'"})
    capture_all(hub)
    generations = Replica(hub.root("hq")).genhistory()
    assert [(row.generation, row.genstatus) for row in generations] == [(1, 1), (2, 0)]
    contents = spark.read.format("delta").load(str(hub.publisher / "_mergerepl" / "MSmerge_contents"))
    last = contents.orderBy(F.desc("seq")).first()
    assert last.generation == 2


@pytest.mark.slow
def test_without_subscribers_yet_nothing_needs_capturing(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1], "note": ["a"]})
    hub.articles(orders())
    hub.apply()
    hub.table("orders", {"id": [2], "note": ["b"]}, mode="append")
    hub.subscribe("north")
    hub.apply()
    assert hub.captures == []
    assert notes(hub, "north") == {1: "a", 2: "b"}
    assert hub.rows("hq", replinfo.TABLE)[0].captured == {1: 2}


def test_a_new_article_reaches_every_subscriber(spark: SparkSession, hub: Hub) -> None:
    change_rows(hub)
    hub.articles(*hub.publication.articles, LINES)
    assert [step.action for step in hub.apply().steps] == ["publish", "initialise", "record"]
    (info,) = hub.rows("north", replinfo.TABLE)
    assert info.captured == {1: 1, 2: 1}
    assert [row.name for row in hub.rows("north", catalog.ARTICLES)] == ["orders", "lines"]
    # what waits of the other article is left alone
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}
    assert hub.rows("hq", replinfo.TABLE)[0].captured == {1: 1, 2: 1}
    for name in ("hq", "north"):
        for table in ("MSmerge_contents", "MSmerge_tombstone"):
            fields = [field["name"] for field in open_table(hub.root(name) / "_mergerepl" / table).fields]
            assert {"row_1", "row_2"} <= set(fields)
    assert hub.apply().steps == ()


def test_51_a_subscriber_whose_metadata_was_edited_gets_nothing_more(spark: SparkSession, hub: Hub) -> None:
    """What `apply` writes there would be the last change, and the edit below it not be seen any more."""
    table = hub.root("north") / "_mergerepl" / "MSmerge_contents"
    before = open_table(table).version
    remove = {"path": "gone.parquet", "dataChange": True, "deletionTimestamp": 0}
    commit(table, {"commitInfo": {"operation": "DELETE"}}, {"remove": remove})
    hub.articles(*hub.publication.articles, LINES)
    with pytest.raises(StoreError, match=r"MSmerge_contents.*/north' was edited: its version .*\(DELETE\)"):
        hub.apply()
    assert open_table(table).version == before + 1


def test_an_ended_subscription_leaves_the_subscribers_tables(spark: SparkSession, hub: Hub) -> None:
    hub.unsubscribe("north")
    assert [step.action for step in hub.apply().steps] == ["unsubscribe", "record"]
    assert {row.status for row in hub.rows("north", catalog.SUBSCRIPTIONS)} == {2}
    assert [row.status for row in hub.rows("hq", catalog.SUBSCRIPTIONS)] == [1, 2]
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}
    assert hub.apply().steps == ()


def test_an_unreachable_subscriber_can_be_removed(spark: SparkSession, hub: Hub) -> None:
    shutil.rmtree(hub.root("north"))
    hub.unsubscribe("north")
    (step, _) = hub.apply().steps
    assert "cannot be reached" in step.detail
    assert not hub.root("north").exists()
    assert hub.apply().steps == ()


@pytest.mark.slow
def test_a_former_subscriber_comes_back_with_its_tables(spark: SparkSession, hub: Hub) -> None:
    change_rows(hub)
    capture_all(hub)
    hub.unsubscribe("north")
    hub.apply()
    hub.subscribe("north")
    with pytest.raises(PublicationError, match="there is a table already"):
        hub.apply(capture=capture)
    shutil.rmtree(hub.root("north") / "orders")
    hub.apply(capture=capture)
    assert notes(hub, "north") == {1: "changed", 3: "c", 4: "d"}
    (info,) = hub.rows("north", replinfo.TABLE)
    assert info.replnickname == 2
    assert len(metadata(spark, hub, "north", "MSmerge_contents")) == 2


@pytest.mark.slow
def test_a_former_subscriber_comes_back_to_the_publication_as_it_is_now(
    spark: SparkSession, hub: Hub
) -> None:
    hub.unsubscribe("north")
    hub.apply()
    hub.change(logging=ConflictLogging.BOTH)
    hub.apply()
    hub.subscribe("north", sync_type=SyncType.NONE)
    hub.apply()
    (row,) = hub.rows("north", catalog.PUBLICATIONS)
    assert (row.centralized_conflicts, row.decentralized_conflicts) == (1, 1)
    assert hub.apply().steps == ()


@pytest.mark.slow
def test_a_broken_table_of_another_publication_keeps_no_subscriber_away(
    spark: SparkSession, hub: Hub
) -> None:
    sales = hub.publication
    hub.publication = replace(sales, name="stock", articles=(LINES,), subscriptions=())
    hub.apply()
    shutil.rmtree(hub.publisher / "lines")
    hub.publication = sales
    change_rows(hub)
    hub.subscribe("south")
    hub.apply(capture=capture)
    assert notes(hub, "south") == {1: "changed", 3: "c", 4: "d"}


@pytest.mark.slow
def test_an_ended_subscription_comes_back_with_the_same_rows(spark: SparkSession, hub: Hub) -> None:
    hub.unsubscribe("north")
    hub.apply()
    hub.subscribe("north", sync_type=SyncType.NONE)
    hub.apply(capture=capture)
    assert hub.apply().steps == ()


def test_settings_change_at_every_replica(spark: SparkSession, hub: Hub) -> None:
    hub.articles(orders(tracking=Tracking.COLUMN, resolution=Resolution.COLUMNS))
    hub.subscribe("north", priority=10.0, host_name="N")
    hub.change(retention=timedelta(days=40), logging=ConflictLogging.BOTH)
    steps = hub.apply().steps
    assert {step.action for step in steps} == {"change", "record"}
    assert "retention 14 → 40" in next(step.detail for step in steps if step.object == "sales")
    for name in ("hq", "north"):
        (publication,) = hub.rows(name, catalog.PUBLICATIONS)
        assert (publication.retention, publication.decentralized_conflicts) == (40, 1)
        assert hub.rows(name, catalog.ARTICLES)[0].resolution == "columns"
        properties = open_table(hub.root(name) / "orders").properties
        assert properties["delta.deletedFileRetentionDuration"] == "interval 40 days"
        assert properties["delta.logRetentionDuration"] == "interval 40 days"
    row = next(row for row in hub.rows("hq", catalog.SUBSCRIPTIONS) if row.replnickname == 2)
    assert (row.priority, row.host_name) == (10.0, "N")
    assert {row.priority for row in hub.rows("north", catalog.SUBSCRIPTIONS)} == {10.0}
    assert hub.apply().steps == ()


def test_a_shorter_retention_lowers_no_table(spark: SparkSession, hub: Hub) -> None:
    hub.change(retention=timedelta(days=2))
    hub.apply()
    assert hub.rows("hq", catalog.PUBLICATIONS)[0].retention == 2
    properties = open_table(hub.publisher / "orders").properties
    assert properties["delta.deletedFileRetentionDuration"] == "interval 14 days"


@pytest.mark.parametrize("is_passed_over", [False, True])
def test_a_feed_that_was_switched_off_is_switched_on_again(
    spark: SparkSession, hub: Hub, is_passed_over: bool
) -> None:
    path = hub.root("north") / "orders"
    LogTable(str(path)).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    if is_passed_over:
        capture_replica(hub.root("north"), progress=NoProgress())
    (step,) = hub.apply().steps
    assert "turn Change Data Feed on" in step.detail
    assert open_table(path).metadata.change_data_feed
    assert hub.apply().steps == ()


REFUSED: dict[str, tuple[Callable[[Hub], None], str]] = {
    "the key": (
        lambda hub: hub.articles(orders(key=("note",), tracking=Tracking.COLUMN)),
        r"`key` was \[id\]",
    ),
    "the tracking": (lambda hub: hub.articles(orders()), "`tracking` was 'column' and is 'row'"),
    "the columns": (
        lambda hub: hub.articles(orders(tracking=Tracking.COLUMN, columns=("id",))),
        r"`columns` was not given and is \[id\]",
    ),
    "the table": (
        lambda hub: hub.articles(replace(orders(tracking=Tracking.COLUMN), table="lines")),
        "`table` was 'orders'",
    ),
    "a subscriber's type": (
        lambda hub: hub.subscribe("north", type=SubscriberType.CLIENT),
        "`type` was server and is client",
    ),
    "an article that goes": (
        lambda hub: hub.articles(LINES),
        "'orders' is published and no longer in the file",
    ),
    "a table of another article": (
        lambda hub: hub.articles(*hub.publication.articles, Article("again", "./orders/", ("id",))),
        "are one table",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_change_is_refused(spark: SparkSession, hub: Hub, case: str) -> None:
    prepare, message = REFUSED[case]
    prepare(hub)
    before = hub.snapshot_of_files()
    with pytest.raises(Exception, match=message):
        hub.apply()
    assert hub.snapshot_of_files() == before


def test_an_article_leaves_a_publication_without_subscriptions(spark: SparkSession, hub: Hub) -> None:
    hub.unsubscribe("north")
    hub.articles(LINES)
    assert [step.action for step in hub.apply().steps] == ["unsubscribe", "unpublish", "publish", "record"]
    articles = hub.rows("hq", catalog.ARTICLES)
    assert [(row.name, row.nickname) for row in articles] == [("lines", 2)]


def test_two_publications_share_replicas_but_no_table(spark: SparkSession, hub: Hub) -> None:
    first = hub.publication
    hub.publication = replace(first, name="stock")
    with pytest.raises(PublicationError, match="is article 'orders' of publication 'sales' already"):
        hub.apply()
    hub.articles(LINES)
    hub.apply()
    (info,) = hub.rows("north", replinfo.TABLE)
    assert info.replnickname == 2
    assert info.captured == {1: 1, 2: 1}
    assert len(hub.rows("north", catalog.SUBSCRIPTIONS)) == 4
    assert hub.apply().steps == ()
    hub.publication = first
    assert hub.apply().steps == ()
    hub.publication = replace(first, subscriptions=())
    hub.apply()
    assert sorted(row.status for row in hub.rows("north", catalog.SUBSCRIPTIONS)) == [1, 1, 2, 2]


@pytest.mark.slow
def test_conflict_tables_of_one_name_are_refused(spark: SparkSession, hub: Hub) -> None:
    hub.publication = replace(hub.publication, name="sales_orders", articles=())
    hub.articles(Article("x", "lines", ("order_id",)))
    hub.apply()
    hub.table("more", {"id": [1]})
    hub.publication = replace(
        hub.publication, name="sales", articles=(*_sales(hub), Article("orders_x", "more", ("id",)))
    )
    with pytest.raises(PublicationError, match="MSmerge_conflict_sales_orders_x"):
        hub.apply()


def _sales(hub: Hub) -> tuple[Article, ...]:
    return (orders(tracking=Tracking.COLUMN),)


def test_a_moved_replica_is_found_and_gets_its_new_place(spark: SparkSession, hub: Hub) -> None:
    moved = hub.folder.with_name(hub.folder.name + "-moved")
    hub.folder.rename(moved)
    hub.folder, hub.publisher = moved, moved / "hq"
    hub.publication = replace(hub.publication, publisher=str(hub.publisher), subscriptions=())
    hub.subscribe("north")
    assert [step.action for step in hub.apply().steps] == ["move", "move", "record"]
    for name in ("hq", "north"):
        assert hub.rows(name, replinfo.TABLE)[0].root == str(hub.root(name))
        assert {row.publisher for row in hub.rows(name, catalog.PUBLICATIONS)} == {str(hub.publisher)}
        servers = {row.subscriber_server for row in hub.rows(name, catalog.SUBSCRIPTIONS)}
        assert servers == {str(hub.root("hq")), str(hub.root("north"))}
    assert hub.apply().steps == ()


def test_a_publisher_that_another_file_moved_is_recorded_at_its_subscribers(replica_dir: Path) -> None:
    network = Network(replica_dir)
    moved = network.root("moved")
    network.root("hq").rename(moved)
    network.edit("moved", replinfo.TABLE, root=str(moved))
    network.write_file(publisher="./moved")
    publication = load(network.folder / FILE)
    assert [step.action for step in apply_publication(publication).steps] == ["move", "move", "record"]
    for name in ("north", "south"):
        control = Replica(network.root(name)).control
        assert {row.publisher for row in control.rows(catalog.PUBLICATIONS)} == {str(moved)}
        servers = {row.subscriber_server for row in control.rows(catalog.SUBSCRIPTIONS)}
        assert servers == {str(moved), str(network.root(name))}
    assert apply_publication(publication).steps == ()


@pytest.mark.parametrize(
    ("sync_type", "outcome"), [(SyncKind.NONE, "stay"), (SyncKind.AUTOMATIC, "were not finished: removed")]
)
def test_ending_an_unfinished_subscription_reports_what_becomes_of_its_tables(
    replica_dir: Path, sync_type: SyncKind, outcome: str
) -> None:
    network = Network(replica_dir)
    control = Replica(network.root("hq")).control
    unfinished = {"status": int(SubscriptionState.INACTIVE), "sync_type": int(sync_type)}
    rows = control.rows(catalog.SUBSCRIPTIONS)
    rows = [replace(row, **(unfinished if row.replnickname == 3 else {})) for row in rows]
    control.replace(catalog.SUBSCRIPTIONS, rows)
    network.write_file(subscriptions=[{"subscriber": "./north"}])
    (step, _) = apply_publication(load(network.folder / FILE)).steps
    assert step.detail == f"end the subscription; its tables {outcome}"


@pytest.mark.parametrize("name", ["hq", "north"])
def test_a_copy_is_refused(spark: SparkSession, hub: Hub, name: str) -> None:
    shutil.copytree(hub.root(name), hub.root("copy"))
    if name == "hq":
        hub.publication = replace(hub.publication, publisher=str(hub.root("copy")))
    else:
        hub.publication = replace(hub.publication, subscriptions=())
        hub.subscribe("copy")
    with pytest.raises(PublicationError, match="is a copy of the replica at"):
        hub.apply()


def test_a_subscriber_of_another_publisher_is_refused(spark: SparkSession, hub: Hub) -> None:
    other = hub.folder / "other"
    shutil.copytree(hub.publisher / "orders", other / "orders")
    hub.publication = replace(hub.publication, publisher=str(other))
    with pytest.raises(PublicationError, match=r"is already a subscriber of .*/hq'"):
        hub.apply()


def test_a_publisher_is_no_subscriber_and_the_other_way_round(spark: SparkSession, hub: Hub) -> None:
    other = hub.folder / "other"
    hub.table("orders", {"id": [1]}, at="other")
    first = hub.publication
    hub.publication = replace(first, publisher=str(other), subscriptions=())
    hub.articles(orders())
    hub.subscribe("hq")
    with pytest.raises(PublicationError, match="is a publisher"):
        hub.apply()
    hub.publication = replace(first, publisher=str(hub.root("north")), subscriptions=())
    with pytest.raises(PublicationError, match="cannot publish from a subscriber"):
        hub.apply()


def test_a_lost_subscriber_is_named(spark: SparkSession, hub: Hub) -> None:
    shutil.rmtree(hub.root("north"))
    with pytest.raises(PublicationError, match=r"has lost its replica.*not mounted"):
        hub.apply()


@pytest.mark.parametrize("table", ["MSmerge_contents", "MSmerge_genhistory", "MSmerge_replinfo"])
def test_a_dropped_system_table_is_named(spark: SparkSession, hub: Hub, table: str) -> None:
    shutil.rmtree(hub.root("north") / "_mergerepl" / table)
    with pytest.raises(PublicationError, match=f"has lost its system table.*{table}"):
        hub.apply()


def test_newer_system_tables_are_refused(spark: SparkSession, hub: Hub) -> None:
    replica = Replica(hub.root("north"))
    replica.save_info(replace(replica.info(), schema_version=99))
    with pytest.raises(PublicationError, match="have version 99"):
        hub.apply()


def test_a_new_subscriber_where_a_moved_one_was_gets_an_identity_of_its_own(
    spark: SparkSession, hub: Hub
) -> None:
    (before,) = hub.rows("north", replinfo.TABLE)
    hub.root("north").rename(hub.root("moved"))
    hub.publication = replace(hub.publication, subscriptions=())
    hub.subscribe("moved")
    hub.subscribe("north")
    hub.apply()
    (moved,), (new,) = hub.rows("moved", replinfo.TABLE), hub.rows("north", replinfo.TABLE)
    assert (moved.repid, moved.replnickname) == (before.repid, before.replnickname)
    assert (moved.repid, moved.replnickname) != (new.repid, new.replnickname)
    places = {row.replid: row.subscriber_server for row in hub.rows("hq", catalog.SUBSCRIPTIONS)}
    assert places[moved.repid] == str(hub.root("moved"))
    assert places[new.repid] == str(hub.root("north"))
    assert len({row.subid for row in hub.rows("hq", catalog.SUBSCRIPTIONS)}) == len(places)
    assert hub.apply().steps == ()


@pytest.mark.slow
def test_a_subscriber_that_the_publisher_forgot_keeps_no_identity(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Its nickname may be given to another one by now: of two with the same, neither gets the other's changes."""
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", "b", "c"]})
    hub.articles(orders())
    hub.apply()
    shutil.copytree(hub.publisher, hub.root("backup"))
    hub.subscribe("north")
    hub.apply()
    shutil.rmtree(hub.publisher)
    hub.root("backup").rename(hub.publisher)
    shutil.rmtree(hub.root("north") / "orders")
    with pytest.raises(PublicationError, match=r"north' is a subscriber of .*hq', which does not know of it"):
        hub.apply()
    shutil.rmtree(hub.root("north"))
    hub.apply()
    assert [row.replnickname for row in hub.rows("north", replinfo.TABLE)] == [2]
