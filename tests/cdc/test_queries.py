"""What consumers read: windows, their ends, times, snapshots, rows that a cleanup removes, changes applied once."""

import json
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from mergerepl import cdc, failpoints
from mergerepl.cdc import tsql
from mergerepl.cdc.tables import CdcTables
from mergerepl.cli.main import main
from mergerepl.failpoints import FailpointError
from mergerepl.logreader.lsn import ZERO
from mergerepl.systables.cdc import LSN_TIME_MAPPING
from tests.cdc.databases import (
    add,
    arrow,
    change_table,
    delete,
    enabled,
    entries,
    lsns,
    merge,
    new_table,
    replayed,
    update,
)
from tests.faults.deaths import dies

pytestmark = pytest.mark.spark

ORDERS, LINES, TWINS = "dbo_orders", "dbo_lines", "dbo_twins"
MASK = "__$update_mask"
IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"


def instance(root: Path, name: str = ORDERS) -> cdc.Instance:
    return cdc.Database(root).instance(name)


@dataclass
class Shop:
    """A database with three scan cycles: orders (a key), lines (none, two equal rows), twins (a key that comes twice)."""

    root: Path
    database: CdcTables
    versions: dict[int, dict[int, tuple[Any, ...]]]
    """Rows of orders after each version."""


def rows_of(table: Path, version: int | None = None) -> dict[int, tuple[Any, ...]]:
    listed = DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist()
    return {row["id"]: (row["note"], row["qty"]) for row in listed}


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    root = tmp_path_factory.mktemp("shop")
    database = enabled(root, {"orders": {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}})
    for name, rows, index in (("lines", {7: ("x", 1)}, None), ("twins", {1: ("a", 1)}, "id")):
        new_table(root, name, rows)
        cdc.Database(root).enable(name, key=index)
    orders = root / "orders"
    add(orders, {4: ("d", 4)})
    update(orders, "id = 2", qty="20")
    add(root / "lines", {7: ("x", 1)})
    add(root / "twins", {1: ("twin", 1)})
    cdc.Database(root).capture()
    delete(orders, "id = 1")
    merge(orders, {2: ("B", 20), 3: (None, 3), 5: ("e", 5)})
    delete(root / "lines")
    cdc.Database(root).capture()
    merge(orders, {1: ("again", 1), 5: (None, 5), 6: ("f", 6)})
    delete(orders, "id = 6")
    cdc.Database(root).capture()
    versions = {version: rows_of(orders, version) for version in range(DeltaTable(str(orders)).version() + 1)}
    return Shop(root, database, versions)


