"""I26 for `apply`: cut short at any point, the next `apply` needs no flag and ends where it would have."""

import ast
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

from mergerepl.errors import PublicationError
from mergerepl.model.publication import Article, SubscriberType, SyncType
from mergerepl.publish.apply import apply_publication
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, genhistory, registry, replinfo
from tests.bad_inputs.changed_tables import with_lines
from tests.faults.deaths import dies, killed, script
from tests.faults.ladder import calls_in, points_in
from tests.networks import FILE, Hub, Network
from tests.project_files import load
from tests.publish.publishing import capture, metadata, notes, orders

pytestmark = pytest.mark.spark

LINES = Article("lines", "lines", ("order_id",))

# `apply.after_subscribe` has a number: after `initialise.after_active` there is nothing to subscribe.
FIRST = [
    "apply.before_create", "create.after_system_tables", "create.after_subscriptions", "apply.after_create",
    "apply.before_publish", "publish.before_alter", "publish.after_alter", "publish.after_system_tables",
    "publish.after_captured", "publish.after_article", "publish.after_alter:2", "apply.after_publish:2",
    "apply.before_subscribe", "subscribe.after_row", "initialise.begin", "initialise.after_system_tables",
    "initialise.after_create", "initialise.after_article", "initialise.after_create:2",
    "initialise.after_captured", "initialise.after_articles", "initialise.before_active",
    "initialise.after_active", "apply.after_subscribe:1", "apply.before_record",
]  # fmt: skip
RUNNING = [
    "apply.before_capture", "apply.after_capture", "initialise.begin", "initialise.after_system_tables",
    "initialise.after_article", "initialise.between_appends", "initialise.after_metadata",
    "initialise.before_genhistory", "initialise.after_genhistory", "initialise.after_captured",
    "initialise.after_articles", "initialise.before_active", "initialise.after_active",
]  # fmt: skip

OF_PARTITIONS = ["apply.before_partition", "partition.after_group", "apply.after_partition"]
"""Played by test_partitions."""


def cut_short(hub: Hub, *points: str, **options: Any) -> None:
    """Let an `apply` die at each of these points in turn."""
    for point in points:
        with dies(point):
            hub.apply(**options)


ADDED = [
    "publish.after_article", "apply.before_initialise", "initialise.after_create", "initialise.forgetting",
    "initialise.forgetting:2", "initialise.forgetting:3", "initialise.after_captured",
    "apply.after_initialise", "initialise.after_adopt", "initialise.after_active",
]  # fmt: skip
CHANGES = [
    "apply.before_move", "move.between_tables", "move.after_replica", "move.after_replica:2",
    "apply.after_move", "apply.before_unsubscribe", "unsubscribe.between_sides", "apply.after_unsubscribe",
    "apply.before_change", "change.after_replica", "change.after_replica:2", "apply.after_change",
    "change.after_replica:3", "apply.after_change:2", "change.between_sides", "apply.after_change:3",
    "apply.before_record", "record.after_subscriber", "apply.after_record",
]  # fmt: skip
ENDS = ["apply.before_unpublish", "apply.after_unpublish"]
FINISHED = ["apply.before_finish", "apply.after_finish"]
"""Passed in `test_publish_again.py`, as they need a session that was interrupted."""
COMPARED = ["apply.before_reinit", "apply.after_reinit"]
"""Passed in `test_ended_upload_only.py`, as they need sessions."""
ENDING = ["apply.before_end", "apply.after_end"]
"""Passed in `test_ended_article.py`, as they need sessions."""
FILLED = ["apply.before_sync", "apply.after_sync"]
"""Passed in `schema/test_changed_columns.py`, as they need sessions."""
DROPPED = ["unfinished.dropping"]
NAMED = ["apply.before_register", "apply.after_register"]
"""Passed in `test_named_tables.py`, as they need a catalog."""


