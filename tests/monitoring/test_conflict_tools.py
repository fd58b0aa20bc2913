"""Conflicts decided again: what is written, what is left alone, that it goes everywhere; and what reports conflicts."""

import csv
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyarrow import parquet
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.conflicts.purge import purge_when_due
from mergerepl.delta.log import head_version
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.conflicts import ConflictRecord
from mergerepl.replica.replica import Replica
from mergerepl.systables import conflict_resolutions
from tests.calls import conflicts_of, merge_capture
from tests.faults.deaths import dies
from tests.networks import Pair, versions

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = {1: "<script>alert(1)</script>", 2: "=1+1", 3: "c", 4: "d", 5: "e", 6: "f"}
ROWS = " union all ".join(f"select {key} id, '{name}' name, {key} n" for key, name in NAMES.items())
ARTICLES = {"orders": (ROWS, {"key": ["id"]}), "items": (ROWS, {"key": ["id"], "tracking": "column"})}
EDITS = (
    "update hq.orders set n = n + 10 where id < 4",
    "update north.orders set n = n + 20 where id < 4",
    "delete from hq.orders where id = 4",
    "update north.orders set n = 24 where id = 4",
    "update hq.orders set n = 15 where id = 5",
    "delete from north.orders where id = 5",
    "update hq.items set n = 11, name = 'hq' where id = 1",
    "update north.items set n = 21 where id = 1",
)


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def of(records: tuple[ConflictRecord, ...], article: str, key: int) -> str:
    return next(
        each.conflict_id for each in records if each.article == article and each.key == {"id": str(key)}
    )


