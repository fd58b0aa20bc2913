"""Rows that a table refuses: logged, kept at their source and sent again, while everything else goes on."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.log import head_version
from tests.networks import publish

NORTH, SOUTH = 0, 1
ROWS = "select cast(id as int) as id, concat('n', id) as name, cast(id as int) as qty from range(6)"


class Stock:
    """A publisher `hq`, and two subscribers whose tables may ask more of their rows than the others do."""

    def __init__(self, spark: SparkSession, folder: Path, tracking: dict[str, str]) -> None:
        self.spark, self.folder = spark, folder
        for name in tracking:
            spark.sql(ROWS).write.format("delta").save(str(folder / "hq" / name))
        articles = [{"name": name, "key": ["id"], "tracking": by} for name, by in tracking.items()]
        publish(folder, "stock", articles, [{"subscriber": "./north"}, {"subscriber": "./south"}])

    def sql(self, *statements: str) -> None:
        for statement in statements:
            words = [
                f"delta.`{self.folder / word.replace('.', '/')}`"
                if word.startswith(("hq.", "north.", "south."))
                else word
                for word in statement.split(" ")
            ]
            self.spark.sql(" ".join(words))

    def sync(self) -> list[tuple[str, int, int]]:
        """Synchronize, and return how each session ended: status, conflicts, waiting changes."""
        sessions = mergerepl.sync(self.folder / "hq", long_running=True).sessions
        assert all(not session.is_failed for session in sessions)
        return [
            (each.status, each.upload.conflicts + each.download.conflicts, each.waiting) for each in sessions
        ]

    def rows(self, replica: str, article: str) -> dict[int, tuple[str, int]]:
        found = DeltaTable(str(self.folder / replica / article)).to_pyarrow_table().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: (row["name"], row["qty"]) for row in found}

    def conflicts(self) -> list[tuple[int, str, int | None, str]]:
        logged = mergerepl.conflict_records(self.folder / "hq", limit=None)
        return sorted(
            (each.conflict_type, str(each.key["id"]), each.reason_code, each.reason_text) for each in logged
        )

    def versions(self) -> list[int]:
        return [head_version(log.parent) for log in sorted(self.folder.glob("*/*/_delta_log"))]


@pytest.mark.timeout(900)
def test_what_a_table_refuses_waits_and_everything_else_goes_on(
    spark: SparkSession, replica_dir: Path
) -> None:
    stock = Stock(spark, replica_dir, {"orders": "row", "log": "row", "past": "column"})
    stock.sql(
        "alter table hq.orders add constraint positive check (qty >= 0)",
        "alter table north.orders add constraint good check (name <> 'bad')",
        "alter table hq.log set tblproperties ('delta.appendOnly' = 'true')",
        "alter table north.past set tblproperties ('delta.appendOnly' = 'true')",
        "insert into north.orders values (10, 'new', -1), (11, 'new', 1)",
        "update north.orders set qty = -5 where id = 1",
        "update north.orders set qty = 33 where id = 3",
        "insert into hq.orders values (20, 'bad', 1), (21, 'new', 1)",
        "update hq.orders set name = 'bad' where id = 2",
        "delete from north.log where id = 3",
        "insert into north.log values (9, 'new', 9)",
        "delete from hq.past where id = 4",
    )
    # South took what north refuses.
    assert stock.sync() == [("succeeded", 6, 6), ("succeeded", 0, 0)]
    assert [logged[:3] for logged in stock.conflicts()] == [
        (5, "10", 1),
        (6, "20", 1),
        (7, "3", 6),
        (8, "4", 6),
        (9, "1", 1),
        (10, "2", 1),
    ]
    assert stock.conflicts()[0][3] == (
        "The publisher's table refuses the inserted row. CHECK constraint 'positive' (qty >= 0)"
    )
    hq, north = stock.rows("hq", "orders"), stock.rows("north", "orders")
    assert {11: ("new", 1), 3: ("n3", 33), 21: ("new", 1), 1: ("n1", 1)}.items() <= hq.items()
    assert {21: ("new", 1), 2: ("n2", 2), 1: ("n1", -5), 10: ("new", -1)}.items() <= north.items()
    assert 10 not in hq
    assert 20 not in north
    assert stock.rows("south", "orders") == hq
    assert 3 in stock.rows("hq", "log")
    assert 9 in stock.rows("south", "log")
    assert 4 in stock.rows("north", "past")
    assert 4 not in stock.rows("south", "past")
    versions = stock.versions()
    for _ in range(2):
        assert stock.sync() == [("nothing_to_do", 0, 6), ("nothing_to_do", 0, 0)]
    assert stock.versions() == versions
    # Other changes travel past what waits, which is logged once; the publisher's edit of such a row is a conflict.
    stock.sql(
        "update hq.orders set name = 'edited' where id = 1",
        "insert into south.orders values (30, 'south', 1)",
        "update north.orders set qty = 7 where id = 10",
    )
    assert stock.sync() == [("succeeded", 1, 4), ("succeeded", 0, 0)]
    # North gets what south uploaded after its session. What it refuses once more is no work for south.
    assert stock.sync() == [("succeeded", 0, 4), ("nothing_to_do", 0, 0)]
    assert stock.sync() == [("nothing_to_do", 0, 4), ("nothing_to_do", 0, 0)]
    assert [logged[:2] for logged in stock.conflicts()] == [
        (1, "1"),
        (5, "10"),
        (6, "20"),
        (7, "3"),
        (8, "4"),
        (9, "1"),
        (10, "2"),
    ]
    assert stock.rows("north", "orders")[1] == ("edited", 1)
    assert stock.rows("south", "orders")[10] == ("new", 7)
    assert stock.rows("north", "orders")[30] == ("south", 1)
    # A mended rule lets it through without an edit, a mended row without a change of the rule.
    stock.sql(
        "alter table hq.log set tblproperties ('delta.appendOnly' = 'false')",
        "alter table north.past set tblproperties ('delta.appendOnly' = 'false')",
        "update hq.orders set name = 'good' where id = 20",
    )
    assert stock.sync() == [("succeeded", 0, 1), ("succeeded", 0, 0)]
    assert stock.rows("north", "orders")[20] == ("good", 1)
    stock.sql("alter table north.orders drop constraint good")
    assert stock.sync() == [("succeeded", 0, 0), ("nothing_to_do", 0, 0)]
    for article in ("orders", "log", "past"):
        assert stock.rows("hq", article) == stock.rows("north", article) == stock.rows("south", article)
    assert stock.sync() == [("nothing_to_do", 0, 0)] * 2
    assert len(stock.conflicts()) == 7
