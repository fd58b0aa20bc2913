"""Wider types at the publisher reach every subscriber whose table has type widening, before the rows that need them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.errors import MergeReplError
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Published, Star, alter, update
from tests.schema.stars import LADDER as FOLLOWING

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LADDER = ("", *FOLLOWING, "schema.after_alter:2")
TYPES = {"qty": "integer", "price": "float", "cost": "decimal(5,2)", "day": "date"}
WIDE = {"qty": "BIGINT", "price": "DOUBLE", "cost": "DECIMAL(12,4)", "day": "TIMESTAMP_NTZ"}
WIDENING = (
    "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported')"
)
FIRST: Mapping[str, Any] = {"qty": 7, "price": 0.5, "cost": Decimal("1.25"), "day": datetime(2024, 2, 29)}
BIG = {"qty": 2**40, "price": 0.1, "cost": Decimal("12345678.1234"), "day": datetime(2024, 3, 1, 12, 30)}


def with_numbers(table: Path) -> None:
    """Add columns of four types with values."""
    opened = DeltaTable(str(table))
    opened.alter.add_columns([Field(name, PrimitiveType(type_), True) for name, type_ in TYPES.items()])
    opened.update({"qty": "7", "price": "0.5", "cost": "1.25", "day": "date '2024-02-29'"})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Star, Path]:
    """Return a star with unsent edits of the narrow types whose publisher widened four columns; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root", prepared=with_numbers)
    for replica in ("north", "south"):
        alter(spark, star, replica, WIDENING)
    update(spark, star, "north", 1, "qty = 8, price = 0.25, cost = 2.5, day = DATE '2024-01-01'")
    for name in ARTICLES:
        spark.sql(f"INSERT INTO delta.`{star.root / 'north' / name}` (id, qty) VALUES (4, 4)")
    update(spark, star, "south", 2, "qty = 9")
    update(spark, star, "hq", 1, "qty = 10, price = 4, cost = 3, day = DATE '2024-01-02'")
    alter(spark, star, "hq", WIDENING, *(f"ALTER COLUMN {name} TYPE {type_}" for name, type_ in WIDE.items()))
    update(
        spark,
        star,
        "hq",
        3,
        "qty = 1099511627776, price = 0.1, cost = 12345678.1234, day = TIMESTAMP_NTZ '2024-03-01 12:30:00'",
    )
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def rows(spark: SparkSession, star: Star, replica: str, name: str) -> dict[int, dict[str, Any]]:
    found = spark.read.format("delta").load(str(star.root / replica / name)).select("id", *TYPES).collect()
    return {row["id"]: {key: value for key, value in row.asDict().items() if key != "id"} for row in found}


def refusal(star: Star) -> str:
    """Synchronize one subscriber; return why an article, or the session, was refused."""
    try:
        (result,) = star.sync("north")
    except MergeReplError as error:
        return str(error)
    return str(result.error)


@pytest.mark.parametrize("point", LADDER)
def test_wider_types_travel(star: Star, spark: SparkSession, point: str) -> None:
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    won = {"qty": 10, "price": 4.0, "cost": Decimal("3.0000"), "day": datetime(2024, 1, 2)}
    cost = {"cost": Decimal("1.2500")}
    new = {**dict.fromkeys(TYPES), "qty": 4}
    expected = {1: won, 2: {**FIRST, **cost, "qty": 9}, 3: BIG, 4: new}
    lost = {"qty": 8, "price": 0.25, "cost": Decimal("2.5000"), "day": datetime(2024, 1, 1)}
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            table = spark.read.format("delta").load(str(star.root / replica / name))
            assert {n: t.upper() for n, t in table.dtypes if n in WIDE} == WIDE
            assert rows(spark, star, replica, name) == expected, (name, replica)
        (logged,) = star.conflicts("hq", name)
        assert {key: logged[key] for key in lost} == lost


def test_a_conflict_that_was_logged_with_former_types_is_decided(star: Star, spark: SparkSession) -> None:
    star.settle()
    alter(spark, star, "hq", "ALTER COLUMN cost TYPE DECIMAL(20,8)")
    star.settle()
    words = ["conflicts", "resolve", "--all", "--loser", "-f", str(star.root / "hq")]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            found = rows(spark, star, replica, name)[1]
            assert (found["qty"], found["cost"]) == (8, Decimal("2.5")), (name, replica)
            assert found["day"] == datetime(2024, 1, 1)


