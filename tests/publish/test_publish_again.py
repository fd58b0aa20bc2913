"""What was published or subscribed before and comes again, and subscriptions that end while something waits."""

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as LogTable
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.delta.types import field
from mergerepl.errors import CaptureError, LeaseError, PublicationError
from mergerepl.model.publication import Article, ConflictLogging
from mergerepl.model.results import ApplyResult, SessionResult
from mergerepl.publish.system_tables import create_conflict_table
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, genhistory
from tests.calls import conflicts_of, merge_capture
from tests.faults.deaths import dies
from tests.networks import Hub
from tests.publish.publishing import orders

pytestmark = pytest.mark.spark

LINES = Article("lines", "lines", ("order_id",))


def two_tables(folder: Path) -> Hub:
    """Return a publisher of orders and lines, neither of them published yet."""
    hub = Hub(folder)
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", "b", "c"]})
    hub.table("lines", {"order_id": [1], "item": ["x"]})
    return hub


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    """A publication of one article, published, with one subscriber."""
    hub = two_tables(worker_folder / uuid.uuid4().hex[:12])
    hub.articles(orders())
    hub.subscribe("north")
    apply(hub)
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """A copy of it."""
    return published.copied(replica_dir)


def apply(hub: Hub, *, dry_run: bool = False) -> ApplyResult:
    return mergerepl.Project(hub.publication).apply(dry_run=dry_run)


def sync(hub: Hub, name: str) -> SessionResult:
    return mergerepl.Project.load(hub.publisher).sync(Path(hub.root(name)).name).sessions[0]


def set_note(hub: Hub, name: str, number: int, note: str) -> None:
    LogTable(str(hub.root(name) / "orders")).update(predicate=f"id = {number}", updates={"note": f"'{note}'"})


def values(hub: Hub, name: str, table: str = "orders") -> dict[int, Any]:
    rows = LogTable(str(hub.root(name) / table)).to_pyarrow_table()
    return dict(zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True))


def stop_at(hub: Hub, point: str, *, subscriber: str | None = None) -> None:
    """Cut an `apply`, or the session of a subscriber, short."""
    with dies(point):
        apply(hub) if subscriber is None else sync(hub, subscriber)


# ---- rows written between publishing and the first subscriber


def test_keys_written_before_the_first_subscriber_are_checked(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1, 2], "note": ["a", "b"]})
    hub.articles(orders())
    apply(hub)
    hub.table("orders", {"id": [2, None], "note": ["again", "none"]}, mode="append")
    hub.subscribe("north")
    before = hub.snapshot_of_files()
    for dry_run in (True, False):
        with pytest.raises(PublicationError, match="NULL values and duplicate values"):
            apply(hub, dry_run=dry_run)
    assert hub.snapshot_of_files() == before
    LogTable(str(hub.publisher / "orders")).delete("note in ('again', 'none')")
    apply(hub)
    assert values(hub, "north") == {1: "a", 2: "b"}


# ---- columns that stand in another order since they were published


@pytest.mark.slow
def test_a_new_subscriber_of_a_table_whose_columns_were_moved_keeps_its_rows_as_they_are(
    spark: SparkSession, hub: Hub
) -> None:
    """Images identify columns by the order in which they were published."""
    spark.sql(f"ALTER TABLE delta.`{hub.publisher / 'orders'}` ALTER COLUMN note FIRST")
    hub.subscribe("west")
    apply(hub)
    set_note(hub, "west", 1, "12.75")
    set_note(hub, "hq", 2, "from hq")
    # What is captured before the session is sent from its image.
    merge_capture(hub.root("west"))
    for name in ("west", "north"):
        assert sync(hub, name).status == "succeeded"
    rows = [{"id": 1, "note": "12.75"}, {"id": 2, "note": "from hq"}, {"id": 3, "note": "c"}]
    for name in ("hq", "west", "north"):
        table = LogTable(str(hub.root(name) / "orders")).to_pyarrow_table(columns=["id", "note"])
        assert table.sort_by("id").to_pylist() == rows


