"""What users do to the keys of a published table: GUIDs in another case, odd names, keys that Python cannot hold.

Keys that several rows have are in the case tables of `tests/triggers/test_capture.py`.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from tests.calls import conflicts_of, merge_capture, merge_history, merge_status, validated
from tests.networks import Pair, lose_changes
from triggers.errors import DuplicateKeyError

GUID = "ABCDEF00-0000-4000-8000-00000000000"
LOW = GUID.lower()


@pytest.mark.slow
def test_columns_may_have_the_names_that_are_used_inside(spark: SparkSession, replica_dir: Path) -> None:
    names = ["before", "version", "k0", "c1", "action", "rows", "s", "t", "is_before", "seq", "row", "rule"]
    # Two columns for Delta; Unicode's case folding makes one word of them.
    names += ["masse", "`maße`"]
    query = f"select id as count, id as key, {', '.join(f'id as {name}' for name in names)} from range(6)"
    nested = (
        "select id, named_struct('zip-code', id, 'a.b', named_struct('select', 'x')) as place from range(6)"
    )
    pair = Pair(
        spark, replica_dir, {"odd": (query, {"key": ["count", "key"]}), "nested": (nested, {"key": ["id"]})}
    )
    for replica, value in (("hq", 7), ("north", 8)):
        inserted = ", ".join([str(value)] * (len(names) + 2))
        pair.sql(f"insert into {replica}.odd values ({inserted})")
        pair.sql(
            f"update {replica}.odd set s = {value}, masse = 10 + {value} where count in (1, {value - 5})"
        )
        pair.sql(f"update {replica}.nested set place.`zip-code` = {value} where id in (1, {value - 5})")
    pair.sync()
    assert pair.conflicts() == 2
    assert len(pair.same_rows("odd")) == 8
    (lost,) = conflicts_of(replica_dir / "hq").rows("odd").collect()
    assert (lost["masse"], lost["maße"]) == (18, 1)
    assert [row[1]["zip-code"] for row in pair.same_rows("nested")] == [0, 7, 7, 8, 4, 5]
    pair.sql(f"insert into hq.odd values (1, 1, {', '.join(['0'] * len(names))})")
    left_out = pair.sync()
    assert (left_out.refused, left_out.is_failed) == (("odd",), True)
    assert "count=1, key=1" in left_out.reason
    # An article that was left out is a session that failed, with and without work of the others.
    pair.sql("delete from hq.nested where id = 0")
    assert (pair.sync().download.deletes, len(pair.same_rows("nested"))) == (1, 5)
    for root in (replica_dir / "hq", replica_dir / "north"):
        others_went_on, alone, first = merge_history(root)
        assert [each.runstatus for each in (others_went_on, alone, first)] == [
            "failed",
            "failed",
            "succeeded",
        ]
        assert alone.messages == (left_out.reason,)
        assert others_went_on.messages[0].endswith(f"left out: odd ({left_out.reason})")
        (found,) = merge_status(root).subscriptions
        assert (found.last_sync_status, found.last_sync_summary) == ("failed", left_out.reason)


@pytest.mark.slow
def test_guids_in_another_case_are_one_row(spark: SparkSession, replica_dir: Path) -> None:
    query = f"select concat('{GUID}', id) as {{}}, 'x' as a, id as n from range(8)"
    settings = {"tracking": "column"}
    pair = Pair(
        spark,
        replica_dir,
        {
            "assets": (query.format("guid"), {"rowguid": "guid", **settings}),
            # Publishing takes the name `rowguid` in any case for the identity.
            "parts": (query.format("RowGuid"), {"rowguid": "RowGuid", **settings}),
        },
    )
    pair.sql("update hq.assets set guid = lower(guid) where n in (1, 2)")
    pair.sql("update north.assets set a = 'north' where n = 2")
    pair.sql("delete from hq.assets where n = 3")
    pair.sql(f"insert into hq.assets values ('{LOW}3', 'again', 3), ('{GUID}a', 'hq', 10)")
    pair.sql(f"insert into north.assets values ('{LOW}a', 'north', 10)")
    for replica in ("hq", "north"):
        pair.sql(f"update {replica}.parts set a = '{replica}' where n = 4")
    captured = {item.article: item for item in merge_capture(replica_dir / "hq").articles}["assets"]
    assert (captured.inserts, captured.updates, captured.deletes) == (1, 3, 0)
    pair.sync()
    assert pair.conflicts() == 2
    for article, guid, key in (("assets", "guid", f"{GUID}a"), ("parts", "RowGuid", f"{GUID}4")):
        (lost,) = conflicts_of(replica_dir / "hq").rows(article).collect()
        assert (lost["a"], [*lost["rowkey"]]) == ("north", [guid])
        assert lost[guid].lower() == lost["rowkey"][guid].lower() == key.lower()
    rows = pair.same_rows("assets")
    expected = {(f"{LOW}1", "x", 1), (f"{LOW}2", "north", 2), (f"{LOW}3", "again", 3), (f"{GUID}a", "hq", 10)}
    assert expected < set(rows)
    assert len(rows) == 9
    assert (f"{GUID}4", "hq", 4) in pair.same_rows("parts")
    [articles] = validated(replica_dir / "hq").values()
    assert all(article.ok for article in articles)
    pair.sql(f"insert into hq.assets values ('{GUID}1', 'twice', 0)")
    with pytest.raises(DuplicateKeyError, match=f"guid={LOW}1"):
        pair.sync()
    pair.sql("delete from hq.assets where n = 1")
    pair.sql("alter table hq.assets set tblproperties ('delta.enableChangeDataFeed' = 'false')")
    pair.sql("update hq.assets set guid = lower(guid) where n = 5")
    pair.sql("alter table hq.assets set tblproperties ('delta.enableChangeDataFeed' = 'true')")
    pair.sync()
    assert {(f"{GUID}1", "twice", 0), (f"{LOW}5", "x", 5)} < set(pair.same_rows("assets"))


@pytest.mark.slow
def test_no_file_is_passed_over_for_a_key_in_it_that_is_no_utf8(
    spark: SparkSession, replica_dir: Path
) -> None:
    """In Delta's bounds of a file it begins with U+FFFD, which sorts after the letters that the key sorts before."""
    texts = "values (cast(X'80' as string), 'x'), ('я', 'y') t(k, v)"
    pair = Pair(spark, replica_dir, {"texts": (f"select /*+ coalesce(1) */ * from {texts}", {"key": ["k"]})})
    pair.sql("update north.texts set v = 'north' where v = 'y'")
    assert pair.sync().upload.updates == 1
    for replica in ("hq", "north"):
        rows = spark.read.format("delta").load(str(replica_dir / replica / "texts"))
        assert {tuple(row) for row in rows.selectExpr("hex(k)", "v").collect()} == {
            ("80", "x"),
            ("D18F", "north"),
        }


