"""Bad inputs (reliability.md c5): each is refused with object, cause and next step, and changes nothing."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mergerepl.config.stated import check_stated
from mergerepl.delta.table import open_table
from mergerepl.errors import ConfigurationError, MergeReplError, PublicationError, StoreError
from mergerepl.model.progress import NoProgress
from mergerepl.model.publication import Article, Publication, Subscription, SyncType, Tracking
from mergerepl.publish import rows
from mergerepl.publish.agent import Agent
from mergerepl.publish.apply import check_places
from mergerepl.publish.carry_out import ApplyRun
from mergerepl.publish.check_article import check_article, read_article_table
from mergerepl.publish.check_rows import check_rows, check_texts
from mergerepl.publish.check_subscriber import check_target
from mergerepl.publish.initialise import check_same_rows
from mergerepl.rows.sql import literal
from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from tests.networks import Hub, article_row
from tests.publish.publishing import column, orders
from tests.publish.unpublishable import ID, TABLES, VECTOR


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_published_is_refused(replica_dir: Path, case: str) -> None:
    prepare, article, message = TABLES[case]
    hub = Hub(replica_dir)
    prepare(hub)
    with pytest.raises(PublicationError, match=f"(?s){message}"):
        check_article(article, read_article_table(article, Location.of(hub.publisher) / article.table))


def test_a_refused_table_changes_nothing_and_starts_no_jvm(replica_dir: Path) -> None:
    hub, before = Hub(replica_dir), engine.jvm_pid()
    hub.table("orders", {"id": [1]})
    hub.empty_table("lines", [ID, column("x", "void")])
    hub.articles(orders(), Article("lines", "lines", ("id",)))
    hub.subscribe("north")
    refused(hub, "'x' is VOID")
    assert engine.jvm_pid() == before


GENERATED = column("n", "integer", **{"delta.generationExpression": "id + 1"})
OTHERWISE = column("n", "integer", **{"delta.generationExpression": "id + 2"})
PLAIN = column("n", "integer")
TEXT = column("c", "string")
CHAR = column("c", "string", __CHAR_VARCHAR_TYPE_STRING="char(5)")
VARCHAR = column("c", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(9)")


def char_inside(length: int) -> dict[str, object]:
    """Return a column as Spark declares it: the type of the whole column stands beside it, none at its parts."""
    declared = f"struct<c:char({length})>"
    return column("s", {"type": "struct", "fields": [TEXT]}, __CHAR_VARCHAR_TYPE_STRING=declared)


OWN_TABLES: dict[str, tuple[dict[str, object], dict[str, object], dict[str, str], str]] = {
    "a generated column": (PLAIN, GENERATED, {}, r"'n' is generated as \(id \+ 1\), and the publisher's is not"),
    "a column not generated": (GENERATED, PLAIN, {}, r"'n' is not generated, and the publisher's is generated"),
    "another expression": (
        GENERATED,
        OTHERWISE,
        {},
        r"as \(id \+ 2\), and the publisher's is generated as \(id \+ 1\)",
    ),
    "an identity column": (
        PLAIN,
        column("n", "integer", **{"delta.identity.start": 1}),
        {},
        "takes table '.*north/orders' as it is, but its column 'n' is an identity column",
    ),
    "a string for a char": (CHAR, TEXT, {}, r"'c' is string instead of char\(5\)"),
    "a char for a string": (TEXT, CHAR, {}, r"'c' is char\(5\) instead of string"),
    "another length": (CHAR, VARCHAR, {}, r"'c' is varchar\(9\) instead of char\(5\)"),
    "a char inside": (
        char_inside(5),
        char_inside(7),
        {},
        r"'s' is struct<c:char\(7\)> instead of struct<c:char\(5\)>",
    ),
    "a user-defined type": (
        column("n", {"type": "array", "elementType": "double", "containsNull": True}),
        column("n", VECTOR),
        {},
        "north/orders' has a column of a user-defined type",
    ),
    "append-only": (PLAIN, PLAIN, {"delta.appendOnly": "true"}, "north/orders' is append-only .*Unset the property"),
}  # fmt: skip


@pytest.mark.parametrize("case", OWN_TABLES)
def test_a_subscribers_own_table_that_cannot_be_taken_is_refused(replica_dir: Path, case: str) -> None:
    ours, theirs, properties, message = OWN_TABLES[case]
    hub = Hub(replica_dir)
    hub.empty_table("orders", [ID, ours])
    hub.empty_table("orders", [ID, theirs], at="north", **properties)
    source = open_table(Location.of(hub.publisher / "orders"))
    row = rows.article_row(hub.publication, orders(), source, pubid="p", artid="a", nickname=1)
    there = Subscription(str(hub.root("north")), sync_type=SyncType.NONE)
    with pytest.raises(PublicationError, match=message):
        check_target(Location.of(hub.publisher), there, row, None)


def refused(hub: Hub, message: str, error: type[MergeReplError] = PublicationError) -> None:
    before = hub.snapshot_of_files()
    with pytest.raises(error, match=f"(?s){message}"):
        hub.apply()
    assert hub.snapshot_of_files() == before
    assert sorted(path.name for path in hub.folder.iterdir()) == sorted(
        {Path(path).relative_to(hub.folder).parts[0] for path in before} | {"hq"}
    )


def place(root: str) -> Callable[[Hub], None]:
    def prepare(hub: Hub) -> None:
        subscriptions = (Subscription(root.format(folder=hub.folder)),)
        hub.publication = replace(hub.publication, subscriptions=subscriptions)

    return prepare


def file_as_subscriber(hub: Hub) -> None:
    (hub.folder / "north").write_text("x")
    hub.subscribe("north")


def twice(hub: Hub) -> None:
    (hub.folder / "north").mkdir()
    (hub.folder / "north" / "stays").touch()
    (hub.folder / "link").symlink_to(hub.folder / "north")
    hub.subscribe("north")
    hub.subscribe("link")


def one_table_twice(hub: Hub) -> None:
    (hub.publisher / "link").symlink_to(hub.publisher / "orders")
    hub.articles(orders(), Article("again", "link", ("id",)))


def table_in_table(hub: Hub) -> None:
    hub.articles(orders(), Article("inner", "orders/inner", ("id",)))


PLACES: dict[str, tuple[Callable[[Hub], None], str]] = {
    "the publisher itself": (place("{folder}/hq"), "is the same folder as the publisher"),
    "the publisher by another name": (place("{folder}/hq/../hq/"), "is the same folder as the publisher"),
    "inside the publisher": (place("{folder}/hq/north"), "lies inside the folder of the publisher"),
    "around the publisher": (place("{folder}"), "holds the folder of the publisher"),
    "a URI": (place("s3://key:secret@bucket/x"), r"s3://\*\*\*@bucket.*holds credentials"),
    "a relative path": (place("north"), "not an absolute path"),
    "a file": (file_as_subscriber, "is a file"),
    "one folder twice": (twice, r"is the same folder as subscriptions\[0\]"),
    "a name delta-rs cannot open": (place("{folder}/no%20rth"), "%20.*Rename the folder"),
    "a name Spark takes for a pattern": (place("{folder}/{{north,south}}"), r"\{ in its path.*Rename"),
    "a table name delta-rs cannot open": (
        lambda hub: hub.articles(Article("x", "a[b]", ("id",))),
        r"\[ in its path.*Rename",
    ),
    "one table twice": (one_table_twice, "'again': its table .* belongs to article 'orders' at the publisher"),
    "a table inside another": (table_in_table, "'orders/inner', inside the table 'orders'"),
    "articles equal but for case": (
        lambda hub: hub.articles(orders(), Article("Orders", "o2", ("id",))),
        "'Orders', and an article 'orders' is there already",
    ),
    "an article with a slash": (lambda hub: hub.articles(Article("a/b", "orders", ("id",))), "a name has letters"),
    "no articles": (lambda hub: hub.articles(), "articles is empty"),
    "a system table": (
        lambda hub: hub.articles(Article("x", "_mergerepl/MSmerge_contents", ("rowguid",))),
        "not folders of users' tables",
    ),
    "the root as a table": (lambda hub: hub.articles(Article("x", ".", ("id",))), "must lie inside the replica root"),
}  # fmt: skip


def check_without_tables(publication: Publication) -> None:
    check_stated(publication)
    check_places(publication)


@pytest.mark.parametrize("case", PLACES)
def test_a_place_that_cannot_be_a_replica_is_refused(replica_dir: Path, case: str) -> None:
    prepare, message = PLACES[case]
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1]})
    hub.articles(orders())
    prepare(hub)
    with pytest.raises((ConfigurationError, PublicationError), match=f"(?s){message}"):
        check_without_tables(hub.publication)


def test_a_missing_publisher_is_refused(replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.articles(orders())
    shutil.rmtree(hub.publisher)
    with pytest.raises(PublicationError, match=r"does not exist"):
        check_places(hub.publication)


ROWS: dict[str, tuple[dict[str, list[object]], Article, str]] = {
    "NULL keys": ({"id": [1, None, None]}, orders(), "NULL values.*id=NULL"),
    "duplicate keys": ({"id": [1, 2, 2, 3, 3]}, orders(), "duplicate values"),
    "duplicate compound keys": (
        {"id": [1, 1], "n": ["a", "a"]},
        orders(key=("id", "n")),
        r"key \(id, n\).*id=1, n=a",
    ),
    "more than five": ({"id": [i // 2 for i in range(20)]}, orders(), "and more"),
    "rowguids that are no GUIDs": (
        {"id": [1], "g": ["nonsense"]},
        orders(key=(), rowguid="g"),
        "rowguid column.*no GUIDs.*g=nonsense",
    ),
    "rowguids equal but for case": (
        {"id": [1, 2], "g": ["3F2504E0-4F89-11D3-9A0C-0305E82C3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"]},
        orders(key=(), rowguid="g"),
        "duplicate values",
    ),
    "rowguids that are NULL": ({"g": [None, None]}, orders(key=(), rowguid="g"), "NULL values"),
}


@pytest.mark.slow
@pytest.mark.spark
def test_files_outside_the_table_are_refused(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.table("orig inal", {"id": [1]})
    spark.sql(f"CREATE TABLE delta.`{hub.publisher}/orders` SHALLOW CLONE delta.`{hub.publisher}/orig inal`")
    hub.articles(orders())
    refused(hub, "files outside its folder.*orig inal/part.*CREATE TABLE")
    hub.articles(replace(orders(), table="orig inal"))
    shutil.copytree(hub.publisher / "orders", hub.root("north") / "orig inal")
    hub.subscribe("north", sync_type=SyncType.NONE)
    refused(hub, "north/orig inal' has files outside its folder.*hq/orig inal/part.*leave `sync_type` out")


@pytest.mark.spark
def test_a_missing_data_file_is_an_error_of_ours(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    path = hub.table("orders", {"id": [1]})
    next(path.glob("*.parquet")).unlink()
    hub.articles(orders())
    refused(hub, "while the publication was checked: .*run `mergerepl apply`", StoreError)


@pytest.mark.spark
@pytest.mark.parametrize("case", ROWS)
def test_rows_without_an_identity_are_refused(spark: SparkSession, replica_dir: Path, case: str) -> None:
    values, article, message = ROWS[case]
    types = {"id": pa.int64(), "g": pa.string(), "n": pa.string()}
    path = Hub(replica_dir).table(
        "orders", {name: pa.array(each, types[name]) for name, each in values.items()}
    )
    with pytest.raises(PublicationError, match=message):
        check_rows(lambda: spark, article, open_table(Location.of(path)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "that no value is empty"),
        pytest.param(
            "__HIVE_DEFAULT_PARTITION__",
            "that no value is '__HIVE_DEFAULT_PARTITION__'",
            marks=pytest.mark.slow,
        ),
        pytest.param("x\0y", "that no value has the character U\\+0000", marks=pytest.mark.slow),
    ],
)
def test_a_text_that_spark_cannot_write_to_a_partition_is_refused(
    spark: SparkSession, replica_dir: Path, text: str, says: str
) -> None:
    values = {"id": list(range(6)), "r": ["fine", "fine", text, text, text, text]}
    table = open_table(Location.of(Hub(replica_dir).table("orders", values, partition_by=["r"])))
    rule = rf"orders' breaks the rule of partition column 'r' {says}.*: id=\d; id=\d; id=\d and more\. Give"
    with pytest.raises(PublicationError, match=rule):
        check_texts(lambda: spark, orders(), table)
    check_texts(lambda: spark, orders(columns=("id",)), table)


@pytest.mark.slow
def test_a_text_too_long_for_the_folders_of_a_copy_is_refused(spark: SparkSession, replica_dir: Path) -> None:
    """Column mapping gives the publisher's files other names, and a copy has none."""
    hub = Hub(replica_dir)
    table = f"delta.`{hub.publisher / 'orders'}`"
    spark.sql(
        f"create table {table} (id int, r string) using delta partitioned by (r) "
        "tblproperties ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"insert into {table} values (1, repeat('x', 254)), (2, repeat('x', 253))")
    hub.articles(orders())
    hub.subscribe("north")
    refused(hub, r"partition column 'r' that no value makes a folder's name of more than 255 bytes.*: id=1\.")
    spark.sql(f"delete from {table} where id = 1")
    hub.apply()
    assert spark.read.format("delta").load(str(hub.root("north") / "orders")).count() == 1


@pytest.mark.slow
def test_a_text_that_spark_cannot_write_is_refused_before_a_later_subscriber_gets_it(
    spark: SparkSession, replica_dir: Path
) -> None:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1], "r": ["fine"]}, partition_by=["r"])
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    hub.table("orders", {"id": [2], "r": [""]}, mode="append")
    hub.subscribe("south")
    before = hub.snapshot_of_files()
    with pytest.raises(PublicationError, match=r"'r' that no value is empty.*: id=2\."):
        hub.apply()
    assert hub.snapshot_of_files() == before


