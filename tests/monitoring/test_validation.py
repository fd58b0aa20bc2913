"""Validation: equal bits are equal, everything else is named by its key."""

import uuid
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.commit_files import few_rows, frame_here
from mergerepl.delta.tables import open_table
from mergerepl.errors import ConfigurationError
from mergerepl.frames import in_process
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import Article
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.compare_tables import (
    SHOWN,
    Compared,
    compare_here,
    compare_tables,
    row_count,
    row_hash,
)
from mergerepl.monitoring.validate import validate_subscription
from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from tests.calls import merge_capture
from tests.networks import Hub, edit_by_delta_rs, lose_changes
from tests.publish.publishing import article, orders

pytestmark = pytest.mark.spark


def in_process_result(folder: Path, published: PublishedArticle) -> ArticleValidation:
    """Compare the tables that `compare` wrote, in process."""
    with in_process():
        rows = []
        for name in ("hq", "north"):
            state = open_table(Location.of(folder) / name)
            rows.append(frame_here(few_rows(state, published.columns, is_key=False), state))
        return compare_here(Compared(published, published, *rows))


def compare(
    spark: SparkSession,
    folder: Path,
    publisher: str,
    subscriber: str,
    *,
    key: tuple[str, ...] = ("id",),
    rowguid: str | None = None,
) -> ArticleValidation:
    """Compare two tables given as queries; the published columns are the publisher's."""
    tables = {"hq": publisher, "north": subscriber}
    for name, query in tables.items():
        spark.sql(query).write.format("delta").save(str(folder / name))
    published = article(spark.sql(publisher), key=key, rowguid=rowguid)
    rows = (spark.read.format("delta").load(str(folder / name)) for name in tables)
    found = compare_tables(Compared(published, published, *rows))
    assert in_process_result(folder, published) == found
    return found


def kinds(result: ArticleValidation) -> dict[str, str]:
    return {",".join(map(str, each.key.values())): each.kind for each in result.examples}


SAME = {
    "nothing at all": ("select 1 as id where false", "select 1 as id where false"),
    "order of rows": ("values (1, 'a'), (2, 'b') as t(id, v)", "values (2, 'b'), (1, 'a') as t(id, v)"),
    "order of columns": ("select 1 as id, 'a' as v, 2 as w", "select 2 as w, 'a' as v, 1 as id"),
    "NOT NULL at one side only": ("select 1 as id, 'a' as v", "select 1 as id, max('a') as v"),
    "a NOT NULL field at one side only": (
        "select 1 as id, array(1) as v",
        "select 1 as id, collect_list(x) as v from values (1), (null) as t(x)",
    ),
    "not a number": ("select 1 as id, double('NaN') as v", "select 1 as id, 0.0D / double('NaN') as v"),
    "order of a map": (
        "select 1 as id, map('a', 1, 'b', 2) as v",
        "select 1 as id, map('b', 2, 'a', 1) as v",
    ),
    "all NULL": ("select 1 as id, string(null) as v", "select 1 as id, string(null) as v"),
    "a NULL struct": (
        "select 1 as id, cast(null as struct<a:int>) as v",
        "select 1 as id, cast(null as struct<a:int>) as v",
    ),
}

DIFFERENT = {
    "NULL and empty text": ("select 1 as id, string(null) as v", "select 1 as id, '' as v"),
    "NULL and zero": ("select 1 as id, int(null) as v", "select 1 as id, 0 as v"),
    "which column is NULL": (
        "select 1 as id, 'a' as v, string(null) as w",
        "select 1 as id, string(null) as v, 'a' as w",
    ),
    "negative zero": ("select 1 as id, 0.0D as v", "select 1 as id, -0.0D as v"),
    "negative zero as float": ("select 1 as id, float(0) as v", "select 1 as id, -float(0) as v"),
    "negative zero in an array": ("select 1 as id, array(0.0D) as v", "select 1 as id, array(-0.0D) as v"),
    "last bit of a double": ("select 1 as id, 0.3D as v", "select 1 as id, 0.1D + 0.2D as v"),
    "trailing blank": ("select 1 as id, 'a' as v", "select 1 as id, 'a ' as v"),
    "value of a map": ("select 1 as id, map('a', 1) as v", "select 1 as id, map('a', 2) as v"),
    "NULL in an array": ("select 1 as id, array('a', null) as v", "select 1 as id, array(null, 'a') as v"),
    "length of an array": ("select 1 as id, array('a') as v", "select 1 as id, array('a', null) as v"),
    "a NULL struct and one of NULLs": (
        "select 1 as id, cast(null as struct<a:int>) as v",
        "select 1 as id, named_struct('a', int(null)) as v",
    ),
    "which field is NULL": (
        "select 1 as id, named_struct('a', 'x', 'b', string(null)) as v",
        "select 1 as id, named_struct('a', string(null), 'b', 'x') as v",
    ),
    "microsecond": (
        "select 1 as id, timestamp'2020-01-01 00:00:00.000001' as v",
        "select 1 as id, timestamp'2020-01-01 00:00:00.000002' as v",
    ),
    "microsecond in a struct": (
        "select 1 as id, named_struct('t', timestamp'2020-01-01 00:00:00.000001') as v",
        "select 1 as id, named_struct('t', timestamp'2020-01-01 00:00:00.000002') as v",
    ),
    "microsecond without zone in an array": (
        "select 1 as id, array(timestamp_ntz'2020-01-01 00:00:00.000001') as v",
        "select 1 as id, array(timestamp_ntz'2020-01-01 00:00:00.000002') as v",
    ),
    "bytes": ("select 1 as id, X'00' as v", "select 1 as id, X'0000' as v"),
    "bytes in an array": ("select 1 as id, array(X'FF') as v", "select 1 as id, array(X'FE') as v"),
    "swapped values": ("select 1 as id, 2 as v, 3 as w", "select 1 as id, 3 as v, 2 as w"),
}


