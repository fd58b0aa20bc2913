"""Repair of merge replicas that have diverged: rows get new versions at the right side, and the next sync carries them."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import Project
from mergerepl.delta.log import head_version
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.model.publication import Tracking
from mergerepl.replica.replica import Replica
from mergerepl.systables import conflicts_info
from tests.calls import merge_capture
from tests.faults.deaths import dies
from tests.faults.ladder import REPAIRED
from tests.networks import Hub, edit_by_delta_rs, lose_changes
from tests.publish.publishing import orders

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    hub.table("orders", {"id": [1, 2, 3, 4, 5], "note": ["a", "b", "c", "d", "e"], "qty": [1, 2, 3, 4, 5]})
    hub.articles(orders(tracking=Tracking.COLUMN))
    hub.subscribe("north")
    hub.apply()
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """1 differs, 2 is missing at north, 9 is extra there; 3 waits at north, 4 is not captured at hq."""
    hub = published.copied(replica_dir)
    at_north, at_hq = hub.root("north") / "orders", hub.root("hq") / "orders"
    edit_by_delta_rs(at_north, "update t set note = 'lost' where id = 1")
    edit_by_delta_rs(at_north, "delete from t where id = 2")
    edit_by_delta_rs(at_north, "insert into t values (9, 'extra', 9)")
    lose_changes(hub.root("north"))
    edit_by_delta_rs(at_north, "update t set note = 'waits' where id = 3")
    merge_capture(hub.root("north"))
    edit_by_delta_rs(at_hq, "update t set note = 'new' where id = 4")
    return hub


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def rows(hub: Hub, name: str) -> dict[int, tuple[Any, ...]]:
    found = DeltaTable(str(hub.root(name) / "orders")).to_pyarrow_table().to_pylist()
    return {row["id"]: (row["note"], row["qty"]) for row in found}


def logged(hub: Hub) -> list[tuple[str | None, int, str]]:
    found = Replica(hub.root("hq")).control.rows(conflicts_info.TABLE)
    return sorted((row.rowkey["id"], row.conflict_type, row.reason_text) for row in found)


FROM_PUBLISHER = {1: ("a", 1), 2: ("b", 2), 3: ("waits", 3), 4: ("new", 4), 5: ("e", 5)}
FROM_SUBSCRIBER = {1: ("lost", 1), 3: ("waits", 3), 4: ("new", 4), 5: ("e", 5), 9: ("extra", 9)}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["publisher", "subscriber"])
def test_a_repair_that_died_is_run_again_and_the_next_sync_makes_both_sides_equal(
    hub: Hub, source: Any
) -> None:
    before = [head_version(hub.root(name) / "orders") for name in ("hq", "north")]
    if source == "subscriber":
        with pytest.raises(ConfigurationError, match="brought back"):
            project(hub).repair(source=source)
    for point in REPAIRED if source == "subscriber" else ("capture.before_replinfo",):
        with dies(point):
            project(hub).repair(source=source, may_insert=True)
    (done,) = project(hub).repair(source=source, may_insert=True).articles
    assert (done.inserts, done.updates, done.deletes, done.differing, done.unsent) == (1, 1, 1, 0, 1)
    assert {each.key["id"]: each.kind for each in done.examples} == {
        "1": "different",
        "2": "missing_at_subscriber",
        "9": "missing_at_publisher",
    }
    lost = ["1", "9"] if source == "publisher" else ["1", "2"]
    assert logged(hub) == [(key, 11, "repair") for key in lost]
    # No users' table has a commit, and what is repaired waits for the sync.
    assert before == [head_version(hub.root(name) / "orders") for name in ("hq", "north")]
    session = project(hub).sync().sessions[0]
    assert session.upload.conflicts + session.download.conflicts == 0
    assert rows(hub, "hq") == rows(hub, "north")
    assert rows(hub, "hq") == (FROM_PUBLISHER if source == "publisher" else FROM_SUBSCRIBER)


def test_touched_rows_wait_are_listed_and_go_over(hub: Hub) -> None:
    """Rows 1 and 2 differ at north: the publisher's touch sends them; 9 was never captured, so north's sends it."""
    hq, north = mergerepl.Replica(hub.root("hq")), mergerepl.Replica(hub.root("north"))
    assert hq.touch("orders", where="id <= 2").rows == 2
    assert north.touch("orders", where="id > 8", without_metadata=True).rows == 1
    assert north.touch("orders", key={"id": "3"}, without_metadata=True).rows == 0
    with pytest.raises(ConfigurationError, match="Name the rows"):
        hq.touch("orders")
    waiting = project(hub).pending_rows()
    found = {(each.direction, each.key["id"], each.is_delete) for each in waiting}
    assert found == {
        *(("upload", key, False) for key in ("3", "9")),
        *(("download", key, False) for key in ("1", "2")),
    }
    assert [len(project(hub).pending_rows(limit=n)) for n in (0, 3)] == [0, 3]
    project(hub).sync()
    assert rows(hub, "hq") == rows(hub, "north") == FROM_PUBLISHER | {9: ("extra", 9)}


@pytest.mark.slow
def test_vacuum_captures_first_and_keeps_the_files_of_unread_versions(hub: Hub) -> None:
    hq = mergerepl.Replica(hub.root("hq"))
    (done,) = hq.vacuum("orders")
    # The article keeps 14 days; what was not captured is now.
    assert (done.source, done.retention_hours, done.read_through) == ("orders", 14 * 24, None)
    assert project(hub).pending_rows("hq")[0].key == {"id": "3"}
    assert {each.uncaptured_commits for each in hq.pending() if each.direction == "download"} == {0}
    with pytest.raises(ConfigurationError, match="no article 'others'"):
        hq.vacuum("others")


@pytest.mark.slow
def test_only_chosen_rows_are_repaired_and_a_key_of_several_rows_is_refused(hub: Hub) -> None:
    (planned,) = project(hub).repair("north", dry_run=True).articles
    assert (planned.inserts, planned.updates, planned.deletes, planned.differing) == (1, 1, 1, None)
    assert logged(hub) == []
    (done,) = project(hub).repair("north", table="orders", key={"id": "1"}).articles
    assert (done.inserts, done.updates, done.deletes, done.differing) == (0, 1, 0, 2)
    (done,) = project(hub).repair("north", table="orders", where="note = 'b'").articles
    assert (done.inserts, done.updates, done.deletes, done.differing) == (1, 0, 0, 1)
    with pytest.raises(ConfigurationError, match="is identified by id"):
        project(hub).repair("north", table="orders", key={"nr": "1"})
    edit_by_delta_rs(hub.root("north") / "orders", "insert into t values (9, 'twice', 9)")
    lose_changes(hub.root("north"))
    with pytest.raises(PublicationError, match="one key, or it is NULL: id=9"):
        project(hub).repair("north")
