"""What `status`, `pending`, `sync` and the dashboard report of a schema change that waits, and of one that stops."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import mergerepl
from mergerepl.dashboard.page import dashboard_page
from mergerepl.model.replica_status import SubscriptionStatus
from mergerepl.model.tasks import CRITICAL
from tests.networks import publish


def add_column(table: Path, name: str, type_: str) -> None:
    DeltaTable(str(table)).alter.add_columns([Field(name, PrimitiveType(type_))])


def subscriptions(root: Path) -> dict[str, SubscriptionStatus]:
    (found,) = mergerepl.Project.load(root).status()
    return {Path(each.subscriber).name: each for each in found.details.subscriptions}


def test_a_change_waits_until_a_sync_brings_it_or_a_table_cannot_take_it(tmp_path: Path) -> None:
    hq = tmp_path / "hq"
    write_deltalake(str(hq / "orders"), pa.table({"id": [1, 2], "note": ["a", "b"]}))
    ends = [{"subscriber": "./north"}, {"subscriber": "./south"}]
    write_deltalake(str(hq / "staff"), pa.table({"id": [1]}))
    publish(tmp_path, "sales", [{"name": name, "key": ["id"]} for name in ("orders", "staff")], ends)
    project = mergerepl.Project.load(hq)
    assert not any(each.schema for each in project.pending())
    # No session has read the publisher's log yet.
    add_column(hq / "orders", "email", "string")
    added = "add email string"
    (status,) = project.status()
    assert status.warnings == ()
    assert {each.schema_pending for each in subscriptions(hq).values()} == {(f"orders: {added}",)}
    (session,) = project.sync("north").sessions
    assert session.schema == (f"orders: {added}",)
    # South's table has a column of that name of its own.
    add_column(tmp_path / "south" / "orders", "email", "long")
    waiting = [(Path(each.subscriber).name, each.direction, each.schema) for each in project.pending()]
    assert [each for each in waiting if each[2]] == [("south", "download", (added,))]
    # The session sends the rows of the other article.
    write_deltalake(str(hq / "staff"), pa.table({"id": [2]}), mode="append")
    _, stopped = project.sync().sessions
    assert (stopped.status, stopped.refused, stopped.download.inserts) == ("succeeded", ("orders",), 1)
    assert (stopped.schema, stopped.error and stopped.error["error"]) == ((), "SchemaStoppedError")
    for root in (hq, tmp_path / "south"):
        (south,) = (each for each in subscriptions(root).values() if each.schema_pending)
        assert (south.last_sync_status, south.last_sync_error) == ("failed", "SchemaStoppedError")
        assert "DROP COLUMN `email`, then `mergerepl sync` again. No row was changed" in str(
            south.schema_stop
        )
    (status,) = project.status()
    (warning,) = status.warnings
    assert (warning.level, warning.text.partition(":")[0]) == (
        CRITICAL,
        f"A schema change stops '{tmp_path / 'south'}'",
    )
    page = dashboard_page(project.snapshot(), title="sales", names={}).html
    assert "schema change stops it" in page
    assert f"schema waits: orders: {added}" in page
    # Somebody removes that column; the next sync brings the publisher's.
    DeltaTable(str(tmp_path / "south" / "orders")).restore(1)
    (done,) = project.sync("south").sessions
    assert (done.error, done.schema) == (None, (f"orders: {added}",))
    south = subscriptions(hq)["south"]
    assert (south.last_sync_error, south.schema_stop, south.schema_pending) == (None, None, ())