@pytest.mark.slow
def test_keys_that_python_cannot_hold(spark: SparkSession, replica_dir: Path) -> None:
    """Bytes that are no UTF-8, dates after the year 9999: replicated as they are, shown as text."""
    texts = "values (cast(X'FF' as string), 'x'), (cast(X'FE' as string), 'y'), ('z', 'z') t(k, v)"
    dates = "values (date'+12345-01-01', 'x'), (date'-0044-03-15', 'y') t(k, v)"
    articles = {"texts": texts, "dates": dates}
    pair = Pair(
        spark,
        replica_dir,
        {name: (f"select * from {query}", {"key": ["k"]}) for name, query in articles.items()},
    )
    for name in articles:
        pair.sql(f"update hq.{name} set v = 'hq'")
        pair.sql(f"update north.{name} set v = 'north'")
    done = pair.sync()
    assert done.upload.conflicts == 5
    assert done.download.total == done.download.updates == 5

    def stored(replica: str, article: str) -> list[tuple[object, ...]]:
        rows = spark.read.format("delta").load(str(replica_dir / replica / article))
        return sorted(tuple(row) for row in rows.selectExpr("hex(cast(k as string))", "v").collect())

    for name in articles:
        assert stored("hq", name) == stored("north", name)
        assert {row[1] for row in stored("hq", name)} == {"hq"}
    assert [row[0] for row in stored("hq", "texts")] == ["7A", "FE", "FF"]

    keys = [conflict.key["k"] for conflict in conflicts_of(replica_dir / "hq").list()]
    assert sorted(keys) == ["+12345-01-01", "-0044-03-15", "z", "\ufffd", "\ufffd"]
    pair.sql("update north.dates set v = 'off' where k > date'2000-01-01'")
    lose_changes(replica_dir / "north")
    (articles_of_north,) = validated(replica_dir / "hq").values()
    assert [key.key for each in articles_of_north for key in each.examples] == [{"k": "+12345-01-01"}]
    pair.sql("insert into hq.dates values (date'+12345-01-01', 'again')")
    with pytest.raises(DuplicateKeyError, match=r"k=\+12345-01-01"):
        pair.sync()


@pytest.mark.slow
def test_a_row_is_found_by_the_text_of_a_padded_key(spark: SparkSession, replica_dir: Path) -> None:
    table = f"delta.`{replica_dir / 'hq' / 'codes'}`"
    spark.sql(f'create table {table} (code char(5), `size"in` int) using delta')
    spark.sql(f"insert into {table} values ('ab', 1)")
    pair = Pair(spark, replica_dir, {"codes": (None, {"key": ["code"]})})
    spark.sql(f'update {table} set `size"in` = 2')
    pair.sync()
    found = mergerepl.Replica(replica_dir / "hq").row("codes", key={"code": "ab"})
    assert [(each.source, each.row) for each in found.replicas] == [
        ("contents", {"code": "ab   ", 'size"in': "2"})
    ] * 2


@pytest.mark.slow
def test_padded_keys_that_another_engine_wrote_without_padding_are_found(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Delta-rs writes a char(n) as it is given, and so do its bounds of the file say: 'ab' lies before 'ab   '."""
    path = replica_dir / "hq" / "codes"
    spark.sql(f"create table delta.`{path}` (code char(5), n int) using delta")
    spark.sql(f"insert into delta.`{path}` values ('zz', 0)")
    pair = Pair(spark, replica_dir, {"codes": (None, {"key": ["code"]})})
    # One file each: 'a' stands before what is below a space, as 'a    ' does not.
    for code in ("ab", "cd", "a", "a\tb"):
        rows = {"code": pa.array([code], pa.string()), "n": pa.array([1], pa.int32())}
        write_deltalake(str(path), pa.table(rows), mode="append")
    pair.sync()
    # The bounds are of all keys of the session, so one session each.
    pair.sql("update north.codes set n = 2 where code = 'ab'")
    pair.sync()
    pair.sql("delete from north.codes where code = 'cd'")
    pair.sync()
    pair.sql(r"update north.codes set n = 3 where code in ('a', 'a\tb')")
    pair.sync()
    expected = [("a    ", 3), ("a\tb  ", 3), ("ab   ", 2), ("zz   ", 0)]
    for replica in ("hq", "north"):
        rows = spark.read.format("delta").load(str(replica_dir / replica / "codes")).collect()
        assert sorted(tuple(row) for row in rows) == sorted(expected)
