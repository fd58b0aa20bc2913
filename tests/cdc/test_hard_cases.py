"""Hard cases of the specification: many columns, odd strings, whose commits they are, large commits, a stopped job."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import cdc
from mergerepl.cdc.tables import tables_at
from mergerepl.cli.main import main
from mergerepl.delta.log import log_path
from mergerepl.delta.marks import CommitMark
from tests.cdc.databases import (
    add,
    arrow,
    change_table,
    changes,
    check_replay,
    enabled,
    entries,
    new_table,
    rows_seen,
    update,
)

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2)}


def marked_add(table: Path, key: int, step: str) -> None:
    mark = CommitMark("s", step, "north", "hq").to_user_metadata() if step else None
    properties = CommitProperties(custom_metadata={} if mark is None else {"userMetadata": mark})
    write_deltalake(str(table), arrow({key: ("x", 1)}), mode="append", commit_properties=properties)


@pytest.mark.slow
def test_whose_commits_they_are_and_masks_of_200_columns_and_strings_that_are_no_utf8(
    spark: SparkSession, replica_dir: Path
) -> None:
    # Cases 16, 42 to 44, 47 and 48.
    database = enabled(replica_dir, {"orders": ROWS})
    integers = ((f"c{i}", pa.int32()) for i in range(2, 200))
    wide = pa.schema([("id", pa.int64()), *integers, ("c200", pa.float64())])
    first = pa.Table.from_pylist([{**dict.fromkeys(wide.names, 1), "c200": 0.0}], schema=wide)
    write_deltalake(str(replica_dir / "wide"), first, configuration={"delta.enableChangeDataFeed": "true"})
    cdc.Database(replica_dir).enable("wide", key="id")
    texts = new_table(replica_dir, "texts", {1: ("a", 1), 2: (None, 2)})
    cdc.Database(replica_dir).enable("texts", key="id")
    origins = {
        "": "user",
        "apply:1": "merge",
        "setup:rows": "merge",
        "track:7": "compact",
        "distribute:3": "distribute",
        "repair:3": "repair",
        "resolve:9": "resolve",
        "consume:4": "consume",
    }
    for key, step in enumerate(origins, 10):
        marked_add(replica_dir / "orders", key, step)
    # A user's unit with a table that is not captured gets its LSN at once, as every commit. It is dated a year ahead, too.
    unit = {"userMetadata": json.dumps({"mergerepl_unit": {"id": "u", "tables": ["orders", "elsewhere"]}})}
    properties = CommitProperties(custom_metadata=unit)
    write_deltalake(
        str(replica_dir / "orders"), arrow({30: ("x", 1)}), mode="append", commit_properties=properties
    )
    ahead = time.time() + 365 * 86_400
    os.utime(
        log_path(replica_dir / "orders", DeltaTable(str(replica_dir / "orders")).version()), (ahead, ahead)
    )
    DeltaTable(str(replica_dir / "wide")).update({"c9": "2", "c200": "-0.0"})
    update(texts, "note is null", note="''")
    spark.sql(f"update delta.`{texts}` set note = cast(X'61FFFE' as string) where id = 1")
    spark.sql(f"insert into delta.`{texts}` values (3, cast(X'C328' as string), 3)")
    assert cdc.Database(replica_dir).capture().transactions == len(origins) + 5
    newest = entries(database)[-1]
    assert newest.commits[0]["version"] == len(origins) + 1
    assert newest.tran_end_time <= datetime.now(UTC)
    number = database.instance("dbo_orders").source_object_id
    all_origins = [c["origin"] for e in entries(database) if e.kind == "transaction" for c in e.commits]
    of_orders = [
        c["origin"]
        for e in entries(database)
        if e.kind == "transaction"
        for c in e.commits
        if c["source_object_id"] == number
    ]
    assert of_orders == [*origins.values(), "user"]
    assert all_origins.count("user") == 6
    assert [row[3] for row in changes(database, "dbo_orders")] == [*range(10, 10 + len(origins)), 30]
    masks = {bytes(row[4]) for row in rows_seen(database, "dbo_wide")}
    assert masks == {bytes([0x80, *[0] * 22, 0x01, 0x00])}
    assert cdc.Database(replica_dir).instance("dbo_wide").has_changed("c200", masks.pop())
    notes = change_table(spark, database, "dbo_texts").selectExpr("hex(cast(note as binary)) note")
    assert [row.note for row in notes.collect()] == [None, "", "61", "61FFFE", "C328"]


@pytest.mark.slow
def test_a_merge_session_is_captured_by_the_key_of_its_article(
    spark: SparkSession, replica_dir: Path
) -> None:
    # Case 47 with a session; the article's key is the default.
    hq, north = replica_dir / "hq", replica_dir / "north"
    new_table(hq, "orders", {1: ("a", 1), 2: ("b", 2)})
    file = replica_dir / "sales.yml"
    stated = {"publication": "sales", "publisher": str(hq), "articles": [{"name": "orders", "key": ["id"]}]}
    file.write_text(yaml.safe_dump({**stated, "subscriptions": [{"subscriber": str(north)}]}))
    mergerepl.Project.load(file).apply()
    assert cdc.Database(hq).enable("orders").describe().instance.index_column_list == ("id",)
    update(north / "orders", "id = 1", note="'merged'")
    add(north / "orders", {3: ("c", 3)})
    add(hq / "orders", {4: ("d", 4)})
    mergerepl.Project.load(file).sync()
    assert cdc.Database(hq).capture().transactions >= 2
    database = tables_at(hq)
    origins = {c["origin"] for e in entries(database) if e.kind == "transaction" for c in e.commits}
    assert origins == {"user", "merge"}
    assert {(row[1], row[3]) for row in changes(database, "dbo_orders")} == {(2, 4), (3, 1), (4, 1), (2, 3)}
    check_replay(database)


@pytest.mark.slow
def test_a_commit_of_ten_million_rows(compiled_spark: SparkSession, replica_dir: Path) -> None:
    # Case 45: the driver holds facts of the log, never rows; they are written through disk where memory ends.
    table = new_table(replica_dir, "orders", {1: ("a", 1)})
    cdc.Database(replica_dir).enable("orders", key="id")
    rows = compiled_spark.range(10, 10_000_010).selectExpr(
        "id", "cast(id as string) note", "cast(id % 100 as int) qty"
    )
    rows.write.format("delta").mode("append").save(str(table))
    done = cdc.Database(replica_dir).capture()
    assert (done.transactions, done.rows) == (1, 10_000_000)
    low, high = (
        cdc.Database(replica_dir).instance("dbo_orders").min_lsn(),
        cdc.Database(replica_dir).max_lsn(),
    )
    found = cdc.Database(replica_dir).instance("dbo_orders").changes(low, high, ordered=False)
    counted = found.selectExpr("count(*) n", "count(distinct `__$start_lsn`) lsns", "sum(id) ids").collect()[
        0
    ]
    assert counted.asDict() == {"n": 10_000_000, "lsns": 1, "ids": sum(range(10, 10_000_010))}


@pytest.mark.slow
def test_the_job_that_was_stopped_for_days_holds_what_is_unread(
    spark: SparkSession, replica_dir: Path
) -> None:
    # Case 35: `hold` waits for a later version and is refused by name; a VACUUM of this product keeps what is unread.
    database = enabled(replica_dir, {"orders": ROWS})
    with pytest.raises(cdc.CdcUsageError, match="for a later version"):
        cdc.Database(replica_dir).jobs.stop(hold="30 days")  # type: ignore[call-arg]
    cdc.Database(replica_dir).jobs.stop()
    add(replica_dir / "orders", {3: ("c", 3)})
    update(replica_dir / "orders", "id = 1", note="'A'")
    ten_days = 10 * 86_400
    for file in (replica_dir / "orders").rglob("*"):
        if file.is_file():
            at = file.stat().st_mtime - ten_days
            os.utime(file, (at, at))
    assert run_status(replica_dir) == ["critical"]
    shown = CliRunner().invoke(main, ["status", "-f", str(replica_dir)]).output
    assert shown.count("orders: Unread commits: 2") == 1
    cdc.Database(replica_dir).vacuum("orders")
    cdc.Database(replica_dir).capture()
    assert [row[1] for row in changes(database, "dbo_orders")] == [2, 3, 4]
    check_replay(database)


def run_status(root: Path) -> list[str]:
    done = CliRunner().invoke(main, ["status", "--type", "cdc", "-f", str(root), "--check", "--json"])
    found = json.loads(done.output)["status"][0]["warnings"]
    assert done.exit_code == (2 if found else 0)
    return [each["level"] for each in found]
