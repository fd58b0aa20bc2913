"""Hard cases of transactional.md 16 that need more than commands: types, writers beside us, what tables go through."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.small_writer import merge_by_delta_rs
from mergerepl.logreader.log_reader import LogReader
from mergerepl.store import redo
from mergerepl.transactional import Distributor, article_batch, snapshot
from tests.cdc.databases import add, delete, new_table, update
from tests.transactional.publications import publication_file, rows, run, runs, state

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BOTH = [{"subscriber": "./north"}, {"subscriber": "./south"}]

KEYS = {
    "k_decimal": ("decimal(38,18)", "CAST({0} AS DECIMAL(38,18)) / 3"),
    "k_binary": ("binary", "unhex(concat('FF00C3', lpad(hex({0}), 2, '0')))"),
    "k_ntz": ("timestamp_ntz", "timestamp_ntz'1583-01-01 00:00:00.000001' + make_interval({0})"),
    "k_text": ("string", "concat('Ü` ''', {0}, ' ')"),
    "k_date": ("date", "date'0001-01-01' + {0}"),
}
"""Column -> type and the value of a number."""

VALUES = {
    "v_double": ("double", ["double('NaN')", "double('-0.0')", "double('Infinity')", "NULL"]),
    "v_float": ("float", ["float('-0.0')", "float('NaN')", "NULL", "float(1.1)"]),
    "v_decimal": ("decimal(38,10)", [f"-{'9' * 28}.{'9' * 10}", "0", "NULL", "0.0000000001"]),
    "v_binary": ("binary", ["X''", "X'FF00'", "NULL", "X'C3'"]),
    "v_text": ("string", ["''", "' '", "NULL", "concat('a', chr(10), '|', '{CALL')"]),
    "v_stamp": (
        "timestamp",
        [
            "timestamp'0001-01-01 00:00:00 UTC'",
            "NULL",
            "timestamp'9999-12-31 23:59:59.999999 UTC'",
            "timestamp'1900-01-01 00:00:00 UTC'",
        ],
    ),
    "v_ntz": (
        "timestamp_ntz",
        [
            "timestamp_ntz'0001-01-01 00:00:00'",
            "NULL",
            "timestamp_ntz'2024-03-31 02:30:00'",
            "timestamp_ntz'9999-12-31 23:59:59.999999'",
        ],
    ),
    "v_nested": (
        "struct<a: array<struct<b: double>>, m: map<string, decimal(10,2)>>",
        [
            "named_struct('a', array(named_struct('b', double('-0.0')), NULL), 'm', map('x', 1.5))",
            "NULL",
            "named_struct('a', array(), 'm', map())",
            "named_struct('a', NULL, 'm', map('ß', NULL))",
        ],
    ),
    "v_bool": ("boolean", ["true", "false", "NULL", "true"]),
}


def typed_row(number: int, turn: int) -> str:
    """Return the SELECT list of a row."""
    keys = [f"{text.format(number)} AS {name}" for name, (_, text) in KEYS.items()]
    values = [
        f"CAST({texts[(number + turn) % len(texts)]} AS {type_}) AS {name}"
        for name, (type_, texts) in VALUES.items()
    ]
    return ", ".join([*keys, *values])


def test_25_values_of_all_types_arrive_bit_for_bit(spark: SparkSession, replica_dir: Path) -> None:
    hq = replica_dir / "hq"
    methods = dict(zip(KEYS, ("SCALL", "MCALL", "XCALL", "CALL", "SQL"), strict=True))

    def select(numbers: range, turn: int) -> str:
        return " UNION ALL ".join(f"SELECT {typed_row(number, turn)}" for number in numbers)

    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in (*KEYS.items(), *VALUES.items()))
    for name in KEYS:
        spark.sql(
            f"CREATE TABLE delta.`{hq / name}` ({columns}) USING delta TBLPROPERTIES "
            "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
        )
        spark.sql(f"INSERT INTO delta.`{hq / name}` {select(range(1, 9), 0)}")
    articles = [
        {"name": name, "key": [name], "upd_cmd": method, "del_cmd": "XCALL" if method == "XCALL" else "CALL"}
        for name, method in methods.items()
    ]
    file = publication_file(replica_dir, articles)
    run("apply", "-f", file)
    for name in KEYS:
        spark.sql(
            f"MERGE INTO delta.`{hq / name}` AS t USING ({select(range(5, 13), 1)}) AS s ON t.{name} = s.{name} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        of_two = KEYS[name][1].format(2)
        spark.sql(f"DELETE FROM delta.`{hq / name}` WHERE {name} = {of_two}")
        of_one, of_99 = KEYS[name][1].format(1), KEYS[name][1].format(99)
        spark.sql(f"UPDATE delta.`{hq / name}` SET {name} = {of_99} WHERE {name} = {of_one}")
    run("sync", "-f", file)
    found = run("validate", "-f", file)
    assert [(each["subscriber_rows"], each["differing_rows"]) for each in found] == [(11, 0)] * len(KEYS)
    assert runs(hq, "--failed") == []
    assert len(run("transactional", "browse", "-f", hq, "--limit", 100)) == 10 * len(KEYS)


def test_what_tables_go_through_and_who_writes_beside_us(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {key: ("a", key) for key in range(1, 6)})
    other = new_table(hq, "other", {1: ("a", 1)})
    file = publication_file(
        replica_dir,
        [
            {"name": "items", "key": ["id"], "upd_cmd": "XCALL", "text_columns": ["note"]},
            {"name": "other", "key": ["id"]},
        ],
        publication="first",
    ).rename(replica_dir / "first.yml")
    # 44: what is committed after the snapshot's LSN comes once, as a command.
    with monkeypatch.context() as patch:
        patch.setattr(
            snapshot, "failpoint", lambda name: add(items, {6: ("f", 6)}) if "before_copy" in name else None
        )
        run("apply", "-f", file)
    assert [row[0] for row in rows(north / "items")] == [1, 2, 3, 4, 5]
    run("sync", "-f", file)
    assert rows(north / "items") == rows(items)
    # 32: another publication of the same table has commands of its own, and the log is read once.
    second = publication_file(
        replica_dir,
        [{"name": "copies", "table": "items", "key": ["id"], "del_cmd": "NONE"}],
        subscribers=[{"subscriber": "./south"}],
        publication="second",
    ).rename(replica_dir / "second.yml")
    run("apply", "-f", second)
    delete(items, "id = 6")
    # 47: an overwrite with the same rows is no command. 46: RESTORE is one transaction with the differences.
    write_deltalake(str(items), DeltaTable(str(items)).to_pyarrow_table(), mode="overwrite")
    update(items, "id = 5", qty="50")
    version = DeltaTable(str(items)).version()
    update(items, "id < 3", qty="0")
    add(items, {7: ("g", 7)})
    spark.sql(f"optimize delta.`{items}`")
    spark.sql(f"restore delta.`{items}` to version as of {version}")
    spark.sql(f"vacuum delta.`{items}`")
    (read,) = run("capture", "-f", hq)
    assert read["changes"] == 8 + 6
    # 48: one log reader at a time.
    with LogReader(hq).held("another log reader"):
        assert run("capture", "-f", hq, code=3)["error"]["number"] == "18752"
    run("sync", "-f", file)
    run("sync", "-f", second)
    assert rows(north / "items") == rows(items)
    assert [row[0] for row in rows(replica_dir / "south" / "items")] == [1, 2, 3, 4, 5, 6, 7]
    # 23: XCALL sends no old value of a text column.
    texts = [each["command"] for each in run("transactional", "browse", "-f", hq, "--table", "items")]
    assert "{CALL [sp_MSupd_dboitems] (5,NULL,5,5,'a',50)}" in texts
    # 51: what was not distributed yet is no difference.
    add(items, {8: ("h", 8)})
    assert [each["differing_rows"] for each in run("validate", "-f", file)] == [0, 0]

    # 28: somebody deletes a row between judging and MERGE.
    def foreign(name: str) -> None:
        if name == "distribute.after_plan":
            delete(north / "items", "id = 3")

    update(items, "id = 3", qty="33")
    with monkeypatch.context() as patch:
        patch.setattr(redo, "failpoint", foreign)
        met = run("sync", "-f", file, code=1)
    assert met["error"]["number"] == "20598"
    assert "while a batch was applied" in met["error"]["message"]
    assert [row[0] for row in rows(north / "items")] == [1, 2, 4, 5, 8]
    assert not state(hq)["subscriptions"][0]["is_known_to_be_equal"]
    assert [[one["key"] for one in each["examples"]] for each in run("validate", "-f", file, code=1)] == [
        [{"id": "3"}],
        [],
    ]
    # 53: a key twice at the subscriber would be updated twice: said before, nothing is written.
    add(north / "items", {1: ("twice", 1)})
    before = rows(north / "items")
    update(items, "id = 1", qty="11")
    update(other, "id = 1", qty="11")
    assert run("sync", "-f", file, code=1)["error"]["number"] == "2627"
    assert rows(north / "items") == before
    delete(north / "items", "note = 'twice'")

    # Somebody changes another column of a row after it was judged in process: both changes stay.
    def beside(*given: Any, **terms: Any) -> None:
        if given[1].name == "other" and rows(north / "other")[0][1] == "a":
            update(north / "other", "id = 1", note="'theirs'")
        merge_by_delta_rs(*given, **terms)

    with monkeypatch.context() as patch:
        patch.setattr(article_batch, "merge_by_delta_rs", beside)
        run("sync", "-f", file)
    assert rows(north / "other") == [(1, "theirs", 11)]
    assert rows(other) == [(1, "a", 11)]
    # The first of several commands that fail is the one that stops, whatever article is judged first.
    streams = publication_file(
        replica_dir,
        [
            {"name": "items", "key": ["id"], "upd_cmd": "XCALL", "text_columns": ["note"]},
            {"name": "other", "key": ["id"]},
        ],
        subscribers=[{"subscriber": "./north", "streams": 2}],
        publication="first",
    )
    assert [each["action"] for each in run("apply", "-f", streams)["steps"]] == ["change"]
    delete(north / "items", "id = 2")
    delete(north / "other")
    update(other, "id = 1", qty="12")
    update(items, "id = 2", qty="22")
    stopped = run("sync", "-f", streams, code=1)
    assert "Table 'other'" in stopped["error"]["message"]
    skipped = Distributor(hq).deliver(publication="first", skip_errors=[20598])
    assert [each.skipped for each in skipped] == [2]
    # A key that is NULL, and one that is there twice, are no key.
    odd = new_table(hq, "odd", {1: ("a", 1)})
    write_deltalake(
        str(odd), pa.table({"id": pa.array([None], pa.int64())}), mode="append", schema_mode="merge"
    )
    third = publication_file(replica_dir, [{"name": "odd", "key": ["id"]}], publication="third")
    refused = run("apply", "-f", third, code=1)
    assert refused["error"]["number"] == "14088"
    assert not (north / "odd").exists()
