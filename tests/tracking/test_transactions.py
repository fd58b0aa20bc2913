"""Transactions: numbers and the commit sequence, isolation, who wins, what aborts, and what each operation does."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.model.tracking_options import PurgeType, TrackingKeyType, TrackingOptions
from mergerepl.tracking import SqlCeChangeTracking, counters
from mergerepl.tracking.errors import TrackingError, TransactionConflictError
from mergerepl.tracking.sweep import sweep
from mergerepl.tracking.windows import Window
from tests.tracking.databases import commit_sequence, held, new_table, notes_of, rows, tracked

pytestmark = pytest.mark.spark

EMPTY = {"inserts": {}, "updates": {}, "deletes": []}


def numbers(tracking: mergerepl.ChangeTracking) -> tuple[int, int]:
    found = counters.read_counters(tracking.session.database.root)
    return found.last_bsn, found.last_csn


def documented(window: Window) -> tuple[dict[int, str], dict[int, str]]:
    return notes_of(window.inserts("orders")), notes_of(window.updates("orders"))


@pytest.mark.slow
def test_five_transactions_end_out_of_sequence(spark: SparkSession, replica_dir: Path) -> None:
    """The worked example of the documentation; then an abort, at rest; then what the printed queries make of it."""
    new_table(replica_dir)
    original = SqlCeChangeTracking(replica_dir)
    original.EnableTracking("orders", TrackingKeyType.PRIMARY_KEY, TrackingOptions.ALL, key="id")
    tracking = original.tracking
    reader, printed = tracking.consumer("hq"), tracking.consumer("printed")
    one, two, three, four, five = (tracking.begin() for _ in range(5))
    for tx in (one, two, three, four, five):
        tx.insert("orders", rows((tx.current_transaction_bsn, "new")))
    assert [each.commit().csn for each in (one, three, four)] == [1, 2, 3]
    window = reader.enumerate()
    assert (window.anchors.lcsn, window.anchors.ecsn, window.anchors.ebsn) == (0, 4, 2)
    assert held(window) == {**EMPTY, "inserts": {1: "new", 3: "new", 4: "new"}}
    reader.acknowledge(window)
    assert reader.enumerate(enumeration="documented").id == "hq:4:4"  # never back
    first = printed.enumerate(enumeration="documented")
    # ECSN is the CSN of the last commit: that one is not enumerated, and what is inserted is in both sets.
    assert documented(first) == ({1: "new", 3: "new"}, {1: "new", 3: "new"})
    printed.acknowledge(first)
    assert [each.commit().csn for each in (two, five)] == [4, 5]
    assert commit_sequence(tracking) == {2: 4, 3: 2, 4: 3}
    # Nobody else commits: the last one is enumerated all the same, also beside an abort.
    tracking.begin().abort()
    assert held(reader.enumerate()) == {**EMPTY, "inserts": {2: "new", 5: "new"}}
    # T2 began before LBSN 4 and committed after it: the printed queries lose it for ever.
    tracking.recover()
    assert numbers(tracking) == (6, 6)
    with tracking.transaction():
        pass
    assert original.GetLastCommittedCsn() == 7
    assert documented(printed.enumerate(enumeration="documented"))[0] == {4: "new", 5: "new"}
    # The other members of the original, each under its name.
    assert original.GetTrackingOptions("orders") is TrackingOptions.ALL
    assert original.UnpackTombstoneKey("orders", original.PackTombstoneKey("orders", [7])) == (7,)
    tracking.delete("orders", where="id = 1")
    reader.acknowledge(reader.enumerate())
    printed.acknowledge(printed.enumerate())
    assert original.PurgeTombstoneTableData("orders", PurgeType.TIME_BASED, 0).removed == 1
    assert original.PurgeTransactionSequenceData(PurgeType.CSN_BASED, 3).removed == 1
    assert commit_sequence(tracking) == {2: 4, 4: 3}
    assert original.UpgradePublicTracking()
    with pytest.raises(TrackingError, match="only of a table with column mapping"):
        original.DisableTracking("orders")


def test_the_first_committer_wins(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, {1: "old", 2: "old", 3: "old"}, names=("orders", "stock"))
    one, two, three = tracking.begin(), tracking.begin(), tracking.begin()
    one.update("orders", {"note": "'one'"}, where="id = 1")
    two.update("stock", {"note": "'two'"}, where="id = 1")
    two.update("orders", {"note": "'two'"}, where="id <= 2")
    three.delete("orders", where="id = 3")
    one.commit()
    with pytest.raises(TransactionConflictError, match=r"changed were changed .* committed first: 1") as lost:
        two.commit()
    assert lost.value.details()["transient"] is True
    # Other rows of the same table were changed meanwhile: that is no conflict.
    three.commit()
    assert notes_of(tracking.read("orders")) == {1: "one", 2: "old"}
    assert notes_of(tracking.read("stock")) == {1: "old", 2: "old", 3: "old"}
    tracking.recover()
    assert numbers(tracking) == (3, 3)
    assert counters.transaction_folders(replica_dir) == []
    with pytest.raises(TrackingError, match="aborted already"):
        two.read("orders")


@pytest.mark.slow
def test_a_transaction_sees_its_snapshot_and_its_own_writes(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, {1: "old", 2: "old", 3: "old", 4: "old"})
    reader = tracking.consumer("hq")
    tx = tracking.begin("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11")
    tx.update("orders", {"note": "note"})  # changes nothing
    tx.update("orders", {"note": "concat(note, '!')"}, where="id = 1")
    other = tracking.insert("orders", rows((9, "other")))
    assert (other.bsn, other.csn) == (2, 1)
    tx.delete("orders", where="id = 2")
    tx.insert("orders", rows((2, "again"), (5, "new"), (6, "passing")))
    tx.delete("orders", rows=[{"id": 6}, {"id": 77}])
    tx.update("orders", {"id": "id + 10"}, where="id = 3")  # a delete and an insert
    tx.touch("orders", where="id = 4")
    seen = {1: "old!", 2: "again", 13: "old", 4: "old", 5: "new"}
    assert notes_of(tx.read("orders")) == seen
    assert notes_of(tracking.read("orders")) == {1: "old", 2: "old", 3: "old", 4: "old", 9: "other"}
    result = tx.commit()
    assert (result.bsn, result.csn, dict(result.changes)) == (1, 2, {"orders": 6})
    assert notes_of(tracking.read("orders")) == {**seen, 9: "other"}
    assert notes_of(tracking.read("orders", csn=1)) == {1: "old", 2: "old", 3: "old", 4: "old", 9: "other"}
    window = reader.enumerate()
    assert held(window) == {
        "inserts": {2: "again", 5: "new", 13: "old", 9: "other"},
        "updates": {1: "old!", 4: "old"},
        "deletes": [2, 3],
    }
    contexts = {row["id"]: row["__sysTrackingContext"] for row in window.updates("orders").collect()}
    assert contexts == dict.fromkeys((1, 4), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")


@pytest.mark.slow
def test_what_fails_aborts_and_changes_nothing(spark: SparkSession, replica_dir: Path) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{replica_dir}/orders` (id BIGINT, note VARCHAR(5), n INT NOT NULL DEFAULT 7, `a.b` STRING) "
        "USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    spark.sql(f"ALTER TABLE delta.`{replica_dir}/orders` ADD CONSTRAINT positive CHECK (n > 0)")
    tracking = mergerepl.ChangeTracking(replica_dir)
    tracking.enable("orders", key="id")
    tracking.insert("orders", [{"id": 1, "note": "a"}])
    version = DeltaTable(str(replica_dir / "orders")).version()
    cases = [
        ("keys are there already: 1", lambda tx: tx.insert("orders", [{"id": 1, "n": 1}])),
        ("keys are given twice: 2", lambda tx: tx.insert("orders", [{"id": 2, "n": 1}] * 2)),
        ("a key that is NULL", lambda tx: tx.insert("orders", [{"id": None, "n": 1}])),
        (
            "rows break the type varchar\\(5\\) of column 'note'",
            lambda tx: tx.upsert("orders", [{"id": 1, "note": "abcdef"}]),
        ),
        ("CHECK constraint 'positive'", lambda tx: tx.update("orders", {"n": "-1"})),
        ("NOT NULL of column 'n'", lambda tx: tx.update("orders", {"n": "null"})),
        ("do not fit the type of column 'n'", lambda tx: tx.update("orders", {"n": "'x'"})),
        ("no column 'x'", lambda tx: tx.insert("orders", [{"id": 3, "x": 1}])),
        ("differ in case alone: id, ID", lambda tx: tx.insert("orders", [{"id": 3, "ID": 4}])),
        ("DataFrame or a list of dictionaries", lambda tx: tx.insert("orders", {"id": 3})),
        ("'stock' is not tracked", lambda tx: tx.read("stock")),
    ]
    for message, operation in cases:
        with pytest.raises(TrackingError, match=message), tracking.transaction() as tx:
            operation(tx)
    with pytest.raises(KeyboardInterrupt), tracking.transaction() as tx:
        raise KeyboardInterrupt
    with tracking.session.held("test"):
        sweep(tracking.session)
    assert numbers(tracking) == (13, 13)
    assert DeltaTable(str(replica_dir / "orders")).version() == version
    assert [tuple(row)[:3] for row in tracking.read("orders").collect()] == [(1, "a", 7)]
    with tracking.transaction() as tx:
        tx.insert("orders", [])
        tx.update("orders", {"a.b": "'one'"})
        tx.update("orders", {"a.b": "concat(`a.b`, '!')"})
    assert [row["a.b"] for row in tracking.read("orders").collect()] == ["one!"]


@pytest.mark.slow
def test_a_key_that_delta_stores_as_null_is_refused(spark: SparkSession, replica_dir: Path) -> None:
    table = pa.table({"region": ["North"], "id": [1]})
    write_deltalake(str(replica_dir / "orders"), table, partition_by=["region"])
    tracking = mergerepl.ChangeTracking(replica_dir)
    tracking.enable("orders", key=["region", "id"])
    with pytest.raises(
        TrackingError, match="rows break the rule of partition column 'region' that no value is empty"
    ):
        tracking.insert("orders", [{"region": "", "id": 2}])


REFUSED = {
    "NULL or shared keys": ({1: "a"}, {"key": "note2"}, "no column 'note2'"),
    "named twice": ({}, {"key": ["id", "ID"]}, "named twice"),
    "no key": ({}, {"key": []}, "usable key"),
    "GUID of another type": ({}, {"rowguid": "id"}, "has the type bigint"),
    "no GUIDs": ({1: "a"}, {"rowguid": "note"}, "keys are no GUIDs: a"),
    "shared": ({1: "a", 2: "a"}, {"key": "note"}, "rows share a key: a"),
    "NULL": ({1: None}, {"key": "note"}, "a key that is NULL"),
    "no options": ({}, {"key": "id", "track": TrackingOptions(0)}, "usable `track`"),
    "other words": ({}, {"key": "id", "track": "insert,merge"}, "usable `track`"),
    "key and GUID": ({}, {"key": "id", "rowguid": "note"}, "usable key"),
}


def test_what_cannot_be_tracked_is_refused_and_not_touched(spark: SparkSession, replica_dir: Path) -> None:
    tracking = mergerepl.ChangeTracking(replica_dir)
    for number, (notes, arguments, message) in enumerate(REFUSED.values()):
        table = new_table(replica_dir, f"t{number}", notes)
        with pytest.raises(TrackingError, match=message):
            tracking.enable(table.name, **arguments)
        assert DeltaTable(str(table)).version() == 0
    assert not (replica_dir / "_tracking").exists()
