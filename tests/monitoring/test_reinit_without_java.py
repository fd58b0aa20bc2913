"""A subscriber of few differing rows is filled again in process, with the outcome that Spark would give."""

import json
import shutil
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from mergerepl import Project
from mergerepl.delta.log import head_version
from mergerepl.errors import SubscriptionExpiredError
from mergerepl.merge.session.clean_up import clean_up_metadata
from mergerepl.replica.replica import Replica
from mergerepl.spark import session as engine
from mergerepl.store.changeset import unfinished_sessions
from mergerepl.systables import conflicts_info
from tests.faults.deaths import dies
from tests.networks import Hub, edit_by_delta_rs, publish

ENDS = ("north", "south")
IDS = list(range(1, 9))


@pytest.fixture(scope="module")
def published(worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    hub.table("orders", {"id": IDS, "note": list("abcdefgh"), "price": [i / 7 for i in IDS]})
    hub.table("staff", {"id": [1, 2], "name": ["x", None]})
    articles = [{"name": "orders", "key": ["id"], "tracking": "column"}, {"name": "staff", "key": ["id"]}]
    publish(hub.folder, "sales", articles, [{"subscriber": f"./{name}"} for name in ENDS])
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """North expired. 1 differs at both, 2 is gone at hq, 3 changed, 4 is gone and 10 new at north, 9 is new at hq."""
    monkeypatch.setattr(engine, "session", lambda **_: pytest.fail("few rows need no engine"))
    hub = published.copied(replica_dir)
    at_hq, at_north = hub.root("hq") / "orders", hub.root("north") / "orders"
    # It is not published: only north has its values.
    DeltaTable(str(at_north)).alter.add_columns([Field("own", PrimitiveType("string"))])
    edit_by_delta_rs(at_hq, "update t set note = 'sent' where id = 7")
    assert project(hub).sync().ok
    edit_by_delta_rs(at_hq, "update t set note = 'hq' where id = 1")
    edit_by_delta_rs(at_hq, "delete from t where id = 2")
    edit_by_delta_rs(at_hq, "insert into t values (9, 'hq', 0.0)")
    edit_by_delta_rs(at_north, "update t set note = 'north' where id in (1, 3)")
    edit_by_delta_rs(at_north, "delete from t where id = 4")
    edit_by_delta_rs(at_north, "insert into t values (10, 'north', -0.0, 'mine')")
    hub.expire("north", datetime.now(UTC))
    return hub


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def rows(hub: Hub, name: str) -> dict[int, str]:
    found = DeltaTable(str(hub.root(name) / "orders")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["note"] for row in found}


def logged(hub: Hub) -> list[Any]:
    return sorted(row.rowkey["id"] for row in Replica(hub.root("hq")).control.rows(conflicts_info.TABLE))


KEPT = {5: "e", 6: "f", 7: "sent", 8: "h", 9: "hq", 1: "hq"}
OF_HQ = KEPT | {3: "c", 4: "d"}
OF_BOTH = KEPT | {3: "north", 10: "north"}

POINTS = [
    *("reinit.after_export", "capture.before_replinfo", "stage.before_pointer", "stage.before_manifest"),
    *("stage.after_manifest", "reinit.before_void", "reinit.after_void", "subscriber.after_merge"),
    *("publisher.after_merge", "run.after_contents", "bookkeeping.before_replinfo"),
    *("watermarks.before_publisher", "session.before_drop"),
]


@pytest.mark.parametrize(
    "point",
    ["reinit.after_void"]
    + [pytest.param(each, marks=pytest.mark.slow) for each in ("", *POINTS) if each != "reinit.after_void"],
)
def test_inv_38_what_was_not_sent_goes_up(hub: Hub, point: str) -> None:
    staff = head_version(hub.root("north") / "staff")
    if point:
        with dies(point):
            project(hub).reinit("north", upload_first=True)
    if point and unfinished_sessions(Replica(hub.root("hq")).staging):
        assert project(hub).sync("north").ok
    else:
        project(hub).reinit("north", upload_first=True)
    assert project(hub).sync().ok
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == OF_BOTH
    assert head_version(hub.root("north") / "staff") == staff
    assert logged(hub) == ["1"]
    assert [each.status for each in project(hub).sync().sessions] == ["nothing_to_do"] * 2
    assert project(hub).validate().ok


@pytest.mark.slow
def test_a_reinitialisation_that_died_once_changes_were_given_up_is_made_again(hub: Hub) -> None:
    shutil.rmtree(hub.root("north") / "orders")
    with dies("reinit.after_taken"):
        project(hub).reinit("north", discard_local=True)
    with pytest.raises(SubscriptionExpiredError):
        project(hub).sync("north")
    project(hub).reinit("north", discard_local=True)
    assert project(hub).sync().ok
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == OF_HQ
    assert logged(hub) == []


def test_what_is_discarded_is_kept(hub: Hub) -> None:
    at_north = hub.root("north") / "orders"
    edit_by_delta_rs(at_north, "update t set own = 'mine' where id in (2, 3)")
    before = [head_version(hub.root(name) / "orders") for name in ("hq", "north")]
    planned, _ = project(hub).reinit("north", discard_local=True, dry_run=True).articles
    assert [head_version(hub.root(name) / "orders") for name in ("hq", "north")] == before
    done, _ = project(hub).reinit("north", discard_local=True).articles
    assert (done.inserts, done.updates, done.deletes, done.unsent) == (2, 2, 2, 4)
    assert (done.uploaded, done.conflicts, done.kept, planned.kept) == (0, 0, 5, 5)
    kept = DeltaTable(str(done.kept_at)).to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["note"], row["own"], row["mergerepl_kind"]) for row in kept} == {
        1: ("north", None, "replaced"),
        2: ("b", "mine", "removed"),
        3: ("north", "mine", "replaced"),
        4: ("d", None, "brought back"),
        10: ("north", "mine", "removed"),
    }
    theirs = DeltaTable(str(at_north)).to_pyarrow_table().to_pylist()
    assert {row["id"] for row in theirs if row["own"] == "mine"} == {3}
    # North's versions continue the publisher's: no false conflict, and no change is lost.
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'again' where id in (1, 7)")
    edit_by_delta_rs(hub.root("hq") / "orders", "update t set price = 1.5 where id = 7")
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == OF_HQ | {1: "again", 7: "again"}
    assert logged(hub) == []


