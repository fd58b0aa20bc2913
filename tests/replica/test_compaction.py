"""Small files of system tables are joined, and only their number changes (design section 6)."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl.delta.appended import file_count
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.replica import runs
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import compact_when_due
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

pytestmark = pytest.mark.spark

VALUES = {"a": "a", "b": "b", "c": None}


def contents_of(replica: Replica) -> dict[str, list[str]]:
    """Return every row of every appended table, as text."""
    return {
        table.name: sorted(map(repr, DeltaTable(str(table)).to_pyarrow_table().to_pylist()))
        for table in replica.appended_tables()
    }


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["spark", "auto"])
def test_appended_tables_are_joined_when_they_are_due_and_stay_what_they_were(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    monkeypatch.setattr(runs, "FILES_AT_MOST", 1)
    engine = EngineNetwork(
        spark, replica_dir, Setting((Subscriber("north"),), "column"), {f"k{n}": VALUES for n in range(4)}
    )
    replicas = hub, north = Replica(engine.path("hub")), Replica(engine.path("north"))
    for number in range(2):
        engine.write("hub", {"k0": {**VALUES, "a": f"h{number}"}, f"k{number + 2}": None})
        engine.write("north", {"k0": {**VALUES, "a": f"n{number}"}, "k1": {**VALUES, "b": f"n{number}"}})
        engine.sync("north")
    before = [contents_of(replica) for replica in replicas]
    choice = EngineChoice(uses_arrow=writer == "auto", spark_of=lambda: spark)
    compact_when_due(replicas, choice, number=31, previous_number=16)
    assert file_count(hub.contents) > 1, "it is not due yet"
    # Another subscription's session had the number 32.
    compact_when_due(replicas, choice, number=33, previous_number=31)
    counts = {table.name: file_count(table) for table in hub.appended_tables()}
    assert {name for name, count in counts.items() if count > 1} == set()
    assert file_count(north.contents) == file_count(north.tombstone) == 1
    assert [contents_of(replica) for replica in replicas] == before
    engines = {
        table.name: DeltaTable(str(table)).history(1)[0]["engineInfo"].partition(":")[0]
        for table in hub.appended_tables()
        if counts[table.name]
    }
    assert engines["MSmerge_sessions"] == engines["MSmerge_articlehistory"] == "delta-rs"
    assert (engines["MSmerge_contents"] == "delta-rs") == (writer == "auto")
    assert engine.sync("north").status == "nothing_to_do"

    engine.write("hub", {"k0": {**VALUES, "c": "after"}, "k2": {**VALUES, "a": "again"}})
    engine.write("north", {"k0": {**VALUES, "c": "too"}})
    assert engine.sync("north").upload.conflicts == 1
    assert engine.rows("hub") == engine.rows("north")
    assert engine.rows("hub")["k2"][0] == "again"


LARGE_BYTES = 1024 * 1024
"""Here, so that a test need not write what a replica takes for large."""


@pytest.mark.slow
def test_large_files_are_left_alone(spark: SparkSession, replica_dir: Path) -> None:
    """Joining costs what was appended since, not all there is: a large file is never written again."""
    from mergerepl.delta.appended import join_small_files

    table = replica_dir / "grown"
    noise = "substring(sha2(cast(rand(7) as string), 512), 1, 120) as text"
    rows = spark.range(30_000, numPartitions=1).selectExpr("id", noise)
    rows.write.format("delta").save(str(table))
    (large,) = DeltaTable(str(table)).file_uris()
    assert Path(large).stat().st_size > LARGE_BYTES
    for _ in range(3):
        rows.limit(5).write.format("delta").mode("append").save(str(table))
    join_small_files(spark, table, large_bytes=LARGE_BYTES)
    assert large in DeltaTable(str(table)).file_uris()
    assert file_count(table) == 2


def test_a_table_that_cannot_be_joined_is_logged_and_others_are_joined(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EngineNetwork(spark, replica_dir, Setting((Subscriber("north"),), "column"), {"k0": VALUES})
    hub = Replica(engine.path("hub"))
    (Path(hub.tombstone) / "_delta_log" / "00000000000000000000.json").write_text("{")
    compact_when_due(
        (hub,), EngineChoice(uses_arrow=True, spark_of=lambda: spark), number=16, previous_number=15
    )
    assert "MSmerge_tombstone: its small files could not be joined" in caplog.text