# ---- an article that is published again


def publish_again(hub: Hub, stops: Callable[[], None] = lambda: None) -> None:
    """Initialise everything again, as the messages advise; the subscriber keeps its `_mergerepl`."""
    hub.unsubscribe("north")
    articles = hub.publication.articles
    apply(hub)
    hub.articles(LINES)
    apply(hub)
    shutil.move(hub.root("north") / "orders", hub.folder / "old orders")
    hub.articles(*articles, LINES)
    hub.subscribe("north")
    stops()
    apply(hub)


@pytest.mark.slow
def test_a_subscriber_initialised_again_forgets_articles_that_are_gone(spark: SparkSession, hub: Hub) -> None:
    set_note(hub, "north", 1, "before")
    sync(hub, "north")

    def stops() -> None:
        """Forgetting takes several commits: cut it short between them."""
        for number in (2, 3, 4):
            stop_at(hub, f"initialise.forgetting:{number}")

    publish_again(hub, stops)
    assert hub.rows("north", catalog.ARTICLES) == hub.rows("hq", catalog.ARTICLES)
    assert (
        spark.read.format("delta").load(str(hub.root("north") / "_mergerepl" / "MSmerge_contents")).isEmpty()
    )
    assert [row.changecount for row in hub.rows("north", genhistory.TABLE)] == [0]
    set_note(hub, "north", 2, "from north")
    set_note(hub, "hq", 3, "from hq")
    assert sync(hub, "north").status == "succeeded"
    expected = {1: "before", 2: "from north", 3: "from hq"}
    assert values(hub, "hq") == values(hub, "north") == expected


@pytest.mark.slow
def test_conflicts_of_an_article_published_again_with_a_new_column_are_logged(
    spark: SparkSession, hub: Hub
) -> None:
    set_note(hub, "hq", 1, "hq")
    set_note(hub, "north", 1, "north")
    assert sync(hub, "north").upload.conflicts == 1
    hub.table("orders", {"id": [4], "note": ["d"], "extra": [1.5]}, mode="append", schema_mode="merge")
    publish_again(hub)
    set_note(hub, "hq", 4, "hq")
    set_note(hub, "north", 4, "north")
    assert sync(hub, "north").upload.conflicts == 1
    losers = spark.read.format("delta").load(
        str(hub.publisher / "_mergerepl" / "MSmerge_conflict_sales_orders")
    )
    assert {(row["id"], row["note"], row["extra"]) for row in losers.collect()} == {
        (1, "north", None),
        (4, "north", 1.5),
    }


def test_a_conflict_table_whose_types_changed_is_kept_under_another_name(
    spark: SparkSession, replica_dir: Path
) -> None:
    def create(*fields: tuple[str, str]) -> list[str]:
        create_conflict_table(
            replica_dir,
            "MSmerge_conflict_p_a",
            [field(name, type_) for name, type_ in fields],
            spark_of=lambda: spark,
            retention=timedelta(days=1),
            mark=CommitMark("test", "create"),
        )
        facts = open_table(replica_dir / "_mergerepl" / "MSmerge_conflict_p_a")
        return [column["name"] for column in facts.fields]

    about = ["rowguid", "ModifiedDate", "origin_datasource_id", "conflict_id"]
    assert create(("id", "long")) == ["id", *about]
    assert create(("id", "long")) == ["id", *about]
    assert create(("id", "long"), ("at", "timestamp_ntz")) == ["id", *about, "at"]
    assert create(("ID", "long")) == ["id", *about, "at"]
    assert create(("id", "string")) == ["id", *about]
    assert create(("id", "long")) == ["id", *about]
    folders = sorted(path.name for path in (replica_dir / "_mergerepl").iterdir())
    assert folders == ["MSmerge_conflict_p_a", "MSmerge_conflict_p_a.kept1", "MSmerge_conflict_p_a.kept2"]


