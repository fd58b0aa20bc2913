"""Writers that know nothing of transactions: adopted as one implicit transaction for each commit, or refused."""

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import failpoints
from mergerepl.failpoints import FailpointError
from mergerepl.model.tracking import TransactionResult
from mergerepl.tracking.errors import ForeignCommitError, TrackingError, TransactionConflictError
from tests.faults.deaths import armed
from tests.tracking.databases import commit_sequence, held, notes_of, rows, tracked

pytestmark = pytest.mark.spark

STAMPS = ("__sysChangeTxBsn", "__sysInsertTxBsn", "__sysTrackingContext")


def opened(root: Path, name: str = "orders") -> DeltaTable:
    return DeltaTable(str(root / name))


def append(root: Path, *notes: tuple[int, str]) -> None:
    """Append rows that have no stamps."""
    write_deltalake(opened(root), pa.Table.from_pylist(rows(*notes)), mode="append", schema_mode="merge")


@pytest.mark.slow
def test_each_commit_becomes_a_transaction(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, dict.fromkeys(range(1, 7), "old"))
    reader = tracking.consumer("hq")
    tracking.update("orders", {"note": "'ours'"}, where="id <= 2")
    reader.acknowledge(reader.enumerate())
    before = {row["id"]: tuple(row[name] for name in STAMPS) for row in tracking.read("orders").collect()}
    unmet, met = tracking.begin(), tracking.begin()
    unmet.update("orders", {"note": "'unmet'"}, where="id = 2")
    met.update("orders", {"note": "'met'"}, where="id = 3")
    opened(replica_dir).update({"note": "'stale'"}, predicate="id in (1, 3)")  # stamps stay as they were
    append(replica_dir, (10, "new"))
    opened(replica_dir).delete("id = 4")
    append(replica_dir, (4, "again"))
    copied = opened(replica_dir).to_pyarrow_table().filter(pa.compute.equal(pa.compute.field("id"), 1))
    copied = copied.set_column(copied.schema.get_field_index("id"), "id", pa.array([11], pa.int64()))
    write_deltalake(opened(replica_dir), copied, mode="append")  # an `INSERT … SELECT *`
    everything = opened(replica_dir).to_pyarrow_table().select(["id", "note"])
    write_deltalake(
        opened(replica_dir), everything, mode="overwrite", schema_mode="merge"
    )  # equal rows, stamps lost
    assert len(tracking.status().foreign_commits) == 6
    window = reader.enumerate()
    assert held(window) == {
        "inserts": {4: "again", 10: "new", 11: "stale"},
        "updates": {1: "stale", 3: "stale"},
        "deletes": [4],
    }
    after = {row["id"]: tuple(row[name] for name in STAMPS) for row in tracking.read("orders").collect()}
    assert {key: after[key] for key in (2, 5, 6)} == {key: before[key] for key in (2, 5, 6)}
    last = tracking.transactions()
    assert [(each.bsn, each.csn, dict(each.changes)) for each in last[:6]] == [
        (9, 7, {}),
        (8, 6, {"orders": 1}),
        (7, 5, {"orders": 1}),
        (6, 4, {"orders": 1}),
        (5, 3, {"orders": 1}),
        (4, 2, {"orders": 2}),
    ]
    assert commit_sequence(tracking) == {4: 2, 5: 3, 6: 4, 7: 5, 8: 6}
    reader.acknowledge(window)
    # A row that foreign writers only wrote again is no conflict; one that they changed is.
    assert unmet.commit().changes == {"orders": 1}
    with pytest.raises(TransactionConflictError, match="committed first: 3"):
        met.commit()
    assert held(reader.enumerate()) == {"inserts": {}, "updates": {2: "unmet"}, "deletes": []}
    # The same rows without a change: nothing.
    opened(replica_dir).optimize.compact()
    assert tracking.status().foreign_commits == ()


