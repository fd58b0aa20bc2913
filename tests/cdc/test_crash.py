"""A scan cycle that dies at any step is whole or not there, and the next one gives the same commits the same LSNs."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.errors import MergeReplError
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import read_state, save_state
from tests.cdc.databases import (
    add,
    check_replay,
    delete,
    enabled,
    entries,
    lsns,
    new_table,
    rows_seen,
    update,
)
from tests.faults.deaths import dies, killed, script
from tests.faults.ladder import points_in

pytestmark = pytest.mark.spark

NAMES = ("orders", "stock")
UNDECIDED = ("logreader.before_plan",)
DECIDED = (
    "logreader.after_plan",
    "cdc.after_change_table",
    "cdc.after_change_table:2",
    "logreader.before_gates",
    "cdc.before_gate",
    "logreader.after_gate",
    "logreader.after_positions",
    "logreader.after_plan_removed",
)
SHOWN = DECIDED[-3:]
ELSEWHERE = {
    # Where a test of its own dies: enable, disable, changed columns, pause.
    *("cdc.after_log_reader", "cdc.after_enable_db", "cdc.after_disable", "cdc.after_disable_table"),
    *("cdc.after_create", "cdc.after_change_tables"),
    *("cdc.before_columns", "cdc.after_types", "cdc.after_end_lsn"),
    # A replaced table: tests/unit/test_cdc_log.
    "logreader.after_properties",
    # A publication that goes: test_shared_log.
    "logreader.after_leave",
    # A load: test_queries.
    *("cdc.after_target_created", "cdc.after_filled", "cdc.after_applied"),
}
ALWAYS = ("cdc.after_change_table",)
"""Where every run of the tests dies; `--long` dies everywhere."""


def test_the_ladder_names_every_failpoint() -> None:
    named = {name.partition(":")[0] for name in (*DECIDED, *UNDECIDED)} | ELSEWHERE
    assert {name for name in points_in("cdc", "logreader") if "cleanup" not in name} == named


class Two:
    """Two captured tables that every round changes alike."""

    def __init__(self, root: Path) -> None:
        rows = {key: ("old", key) for key in range(1, 9)}
        self.database = enabled(root, dict.fromkeys(NAMES, rows))
        self.root, self.next = root, 100

    def change(self) -> None:
        """Insert a row, update one and delete one, in each table."""
        self.next += 1
        for name in NAMES:
            table = self.root / name
            add(table, {self.next: ("new", 0)})
            update(table, f"id = {self.next}", note=f"'n{self.next}'")
            delete(table, f"id = {self.next - 1} and note <> 'old'")

    def seen(self) -> tuple[int, ...]:
        """How many rows readers see of each table."""
        return tuple(len(rows_seen(self.database, f"dbo_{name}")) for name in NAMES)


@pytest.fixture(scope="module")
def two(spark: SparkSession, worker_folder: Path) -> Two:
    folder = worker_folder / "cdc-two"
    folder.mkdir()
    two = Two(folder)
    two.change()
    cdc.Database(folder).capture()
    return two


@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.slow) for each in (*UNDECIDED, *DECIDED)],
)
def test_a_death_at_any_step_is_made_up_for(two: Two, point: str) -> None:
    before, lsns_before = two.seen(), lsns(two.database)
    two.change()
    with dies(point):
        cdc.Database(two.root).capture()
    plan = redo_log(two.root).pending()
    assert (plan is not None) == (point in DECIDED and point != "logreader.after_plan_removed")
    planned = [plan.lsn(entry) for entry in plan.entries] if plan else []
    if point not in SHOWN:
        assert (two.seen(), lsns(two.database)) == (before, lsns_before)
    if plan is not None:
        # It dies once more while it is finished.
        with dies("logreader.before_gates" if point not in SHOWN else "logreader.after_positions"):
            cdc.Database(two.root).capture()
    cdc.Database(two.root).capture()
    assert cdc.Database(two.root).capture().cycles == 0
    check_replay(two.database)
    new = lsns(two.database)[len(lsns_before) :]
    assert len(new) == len(set(new)) == 6
    if planned:
        assert new == planned
    assert sorted(set(new) - set(lsns_before)) == new > lsns_before[-1:]
    numbers = [[row[0] for row in rows_seen(two.database, f"dbo_{name}") if row[0] in new] for name in NAMES]
    # An insert, two rows of the update, a delete.
    assert [len(each) for each in numbers] == [4, 4]


def test_a_plan_that_was_removed_leaves_nothing(two: Two) -> None:
    before, lsns_before = two.seen(), lsns(two.database)
    two.change()
    with dies("cdc.after_change_table:2"):
        cdc.Database(two.root).capture()
    redo_log(two.root).finish()
    cdc.Database(two.root).capture()
    check_replay(two.database)
    assert [after - rows for after, rows in zip(two.seen(), before, strict=True)] == [4, 4]
    new = lsns(two.database)[len(lsns_before) :]
    # Another number than the cycle that died.
    assert {lsn.scan_cycle for lsn in new} == {lsns_before[-1].scan_cycle + 2}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("logreader.before_plan", marks=pytest.mark.slow),
        "cdc.after_create",
        pytest.param("cdc.after_change_tables", marks=pytest.mark.slow),
    ],
)
def test_an_instance_begins_or_it_does_not(two: Two, point: str) -> None:
    two.change()
    with dies(point):
        cdc.Database(two.root).enable("orders", name="other")
    cdc.Database(two.root).capture()
    names = [each.capture_instance for each in cdc.Database(two.root).instances()]
    assert ("other" in names) == (point != "logreader.before_plan")
    check_replay(two.database)
    if "other" in names:
        with dies("cdc.after_disable_table"):
            cdc.Database(two.root).disable("orders", name="other")
        assert "other" not in [i.capture_instance for i in cdc.Database(two.root).instances()]
        with pytest.raises(cdc.CdcUsageError, match="no capture instance"):
            cdc.Database(two.root).disable("orders", name="other")
        assert not (two.root / "_cdc" / "other_CT").exists()


def test_a_database_is_enabled_or_it_is_not(replica_dir: Path) -> None:
    new_table(replica_dir, "orders", {1: ("a", 1)})
    for point in ("cdc.after_log_reader", "cdc.after_enable_db"):
        with dies(point):
            cdc.Database(replica_dir).enable("orders")
        cdc.Database(replica_dir).enable("orders")
        assert cdc.Database(replica_dir).is_enabled()
        epoch = cdc.Database(replica_dir).status().epoch
        with dies("cdc.after_disable"):
            cdc.Database(replica_dir).disable()
        assert not cdc.Database(replica_dir).is_enabled()
        with pytest.raises(cdc.CdcUsageError, match="not enabled"):
            cdc.Database(replica_dir).capture()
        assert cdc.Database(replica_dir).disable(dry_run=True) == ()
        cdc.Database(replica_dir).disable()
        assert not (replica_dir / "_cdc").exists()
        with pytest.raises(cdc.CdcUsageError, match="not enabled"):
            cdc.Database(replica_dir).disable(dry_run=True)
    cdc.Database(replica_dir).enable("orders")
    # No LSN is given out twice.
    assert cdc.Database(replica_dir).status().epoch > epoch


CAPTURE = "import sys; from mergerepl import cdc; cdc.Database(sys.argv[1]).capture()"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_between_two_change_tables(two: Two) -> None:
    before, lsns_before = two.seen(), lsns(two.database)
    two.change()
    killed(script(CAPTURE, two.root), "cdc.after_change_table")
    assert two.seen() == before
    assert redo_log(two.root).is_pending
    cdc.Database(two.root).capture()
    check_replay(two.database)
    assert len(lsns(two.database)) == len(lsns_before) + 6


def test_another_scan_holds_the_log(two: Two) -> None:
    with two.database.held("cdc capture"), pytest.raises(cdc.ScanInProgressError) as caught:
        cdc.Database(two.root).capture()
    assert (caught.value.number, caught.value.exit_code) == (22903, 3)


def test_bookkeeping_of_two_moments_is_refused(two: Two) -> None:
    state = two.database.log
    good = read_state(state)
    older = replace(good, database=replace(good.database, cycle=good.database.cycle - 1))
    save_state(state, older)
    with pytest.raises(MergeReplError, match="log_reader is older"):
        cdc.Database(two.root).capture()
    save_state(state, replace(good, database=replace(good.database, root="/elsewhere")))
    with pytest.raises(MergeReplError, match="is a copy of the database '/elsewhere'"):
        cdc.Database(two.root).capture()
    save_state(state, good)
    assert cdc.Database(two.root).capture().cycles == 0
    assert entries(two.database)[-1].kind == "transaction"