# ---- an article added to a running publication


@pytest.mark.slow
def test_an_added_article_may_have_types_that_need_a_table_feature(spark: SparkSession, hub: Hub) -> None:
    hub.table("visits", {"id": [1], "at": [datetime(2026, 1, 2)]})
    hub.articles(orders(), Article("visits", "visits", ("id",)))
    apply(hub)
    hub.table("visits", {"id": [2], "at": [datetime(2026, 1, 3)]}, at="north", mode="append")
    sync(hub, "north")
    assert values(hub, "hq", "visits") == {1: datetime(2026, 1, 2), 2: datetime(2026, 1, 3)}


@pytest.mark.slow
def test_a_generation_keeps_its_number_when_an_article_is_initialised_again(
    spark: SparkSession, hub: Hub
) -> None:
    hub.subscribe("south")
    apply(hub)
    hub.articles(orders(), LINES)
    stop_at(hub, "initialise.begin:2")
    LogTable(str(hub.publisher / "lines")).update(updates={"item": "'y'"})
    sync(hub, "north")
    stop_at(hub, "initialise.after_genhistory")
    (before,) = (row for row in hub.rows("south", genhistory.TABLE) if row.art_nick == 2)
    set_note(hub, "south", 1, "from south")
    with pytest.raises(PublicationError, match="'lines' is not there"):
        sync(hub, "south")
    apply(hub)
    (after,) = (row for row in hub.rows("south", genhistory.TABLE) if row.art_nick == 2)
    assert (after.guidsrc, after.generation) == (before.guidsrc, before.generation)
    set_note(hub, "hq", 2, "from hq")
    LogTable(str(hub.root("south") / "lines")).update(updates={"item": "'z'"})
    assert sync(hub, "south").status == "succeeded"
    assert values(hub, "south") == {1: "from south", 2: "from hq", 3: "c"}
    assert values(hub, "hq", "lines") == {1: "z"}


# ---- a publication that comes to a subscriber while another one is unfinished there


@pytest.mark.slow
def test_an_unfinished_initialisation_drops_nothing_of_another_publication(
    spark: SparkSession, replica_dir: Path
) -> None:
    hub = two_tables(replica_dir)
    hub.articles(LINES)
    hub.subscribe("north")
    stop_at(hub, "initialise.after_captured")
    unfinished = hub.publication
    hub.publication = replace(unfinished, name="other", articles=(orders(),))
    hub.change(logging=ConflictLogging.BOTH)
    apply(hub)
    set_note(hub, "hq", 1, "hq")
    set_note(hub, "north", 1, "north")
    assert sync(hub, "north").upload.conflicts == 1
    set_note(hub, "north", 2, "not sent yet")
    before = conflicts_of(hub.root("north")).list()
    assert len(before) == 1

    other, hub.publication = hub.publication, unfinished
    apply(hub)
    assert apply(hub).steps == ()
    assert conflicts_of(hub.root("north")).list() == before
    LogTable(str(hub.root("north") / "lines")).update(updates={"item": "'y'"})
    assert [
        s.status for s in mergerepl.Project.load(hub.publisher).sync(Path(hub.root("north")).name).sessions
    ] == ["succeeded"] * 2
    assert values(hub, "hq", "lines") == {1: "y"}
    expected = {1: "hq", 2: "not sent yet", 3: "c"}
    assert values(hub, "hq") == values(hub, "north") == expected
    hub.publication = other
    assert apply(hub).steps == ()