Hashes = dict[tuple[str, int], list[int]]


def hashes(spark: SparkSession, cases: Mapping[str, tuple[str, str]]) -> Hashes:
    """Return the hashes of both sides' rows, of the publisher's columns in the publisher's order."""
    parts = []
    for name, case in cases.items():
        columns = spark.sql(case[0]).columns
        for side, frame in enumerate(spark.sql(query) for query in case):
            hashed = row_hash(columns, frame.schema).alias("hash")
            parts.append(frame.select(F.lit(name).alias("name"), F.lit(side).alias("side"), hashed))
    found: Hashes = {(name, side): [] for name in cases for side in (0, 1)}
    for row in reduce(DataFrame.unionByName, parts).collect():
        found[row["name"], row["side"]].append(row["hash"])
    return {of: sorted(each) for of, each in found.items()}


@pytest.fixture(scope="module")
def hashed(spark: SparkSession) -> Hashes:
    """The hashes of all cases, from one job."""
    return hashes(spark, SAME | DIFFERENT)


def test_no_two_cases_have_one_name() -> None:
    assert len(SAME | DIFFERENT) == len(SAME) + len(DIFFERENT)


@pytest.mark.parametrize("case", SAME)
def test_equal_bits_have_one_hash(hashed: Hashes, case: str) -> None:
    assert hashed[case, 0] == hashed[case, 1]


@pytest.mark.parametrize("case", DIFFERENT)
def test_other_bits_have_other_hashes(hashed: Hashes, case: str) -> None:
    one, other = hashed[case, 0], hashed[case, 1]
    assert len(one) == len(other) == 1
    assert one != other


@pytest.mark.slow
def test_order_of_rows_and_of_columns_plays_no_part(spark: SparkSession, replica_dir: Path) -> None:
    result = compare(
        spark,
        replica_dir,
        "select id, string(id) as v, map(id, 0.0D) as w from range(500)",
        "select map(id, 0.0D) as w, 7 as unpublished, id, string(id) as v from range(499, -1, -1)",
    )
    assert result.ok
    assert (result.publisher_rows, result.subscriber_rows, result.examples) == (500, 500, ())


def test_rows_that_one_side_lacks_or_has_otherwise_are_named(spark: SparkSession, replica_dir: Path) -> None:
    result = compare(
        spark,
        replica_dir,
        "values (1, 'a'), (2, 'b'), (3, 'c'), (6, 'a'), (6, 'a'), (7, 'x'), (7, 'y'), (null, 'n') as t(id, v)",
        "values (2, 'B'), (3, 'c'), (4, 'd'), (5, 'e'), (6, 'a'), (7, 'y'), (7, 'x'), (null, 'N') as t(id, v)",
    )
    assert (result.publisher_rows, result.subscriber_rows, result.differing_rows) == (8, 8, 6)
    assert kinds(result) == {
        "1": "missing_at_subscriber",
        "2": "different",
        "4": "missing_at_publisher",
        "5": "missing_at_publisher",
        # A key of several rows is compared row by row, and NULL is a key.
        "6": "different",
        "None": "different",
    }


@pytest.mark.slow
def test_keys_of_several_columns_are_named_whole(spark: SparkSession, replica_dir: Path) -> None:
    result = compare(
        spark,
        replica_dir,
        "select date'2020-02-29' as d, X'0AFF' as b, decimal(1.50) as m, 1 as v",
        "select date'2020-02-29' as d, X'0AFF' as b, decimal(1.50) as m, 2 as v",
        key=("d", "b", "m"),
    )
    (example,) = result.examples
    assert example.key == {"d": "2020-02-29", "b": "0x0AFF", "m": "2"}


