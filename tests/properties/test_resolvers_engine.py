"""Every resolver of numbers comes to what the reference says, at a publisher and two subscribers (engine against model).

A history is a row; all resolvers are articles of one publication. Histories with one schedule share their sessions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.model.resolvers import CUSTOM, RESOLVERS, TypeFamily
from tests.calls import conflicts_of
from tests.networks import publish, write_changes
from tests.properties import conflicts_model as model

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STRIDE = 7
LARGE = 15
"""The publisher's table takes smaller values of `v`."""
SCHEMA = pa.schema([pa.field(name, pa.int32()) for name in ("id", "a", "v")])
ARTICLES = {
    f"{name}_{tracking}": (name, tracking)
    for name, each in RESOLVERS.items()
    if name != CUSTOM and each.reads in (None, TypeFamily.NUMBER)
    for tracking in ("row", "column")
    if tracking == "column" or each.by_row
}
ONE_WAY = [article for article, (name, _) in ARTICLES.items() if RESOLVERS[name].rejects is not None]
Row = dict[str, Any]


def chosen(schedule: int) -> dict[int, tuple[Any, ...]]:
    """Return some of the histories with a schedule, by the id of their row."""
    wanted = model.SCHEDULES[schedule]
    found = (each for each in model.histories("numbers") if each[3] is wanted)
    return {number: each for number, each in enumerate(found) if number % STRIDE == 0}


class Tables:
    def __init__(
        self, folder: Path, articles: list[str], histories: Mapping[int, tuple[Any, ...]], **settings: Any
    ) -> None:
        self.folder, self.articles = folder, articles
        starts = [{"id": key, **start} for key, (start, *_) in histories.items() if start is not None]
        stated = []
        for article in articles:
            write_deltalake(str(folder / model.HUB / article), pa.Table.from_pylist(starts, schema=SCHEMA))
            name, tracking = ARTICLES[article]
            resolver = {"name": name} | ({"column": "v"} if RESOLVERS[name].reads else {})
            of_article = {"name": article, "key": ["id"], "tracking": tracking, "resolver": resolver}
            stated.append(of_article | settings)
        subscriptions = [
            {"subscriber": f"./{model.A}", "priority": 75.0},
            {"subscriber": f"./{model.B}", "type": "client"},
        ]
        self.project = mergerepl.Project.load(
            publish(folder, "all", stated, subscriptions, publisher=model.HUB)
        )

    def rows(self, replica: str, article: str) -> dict[int, Row]:
        found = DeltaTable(str(self.folder / replica / article)).to_pyarrow_table().to_pylist()
        return {row.pop("id"): row for row in found}

    def edit(self, changes: Mapping[str, Mapping[int, Row | None]]) -> None:
        """Write by replica what becomes of rows: set columns (an insert where there is none), or delete (None)."""
        for replica, edits in changes.items():
            for article in self.articles if edits else ():
                now = self.rows(replica, article)
                source = [
                    {"id": key, **(now.get(key) or {"a": 0, "v": None}), **(edit or {}), "gone": edit is None}
                    for key, edit in edits.items()
                    if edit is not None or key in now
                ]
                if not source:
                    continue
                schema = SCHEMA.append(pa.field("gone", pa.bool_()))
                differs = "((t.a is distinct from s.a) or (t.v is distinct from s.v))"
                rows = pa.Table.from_pylist(source, schema=schema)
                write_changes(self.folder / replica / article, rows, only=differs)

    def session(self, name: str, direction: str = "both") -> str:
        root = self.folder / name
        return self.project.sync(Path(root).name, direction=direction).sessions[0].status


def of_replicas(histories: Mapping[int, tuple[Any, ...]]) -> dict[str, dict[int, Row | None]]:
    return {
        name: {
            key: changes[number]
            for key, (_, changes, *_) in histories.items()
            if changes[number] is not model.NOTHING
        }
        for number, name in enumerate((model.HUB, model.A, model.B))
    }


def later(histories: Mapping[int, tuple[Any, ...]]) -> dict[str, dict[int, Row | None]]:
    found: dict[str, dict[int, Row | None]] = {model.HUB: {}, model.A: {}}
    for key, (_, _, (who, change), _) in histories.items():
        if change is not model.NOTHING:
            found[who][key] = change
    return found


def differing(
    tables: Tables, histories: Mapping[int, tuple[Any, ...]], **options: Any
) -> Iterator[tuple[Any, ...]]:
    """Yield what the engine came to otherwise than the reference: article, history, the rows of each."""
    for article in tables.articles:
        name, tracking = ARTICLES[article]
        found = {replica: tables.rows(replica, article) for replica in (model.HUB, model.A, model.B)}
        for key, history in histories.items():
            network = model.play(*history, resolver=name, tracking=tracking, **options)
            model.quiesce(network)
            wanted = {replica: model.row_of(network, replica) for replica in found}
            got = {replica: rows.get(key) for replica, rows in found.items()}
            if got != wanted:
                yield article, history, got, wanted


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("schedule", range(len(model.SCHEDULES)))
@pytest.mark.parametrize("articles", [ONE_WAY, [*ARTICLES]], ids=["one way", "all"])
def test_resolvers_come_to_what_the_reference_says(
    spark: SparkSession, replica_dir: Path, schedule: int, articles: list[str]
) -> None:
    histories = chosen(schedule)
    tables = Tables(replica_dir, articles, histories)
    for edits in (of_replicas(histories), later(histories)):
        tables.edit(edits)
        for name, direction in model.SCHEDULES[schedule]:
            tables.session(name, direction)
    for _ in range(2):
        for name in (model.A, model.B):
            tables.session(name)
    wrong = list(differing(tables, histories))
    assert not wrong, (Counter(article for article, *_ in wrong), wrong[:3])
    assert [tables.session(name) for name in (model.A, model.B)] == ["nothing_to_do"] * 2


def is_refused(row: Row) -> bool:
    return row["v"] is not None and row["v"] >= LARGE


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("schedule", [0, 1])
def test_what_the_publisher_refuses_is_undone_as_the_reference_says(
    spark: SparkSession, replica_dir: Path, schedule: int
) -> None:
    histories = chosen(schedule)
    articles = ["priority_row", "priority_column"]
    tables = Tables(replica_dir, articles, histories, compensate_for_errors="upload")
    for article in articles:
        DeltaTable(str(replica_dir / model.HUB / article)).alter.add_constraint(
            {"small": f"v is null or v < {LARGE}"}
        )
    for edits in (of_replicas(histories), later(histories)):
        # What the publisher's own table refuses, nobody writes there.
        at_hub = edits[model.HUB].items()
        kept = {key: row for key, row in at_hub if row is None or not is_refused({"v": None, **row})}
        tables.edit({**edits, model.HUB: kept})
        for name, direction in model.SCHEDULES[schedule]:
            tables.session(name, direction)
    for _ in range(2):
        for name in (model.A, model.B):
            tables.session(name)
    wrong = list(differing(tables, histories, refuses=is_refused))
    assert not wrong, (Counter(article for article, *_ in wrong), wrong[:3])
    assert [tables.session(name) for name in (model.A, model.B)] == ["nothing_to_do"] * 2
    undone = {each.conflict_type for each in conflicts_of(replica_dir / model.HUB).list(limit=1000)}
    assert {5, 9} <= undone
