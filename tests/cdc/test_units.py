"""One transaction over several tables has one LSN: a Compact transaction, and the job of a user, also after deaths."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import cdc
from mergerepl.cdc.tables import tables_at
from mergerepl.logreader import units
from mergerepl.logreader.positions import read_state
from mergerepl.store.location import Location
from mergerepl.systables.transactional import TRANSACTIONS
from mergerepl.transactional.catalog import DistributionStore
from tests.cdc.databases import arrow, check_replay, enabled, entries, new_table, rows_seen
from tests.faults.deaths import dies
from tests.transactional import publications
from tests.transactional.publications import publication_file, run

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2)}
NAMES = ("debits", "credits")


def in_a_unit(table: Path, unit: mergerepl.Unit, key: int) -> None:
    properties = CommitProperties(custom_metadata=unit.options)
    write_deltalake(str(table), arrow({key: ("u", key)}), mode="append", commit_properties=properties)


def test_a_job_over_two_tables_has_one_lsn(spark: SparkSession, replica_dir: Path) -> None:
    root = replica_dir
    database = enabled(root, dict.fromkeys(NAMES, ROWS))
    shop = cdc.Database(root)
    # A job that dies, and is repeated under its name.
    with suppress(KeyError), mergerepl.unit(root, NAMES, id="night") as unit:
        in_a_unit(root / "debits", unit, 4)
        assert shop.capture().transactions == 0
        raise KeyError
    with mergerepl.unit(root, NAMES, id="night") as unit:
        in_a_unit(root / "credits", unit, 4)
    assert shop.capture().transactions == 1
    last = [rows_seen(database, f"dbo_{name}")[-1] for name in NAMES]
    assert last[0][0] == last[1][0]
    # Its place in the unit comes first: rows of both tables have one order.
    assert [row[2][0] for row in last] == [2, 4 + 2]
    check_replay(database)
    instance = shop.instance("dbo_credits")
    versions = [instance.version_of(entry.start_lsn) for entry in entries(database)[2:]]
    assert versions == sorted(versions)
    assert instance.lsn_of(versions[-1]) is not None
    assert tables_at(root).max_lsn() == entries(database)[-1].start_lsn


@pytest.mark.slow
def test_a_transaction_over_two_tables_has_one_lsn(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = enabled(replica_dir, dict.fromkeys(NAMES, ROWS))
    shop = cdc.Database(replica_dir)
    # A unit that never gets its other commit is taken after a while, with a word.
    with mergerepl.unit(replica_dir, NAMES) as unit:
        in_a_unit(replica_dir / "debits", unit, 5)
    assert shop.capture().transactions == 0
    monkeypatch.setattr(units, "WAIT", timedelta(0))
    assert shop.capture().transactions == 1
    (said,) = shop.history(failed=True)
    assert "is not one transaction: credits had no commit of it" in said.error_message
    tracking = mergerepl.ChangeTracking(replica_dir)
    for name in NAMES:
        tracking.enable(name, key="id")
    while shop.capture().transactions:
        pass
    before = len(entries(database))
    with tracking.transaction() as change:
        change.insert("debits", [{"id": 3, "note": "from", "qty": -5}])
        change.insert("credits", [{"id": 3, "note": "to", "qty": 5}])
    assert shop.capture().transactions == 1
    (entry,) = entries(database)[before:]
    assert [each["origin"] for each in entry.commits] == ["compact", "compact"]
    # The process dies between the two commits: neither counts until the transaction was finished.
    change = tracking.begin()
    change.update("debits", {"qty": "-7"}, where="id = 3")
    change.update("credits", {"qty": "7"}, where="id = 3")
    with dies("tracking.after_write", error=mergerepl.MergeReplError):
        change.commit()
    assert shop.capture().transactions == 0
    assert list(read_state(database.log).database.waiting)
    assert shop.capture().transactions == 0
    tracking.recover()
    assert shop.capture().transactions == 1
    assert read_state(database.log).database.waiting == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type_", "point"), [("transactional", "distribute.after_article"), ("merge", "subscriber.after_merge")]
)
def test_what_a_subscriber_gets_together_has_one_lsn_there(
    spark: SparkSession, replica_dir: Path, type_: str, point: str
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    tables = [new_table(hq, name, ROWS) for name in NAMES]
    file = publication_file(replica_dir, [{"name": name, "key": ["id"]} for name in NAMES], type=type_)
    run("apply", "-f", file)
    for name in NAMES:
        cdc.Database(north).enable(name, key="id")
    captured = cdc.Database(north)

    def transfer(key: int) -> None:
        with mergerepl.unit(hq, NAMES) as unit:
            for table in tables:
                in_a_unit(table, unit, key)

    transfer(3)
    run("sync", "-f", file)
    assert captured.capture().transactions == 1
    assert [len(entry.commits) for entry in entries(tables_at(north))] == [1, 1, 2]
    transfer(4)
    publications.dies(point, "sync", "-f", file)
    heads = [DeltaTable(str(north / name)).version() for name in NAMES]
    assert captured.capture().transactions == (0 if len({*heads}) > 1 else 1)
    run("sync", "-f", file)
    captured.capture()
    check_replay(tables_at(north))
    assert [len(entry.commits) for entry in entries(tables_at(north))] == [1, 1, 2, 2]
    if type_ == "transactional":
        sent = DistributionStore(Location.of(hq)).control.rows(
            TRANSACTIONS, order_limit="order by xact_seqno"
        )
        assert [len(row.commits) for row in sent if row.kind == "transaction"] == [2, 2]
