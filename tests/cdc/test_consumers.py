"""Tables that `cdc load` keeps: changed, restored and narrow targets, keys that came twice, quiet and paused sources."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from mergerepl import cdc, failpoints
from mergerepl.cdc import merge_few
from mergerepl.cli.main import main
from mergerepl.failpoints import FailpointError
from mergerepl.logreader import scan
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.cdc import AppliedChanges
from mergerepl.systables.cdc import CONSUMERS_FOLDER
from tests.cdc.databases import add, delete, enabled, new_table, rows_at, update

pytestmark = pytest.mark.spark

ORDERS = "dbo_orders"


class Load:
    """A captured table and a target that a consumer keeps."""

    def __init__(self, root: Path, rows: dict[int, tuple[str, int]]) -> None:
        self.root, self.database = root, enabled(root, {"orders": rows})
        self.orders, self.target = root / "orders", root / "lake" / "orders"

    def apply(self, **options: object) -> AppliedChanges:
        return cdc.Database(self.root).instance(ORDERS).load(self.target, consumer="lake", **options)  # type: ignore[arg-type]

    def captured(self) -> AppliedChanges:
        cdc.Database(self.root).capture()
        return self.apply()

    def is_equal(self) -> bool:
        return rows_at(self.target) == rows_at(self.orders)


@pytest.fixture
def load(spark: SparkSession, replica_dir: Path) -> Load:
    found = Load(replica_dir, {1: ("a", 1), 2: ("b", 2)})
    found.apply()
    return found


def _overwritten(table: Path) -> None:
    write_deltalake(str(table), DeltaTable(str(table)).to_pyarrow_table().slice(0, 1), mode="overwrite")


REPLACED: dict[str, Callable[[Path], object]] = {
    "RESTORE": lambda table: DeltaTable(str(table)).restore(1),
    r"replaced rows \(WRITE\)": _overwritten,
}


@pytest.mark.slow
def test_a_target_whose_rows_were_replaced_is_refused_and_goes_on_by_the_named_command(load: Load) -> None:
    add(load.orders, {3: ("c", 3)})
    load.captured()
    assert load.is_equal()
    for text, change in REPLACED.items():
        change(load.target)
        with pytest.raises(cdc.CdcError, match=text) as refused:
            load.apply()
        add(load.orders, {len(rows_at(load.orders)) + 1: ("d", 4)})
        cdc.Database(load.root).capture()
        with pytest.raises(cdc.CdcError, match=text):
            load.apply()
        command = refused.value.message.partition("a snapshot: `mergerepl ")[2].partition("`")[0]
        done = CliRunner().invoke(main, [*command.split(), "--yes"])
        assert (done.exit_code, "is filled with" in done.output) == (0, True), done.output
        assert load.is_equal()
        update(load.orders, "id = 2", qty=str(len(text)))
        assert load.captured().upserted == 1
        assert load.is_equal()


@pytest.mark.slow
def test_a_source_that_began_again_is_refused_until_a_restart(load: Load) -> None:
    # At the very next LSN, as after a cleanup of a quiet table: what was written before was never captured.
    cdc.Database(load.root).disable("orders")
    update(load.orders, "id = 1", qty="9")
    cdc.Database(load.root).enable("orders", key="id")
    with pytest.raises(cdc.CdcUsageError, match="for another source: another table, or this one before"):
        load.apply()
    assert load.apply(restart=True).is_snapshot
    assert load.is_equal()
    load.orders.rename(load.root / "away")
    new_table(load.root, "orders", {1: ("new", 1)})
    assert cdc.Database(load.root).capture().paused
    assert load.apply().paused
    cdc.Database(load.root).resume(ORDERS, restart=True)
    with pytest.raises(cdc.LsnRangeError, match="before the instance began again") as refused:
        load.apply()
    assert refused.value.reason == "below_low"
    assert load.apply(restart=True).is_snapshot
    assert load.is_equal()
    # As after a restore of the database, which has fewer cycles then.
    (position,) = (load.target / CONSUMERS_FOLDER).iterdir()
    stated = json.loads(position.read_text())
    cycle = Lsn.parse(stated["from_lsn"]).scan_cycle
    position.write_text(json.dumps({**stated, "from_lsn": str(Lsn.of(cycle + 9, 1))}))
    with pytest.raises(cdc.CdcError, match="the database was restored from an older copy"):
        load.apply()


@pytest.mark.slow
def test_commits_without_changes_pass_and_foreign_changes_of_other_rows_stay(
    spark: SparkSession, load: Load
) -> None:
    spark.sql(f"alter table delta.`{load.target}` set tblproperties ('a' = 'b')")
    DeltaTable(str(load.target)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert (load.apply().foreign_commits, (load.target / CONSUMERS_FOLDER).is_dir()) == (0, True)
    # A row that another writer inserts, and the source inserts as well: the source's is right.
    add(load.target, {7: ("theirs", 7), 8: ("ours", 0)})
    delete(load.target, "id = 1")
    add(load.orders, {8: ("ours", 8)})
    update(load.orders, "id = 1", qty="11")
    done = load.captured()
    assert (done.upserted, done.foreign_commits) == (2, 2)
    assert rows_at(load.target) == {**rows_at(load.orders), 7: ("theirs", 7)}
    assert load.apply().foreign_commits == 0
    # A key twice, found also when it changes later on.
    add(load.target, {2: ("theirs", 2)})
    assert load.apply().foreign_commits == 1
    update(load.orders, "id = 2", qty="22")
    with pytest.raises(cdc.CdcError, match=r"more than one row of a key \(id\) that changed: id=2\. Others"):
        load.captured()
    delete(load.target, "note = 'theirs' and id = 2")
    assert load.apply().upserted == 1
    assert rows_at(load.target) == {**rows_at(load.orders), 7: ("theirs", 7)}


@pytest.mark.slow
def test_a_commit_that_another_writer_won_is_made_again_beside_its_rows(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beaten(*_: object, **__: object) -> None:
        add(load.target, {7: ("theirs", 7)})
        raise CommitFailedError("another writer was first")

    monkeypatch.setattr(merge_few, "merge_by_delta_rs", beaten)
    add(load.orders, {8: ("ours", 8)})
    assert load.captured().upserted == 1
    assert rows_at(load.target) == {**rows_at(load.orders), 7: ("theirs", 7)}
    assert load.apply().foreign_commits == 0


@pytest.mark.slow
def test_a_position_outlives_transaction_marks(
    load: Load, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = "'delta.setTransactionRetentionDuration' = 'interval 0 seconds'"
    spark.sql(f"alter table delta.`{load.target}` set tblproperties ({kept})")
    add(load.orders, {3: ("c", 3)})
    cdc.Database(load.root).capture()
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "cdc.after_applied=raise")
    with pytest.raises(FailpointError):
        load.apply()
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    DeltaTable(str(load.target)).create_checkpoint()
    assert DeltaTable(str(load.target)).transaction_version("any") is None
    assert load.is_equal()
    version = DeltaTable(str(load.target)).version()
    assert load.apply().to_lsn is None
    update(load.orders, "id = 3", qty="4")
    assert load.captured().upserted == 1
    assert (load.is_equal(), DeltaTable(str(load.target)).version()) == (True, version + 1)


def _twice(load: Load) -> None:
    add(load.orders, {5: ("one", 5), 6: ("x", 6)})
    add(load.orders, {5: ("two", 5)})


@pytest.mark.slow
def test_a_key_that_came_twice_goes_on_once_the_source_is_correct(load: Load) -> None:
    _twice(load)
    with pytest.raises(cdc.CdcError, match=r"at once: id=5\. It still has") as refused:
        load.captured()
    assert refused.value.number == 22838
    with pytest.raises(cdc.CdcError, match="at once: id=5"):
        load.apply(restart=True)
    assert 5 not in rows_at(load.target)
    delete(load.orders, "id = 5 and note = 'one'")
    assert load.captured().upserted == 2
    assert load.is_equal()
    # A row more of a key that the target has.
    add(load.orders, {5: ("three", 5)})
    with pytest.raises(cdc.CdcError, match="at once: id=5"):
        load.captured()
    delete(load.orders, "id = 5 and note = 'two'")
    load.captured()
    assert load.is_equal()
    # All of it at once, and all rows gone in the end.
    add(load.orders, {9: ("one", 9)})
    add(load.orders, {9: ("two", 9)})
    delete(load.orders, "id = 9 or id = 5")
    load.captured()
    assert load.is_equal()


@pytest.mark.slow
def test_a_key_that_takes_the_place_of_another_keeps_its_values(
    spark: SparkSession, replica_dir: Path
) -> None:
    load = Load(replica_dir, {1: ("one", 1), 2: ("two", 2)})
    load.apply()
    update(load.orders, "id = 2", id="1")
    delete(load.orders, "note = 'one'")
    low = cdc.Lsn(cdc.Database(load.root).max_lsn() or b"").next()
    load.captured()
    assert rows_at(load.target) == rows_at(load.orders) == {1: ("two", 2)}
    net = (
        cdc.Database(load.root).instance(ORDERS).net_changes(low, cdc.Database(load.root).max_lsn()).collect()
    )
    assert sorted((row["__$operation"], row["id"], row["note"]) for row in net) == [
        (1, 2, "two"),
        (4, 1, "two"),
    ]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Let minutes pass, after which a scan writes that nothing happened."""
    now_ns, passed = scan.file_system_now_ns, [0]
    monkeypatch.setattr(scan, "file_system_now_ns", lambda root: now_ns(root) + passed[0] * 60_000_000_000)

    def waited(root: Path, minutes: int) -> None:
        passed[0] += minutes
        cdc.Database(root).capture()

    return waited


