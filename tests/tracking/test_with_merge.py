"""A tracked folder that is a merge replica, too: a transaction is a user's change to merge, a session a foreign commit."""

from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import failpoints
from mergerepl.replica.replica import Replica
from mergerepl.tracking.errors import TrackingError, TransactionConflictError
from tests.calls import validated
from tests.tracking.databases import held, new_table, rows

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
    tracking.enable("orders", key="id")
    file = replica_dir / "sales.yml"
    stated = {"publication": "sales", "publisher": str(hq), "articles": [{"name": "orders", "key": ["id"]}]}
    file.write_text(yaml.safe_dump({**stated, "subscriptions": [{"subscriber": str(north)}]}))
    mergerepl.Project.load(file).apply()
    assert DeltaTable(str(north / "orders")).schema().to_arrow().names == ["id", "note"]
    reader = tracking.consumer("sync", start="now")
    with tracking.transaction() as tx:
        tx.update("orders", {"note": "'tracked'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
        tx.insert("orders", rows((4, "tracked")))
    DeltaTable(str(north / "orders")).update({"note": "'merged'"}, predicate="id = 3")
    session = mergerepl.Project.load(file).sync().sessions[0]
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
    assert mergerepl.Project.load(file).sync().sessions[0].download.total == 0
    both_sides(tracking, mergerepl.ChangeTracking(north), file)


def both_sides(hq: mergerepl.ChangeTracking, north: mergerepl.ChangeTracking, file: Path) -> None:
    """Track the subscriber, too: what a session brings has the other replica as context, at either end."""
    north.enable("orders", key="id")
    roots = {hq: file.parent / "hq", north: file.parent / "north"}
    theirs = {hq: Replica(roots[north]).info().replid, north: Replica(roots[hq]).info().replid}
    readers = {side: side.consumer("both", start="now") for side in (hq, north)}

    def seen() -> list[dict]:
        """Return what each side's consumer gets: with the session's changes, and without; hq's first."""
        found = []
        for side, reader in readers.items():
            window = reader.enumerate()
            found += [held(window), held(reader.enumerate(exclude_context=theirs[side]))]
            reader.acknowledge(window)
        assert notes(roots[hq]) == notes(roots[north])
        return found

    nothing = {"inserts": {}, "updates": {}, "deletes": []}
    # Each side changes rows of its own; one that comes and goes is nothing to either.
    with hq.transaction() as tx:
        tx.update("orders", {"note": "'hq'"}, where="id = 1")
        tx.insert("orders", rows((10, "hq")))
    with north.transaction() as tx:
        tx.delete("orders", where="id = 3")
        tx.insert("orders", rows((20, "north"), (21, "north")))
    north.delete("orders", where="id = 21")
    mergerepl.Project.load(file).sync()
    of_hq = {"inserts": {10: "hq"}, "updates": {1: "hq"}, "deletes": []}
    # The session changed the table: what came and went beside it is sent as deleted, too.
    of_north = {"inserts": {20: "north"}, "updates": {}, "deletes": [3, 21]}
    whole = {"inserts": {10: "hq", 20: "north"}, "updates": {1: "hq"}, "deletes": [3]}
    assert seen() == [whole, of_hq, whole, of_north]
    # A conflict: the publisher's row stands, and the session's change of it is the last one of the other side.
    hq.update("orders", {"note": "'winner'"}, where="id = 1")
    north.update("orders", {"note": "'loser'"}, where="id = 1")
    held_open = north.begin()
    held_open.update("orders", {"note": "'late'"}, where="id in (1, 4)")
    mergerepl.Project.load(file).sync()
    with pytest.raises(TransactionConflictError):
        held_open.commit()
    won = {**nothing, "updates": {1: "winner"}}
    assert seen() == [won, won, won, nothing]
    # A transaction that its process decided and did not write is in the next session.
    dead = north.begin()
    dead.update("orders", {"note": "'decided'"}, where="id = 4")
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(failpoints, "_passed", {})
        dying.setenv("MERGEREPL_FAILPOINT", "tracking.before_write=raise")
        with pytest.raises(TrackingError, match="Do not repeat"):
            dead.commit()
    session = mergerepl.Project.load(file).sync().sessions[0]
    assert (session.upload.total, session.download.total) == (1, 0)
    decided = {**nothing, "updates": {4: "decided"}}
    assert seen() == [decided, nothing, decided, decided]
    # What a session gave a side, and that side changed in turn, goes back once.
    hq.update("orders", {"note": "'again'"}, where="id = 4")
    mergerepl.Project.load(file).sync()
    north.update("orders", {"note": "concat(note, '!')"}, where="id = 4")
    mergerepl.Project.load(file).sync()
    turned = {**nothing, "updates": {4: "again!"}}
    assert seen() == [turned, nothing, turned, turned]
    assert mergerepl.Project.load(file).sync().sessions[0].download.total == 0
    (compared,) = next(iter(validated(file).values()))
    assert compared.ok
