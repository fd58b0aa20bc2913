"""Compact change tracking in a bucket (decision 0170): a transaction is one hold of the root's register."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
import mergerepl.store.register as registers
from mergerepl.cli.main import main
from mergerepl.errors import LeaseError, StoreError
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.spark import session as engine
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import state_of
from mergerepl.store.storage import files_in, folders_in, storage
from mergerepl.tracking import counters
from mergerepl.tracking.database import Database, Session
from mergerepl.tracking.errors import TrackingError, TransactionConflictError
from mergerepl.tracking.sweep import has_work, is_unfinished
from mergerepl.tracking.transactions import Transaction
from tests.store.proxy import Fault, Proxy, environment
from tests.store.served import Served
from tests.tracking.databases import ORDERS, held, notes_of, rows

DRAWN = 10


def test_tables_in_azures_store_are_not_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    with pytest.raises(StoreError, match=r"Azure's store.*Use S3 or a folder"):
        mergerepl.ChangeTracking("az://lake/branch")


def test_numbers_and_decisions_are_those_of_the_registers_holder(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.3")
    root = Location.of(f"s3://{bucket}/branch")
    assert not counters.is_database(root)
    with lease(root, purpose="enable"):
        counters.create_database(root)
    assert (counters.lowest_open_bsn(root), has_work(root)) == (1, False)
    session = Session(Database(root))
    first = session.begin()
    assert counters.begin(root, count=2).bsn == 2
    assert (counters.lowest_open_bsn(root), has_work(root)) == (1, False)
    with pytest.raises(TrackingError, match="is open in this thread"):
        session.begin()
    stop_renewals(root, monkeypatch)
    with another_agent(monkeypatch):
        second = session.begin()
        assert (second.bsn, counters.lowest_open_bsn(root)) == (4, 4)
        counters.decide(second.folder, intent(second))
        assert (counters.has_intent(second.folder), is_unfinished(root)) == (True, True)
        assert not counters.mark_aborted(second.folder)
        second.let_go()
    with pytest.raises(LeaseError, match="was taken over") as taken:
        counters.decide(first.folder, intent(first))
    assert not first.is_held(asks=True)
    assert "Run again" not in str(TrackingError.unfinished(first.bsn, taken.value, is_lost=True))
    assert not first.is_held()
    assert counters.mark_aborted(first.folder)
    first.let_go()
    assert (counters.read_counters(root).last_bsn, counters.read_counters(root).last_csn) == (4, 3)
    assert (counters.lowest_open_bsn(root), has_work(root)) == (4, True)
    assert counters.transaction_folders(root) == [second.folder]


def test_a_reader_meets_a_transaction_that_ends(
    bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Location.of(f"s3://{bucket}/branch")
    with lease(root, purpose="enable"):
        counters.create_database(root)
    begun = Session(Database(root)).begin()
    counters.decide(begun.folder, intent(begun))
    register = registers._held[root / registers.ROOT_LOCK]

    def end() -> None:
        register.name_plan("intent", None)
        for plan in files_in(root.join("_tracking", "plans")):
            storage(plan).delete(plan)

    with (
        another_agent(monkeypatch),
        proxy.breaking(Fault(before=end), lambda each: each.method == "GET" and "/plans/" in each.key),
    ):
        assert counters.lowest_open_bsn(root) == 1
    begun.let_go()


def test_numbers_that_are_gone_are_not_given_again(bucket: str) -> None:
    root = Location.of(f"s3://{bucket}/branch")
    table = pa.Table.from_pylist(rows((1, "old")), schema=ORDERS)
    write_deltalake(str(root / "orders"), table, storage_options=storage_options(root))
    tracking = mergerepl.ChangeTracking(str(root))
    with lease(root, purpose="enable"):
        counters.create_database(root)
        tracking.session.database.create()
    storage(root).delete(root / registers.ROOT_LOCK)
    for call in (tracking.status, lambda: tracking.enable("orders", key="id")):
        with pytest.raises(TrackingError, match="No number may be given twice"):
            call()


def intent(begun: counters.Begun) -> counters.Intent:
    planned = counters.Planned(begun.bsn, begun.bsn, "nonce", None, {})
    return counters.Intent(datetime.now(UTC), (planned,), (), {})


class Tracked:
    """A tracked table in a bucket, a consumer of it, and the rows that both have."""

    def __init__(self, root: Location, *, is_enabled: bool = True) -> None:
        self.root, self.number = root, 0
        table = pa.Table.from_pylist(rows((0, "n0"), (1, "old"), (100, "new 0")), schema=ORDERS)
        write_deltalake(str(root / "orders"), table, storage_options=storage_options(root))
        self.tracking = mergerepl.ChangeTracking(str(root), lock_wait_s=0.5)
        self.seen = {0: "n0", 1: "old", 100: "new 0"}
        if is_enabled:
            self.enable()

    def enable(self) -> None:
        self.tracking.enable("orders", key="id")
        self.reader = self.tracking.consumer("hq")

    def change(self, tx: Transaction) -> dict[int, str]:
        """Update a row, delete one, insert one; returns the rows afterwards."""
        self.number += 1
        mark, gone = f"n{self.number}", max(self.seen)
        if self.number % 2:
            tx.update("orders", {"note": f"'{mark}'"}, where="id = 0")
            tx.delete("orders", where=f"id = {gone}")
        else:
            # Without Spark.
            tx.upsert("orders", rows((0, mark)))
            tx.delete("orders", rows=[{"id": gone}])
        tx.insert("orders", rows((100 + self.number, f"new {self.number}")))
        after = {**self.seen, 0: mark, 100 + self.number: f"new {self.number}"}
        del after[gone]
        return after

    def opened(self) -> DeltaTable:
        return DeltaTable(str(self.root / "orders"), storage_options=storage_options(self.root))

    def check(self, *expected: dict[int, str]) -> dict[int, str]:
        """Nothing is left to do: the table has one of the expected states, and the consumer gets the difference."""
        found = notes_of(self.tracking.read("orders"))
        assert found in expected
        numbers = counters.read_counters(self.root)
        assert numbers.last_bsn == numbers.last_csn
        state = state_of(self.root)
        assert (state.intent, state.holder) == (None, None)
        window = self.reader.enumerate()
        known = self.seen
        assert held(window) == {
            "inserts": {key: note for key, note in found.items() if key not in known},
            "updates": {key: note for key, note in found.items() if key in known and known[key] != note},
            "deletes": sorted(known.keys() - found.keys()),
        }
        self.reader.acknowledge(window)
        self.seen = found
        return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@pytest.fixture
def tracked(served: Served, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Tracked:
    for name, value in (environment(served.url) | {"MERGEREPL_LEASE_S": "0.5"}).items():
        monkeypatch.setenv(name, value)
    root = Location.of(f"s3://{served.new_bucket()}/branch")
    assert not storage(root).is_folder(root)
    assert engine.session() is spark
    return Tracked(root)


def stop_renewals(root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process renew the register that it holds no more, as if it were paused."""
    monkeypatch.setattr(registers._held[root / registers.ROOT_LOCK], "renew", lambda: None)