@pytest.mark.slow
def test_the_cursor_of_a_quiet_table_keeps_up_with_the_shortest_retention(
    load: Load, wait: Callable[[Path, int], None]
) -> None:
    version = DeltaTable(str(load.target)).version()
    for minutes in (6, 6, 70):
        wait(load.root, minutes)
        cdc.Database(load.root).cleanup(retention=1)
        assert load.apply().upserted == 0
    assert DeltaTable(str(load.target)).version() == version
    # A consumer that was away for longer than the retention, and what goes on.
    wait(load.root, 6)
    wait(load.root, 6)
    cdc.Database(load.root).cleanup(retention=1)
    with pytest.raises(cdc.LsnRangeError, match="--restart`; or name a new or empty table") as refused:
        load.apply()
    assert refused.value.reason == "below_low"
    assert load.apply(restart=True).is_snapshot
    assert load.apply().to_lsn is None


@pytest.mark.slow
def test_a_paused_source_is_named(load: Load, wait: Callable[[Path, int], None]) -> None:
    runner, arguments = (
        CliRunner(),
        ["cdc", "load", ORDERS, "-f", str(load.root), "--consumer", "lake", "--into", str(load.target)],
    )
    add(load.orders, {3: ("c", 3)})
    assert "Not captured yet: 1 commit" in runner.invoke(main, arguments).output
    load.orders.rename(load.root / "away")
    cdc.Database(load.root).capture()
    done = runner.invoke(main, arguments)
    assert done.exit_code == 1
    assert "nothing is new" in done.output
    assert "Its source is paused" in done.output
    assert "no Delta table at its path" in done.output
    # A cleanup keeps the end of a paused instance: its consumers go on from there.
    wait(load.root, 60)
    cdc.Database(load.root).cleanup(retention=1)
    assert load.apply().paused is not None
    shutil.move(load.root / "away", load.orders)
    cdc.Database(load.root).resume(ORDERS)
    assert (load.captured().paused, load.is_equal()) == (None, True)