@pytest.mark.slow
def test_foreign_commits_are_refused_where_the_user_said_so(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, {1: "old"}, foreign="refuse")
    reader = tracking.consumer("hq")
    append(replica_dir, (2, "foreign"))
    version, status = opened(replica_dir).version(), tracking.status()
    for refused in (lambda: tracking.update("orders", {"note": "'x'"}), reader.enumerate):
        with pytest.raises(ForeignCommitError, match=r"version 3, WRITE by delta-rs.*to version 2"):
            refused()
    assert opened(replica_dir).version() == version
    assert tracking.status().last_csn == status.last_csn
    # Of two rows with one key the command says so, with nothing changed. A RESTORE to the published version undoes all.
    append(replica_dir, (2, "twice"))
    with pytest.raises(ForeignCommitError, match="two rows share a key, or did: 2"):
        tracking.adopt()
    opened(replica_dir).delete("note = 'twice'")
    with pytest.raises(ForeignCommitError, match="share a key, or did: 2"):
        tracking.adopt()
    opened(replica_dir).restore(version - 1)
    assert tracking.status().foreign_commits == ()
    assert reader.enumerate().is_empty
    append(replica_dir, (2, "foreign"))
    assert tracking.adopt() == 1
    assert held(reader.enumerate())["inserts"] == {2: "foreign"}


@pytest.mark.slow
def test_a_commit_between_the_check_and_our_write(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = tracked(replica_dir, {1: "old", 2: "old", 3: "old"})
    reader = tracking.consumer("hq")
    tx = tracking.begin()
    tx.update("orders", {"note": "'ours'"}, where="id in (1, 2)")
    gate = replica_dir / "gate"
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", f"tracking.before_write=pause:{gate}")
    done: list[TransactionResult] = []
    thread = threading.Thread(target=lambda: done.append(tx.commit()))
    thread.start()
    while not gate.with_name("gate.reached").exists() and thread.is_alive():
        time.sleep(0.02)
    opened(replica_dir).update({"note": "'theirs'"}, predicate="id in (2, 3)")
    gate.touch()
    thread.join()
    [result] = done
    assert (result.bsn, result.csn, dict(result.overwritten)) == (1, 1, {"orders": 1})
    assert notes_of(tracking.read("orders")) == {1: "ours", 2: "ours", 3: "theirs"}
    # Both are published at once: no window ends between them.
    assert [(each.bsn, each.csn) for each in tracking.transactions()] == [(2, 2), (1, 1)]
    window = reader.enumerate()
    assert held(window)["updates"] == {1: "ours", 2: "ours", 3: "theirs"}
    reader.acknowledge(window)
    assert reader.enumerate().is_empty


@pytest.mark.slow
def test_a_replaced_table_is_adopted_and_its_properties_are_set_again(
    spark: SparkSession, replica_dir: Path
) -> None:
    tracking = tracked(replica_dir, dict.fromkeys(range(1, 5), "old"))
    reader = tracking.consumer("hq")
    reader.acknowledge(reader.enumerate())
    table, stamps = f"delta.`{replica_dir / 'orders'}`", ", ".join(STAMPS)
    properties = DeltaTable(str(replica_dir / "orders")).metadata().configuration
    before = {row["id"]: tuple(row[name] for name in STAMPS) for row in tracking.read("orders").collect()}
    spark.sql(
        f"create or replace table {table} using delta as select cast(id as bigint) id, "
        f"if(id = 2, 'new', note) note, cast(id as int) qty, {stamps} from {table} where id < 4"
    )
    # A death between the properties and the adoption, and one between the table's new id and what is published.
    for point in ("tracking.after_properties", "tracking.after_table_id"):
        with armed(point), pytest.raises(FailpointError):
            tracking.adopt()
    window = reader.enumerate()
    assert held(window) == {"inserts": {}, "updates": {1: "old", 2: "new", 3: "old"}, "deletes": [4]}
    assert DeltaTable(str(replica_dir / "orders")).metadata().configuration == properties
    after = {row["id"]: tuple(row[name] for name in STAMPS) for row in tracking.read("orders").collect()}
    assert {name for name in after if after[name] == before[name]} == set()
    reader.acknowledge(window)
    spark.sql(f"create or replace table {table} using delta as select * from {table}")
    assert held(reader.enumerate()) == {"inserts": {}, "updates": {}, "deletes": []}
    assert tracking.update("orders", {"note": "'ours'"}, where="id = 1").changes == {"orders": 1}
    # Without the stamps it is refused by name; RESTORE to the replaced table is followed.
    version = DeltaTable(str(replica_dir / "orders")).version()
    spark.sql(f"create or replace table {table} using delta as select id, note, qty from {table}")
    with pytest.raises(TrackingError, match="lost the tracking column"):
        reader.enumerate()
    spark.sql(f"restore {table} to version as of {version}")
    assert held(reader.enumerate()) == {"inserts": {}, "updates": {1: "ours"}, "deletes": []}
