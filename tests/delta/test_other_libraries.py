"""What our Spark writes, deltalake reads bit for bit, and may rewrite and remove; and the other way round."""

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.commits import read_commit
from mergerepl.delta.file_faults import faulty_files, mend_files
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.reads import write_files
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.writes import append
from mergerepl.errors import CaptureError
from mergerepl.monitoring import doctor
from mergerepl.spark import confs
from tests.calls import conflicts_of

pytestmark = pytest.mark.spark

ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
WHOLE = pa.decimal128(38, 0)
_EPOCH = dt.datetime(1970, 1, 1)


def micros(*parts: int) -> int:
    return (dt.datetime(*parts) - _EPOCH) // dt.timedelta(microseconds=1)  # type: ignore[arg-type]


# First and last, where calendars change, where nanoseconds in 64 bits end, and beside the epoch.
TIMES = [
    *(micros(9999, 12, 31, 23, 59, 59, 999999), micros(9999, 12, 31), micros(1, 1, 1)),
    *(micros(1582, 10, 4, 23, 59, 59, 999999), micros(1582, 10, 15), micros(1677, 9, 21, 0, 12, 43)),
    *(micros(2262, 4, 11, 23, 47, 16, 854776), micros(1900, 1, 1, 12, 0, 0, 1), -1, 999, None),
]
DAYS = [None if time is None else time // 86_400_000_000 for time in TIMES]
TOP = Decimal("9" * 38)
WIDE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [127, -128]),
    "i16": (pa.int16(), [32767, -32768]),
    "i32": (pa.int32(), [2**31 - 1, -(2**31)]),
    "i64": (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1]),
    "f32": (pa.float32(), [math.nan, math.inf, -math.inf, -0.0, 3.4028234663852886e38, 1e-45]),
    "f64": (pa.float64(), [math.nan, math.inf, -math.inf, -0.0, 1.7976931348623157e308, 5e-324]),
    "d9": (pa.decimal128(9, 2), [Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.00")]),
    "d18": (pa.decimal128(18, 4), [Decimal("99999999999999.9999"), Decimal("-99999999999999.9999")]),
    "d38": (WHOLE, [TOP, Decimal(f"-{TOP}"), Decimal(2**53 + 1)]),
    "fraction": (pa.decimal128(38, 38), [Decimal(f"0.{TOP}"), Decimal(f"-0.{TOP}")]),
    "text": (pa.string(), ["", "😀" * 40, "\0x", "Île", "\uffff", "a" * 300]),
    "raw": (pa.binary(), [b"", b"\0\xff", b"\xff" * 300]),
    "is": (pa.bool_(), [True, False]),
    "day": (pa.date32(), DAYS),
    "at": (ZONED, TIMES),
    "local": (LOCAL, TIMES),
    "list": (pa.list_(ZONED), [[time, None] for time in TIMES]),
    "lists": (pa.list_(pa.list_(pa.int32())), [[[1], [], None, [None]], [], [[]]]),
    "map": (pa.map_(ZONED, WHOLE), [[] if time is None else [(time, TOP), (0, None)] for time in TIMES]),
    "nested": (
        pa.struct([("at", ZONED), ("local", LOCAL), ("d", WHOLE), ("l", pa.list_(pa.struct([("at", ZONED)])))]),
        [{"at": time, "local": time, "d": TOP, "l": [{"at": time}]} for time in TIMES],
    ),
}  # fmt: skip
ROWS = pa.table(
    {
        "id": pa.array(range(len(TIMES)), pa.int64()),
        "v": pa.array([0] * len(TIMES), pa.int64()),
        **{
            name: pa.array([*values, *[None] * (len(TIMES) - len(values))], type_)
            for name, (type_, values) in WIDE.items()
        },
    }
)

PLACES = ["Île", "a b", "l'%C3:=/é", "😀", "漢\u0302", "Nord", None]
PARTITION = "région"


def by_deltalake(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def same(found: pa.Table, wanted: pa.Table, *, but: tuple[str, ...] = ()) -> None:
    """Compare two tables, row by row of their ids and bit by bit."""
    assert found.num_rows == wanted.num_rows
    for name in wanted.column_names:
        if name in but:
            continue
        one, other = (
            each.sort_by("id")[name].cast(wanted.schema.field(name).type) for each in (found, wanted)
        )
        # Its text distinguishes -0.0 from 0.0 and takes NaN for NaN.
        assert [str(value) for value in one] == [str(value) for value in other], name


def both_read(spark: SparkSession, path: Path, wanted: pa.Table) -> None:
    same(by_deltalake(path), wanted)
    same(spark.read.format("delta").load(str(path)).toArrow(), wanted)


def versions(rows: pa.Table, changed: dict[int, int]) -> pa.Table:
    """Return rows with other values of `v` (id -> value)."""
    values = [
        changed.get(each, v) for each, v in zip(*rows.select(["id", "v"]).to_pydict().values(), strict=True)
    ]
    return rows.set_column(rows.column_names.index("v"), "v", pa.array(values, pa.int64()))


def publish(folder: Path, *names: str) -> Path:
    stated = {
        "publication": "p",
        "publisher": "./hq",
        "articles": [{"name": name, "key": ["id"]} for name in names],
        "subscriptions": [{"subscriber": "./north"}],
    }
    (folder / "p.yml").write_text(yaml.safe_dump(stated))
    mergerepl.Project.load(folder / "p.yml").apply()
    return folder / "hq"


def synced(hq: Path) -> int:
    """Run a session and return its conflicts."""
    (done,) = mergerepl.Project.load(hq).sync().sessions
    return done.upload.conflicts + done.download.conflicts


@contextmanager
def as_users(spark: SparkSession, **set_to: str) -> Iterator[SparkSession]:
    """Set a session's confs as a user may, and put them back."""
    before = {name: spark.conf.get(name) for name in confs.WRITES}
    try:
        for name, value in {**dict.fromkeys(confs.WRITES), **set_to}.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
        yield spark
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.slow
def test_every_value_and_partition_is_read_and_rewritten_by_both(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    places = pa.table(
        {"id": range(len(PLACES)), PARTITION: pa.array(PLACES, pa.string()), "v": [0] * len(PLACES)}
    )
    write_deltalake(str(hq / "wide"), ROWS)
    write_deltalake(str(hq / "places"), places, partition_by=[PARTITION])
    publish(replica_dir, "wide", "places")
    for root in (hq, north):
        both_read(spark, root / "wide", ROWS)
        both_read(spark, root / "places", places)

    # deltalake finds rows in Spark's files by their bounds, and rewrites them.
    last = "at >= arrow_cast('9999-12-31T23:59:59.999999', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    top = f"d38 = arrow_cast('{TOP}', 'Decimal128(38, 0)')"
    wide = DeltaTable(str(north / "wide"))
    reader = QueryBuilder().register("wide", wide)
    for where in (last, "f64 = cast('NaN' as double)", top, "day <= cast('0001-01-01' as date)"):
        found = pa.table(reader.execute(f"select id from wide where {where}").read_all())
        assert found.num_rows == 1, where
    assert wide.update({"v": "v + 1"}, predicate=last)["num_updated_rows"] == 1
    for root, change in ((north, 5), (hq, 7)):
        DeltaTable(str(root / "wide")).update({"v": str(change)}, predicate="id = 3")
    DeltaTable(str(north / "places")).update({"v": "1"}, predicate="id >= 0")
    DeltaTable(str(north / "places")).delete("id = 0")
    assert synced(hq) == 1
    changed = versions(ROWS, {0: 1, 3: 7})
    places = versions(places, dict.fromkeys(range(len(PLACES)), 1)).filter(pc.field("id") > 0)
    for root in (hq, north):
        both_read(spark, root / "wide", changed)
        both_read(spark, root / "places", places)
        for table in (root / "_mergerepl").iterdir():
            if (table / "_delta_log").is_dir():
                assert faulty_files(table).names == [], table
    lost = conflicts_of(hq).rows("wide").select("id", "v", *WIDE).toArrow()
    same(lost, versions(ROWS.filter(pc.field("id") == 3), {3: 5}))

    # What the session's MERGEs rewrote is deltalake's to rewrite again.
    DeltaTable(str(hq / "wide")).update({"v": "v + 10"}, predicate="id >= 0")
    DeltaTable(str(hq / "places")).update({"v": "2"}, predicate="id >= 0")
    DeltaTable(str(hq / "places")).delete("id = 1")
    rewritten = {row["id"]: row["v"] + 10 for row in changed.select(["id", "v"]).to_pylist()}
    both_read(spark, hq / "wide", versions(changed, rewritten))
    places = versions(places, dict.fromkeys(range(len(PLACES)), 2)).filter(pc.field("id") > 1)
    both_read(spark, hq / "places", places)


@pytest.mark.slow
def test_updates_alone_leave_rows_in_their_partition(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    rows = pa.table({"id": range(6), PARTITION: ["n", "s"] * 3, "v": [0] * 6})
    write_deltalake(str(hq / "places"), rows, partition_by=[PARTITION])
    publish(replica_dir, "places")
    # Spark's files hold the column of the partition, those of deltalake do not.
    for root, key in ((hq, 1), (north, 2)):
        DeltaTable(str(root / "places")).update({"v": "1"}, predicate=f"id = {key}")
        assert synced(hq) == 0
    for root in (hq, north):
        both_read(spark, root / "places", versions(rows, {1: 1, 2: 1}))


OLD = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
}


def active_in_the_jvm(spark: SparkSession) -> str:
    """Return the session of this thread in the JVM: Python makes several values for one session."""
    return str(spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().toString())  # type: ignore[union-attr]


def test_a_users_session_keeps_its_confs_and_we_write_with_ours(
    spark: SparkSession, replica_dir: Path
) -> None:
    write_deltalake(str(replica_dir / "rows"), ROWS)
    write_deltalake(str(replica_dir / "copy"), ROWS.schema.empty_table())
    rows = spark.read.format("delta").load(str(replica_dir / "rows"))
    with as_users(spark, **OLD):
        active = active_in_the_jvm(spark)
        write_files(rows, replica_dir / "files")
        append(rows, replica_dir / "copy", Transaction("app", 1, CommitMark("session", "rows")))
        assert OLD.items() <= {name: spark.conf.get(name) for name in OLD}.items()
        assert active_in_the_jvm(spark) == active
    same(pq.read_table(replica_dir / "files"), ROWS)
    same(by_deltalake(replica_dir / "copy"), ROWS)


def damaged(spark: SparkSession, path: Path) -> None:
    """Write a table as somebody's Spark does: times as INT96, folders named after values."""
    with as_users(spark):
        spark.sql(
            f"create table delta.`{path}` (id bigint, region string, at timestamp, v int) using delta "
            "partitioned by (region) tblproperties ('delta.enableChangeDataFeed' = 'true')"
        )
        rows = spark.sql(
            "select id, if(id < 5, 'Île', 'N') region, timestamp'9999-12-31 00:00:00' at, 0 v from range(10)"
        )
        rows.coalesce(1).write.format("delta").mode("append").save(str(path))


def contents(spark: SparkSession, path: Path) -> list[tuple[object, ...]]:
    rows = spark.read.format("delta").load(str(path)).selectExpr("id", "region", "cast(at as string)", "v")
    return sorted(map(tuple, rows.collect()))


@pytest.mark.slow
def test_a_removal_that_removed_nothing_is_refused_and_mended(spark: SparkSession, replica_dir: Path) -> None:
    hq, path = replica_dir / "hq", replica_dir / "hq" / "s"
    damaged(spark, path)
    publish(replica_dir, "s")
    before = contents(spark, path)
    version = head_version(path)
    DeltaTable(str(path)).update({"v": "1"}, predicate="id = 1")
    assert len(contents(spark, path)) > len(before), "deltalake removed nothing"
    with pytest.raises(CaptureError, match=f"TO VERSION AS OF {version}.*doctor -f {hq} --fix") as refused:
        mergerepl.Project.load(hq).sync()
    assert f"version {version + 1} of table '{path}' (UPDATE, by delta-rs" in str(refused.value)

    (found,) = [each for each in doctor.checks([str(hq)]) if each.name == f"files {path}"]
    assert found.status is doctor.CheckStatus.WARN
    spark.sql(f"restore table delta.`{path}` to version as of {version}")
    assert contents(spark, path) == before
    (found,) = [each for each in doctor.checks([str(hq)]) if each.name == f"files {path}"]
    assert "2 of 2 hold times as INT96" in found.detail
    assert "1 of 2 have names that are not ASCII" in found.detail
    (found,) = [each for each in doctor.checks([str(hq)], mend=True) if each.name == f"files {path}"]
    assert (found.status, found.detail.endswith("Written again: 2")) == (doctor.CheckStatus.OK, True)
    assert not read_commit(path, head_version(path)).data_change
    assert all(
        each.status is doctor.CheckStatus.OK
        for each in doctor.checks([str(hq)])
        if each.name.startswith("files")
    )
    assert contents(spark, path) == before
    DeltaTable(str(path)).update({"v": "1"}, predicate="id = 1")
    DeltaTable(str(path)).delete("id = 2")
    assert synced(hq) == 0
    wanted = [(*row[:3], int(row[0] == 1)) for row in before if row[0] != 2]
    assert contents(spark, path) == contents(spark, replica_dir / "north" / "s") == wanted
    same(by_deltalake(path), by_deltalake(replica_dir / "north" / "s"))


@pytest.mark.slow
def test_mended_files_keep_deletion_vectors_row_ids_and_field_ids(
    spark: SparkSession, replica_dir: Path
) -> None:
    path = replica_dir / "t"
    with as_users(spark):
        spark.sql(
            f"create table delta.`{path}` (id bigint, `a b` struct<at:timestamp,n:int>, c char(3)) using delta "
            "tblproperties ('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true', "
            "'delta.columnMapping.mode' = 'id', 'delta.enableInCommitTimestamps' = 'true')"
        )
        row = "id, named_struct('at', timestamp'1500-01-01', 'n', cast(id as int)) `a b`, 'c' c"
        rows = spark.sql(f"select {row} from range(0, 100000, 1, 1)")
        rows.write.format("delta").mode("append").save(str(path))
        spark.sql(f"delete from delta.`{path}` where id % 7 = 0")

    def read() -> list[Any]:
        frame = spark.read.format("delta").load(str(path))
        frame = frame.selectExpr("id", "`a b`.at", "c", "_metadata.row_id", "_metadata.row_commit_version")
        return frame.selectExpr("sum(xxhash64(*) % 1000000)", "count(*)", "max(row_id)").collect()

    before = read()
    assert mend_files(spark, faulty_files(path), CommitMark("s", "mend")) == 1
    assert read() == before
    assert faulty_files(path).names == []
    head = head_version(path)
    assert mend_files(spark, faulty_files(path), CommitMark("s", "mend")) == 0
    assert head_version(path) == head
    spark.sql(f"update delta.`{path}` set c = 'd' where id = 1")
    assert read()[0][1] == before[0][1]


@pytest.mark.slow
def test_a_delete_that_removed_nothing_can_be_undone(spark: SparkSession, replica_dir: Path) -> None:
    hq, path = replica_dir / "hq", replica_dir / "hq" / "s"
    damaged(spark, path)
    publish(replica_dir, "s")
    version = head_version(path)
    DeltaTable(str(path)).delete("region = 'Île'")
    with pytest.raises(CaptureError, match=f"TO VERSION AS OF {version}"):
        mergerepl.Project.load(hq).sync()
    spark.sql(f"restore table delta.`{path}` to version as of {version}")
    doctor.checks([str(hq)], mend=True)
    assert synced(hq) == 0
    DeltaTable(str(path)).delete("region = 'Île'")
    assert synced(hq) == 0
    assert len(contents(spark, path)) == len(contents(spark, replica_dir / "north" / "s")) == 5
