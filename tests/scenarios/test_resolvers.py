"""Articles with resolvers of their own in one publication: what two sides come to, and that it is counted once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.cli.main import main
from mergerepl.model.conflict_filter import ConflictFilter
from tests.calls import conflicts_of, validated
from tests.networks import Pair

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def of(resolver: dict[str, str], tracking: str = "column") -> dict[str, Any]:
    return {"key": ["id"], "tracking": tracking, "resolver": resolver}


def rows(value: str, type_: str) -> str:
    return f"select 1 id, cast({value} as {type_}) v, 'as it was' note"


ARTICLES = {
    "counter": (rows("10", "int"), of({"name": "delta", "column": "v"})),
    "tags": (rows("array('new', 'red')", "array<string>"), of({"name": "union", "column": "v"})),
    "address": (
        rows("map('city', 'Bonn', 'zip', '1')", "map<string,string>"),
        of({"name": "fields", "column": "v"}),
    ),
    "stock": (rows("10", "int"), of({"name": "additive", "column": "v"})),
    "rating": (rows("2.00", "decimal(5,2)"), of({"name": "averaging", "column": "v"})),
    "record": (rows("10", "bigint"), of({"name": "maximum", "column": "v"}, "row")),
    "visit": (rows("'2024-01-01'", "date"), of({"name": "datetime_later_wins", "column": "v"}, "row")),
    "remark": (
        rows("'call'", "string"),
        of({"name": "Microsoft SQL Server Merge Text Conflict Resolver", "resolver_info": "[v][; ]"}),
    ),
    "field": (rows("1", "int"), of({"name": "subscriber_wins"}, "row")),
    "price": (rows("1", "int"), of({"name": "most_changes_win"})),
}
EDITS = {
    "counter": ("v = v + 2", "v = v + 5, note = 'north'"),
    "tags": ("v = array('red', 'sale')", "v = array('new', 'red', 'big')"),
    "address": ("v = map('city', 'Köln', 'zip', '1')", "v = map('city', 'Bonn', 'zip', '2')"),
    "stock": ("v = 12", "v = 15, note = 'north'"),
    "rating": ("v = 3.01", "v = 4.00"),
    "record": ("v = 11", "v = 30"),
    "visit": ("v = date'2024-02-01'", "v = date'2024-03-01'"),
    "remark": ("v = 'call back'", "v = 'call off'"),
    "field": ("v = 2", "v = 3"),
    "price": ("v = 2", "v = 3, note = 'sale'"),
}
OUTCOME = {
    "counter": ("17", "as it was"),
    "tags": ("['red', 'sale', 'big']", "as it was"),
    "address": ("[('city', 'Köln'), ('zip', '2')]", "as it was"),
    "stock": ("27", "as it was"),
    "rating": ("3.51", "as it was"),
    "record": ("30", "as it was"),
    "visit": ("2024-03-01", "as it was"),
    "remark": ("call back; off", "as it was"),
    "field": ("3", "as it was"),
    "price": ("3", "sale"),
}


MANY = "select cast(id as int) id, 0 v, 'as it was' note from range(1, 8)"
ONE_WAY = {
    "down": (MANY, of({"name": "download_only"}, "row")),
    "up": (MANY, of({"name": "Microsoft SQL Server Upload Only Conflict Resolver"})),
}


class Network(Pair):
    def edits(self, article: str, *edits: str) -> None:
        """Write `replica key change`: a value of v, `delete` or `insert`."""
        for replica, key, change in (edit.split() for edit in edits):
            if change == "delete":
                self.edit(f"delete from {replica}.{article} where id = {key}")
            elif change == "insert":
                self.edit(f"insert into {replica}.{article} values ({key}, 1, '{replica}')")
            else:
                self.edit(f"update {replica}.{article} set v = {change} where id = {key}")

    def values(self, article: str) -> dict[str, dict[int, int]]:
        """Return by replica the rows that are not as they were: key to v (-1: gone)."""
        found = {
            name: {int(row[0]): int(row[1]) for row in self.rows(name, article)} for name in ("hq", "north")
        }
        return {
            name: {key: rows.get(key, -1) for key in sorted({*rows, *range(1, 8)}) if rows.get(key, -1) != 0}
            for name, rows in found.items()
        }

    def logged(self, article: str) -> list[tuple[int, int, bool]]:
        """Return key, type and whether the loser was a delete, of all conflicts."""
        records = conflicts_of(self.folder / "hq", article=article).list(with_rows=True)
        return sorted((int(each.key["id"]), each.conflict_type, each.losing_row is None) for each in records)


def same(values: dict[int, int]) -> dict[str, dict[int, int]]:
    return {"hq": values, "north": values}


@pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_article_is_decided_by_its_resolver_and_once(
    spark: SparkSession, replica_dir: Path, is_full: bool
) -> None:
    names = tuple(ARTICLES) if is_full else ("counter",)
    pair = Network(spark, replica_dir, {name: ARTICLES[name] for name in names} | ONE_WAY)

    def outcome() -> dict[str, tuple[str, str]]:
        found = {name: pair.same_rows(name) for name in names}
        return {name: (str(row[1]), str(row[2])) for name, (row,) in found.items()}

    for name in names:
        for replica, values in zip(("hq", "north"), EDITS[name], strict=True):
            pair.sql(f"update {replica}.{name} set {values}")
    # Of the subscriber nothing is taken, and its rows become the publisher's again.
    pair.edits("down", "north 1 1", "north 2 delete", "north 13 insert", "hq 4 2", "north 4 3")
    pair.edits("down", "hq 5 5", "hq 6 delete", "north 7 7")
    # Of the publisher nothing is taken, and it keeps its rows.
    pair.edits("up", "north 1 1", "hq 2 2", "hq 3 3", "hq 4 delete", "hq 14 insert", "north 15 insert")
    pair.edit("update north.up set note = 'north' where id = 3")
    pair.edits("up", "north 7 delete")
    session = pair.sync()
    assert session.upload.conflicts + session.download.conflicts == len(names) + 9
    assert outcome() == {name: OUTCOME[name] for name in names}
    assert pair.values("down") == same({4: 2, 5: 5, 6: -1})
    assert pair.logged("down") == [
        (1, 11, False),
        (2, 11, True),
        (4, 1, False),
        (7, 11, False),
        (13, 11, False),
    ]
    assert pair.values("up") == {
        "hq": {1: 1, 2: 2, 4: -1, 7: -1, 14: 1, 15: 1},
        "north": {1: 1, 7: -1, 15: 1},
    }
    assert pair.logged("up") == [(2, 11, False), (3, 2, False), (4, 11, True), (14, 11, False)]
    assert pair.sync().status == "nothing_to_do"

    # Who changes a sum knows it: the next one starts from there.
    counter, made = names[0], int(OUTCOME[names[0]][0])
    pair.edit(f"update north.{counter} set v = v + 1 where id = 1")
    pair.edit(f"update hq.{counter} set note = 'counted' where id = 1")
    # What was rejected is known: the next change of the side that decides is no conflict with it.
    pair.edits("up", "north 2 5", "north 4 5", "north 14 insert", "hq 1 9")
    pair.edits("down", "hq 1 4")
    session = pair.sync()
    assert session.upload.conflicts + session.download.conflicts == 1
    assert outcome()[counter] == (str(made + 1), "counted")
    assert pair.values("down") == same({1: 4, 4: 2, 5: 5, 6: -1})
    assert pair.values("up") == {
        "hq": {1: 9, 2: 5, 4: 5, 7: -1, 14: 1, 15: 1},
        "north": {1: 1, 2: 5, 4: 5, 7: -1, 14: 1, 15: 1},
    }

    shown = ["conflicts", "show", "-f", str(pair.folder / "hq"), "--table", counter]
    (conflict,) = json.loads(CliRunner().invoke(main, [*shown, "--json"]).output)["conflicts"]
    resolver = ARTICLES[counter][1]["resolver"]["name"]
    assert (conflict["resolver"], conflict["made_columns"], conflict["note"]) == (resolver, ["v"], None)
    assert conflict["losing_row"] == {"id": 1, "v": 15, "note": "north"}
    assert conflict["winning_row"]["v"] == made
    text = CliRunner().invoke(main, shown).output
    assert "+  v" in text
    assert f"made of both sides' values by `{resolver}`" in text
    rejected = CliRunner().invoke(main, ["conflicts", "show", "-f", str(pair.folder / "hq"), "--table", "up"])
    assert re.search(r"not taken by \S+north, stays at \S+hq", rejected.output)
    if is_full:
        _in_one_direction(pair)
        _written_after_all(pair)


def _in_one_direction(pair: Network) -> None:
    """In sessions of one direction a change waits until its own runs."""
    pair.edits("down", "north 3 3", "north 5 delete")
    for direction, at_north in (("download", {3: 3, 5: -1}), ("upload", {3: 3, 5: -1}), ("download", {5: 5})):
        mergerepl.Project.load(pair.folder / "pair.yml").sync(direction=direction)
        assert pair.values("down")["hq"] == {1: 4, 4: 2, 5: 5, 6: -1}
        assert pair.values("down")["north"] == {1: 4, 4: 2, 6: -1, **at_north}
    assert pair.logged("down")[2:5] == [(3, 11, False), (4, 1, False), (5, 11, True)]
    assert pair.sync().status == "nothing_to_do"
    (compared,) = validated(pair.folder / "hq").values()
    found = {each.article: (each.ok, each.may_differ) for each in compared if each.article in ONE_WAY}
    assert found == {"down": (True, False), "up": (True, True)}


def _written_after_all(pair: Network) -> None:
    records = conflicts_of(pair.folder / "hq", article="down").list()
    ids = tuple(each.conflict_id for each in records if each.key["id"] in ("3", "5"))
    conflicts_of(pair.folder / "hq", ConflictFilter(ids=ids)).resolve("loser")
    pair.sync()
    assert pair.values("down") == same({1: 4, 3: 3, 4: 2, 5: -1, 6: -1})


def test_a_counter_is_exact_after_sessions_of_one_direction(spark: SparkSession, replica_dir: Path) -> None:
    pair = Pair(spark, replica_dir, {"counter": ARTICLES["counter"]})
    project = mergerepl.Project.load(pair.folder / "pair.yml")
    expected = 10
    for number, direction in enumerate(("upload", "download", "upload", "both"), 1):
        pair.sql(f"update hq.counter set v = v + {number}")
        pair.sql(f"update north.counter set v = v + {10 * number}")
        expected += 11 * number
        project.sync(direction=direction)
    assert pair.same_rows("counter") == [(1, expected, "as it was")]
    assert pair.sync().status == "nothing_to_do"