def others_go_on(hub: Hub) -> int:
    """Let south synchronize until nothing moves any more, and hq forget what it may; return what has settled there."""
    # It finishes what hq has to do first. Without it the changes at hq would be late ones.
    assert project(hub).sync("south").ok
    for number in range(2):
        edit_by_delta_rs(hub.root("south") / "orders", f"update t set price = {number}.5 where id = 5")
        edit_by_delta_rs(hub.root("hq") / "orders", f"update t set price = {number}.5 where id = 6")
        assert project(hub).sync("south").ok
    assert project(hub).sync("south").ok
    clean_up_metadata(hub.root("hq"), older_than=timedelta())
    (about,) = (row for row in Replica(hub.root("hq")).subscriptions() if row.is_own)
    return about.settled


@pytest.mark.parametrize(
    "point",
    [each if each == "reinit.before_void" else pytest.param(each, marks=pytest.mark.slow) for each in POINTS],
)
def test_inv_37_who_is_filled_again_counts_from_the_staging_on(hub: Hub, point: str) -> None:
    with dies(point):
        project(hub).reinit("north", upload_first=True)
    staged = unfinished_sessions(Replica(hub.root("hq")).staging)
    others_go_on(hub)
    if staged:
        assert project(hub).sync("north").ok
    else:
        with pytest.raises(SubscriptionExpiredError):
            project(hub).sync("north")
        project(hub).reinit("north", upload_first=True)
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'later' where id = 8")
    assert all(project(hub).sync().ok for _ in range(2))
    # Where hq has forgotten what north had received, rows that differ are conflicts, which hq wins.
    expected = OF_BOTH if staged else OF_BOTH | {3: "c", 4: "d"}
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == expected | {8: "later"}
    assert project(hub).validate().ok


@pytest.mark.slow
@pytest.mark.parametrize("is_aborted", [True, False], ids=["aborted", "away for too long again"])
def test_inv_37_who_is_not_filled_again_holds_nothing_back(hub: Hub, is_aborted: bool) -> None:
    with dies("reinit.before_void"):
        project(hub).reinit("north", discard_local=True)
    held = others_go_on(hub)
    assert others_go_on(hub) == held
    staging = Replica(hub.root("hq")).staging
    (session,) = unfinished_sessions(staging)
    if is_aborted:
        # A session of which both ends are within reach is finished.
        north, away = (Path(str(hub.root(name))) for name in ("north", "away"))
        north.rename(away)
        assert project(hub).abort(session).status == "given_up"
        away.rename(north)
    else:
        plan = Path(str(staging)) / session / "manifest.json"
        stated = json.loads(plan.read_text())
        stated["plan"]["started"] = str(datetime.now(UTC) - timedelta(days=15.1))
        plan.write_text(json.dumps(stated))
    assert others_go_on(hub) > held
    with pytest.raises(SubscriptionExpiredError):
        project(hub).sync("north")
    project(hub).reinit("north", upload_first=True)
    assert all(project(hub).sync().ok for _ in range(2))
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south")
    assert project(hub).validate().ok