def test_an_apply_is_cut_short_at_every_point() -> None:
    tested = {
        point.partition(":")[0]
        for points in (
            FIRST,
            RUNNING,
            ADDED,
            CHANGES,
            ENDS,
            FINISHED,
            COMPARED,
            ENDING,
            FILLED,
            DROPPED,
            NAMED,
            OF_PARTITIONS,
        )
        for point in points
    }
    steps = [call.args[0] for call in calls_in("publish") if getattr(call.func, "id", "") == "Step"]
    assert tested == points_in("publish", named=[str(ast.literal_eval(action)) for action in steps])


@pytest.fixture
def hub(replica_dir: Path) -> Hub:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", "b", "c"]})
    hub.table("lines", {"order_id": [1], "item": ["x"]})
    hub.articles(orders(), LINES)
    hub.subscribe("north")
    return hub


def assert_first_apply_is_done(spark: SparkSession, hub: Hub) -> None:
    assert hub.apply().steps == ()
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}
    assert [row.name for row in hub.rows("north", catalog.ARTICLES)] == ["orders", "lines"]
    assert hub.rows("north", catalog.ARTICLES) == hub.rows("hq", catalog.ARTICLES)
    for name in ("hq", "north"):
        assert [row.status for row in hub.rows(name, catalog.SUBSCRIPTIONS)] == [1, 1]
        assert [row.status for row in hub.rows(name, catalog.PUBLICATIONS)] == [1]
        (info,) = hub.rows(name, replinfo.TABLE)
        articles = hub.rows(name, catalog.ARTICLES)
        assert len({row.nickname for row in articles}) == 2
        assert all(info.captured[row.nickname] == 1 for row in articles)
    assert [hub.rows(name, replinfo.TABLE)[0].nickname for name in ("hq", "north")] == [1, 2]


