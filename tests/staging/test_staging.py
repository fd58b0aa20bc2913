"""Staging works on what was captured while that is being committed: both must come to the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import StoreError
from mergerepl.failpoints import FailpointError
from mergerepl.merge.session.sides import (
    SideState,
    captured_sides,
    committed_sides,
    open_sides,
    planned,
    with_windows,
)
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows import lineage_columns as lineage
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.systables import genhistory
from tests.calls import merge_capture
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber
from tests.staging.memory import frames_in_memory
from triggers.errors import NullKeyError

pytestmark = pytest.mark.spark


def row(value: str) -> dict[str, str | None]:
    return {"a": value, "b": "b", "c": None}


def key(number: int) -> str:
    return f"k{number}"


def test_staged_rows_are_read_with_the_columns_that_were_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        "select named_struct('c0', cast(1.5 as decimal(38,18)), 'c1', timestamp_ntz'2024-01-01 00:00:00.000001', 'c2', "
        "map(1, array(named_struct('x y', 1))), 'c3', X'ff00') as row, cast(null as map<int,bigint>) as lineage"
    )
    rows.write.parquet(str(tmp_path / "staged"))
    read = read_staged(spark, tmp_path / "staged")
    assert read.schema == spark.read.parquet(str(tmp_path / "staged")).schema
    assert read.collect() == rows.collect()


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more", b"x" * 400 + b"PAR1"])
def test_staged_rows_that_are_gone_or_damaged_are_named(
    spark: SparkSession, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "part-0.parquet").write_bytes(content)
    with pytest.raises(
        StoreError, match=r"Staged rows cannot be read in '.*': .*restore the files from a copy"
    ):
        read_staged(spark, tmp_path)


def test_staged_rows_that_another_writer_wrote_again_are_read(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "part-0.parquet")
    assert {row["a"] for row in read_staged(spark, tmp_path).collect()} == {1, 2}


@pytest.fixture
def engine(spark: SparkSession, replica_dir: Path) -> EngineNetwork:
    setting = Setting((Subscriber("north"), Subscriber("south")), "column")
    return EngineNetwork(spark, replica_dir, setting, {key(n): row("start") for n in range(6)})


def read_of(side: SideState) -> dict[str, Any]:
    """Return what a session reads of a side; the number of the run is not known before."""
    history = sorted(side.genhistory, key=lambda generation: generation.generation)
    generations = [item.generation for item in side.captured]
    return {"info": replace(side.info, last_seq=0), "genhistory": history, "generations": generations}


@pytest.mark.slow
def test_what_is_staged_from_is_what_is_committed(engine: EngineNetwork, spark: SparkSession) -> None:
    engine.write("hub", {key(0): row("captured alone")})
    merge_capture(engine.path("hub"))
    engine.write("hub", {key(1): row("hub"), key(2): None})
    engine.write("north", {key(9): row("north")})
    hub, north = (Replica(engine.path(name)) for name in ("hub", "north"))
    (subscription,) = (found for found in hub.subscriptions() if found.replid == north.info().replid)
    sides = open_sides(hub, north, subscription)
    sides, _ = captured_sides(with_windows(sides)[0], EngineChoice(uses_arrow=False, spark_of=lambda: spark))
    expected = {name: read_of(planned(side)) for name, side in sides.items()}
    committed = committed_sides(sides, EngineChoice(uses_arrow=False, spark_of=lambda: spark))
    assert {name: read_of(side) for name, side in committed.items()} == expected
    for side in committed.values():
        saved = side.replica.info()
        assert (saved.last_seq, saved.captured) == (side.info.last_seq, side.info.captured)


@pytest.mark.slow
def test_older_changes_and_what_a_dead_capture_left_are_sent_beside_new_ones(
    engine: EngineNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub has generations that north never got, a run that does not count, and changes not yet captured."""
    engine.write("hub", {key(n): row("first") for n in (0, 1, 2)})
    engine.sync("south")
    engine.write("hub", {key(1): row("second"), key(7): row("new")})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "capture.before_replinfo=raise")
    with pytest.raises(FailpointError):
        engine.sync("north")
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    engine.write("hub", {key(2): None, key(7): row("newer")})
    engine.write("north", {key(0): row("first"), key(3): row("north")})
    for name in ("north", "south", "north"):
        engine.sync(name)
    expected = {key(0): "first", key(1): "second", key(3): "north", key(4): "start", key(5): "start"}
    expected[key(7)] = "newer"
    for name in engine.names:
        assert {k: values[0] for k, values in engine.rows(name).items()} == expected
    assert engine.conflicts() == []


@pytest.mark.slow
def test_a_session_leaves_nothing_in_memory(engine: EngineNetwork, spark: SparkSession) -> None:
    """Neither one that reads older runs and resolves conflicts, nor a dry run, nor one that fails before it is staged."""
    engine.write("hub", {key(0): row("hub"), key(1): None})
    engine.sync("south")
    before = frames_in_memory(spark)
    engine.write("hub", {key(0): row("again"), key(7): row("new")})
    engine.write("north", {key(0): row("north"), key(1): row("updated"), key(8): row("new")})
    for preview in (True, False):
        mergerepl.Project.load(engine.path("hub")).sync("north", dry_run=preview)
    engine.write("hub", {key(0): row("third")})
    spark.sql(f"insert into delta.`{engine.path('north') / 't'}` values (null, '', '', '')")
    with pytest.raises(NullKeyError):
        engine.sync("north")
    assert frames_in_memory(spark) <= before


def test_generations_that_nobody_knows_are_refused(engine: EngineNetwork) -> None:
    engine.write("north", {key(1): row("north")})
    merge_capture(engine.path("north"))
    north = Replica(engine.path("north"))
    north.control.delete(genhistory.TABLE, where="changecount > 0")
    for number in (2, 3):
        engine.write("north", {key(number): row("north")})
        if number == 2:
            merge_capture(engine.path("north"))
    with pytest.raises(StoreError, match="1 changed rows of the subscriber belong to generations"):
        engine.sync("north")
    assert engine.rows("hub")[key(1)][0] == "start"
    assert not any((engine.path("hub") / "_mergerepl" / "staging").iterdir())


def test_a_constant_is_passed_also_to_rows_without_a_rowguid(spark: SparkSession) -> None:
    """A row whose GUID is NULL came in late, was never replicated, and is now deleted."""
    rows = spark.createDataFrame([("x",), (None,)], "rowguid string")
    base = lineage.empty_lineage()
    version = lineage.next_version(base, floor=0)
    found = rows.select(
        lineage.with_version(base, query_parameter(7, "int"), version).alias("lineage")
    ).collect()
    assert [each["lineage"] for each in found] == [{7: 1}, {7: 1}]
