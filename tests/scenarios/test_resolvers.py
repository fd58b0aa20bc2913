"""Articles with resolvers of their own in one publication: what two sides come to, and that it is counted once."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.cli.main import main
from tests.networks import Pair

pytestmark = pytest.mark.spark


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


@pytest.mark.parametrize(
    "names", [("counter", "record"), pytest.param(tuple(ARTICLES), marks=pytest.mark.slow)]
)
def test_each_article_is_decided_by_its_resolver_and_once(
    spark: SparkSession, replica_dir: Path, names: tuple[str, ...]
) -> None:
    pair = Pair(spark, replica_dir, {name: ARTICLES[name] for name in names})

    def outcome() -> dict[str, tuple[str, str]]:
        found = {name: pair.same_rows(name) for name in names}
        return {name: (str(row[1]), str(row[2])) for name, (row,) in found.items()}

    for name in names:
        for replica, values in zip(("hq", "north"), EDITS[name], strict=True):
            pair.sql(f"update {replica}.{name} set {values}")
    session = pair.sync()
    assert session.upload.conflicts + session.download.conflicts == len(names)
    assert outcome() == {name: OUTCOME[name] for name in names}
    assert pair.sync().status == "nothing_to_do"

    # A user who changes a sum has seen it: the next sum starts from there.
    counter, made = names[0], int(OUTCOME[names[0]][0])
    pair.sql(f"update north.{counter} set v = v + 1")
    pair.sql(f"update hq.{counter} set note = 'counted'")
    pair.sync()
    assert outcome()[counter] == (str(made + 1), "counted")
    assert pair.conflicts() == len(names)

    shown = ["conflicts", "show", str(pair.folder / "hq"), "--article", counter]
    (conflict,) = json.loads(CliRunner().invoke(main, [*shown, "--json"]).output)["conflicts"]
    resolver = ARTICLES[counter][1]["resolver"]["name"]
    assert (conflict["resolver"], conflict["made_columns"], conflict["note"]) == (resolver, ["v"], None)
    assert conflict["losing_row"] == {"id": 1, "v": 15, "note": "north"}
    assert conflict["winning_row"]["v"] == made
    text = CliRunner().invoke(main, shown).output
    assert "+  v" in text
    assert f"made of both sides' values by `{resolver}`" in text


@pytest.mark.slow
def test_a_counter_is_exact_after_sessions_of_one_direction(spark: SparkSession, replica_dir: Path) -> None:
    pair = Pair(spark, replica_dir, {"counter": ARTICLES["counter"]})
    project = mergerepl.load(pair.folder / "pair.yml")
    expected = 10
    for number, direction in enumerate(("upload", "download", "upload", "both"), 1):
        pair.sql(f"update hq.counter set v = v + {number}")
        pair.sql(f"update north.counter set v = v + {10 * number}")
        expected += 11 * number
        mergerepl.sync(project, direction=direction)
    assert pair.same_rows("counter") == [(1, expected, "as it was")]
    assert pair.sync().status == "nothing_to_do"