@pytest.mark.slow
def test_a_target_that_cannot_hold_every_value_is_widened_or_refused(
    spark: SparkSession, replica_dir: Path
) -> None:
    root, orders, target = replica_dir, replica_dir / "orders", replica_dir / "lake" / "orders"
    columns = "id bigint, i int, d decimal(5,2), f float, s struct<x: int>, t date"
    properties = "'delta.enableChangeDataFeed' = 'true', 'delta.enableTypeWidening' = 'true'"
    spark.sql(f"create table delta.`{orders}` ({columns}) using delta tblproperties ({properties})")
    spark.sql(
        f"insert into delta.`{orders}` values (1, 1, 1.25, 1.5, named_struct('x', 1), date'2026-01-01')"
    )
    cdc.Database(root).enable("orders", key="id")
    cdc.Database(root).instance("dbo_orders").load(target, consumer="lake")
    for column, type_ in (("i", "double"), ("d", "decimal(9,4)"), ("f", "double")):
        spark.sql(f"alter table delta.`{orders}` alter column {column} type {type_}")
    spark.sql(
        f"insert into delta.`{orders}` values (2, 1.75, 1.2345, 1e300, named_struct('x', 2), date'2026-01-02')"
    )
    assert cdc.Database(root).capture().paused == {}
    before = DeltaTable(str(target)).version()
    with pytest.raises(
        cdc.CdcUsageError, match="column 'i' is int, and the captured one is double"
    ) as refused:
        cdc.Database(root).instance("dbo_orders").load(target, consumer="lake")
    assert DeltaTable(str(target)).version() == before
    assert "column 'd' is decimal(5,2), and the captured one is decimal(9,4)" in refused.value.message
    statements = refused.value.message.partition("Run `")[2].partition("` in Spark")[0].split("` and `")
    assert len(statements) == 4
    for statement in statements:
        spark.sql(statement)
    cdc.Database(root).instance("dbo_orders").load(target, consumer="lake")
    assert (
        spark.read.format("delta")
        .load(str(target))
        .exceptAll(spark.read.format("delta").load(str(orders)))
        .isEmpty()
    )
    # Widening is on: it follows by itself. A field inside of a struct cannot.
    spark.sql(
        f"insert into delta.`{orders}` values (3, 1.75, 1.2345, 1e300, named_struct('x', 3), date'2026-01-02')"
    )
    cdc.Database(root).capture()
    assert cdc.Database(root).instance("dbo_orders").load(target, consumer="lake").upserted == 1
    narrow = root / "lake" / "narrow"
    spark.sql(
        f"create table delta.`{narrow}` (id bigint not null, i double, d decimal(9,4), f double, s struct<x: smallint>, "
        "t date not null, note string) using delta"
    )
    with pytest.raises(cdc.CdcUsageError, match=r"column 's' is struct<x:smallint>.*column 't' is NOT NULL"):
        cdc.Database(root).instance("dbo_orders").load(narrow, consumer="other")
    spark.sql(f"alter table delta.`{narrow}` alter column t drop not null")
    with pytest.raises(cdc.CdcUsageError, match="column 's' is struct<x:smallint>"):
        cdc.Database(root).instance("dbo_orders").load(narrow, consumer="other", restart=True)
    wide = root / "lake" / "wide"
    spark.sql(
        f"create table delta.`{wide}` (id bigint, i double, d decimal(12,4), f double, s struct<x: bigint>, t date, note "
        "string) using delta"
    )
    for restart in (False, True):
        assert (
            cdc.Database(root).instance("dbo_orders").load(wide, consumer="other", restart=restart).upserted
            == 3
        )
