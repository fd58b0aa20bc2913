"""Reinitialisation by difference: a subscriber goes on from the publisher's rows, and nothing of its own is lost."""

import shutil
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.log import head_version
from mergerepl.errors import ConfigurationError, EnumerationError, PublicationError
from mergerepl.merge.reinit import differences, outcome
from mergerepl.merge.repair.differing import without_equal
from mergerepl.model.publication import Article, Tracking
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import unfinished_sessions
from mergerepl.systables import conflicts_info
from tests.calls import merge_capture
from tests.faults.deaths import dies
from tests.networks import Hub, edit_by_delta_rs, lose_changes, writing_late
from tests.publish.publishing import article, orders

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    ids = list(range(1, 9))
    hub.table("orders", {"id": ids, "note": list("abcdefgh"), "qty": ids})
    hub.table("staff", {"id": ids[:2], "name": ["x", "y"]})
    hub.articles(orders(tracking=Tracking.COLUMN), Article("staff", "staff", ("id",)))
    hub.subscribe("north")
    hub.subscribe("south")
    hub.apply()
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """North was away.

    Since then: 1 differs at both, 2 is deleted at hq, 3 changed and 4 deleted at north, 5 changed and 12 new there unseen,
    6 changed alike at both, 9 is new at hq, 10 and 11 at north. Someone is new in the other table at north.
    """
    hub = published.copied(replica_dir)
    at_north, at_hq = hub.root("north") / "orders", hub.root("hq") / "orders"
    edit_by_delta_rs(at_north, "update t set note = 'unseen' where id = 5")
    edit_by_delta_rs(at_north, "insert into t values (12, 'unseen', 12)")
    lose_changes(hub.root("north"))
    edit_by_delta_rs(at_hq, "update t set note = 'hq' where id = 1")
    edit_by_delta_rs(at_hq, "update t set note = 'same' where id = 6")
    edit_by_delta_rs(at_hq, "delete from t where id = 2")
    edit_by_delta_rs(at_hq, "insert into t values (9, 'new at hq', 9)")
    edit_by_delta_rs(at_north, "update t set qty = 100 where id = 1")
    edit_by_delta_rs(at_north, "update t set note = 'north' where id = 3")
    edit_by_delta_rs(at_north, "update t set note = 'same' where id = 6")
    edit_by_delta_rs(at_north, "delete from t where id = 4")
    edit_by_delta_rs(at_north, "insert into t values (10, 'captured', 10)")
    merge_capture(hub.root("north"))
    edit_by_delta_rs(at_north, "insert into t values (11, 'not captured', 11)")
    edit_by_delta_rs(hub.root("north") / "staff", "insert into t values (3, 'z')")
    return hub


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def rows(hub: Hub, name: str, table: str = "orders") -> dict[int, tuple[Any, ...]]:
    found = DeltaTable(str(hub.root(name) / table)).to_pyarrow_table().to_pylist()
    return {row["id"]: tuple(list(row.values())[1:]) for row in found}


def logged(hub: Hub) -> list[str | None]:
    return sorted(row.rowkey["id"] for row in Replica(hub.root("hq")).control.rows(conflicts_info.TABLE))


def heads(hub: Hub, *names: str) -> list[int]:
    return [head_version(hub.root(name) / "orders") for name in names]


KEPT = {3: ("c", 3), 5: ("e", 5), 6: ("same", 6), 7: ("g", 7), 8: ("h", 8)}
OF_HQ = KEPT | {1: ("hq", 1), 4: ("d", 4), 9: ("new at hq", 9)}
OF_BOTH = KEPT | {
    1: ("hq", 1),
    3: ("north", 3),
    9: ("new at hq", 9),
    10: ("captured", 10),
    11: ("not captured", 11),
}
"""Where the publisher wins the only conflict: the others replace a version of hq's that north has received."""


def late(hub: Hub) -> None:
    """Change at north a row that it gets, two that it loses, and one that stays as it is."""
    for key in (5, 2, 12, 8):
        edit_by_delta_rs(hub.root("north") / "orders", f"update t set note = 'late' where id = {key}")


POINTS = [
    "reinit.after_export",
    *("capture.before_replinfo", "stage.before_pointer", "stage.before_manifest", "stage.after_manifest"),
    *("reinit.before_void", "reinit.after_void", "subscriber.before_merge", "subscriber.after_merge"),
    "publisher.after_merge",
    *("run.before_contents", "run.after_contents", "bookkeeping.before_genhistory", "subscriber.after_done"),
    *("bookkeeping.before_replinfo", "watermarks.before_subscriber", "watermarks.before_publisher"),
    *("watermarks.after_publisher", "session.before_drop"),
]