def test_a_column_generated_from_one_left_out_is_refused(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    path = hub.publisher / "orders"
    spark.sql(f"CREATE TABLE delta.`{path}` (id int, a int, b int GENERATED ALWAYS AS (a + 1)) USING delta")
    hub.articles(orders(columns=("id", "b")))
    with pytest.raises(PublicationError, match=r"'b' is generated from columns that `columns:` leaves out"):
        hub.apply()
    assert not (hub.publisher / "_mergerepl").exists()
    hub.articles(orders(columns=("id", "a", "b")))
    hub.apply()


def test_a_key_column_that_two_halves_of_a_row_could_change_is_refused(
    spark: SparkSession, replica_dir: Path
) -> None:
    hub = Hub(replica_dir)
    path = hub.publisher / "orders"
    columns = (
        "id int, a int, c int, half int GENERATED ALWAYS AS (id % 2), next int GENERATED ALWAYS AS (a + 1)"
    )
    columns += ", b int GENERATED ALWAYS AS (a + c)"
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    hub.articles(orders(key=("id", "half", "b"), tracking=Tracking.COLUMN))
    with pytest.raises(
        PublicationError, match=r"key column 'b' is generated from several columns outside of"
    ):
        hub.apply()
    assert not (hub.publisher / "_mergerepl").exists()
    hub.articles(orders(key=("id", "half", "next"), tracking=Tracking.COLUMN))
    hub.apply()


@pytest.mark.slow
def test_generated_values_of_another_time_zone_are_refused(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    path = hub.publisher / "orders"
    rome = spark.newSession()
    rome.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    rome.sql(
        f"CREATE TABLE delta.`{path}` (id int, ts timestamp, day date GENERATED ALWAYS AS (CAST(ts AS DATE)), x int)"
        " USING delta"
    )
    times = ("2024-01-01 00:30:00", "2024-01-01 12:30:00", None)
    values = ", ".join(
        f"({i}, CAST({literal(t) if t else 'NULL'} AS timestamp), 1)" for i, t in enumerate(times)
    )
    rome.sql(f"INSERT INTO delta.`{path}` (id, ts, x) VALUES {values}")
    hub.articles(orders())
    says = r"in 1 row of table '.*orders', generated column 'day' is not .*\(CAST\(ts AS DATE\)\).*time zone is UTC"
    refused(hub, says)
    run = ApplyRun(hub.publication, "p", hub.publisher, Agent(), NoProgress())
    table = open_table(path)
    published = ("id", "ts", "day", "x")
    article = article_row("orders", 1, published_columns=published, key_columns=("id",))
    with pytest.raises(PublicationError, match=says):
        check_same_rows(run, article, table, 1, table, 1)
    spark.sql(f"UPDATE delta.`{path}` SET x = x WHERE id = 0")
    hub.subscribe("north")
    hub.apply()
    assert spark.read.format("delta").load(str(hub.root("north") / "orders")).count() == 3


@pytest.mark.slow
def test_a_text_longer_than_it_is_declared_is_refused_before_it_is_copied(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Spark measures what it writes, so that the copy would fail; delta-rs does not."""
    hub = Hub(replica_dir)
    table = f"delta.`{hub.publisher / 'orders'}`"
    spark.sql(f"create table {table} (id bigint, r varchar(3)) using delta")
    hub.table("orders", {"id": [1], "r": ["North"]}, mode="append")
    hub.articles(orders())
    hub.subscribe("north")
    refused(hub, r"breaks the type varchar\(3\) of column 'r'.*: id=1\. Give")
    spark.sql(f"delete from {table} where id = 1")
    hub.apply()
    hub.table("orders", {"id": [2], "r": ["South"]}, mode="append")
    hub.subscribe("south")
    refused(hub, r"breaks the type varchar\(3\) of column 'r'.*: id=2\. Give")
