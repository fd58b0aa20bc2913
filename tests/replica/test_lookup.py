"""What is known of changed rows is read from the newest runs first, and is the same as if all were read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from mergerepl.delta import appended
from mergerepl.replica import runs
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns, RecentRows
from mergerepl.spark import in_memory
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

pytestmark = pytest.mark.spark

OLD, RECENT, NEVER = "old", "recent", "never"
KEYS = (OLD, *(f"old{n}" for n in range(30)), RECENT, f"{RECENT}2", NEVER)


def values(text: str) -> dict[str, str | None]:
    """Return a row."""
    return {"a": text, "b": None, "c": text}


def known(spark: SparkSession, replica: Replica) -> dict[str, tuple[list[int], list[str]]]:
    """Return key -> the versions of its lineage and the columns of its colv1."""
    there = replica.articles[0]
    rows = ArticleRuns.of(spark, replica, there, replica.info().last_seq).read()
    state = runs.current_rows(rows).selectExpr("row.c0", "map_values(lineage)", "array_sort(map_keys(colv1))")
    return {key: (versions, columns) for key, versions, columns in state.collect()}


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int] | None]:
    """Let few rows be worth a query of their own; return the bounds of what was read first."""
    found: list[tuple[int, int] | None] = []
    newest_runs = appended.newest_runs

    def noted(table: Path, *, rows: int) -> tuple[int, int] | None:
        found.append(newest_runs(table, rows=rows))
        return found[-1]

    monkeypatch.setattr(runs, "_READ_AT_ONCE", 1)
    monkeypatch.setattr(appended, "newest_runs", noted)
    return found


@pytest.fixture(params=["wanted", "all"])
def of_newest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read of the newest runs the wanted rows or, as for many rows, all."""
    if request.param == "wanted":
        yield
        return
    missing: list[int] = []
    monkeypatch.setattr(in_memory, "_ROWS_OF_ONE_TASK", 0)
    monkeypatch.setattr(in_memory, "_FEW_ROWS", 0)
    monkeypatch.setattr(runs, "_OTHERS_TOO", 100)
    whole = ArticleRuns.recent

    def noted(*args: Any, **terms: Any) -> RecentRows | None:
        recent = whole(*args, **terms)
        if recent is None or (older := recent.older) is None:
            return recent
        missing.append(0)

        def noted_older(others: DataFrame, count: int) -> DataFrame:
            missing[-1] = count
            return older(others, count)

        return replace(recent, older=noted_older)

    monkeypatch.setattr(ArticleRuns, "recent", noted)
    yield
    assert missing == [0, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("of_newest")
def test_rows_are_continued_from_the_newest_run_that_has_them(
    spark: SparkSession, replica_dir: Path, bounds: list[tuple[int, int] | None]
) -> None:
    setting = Setting((Subscriber("north"),), "column")
    engine = EngineNetwork(spark, replica_dir, setting, {key: values("0") for key in KEYS})
    hub = Replica(engine.path("hub"))

    def change(text: str, *keys: str) -> None:
        engine.write("hub", {key: {**values("0"), "b": text} for key in keys})
        engine.sync("north")

    change("1", *(key for key in KEYS if key not in (RECENT, f"{RECENT}2", NEVER)))
    assert bounds == [], "nothing is known before the first run"
    change("2", *(f"old{n}" for n in range(10)))
    assert bounds.pop() is None, "there is one run"
    change("2", RECENT, f"{RECENT}2")
    change("3", RECENT)
    assert bounds.pop() is not None, "all that is known of it stands in the last run"
    assert known(spark, hub)[RECENT] == ([1, 3], ["b"])
    # One row is in the newest runs, one in the oldest, one in none, and one comes back from its tombstone.
    engine.write("hub", {f"{RECENT}2": None})
    engine.sync("north")
    bounds.clear()
    change("4", RECENT, OLD, NEVER, f"{RECENT}2")
    assert None not in bounds
    state = known(spark, hub)
    assert state[RECENT] == ([1, 4], ["b"])
    assert state[OLD] == ([1, 3], ["b"])
    assert state[NEVER] == ([1, 2], ["b"])
    assert state[f"{RECENT}2"] == ([1, 4], ["a", "b", "c"])
    assert engine.rows("north") == engine.rows("hub")


def test_at_most_half_of_a_table_is_read_before_the_rest(tmp_path: Path) -> None:
    table = tmp_path / "t"
    # Spark writes a file also where a task has no rows.
    runs_written = ((1, 60), (2, 5), (2, 5), (3, 20), (3, 0))
    for seq, count in runs_written:
        write_deltalake(str(table), pa.table({"seq": pa.array([seq] * count, pa.int64())}), mode="append")
    found = {wanted: appended.newest_runs(table, rows=wanted) for wanted in (1, 20, 21, 30, 31, 90, 91)}
    assert found == {1: (2, 20), 20: (2, 20), 21: (1, 30), 30: (1, 30), 31: None, 90: None, 91: None}
    assert appended.row_count(table) == 90
    write_deltalake(str(table), pa.table({"seq": pa.array([None], pa.int64())}), mode="append")
    assert appended.newest_runs(table, rows=1) is None, "the log has no bounds of one file"
