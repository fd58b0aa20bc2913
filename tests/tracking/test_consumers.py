"""Consumers: order of acknowledging, purges, restored copies, tables that are enabled later. Few of them need Spark."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta import appended
from mergerepl.delta.log import head_version
from mergerepl.delta.reads import read_version
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.spark.session import new_session
from mergerepl.tracking.errors import ConsumerBehindError, TrackingError, TransactionConflictError
from tests.tracking.databases import commit_sequence, held, new_table, notes_of, rows, tracked

pytestmark = pytest.mark.spark


def empty(tracking: mergerepl.ChangeTracking, count: int = 1) -> None:
    """Commit transactions that change nothing: they take both numbers, without Spark."""
    for _ in range(count):
        with tracking.transaction():
            pass


def test_windows_are_acknowledged_in_order_each_once(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir)
    reader = tracking.consumer("hq")
    empty(tracking)
    first = reader.enumerate()
    empty(tracking)
    again = reader.enumerate()
    assert (first.id, again.id) == ("hq:0:2", "hq:0:3")
    assert first.is_empty
    reader.acknowledge(again.state.to_json())
    reader.acknowledge(again)
    with pytest.raises(TrackingError, match="begins at CSN 0, and the consumer stands at 3"):
        reader.acknowledge(first)
    with pytest.raises(TrackingError, match="not of a registered consumer"):
        tracking.consumer("other").acknowledge(again)
    reader.received(b"\x01\x02")
    assert (reader.state.lcsn, reader.state.lbsn, reader.state.received_anchor) == (3, 3, b"\x01\x02")
    token = again.token()
    empty(tracking)
    kept = tracking.consumer(token=token).enumerate()
    assert (kept.anchors.lcsn, kept.anchors.ecsn) == (3, 4)
    with pytest.raises(TrackingError, match="no token"):
        tracking.consumer(token="x")


def test_a_database_put_back_to_an_older_copy_serves_no_consumer_of_the_newer(
    spark: SparkSession, replica_dir: Path, tmp_path: Path
) -> None:
    tracking = tracked(replica_dir)
    reader = tracking.consumer("hq", start="now")
    empty(tracking)
    shutil.copytree(replica_dir, tmp_path / "copy")
    empty(tracking)
    token = reader.enumerate().token()
    restored = mergerepl.ChangeTracking(tmp_path / "copy")
    with pytest.raises(TrackingError, match="put back to an older copy"):
        restored.consumer(token=token).enumerate()
    empty(restored, 2)
    with pytest.raises(TrackingError, match="put back to an older copy"):
        restored.consumer(token=token).enumerate()


@pytest.mark.slow
def test_purges_keep_what_the_slowest_consumer_needs(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, dict.fromkeys(range(6), "old"))
    slow, quick = tracking.consumer("slow"), tracking.consumer("quick")
    beginning = quick.enumerate().token()
    one, two = tracking.begin(), tracking.begin()
    two.delete("orders", where="id = 2")
    two.commit()  # BSN 2, CSN 1
    one.delete("orders", where="id = 1")
    one.commit()  # BSN 1, CSN 2
    tracking.delete("orders", where="id = 3")
    window = slow.enumerate()
    assert held(window)["deletes"] == [1, 2, 3]
    for reader in (slow, quick):
        reader.acknowledge(reader.enumerate())
    tracking.delete("orders", where="id = 4")
    quick.acknowledge(quick.enumerate())
    with pytest.raises(TrackingError, match="for a later version"):
        tracking.purge("orders", to=9, force=True)  # type: ignore[call-arg]
    planned = tracking.purge("orders", older_than="0 days", dry_run=True)
    assert (planned.removed, planned.held_back, planned.bound_csn) == (3, 1, 4)
    assert tracking.purge("orders", to=2).removed == 2
    assert held(slow.enumerate())["deletes"] == [4]
    assert tracking.purge(to=1).removed == 1
    assert commit_sequence(tracking) == {1: 2}
    with pytest.raises(ConsumerBehindError, match="stands at CSN 1; rows of table 'orders'"):
        tracking.consumer(token=beginning).enumerate()
    assert tracking.purge(older_than=timedelta()).removed == 1
    assert held(slow.enumerate())["deletes"] == [4]
    assert [each.csn for each in tracking.transactions()] == [4, 3]


@pytest.mark.slow
def test_a_table_that_is_enabled_later_is_copied_whole(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, {1: "old"})
    reader = tracking.consumer("hq")
    tracking.update("orders", {"note": "'new'"})
    new_table(replica_dir, "stock", {7: "seven"})
    tracking.enable("stock", key="id", track=TrackingOptions.INSERT)
    tracking.insert("stock", rows((8, "eight")))
    window = reader.enumerate()
    assert window.initial == ("stock",)
    assert held(window)["updates"] == {1: "new"}
    assert held(window, "stock") == {"inserts": {}, "updates": {}, "deletes": []}
    assert notes_of(tracking.read("stock", csn=window.anchors.ecsn - 1)) == {7: "seven", 8: "eight"}
    for refused in (lambda: reader.acknowledge(window), window.token):
        with pytest.raises(TrackingError, match="no rows of stock"):
            refused()
    reader.acknowledge(window, fresh=["stock"])
    tracking.insert("stock", rows((9, "nine")))
    assert held(reader.enumerate(), "stock")["inserts"] == {9: "nine"}
    # Disabled and enabled again: old tombstones are forgotten, and the key may be another.
    tracking.delete("orders", where="id = 1")
    with pytest.raises(TrackingError, match="only of a table with column mapping"):
        tracking.disable("orders")
    tracking.disable("orders", keep_columns=True)
    assert tracking.options("orders") is None
    tracking.enable("orders", key=["note"])
    assert reader.enumerate().initial == ("orders",)
    with pytest.raises(TrackingError, match="cannot change while it is"):
        tracking.enable("orders", key=["id"])


@pytest.mark.slow
def test_no_purge_and_no_other_options_take_a_delete_from_a_window(
    spark: SparkSession, replica_dir: Path
) -> None:
    tracking = tracked(replica_dir, dict.fromkeys(range(6), "old"), options=TrackingOptions.INSERT)
    stale = tracking.begin()
    stale.delete("orders", where="id = 5")
    tracking.enable("orders", key="id")
    # It was staged without a tombstone: consumers that copied the table since would keep the row.
    with pytest.raises(TransactionConflictError, match="tracking of 'orders' was changed"):
        stale.commit()
    copied = tracking.consumer("hq").enumerate()
    beginning = copied.token(fresh=["orders"])
    one, two = tracking.begin(), tracking.begin()
    two.insert("orders", rows((7, "new")))
    assert two.commit().csn < two.current_transaction_bsn
    one.abort()
    tracking.delete("orders", where="id in (1, 7)")
    # The tombstone of a row that was inserted out of sequence has the CSN, not the BSN.
    stored = appended.read(spark, tracking.session.database.deleted_rows)
    csns = {row["mr_insert_csn"] for row in stored.collect()}
    assert csns == {None, two.result.csn if two.result else 0}
    window = tracking.consumer(token=beginning).enumerate()
    reader = tracking.consumer("hq", start="now", again=True)
    assert tracking.purge("orders", to=98).removed == 2
    # A window that was enumerated before the purge holds what it held; later ones are refused.
    assert held(window)["deletes"] == [1]
    with pytest.raises(ConsumerBehindError):
        tracking.consumer(token=beginning).enumerate()
    with pytest.raises(TrackingError, match="no usable tracking context"):
        reader.enumerate(exclude_context="x")
    with pytest.raises(TrackingError, match="has no snapshot of CSN 0"):
        tracking.read("orders", csn=0)


@pytest.mark.slow
def test_an_altered_table_is_refused_before_a_transaction_is_decided(
    spark: SparkSession, replica_dir: Path
) -> None:
    tracking = tracked(replica_dir, {1: "old"})
    path, held_open = replica_dir / "orders", tracking.begin()
    held_open.insert("orders", rows((2, "new")))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (note <> 'new')")
    with pytest.raises(TransactionConflictError, match="columns or properties of 'orders' were changed"):
        held_open.commit()
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(TrackingError, match="cannot be written: it takes no updates"):
        tracking.delete("orders", where="id = 1")
    aborted = tracking.begin()
    tracking.abort(aborted.current_transaction_bsn)
    tracking.recover()
    aborted.abort()
    assert tracking.status().open_transactions == ()


@pytest.mark.slow
def test_a_window_is_the_same_by_the_printed_queries_and_without_the_log(
    spark: SparkSession, replica_dir: Path
) -> None:
    tracking = tracked(replica_dir, dict.fromkeys(range(6), "old"))
    reader = tracking.consumer("hq")
    one, two = tracking.begin(), tracking.begin()
    two.insert("orders", rows((10, "two"), (11, "two")))
    two.commit()
    reader.acknowledge(reader.enumerate())
    one.update("orders", {"note": "'one'"}, where="id = 1")
    one.delete("orders", where="id = 2")
    one.insert("orders", rows((12, "one")))
    one.commit()
    tracking.delete("orders", where="id = 11")
    window = reader.enumerate()
    expected = {"inserts": {12: "one"}, "updates": {1: "one"}, "deletes": [2, 11]}
    assert held(window) == expected
    # The queries of `ChangeTracking.sql`.
    database, session = tracking.session.database, new_session(spark)
    for path in (
        *map(database.control.path, ("__sysTxCommitSequence",)),
        database.deleted_rows,
        replica_dir / "orders",
    ):
        read_version(session, path, head_version(path)).createOrReplaceTempView(path.name)
    text = tracking.sql("orders").exact
    text = text.replace(":LCSN", str(window.anchors.lcsn)).replace(":ECSN", str(window.anchors.ecsn))
    changed, deleted = text.split(";")[:2]
    found = session.sql(changed).collect()
    assert {row["operation"]: (row["id"], row["note"]) for row in found} == {
        "insert": (12, "one"),
        "update": (1, "one"),
    }
    keys = [bytes(row["__sysRK"]) for row in session.sql(deleted).collect()]
    assert sorted(tracking.unpack_key("orders", key)[0] for key in keys) == [2, 11]
    # The log is cleaned up beyond the window's beginning: the whole table is read.
    table = DeltaTable(str(replica_dir / "orders"))
    table.create_checkpoint()
    for version in range(table.version()):
        (replica_dir / "orders" / "_delta_log" / f"{version:020d}.json").unlink()
    assert held(reader.enumerate()) == expected