@pytest.mark.slow
def test_a_subscription_that_never_got_a_replica_goes_on_with_the_one_of_another_publication(
    spark: SparkSession, replica_dir: Path
) -> None:
    hub = two_tables(replica_dir)
    hub.articles(LINES)
    hub.subscribe("south")
    hub.subscribe("north")
    stop_at(hub, "subscribe.after_row:2")
    unfinished = hub.publication
    hub.publication = replace(unfinished, name="other", articles=(orders(),))
    apply(hub)
    hub.publication = unfinished
    apply(hub)
    assert apply(hub).steps == ()
    rows = [
        row
        for row in hub.rows("hq", catalog.SUBSCRIPTIONS)
        if row.subscriber_server == str(hub.root("north"))
    ]
    assert len({(row.replid, row.replnickname) for row in rows}) == 1
    assert len(rows) == 2
    LogTable(str(hub.root("north") / "lines")).update(updates={"item": "'y'"})
    set_note(hub, "north", 2, "from north")
    assert {s.status for s in mergerepl.Project.load(hub.publisher).sync().sessions} <= {
        "succeeded",
        "nothing_to_do",
    }
    assert values(hub, "hq", "lines") == {1: "y"}
    assert values(hub, "hq")[2] == "from north"


# ---- a subscription that ends while something waits


@pytest.mark.slow
def test_a_subscription_does_not_end_when_the_capture_for_another_is_refused(
    spark: SparkSession, hub: Hub
) -> None:
    set_note(hub, "hq", 1, "in use")
    assert sync(hub, "north").status == "succeeded"
    pa_rows = pa.table({"id": pa.array([None], pa.int64()), "note": ["no key"]})
    write_deltalake(str(hub.publisher / "orders"), pa_rows, mode="append")
    hub.unsubscribe("north")
    hub.subscribe("south")
    before = hub.rows("hq", catalog.SUBSCRIPTIONS), hub.rows("north", catalog.SUBSCRIPTIONS)
    with pytest.raises(CaptureError, match="Nothing was captured"):
        apply(hub)
    assert (hub.rows("hq", catalog.SUBSCRIPTIONS), hub.rows("north", catalog.SUBSCRIPTIONS)) == before
    LogTable(str(hub.publisher / "orders")).delete("id is null")


def test_inv_06_what_a_leaving_subscriber_waits_for_is_captured_for_it(spark: SparkSession, hub: Hub) -> None:
    """Until its subscription has ended; the file may name it again."""
    set_note(hub, "hq", 1, "for north")
    hub.unsubscribe("north")
    hub.subscribe("south")
    stop_at(hub, "apply.after_capture")
    hub.subscribe("north")
    apply(hub)
    sync(hub, "north")
    assert values(hub, "north")[1] == values(hub, "south")[1] == "for north"


@pytest.mark.slow
def test_an_interrupted_session_is_finished_before_its_subscription_ends(
    spark: SparkSession, hub: Hub
) -> None:
    set_note(hub, "north", 1, "from north")
    set_note(hub, "hq", 2, "from hq")
    stop_at(hub, "stage.after_manifest", subscriber="north")
    hub.unsubscribe("north")
    hub.articles(LINES)
    stop_at(hub, "apply.before_finish")
    steps = apply(hub, dry_run=True).steps
    stop_at(hub, "apply.after_finish")
    apply(hub)
    assert [step.action for step in steps] == ["finish", "unsubscribe", "unpublish", "publish", "record"]
    assert "never uploaded" not in steps[1].detail
    expected = {1: "from north", 2: "from hq", 3: "c"}
    assert values(hub, "hq") == values(hub, "north") == expected
    assert not list((hub.publisher / "_mergerepl" / "staging").iterdir())
    assert not list((hub.root("north") / "_mergerepl" / "staging").iterdir())
    assert apply(hub).steps == ()


@pytest.mark.slow
def test_a_session_with_a_lost_subscriber_does_not_keep_its_subscription(
    spark: SparkSession, hub: Hub
) -> None:
    set_note(hub, "north", 1, "from north")
    stop_at(hub, "stage.after_manifest", subscriber="north")
    shutil.rmtree(hub.root("north"))
    hub.unsubscribe("north")
    assert [step.action for step in apply(hub).steps] == ["finish", "unsubscribe", "record"]
    assert values(hub, "hq")[1] == "from north"
    hub.subscribe("north")
    apply(hub)
    set_note(hub, "hq", 2, "from hq")
    assert sync(hub, "north").status == "succeeded"
    assert values(hub, "north") == {1: "from north", 2: "from hq", 3: "c"}


