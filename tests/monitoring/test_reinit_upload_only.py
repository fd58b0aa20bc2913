"""Reinitialisation of an upload_only article: the subscriber keeps its rows, and what it had not sent goes up."""

import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mergerepl import Project
from mergerepl.delta.log import head_version
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import unfinished_sessions
from mergerepl.systables import conflicts_info
from tests.calls import merge_capture
from tests.faults.deaths import dies
from tests.networks import Hub, edit_by_delta_rs, lose_changes, publish

pytestmark = pytest.mark.slow

ENDS = ("north", "south")


@pytest.fixture(scope="module")
def published(worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    ids = list(range(1, 9))
    hub.table("visits", {"id": ids, "note": list("abcdefgh")})
    article = {"name": "visits", "key": ["id"], "tracking": "column", "resolver": {"name": "upload_only"}}
    publish(hub.folder, "sales", [article], [{"subscriber": f"./{name}"} for name in ENDS])
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """North expired: 1 and 9 were sent before, 4, 5, 6, 7 and 10 were not, 8 changed unseen; 2, 3 and 20 are hq's own
    changes, 6 also changed at south.
    """
    hub = published.copied(replica_dir)
    hq, north, south = (hub.root(name) / "visits" for name in ("hq", *ENDS))
    edit_by_delta_rs(north, "update t set note = 'sent' where id = 1")
    edit_by_delta_rs(north, "insert into t values (9, 'sent')")
    edit_by_delta_rs(south, "update t set note = 'south' where id = 6")
    assert project(hub).sync().ok
    edit_by_delta_rs(hq, "update t set note = 'hq' where id = 2")
    edit_by_delta_rs(hq, "delete from t where id = 3")
    edit_by_delta_rs(hq, "insert into t values (20, 'hq')")
    edit_by_delta_rs(north, "update t set note = 'unseen' where id = 8")
    lose_changes(hub.root("north"))
    edit_by_delta_rs(north, "update t set note = 'north' where id in (4, 6)")
    edit_by_delta_rs(north, "delete from t where id = 5")
    merge_capture(hub.root("north"))
    edit_by_delta_rs(north, "update t set note = 'late' where id = 7")
    edit_by_delta_rs(north, "insert into t values (10, 'new')")
    hub.expire("north", datetime.now(UTC))
    return hub


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def rows(hub: Hub, name: str) -> dict[int, str]:
    found = DeltaTable(str(hub.root(name) / "visits")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["note"] for row in found}


def logged(hub: Hub) -> list[Any]:
    return sorted(row.rowkey["id"] for row in Replica(hub.root("hq")).control.rows(conflicts_info.TABLE))


AT_NORTH = {1: "sent", 2: "b", 3: "c", 4: "north", 6: "north", 7: "late", 8: "unseen", 9: "sent", 10: "new"}
BEFORE = {1: "sent", 2: "hq", 4: "d", 5: "e", 6: "south", 7: "g", 8: "h", 9: "sent", 20: "hq"}
AT_HQ = {1: "sent", 2: "hq", 4: "north", 6: "north", 7: "late", 8: "h", 9: "sent", 10: "new", 20: "hq"}

POINTS = [
    *("capture.before_replinfo", "stage.before_manifest", "stage.after_manifest", "reinit.after_void"),
    *("publisher.after_merge", "run.after_contents", "bookkeeping.before_replinfo"),
    *("watermarks.before_publisher", "session.before_drop"),
]


@pytest.mark.parametrize("point", ["", *POINTS])
def test_the_subscriber_keeps_its_rows_and_what_was_not_sent_goes_up(hub: Hub, point: str) -> None:
    with pytest.raises(ConfigurationError, match="changes that the publisher lacks"):
        project(hub).reinit("north")
    before, rejected = head_version(hub.root("north") / "visits"), logged(hub)
    if point:
        with dies(point):
            project(hub).reinit("north", upload_first=True)
    if point and unfinished_sessions(Replica(hub.root("hq")).staging):
        assert project(hub).sync("north").ok
    elif point != "session.before_drop":
        (done,) = project(hub).reinit("north", upload_first=True).articles
        assert (done.inserts, done.updates, done.deletes, done.kept) == (0, 0, 0, 0)
    assert rows(hub, "north") == AT_NORTH
    assert head_version(hub.root("north") / "visits") == before
    assert rows(hub, "hq") == AT_HQ
    assert logged(hub) == sorted([*rejected, "6"])
    assert [each.status for each in project(hub).sync("north").sessions] == ["nothing_to_do"]
    # Its next changes go up over the publisher's own ones; only a deleted row is a conflict.
    edit_by_delta_rs(hub.root("north") / "visits", "update t set note = 'again' where id in (2, 3, 4, 8)")
    edit_by_delta_rs(hub.root("north") / "visits", "delete from t where id = 9")
    assert project(hub).sync("north").ok
    again = dict.fromkeys((2, 3, 4, 8), "again")
    assert rows(hub, "hq") == {key: note for key, note in AT_HQ.items() if key != 9} | again
    assert rows(hub, "north") == {key: note for key, note in AT_NORTH.items() if key != 9} | again
    assert set(logged(hub)) <= {*rejected, "3", "6"}


def test_what_is_discarded_stays_at_the_subscriber(hub: Hub) -> None:
    (done,) = project(hub).reinit("north", discard_local=True).articles
    assert (done.inserts, done.updates, done.deletes, done.uploaded, done.kept) == (0, 0, 0, 0, 0)
    assert (rows(hub, "north"), rows(hub, "hq")) == (AT_NORTH, BEFORE)
    assert [each.status for each in project(hub).sync("north").sessions] == ["nothing_to_do"]
    edit_by_delta_rs(hub.root("north") / "visits", "update t set note = 'again' where id in (4, 10)")
    assert project(hub).sync("north").ok
    assert rows(hub, "hq") == BEFORE | {4: "again", 10: "again"}


def test_a_table_that_is_gone_is_refused(hub: Hub) -> None:
    shutil.rmtree(hub.root("north") / "visits")
    with pytest.raises(PublicationError, match="the publisher has none to give"):
        project(hub).reinit("north", discard_local=True)
    assert not (hub.root("north") / "visits").exists()
    assert rows(hub, "hq") == BEFORE
