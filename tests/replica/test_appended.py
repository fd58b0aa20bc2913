"""Tables whose rows are Spark's and whose log is deltalake's: what any Delta reader sees, once, and fenced."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import ROWGUID
from mergerepl.delta import appended
from mergerepl.delta.commits import find_own_commit
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.reads import plain_files, read_columns
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.spark.expression_cost import parameter_column, query_parameter

pytestmark = pytest.mark.spark

PARTS = {
    "c0": pa.decimal128(38, 18),
    "c1": pa.timestamp("us", "UTC"),
    "c2": pa.date32(),
    "c3": pa.list_(pa.struct({"x": pa.binary()})),
    "c4": pa.map_(pa.string(), pa.float32()),
}
SCHEMA = {"generation": pa.int64(), "seq": pa.int64(), "n": pa.timestamp("us"), "row_1": pa.struct(PARTS)}
VALUES = {
    "n": "timestamp_ntz'0001-01-01 00:00:00.000001'",
    "row_1": """named_struct('c0', 12345678901234567890.123456789012345678bd, 'c1', timestamp'1500-03-01 12:00:00.5Z',
        'c2', date'1582-10-04', 'c3', array(named_struct('x', X'00FF'), null), 'c4', map('', float('NaN')))""",
}


def transaction(version: int, app_id: str = "runs") -> Transaction:
    return Transaction(app_id, version, CommitMark(str(uuid4()), f"step:{version}", "replica"))


@pytest.fixture
def table(spark: SparkSession, replica_dir: Path) -> Path:
    path = replica_dir / "with space é" / "runs"
    properties = {STATS_PROPERTY: "generation,seq"}
    DeltaTable.create(str(path), pa.schema(list(SCHEMA.items())), configuration=properties)
    return path


def rows(spark: SparkSession, generation: int, number: int) -> DataFrame:
    return spark.range(number).selectExpr(
        f"{generation}L as generation", "id as seq", *(f"{value} as {name}" for name, value in VALUES.items())
    )


def test_any_reader_sees_every_type_as_it_was_written(spark: SparkSession, table: Path) -> None:
    appended.append(rows(spark, 1, 3), table, transaction(1))
    # A column that the rows lack is NULL; one whose name has another case is the same.
    appended.append(rows(spark, 2, 2).drop("row_1").withColumnRenamed("n", "N"), table, transaction(2))
    through_delta = spark.read.format("delta").load(str(table))
    ours = appended.read(spark, table)
    assert ours.schema == through_delta.schema
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, through_delta.collect()))
    expected = rows(spark, 1, 3).select(ours.columns)
    assert sorted(map(repr, ours.where("generation = 1").collect())) == sorted(map(repr, expected.collect()))
    assert DeltaTable(str(table)).to_pyarrow_table(columns=["seq", "generation"]).num_rows == 5
    assert not list(table.glob("run-*"))


def test_a_run_is_appended_once_and_its_commit_is_found(spark: SparkSession, table: Path) -> None:
    once = transaction(7)
    for _ in range(2):
        appended.append(rows(spark, 1, 2), table, once)
    # An earlier run of the same application is there already; no rows are a commit too.
    appended.append(rows(spark, 1, 2), table, transaction(6))
    appended.append(rows(spark, 1, 0), table, transaction(8))
    log = DeltaTable(str(table))
    assert (log.version(), log.transaction_version("runs")) == (2, 8)
    assert appended.read(spark, table).count() == 2
    found = find_own_commit(table, once.mark, from_version_exclusive=0)
    assert found is not None
    assert found.version == 1
    assert found.mark == once.mark


def test_batches_of_arrow_are_one_append_with_bounds_even_if_some_have_no_rows(table: Path) -> None:
    def batches(*seqs: list[int]) -> Iterator[pa.Table]:
        return (pa.table({"seq": pa.array(each, pa.int64())}) for each in seqs)

    assert appended.append(batches([], [5], [], [7, 6], []), table, transaction(1)) == 3
    assert appended.append(batches([], []), table, transaction(2)) == 0
    (file,) = [file for file in plain_files(open_table(table), bounded=("seq",)) or () if file["num_records"]]
    assert (file["min.seq"], file["max.seq"]) == (5, 7)
    assert appended.row_count(table, from_run_exclusive=6) == 3
    assert appended.row_count(table, from_run_exclusive=7) == 0
    before = sorted(table.iterdir())

    def broken() -> Iterator[pa.Table]:
        yield from batches([8])
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        appended.append(broken(), table, transaction(3))
    assert sorted(table.iterdir()) == before


def test_files_below_the_bound_are_not_read(spark: SparkSession, table: Path) -> None:
    for generation in (1, 2, 3):
        appended.append(rows(spark, generation, 2).coalesce(1), table, transaction(generation))
    assert appended.file_count(table) == 3
    assert len(appended.read(spark, table, {"generation": (2, None)}).inputFiles()) == 1
    assert len(appended.read(spark, table, {"generation": (0, None)}).inputFiles()) == 3
    # Spark prunes by the same bounds.
    through_delta = spark.read.format("delta").load(str(table)).where("generation > 2")
    assert len(through_delta.inputFiles()) == 1
    nothing = appended.read(spark, table, {"generation": (3, None)})
    assert len(nothing.inputFiles()) <= 1
    assert nothing.isEmpty()


def test_two_sides_of_a_session_append_beside_each_other(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has written its rows and not yet committed them when the other comes, which removes what crashes left."""
    written, other_is_done = threading.Event(), threading.Event()
    write = DataFrameWriter.parquet

    def slow(self: DataFrameWriter, path: str) -> None:
        write(self, path)
        monkeypatch.setattr(DataFrameWriter, "parquet", write)
        written.set()
        assert other_is_done.wait(60)

    left = table / "run-of-a-crash"
    left.mkdir()
    monkeypatch.setattr(DataFrameWriter, "parquet", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(appended.append, rows(spark, 1, 2), table, transaction(1, "publisher"))
        assert written.wait(60)
        appended.append(rows(spark, 2, 3), table, transaction(1, "subscriber"))
        other_is_done.set()
        first.result(60)
    assert appended.read(spark, table).count() == 5
    assert not left.exists()
    assert not list(table.glob("run-*"))


def test_of_two_agents_that_append_at_once_one_fails(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, other_is_done = threading.Event(), threading.Event()
    write = appended._written

    def slow(*arguments: object) -> list[Path]:
        files = write(*arguments)  # type: ignore[arg-type]
        written.set()
        assert other_is_done.wait(60)
        return files

    errors: list[BaseException] = []

    def zombie() -> None:
        try:
            appended.append(rows(spark, 1, 2), table, transaction(1))
        except CommitConflictError as error:
            errors.append(error)

    monkeypatch.setattr(appended, "_written", slow)
    thread = threading.Thread(target=zombie)
    thread.start()
    assert written.wait(60)
    monkeypatch.setattr(appended, "_written", write)
    appended.append(rows(spark, 2, 3), table, transaction(1))
    appended.append(rows(spark, 2, 1), table, transaction(1, "of another kind"))
    other_is_done.set()
    thread.join(60)
    assert len(errors) == 1
    assert appended.read(spark, table).count() == 4


@pytest.mark.slow
def test_a_table_with_deletion_vectors_is_read_without_what_was_deleted(
    spark: SparkSession, table: Path
) -> None:
    appended.append(rows(spark, 1, 10), table, transaction(1))
    spark.sql(f"alter table delta.`{table}` set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from delta.`{table}` where seq < 4")
    assert appended.read(spark, table).count() == 6
    appended.append(rows(spark, 2, 1), table, transaction(2))
    assert appended.read(spark, table).count() == 7


def test_what_a_table_cannot_hold_is_refused_and_not_left_out(spark: SparkSession, table: Path) -> None:
    with pytest.raises(StoreError, match=r"'runs' has no column 'more'.*Nothing was appended"):
        appended.append(rows(spark, 1, 2).withColumn("more", F.lit(1)), table, transaction(1))
    # A feature that deltalake does not write: nobody else is at it, so running again would not help.
    spark.sql(f"alter table delta.`{table}` set tblproperties ('delta.feature.rowTracking' = 'supported')")
    with pytest.raises(StoreError, match="cannot be appended to"):
        appended.append(rows(spark, 1, 2), table, transaction(1))
    assert appended.file_count(table) == 0


def test_what_a_crash_left_is_removed_and_an_empty_commit_refused(spark: SparkSession, table: Path) -> None:
    (table / "run-left" / "_temporary" / "0").mkdir(parents=True)
    appended.append(rows(spark, 1, 2), table, transaction(1))
    assert not list(table.glob("run-*"))
    (table / "_delta_log" / f"{2:020d}.json").write_text("")
    with pytest.raises(StoreError, match="empty"):
        appended.read(spark, table)
    with pytest.raises(StoreError, match="empty"):
        appended.append(rows(spark, 1, 2), table, transaction(2))


def test_bounds_that_python_does_not_know_and_foreign_file_names_are_no_obstacle(
    spark: SparkSession, replica_dir: Path
) -> None:
    path = replica_dir / "t"
    spark.sql(
        f"create table delta.`{path}` using delta as select 1L as id, date'-0001-01-01' as d, "
        "timestamp'9999-12-31 23:59:59Z' + interval 20 hours as t, timestamp_ntz'0000-01-01 00:00:00' as n"
    )
    assert plain_files(open_table(path)) is not None
    assert [row["id"] for row in read_columns(spark, path, 0, ["id"]).collect()] == [1]
    first = path / "_delta_log" / f"{0:020d}.json"
    name = next(path.glob("*.parquet")).name
    first.write_text(first.read_text().replace(f'"path":"{name}"', f'"path":"{(path / name).as_uri()}"'))
    assert plain_files(open_table(path)) is None


@pytest.mark.parametrize(
    "folder",
    ["_files/", *(pytest.param(each, marks=pytest.mark.slow) for each in ("files/_", ".", "files/."))],
)
def test_files_that_spark_takes_for_hidden_are_read_through_delta(
    spark: SparkSession, replica_dir: Path, folder: str
) -> None:
    path = replica_dir / "t"
    write_deltalake(str(path), pa.table({"id": [0, 1, 2]}))
    first = path / "_delta_log" / f"{0:020d}.json"
    for file in path.glob("*.parquet"):
        (path / f"{folder}x").parent.mkdir(exist_ok=True)
        file.rename(path / f"{folder}{file.name}")
        first.write_text(first.read_text().replace(f'"path":"{file.name}"', f'"path":"{folder}{file.name}"'))
    assert sorted(row["id"] for row in read_columns(spark, path, 0, ["id"]).collect()) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type_", "clause", "change", "is_plain"),
    [
        ("string", "", "delete from {} where id = 2", True),
        ("char(5)", "", "delete from {} where id = 2", True),
        ("string", "partitioned by (id)", "delete from {} where id = 2", False),
        (
            "string",
            "tblproperties ('delta.enableDeletionVectors' = 'true')",
            "delete from {} where id = 2",
            False,
        ),
        (
            "string",
            "tblproperties ('delta.columnMapping.mode' = 'name')",
            "alter table {} rename column id to n",
            False,
        ),
    ],
)
def test_columns_of_a_version_are_what_delta_reads(
    spark: SparkSession, replica_dir: Path, type_: str, clause: str, change: str, is_plain: bool
) -> None:
    path = replica_dir / "t"
    table = f"delta.`{path}`"
    spark.sql(
        f"create table {table} (id bigint comment 'the key', `odd.name` {type_}, other int) using delta {clause}"
    )
    spark.sql(f"insert into {table} values (1, 'a', 1), (2, 'b', 2), (3, null, 3)")
    spark.sql(change.format(table))
    head = DeltaTable(str(path)).version()
    assert (plain_files(open_table(path)) is not None) == is_plain
    for version in (head - 1, head):
        through_delta = spark.read.format("delta").option("versionAsOf", version).load(str(path))
        key = through_delta.columns[0]
        wanted = through_delta.select("`odd.name`", key)
        ours = read_columns(spark, path, version, ["odd.name", key])
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, wanted.collect()))


def test_what_is_passed_to_a_query_is_no_part_of_its_code(compiled_spark: SparkSession) -> None:
    """Else every session's generation numbers would be new code, to be made and compiled again."""
    compiled = compiled_spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    frame = compiled_spark.range(3).select(F.when(F.col("id") > 0, F.col("id").cast("string")).alias(ROWGUID))
    counts = []
    for number in (101, 102, 103):
        before = compiled.getCount()
        constant = frame.withColumn("terms", F.struct(F.lit(number).cast("bigint").alias("n")))
        rows = constant.select(
            query_parameter(number, "bigint").alias("n"), parameter_column("terms.n").alias("m"), ROWGUID
        )
        rows = rows.where(query_parameter(number, "bigint") > 100)
        assert [(row["n"], row["m"]) for row in rows.collect()] == [(number, number)] * 3
        counts.append(compiled.getCount() - before)
    assert counts[0] > 0
    assert counts[1:] == [0, 0]
