"""`apply` of a changed file: what is carried out, what is refused, and what a running publication keeps."""

import shutil
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

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
from tests.networks import FILE, Hub, Network, commit
from tests.project_files import load
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


def test_a_new_subscribers_watermarks_are_at_the_publishers_last_generation(joined: Hub) -> None:
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


def test_two_publications_share_replicas_but_no_table(spark: SparkSession, hub: Hub) -> None:
    first = hub.publication
    hub.publication = replace(first, name="stock")
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
