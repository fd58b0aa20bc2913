"""`sync --validate touched`: the rows that a session wrote or captured are compared at both sides, and no others."""

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.merge.repair.certificate import last_runs, record_validation
from mergerepl.model.publication import Article
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.validate import validate_subscription
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from tests.networks import Hub, edit_by_delta_rs, lose_changes
from tests.publish.publishing import orders

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    ids = [*range(1, 9)]
    hub.table("orders", {"id": ids, "note": list("abcdefgh"), "secret": ids})
    hub.table("lines", {"order_id": [1, 1], "n": [1, 2]})
    hub.articles(orders(columns=("id", "note")), Article("lines", "lines", ("order_id", "n")))
    hub.subscribe("north")
    hub.apply()
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    return published.copied(replica_dir)


def synced(hub: Hub, level: str = "touched") -> dict[str, ArticleValidation]:
    (session,) = Project.load(hub.root("hq")).sync("north", validate=level).sessions  # type: ignore[arg-type]
    assert session.error is None, session.error
    return {each.article: each for each in session.validation or ()}


def diverged(hub: Hub) -> list[list[str]]:
    rows = [row for name in ("hq", "north") for row in Replica(hub.root(name)).relations()]
    return [[text.split()[0] for text in row.diverged.values()] for row in rows]


def test_the_rows_of_a_session_are_compared_and_no_others(hub: Hub) -> None:
    hq, north = hub.root("hq") / "orders", hub.root("north") / "orders"
    edit_by_delta_rs(north, "update t set note = 'lost' where id = 8")
    lose_changes(hub.root("north"))
    edit_by_delta_rs(hq, "update t set note = 'hq' where id = 1")
    edit_by_delta_rs(hq, "delete from t where id = 2")
    edit_by_delta_rs(north, "update t set note = 'north' where id in (1, 3)")
    edit_by_delta_rs(north, "insert into t values (9, 'new')")
    before = last_runs(*(Location.of(hub.root(name)) for name in ("hq", "north")))
    found = synced(hub)
    assert {name: (each.level, each.result, each.publisher_rows) for name, each in found.items()} == {
        "orders": ("touched", "equal", 3),
        "lines": ("touched", "equal", 0),
    }
    recorded = Replica(hub.root("north")).control.rows(sessions.ARTICLEHISTORY)
    assert [row.result for row in recorded if row.level == "touched"] == ["equal", "equal"]
    # A session without rows compares none.
    assert {each.publisher_rows for each in synced(hub).values()} == {0}
    row = Replica(hub.root("hq")).relations()[0]
    assert (row.attempted_validate, row.last_validated) == (None, None)
    # A row that the session wrote otherwise than it should, and one that it did not delete.
    edit_by_delta_rs(north, "update t set note = 'damaged' where id = 1")
    edit_by_delta_rs(north, "insert into t values (2, 'b')")
    lose_changes(hub.root("north"))
    place = Location.of(hub.root("hq")), Location.of(hub.root("north")), "sales"
    results = validate_subscription(*place, "touched", since=before)
    kinds = {each.key["id"]: each.kind for result in results for each in result.examples}
    assert kinds == {"1": "different", "2": "missing_at_publisher"}
    record_validation(*place, results)
    assert diverged(hub) == [["touched"], ["touched"]]
    # The rows of another session say nothing about them.
    edit_by_delta_rs(hq, "update t set note = 'again' where id = 4")
    assert synced(hub)["orders"].result == "equal"
    assert diverged(hub) == [["touched"], ["touched"]]
    assert synced(hub, "checksum")["orders"].differing_rows == 3
    assert diverged(hub) == [["checksum"], ["checksum"]]