class Page(HTMLParser):
    """The elements of a page, and the data in its script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.policy, self.scripts = "", [""]
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.elements.append(tag)
        self._is_script = tag == "script"
        self.policy = (
            dict(attributes).get("content", self.policy) if tag == "meta" and not self.policy else self.policy
        )
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data


def test_conflicts_are_reported_and_decided_again(spark: SparkSession, replica_dir: Path) -> None:
    pair = Pair(spark, replica_dir, ARTICLES)
    pair.edit(*EDITS)
    pair.sync()
    hq = pair.folder / "hq"
    records = conflicts_of(hq).list()
    ids = {(each.article, int(str(each.key["id"]))): each.conflict_id for each in records}
    types = {(each.article, int(str(each.key["id"]))): each.conflict_type for each in records}
    assert types == {
        ("orders", 1): 1,
        ("orders", 2): 1,
        ("orders", 3): 1,
        ("orders", 4): 3,
        ("orders", 5): 4,
        ("items", 1): 2,
    }

    # What reports them.
    counts = conflicts_of(hq).count_by()
    assert {(each.article, each.conflict_type): (each.conflicts, each.columns) for each in counts} == {
        ("orders", 1): (3, {"n": 3}),
        ("orders", 3): (1, {}),
        ("orders", 4): (1, {}),
        ("items", 2): (1, {"n": 1}),
    }
    assert "orders" in run("conflicts", "list", "--count-by", "day,table,type,resolver", "-f", str(hq))
    run("conflicts", "export", "-f", str(hq), "-o", str(pair.folder / "lost"), "--table", "orders")
    with (pair.folder / "lost" / "orders.csv").open(encoding="utf-8", newline="") as stream:
        lost = {row["conflict_id"]: row for row in csv.DictReader(stream)}
    assert (lost[ids["orders", 2]]["loser_name"], lost[ids["orders", 2]]["loser_n"]) == ("'=1+1", "22")
    assert lost[ids["orders", 5]]["loser_n"] == "", "a delete lost"
    run(
        "conflicts",
        "export",
        "-f",
        str(hq),
        "-o",
        str(pair.folder / "lost"),
        "--format",
        "json",
        "--conflict-type",
        "2",
    )
    (item,) = map(json.loads, (pair.folder / "lost" / "items.jsonl").read_text().splitlines())
    assert (item["losing_row"]["n"], item["winning_row"]["n"]) == ("21", "11")
    streamed = run(
        "conflicts", "export", "-f", str(hq), "-o", "-", "--format", "json", "--conflict-type", "2"
    )
    assert json.loads(streamed) == item
    run("conflicts", "export", "-f", str(hq), "-o", "-", exit_code=2)
    run(
        "conflicts",
        "export",
        "-f",
        str(hq),
        "-o",
        "-",
        "--format",
        "parquet",
        "--table",
        "orders",
        exit_code=2,
    )
    run("conflicts", "export", "-f", str(hq), "-o", str(pair.folder / "typed"), "--format", "parquet")
    typed = parquet.read_table(pair.folder / "typed" / "orders.parquet").to_pylist()
    assert {row["conflict_id"]: row["loser_n"] for row in typed}[ids["orders", 2]] == 22
    run("conflicts", "report", "-f", str(hq), "-o", str(pair.folder / "report.html"))
    text = (pair.folder / "report.html").read_text(encoding="utf-8")
    assert run("conflicts", "report", "-f", str(hq), "-o", "-") == text
    page = Page(text)
    assert page.elements.count("script") == 2, "what a row holds is no element"
    assert not re.search(r"https?://|\bsrc=|<link", text)
    assert page.policy.startswith("default-src 'none'; style-src 'sha256-")
    shown = {each["id"]: each for each in json.loads(page.scripts[1])}
    assert shown[ids["orders", 1]]["losing"]["name"] == NAMES[1]
    marks = {column["name"]: column["mark"] for column in shown[ids["items", 1]]["columns"]}
    assert marks == {"id": "", "name": "differs", "n": "conflict"}

    # Nothing is written at all if one table would refuse a row of it.
    pair.sql("alter table hq.items add constraint few check (n < 20)")
    heads = versions(hq)
    for way in ((), ("--dry-run",)):
        refused = " ".join(
            run("conflicts", "resolve", "-f", str(hq), "--all", "--loser", *way, exit_code=1).split()
        )
        assert f"Conflict {ids['items', 1]} of article 'items' cannot be decided so" in refused
        assert """row {"id":1} would break the CHECK constraint 'few' (n < 20)""" in refused
        assert refused.count("Nothing was changed.") == 1
        assert versions(hq) == heads
    pair.sql("alter table hq.items drop constraint few")

    # Decided again: nothing is written of a row that was changed since.
    pair.edit("update hq.orders set name = 'later' where id = 3")
    merge_capture(hq)
    chosen = [ids["orders", key] for key in (1, 3, 4, 5)] + [ids["items", 1]]
    planned = run("conflicts", "resolve", "-f", str(hq), *chosen, "--loser", "--dry-run", exit_code=1)
    assert "4 conflicts would be settled, 4 rows written. Nothing was changed (--dry-run)." in planned
    assert re.search(rf"{ids['orders', 1]} +orders +id=1 +update +n\n", planned)
    assert re.search(rf"{ids['orders', 5]} +orders +id=5 +delete", planned)
    shown = run(
        "conflicts", "resolve", "-f", str(hq), *chosen, "--loser", "--message", "as north says", exit_code=1
    )
    assert "4 conflicts settled, 4 rows written." in shown
    assert re.search(rf"{ids['orders', 3]} +orders +id=3 +name\n", shown)
    # A run that dies is repeated: it writes nothing twice.
    edit = ConflictFilter(ids=(ids["orders", 2],)), {"n": "100", "name": None}
    for point, written in (("resolve.before_merge", NAMES[2]), ("resolve.before_note", None)):
        with dies(point):
            conflicts_of(hq, edit[0]).resolve(edit[1])
        assert pair.rows("hq", "orders")[1][1] == written
    edited = ("conflicts", "resolve", ids["orders", 2], "-f", str(hq), "--set", "n=100", "--set-null", "name")
    assert "1 conflict settled, 0 rows written." in run(*edited)
    run("conflicts", "resolve", ids["orders", 3], "-f", str(hq), "--winner")
    assert pair.rows("hq", "orders") == [
        (1, NAMES[1], 21),
        (2, None, 100),
        (3, "later", 13),
        (4, "d", 24),
        (6, "f", 6),
    ]
    assert pair.rows("hq", "items")[0] == (1, "hq", 21), "of a loser by columns the columns in conflict"
    assert {each.status for each in conflicts_of(hq).list()} == {"settled"}
    assert re.search(
        "settled: what lost was written, by .+Z: as north says\n",
        run("conflicts", "show", ids["orders", 1], "-f", str(hq)),
    )
    for options, count in (
        (("--conflict-type", "1"), 3),
        (("--column", "n", "--table", "items"), 1),
        (("--status", "settled", "--limit", "2"), 6),
    ):
        assert f"\n{count} conflict" in run("conflicts", "list", "-f", str(hq), *options)
    assert run("conflicts", "list", "-f", str(hq), "--status", "open").startswith(f"{hq}: no conflicts")
    both = run("conflicts", "show", ids["orders", 1], ids["items", 1], "-f", str(hq))
    assert both.count("\nConflict ") + both.startswith("Conflict ") == 2
    for command in (
        ("list",),
        ("show",),
        ("drop", "--yes"),
        ("export", "-o", "nowhere"),
        ("report", "-o", "nowhere.html"),
        ("list", "--count-by", "day"),
    ):
        refused = run("conflicts", command[0], "ffff", "-f", str(hq), *command[1:], exit_code=2)
        assert f"There is no conflict 'ffff' at '{hq}': see" in refused
    noted = Replica(hq).control.rows(conflict_resolutions.TABLE)
    assert {(row.choice, row.message) for row in noted} == {
        ("loser", "as north says"),
        ("edited", None),
        ("winner", None),
    }
    # Repeated, it finds the rows as it wants them.
    assert "1 conflict settled, 0 rows written" in run(
        "conflicts", "resolve", ids["orders", 1], "-f", str(hq), "--loser"
    )

    # It goes everywhere, and conflicts with nothing.
    session = pair.sync()
    assert session.upload.conflicts + session.download.conflicts == 0
    assert pair.same_rows("orders")[1:3] == [(2, None, 100), (3, "later", 13)]
    assert pair.same_rows("items")[0] == (1, "hq", 21)

    # What would be written into other columns than the published ones is refused.
    DeltaTable(str(hq / "orders")).alter.add_columns([Field("extra", PrimitiveType("string"))])
    assert "column 'extra' was added" in run(
        "conflicts", "resolve", ids["orders", 2], "-f", str(hq), "--loser", exit_code=1
    )

    # Removed.
    assert "0 conflicts" in run("conflicts", "drop", "-f", str(hq), "--yes"), "they are kept for 14 days"
    assert "6 conflicts, 5 losing rows would be removed" in run(
        "conflicts", "drop", "-f", str(hq), "--older-than", "0h", "--dry-run"
    )
    run("conflicts", "drop", ids["items", 1], "-f", str(hq), "--older-than", "0h", "--yes")
    assert len(conflicts_of(hq).list()) == 5
    for days, left in ((13, 5), (15, 0)):
        purge_when_due((Replica(hq),), now=datetime.now(UTC) + timedelta(days=days))
        assert len(conflicts_of(hq).list()) == left
    assert Replica(hq).control.rows(conflict_resolutions.TABLE) == []
    assert (
        spark.read.format("delta").load(str(hq / "_mergerepl" / "MSmerge_conflict_pair_orders")).count() == 0
    )


def test_nothing_is_decided_again_if_one_table_would_refuse_a_row_by_any_rule(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {
        "orders": "id int, name string, n int",
        "items": "id int, name varchar(3) not null, n int, twice int generated always as (n * 2)",
    }
    for name, columns in tables.items():
        folder = replica_dir / "hq" / name
        spark.sql(f"create table delta.`{folder}` ({columns}) using delta")
        spark.sql(f"insert into delta.`{folder}` (id, name, n) values (1, 'a', 1), (2, 'b', 2)")
    pair = Pair(spark, replica_dir, {name: (None, {"key": ["id"]}) for name in tables})
    for name in tables:
        pair.sql(f"update hq.{name} set n = 10")
        pair.sql(f"update north.{name} set n = 20")
    pair.sync()
    hq = str(pair.folder / "hq")
    items = [each.conflict_id for each in conflicts_of(hq, article="items").list()]
    pair.sql("alter table hq.items add constraint few check (twice < 40)")
    pair.sql("alter table hq.items set tblproperties ('delta.appendOnly' = 'true')")
    heads = versions(pair.folder / "hq")
    rules = (
        ("append-only", ("--loser",)),
        ("CHECK constraint 'few' (twice < 40)", ("--loser",)),
        ("CHECK constraint 'few' (twice < 40)", ("--loser", "--dry-run")),
        ("type varchar(3) of column 'name'", ("--set", "name=long")),
        ("NOT NULL of column 'name'", ("--set-null", "name")),
        ("cannot be computed for the rows: [ARITHMETIC_OVERFLOW]", ("--set", "n=1073741824")),
        ("is int, and 'x' is no such value", ("--set", "n=x")),
    )
    for rule, wish in rules:
        code = 2 if "such" in rule else 1
        refused = " ".join(run("conflicts", "resolve", "-f", hq, "--all", *wish, exit_code=code).split())
        assert rule in refused
        assert refused.count("Nothing was changed.") == 1, refused
        assert code == 2 or any(id_ in refused for id_ in items), refused
        assert versions(pair.folder / "hq") == heads, "the other article has not been written"
        if rule == "append-only":
            pair.sql("alter table hq.items set tblproperties ('delta.appendOnly' = 'false')")
            heads = versions(pair.folder / "hq")
    assert "2 conflicts settled, 2 rows written." in run(
        "conflicts", "resolve", "-f", hq, "--all", "--table", "items", "--set", "n=7"
    )
    assert pair.rows("hq", "items") == [(1, "a", 7, 14), (2, "b", 7, 14)]

    # A change that is made between the decision and its commit is named.
    (first,) = [
        each.conflict_id for each in conflicts_of(hq, article="orders").list() if str(each.key["id"]) == "1"
    ]
    head = head_version(pair.folder / "hq" / "orders")

    def write(point: str) -> None:
        if point == "resolve.before_merge":
            pair.sql("update hq.orders set n = 77 where id = 1")

    monkeypatch.setattr("mergerepl.conflicts.resolve.failpoint", write)
    orders = ("conflicts", "resolve", "-f", hq, "--all", "--table", "orders", "--set", "n=7")
    shown = " ".join(run(*orders, exit_code=1).split())
    assert f"conflict {first} (id=1) was decided while another writer changed its row" in shown
    assert f"is in version {head + 1} of" in shown
    assert pair.rows("hq", "orders") == [(1, "a", 7), (2, "b", 7)]
