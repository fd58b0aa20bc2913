"""A transaction that dies at any durable step is whole or not there, and the next holder of the lease finishes it."""

import shutil
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta import engine_choice
from mergerepl.failpoints import FailpointError
from mergerepl.store.lease import lease
from mergerepl.tracking import counters
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.sweep import sweep_root
from tests.faults.deaths import dies, killed, script
from tests.faults.ladder import points_in
from tests.tracking.databases import ORDERS, commit_sequence, held, notes_of, rows, tracked

pytestmark = pytest.mark.spark

NAMES = ("orders", "stock")
DECIDED = (
    "tracking.after_intent",
    "tracking.before_counters",
    "tracking.after_counters",
    "tracking.before_write",
    "tracking.after_write",
    "tracking.before_write:2",
    "tracking.after_write:2",
    "tracking.before_tombstones",
    "tracking.after_tombstones",
    "tracking.after_sequence",
    "tracking.after_publish",
)
UNDECIDED = ("tracking.before_intent",)
ELSEWHERE = {
    # Where a test of its own dies: begin, sweep, purge, acknowledge, a foreign commit in between, a replaced table.
    "tracking.after_begin",
    "tracking.after_aborts",
    "tracking.after_purge_mark",
    "tracking.before_acknowledge",
    "tracking.before_extension",
    "tracking.after_properties",
    "tracking.after_table_id",
}
ALWAYS = ("tracking.after_write",)
"""Where every run of the tests dies; `--long` dies everywhere."""


def test_the_ladder_names_every_failpoint() -> None:
    assert points_in("tracking") == {name.partition(":")[0] for name in (*DECIDED, *UNDECIDED)} | ELSEWHERE