# In process by default: test_reinit_without_java.py.
@pytest.mark.slow
@pytest.mark.parametrize("points", [[point] for point in POINTS], ids=POINTS)
def test_inv_38_what_was_not_sent_goes_up_and_late_writes_are_decided(hub: Hub, points: list[str]) -> None:
    hub.expire("north", datetime.now(UTC))
    for point in points:
        with dies(point), writing_late(partial(late, hub), of=outcome):
            project(hub).reinit("north", upload_first=True)
    is_late = rows(hub, "north")[8] == ("late", 8)
    if unfinished_sessions(Replica(hub.root("hq")).staging):
        project(hub).sync("north")
    else:
        project(hub).reinit("north", upload_first=True)
        project(hub).sync("north")
    project(hub).sync("south")
    expected = OF_BOTH | ({8: ("late", 8), 12: ("late", 12)} if is_late else {})
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == expected
    assert rows(hub, "hq", "staff") == rows(hub, "north", "staff") == {1: ("x",), 2: ("y",), 3: ("z",)}
    assert logged(hub) == (["1", "2", "5"] if is_late else ["1"])
    assert [each.status for each in project(hub).sync().sessions] == ["nothing_to_do"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("point", ["", "reinit.after_void", "subscriber.after_merge", "session.before_drop"])
def test_late_writes_stay_or_are_logged_though_others_are_discarded(hub: Hub, point: str) -> None:
    with dies(point) if point else nullcontext(), writing_late(partial(late, hub), of=outcome):
        project(hub).reinit("north", discard_local=True)
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    expected = OF_HQ | {8: ("late", 8), 12: ("late", 12)}
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == expected
    assert logged(hub) == ["2", "5"]
    assert project(hub).validate().ok


@pytest.mark.slow
@pytest.mark.parametrize("found_by", ["Arrow", "sums of hashes"])
def test_what_is_discarded_is_kept_and_equal_rows_are_not_written(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Spark decides the rows that Arrow or sums of hashes found, as those of large tables."""
    if found_by == "Arrow":
        monkeypatch.setattr(differences, "MOST_IN_PROCESS", 0)
    else:
        monkeypatch.setattr(differences, "_MANY", 0)
        monkeypatch.setattr(differences, "article_problem", lambda *_: "not by Arrow")
    # A column that is not published.
    at_north = hub.root("north") / "staff"
    DeltaTable(str(at_north)).alter.add_columns([Field("own", PrimitiveType("string"))])
    edit_by_delta_rs(at_north, "update t set own = 'mine' where id = 3")
    project(hub).sync("south")
    before = heads(hub, "hq", "north")
    with pytest.raises(ConfigurationError, match="has 6 changes that the publisher lacks: orders id=1; "):
        project(hub).reinit("north")
    planned, _ = project(hub).reinit("north", discard_local=True, dry_run=True).articles
    assert heads(hub, "hq", "north") == before
    done, staff = project(hub).reinit("north", discard_local=True).articles
    assert (done.inserts, done.updates, done.deletes, done.uploaded, done.conflicts) == (2, 3, 4, 0, 0)
    assert (done.unsent, done.kept, planned.kept) == (5, 8, 8)
    assert rows(hub, "hq") == rows(hub, "north") == OF_HQ
    assert rows(hub, "north", "staff") == {1: ("x", None), 2: ("y", None)}
    kept = DeltaTable(str(done.kept_at)).to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["note"], row["mergerepl_kind"]) for row in kept} == {
        1: ("a", "replaced"),
        2: ("b", "removed"),
        3: ("north", "replaced"),
        4: ("d", "brought back"),
        5: ("unseen", "replaced"),
        10: ("captured", "removed"),
        11: ("not captured", "removed"),
        12: ("unseen", "removed"),
    }
    assert (staff.unsent, staff.kept) == (1, 1)
    (of_staff,) = DeltaTable(str(staff.kept_at)).to_pyarrow_table().to_pylist()
    assert of_staff == {"id": 3, "name": "z", "mergerepl_kind": "removed", "own": "mine"}
    before = heads(hub, "hq", "north", "south")
    assert [each.status for each in project(hub).sync().sessions] == ["nothing_to_do"] * 2
    assert heads(hub, "hq", "north", "south") == before
    # North's versions continue the publisher's: no false conflict, and no change is lost.
    edit_by_delta_rs(hub.root("north") / "orders", "update t set qty = qty + 1 where id in (1, 3, 6)")
    edit_by_delta_rs(hub.root("hq") / "orders", "update t set note = 'again' where id = 6")
    edit_by_delta_rs(hub.root("north") / "orders", "insert into t values (2, 'again', 2)")
    project(hub).sync()
    project(hub).sync()
    expected = OF_HQ | {1: ("hq", 2), 2: ("again", 2), 3: ("c", 4), 6: ("again", 7)}
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == expected
    assert logged(hub) == []
    assert project(hub).validate().ok


@pytest.mark.slow
def test_a_restored_subscriber_and_a_restored_publisher_go_on(hub: Hub) -> None:
    shutil.copytree(hub.root("north"), hub.folder / "former")
    project(hub).sync("north")
    project(hub).sync("south")
    shutil.rmtree(hub.root("north"))
    shutil.move(hub.folder / "former", hub.root("north"))
    with pytest.raises(EnumerationError, match=f"mergerepl reinit north -f {hub.root('hq')} --upload-first"):
        project(hub).sync("north")
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'since' where id = 7")
    project(hub).reinit("north", upload_first=True)
    project(hub).sync("south")
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south")
    assert rows(hub, "hq")[7] == ("since", 7)
    assert rows(hub, "hq")[10] == ("captured", 10)
    # The publisher, too.
    shutil.copytree(hub.root("hq"), hub.folder / "former")
    edit_by_delta_rs(hub.root("hq") / "orders", "update t set note = 'forgotten' where id = 8")
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'arrived' where id = 7")
    project(hub).sync()
    shutil.rmtree(hub.root("hq"))
    shutil.move(hub.folder / "former", hub.root("hq"))
    for name in ("north", "south"):
        with pytest.raises(EnumerationError, match=f"mergerepl reinit {name} -f"):
            project(hub).sync(name)
    before = logged(hub)
    project(hub).reinit("north", upload_first=True)
    project(hub).reinit("south", discard_local=True)
    project(hub).sync()
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south")
    # What the publisher lost is not lost: it came back, or is logged.
    now = {name: rows(hub, "hq")[name][0] for name in (7, 8)}
    news = [
        each for each in logged(hub) if each not in before or logged(hub).count(each) > before.count(each)
    ]
    for key, note in ((7, "arrived"), (8, "forgotten")):
        assert now[key] == note or str(key) in news


@pytest.mark.slow
def test_one_table_is_filled_again_though_its_changes_cannot_be_read(hub: Hub) -> None:
    table = hub.root("north") / "orders"
    shutil.rmtree(table)
    result = project(hub).sync("north")
    assert not result.ok
    with pytest.raises(ConfigurationError, match="no article 'other'"):
        project(hub).reinit("north", table="other")
    done = project(hub).reinit("north", table="orders", discard_local=True).articles
    assert [each.article for each in done] == ["orders"]
    assert rows(hub, "hq") == rows(hub, "north") == OF_HQ
    assert rows(hub, "hq", "staff") == {1: ("x",), 2: ("y",), 3: ("z",)}
    edit_by_delta_rs(table, "update t set qty = 50 where id = 8")
    assert project(hub).sync().ok
    assert rows(hub, "south")[8] == ("h", 50)


@pytest.mark.slow
def test_a_reinitialisation_that_is_given_up_is_not_forgotten(hub: Hub) -> None:
    hub.expire("north", datetime.now(UTC))
    with dies("subscriber.before_merge"):
        project(hub).reinit("north", upload_first=True)
    (session,) = (path.name for path in (hub.root("hq") / "_mergerepl" / "staging").iterdir())
    shutil.move(hub.root("north"), hub.folder / "away")
    project(hub).abort(session)
    shutil.move(hub.folder / "away", hub.root("north"))
    with pytest.raises(EnumerationError, match="mergerepl reinit north"):
        project(hub).sync("north")
    project(hub).reinit("north", upload_first=True)
    project(hub).sync()
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == OF_BOTH


@pytest.mark.slow
def test_sums_of_hashes_leave_out_equal_rows_only(spark: SparkSession) -> None:
    like = spark.range(5000).selectExpr("id", "cast(id as double) as x", "if(id % 3 = 0, null, 'a') as y")
    there = like.where("id <> 10").selectExpr(
        "id", "if(id = 0, -0.0D, x) as x", "case when id = 3 then '' when id = 4 then null else y end as y"
    )
    there = there.unionByName(spark.sql("select 9000L as id, 1.0D as x, 'new' as y"))
    kept = Kept()
    few = without_equal({PUBLISHER: like, SUBSCRIBER: there}, article(like), count=10_000, kept=kept)
    found = {side: {row["id"] for row in rows.collect()} for side, rows in few.items()}
    kept.release()
    assert {0, 3, 4, 10} <= found[PUBLISHER]
    assert {0, 3, 4, 9000} <= found[SUBSCRIBER]
    assert max(map(len, found.values())) < 1000


@pytest.mark.slow
def test_a_key_of_several_rows_is_refused(hub: Hub) -> None:
    edit_by_delta_rs(hub.root("north") / "orders", "insert into t values (5, 'twice', 5)")
    lose_changes(hub.root("north"))
    before = hub.snapshot_of_files()
    with pytest.raises(
        PublicationError, match="cannot be reinitialised: several rows of a side have one key"
    ):
        project(hub).reinit("north", discard_local=True)
    after = hub.snapshot_of_files()
    assert {path for path in after if before.get(path) != after[path] and "_delta_log" in path} == set()