@contextmanager
def another_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this block the process does not know the registers that it holds: it is another agent."""
    with monkeypatch.context() as patch:
        patch.setattr(registers, "_held", {})
        yield


@pytest.mark.spark
@pytest.mark.slow
def test_transactions_windows_foreign_commits_and_commands(tracked: Tracked, tmp_path: Path) -> None:
    tracking = tracked.tracking
    with tracking.transaction() as tx:
        after = tracked.change(tx)
        with pytest.raises(TrackingError, match="is open in this thread"):
            tracking.begin()
        (seen,) = tracking.status().open_transactions
        assert (seen.bsn, seen.state) == (tx.current_transaction_bsn, "open")
        with pytest.raises(TrackingError, match="its owner alone ends it"):
            tracking.abort(seen.bsn)
        assert tracked.reader.enumerate().anchors.ebsn == seen.bsn
    tracked.check(after)
    tracked.opened().update(updates={"note": "'foreign'"}, predicate="id = 1")
    assert tracking.adopt() == 1
    tracked.check({**after, 1: "foreign"})
    tx = tracking.begin()
    tracked.change(tx)
    tx.abort()
    tracking.recover()
    assert folders_in(tracked.root.join("_tracking", "tx")) == []
    assert tracking.purge("orders", older_than="0 days").removed == 1
    with pytest.raises(TrackingError, match="cannot be ended with its columns in a bucket"):
        tracking.disable("orders")
    stated = tmp_path / "mergerepl.yml"
    stated.write_text(
        f"type: tracking\nroot: {tracked.root}\ntables:\n  - {{table: orders, key: [id], track: [insert]}}\n"
    )
    for words in ("status", "history", "tracking enumerate hq", "cleanup --yes"):
        done = CliRunner().invoke(main, [*words.split(), "-f", str(tracked.root)])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["apply", "-f", str(stated)])
    assert done.exit_code == 0, done.output
    assert tracking.options("orders") == TrackingOptions.INSERT
    tracking.disable("orders", keep_columns=True)
    assert not tracking.tracked_tables()


@pytest.mark.spark
@pytest.mark.slow
def test_a_transaction_whose_root_was_taken_over_ends_without_effect(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = tracked.tracking.begin()
    tracked.change(tx)
    stop_renewals(tracked.root, monkeypatch)
    with another_agent(monkeypatch):
        with tracked.tracking.transaction() as other:
            after = tracked.change(other)
        tracked.check(after)
    with pytest.raises(TransactionConflictError, match="another agent took its root over"):
        tx.commit()
    tracked.check(after)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("sent", ["/plans/", ".mergerepl.lock"])
def test_a_lost_answer_decides_a_transaction_once(tracked: Tracked, served: Served, sent: str) -> None:
    tx = tracked.tracking.begin()
    after = tracked.change(tx)
    served.ask("lose", sent, 3)
    tx.commit()
    assert served.ask("clear")
    tracked.check(after)


@pytest.mark.spark
@pytest.mark.slow
def test_a_transaction_that_dies_at_a_request_is_whole_or_not_there(tracked: Tracked, served: Served) -> None:
    after: dict[int, str] = {}
    told: str | None = None

    def transaction() -> None:
        nonlocal after, told
        told, after = None, tracked.seen
        try:
            with tracked.tracking.transaction() as tx:
                after = tracked.change(tx)
        except Exception as error:
            told = str(error)
            raise

    points = served.drawn_points(transaction, DRAWN)
    deaths = 0
    for number, is_stored in points:
        if not deaths and told is None:
            tracked.check(after)
        before = tracked.seen
        deaths += served.died(transaction, number, is_stored=is_stored)
        where = f"died at request {number}, stored: {is_stored}: {told}"
        tracked.tracking.recover()
        found = tracked.check(before, after)
        if told is None:
            assert found == after, where
        elif found == after != before:
            assert "decided" in told, where
    assert 2 * deaths > DRAWN
    assert files_in(tracked.root.join("_tracking", "plans")) == []


@pytest.mark.spark
@pytest.mark.slow
def test_an_adoption_that_dies_at_a_request_is_made_up_for(tracked: Tracked, served: Served) -> None:
    def foreign() -> dict[int, str]:
        tracked.number += 1
        note = f"foreign {tracked.number}"
        tracked.opened().update(updates={"note": f"'{note}'"}, predicate="id = 1")
        return {**tracked.seen, 1: note}

    after, deaths = foreign(), 0
    for number, is_stored in served.drawn_points(tracked.tracking.adopt, DRAWN // 2):
        tracked.tracking.adopt()
        tracked.check(after)
        after = foreign()
        deaths += served.died(tracked.tracking.adopt, number, is_stored=is_stored)
    tracked.tracking.adopt()
    tracked.check(after)
    # Each commit is one transaction.
    assert tracked.tracking.count_transactions() == tracked.number
    assert 4 * deaths > DRAWN


@pytest.mark.spark
@pytest.mark.slow
def test_an_enabling_that_dies_at_a_request_is_made_up_for(tracked: Tracked, served: Served) -> None:
    places = (tracked.root.with_name(f"branch{n}") for n in count())
    first = Tracked(next(places), is_enabled=False)
    deaths = 0
    for number, is_stored in served.drawn_points(first.enable, DRAWN // 2):
        here = Tracked(next(places), is_enabled=False)
        deaths += served.died(here.enable, number, is_stored=is_stored)
        here.enable()
        with here.tracking.transaction() as tx:
            after = here.change(tx)
        here.check(after)
    assert 4 * deaths > DRAWN