class Two:
    """Two tables that every transaction changes alike, and a consumer of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tracking = tracked(folder, dict.fromkeys(range(60), "old"), names=NAMES)
        self.reader = self.tracking.consumer("hq")
        self.expected = dict.fromkeys(range(60), "old")
        self.next = 0

    def change(self, tx: "mergerepl.tracking.transactions.Transaction", mark: str) -> dict[int, str]:
        """Update a row, delete one and insert one in both tables; returns the rows afterwards."""
        at, self.next = self.next, self.next + 2
        for name in NAMES:
            tx.update(name, {"note": f"'{mark}'"}, where=f"id = {at}")
            tx.delete(name, rows=[{"id": at + 1}])
            tx.insert(name, rows((100 + at, mark)))
        after = {**self.expected, at: mark, 100 + at: mark}
        del after[at + 1]
        return after

    def seen(self) -> dict[int, str]:
        """What readers see, which is the same in both tables."""
        one, other = (notes_of(self.tracking.read(name)) for name in NAMES)
        assert one == other
        return one

    def check(self, expected: dict[int, str]) -> None:
        """All is done: the tables, the numbers, and what the consumer gets is the difference."""
        known = self.expected
        assert self.seen() == expected
        found = counters.read_counters(self.folder)
        assert found.last_bsn - found.last_csn == len(counters.transaction_folders(self.folder)) == 0
        window = self.reader.enumerate()
        for name in NAMES:
            assert held(window, name) == {
                "inserts": {key: note for key, note in expected.items() if key not in known},
                "updates": {
                    key: note for key, note in expected.items() if key in known and known[key] != note
                },
                "deletes": sorted(known.keys() - expected.keys()),
            }
        self.reader.acknowledge(window)
        self.expected = expected
        assert self.reader.enumerate().is_empty


@pytest.fixture(scope="module")
def two(spark: SparkSession, worker_folder: Path) -> Two:
    folder = worker_folder / "two-tables"
    folder.mkdir()
    return Two(folder)


POINTS = [*DECIDED, *UNDECIDED]


@pytest.mark.parametrize(
    ("point", "is_here"),
    [
        pytest.param(point, is_here, marks=() if is_here and point in ALWAYS else pytest.mark.slow)
        for point in POINTS
        for is_here in (True, False)
    ],
)
def test_a_death_at_any_step_is_made_up_for(
    two: Two, point: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_here:
        monkeypatch.setattr(engine_choice, "MOST_IN_PROCESS", -1)
    first, tx = two.tracking.begin(), two.tracking.begin()  # out of sequence: CSN < BSN
    after = two.change(tx, point)
    # From the decision on the error says not to repeat the transaction.
    with dies(point, error=(FailpointError, TrackingError), match="failpoint"):
        tx.commit()
    is_published = point == "tracking.after_publish"
    assert two.seen() == (after if is_published else two.expected)
    if point in DECIDED and point != "tracking.after_publish":
        # It dies once more in the same place, or a later one, of finishing it.
        with dies(point if ":" not in point and "intent" not in point else "tracking.after_sequence"):
            two.tracking.recover()
    two.tracking.recover()
    first.abort()
    two.tracking.recover()
    two.check(after if point in DECIDED else two.expected)
    assert commit_sequence(two.tracking).get(tx.current_transaction_bsn) == (
        tx.current_transaction_bsn - 1 if point in DECIDED else None
    )


def test_a_death_in_a_sweep_takes_no_number_twice(two: Two) -> None:
    two.tracking.begin().abort()
    with dies("tracking.after_aborts"):
        two.tracking.recover()
    two.tracking.recover()
    found = counters.read_counters(two.folder)
    assert found.last_bsn == found.last_csn


def test_a_death_before_an_acknowledge_leaves_the_window(two: Two) -> None:
    with two.tracking.transaction():
        pass
    window = two.reader.enumerate()
    with dies("tracking.before_acknowledge"):
        two.reader.acknowledge(window)
    assert two.reader.enumerate().id == window.id


@pytest.mark.slow
def test_what_a_table_can_never_take_ends_with_its_tracking(spark: SparkSession, replica_dir: Path) -> None:
    two = Two(replica_dir)
    tx = two.tracking.begin()
    after = two.change(tx, "new")
    with dies("tracking.before_write:2", error=TrackingError, match="Do not repeat"):
        tx.commit()
    shutil.rmtree(replica_dir / "stock")
    for refused in (two.tracking.recover, two.reader.enumerate):
        with pytest.raises(TrackingError, match="'stock' is gone"):
            refused()
    assert "is gone" in two.tracking.status().problems["stock"]
    two.tracking.disable("stock")
    two.tracking.recover()
    assert notes_of(two.tracking.read("orders")) == after
    window = two.reader.enumerate()
    assert (window.tables, window.counts()) == (
        ("orders",),
        {"orders": {"deletes": 1, "inserts": 1, "updates": 1}},
    )


@pytest.mark.slow
def test_a_decided_insert_replaces_a_row_that_came_in_between(spark: SparkSession, replica_dir: Path) -> None:
    tracking = tracked(replica_dir, {1: "old"})
    reader, tx = tracking.consumer("hq"), tracking.begin()
    tx.insert("orders", rows((2, "ours"), (3, "ours")))
    with dies("tracking.before_write", error=TrackingError, match="Do not repeat"):
        tx.commit()
    theirs = pa.Table.from_pylist(rows((2, "theirs"), (4, "theirs")), schema=ORDERS)
    write_deltalake(str(replica_dir / "orders"), theirs, mode="append", schema_mode="merge")
    tracking.recover()
    expected = {2: "ours", 3: "ours", 4: "theirs"}
    assert sorted(row["id"] for row in tracking.read("orders").collect()) == [1, 2, 3, 4]
    assert held(reader.enumerate()) == {"inserts": expected, "updates": {}, "deletes": []}


COMMIT = textwrap.dedent(
    """
    import sys
    import mergerepl
    with mergerepl.ChangeTracking(sys.argv[1]).transaction() as tx:
        for name in ("orders", "stock"):
            tx.update(name, {"note": "'killed'"}, where="id = 38")
            tx.delete(name, where="id = 39")
    """
)


RECOVER = "import sys, mergerepl; mergerepl.ChangeTracking(sys.argv[1]).adopt()"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_at_every_step(spark: SparkSession, worker_folder: Path) -> None:
    for number, point in enumerate((*UNDECIDED, *DECIDED)):
        kind = "kill" if number % 2 else "killgroup"
        folder = worker_folder / f"{kind}-{point}"
        folder.mkdir()
        two = Two(folder)
        killed(script(COMMIT, folder), point, kind)
        if point == "tracking.after_write":
            # The next one to write here is another product: it sweeps first.
            with lease(folder, purpose="test", wait_s=60):
                sweep_root(folder)
        else:
            two.tracking.recover()
        expected = dict(two.expected)
        if point in DECIDED:
            expected[38] = "killed"
            del expected[39]
        two.check(expected)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_at_every_step_of_recovery_and_adoption(spark: SparkSession, replica_dir: Path) -> None:
    two = Two(replica_dir)
    for number, point in enumerate(DECIDED[1:]):
        one, other = ("kill", "killgroup") if number % 2 else ("killgroup", "kill")
        tx = two.tracking.begin()
        after = two.change(tx, f"{one} {point}")
        with dies("tracking.after_intent", error=TrackingError, match="Do not repeat"):
            tx.commit()
        killed(script(RECOVER, two.folder), point, one)
        two.tracking.recover()
        two.check(after)
        for name in NAMES:
            DeltaTable(str(two.folder / name)).update({"note": f"'foreign {number}'"}, predicate="id = 36")
            DeltaTable(str(two.folder / name)).delete(f"id = {100 + 2 * number}")
        after = {**two.expected, 36: f"foreign {number}"}
        del after[100 + 2 * number]
        killed(script(RECOVER, two.folder), point, other)
        # All of these are after the decision.
        assert two.tracking.adopt() == 0
        two.check(after)
