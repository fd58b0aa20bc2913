"""`sync --dry-run`: the conflicts it shows."""

from pathlib import Path
from typing import Literal

import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.merge.session.preview import SHOWN
from mergerepl.model.publication import Article, Tracking
from mergerepl.model.resolvers import ResolverInfo
from tests.calls import conflicts_of, merge_status
from tests.networks import Hub
from tests.publish.publishing import orders

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
def test_the_first_conflicts_by_key_are_shown(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch, engine: Literal["auto", "spark"]
) -> None:
    hub = Hub(replica_dir)
    ids = list(range(3 * SHOWN))
    hub.table("orders", {"id": ids, "note": ["a" for _ in ids]})
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    for name in ("hq", "north"):
        LogTable(str(hub.root(name) / "orders")).update(updates={"note": f"'{name}'"})
    if engine == "auto":
        # A session in process starts no Java for its conflicts.
        monkeypatch.setattr(EngineChoice, "spark", property(lambda _: pytest.fail("Spark was started")))
    (session,) = mergerepl.Project.load(hub.publisher).sync(dry_run=True, engine=engine).sessions
    assert [conflict.key for conflict in session.conflicts] == [{"id": str(i)} for i in range(SHOWN)]
    assert {(each.winner, each.conflict_type) for each in session.conflicts} == {("publisher", 1)}
    assert session.conflicts[-1].winning_row == {"id": str(SHOWN - 1), "note": "hq"}
    assert session.conflicts[-1].losing_row == {"id": str(SHOWN - 1), "note": "north"}
    assert session.upload.conflicts == len(ids)


@pytest.mark.slow
def test_the_row_that_a_resolver_makes_is_shown(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.table("stock", {"id": [1], "quantity": [10], "note": ["a"]})
    info = ResolverInfo(columns=("quantity",))
    hub.articles(
        Article("stock", "stock", ("id",), tracking=Tracking.COLUMN, resolver="additive", resolver_info=info)
    )
    hub.subscribe("north")
    hub.apply()
    for name, added, note in (("hq", 1, "a"), ("north", 2, "b")):
        LogTable(str(hub.root(name) / "stock")).update(
            updates={"quantity": f"quantity + {added}", "note": f"'{note}'"}
        )
    (planned,) = mergerepl.Project.load(hub.publisher).sync(dry_run=True).sessions[0].conflicts
    assert planned.winning_row == {"id": "1", "quantity": "23", "note": "a"}
    mergerepl.Project.load(hub.publisher).sync()
    [done] = conflicts_of(hub.publisher).list(with_rows=True)
    assert done.winning_row == {"id": 1, "quantity": 23, "note": "a"}
    assert (planned.conflict_columns, planned.made_columns) == (done.conflict_columns, done.made_columns)
    assert planned.made_columns == ("quantity",)


@pytest.mark.slow
def test_a_change_of_a_row_that_everybody_has_is_an_update_wherever_it_comes_by(
    spark: SparkSession, replica_dir: Path
) -> None:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1], "note": ["a"]})
    hub.articles(orders())
    for name in ("north", "south"):
        hub.subscribe(name)
    hub.apply()
    hub.table("orders", {"id": [2], "note": ["b"]}, mode="append")
    mergerepl.Project.load(hub.publisher).sync()
    LogTable(str(hub.root("north") / "orders")).update(predicate="id = 2", updates={"note": "'north'"})
    mergerepl.Project.load(hub.publisher).sync(Path(hub.root("north")).name)
    planned, done = (
        mergerepl.Project.load(hub.publisher).sync(Path(hub.root("south")).name, dry_run=dry_run).sessions[0]
        for dry_run in (True, False)
    )
    assert planned.download == done.download
    assert (done.download.inserts, done.download.updates) == (0, 1)


@pytest.mark.slow
def test_a_table_that_spark_alone_writes_is_counted_and_shown(spark: SparkSession, replica_dir: Path) -> None:
    hub = Hub(replica_dir)
    hub.table("orders", {"id": [1], "note": ["a"]})
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    LogTable(str(hub.root("north") / "orders")).alter.add_constraint({"positive": "id > 0"})
    LogTable(str(hub.root("hq") / "orders")).update(updates={"note": "'hq'"})
    (session,) = mergerepl.Project.load(hub.publisher).sync().sessions
    assert session.download.updates == 1
    assert session.fallbacks == ("table 'orders': CHECK constraints",)
    (subscription,) = merge_status(hub.root("north")).subscriptions
    assert subscription.last_sync_summary.endswith("succeeded; by Spark: table 'orders': CHECK constraints")
    LogTable(str(hub.root("north") / "orders")).update(updates={"note": "'north'"})
    (session,) = mergerepl.Project.load(hub.publisher).sync(engine="spark").sessions
    assert (session.upload.updates, session.fallbacks) == (1, ())
