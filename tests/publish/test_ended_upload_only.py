"""An article that was upload_only gets another resolver: unsent changes go up, and replicas are equal from then on."""

import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import Project
from tests.faults.deaths import dies
from tests.networks import Hub, edit_by_delta_rs, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ENDS = ("north", "south")


def stated(resolver: str) -> list[dict[str, Any]]:
    return [
        {"name": "orders", "key": ["id"], "tracking": "column", "resolver": {"name": resolver}},
        {"name": "lines", "key": ["id"]},
    ]


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    ids = list(range(1, 8))
    hub.table("orders", {"id": ids, "note": list("abcdefg")})
    hub.table("lines", {"id": ids, "note": list("abcdefg")})
    publish(hub.folder, "sales", stated("upload_only"), [{"subscriber": f"./{name}"} for name in ENDS])
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """1 and 8 (new) were sent by north and kept from south; since then 2 and 5 changed at hq, 6 was deleted there, 3 and 5
    changed at north, 4 and 9 (new) at south; a line changed at hq and another one at south.
    """
    hub = published.copied(replica_dir)
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'sent' where id = 1")
    edit_by_delta_rs(hub.root("north") / "orders", "insert into t values (8, 'sent')")
    write(hub, "upload_only")
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    assert rows(hub, "south")[1] == "a"
    edit_by_delta_rs(hub.root("hq") / "orders", "update t set note = 'hq' where id in (2, 5)")
    edit_by_delta_rs(hub.root("hq") / "orders", "delete from t where id = 6")
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'north' where id in (3, 5)")
    edit_by_delta_rs(hub.root("south") / "orders", "update t set note = 'south' where id = 4")
    edit_by_delta_rs(hub.root("south") / "orders", "insert into t values (9, 'south')")
    edit_by_delta_rs(hub.root("hq") / "lines", "update t set note = 'hq' where id = 1")
    edit_by_delta_rs(hub.root("south") / "lines", "update t set note = 'south' where id = 2")
    return hub


def write(hub: Hub, resolver: str) -> None:
    file = {"publication": "sales", "publisher": "./hq", "articles": stated(resolver)}
    file["subscriptions"] = [{"subscriber": f"./{name}"} for name in ENDS]
    (hub.folder / "sales.yml").write_text(yaml.safe_dump(file))


def project(hub: Hub) -> Project:
    return Project.load(hub.folder / "sales.yml")


def rows(hub: Hub, name: str, table: str = "orders") -> dict[int, str]:
    found = DeltaTable(str(hub.root(name) / table)).to_pyarrow_table().to_pylist()
    return {row["id"]: row["note"] for row in found}


def kept(hub: Hub, name: str) -> dict[int, str]:
    """Return the rows that a subscriber lost, from its folder of unsent rows."""
    logs = (hub.root(name) / "_mergerepl" / "unsent").glob("*/orders/_delta_log")
    found = [row for log in logs for row in DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()]
    return {row["id"]: row["note"] for row in found}


EXPECTED = {1: "sent", 2: "hq", 3: "north", 4: "south", 5: "north", 7: "g", 8: "sent", 9: "south"}
POINTS = [
    "apply.before_reinit", "reinit.after_export", "stage.before_manifest", "stage.after_manifest", "reinit.before_void",
    "subscriber.before_merge", "watermarks.before_publisher", "apply.after_reinit", "apply.after_reinit:2",
    "apply.before_change", "change.after_replica", "change.after_replica:2", "apply.after_change",
]  # fmt: skip


@pytest.mark.parametrize(
    "points", [pytest.param(POINTS, id="all"), *(pytest.param([point], id=point) for point in POINTS)]
)
def test_unsent_changes_go_up_and_replicas_are_equal(hub: Hub, points: list[str]) -> None:
    write(hub, "priority")
    planned = project(hub).apply(dry_run=True)
    assert [step.action for step in planned.steps] == ["reinit", "reinit", "change", "record"]
    outcomes = [(each.outcome, each.unsent) for each in planned.subscriptions]
    assert outcomes == [("diff", "1 commit not captured yet"), ("diff", "3 commits not captured yet")]
    for point in points:
        with dies(point):
            project(hub).apply()
    project(hub).apply()
    assert project(hub).apply().steps == ()
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == EXPECTED
    lines = {1: "hq", 2: "south"} | {i: "abcdefg"[i - 1] for i in range(3, 8)}
    assert all(rows(hub, name, "lines") == lines for name in ("hq", *ENDS))
    assert {1: "a", 2: "b", 6: "f"}.items() <= kept(hub, "south").items()
    # Changes travel both ways from then on.
    edit_by_delta_rs(hub.root("hq") / "orders", "update t set note = 'down' where id = 1")
    edit_by_delta_rs(hub.root("north") / "orders", "update t set note = 'up' where id = 2")
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    expected = EXPECTED | {1: "down", 2: "up"}
    assert rows(hub, "hq") == rows(hub, "north") == rows(hub, "south") == expected
    assert [each.status for each in project(hub).sync().sessions] == ["nothing_to_do"] * 2
