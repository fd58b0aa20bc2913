"""Procedures of the user's own: what they write comes once, over crashes too; what they may not do is refused."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl import transactional as tr
from mergerepl.transactional.procedures import _registered
from tests.transactional.publications import dies, publication_file, rows, run

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("order_id", pa.int32()),
        ("region", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("note", pa.string()),
    ]
)
MODULE = ("--procedures", "tests.transactional.feed_procedures")
AUDITED = {
    "name": "orders",
    "key": ["order_id"],
    "upd_cmd": "XCALL audit_update",
    "del_cmd": "CALL soften_delete",
}


def add(table: Path, *new: tuple[int, str, str, str]) -> None:
    listed = [
        {"order_id": key, "region": region, "amount": Decimal(amount), "note": note}
        for key, region, amount, note in new
    ]
    write_deltalake(
        str(table),
        pa.Table.from_pylist(listed, schema=SCHEMA),
        mode="append",
        configuration={"delta.enableChangeDataFeed": "true"},
    )


def set_amount(table: Path, key: int, amount: str) -> None:
    DeltaTable(str(table)).update(updates={"amount": amount}, predicate=f"order_id = {key}")


def audit(subscriber: Path) -> list[tuple[Any, ...]]:
    """Return (order_id, was, became) of the audit table."""
    found = DeltaTable(str(subscriber / "orders_audit")).to_pyarrow_table().to_pylist()
    return sorted((row["order_id"], str(row["was"]), str(row["became"])) for row in found)


@pytest.mark.slow
def test_an_audit_row_for_each_command_and_softened_deletes(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, north = replica_dir / "hq" / "orders", replica_dir / "north"
    add(orders, (1, "N", "10.00", "a"), (2, "N", "20.00", "b"), (3, "S", "30.00", "c"))
    file = publication_file(replica_dir, [AUDITED])
    run("apply", "-f", file)
    set_amount(orders, 1, "11")
    set_amount(orders, 1, "12")
    DeltaTable(str(orders)).delete("order_id = 2")
    add(orders, (4, "S", "40.00", "d"))
    for procedure in ("audit_update", "soften_delete"):
        monkeypatch.delitem(_registered, procedure, raising=False)
    refused = run("sync", "-f", file, code=2)
    assert "calls the procedure 'audit_update'" in refused["error"]["message"]
    # A death between the MERGE and what the procedures write, then after a part of that.
    for point in ("distribute.after_article", "distribute.after_write"):
        dies(point, "sync", "-f", file, *MODULE)
    run("sync", "-f", file, *MODULE)
    assert audit(north) == [(1, "10.00", "11.00"), (1, "11.00", "12.00")]
    assert [(row[0], str(row[2]), row[3]) for row in rows(north / "orders")] == [
        (1, "12.00", "a"),
        (2, "20.00", "deleted"),
        (3, "30.00", "c"),
        (4, "40.00", "d"),
    ]
    assert run("sync", "-f", file, *MODULE)["sessions"][0]["status"] == "nothing_to_do"


@pytest.mark.slow
def test_procedures_keep_the_order_of_commands_and_go_stale(spark: SparkSession, replica_dir: Path) -> None:
    orders, north = replica_dir / "hq" / "orders", replica_dir / "north"
    add(orders, (1, "N", "10.00", "a"), (3, "S", "30.00", "c"), (4, "S", "40.00", "d"))
    file = publication_file(replica_dir, [AUDITED])
    run("apply", "-f", file)
    # The operation of a row changes: the batch ends there, and each call has commands of one operation for a row.
    set_amount(orders, 4, "41")
    DeltaTable(str(orders)).delete("order_id = 4")
    add(orders, (5, "S", "50.00", "e"))
    set_amount(orders, 5, "51")
    set_amount(orders, 5, "52")
    spark.sql(f"update delta.`{orders}` set order_id = 6, amount = 60 where order_id = 5")
    set_amount(orders, 6, "61")
    run("sync", "-f", file, *MODULE)
    assert audit(north) == [
        (4, "40.00", "41.00"),
        (5, "50.00", "51.00"),
        (5, "51.00", "52.00"),
        (5, "52.00", "60.00"),
        (6, "60.00", "61.00"),
    ]
    assert [(row[0], str(row[2]), row[3]) for row in rows(north / "orders")][2:] == [
        (4, "41.00", "deleted"),
        (6, "61.00", "e"),
    ]
    # A missing row is the procedure's to report, and names transaction and command.
    DeltaTable(str(north / "orders")).delete("order_id = 3")
    DeltaTable(str(orders)).delete("order_id = 3")
    stopped = run("sync", "-f", file, *MODULE, code=1)
    assert stopped["error"]["number"] == "20598"
    assert "{CALL [soften_delete] (3)}" in stopped["error"]["message"]
    (done,) = tr.Distributor(replica_dir / "hq").deliver(skip_errors=[20598], procedures=MODULE[1:])
    assert done.skipped == 1
    # After a change of columns the procedure is stale: what comes before it is applied.
    set_amount(orders, 1, "13")
    spark.sql(f"alter table delta.`{orders}` add columns (city string)")
    set_amount(orders, 1, "14")
    stale = run("sync", "-f", file, *MODULE, code=1)
    assert stale["error"]["number"] == "21076"
    assert (
        "'audit_update' was written for the columns order_id, region, amount, note"
        in stale["error"]["message"]
    )
    assert audit(north)[0] == (1, "10.00", "13.00")
    assert len(rows(north / "orders")[0]) == 4
    custom = run("transactional", "script", "-f", replica_dir / "hq", "--custom", "--operation", "update")[
        "script"
    ]
    assert '@tr.procedure("audit_update", operation="update", call="XCALL"' in custom
    assert '"note", "city"]' in custom
    assert "old_c5 string, c1 int" in custom


def _sets_transaction(call: tr.Call) -> None:
    call.spark.conf.set("spark.databricks.delta.write.txnVersion", "7")


def _twice(call: tr.Call) -> None:
    call.merge(call.commands.selectExpr("pkc1 AS order_id", "c4 AS note"), "orders", on=["order_id"])


def _raises(call: tr.Call) -> None:
    call.append(call.commands.selectExpr("c1 AS order_id"), "log")
    call.append(call.commands.select(F.raise_error(F.lit("no such rate")).alias("rate")), "rates")


def _outside(call: tr.Call) -> None:
    call.append(call.commands.select("c1"), "../elsewhere")


REFUSED: dict[str, tuple[Callable[[tr.Call], Any], str]] = {
    "a transaction of Delta": (_sets_transaction, "which belong to the agent"),
    "BEGIN": (lambda call: call.sql("BEGIN TRANSACTION"), "executes BEGIN"),
    "a write by SQL": (lambda call: call.sql("INSERT INTO t SELECT 1"), "executes INSERT"),
    "two rows of one key": (_twice, "has several rows of one key (order_id)"),
    "rows that cannot be computed": (_raises, "no such rate"),
    "a place outside of the subscriber": (_outside, "no table below"),
    "CALL does not say what changed": (lambda call: call.has_changed("note"), "CALL does not say"),
    "a table that is not there": (
        lambda call: call.delete(call.commands.selectExpr("pkc1 AS id"), "nowhere", on=["id"]),
        "a table that is not there",
    ),
    "what a procedure raises": (lambda call: 1 // 0, "division"),
}


@pytest.mark.slow
def test_what_a_procedure_may_not_do_leaves_nothing(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, north = replica_dir / "hq" / "orders", replica_dir / "north"
    add(orders, (1, "N", "10.00", "a"))
    file = publication_file(replica_dir, [{"name": "orders", "key": ["order_id"], "upd_cmd": "CALL refused"}])
    run("apply", "-f", file)
    set_amount(orders, 1, "11")
    set_amount(orders, 1, "12")
    run("capture", "-f", replica_dir / "hq")
    before = rows(north / "orders")
    for name, (body, said) in REFUSED.items():
        monkeypatch.delitem(_registered, "refused", raising=False)
        tr.procedure("refused", operation="update", call="CALL")(body)
        with pytest.raises(Exception, match=re.escape(said)):
            tr.Distributor(replica_dir / "hq").deliver()
        assert rows(north / "orders") == before, name
        assert not (north / "log").exists(), name
        assert not (replica_dir / "elsewhere").exists(), name
    seen: list[Any] = []
    monkeypatch.delitem(_registered, "refused", raising=False)

    def reads(call: tr.Call) -> None:
        seen.extend(row["c3"] for row in call.net().collect())
        call.default()

    tr.procedure("refused", operation="update", call="CALL")(reads)
    (done,) = tr.Distributor(replica_dir / "hq").deliver()
    assert (done.commands, done.updates) == (2, 1)
    assert seen == [Decimal("12.00")]
    assert rows(north / "orders")[0][2] == Decimal("12.00")