AGAIN_AND_AGAIN = [point for point in FIRST if ":" not in point]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(AGAIN_AND_AGAIN[::6], id="some"),
        pytest.param(AGAIN_AND_AGAIN, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_first_apply_that_is_cut_short_again_and_again_is_finished(
    spark: SparkSession, hub: Hub, points: list[str]
) -> None:
    """I27: each attempt finishes what the one before left, and is cut short a little later."""
    cut_short(hub, *points)
    hub.apply()
    assert_first_apply_is_done(spark, hub)


def change_before(hub: Hub) -> None:
    hub.apply()
    table = LogTable(str(hub.publisher / "orders"))
    table.update(predicate="id = 1", updates={"note": "'changed'"})
    table.delete("id = 2")
    hub.subscribe("south")


def change_between(hub: Hub) -> None:
    LogTable(str(hub.publisher / "orders")).update(predicate="id = 3", updates={"note": "'late'"})


def assert_new_subscriber_fits(spark: SparkSession, hub: Hub, expected: dict[int, str]) -> None:
    assert hub.apply(capture=capture).steps == ()
    assert notes(hub, "south") == expected
    found = []
    for table in ("MSmerge_tombstone", "MSmerge_contents"):
        here, there = (metadata(spark, hub, name, table) for name in ("south", "hq"))
        assert [row[:2] for row in here] == [row[:2] for row in there]
        found += here
    generations = {row.generation: row.guidsrc for row in hub.rows("south", genhistory.TABLE)}
    at_hq = {row.generation: row.guidsrc for row in hub.rows("hq", genhistory.TABLE)}
    assert {row[2] for row in found} <= set(generations)
    sent = next(row for row in hub.rows("hq", catalog.SUBSCRIPTIONS) if row.replnickname == 3)
    received = next(row for row in hub.rows("south", catalog.SUBSCRIPTIONS) if row.replnickname == 1)
    assert (sent.sentgen, sent.sentguid) == (received.recgen, received.recguid)
    assert (sent.recgen, sent.recguid) == (received.sentgen, received.sentguid)
    assert generations[received.sentgen] == received.sentguid
    assert at_hq[sent.sentgen] == sent.sentguid


BETWEEN = RUNNING.index("initialise.after_metadata")


@pytest.mark.slow
@pytest.mark.parametrize("points", [(RUNNING[2], *RUNNING[BETWEEN::9]), RUNNING], ids=["some", "all"])
def test_a_new_subscriber_that_is_cut_short_again_and_again_fits_in(
    spark: SparkSession, hub: Hub, points: list[str]
) -> None:
    change_before(hub)
    for point in points:
        cut_short(hub, point, capture=capture)
        if point == "initialise.after_metadata":
            change_between(hub)
    hub.apply(capture=capture)
    assert_new_subscriber_fits(spark, hub, {1: "changed", 3: "late"})


@pytest.mark.slow
def test_a_new_article_that_is_cut_short_again_and_again_is_finished(spark: SparkSession, hub: Hub) -> None:
    hub.articles(orders())
    hub.apply()
    hub.table("orders", {"id": [9], "note": ["mine"]}, at="north", mode="append")
    subscriptions = hub.rows("north", catalog.SUBSCRIPTIONS)
    hub.articles(orders(), LINES)
    for name in ("orders", "lines"):
        shutil.copytree(hub.publisher / name, hub.root("west") / name)
    hub.subscribe("west", sync_type=SyncType.NONE)
    cut_short(hub, *ADDED, capture=capture)
    hub.apply(capture=capture)
    assert hub.apply().steps == ()
    assert [row.name for row in hub.rows("north", catalog.ARTICLES)] == ["orders", "lines"]
    assert spark.read.format("delta").load(str(hub.root("north") / "lines")).count() == 1
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c", 9: "mine"}
    assert hub.rows("north", catalog.SUBSCRIPTIONS) == subscriptions
    captured = hub.rows("north", replinfo.TABLE)[0].captured
    assert captured == {row.nickname: 1 for row in hub.rows("north", catalog.ARTICLES)}


def change_all(network: Network) -> None:
    """Move a subscriber, end another one's subscription, and change what a running publication may change."""
    for name in ("hq", "north", "south"):
        network.edit(name, catalog.ARTICLES, column_tracking=1)
    network.root("north").rename(network.root("yonder"))
    network.write_file(
        retention="2 days",
        conflict_logging="both",
        articles=[
            {"name": "orders", "key": ["id"], "tracking": "column", "resolver": {"resolution": "columns"}}
        ],
        subscriptions=[{"subscriber": "./yonder", "priority": 10.0, "host_name": "Y"}],
    )


def end_all(network: Network) -> None:
    with_lines(network)
    network.write_file(articles=[{"name": "lines", "key": ["id"]}], subscriptions=[])


def state_after(folder: Path, change: Callable[[Network], None], point: str | None) -> dict[str, list[Any]]:
    """Apply a changed file, cut short at a point and then to the end; return the rows of the control plane."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    network = Network(folder)
    change(network)
    publication = load(folder / FILE)
    if point is not None:
        with dies(point):
            apply_publication(publication)
    apply_publication(publication)
    assert apply_publication(publication).steps == (), point
    roots = [root for root in sorted(folder.iterdir()) if root.is_dir()]
    state = {f"{r.name} {t.name}": Replica(r).control.rows(t) for r in roots for t in registry.CONTROL_PLANE}
    for name, rows in state.items():
        if name.endswith(replinfo.NAME):
            # Tables made again have ids and commits of their own.
            state[name] = [replace(row, table_ids={}, captured_commits={}) for row in rows]
    return state


@pytest.mark.parametrize(
    ("change", "points"),
    [
        pytest.param(change_all, CHANGES[::6], id="some changes", marks=pytest.mark.slow),
        pytest.param(change_all, CHANGES, id="changes", marks=pytest.mark.slow),
        pytest.param(end_all, ENDS, id="ends"),
    ],
)
def test_changes_of_a_running_publication_that_were_cut_short_are_finished(
    replica_dir: Path, change: Callable[[Network], None], points: list[str]
) -> None:
    folder = replica_dir / "network"
    expected = state_after(folder, change, None)
    for point in points:
        assert state_after(folder, change, point) == expected, point


def test_an_end_that_was_cut_short_can_be_taken_back(replica_dir: Path) -> None:
    """The end of the subscription is recorded at the subscriber, but not at the publisher."""
    network = Network(replica_dir)
    apply_publication(load(replica_dir / FILE))
    control = {name: Replica(network.root(name)).control for name in ("hq", "north")}
    before = {name: each.rows(catalog.SUBSCRIPTIONS) for name, each in control.items()}
    stated = (replica_dir / FILE).read_text(encoding="utf-8")
    network.write_file(subscriptions=[])
    with dies("unsubscribe.between_sides"):
        apply_publication(load(replica_dir / FILE))
    assert control["north"].rows(catalog.SUBSCRIPTIONS) != before["north"]
    (replica_dir / FILE).write_text(stated, encoding="utf-8")
    apply_publication(load(replica_dir / FILE))
    assert apply_publication(load(replica_dir / FILE)).steps == ()
    assert {name: each.rows(catalog.SUBSCRIPTIONS) for name, each in control.items()} == before


def test_rows_written_to_an_unfinished_table_are_not_dropped(spark: SparkSession, hub: Hub) -> None:
    cut_short(hub, "initialise.before_active")
    hub.table("orders", {"id": [9], "note": ["mine"]}, at="north", mode="append")
    before = hub.snapshot_of_files()
    with pytest.raises(PublicationError, match=r"written to since \(version 2\).*Move the table away"):
        hub.apply(capture=capture)
    assert hub.snapshot_of_files() == before
    shutil.move(hub.root("north") / "orders", hub.folder / "saved")
    hub.apply(capture=capture)
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}


@pytest.mark.slow
def test_an_unfinished_table_that_was_being_dropped_is_dropped(spark: SparkSession, hub: Hub) -> None:
    """Neither what was being dropped nor a first commit that never came to be is somebody's table."""
    hub.articles(orders())
    cut_short(hub, "initialise.before_active")
    (point,) = DROPPED
    cut_short(hub, point)
    log = hub.root("north") / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".b0b1cbd8-0b9c-4a1c-a5c7-0e4f7ab6a5a2.tmp").write_text("{")
    cut_short(hub, "initialise.before_active")
    cut_short(hub, f"{point}:2")
    hub.apply()
    assert hub.apply().steps == ()
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}
    assert {path.name for path in hub.root("north").iterdir()} == {".mergerepl.lock", "_mergerepl", "orders"}