def applied(rows: list[Any], before: dict[int, tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    """Apply net changes with merge to rows."""
    after = dict(before)
    for row in rows:
        key, values = row["id"], (row["note"], row["qty"])
        if row["__$operation"] == 1:
            assert after.pop(key) == values
        else:
            after[key] = values
    return after


def check_envelopes(envelopes: DataFrame, seen: list[tuple[Any, ...]]) -> None:
    """Check that envelopes say what rows of all changes do, `all update old`."""
    assert envelopes.columns == ["before", "after", "op", "source", "ts_ms"]
    payloads = [json.loads(row[0]) for row in envelopes.selectExpr("to_json(struct(*))").collect()]
    rows = {(row[0], row[1], row[2]): dict(zip(("id", "note", "qty"), row[4:], strict=True)) for row in seen}
    expected = []
    for (lsn, seqval, operation), row in rows.items():
        if operation == 3:
            continue
        before = {1: row, 2: None, 4: rows.get((lsn, seqval, 3))}[operation]
        after = None if operation == 1 else row
        sides = {name: side for name, side in (("before", before), ("after", after)) if side is not None}
        text = ":".join(part.hex() for part in (lsn[:4], lsn[4:8], lsn[8:]))
        expected.append((text, {1: "d", 2: "c", 4: "u"}[operation], sides))
    found = [
        (each["source"]["commit_lsn"], each["op"], {k: each[k] for k in ("before", "after") if k in each})
        for each in payloads
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {(each["source"]["schema"], each["source"]["table"]) for each in payloads} == {("dbo", "orders")}
    assert all(each["ts_ms"] == each["source"]["ts_ms"] > 0 for each in payloads)


def test_all_and_net_changes_lead_from_one_snapshot_to_another(shop: Shop, spark: SparkSession) -> None:
    root, high = shop.root, cdc.Database(shop.root).max_lsn()
    everything = change_table(spark, shop.database, ORDERS).collect()
    low = instance(root).min_lsn()
    asked = [lsn for lsn in lsns(shop.database) if lsn >= low]
    at = {lsn: shop.versions[instance(root).version_of(lsn)] for lsn in asked}
    # Every window, from the rows that all changes are; one window is asked for.
    for first in asked:
        for last in asked:
            inside = [row for row in everything if first < bytes(row[0]) <= last]
            if first < last:
                assert replayed(inside, at[first]) == at[last]
    second = asked[2]
    window = (root, ORDERS, cdc.Lsn(second).next(), high)
    old = tsql.fn_cdc_get_all_changes(*window, "all update old")
    assert old.columns == ["__$start_lsn", "__$seqval", "__$operation", MASK, "id", "note", "qty"]
    seen = [tuple(row) for row in old.collect()]
    expected = [(row[0], row[2], row[3], row[4], *row[5:8]) for row in everything if row[0] > second]
    assert seen == expected
    net = tsql.fn_cdc_get_net_changes(*window, "all with merge")
    assert net.columns == ["__$start_lsn", "__$operation", MASK, "id", "note", "qty"]
    assert applied(net.collect(), at[second]) == at[high] == shop.versions[max(shop.versions)]
    masked = tsql.fn_cdc_get_net_changes(*window, "all with mask").collect()
    # Deleted, and inserted again: an update of all columns. 5 and 6 came and went inside the window: no row.
    assert {row["id"]: (row["__$operation"], row[MASK]) for row in masked} == {
        1: (4, b"\x07"),
        2: (4, b"\x06"),
        3: (1, None),
        4: (2, None),
    }
    # One scan cycle: one file.
    one = instance(root).changes(high, high)
    assert len(one.inputFiles()) == 1
    assert [(row["__$operation"], row["id"]) for row in one.collect()] == [(1, 6)]


@pytest.mark.slow
def test_changes_are_the_same_in_every_form(shop: Shop, spark: SparkSession) -> None:
    root, ends = shop.root, (instance(shop.root).min_lsn(), cdc.Database(shop.root).max_lsn())
    old = tsql.fn_cdc_get_all_changes(root, ORDERS, *ends, "all update old")
    seen = [tuple(row) for row in old.collect()]
    check_envelopes(instance(root).to_debezium(old), seen)
    new = instance(root).changes(*ends, ordered=False).collect()
    assert sorted(map(tuple, new)) == sorted(row for row in seen if row[2] != 3)
    masked = tsql.fn_cdc_get_net_changes(root, ORDERS, *ends, "all with mask").collect()
    # The functions of SQL, in any order.
    cdc.Database(root).register_functions(spark)
    terms = ", ".join(f"X'{bytes(each).hex()}'" for each in ends)
    for text, here in (
        (f"all_changes_{ORDERS}({terms}, 'all update old')", seen),
        (f"net_changes_{ORDERS}({terms}, 'all with mask')", map(tuple, masked)),
    ):
        found = spark.sql(f"SELECT * FROM fn_cdc_get_{text}").collect()
        assert sorted(map(tuple, found), key=str) == sorted(here, key=str), text


def test_windows_outside_the_interval_are_refused(shop: Shop) -> None:
    root = shop.root
    low, high = instance(root).min_lsn(), cdc.Database(root).max_lsn()
    # The reasons, case by case: tests/unit/test_cdc_intervals.py.
    for first, last, reason in ((ZERO, high, "below_low"), (low, None, "null")):
        for ask in (tsql.fn_cdc_get_all_changes, tsql.fn_cdc_get_net_changes):
            with pytest.raises(cdc.LsnRangeError) as refused:
                ask(root, ORDERS, first, last)
            found = refused.value
            assert (found.number, found.alternate_number, found.reason) == (313, 208, reason)
            assert (found.low, found.high) == (low, high)
    with pytest.raises(cdc.LsnRangeError) as refused:
        instance(root, LINES).net_changes(low, high)
    assert refused.value.reason == "no_net_changes"
    # Both instances of a table have one key: a second one cannot bring another.
    assert "disable the instances of its table, then enable one with a key" in refused.value.message
    for error, call in (
        (22985, lambda: instance(root, "nobody").changes(low, high)),
        (22990, lambda: instance(root).changes(low, high, "all with mask")),
        (22990, lambda: instance(root).net_changes(low, high, "all update old")),
        (22964, lambda: instance(root).changes("0x12", high)),
        (22930, lambda: instance(root).has_changed("nothing", b"\x01")),
    ):
        with pytest.raises(cdc.CdcUsageError) as wrong:
            call()
        assert wrong.value.number == error
    assert tsql.fn_cdc_get_min_lsn(root, "nobody") == ZERO
    assert instance(root).ordinal("QTY") == 3
    assert tsql.fn_cdc_get_column_ordinal(root, ORDERS, "nothing") is None
    assert instance(root).has_changed("qty", b"\x04")
    assert not instance(root).has_changed("note", b"\x04")


def test_times_versions_and_lsns(shop: Shop) -> None:
    root, logged = shop.root, entries(shop.database)
    for entry in logged:
        time = entry.tran_end_time
        assert cdc.Database(root).time_of(entry.start_lsn) == time
        same = [each.start_lsn for each in logged if each.tran_end_time == time]
        for operator, expected in (
            ("largest less than", max([e.start_lsn for e in logged if e.tran_end_time < time], default=None)),
            ("largest less than or equal", max(same)),
            (
                "smallest greater than",
                min([e.start_lsn for e in logged if e.tran_end_time > time], default=None),
            ),
            ("smallest greater than or equal", min(same)),
        ):
            assert cdc.Database(root).lsn_at(time, operator) == expected
    later = logged[-1].tran_end_time + timedelta(days=1)
    assert cdc.Database(root).lsn_at(later, "smallest greater than") is None
    assert cdc.Database(root).lsn_at(later.replace(tzinfo=None), "Largest  Less Than") is not None
    for zone in (None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
        earliest, latest = (end.replace(tzinfo=zone) for end in (datetime.min, datetime.max))
        assert cdc.Database(root).lsn_at(earliest, "smallest greater than") == logged[0].start_lsn
        assert cdc.Database(root).lsn_at(latest, "largest less than or equal") == logged[-1].start_lsn
        assert cdc.Database(root).lsn_at(earliest, "largest less than") is None
        assert cdc.Database(root).lsn_at(latest, "smallest greater than or equal") is None
    with pytest.raises(cdc.CdcUsageError):
        cdc.Database(root).lsn_at(later, "less than")
    assert cdc.Database(root).time_of(cdc.Lsn(cdc.Database(root).max_lsn()).next()) is None
    for entry in logged:
        version = (
            instance(root).version_of(entry.start_lsn) if entry.start_lsn >= logged[0].start_lsn else None
        )
        assert cdc.Database(root).instance(ORDERS).version_of(instance(root).lsn_of(version)) == version
    assert instance(root).lsn_of(99) is None


@pytest.mark.slow
def test_snapshots_are_of_their_lsn(shop: Shop) -> None:
    root, low = shop.root, cdc.Database(shop.root).instance(ORDERS).min_lsn()
    for lsn in (low, lsns(shop.database)[-2], None):
        rows, at = instance(root).snapshot(lsn)
        assert at == (lsn or cdc.Database(root).max_lsn())
        found = {row["id"]: (row["note"], row["qty"]) for row in rows.collect()}
        assert found == shop.versions[instance(root).version_of(at)]
    with pytest.raises(cdc.LsnRangeError):
        instance(root).snapshot(cdc.Lsn(low).previous())


@pytest.mark.slow
def test_equal_rows_and_keys_that_come_twice(shop: Shop) -> None:
    root, high = shop.root, cdc.Database(shop.root).max_lsn()
    lines = cdc.Database(root).instance(LINES).changes(instance(root, LINES).min_lsn(), high).collect()
    assert [(row["__$operation"], row["id"], row["note"]) for row in lines] == [
        *((2, 7, "x"), (1, 7, "x"), (1, 7, "x"))
    ]
    assert len({bytes(row["__$seqval"]) for row in lines}) == 3
    twins = (root, TWINS, instance(root, TWINS).min_lsn(), high)
    assert tsql.fn_cdc_get_all_changes(*twins).count() == 1
    add(root / "twins", {1: ("third", 1)})
    cdc.Database(root).capture()
    twins = (*twins[:3], cdc.Database(root).max_lsn())
    assert tsql.fn_cdc_get_all_changes(*twins).count() == 2
    with pytest.raises(cdc.CdcError, match=r"more than one row of a key \(id\) at once: id=1\.") as refused:
        tsql.fn_cdc_get_net_changes(*twins)
    assert refused.value.number == 22838


def test_changes_are_applied_once(shop: Shop, replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, orders, target = shop.root, shop.root / "orders", replica_dir / "lake" / "orders"
    deaths = (("cdc.after_target_created", {}), ("cdc.after_filled", rows_of(orders)))
    # Each takes Spark's copy of the table.
    for point, rows in deaths if IS_LONG else deaths[1:]:
        with monkeypatch.context() as dying:
            dying.setattr(failpoints, "_passed", {})
            dying.setenv("MERGEREPL_FAILPOINT", f"{point}=stop")
            with pytest.raises(FailpointError):
                instance(root).load(target, consumer="lake")
        assert rows_of(target) == rows
    # Filled, and not noted.
    assert instance(root).load(target, consumer="lake").to_lsn is None
    first = instance(root).load(target, consumer="lake", restart=True)
    assert first.is_snapshot
    assert (first.to_lsn, first.upserted) == (cdc.Database(root).max_lsn(), len(rows_of(orders)))
    assert rows_of(target) == rows_of(orders)
    again = instance(root).load(target, consumer="lake")
    assert (again.to_lsn, again.upserted, again.deleted) == (None, 0, 0)
    update(orders, "id = 2", qty="21")
    delete(orders, "id = 4")
    cdc.Database(root).capture()
    add(orders, {8: ("h", 8)})
    cdc.Database(root).capture()
    with monkeypatch.context() as dying:
        dying.setattr(failpoints, "_passed", {})
        dying.setenv("MERGEREPL_FAILPOINT", "cdc.after_applied=stop")
        # Few changes need no Spark.
        dying.setattr(CdcTables, "spark", None)
        with pytest.raises(FailpointError):
            instance(root).load(target, consumer="lake")
    assert rows_of(target) == rows_of(orders)
    version = DeltaTable(str(target)).version()
    assert instance(root).load(target, consumer="lake").to_lsn is None
    assert DeltaTable(str(target)).version() == version
    # Another consumer has a cursor of its own, and does not take rows for its own.
    with pytest.raises(cdc.CdcUsageError, match="has rows and no cursor of consumer"):
        instance(root).load(target, consumer="other")
    with pytest.raises(cdc.CdcUsageError, match="scd_type=2"):
        instance(root).load(target, consumer="lake", scd_type=2)  # type: ignore[call-arg]
    # Only another table changed: the cursor moves without a commit.
    add(root / "lines", {9: ("y", 1)})
    cdc.Database(root).capture()
    assert instance(root).load(target, consumer="lake").to_lsn == cdc.Database(root).max_lsn()
    assert DeltaTable(str(target)).version() == version
    assert instance(root).load(target, consumer="lake").to_lsn is None


@pytest.mark.slow
def test_a_reader_beside_a_cleanup_has_all_rows_or_is_refused(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, database = replica_dir, enabled(replica_dir, {"orders": {}})
    orders = root / "orders"
    for key in range(1, 7):
        add(orders, {key: ("n", key), key + 10: ("m", key)})
        if key != 2:
            cdc.Database(root).capture()
    low, logged = instance(root).min_lsn(), lsns(database)
    high = logged[-1]
    assert cdc.Database(root).cleanup().low_water_mark is None
    before = instance(root).changes(low, high)
    # The second LSN of the second scan: the file is shared by what goes and what stays.
    mark = logged[3]
    done = instance(root).cleanup(mark, threshold=2)
    assert (done.rows, done.entries, done.failed) == ({ORDERS: 4}, 3, {})
    assert instance(root).min_lsn() == mark
    # Opened before: its version still has the rows.
    assert before.count() == 12
    with pytest.raises(cdc.LsnRangeError, match=r"Take `Instance.snapshot\(\)`") as refused:
        instance(root).changes(logged[2], high)
    assert refused.value.reason == "below_low"
    assert sorted(row["id"] for row in instance(root).changes(mark, high).collect()) == [
        3,
        4,
        5,
        6,
        13,
        14,
        15,
        16,
    ]
    # The snapshot just below the mark, and all that follows.
    rows, at = instance(root).snapshot(mark)
    assert (rows.count(), at) == (6, mark)
    for wrong, number in ((logged[0], 22964), (cdc.Lsn(high).next(), 22964)):
        with pytest.raises(cdc.CdcUsageError) as found:
            instance(root).cleanup(wrong)
        assert found.value.number == number
    # A cleanup that dies, or fails on a table, is made up for by the next one, whatever that is to remove itself.
    monkeypatch.setattr(failpoints, "_passed", {})
    for point, at, left in (
        ("cdc.cleanup_after_low_mark", logged[4], 3),
        ("cdc.cleanup_after_statement", logged[5], 2),
    ):
        monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
        if left == 3:
            with pytest.raises(FailpointError):
                instance(root).cleanup(at, threshold=1)
        else:
            assert point in instance(root).cleanup(at, threshold=1).failed[ORDERS]
            assert cdc.Database(root).history(failed=True)[0].error_number == 22852
        monkeypatch.delenv("MERGEREPL_FAILPOINT")
        assert instance(root).min_lsn() == at
        cdc.Database(root).cleanup()
        assert len({bytes(row[0]) for row in change_table(spark, database, ORDERS).collect()}) == left
    with dies("cdc.cleanup_after_table"):
        instance(root).cleanup(logged[5])
    # By time: all that is older than the retention, counted back from the newest LSN, which stays.
    last = entries(database)[-1]
    for hours, lsn in ((1, high.next()), (30, high.next().next())):
        time = last.tran_end_time + timedelta(hours=hours)
        database.control.append(LSN_TIME_MAPPING, [replace(last, start_lsn=lsn, tran_end_time=time)])
    with pytest.raises(cdc.CdcError, match="more than a day ahead"):
        cdc.Database(root).cleanup()
    database.control.delete(LSN_TIME_MAPPING, where=f"start_lsn = X'{lsn.hex()}'")
    assert cdc.Database(root).cleanup(retention=61).low_water_mark is None
    planned = cdc.Database(root).cleanup(retention=59, dry_run=True)
    done = cdc.Database(root).cleanup(retention=59)
    assert planned == done
    assert (done.low_water_mark, done.rows, done.entries) == (high.next(), {ORDERS: 4}, 2)
    assert lsns(database) == [high.next()]
    assert instance(root).changes(high.next(), high.next()).isEmpty()
    assert instance(root).snapshot().rows.count() == 12


@pytest.mark.slow
def test_an_old_cursor_is_out_of_range_in_another_life(spark: SparkSession, replica_dir: Path) -> None:
    root = replica_dir
    enabled(root, {"orders": {1: ("a", 1)}})
    add(root / "orders", {2: ("b", 2)})
    cdc.Database(root).capture()
    target = root / "copies" / "orders"
    instance(root).load(target, consumer="c")
    old = cdc.Database(root).max_lsn()
    cdc.Database(root).disable()
    with pytest.raises(cdc.CdcUsageError) as off:
        cdc.Database(root).max_lsn()
    assert off.value.number == 22901
    cdc.Database(root).enable("orders", key="id")
    with pytest.raises(cdc.LsnRangeError) as refused:
        instance(root).changes(cdc.Lsn(old).next(), cdc.Database(root).max_lsn())
    assert refused.value.reason == "below_low"
    with pytest.raises(cdc.CdcUsageError, match="this one before its capture was disabled") as other:
        instance(root).load(target, consumer="c")
    assert other.value.number == 22990


def test_a_second_instance_takes_over_and_an_idle_day_is_empty(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, database = replica_dir, enabled(replica_dir, {"orders": {1: ("a", 1)}})
    orders = root / "orders"
    rows = arrow({2: ("b", 2)}).append_column("extra", pa.array(["x"]))
    write_deltalake(str(orders), rows, mode="append", schema_mode="merge")
    cdc.Database(root).enable("orders", name="wide")
    rows = arrow({3: ("c", 3)}).append_column("extra", pa.array(["y"]))
    write_deltalake(str(orders), rows, mode="append")
    cdc.Database(root).capture()
    lsn, new = instance(root).switch_lsn("wide")
    assert (lsn, new) == (instance(root, "wide").min_lsn(), ("extra",))
    with pytest.raises(cdc.CdcUsageError, match="a later instance"):
        instance(root, "wide").switch_lsn(ORDERS)
    # 2 was unread when the second one began: it is in both, and a consumer that switches reads it once.
    high = cdc.Database(root).max_lsn()
    wide = instance(root, "wide").changes(lsn, high).collect()
    assert [(row["id"], row["extra"]) for row in wide] == [(2, "x"), (3, "y")]
    narrow = cdc.Database(root).instance(ORDERS).changes(instance(root).min_lsn(), cdc.Lsn(lsn).previous())
    assert narrow.isEmpty()
    both = instance(root).changes(lsn, high)
    assert ([row["id"] for row in both.collect()], both.columns[4:]) == ([2, 3], ["id", "note", "qty"])
    first = instance(root, "wide").snapshot(lsn)
    assert [tuple(row) for row in first.rows.collect()] == [(1, "a", 1, None)]
    # Nothing happened for a while: times still lead to LSNs, and the window is empty.
    monkeypatch.setattr("mergerepl.logreader.scan.IDLE", timedelta(0))
    assert cdc.Database(root).capture().transactions == 0
    dummy = entries(database)[-1]
    assert (dummy.kind, dummy.commits) == ("dummy", ())
    found = cdc.Database(root).lsn_at(cdc.Database(root).time_of(high), "smallest greater than")
    assert found == dummy.start_lsn == cdc.Database(root).max_lsn()
    assert instance(root).changes(found, found).isEmpty()
    assert instance(root).version_of(found) == cdc.Database(root).instance(ORDERS).version_of(high)


@pytest.mark.slow
def test_the_commands_of_readers(shop: Shop) -> None:
    def run(*words: object, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(main, [*map(str, words), "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.output)

    root, low = shop.root, cdc.Database(shop.root).instance(ORDERS).min_lsn()
    last = entries(shop.database)[-1].tran_end_time.isoformat()
    words = ("cdc", "changes", "--net", ORDERS, "-f", root, "--from", last, "--to", last)
    assert run(*words)["from_lsn"] == str(cdc.Database(root).max_lsn())
    refused = run("cdc", "changes", ORDERS, "-f", root, "--from", cdc.Lsn(low).previous(), code=1)["error"]
    assert (refused["error"], refused["number"], refused["reason"]) == ("LsnRangeError", "313", "below_low")
    assert refused["low"] == str(low)
    run("cdc", "changes", ORDERS, "-f", root, "--from", "0x12", code=2)
    run("cdc", "load", "nobody", "-f", root, "--consumer", "c", "--into", root / "copy", code=2)
    run("cleanup", "-f", root, "--only", "rows", code=2)
    add(root / "orders", {99: ("late", 1)})
    (kept,) = run("vacuum", "orders", "-f", root)["tables"]
    position = next(each.position for each in cdc.Database(root).status().sources if each.source == "orders")
    assert kept["read_through"] == position < DeltaTable(str(root / "orders")).version()
    run("vacuum", "nothing", "-f", root, code=2)
