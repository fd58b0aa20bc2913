"""A tracked folder that is a merge replica, too: a transaction is a user's change to merge, a session a foreign commit."""

from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.model.tracking import TrackingKeyType
from mergerepl.store.replica import Replica
from tests.compact.databases import held, new_table, rows

pytestmark = pytest.mark.spark


def notes(root: Path) -> dict[int, str]:
    table = DeltaTable(str(root / "orders")).to_pyarrow_table()
    return dict(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))


@pytest.mark.slow
def test_both_in_one_folder(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    hq.mkdir()
    new_table(hq, "orders", {1: "old", 2: "old", 3: "old"})
    tracking = mergerepl.ChangeTracking(hq)
    tracking.enable_tracking("orders", TrackingKeyType.PRIMARY_KEY, key="id")
    file = replica_dir / "sales.yml"
    stated = {"publication": "sales", "publisher": str(hq), "articles": [{"name": "orders", "key": ["id"]}]}
    file.write_text(yaml.safe_dump({**stated, "subscriptions": [{"subscriber": str(north)}]}))
    mergerepl.load(file).apply()
    assert DeltaTable(str(north / "orders")).schema().to_arrow().names == ["id", "note"]
    reader = tracking.consumer("sync", start="now")
    with tracking.transaction() as tx:
        tx.update("orders", {"note": "'tracked'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
        tx.insert("orders", rows((4, "tracked")))
    DeltaTable(str(north / "orders")).update({"note": "'merged'"}, predicate="id = 3")
    session = mergerepl.sync(file).sessions[0]
    assert (session.upload.updates, session.download.total) == (1, 3)
    expected = {1: "tracked", 3: "merged", 4: "tracked"}
    assert notes(hq) == notes(north) == expected
    # The session's commits say which replica their rows came from: its subscriber can leave out its own changes.
    subscriber = Replica(north).info().replid
    window = reader.enumerate(exclude_context=subscriber)
    assert held(window) == {"inserts": {4: "tracked"}, "updates": {1: "tracked"}, "deletes": [2]}
    # A stamp alone is no change to merge, and what merge brought is one here.
    window = reader.enumerate()
    assert held(window) == {"inserts": {4: "tracked"}, "updates": {1: "tracked", 3: "merged"}, "deletes": [2]}
    assert mergerepl.sync(file).sessions[0].download.total == 0
