"""What `status` says is wrong with the tables of a replica, found without an engine."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.delta.log import commit_text, head_version
from mergerepl.monitoring.parties import members
from mergerepl.replica.replica import Replica
from mergerepl.systables import replinfo
from tests.calls import merge_status
from tests.networks import make_replica, restate
from triggers import errors

FEED = "delta.enableChangeDataFeed"


@pytest.fixture
def hq(tmp_path: Path) -> Replica:
    """A publisher whose table was captured up to its head."""
    replica = make_replica(tmp_path, "hq")
    DeltaTable(str(replica.root / "orders")).alter.set_table_properties({FEED: "true"})
    note_captured(replica)
    return replica


def note_captured(replica: Replica) -> None:
    table = replica.root / "orders"
    (info,) = replica.control.rows(replinfo.TABLE)
    captured, ids = {1: head_version(table)}, {1: str(DeltaTable(str(table)).metadata().id)}
    replica.control.replace(replinfo.TABLE, [replace(info, captured=captured, table_ids=ids)])


def problems(replica: Replica) -> list[str]:
    return [text for text in merge_status(replica.root).problems if "'orders'" in text]


def pending_problems(replica: Replica) -> set[str]:
    return {
        each.problem for each in mergerepl.Replica(replica.root).pending() if each.article and each.problem
    }


def test_pending_names_the_end_that_is_out_of_reach(hq: Replica) -> None:
    north = hq.root.parent / "north"

    def ends(at: Replica) -> list[str | None]:
        return [each.problem for each in mergerepl.Replica(at.root).pending() if not each.article]

    assert f"'{north}' is out of reach" in str(ends(hq))
    other = make_replica(hq.root.parent, "north")
    assert ends(hq) == []
    shutil.rmtree(hq.root)
    assert f"'{hq.root}' is out of reach" in str(ends(other))


def test_what_is_lost_names_a_way_on_that_each_end_has() -> None:
    table = Path("/hq/orders")
    for error in (
        errors.replaced_table("orders", table, table.parent),
        errors.older_copy("orders", table, table.parent, "is at version 2"),
    ):
        assert (
            "at the publisher publish the table again: take all subscriptions and then the article out"
            in error.message
        )
        assert "at a subscriber fill it again: `mergerepl reinit REPLICA --table" in error.message


def test_the_members_out_of_reach_are_named(hq: Replica) -> None:
    """`row` shows them."""
    north = hq.root.parent / "north"
    pubid = hq.publications[0].pubid
    assert ([each.root for each in members(hq, pubid)[0]], members(hq, pubid)[1]) == ([hq.root], [str(north)])
    other = make_replica(hq.root.parent, "north")
    for asked in (hq, other):
        found, missing = members(asked, pubid)
        assert ([each.root for each in found], missing) == ([hq.root, north], [])
    shutil.rmtree(hq.root)
    found, missing = members(other, pubid)
    assert ([each.root for each in found], missing) == ([north], [str(hq.root)])


def test_a_table_in_order_is_no_problem(hq: Replica) -> None:
    assert problems(hq) == []


def test_a_replica_that_lost_its_captured_versions_has_a_status(hq: Replica) -> None:
    (info,) = hq.control.rows(replinfo.TABLE)
    hq.control.replace(replinfo.TABLE, [replace(info, captured={})])
    assert problems(hq) == []


def test_a_column_added_at_the_publisher_is_no_problem(hq: Replica) -> None:
    """A sync follows it (test_waiting_schema_changes.py)."""
    more = pa.table({"id": [3], "extra": ["x"]})
    write_deltalake(str(hq.root / "orders"), more, mode="append", schema_mode="merge")
    assert problems(hq) == []
    assert pending_problems(hq) == set()


def test_a_feed_that_is_off_is_a_problem(hq: Replica) -> None:
    DeltaTable(str(hq.root / "orders")).alter.set_table_properties({FEED: "false"})
    (problem,) = problems(hq)
    assert "Change Data Feed is switched off" in problem
    note_captured(hq)
    assert problems(hq) == [problem]


@pytest.mark.parametrize(
    ("properties", "message", "what"),
    [
        ({"delta.isolationLevel": "WriteSerializable"}, "isolationLevel = WriteSerializable", "changes"),
        ({"delta.appendOnly": "true"}, "is append-only", "updates and deletes"),
    ],
)
def test_a_table_that_a_session_would_not_write_to_is_a_problem(
    hq: Replica, properties: dict[str, str], message: str, what: str
) -> None:
    # Not by `deltalake`, which knows neither property as one to be set.
    restate(hq.root / "orders", lambda body: body["configuration"].update(properties))
    (problem,) = problems(hq)
    assert message in problem
    assert f"no session brings it {what}." in problem


def test_a_table_that_is_gone_is_a_problem(hq: Replica) -> None:
    shutil.rmtree(hq.root / "orders")
    (problem,) = problems(hq)
    assert "is gone or no Delta table any more" in problem


def test_a_table_created_again_at_its_captured_version_is_a_problem(hq: Replica) -> None:
    table, (info,) = hq.root / "orders", hq.control.rows(replinfo.TABLE)
    note = {1: commit_text(table, head_version(table))}
    hq.control.replace(replinfo.TABLE, [replace(info, captured_commits=note)])
    assert problems(hq) == []
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"id": [1, 2]}), configuration={FEED: "true"})
    DeltaTable(str(table)).alter.set_table_properties({FEED: "true"})
    (problem,) = [text for text in merge_status(hq.root).problems if str(table) in text]
    assert "another commit than the one captured" in problem


def test_a_column_that_takes_null_now_is_a_problem(hq: Replica) -> None:
    table, strict = str(hq.root / "orders"), pa.schema([pa.field("id", pa.int64(), nullable=False)])
    options = {"mode": "overwrite", "schema_mode": "overwrite"}
    write_deltalake(table, pa.table({"id": [1]}, schema=strict), **options)
    note_captured(hq)
    assert problems(hq) == []
    write_deltalake(table, pa.table({"id": [2]}), **options)
    (problem,) = problems(hq)
    assert "'id' is not NOT NULL any more" in problem
