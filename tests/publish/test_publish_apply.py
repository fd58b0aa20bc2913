"""`apply` of a new file, of the same file again, and dry."""

import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl.delta.commits import read_commit
from mergerepl.delta.log import commit_text, head_version
from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.table import open_table
from mergerepl.errors import LeaseError, PublicationError
from mergerepl.model.progress import NoProgress
from mergerepl.model.publication import Article, SubscriberType, SyncType, Tracking
from mergerepl.model.results import ApplyResult
from mergerepl.publish.apply import apply_publication
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.systables import catalog, registry, replinfo
from mergerepl.systables.catalog import ArticleRow
from tests.networks import Hub
from tests.publish.publishing import column, orders

pytestmark = pytest.mark.spark


def rows_of(hub: Hub, name: str, table: str = "orders") -> list[tuple[object, ...]]:
    rows = DeltaTable(str(hub.root(name) / table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def two_subscribers(folder: Path) -> Hub:
    """Return two tables and two subscribers, nothing applied yet."""
    hub = Hub(folder)
    hub.table("orders", {"id": [1, 2, 3], "region": ["n", "s", "n"], "note": ["a", None, "c"]})
    hub.table("sub/lines", {"order_id": [1, 1], "n": [1, 2], "item": ["x", "y"]}, partition_by=["n"])
    hub.articles(orders(tracking=Tracking.COLUMN), Article("lines", "sub/lines", ("order_id", "n")))
    hub.subscribe("north", priority=80.0, host_name="North")
    hub.subscribe("south", type=SubscriberType.CLIENT)
    return hub


@pytest.fixture
def hub(replica_dir: Path) -> Hub:
    return two_subscribers(replica_dir)


@dataclass(frozen=True)
class Applied:
    """A hub after its first `apply`, what that said and, right before, a dry run."""

    hub: Hub
    dry: ApplyResult
    result: ApplyResult


@pytest.fixture(scope="module")
def applied(spark: SparkSession, worker_folder: Path) -> Applied:
    """The two tables at two subscribers. Its tests only look."""
    folder = worker_folder / uuid.uuid4().hex[:12]
    folder.mkdir()
    hub = two_subscribers(folder)
    before = hub.snapshot_of_files()
    dry = hub.apply(dry_run=True)
    assert hub.snapshot_of_files() == before
    assert sorted(path.name for path in hub.folder.iterdir()) == ["hq"]
    return Applied(hub, dry, hub.apply())


def test_a_new_publication_reaches_its_subscribers(applied: Applied) -> None:
    hub, result = applied.hub, applied.result
    actions = ["create", "publish", "publish", "subscribe", "subscribe", "record"]
    assert [step.action for step in result.steps] == actions
    assert result.steps[1].detail == "turn Change Data Feed on, keep removed files for 14 days"
    for name in ("north", "south"):
        assert rows_of(hub, name) == rows_of(hub, "hq")
        assert rows_of(hub, name, "sub/lines") == rows_of(hub, "hq", "sub/lines")
        assert open_table(hub.root(name) / "sub/lines").metadata.partition_columns == ("n",)
        for table in registry.ALL:
            assert head_version(hub.root(name) / "_mergerepl" / table.name) >= 0
    assert hub.captures == []


def test_the_catalog_says_who_replicates_what_with_whom(applied: Applied) -> None:
    hub = applied.hub
    (publication,) = hub.rows("hq", catalog.PUBLICATIONS)
    assert (publication.name, publication.status, publication.retention) == ("sales", 1, 14)
    infos = {name: hub.rows(name, replinfo.TABLE)[0] for name in ("hq", "north", "south")}
    assert [infos[name].nickname for name in infos] == [1, 2, 3]
    assert [Replica(hub.root(name)).publishes(publication.pubid) for name in infos] == [True, False, False]
    assert [info.root for info in infos.values()] == [str(hub.root(name)) for name in infos]
    assert all(info.captured == {1: 1, 2: 1} for info in infos.values())
    for name, info in infos.items():
        ids = {1: open_table(hub.root(name) / "orders"), 2: open_table(hub.root(name) / "sub/lines")}
        assert info.table_ids == {nickname: table.metadata.table_id for nickname, table in ids.items()}
        commits = {nickname: commit_text(table.path, 1) for nickname, table in ids.items()}
        assert info.captured_commits == commits
    articles = hub.rows("hq", catalog.ARTICLES)
    assert articles == hub.rows("north", catalog.ARTICLES) == hub.rows("south", catalog.ARTICLES)
    assert [(a.name, a.nickname, a.status, a.column_tracking) for a in articles] == [
        ("orders", 1, 2, 1),
        ("lines", 2, 2, 0),
    ]
    assert articles[1].key_columns == ("order_id", "n")
    assert articles[1].published_types == ("bigint", "bigint", "string")
    at_publisher = {row.replnickname: row for row in hub.rows("hq", catalog.SUBSCRIPTIONS)}
    assert [at_publisher[n].priority for n in (1, 2, 3)] == [100.0, 80.0, 0.0]
    assert [at_publisher[n].subscriber_type for n in (1, 2, 3)] == [1, 1, 2]
    assert all(row.status == 1 for row in at_publisher.values())
    itself, other = hub.rows("north", catalog.SUBSCRIPTIONS)
    assert itself.replid == infos["north"].replid
    assert other.replid == infos["hq"].replid
    assert other.subscriber_server == str(hub.publisher)
    for name in ("subid", "replicastate", "priority", "subscriber_type", "host_name"):
        assert getattr(other, name) == getattr(at_publisher[2], name), name
    assert (other.sentgen, other.sentguid, other.recgen, other.recguid) == (0, None, 0, None)


def test_our_commits_on_users_tables_are_marked(applied: Applied) -> None:
    hub = applied.hub
    published = read_commit(hub.publisher / "orders", 1)
    assert published.mark is not None
    assert not published.data_change
    marks = [read_commit(hub.root("north") / "orders", version).mark for version in (0, 1)]
    assert all(isinstance(mark, CommitMark) for mark in marks)
    assert {read_commit(hub.root("north") / "orders", version).kind for version in (0, 1)} == {SETUP}


def test_users_tables_get_the_feed_and_no_other_feature(applied: Applied) -> None:
    hub = applied.hub
    for name in ("hq", "north"):
        table = open_table(hub.root(name) / "orders")
        assert table.reader_version == 1
        # Version 4 is the first number that has the feed.
        assert table.writer_version == 4 or table.features == {"appendOnly", "invariants", "changeDataFeed"}
        assert table.properties["delta.enableChangeDataFeed"] == "true"


def test_applying_again_changes_nothing(applied: Applied) -> None:
    hub = applied.hub
    before = hub.snapshot_of_files()
    assert hub.apply().steps == ()
    assert hub.snapshot_of_files() == before


def test_applying_again_starts_no_jvm_and_loads_no_spark(applied: Applied) -> None:
    hub = applied.hub
    script = (
        "import pickle, sys; publication = pickle.load(sys.stdin.buffer)\n"
        "from mergerepl.publish.apply import apply_publication\n"
        "assert apply_publication(publication).steps == ()\n"
        "assert 'pyspark' not in sys.modules, 'pyspark was loaded'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(hub.publication), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_dry_run_says_the_same_and_changes_nothing(applied: Applied) -> None:
    assert applied.dry.dry_run
    assert applied.dry.steps == applied.result.steps


def test_a_dry_run_checks_rows_too(spark: SparkSession, hub: Hub) -> None:
    hub.table("orders", {"id": [3], "region": ["n"], "note": ["again"]}, mode="append")
    with pytest.raises(PublicationError, match="id=3"):
        hub.apply(dry_run=True)


def test_odd_paths_work(spark: SparkSession, replica_dir: Path) -> None:
    hub, name = Hub(replica_dir), "sp ace h#ash 100% 日本 é plus+ a'b"
    hub.table(name, {"id": [1, 2]})
    hub.articles(Article("odd", name, ("id",)))
    hub.subscribe(f"to {name}")
    hub.apply()
    assert rows_of(hub, f"to {name}", name) == [(1,), (2,)]
    assert hub.apply().steps == ()


@pytest.fixture(scope="module")
def various(spark: SparkSession, worker_folder: Path) -> Applied:
    """One publication of tables of many kinds. Its tests only look."""
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    odd = {"the.key": [1, 2], "a`b": ["x", "y"], "größe": [1.0, 2.0], "select": [1, 2], "q'": ["'", "\\"]}
    hub.table("odd", odd)
    hub.table("filtered", {"id": [1, 2, 3], "region": ["n", "s", "n"], "note": ["a", None, "c"]})
    ruled_table(spark, hub.publisher / "ruled")
    guids = ["3F2504E0-4F89-11D3-9A0C-0305E82C3301", "00000000-0000-0000-0000-000000000000"]
    hub.table("guided", {"rowguid": guids, "v": [1, 2]})
    hub.empty_table("empty", [column("id", "integer"), column("at", "timestamp_ntz")])
    log, removed = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
    kept = {log: "interval 90 days", removed: "interval 1 week 2 hours"}
    hub.empty_table("kept", [column("id", "integer")], **kept)
    hub.articles(
        Article("my table.1", "odd", ("the.key",)),
        Article("filtered", "filtered", ("id",), columns=("note",)),
        Article("ruled", "ruled", ("id",), columns=("id", "b", "c")),
        Article("guided", "guided", key=(), rowguid="rowguid"),
        Article("empty", "empty", ("id",)),
        Article("kept", "kept", ("id",)),
    )
    hub.subscribe("north")
    hub.change(retention=timedelta(hours=36 * 24 + 12))
    dry = hub.apply(dry_run=True)
    return Applied(hub, dry, hub.apply())


def article_of(applied: Applied, name: str) -> ArticleRow:
    """Return what the subscriber knows of an article."""
    (row,) = (row for row in applied.hub.rows("north", catalog.ARTICLES) if row.name == name)
    return row


def test_tables_of_many_kinds_are_applied_once(various: Applied) -> None:
    assert various.dry.steps == various.result.steps
    assert various.hub.apply().steps == ()


def test_odd_column_and_article_names_work(various: Applied) -> None:
    assert rows_of(various.hub, "north", "odd") == [(1, "x", 1.0, 1, "'"), (2, "y", 2.0, 2, "\\")]


def test_a_vertical_filter_copies_the_published_columns_and_the_key(various: Applied) -> None:
    assert rows_of(various.hub, "north", "filtered") == [(1, "a"), (2, None), (3, "c")]
    article = article_of(various, "filtered")
    assert (article.published_columns, article.vertical_partition) == (("id", "note"), 1)


def ruled_table(spark: SparkSession, path: Path) -> None:
    """Create a table with rules on columns that are published and on others."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id int, a int, b int, "
        "c int GENERATED ALWAYS AS (id + 1), p string) USING delta PARTITIONED BY (p)"
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT on_a CHECK (a > 0)")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT on_id CHECK (id > 0)")
    spark.sql("SELECT 1 id, 1 a, 2 b, 'x' p").write.format("delta").mode("append").save(str(path))


def test_rules_on_columns_left_out_are_left_out_too(various: Applied) -> None:
    table = open_table(various.hub.root("north") / "ruled")
    assert [name for name in table.properties if "constraints" in name] == ["delta.constraints.on_id"]
    generated = [field["name"] for field in table.fields if "delta.generationExpression" in field["metadata"]]
    assert generated == ["c"]
    assert table.metadata.partition_columns == ()
    steps = various.result.steps
    assert "without CHECK on_a" in next(step.detail for step in steps if step.action == "subscribe")
    assert rows_of(various.hub, "north", "ruled") == [(1, 2, 2)]


def test_an_existing_guid_column_is_the_identity(various: Applied) -> None:
    article = article_of(various, "guided")
    assert (article.rowguid_column, article.key_columns) == ("rowguid", ("rowguid",))
    conflicts = open_table(various.hub.publisher / "_mergerepl" / "MSmerge_conflict_sales_guided")
    about = ["ModifiedDate", "origin_datasource_id", "conflict_id"]
    assert [field["name"] for field in conflicts.fields] == ["rowguid", "v", *about]


def test_an_empty_table_is_published(various: Applied) -> None:
    assert rows_of(various.hub, "north", "empty") == []
    contents = open_table(various.hub.publisher / "_mergerepl" / "MSmerge_contents")
    assert "timestampNtz" in contents.features


def test_longer_retentions_stay_and_shorter_ones_are_raised(various: Applied) -> None:
    for name in ("hq", "north"):
        properties = open_table(various.hub.root(name) / "kept").properties
        assert properties["delta.logRetentionDuration"] == "interval 90 days"
        assert properties["delta.deletedFileRetentionDuration"] == "interval 876 hours"


class WritesMeanwhile(NoProgress):
    """Writes to a table once, when its publishing begins: after the plan was made."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.write: Callable[[], object] | None = write

    def step(self, name: str, **_: object) -> None:
        if name == "publish orders" and self.write is not None:
            self.write()
            self.write = None


MEANWHILE: dict[str, tuple[dict[str, list[object]], str]] = {
    "a row": ({"id": [3], "region": ["s"], "note": ["again"]}, "duplicate values.*id=3"),
    "a column": ({"id": [4], "region": ["s"], "note": ["d"], "more": ["x"]}, "columns.*changed while"),
}


@pytest.mark.parametrize("case", MEANWHILE)
def test_what_is_written_while_a_table_is_published_is_checked(
    spark: SparkSession, hub: Hub, case: str
) -> None:
    rows, message = MEANWHILE[case]
    hub.articles(orders())
    hub.unsubscribe("north")
    hub.unsubscribe("south")
    progress = WritesMeanwhile(lambda: hub.table("orders", rows, mode="append", schema_mode="merge"))
    with pytest.raises(PublicationError, match=message):
        apply_publication(hub.publication, progress=progress)
    assert hub.rows("hq", catalog.ARTICLES) == []


def test_a_replica_in_use_is_left_alone(spark: SparkSession, hub: Hub) -> None:
    with lease(hub.publisher, purpose="a test"), pytest.raises(LeaseError, match="a test"):
        hub.apply()
    assert not (hub.publisher / "_mergerepl").exists()


@pytest.mark.slow
def test_a_tables_own_rows_are_kept_by_sync_type_none(spark: SparkSession, hub: Hub) -> None:
    hub.table("orders", {"note": ["c", "a", None], "id": [3, 1, 2], "region": ["n", "n", "s"]}, at="north")
    hub.table("sub/lines", {"order_id": [1, 1], "n": [2, 1], "item": ["y", "x"]}, at="north")
    hub.unsubscribe("south")
    hub.subscribe("north", sync_type=SyncType.NONE)
    hub.apply()
    table = open_table(hub.root("north") / "orders")
    assert table.metadata.change_data_feed
    assert table.version == 1
    (info,) = hub.rows("north", replinfo.TABLE)
    assert info.captured == {1: 1, 2: 1}
    assert hub.apply().steps == ()


NONE_CASES = {
    "a different row, a missing one and another one": (
        {"id": [2, 3, 4], "region": ["s", "n", "n"], "note": ["", "c", "d"]},
        r"id=1 \(missing at the subscriber\).*id=2 \(different\).*id=4 \(missing at the publisher\).*sync_type",
    ),
    "a row twice": (
        {"id": [1, 2, 2, 3], "region": ["n", "s", "s", "n"], "note": ["a", None, None, "c"]},
        r"id=2 \(twice at the subscriber\)",
    ),
}


@pytest.mark.parametrize(
    "case", [each if "missing" in each else pytest.param(each, marks=pytest.mark.slow) for each in NONE_CASES]
)
def test_sync_type_none_refuses_a_table_that_differs(spark: SparkSession, hub: Hub, case: str) -> None:
    rows, message = NONE_CASES[case]
    hub.table("orders", rows, at="north")
    hub.articles(orders())
    hub.unsubscribe("south")
    hub.subscribe("north", sync_type=SyncType.NONE)
    before = hub.snapshot_of_files()
    with pytest.raises(PublicationError, match=f"(?s){message}"):
        hub.apply()
    assert hub.snapshot_of_files() == before


@pytest.mark.slow
def test_sync_type_none_does_not_ask_for_the_comments_of_nested_fields(spark: SparkSession, hub: Hub) -> None:
    def fields(**metadata: str) -> list[dict[str, Any]]:
        part = {"name": "x", "type": "integer", "nullable": True, "metadata": metadata}
        parts = {"type": "struct", "fields": [part]}
        id_ = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        return [id_, {"name": "s", "type": parts, "nullable": True, "metadata": {}}]

    hub.root("north").mkdir()
    hub.empty_table("nested", fields(comment="stated here"))
    hub.empty_table("nested", fields(), at="north")
    hub.articles(Article("nested", "nested", ("id",)))
    hub.unsubscribe("south")
    hub.subscribe("north", sync_type=SyncType.NONE)
    hub.apply()
    assert hub.apply().steps == ()