@pytest.mark.slow
def test_an_unfinished_subscription_can_be_taken_back(spark: SparkSession, hub: Hub) -> None:
    cut_short(hub, "initialise.after_article")
    subscriptions = hub.publication.subscriptions
    hub.publication = replace(hub.publication, subscriptions=())
    hub.apply()
    assert hub.apply().steps == ()
    hub.publication = replace(hub.publication, subscriptions=subscriptions)
    hub.apply(capture=capture)
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}


@pytest.mark.slow
def test_an_unfinished_subscription_takes_what_the_file_says_now(spark: SparkSession, hub: Hub) -> None:
    hub.articles(orders())
    cut_short(hub, "initialise.after_article")
    hub.subscribe("north", sync_type=SyncType.NONE)
    with pytest.raises(PublicationError, match="but there is no Delta table"):
        hub.apply(capture=capture)
    hub.subscribe("north", type=SubscriberType.CLIENT, host_name="N")
    hub.apply(capture=capture)
    for name, nickname in (("hq", 2), ("north", 1), ("north", 2)):
        (row,) = (r for r in hub.rows(name, catalog.SUBSCRIPTIONS) if r.replnickname == nickname)
        assert (row.subscriber_type, row.priority, row.host_name) == (2, 0.0, "N"), name
    assert hub.apply().steps == ()


APPLY = """
import pickle, sys
from mergerepl.publish.apply import apply_publication
apply_publication(pickle.load(sys.stdin.buffer))
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["publish.after_alter", "initialise.after_captured"])
def test_a_killed_apply_is_finished(spark: SparkSession, hub: Hub, point: str) -> None:
    """The same with a real kill of the whole process group, JVM and all."""
    killed(script(APPLY), point, given=pickle.dumps(hub.publication))
    hub.apply()
    assert hub.apply().steps == ()
    assert notes(hub, "north") == {1: "a", 2: "b", 3: "c"}