@pytest.mark.slow
def test_all_differences_are_counted_and_the_first_are_named(spark: SparkSession, replica_dir: Path) -> None:
    result = compare(
        spark, replica_dir, "select id, 1 as v from range(1000)", "select id, 2 as v from range(1000)"
    )
    assert result.differing_rows == 1000
    assert list(kinds(result)) == [str(number) for number in range(SHOWN)]


@pytest.mark.slow
def test_a_guid_is_one_identity_in_any_case_of_letters(spark: SparkSession, replica_dir: Path) -> None:
    result = compare(
        spark,
        replica_dir,
        "values ('AB-1', 'x'), ('cd-2', 'y') as t(guid, v)",
        "values ('ab-1', 'x'), ('cd-2', 'y') as t(guid, v)",
        rowguid="guid",
    )
    # The stored text differs, so the row does; it is still one row.
    assert (result.differing_rows, [each.kind for each in result.examples]) == (1, ["different"])


def test_more_columns_than_fit_one_mask(spark: SparkSession) -> None:
    def row(null_at: int) -> str:
        values = (f"{'int(null)' if i == null_at else 7} as c{i}" for i in range(70))
        return f"select 1 as id, {', '.join(values)}"

    found = hashes(spark, {"many": (row(68), row(69))})
    assert len(found["many", 0]) == 1
    assert found["many", 0] != found["many", 1]


def test_rows_are_counted_without_an_engine_where_the_log_has_a_count(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergerepl.monitoring.compare_tables._count_by_spark", lambda table, version: -1)
    spark.range(10).write.format("delta").save(str(replica_dir / "t"))
    spark.sql(f"delete from delta.`{replica_dir}/t` where id < 3")
    assert row_count(replica_dir / "t") == 7


@pytest.mark.slow
def test_rows_are_counted_by_the_engine_where_the_log_has_no_count(
    spark: SparkSession, replica_dir: Path
) -> None:
    table = replica_dir / "t"
    rows = spark.range(10).repartition(1).write.format("delta")
    rows.option("delta.enableDeletionVectors", "true").save(str(table))
    spark.sql(f"delete from delta.`{table}` where id < 3")
    assert row_count(table) == 7
    spark.range(5).write.format("delta").option("delta.dataSkippingNumIndexedCols", "0").save(f"{table}2")
    assert row_count(Path(f"{table}2")) == 5


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    hub.table("orders", {"id": [1, 2, 3], "note": ["a", None, "c"], "secret": [1, 2, 3]})
    hub.table("lines", {"order_id": [1, 1], "n": [1, 2]})
    hub.articles(orders(columns=("id", "note")), Article("lines", "lines", ("order_id", "n")))
    hub.subscribe("north")
    hub.apply()
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    return published.copied(replica_dir)


def validated(hub: Hub, level: str, table: str) -> ArticleValidation:
    (found,) = validate_subscription(hub.root("hq"), hub.root("north"), "sales", level, tables=[table])
    return found


@pytest.mark.parametrize("most_rows_in_process", [pytest.param(0, marks=pytest.mark.slow), 100])
def test_only_divergence_differs_while_changes_wait_to_be_captured_or_sent(
    spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch, most_rows_in_process: int
) -> None:
    monkeypatch.setattr("mergerepl.delta.commit_files.MOST_ROWS", most_rows_in_process)
    hq, north = hub.root("hq"), hub.root("north")
    edit_by_delta_rs(north / "orders", "update t set note = 'lost' where id = 2")
    edit_by_delta_rs(north / "lines", "insert into t values (9, 9)")
    lose_changes(north)
    edit_by_delta_rs(hq / "orders", "update t set note = 'unsent' where id = 1")
    edit_by_delta_rs(north / "orders", "delete from t where id = 3")
    merge_capture(hq)
    merge_capture(north)
    edit_by_delta_rs(hq / "orders", "insert into t values (4, 'uncaptured', 4)")
    if most_rows_in_process:
        monkeypatch.setattr(engine, "session", lambda: pytest.fail("few rows need no engine"))
    orders_ = validated(hub, "checksum", "orders")
    assert (orders_.unsent_at_publisher, orders_.unsent_at_subscriber) == (1, 1)
    assert (orders_.uncaptured_at_publisher, orders_.uncaptured_at_subscriber) == (1, 0)
    # The rows 1 and 3 wait, and row 4 is newer than the captured version.
    assert (orders_.publisher_rows, orders_.subscriber_rows) == (1, 1)
    assert kinds(orders_) == {"2": "different"}
    assert orders_.differing_rows == 1
    lines = validated(hub, "rowcount", "lines")
    assert (lines.publisher_rows, lines.subscriber_rows, lines.ok) == (2, 3, False)
    assert lines.is_certain


def test_what_is_no_subscription_is_refused(hub: Hub) -> None:
    with pytest.raises(ConfigurationError, match="no active subscription"):
        validate_subscription(hub.root("north"), hub.root("hq"), "sales", "rowcount")
