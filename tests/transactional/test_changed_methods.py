"""Methods of an article that change under active subscriptions; a procedure that one subscriber alone has."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import transactional as tr
from tests.cdc.databases import delete, update
from tests.transactional.publications import dies, new_table, publication_file, rows, run

pytestmark = pytest.mark.spark


@tr.procedure("keep_deleted", operation="delete", call="CALL", columns=["id", "note", "qty"])
def keep_deleted(call: tr.Call) -> None:
    """Mark a row as deleted instead of deleting it."""
    call.merge(call.sql("SELECT pkc1 AS id, 'deleted' AS note FROM commands"), call.article, on=["id"])


ROWS = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}
SUBSCRIBERS = ({"subscriber": "./north"}, {"subscriber": "./south"})


@pytest.mark.slow
def test_methods_change_and_a_procedure_is_replaced_at_one_subscriber(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north, south = (replica_dir / name for name in ("hq", "north", "south"))
    items = new_table(hq, "items", ROWS)
    article = {"name": "items", "key": ["id"]}
    file = publication_file(replica_dir, [article], subscribers=SUBSCRIBERS)
    run("apply", "-f", file)
    update(items, "id = 1", qty="10")
    run("capture", "-f", hq)
    # The seed's own change: another call syntax for updates, and deletes that are not sent.
    publication_file(
        replica_dir, [{**article, "upd_cmd": "XCALL", "del_cmd": "NONE"}], subscribers=SUBSCRIBERS
    )
    dies("transactional.after_create", "apply", "-f", file)
    run("apply", "-f", file)
    assert run("apply", "-f", file)["steps"] == []
    update(items, "id = 2", qty="20")
    delete(items, "id = 3")
    run("sync", "-f", file)
    texts = [each["command"] for each in run("transactional", "browse", "-f", hq)]
    assert texts == [
        "{CALL [sp_MSupd_dboitems] (,,10,1,0x04)}",
        "{CALL [sp_MSupd_dboitems] (2,'b',2,2,'b',20)}",
    ]
    assert rows(north / "items") == rows(south / "items") == [(1, "a", 10), (2, "b", 20), (3, "c", 3)]
    # One subscriber has a procedure of its own for deletes; the other has the generated one.
    unknown = [{**SUBSCRIBERS[0], "procedures": {"sp_MSdel_other": "keep_deleted"}}, SUBSCRIBERS[1]]
    file = publication_file(replica_dir, [article], subscribers=unknown)
    assert "which no article calls" in run("apply", "-f", file, code=2)["error"]["message"]
    replaced = [{**SUBSCRIBERS[0], "procedures": {"sp_MSdel_dboitems": "keep_deleted"}}, SUBSCRIBERS[1]]
    file = publication_file(replica_dir, [article], subscribers=replaced)
    run("apply", "-f", file)
    delete(items, "id = 2")
    run("sync", "-f", file)
    assert rows(south / "items") == [(1, "a", 10), (3, "c", 3)]
    assert rows(north / "items") == [(1, "a", 10), (2, "deleted", 20), (3, "c", 3)]
    shown = run("transactional", "script", "-f", hq)["script"].splitlines()
    assert [line.partition("sp_MSdel")[2] for line in shown if "south" in line] == ["_dboitems (generated)"]
    assert [line.partition(", schema")[2] for line in shown if "keep_deleted" in line] == [
        " version 3 of 3: sp_MSins_dboitems (generated), sp_MSupd_dboitems (generated), keep_deleted (custom)"
    ]
    # After a change of columns a procedure that was written for others stops its subscriber alone.
    spark.sql(f"ALTER TABLE delta.`{items}` ADD COLUMNS (size int)")
    spark.sql(f"DELETE FROM delta.`{items}` WHERE id = 1")
    stopped = run("sync", "-f", file, code=1)
    assert rows(south / "items") == [(3, "c", 3, None)]
    assert 'columns=["id", "note", "qty", "size"]' in str(stopped)
    assert [row[:2] for row in rows(north / "items")] == [(1, "a"), (2, "deleted"), (3, "c")]
    # A folder with publications alone has a VACUUM that keeps what is not read.
    spark.sql(f"INSERT INTO delta.`{items}` VALUES (9, 'z', 9, NULL)")
    head = DeltaTable(str(items)).version()
    (vacuumed,) = run("vacuum", "-f", hq)["tables"]
    assert (vacuumed["source"], vacuumed["read_through"]) == ("items", head - 1)
