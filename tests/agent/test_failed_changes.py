"""Rows that a table refuses: logged, kept at their source and sent again, while everything else goes on."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.conflicts.purge import purge_when_due
from mergerepl.delta.log import head_version
from mergerepl.failpoints import FailpointError
from mergerepl.model.conflict_filter import ConflictFilter, ConflictStatus
from mergerepl.replica.replica import Replica
from tests.calls import conflicts_of
from tests.faults.deaths import armed
from tests.faults.ladder import LADDER
from tests.networks import edit_by_delta_rs, publish

pytestmark = pytest.mark.slow

NORTH, SOUTH = 0, 1
NAMES = {"id": pa.int32(), "name": pa.string(), "qty": pa.int32()}
ROWS = pa.table(
    [pa.array(range(6), pa.int32()), [f"n{number}" for number in range(6)], pa.array(range(6), pa.int32())],
    schema=pa.schema([pa.field(name, kind, nullable=name != "name") for name, kind in NAMES.items()]),
)
"""As the publisher has them; south, which had its rows already, takes NULL for a name."""


REFUSED = "The publisher's table refuses the inserted row. CHECK constraint 'positive' (qty >= 0)"
UNCHANGED = {number: (f"n{number}", number) for number in range(6)}


class Stock:
    """A publisher `hq`, and two subscribers whose tables may ask more of their rows than the others do."""

    def __init__(
        self, spark: SparkSession, folder: Path, tracking: dict[str, str], **settings: object
    ) -> None:
        self.spark, self.folder, self.tracking = spark, folder, tracking
        for name in tracking:
            write_deltalake(str(folder / "hq" / name), ROWS)
            write_deltalake(str(folder / "south" / name), ROWS.cast(pa.schema(NAMES.items())))
        self.apply(**settings)

    def apply(self, **settings: object) -> None:
        """Apply the file, with these settings of every article."""
        articles = [
            {"name": name, "key": ["id"], "tracking": by, **settings} for name, by in self.tracking.items()
        ]
        publish(
            self.folder,
            "stock",
            articles,
            [{"subscriber": "./north"}, {"subscriber": "./south", "sync_type": "none"}],
        )

    def sql(self, *statements: str) -> None:
        for statement in statements:
            if not statement.startswith("alter"):
                replica, table = re.findall(r"(hq|north|south)\.(\w+)", statement)[0]
                edit_by_delta_rs(self.folder / replica / table, statement)
                continue
            words = [
                f"delta.`{self.folder / word.replace('.', '/')}`"
                if word.startswith(("hq.", "north.", "south."))
                else word
                for word in statement.split(" ")
            ]
            self.spark.sql(" ".join(words))

    def sync(self) -> list[tuple[str, int, int]]:
        """Synchronize, and return how each session ended: status, conflicts, waiting changes."""
        sessions = mergerepl.Project.load(self.folder / "hq").sync().sessions
        assert [session.error for session in sessions if session.is_failed] == []
        return [
            (each.status, each.upload.conflicts + each.download.conflicts, each.waiting) for each in sessions
        ]

    def stops_at(self, point: str) -> bool:
        """Run sessions until one stops at a failpoint; return whether one came there."""
        with armed(point, "stop"):
            try:
                self.sync()
            except FailpointError:
                return True
        return False

    def rows(self, replica: str, article: str) -> dict[int, tuple[str, int]]:
        found = DeltaTable(str(self.folder / replica / article)).to_pyarrow_table().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: (row["name"], row["qty"]) for row in found}

    def conflicts(self) -> list[tuple[int, str, int | None, str]]:
        logged = conflicts_of(self.folder / "hq").list(limit=None)
        return sorted(
            (each.conflict_type, str(each.key["id"]), each.reason_code, each.reason_text) for each in logged
        )

    def open_conflicts(self) -> list[tuple[int, str]]:
        """Return the conflicts that are open, which the choice by status must find, too."""
        logged = conflicts_of(self.folder / "hq").list(limit=None)
        found = sorted((each.conflict_type, str(each.key["id"])) for each in logged if each.status == "open")
        chosen = ConflictFilter(status=ConflictStatus.OPEN)
        named = conflicts_of(self.folder / "hq", chosen).list(limit=None)
        assert sorted((each.conflict_type, str(each.key["id"])) for each in named) == found
        return found

    def versions(self) -> list[int]:
        return [head_version(log.parent) for log in sorted(self.folder.glob("*/*/_delta_log"))]


LONG = LADDER[LADDER.index("stage.before_pointer") :]
"""From where a session has captured all changes on."""


@pytest.mark.parametrize("points", [(), LONG], ids=["none", "all"])
def test_what_a_table_refuses_waits_and_everything_else_goes_on(
    spark: SparkSession, replica_dir: Path, points: tuple[str, ...]
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
        "insert into south.log values (12, null, 1)",
    )
    # A session that dies at each of these is finished by the next one: nothing is lost, and logged once.
    for point in points:
        assert stock.stops_at(point), point
    # South took what north refuses.
    assert stock.sync()[1] == ("succeeded", 1, 1)
    assert [waiting for *_, waiting in stock.sync()] == [6, 1]
    assert [logged[:3] for logged in stock.conflicts()] == [
        (5, "10", 1),
        (5, "12", 2),
        (6, "20", 1),
        (7, "3", 6),
        (8, "4", 6),
        (9, "1", 1),
        (10, "2", 1),
    ]
    assert stock.conflicts()[0][3] == REFUSED
    hq, north = stock.rows("hq", "orders"), stock.rows("north", "orders")
    assert {11: ("new", 1), 3: ("n3", 33), 21: ("new", 1), 1: ("n1", 1)}.items() <= hq.items()
    assert {21: ("new", 1), 2: ("n2", 2), 1: ("n1", -5), 10: ("new", -1)}.items() <= north.items()
    assert 10 not in hq
    assert 20 not in north
    assert stock.rows("south", "orders") == hq
    assert 3 in stock.rows("hq", "log")
    assert {9, 12} <= stock.rows("south", "log").keys()
    assert 12 not in stock.rows("hq", "log")
    assert 4 in stock.rows("north", "past")
    assert 4 not in stock.rows("south", "past")
    versions = stock.versions()
    assert stock.sync() == [("nothing_to_do", 0, 6), ("nothing_to_do", 0, 1)]
    assert stock.versions() == versions
    # Other changes travel past what waits, which is logged once; the publisher's edit of such a row is a conflict.
    stock.sql(
        "update hq.orders set name = 'edited' where id = 1",
        "insert into south.orders values (30, 'south', 1)",
        "update north.orders set qty = 7 where id = 10",
    )
    assert stock.sync() == [("succeeded", 1, 4), ("succeeded", 0, 1)]
    # North gets what south uploaded after its session. What is refused once more, as the user has it sent again, is logged
    # already, and no work for others.
    retried = conflicts_of(stock.folder / "hq").retry().waiting_at
    assert {Path(root).name: count for root, count in retried.items()} == {"hq": 3, "north": 1, "south": 1}
    assert stock.sync() == [("succeeded", 0, 4), ("succeeded", 0, 1)]
    assert stock.sync() == [("nothing_to_do", 0, 4), ("nothing_to_do", 0, 1)]
    assert [logged[:2] for logged in stock.conflicts()] == [
        (1, "1"),
        (5, "10"),
        (5, "12"),
        (6, "20"),
        (7, "3"),
        (8, "4"),
        (9, "1"),
        (10, "2"),
    ]
    # A refused change is open as long as it waits: the one of row 10 was corrected, and the one of row 1 lost a conflict.
    assert stock.open_conflicts() == [(1, "1"), (5, "12"), (6, "20"), (7, "3"), (8, "4"), (10, "2")]
    # What is older than the file keeps goes, but for what waits.
    replicas = [Replica(stock.folder / name) for name in ("hq", "north", "south")]
    purge_when_due(replicas, now=datetime.now(UTC) + timedelta(days=15))
    assert [logged[:2] for logged in stock.conflicts()] == [
        (5, "12"),
        (6, "20"),
        (7, "3"),
        (8, "4"),
        (10, "2"),
    ]
    assert stock.rows("north", "orders")[1] == ("edited", 1)
    assert stock.rows("south", "orders")[10] == ("new", 7)
    assert stock.rows("north", "orders")[30] == ("south", 1)
    # A mended rule lets it through without an edit, a mended row without a change of the rule.
    stock.sql(
        "alter table hq.log set tblproperties ('delta.appendOnly' = 'false')",
        "alter table north.past set tblproperties ('delta.appendOnly' = 'false')",
        "update south.log set name = 'mended' where id = 12",
        "update hq.orders set name = 'good' where id = 20",
    )
    assert stock.sync() == [("succeeded", 0, 1), ("succeeded", 0, 0)]
    assert stock.rows("hq", "log")[12] == ("mended", 1)
    assert stock.rows("north", "orders")[20] == ("good", 1)
    stock.sql("alter table north.orders drop constraint good")
    assert stock.sync() == [("succeeded", 0, 0), ("nothing_to_do", 0, 0)]
    for article in ("orders", "log", "past"):
        assert stock.rows("hq", article) == stock.rows("north", article) == stock.rows("south", article)
    assert stock.sync() == [("nothing_to_do", 0, 0)] * 2
    assert len(stock.conflicts()) == 5
    assert stock.open_conflicts() == []


@pytest.mark.parametrize("points", [("stage.after_manifest",), LONG], ids=["some", "all"])
def test_what_the_publisher_refuses_is_undone_at_its_subscriber_if_the_article_compensates(
    spark: SparkSession, replica_dir: Path, points: tuple[str, ...]
) -> None:
    stock = Stock(
        spark,
        replica_dir,
        {"orders": "row", "log": "row", "past": "column"},
        resolver={"name": "subscriber_wins"},
    )
    stock.sql(
        "alter table hq.orders add constraint positive check (qty >= 0)",
        "alter table hq.past add constraint small check (qty < 100 or name = 'big')",
        "alter table north.past add constraint known check (name <> 'odd')",
        "alter table hq.log set tblproperties ('delta.appendOnly' = 'true')",
        "alter table north.orders add constraint good check (name <> 'bad')",
        "insert into north.orders values (10, 'new', -1), (11, 'new', 1)",
        "update north.orders set qty = -5 where id = 1",
    )
    assert stock.sync()[0] == ("succeeded", 2, 2)
    # The publisher has this row by now: what waits of it is an update.
    stock.sql("update north.orders set qty = -7 where id = 11")
    assert stock.sync()[0] == ("succeeded", 1, 3)
    stock.apply(compensate_for_errors="upload", resolver={"name": "subscriber_wins"})
    stock.sql(
        "update north.orders set qty = -5 where id in (0, 2)",
        "insert into north.orders values (13, 'new', -1)",
        "insert into south.orders values (13, 'south', 5)",
        "update south.orders set name = 'south' where id in (0, 1)",
        "update hq.orders set qty = 22 where id = 2",
        "insert into hq.orders values (20, 'bad', 1)",
        "delete from north.log where id = 3",
        "update north.log set qty = 9 where id = 4",
        "insert into north.log values (9, 'new', 9)",
        "update north.past set qty = 200 where id in (1, 5)",
        "update hq.past set name = 'odd' where id = 5",
    )
    for point in points:
        assert stock.stops_at(point), point
    stock.sync()
    stock.sync()
    # What waited is undone, too. Three rows wait: what north refuses, and two versions of a row that none of the two takes.
    assert stock.sync() == [("nothing_to_do", 0, 3), ("nothing_to_do", 0, 0)]
    assert [logged[:3] for logged in stock.conflicts()] == [
        (5, "10", 1),
        (5, "10", 1),
        (5, "13", 1),
        (6, "20", 1),
        (7, "3", 6),
        (9, "0", 1),
        (9, "1", 1),
        (9, "1", 1),
        (9, "1", 1),
        (9, "11", 1),
        (9, "11", 1),
        (9, "2", 1),
        (9, "4", 6),
        (9, "5", 1),
    ]
    assert [logged[3] for logged in stock.conflicts()[:2]] == [
        REFUSED,
        f"{REFUSED}. The row goes back to what the publisher has.",
    ]
    hq = {article: stock.rows("hq", article) for article in ("orders", "log", "past")}
    # What south did to the same rows is no conflict: no other replica gets to know of what was undone.
    souths = {0: ("south", 0), 1: ("south", 1), 13: ("south", 5)}
    assert hq["orders"] == {**UNCHANGED, **souths, 2: ("n2", 22), 11: ("new", 1), 20: ("bad", 1)}
    assert hq["log"] == {**UNCHANGED, 9: ("new", 9)}
    assert hq["past"] == {**UNCHANGED, 5: ("odd", 5)}
    assert all(stock.rows("south", article) == rows for article, rows in hq.items())
    assert stock.rows("north", "orders") == {id_: row for id_, row in hq["orders"].items() if id_ != 20}
    assert stock.rows("north", "log") == hq["log"]
    assert stock.rows("north", "past") == {**UNCHANGED, 5: ("n5", 200)}
    # What was undone is a decided conflict. The lost row cannot be written as it is: the table still refuses that.
    undone = {
        each.key["id"]: each.conflict_id
        for each in conflicts_of(stock.folder / "hq").list(limit=None)
        if each.resolver == "compensate_for_errors"
    }
    chosen = ConflictFilter(ids=(undone["10"],))
    with pytest.raises(mergerepl.MergeReplError, match="CHECK constraint 'positive'"):
        conflicts_of(stock.folder / "hq", chosen).resolve("loser")
    # Other writes of the table that are not captured yet are no change of the row, though nothing is recorded of it.
    other = ConflictFilter(ids=(undone["11"],))
    for each, values in ((other, {"name": "later"}), (chosen, {"qty": "7"})):
        done = conflicts_of(stock.folder / "hq", each).resolve(values)
        assert (done.settled, done.written, done.changed_since) == (1, 1, ())
    assert stock.sync() == [("succeeded", 0, 3), ("succeeded", 0, 0)]
    assert stock.rows("north", "orders")[10] == stock.rows("south", "orders")[10] == ("new", 7)
    versions = stock.versions()
    assert stock.sync() == [("nothing_to_do", 0, 3), ("nothing_to_do", 0, 0)]
    assert stock.versions() == versions