def test_a_session_whose_rows_were_staged_with_a_former_type_is_given_up(
    star: Star, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergerepl.merge.apply import side

    star.settle()
    update(spark, star, "north", 2, "qty = 21")
    widest = "ALTER COLUMN cost TYPE DECIMAL(20,8)"

    def altered(point: str) -> None:
        if point == "publisher.before_merge":
            monkeypatch.setattr(side, "failpoint", lambda _: None)
            alter(spark, star, "hq", widest)
            update(spark, star, "hq", 3, "cost = 123456789012.12345678")

    monkeypatch.setattr(side, "failpoint", altered)
    assert "given type decimal(20,8)" in refusal(star)
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            found = rows(spark, star, replica, name)
            assert (found[2]["qty"], found[3]["cost"]) == (21, Decimal("123456789012.12345678"))


def test_a_type_that_a_subscribers_user_made_wider_waits_for_the_publishers(
    star: Star, spark: SparkSession
) -> None:
    star.settle()
    widest = "ALTER COLUMN cost TYPE DECIMAL(20,8)"
    update(spark, star, "north", 2, "cost = 5")
    alter(spark, star, "north", widest)
    update(spark, star, "north", 3, "cost = 123456789012.12345678")
    assert "Give the column the same type in the publisher's table" in refusal(star)
    for name in ARTICLES:
        star.project.at().schema.alter(name, ddl=widest)
    star.settle()
    # RESTORE would cut the subscribers' values.
    at = spark.sql(f"DESCRIBE HISTORY delta.`{star.root / 'hq' / 'by_row'}`").where(
        "operation = 'CHANGE COLUMN'"
    )
    version = max(row["version"] for row in at.collect())
    spark.sql(f"RESTORE TABLE delta.`{star.root / 'hq' / 'by_row'}` TO VERSION AS OF {version - 1}")
    assert "Give the column its type again" in refusal(star)
    spark.sql(f"ALTER TABLE delta.`{star.root / 'hq' / 'by_row'}` {widest}")
    star.settle()
    big = Decimal("123456789012.12345678")
    star.subscribe("east")
    star.settle()
    for replica in ("hq", "north", "south", "east"):
        assert rows(spark, star, replica, "by_column")[3]["cost"] == big
        assert rows(spark, star, replica, "by_column")[2]["cost"] == 5
        assert rows(spark, star, replica, "by_row") == rows(spark, star, "hq", "by_row")


FILE = """\
publication: sales
publisher: ./hq
retention: 14 days
articles:
  - {name: customers, key: [id], filter: "region = HOST_NAME()"}
  - {name: items, key: [id], tracking: column}
subscriptions:
  - {subscriber: ./north, type: server, priority: 75.0, host_name: North}
  - {subscriber: ./south, type: server, priority: 50.0, host_name: South}
  - {subscriber: ./east, type: server, priority: 25.0, host_name: South}
"""


@pytest.mark.parametrize("is_replaced", [False, True], ids=["altered", "replaced"])
def test_keys_and_columns_travel_with_row_filters_to_three_subscribers(
    tmp_path: Path, spark: SparkSession, is_replaced: bool
) -> None:
    network = Published(tmp_path)
    ids, qty = pa.array([1, 2, 3], pa.int32()), pa.array([7] * 3, pa.int16())
    regions = ["North", "South", "South"]
    write_deltalake(str(tmp_path / "hq/customers"), pa.table({"id": ids, "region": regions, "qty": qty}))
    write_deltalake(str(tmp_path / "hq/items"), pa.table({"id": ids, "qty": qty}))
    (tmp_path / "mergerepl.yml").write_text(FILE, encoding="utf-8")
    network.project.apply()
    names = ("customers", "items")
    wide = pa.int64()
    for name in names:
        network.table("north", name).update({"qty": "11"}, predicate="id = 1")
        network.table("hq", name).update({"qty": "12"}, predicate="id = 2")
        path = tmp_path / "hq" / name
        if is_replaced:
            table = network.table("hq", name).to_pyarrow_table()
            schema = pa.schema([(f.name, wide if f.name in ("id", "qty") else f.type) for f in table.schema])
            write_deltalake(str(path), table.cast(schema), mode="overwrite", schema_mode="overwrite")
        else:
            for change in (WIDENING, "ALTER COLUMN id TYPE BIGINT", "ALTER COLUMN qty TYPE BIGINT"):
                spark.sql(f"ALTER TABLE delta.`{path}` {change}")
        south = ", 'South'" if name == "customers" else ""
        spark.sql(f"INSERT INTO delta.`{path}` VALUES (1099511627776{south}, 1099511627777)")
        spark.sql(f"UPDATE delta.`{path}` SET qty = 1099511627778 WHERE id = 3")
    for replica in ("north", "south"):
        for name in names:
            spark.sql(f"ALTER TABLE delta.`{tmp_path / replica / name}` {WIDENING}")

    def synchronized() -> dict[str, str]:
        found = [each for _ in range(2) for each in network.project.sync().sessions]
        return {Path(each.subscriber).name: str(each.error or "") for each in found}

    errors = synchronized()
    assert (errors["north"], errors["south"]) == ("", "")
    assert "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')" in errors["east"]
    for name in names:
        spark.sql(f"ALTER TABLE delta.`{tmp_path / 'east' / name}` {WIDENING}")
    assert synchronized() == dict.fromkeys(("north", "south", "east"), "")

    def found(replica: str, name: str) -> dict[int, int]:
        table = spark.read.format("delta").load(str(tmp_path / replica / name))
        assert {n: t for n, t in table.dtypes if n != "region"} == {"id": "bigint", "qty": "bigint"}
        return {row["id"]: row["qty"] for row in table.collect()}

    expected = {1: 11, 2: 12, 3: 2**40 + 2, 2**40: 2**40 + 1}
    for name in names:
        assert found("hq", name) == expected
        for replica in ("north", "south", "east"):
            theirs = {
                k: v for k, v in expected.items() if name == "items" or (k == 1) == (replica == "north")
            }
            assert found(replica, name) == theirs, (replica, name)
    assert network.project.validate().ok