@pytest.mark.slow
def test_a_session_of_a_subscription_that_ended_blocks_nobody(spark: SparkSession, hub: Hub) -> None:
    """Neither `apply` ("run sync first") nor `sync` ("has ended") may be a dead end."""
    set_note(hub, "north", 1, "from north")
    stop_at(hub, "stage.after_manifest", subscriber="north")
    for name in ("hq", "north"):
        rows = hub.rows(name, catalog.SUBSCRIPTIONS)
        ended = [replace(row, status=2) if name == "north" or row.replnickname == 2 else row for row in rows]
        Replica(hub.root(name)).control.replace(catalog.SUBSCRIPTIONS, ended)
    with pytest.raises(PublicationError, match="has ended"):
        mergerepl.Project(hub.publication).sync()
    shutil.move(hub.root("north") / "orders", hub.folder / "old orders")
    apply(hub)
    set_note(hub, "hq", 2, "from hq")
    assert sync(hub, "north").status == "succeeded"
    assert values(hub, "hq") == values(hub, "north") == {1: "from north", 2: "from hq", 3: "c"}


@pytest.mark.slow
def test_what_is_left_of_a_session_that_never_came_to_be_blocks_nobody(spark: SparkSession, hub: Hub) -> None:
    set_note(hub, "north", 1, "from north")
    stop_at(hub, "stage.before_manifest", subscriber="north")
    (left,) = (hub.root("north") / "_mergerepl" / "staging").iterdir()
    assert left.suffix == ".json"
    hub.unsubscribe("north")
    detail = next(step.detail for step in apply(hub).steps if step.action == "unsubscribe")
    assert "never uploaded: 1 change." in detail
    shutil.move(hub.root("north") / "orders", hub.folder / "old orders")
    hub.subscribe("north")
    apply(hub)
    set_note(hub, "hq", 2, "from hq")
    assert sync(hub, "north").status == "succeeded"
    assert values(hub, "north") == {1: "a", 2: "from hq", 3: "c"}


@pytest.mark.slow
def test_an_additional_article_waits_for_an_interrupted_session(spark: SparkSession, hub: Hub) -> None:
    set_note(hub, "north", 1, "from north")
    stop_at(hub, "stage.after_manifest", subscriber="north")
    hub.articles(orders(), LINES)
    with pytest.raises(PublicationError, match=r"Run `mergerepl sync north -f .*hq` first"):
        apply(hub)
    script = (
        "import sys, time; from pathlib import Path; from mergerepl.store.lease import lease\n"
        "with lease(Path(sys.argv[1]), purpose='mergerepl sync'):\n    print('held', flush=True); time.sleep(60)\n"
    )
    # Else the agent would wait for this process's JVM, as that of one that was killed.
    (hub.publisher / ".mergerepl.lock").write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(hub.publisher)], stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        # It has not been interrupted: it goes on.
        with pytest.raises(LeaseError, match="mergerepl sync by process"):
            apply(hub)
        agent.kill()
    sync(hub, "north")
    apply(hub)
    assert values(hub, "north", "lines") == {1: "x"}


def test_ending_a_subscription_reports_what_was_never_uploaded(spark: SparkSession, hub: Hub) -> None:
    set_note(hub, "north", 1, "captured")
    merge_capture(hub.root("north"))
    set_note(hub, "north", 2, "not captured")
    hub.unsubscribe("north")
    for dry_run in (True, False):
        detail = next(
            step.detail for step in apply(hub, dry_run=dry_run).steps if step.action == "unsubscribe"
        )
        assert "never uploaded: 1 change and 1 commit not captured yet. To send them first" in detail
