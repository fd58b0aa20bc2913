"""Schema changes between edits: each reader follows them, or refuses the one table by name (see `tests.schema_changes`)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl import cdc
from tests.networks import publish
from tests.schema_changes import CHANGES, new_table, notes, play
from tests.transactional.publications import publication_file, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOLLOWED_BY_AN_AGENT = ("added_by_deltalake", "added_by_spark")


def make(root: Path) -> None:
    for name in CHANGES:
        new_table(root / name)


def play_all(spark: SparkSession, root: Path) -> None:
    for name, steps in CHANGES.items():
        play(spark, root / name, steps)


def test_columns_that_are_not_published_may_change(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    make(hq)
    publish(
        replica_dir, "pub", [{"name": name, "key": ["id"], "columns": ["id", "note"]} for name in CHANGES]
    )
    play_all(spark, hq)
    mergerepl.Project.load(hq).sync()
    assert {name: notes(spark, north / name) for name in CHANGES} == {
        name: notes(spark, hq / name) for name in CHANGES
    }


def test_a_capture_instance_keeps_its_columns(spark: SparkSession, replica_dir: Path) -> None:
    make(replica_dir)
    for name in CHANGES:
        cdc.Database(replica_dir).enable(name, key="id")
    play_all(spark, replica_dir)
    cdc.Database(replica_dir).capture()
    assert cdc.Database(replica_dir).capture().paused == {}
    for name in CHANGES:
        rows = spark.read.format("delta").load(str(replica_dir / "_cdc" / f"dbo_{name}_CT"))
        last = rows.where("`__$operation` = 4").orderBy("`__$start_lsn`").select("id", "note").collect()
        expected = notes(spark, replica_dir / name)
        found = {row["id"]: row["note"] for row in last if row["note"] != "old"}
        assert found == {key: note for key, note in expected.items() if note != "old"}, name
        held = cdc.Database(replica_dir, spark=spark).instance(f"dbo_{name}").snapshot().rows.collect()
        assert {row["id"]: row["note"] for row in held} == expected, name


def test_an_agent_follows_added_columns(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    make(hq)
    some = {"columns": ["id", "note"]}
    articles = [
        {"name": name, "key": ["id"], **({} if name in FOLLOWED_BY_AN_AGENT else some)} for name in CHANGES
    ]
    file = publication_file(replica_dir, articles)
    run("apply", "-f", file)
    run("sync", "-f", file)
    play_all(spark, hq)
    run("sync", "-f", file)
    assert {name: notes(spark, north / name) for name in CHANGES} == {
        name: notes(spark, hq / name) for name in CHANGES
    }
    for name in FOLLOWED_BY_AN_AGENT:
        assert "extra" in spark.read.format("delta").load(str(north / name)).columns
