"""Few changes are captured and staged in process as on Spark, bit for bit and count for count."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import CONFLICT_HASH
from mergerepl.merge.session.choice import choose_engine
from mergerepl.merge.session.session_plan import session_plan
from mergerepl.merge.session.sides import captured_sides, open_sides, with_windows
from mergerepl.merge.session.stage_session import staged_changeset
from mergerepl.model.progress import NoProgress
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged
from mergerepl.systables import contents, partitions, tombstone
from tests.interpreted import interpreted
from tests.networks import Pair, copy_replicas
from tests.staging.few_rows import ARTICLES, FILTERED, JOINS, TO_ITS_OWN, bits, edit, edit_filtered, move_rows

pytestmark = pytest.mark.spark

RUNS = (contents.NAME, tombstone.NAME, *(table.name for table in partitions.MAPPINGS))


def staged(spark: SparkSession, pair: Pair, engine: str, to: Path) -> tuple[object, ...]:
    """Capture and stage a session in a copy as one engine does: counts, staged rows and events, and the runs captured."""
    copy_replicas(pair.folder, to)
    hq, north = Replica(to / "hq"), Replica(to / "north")
    (subscription,) = hq.relations()
    sides, _ = with_windows(open_sides(hq, north, subscription))
    plan = session_plan(sides, upload=True, download=True)
    choice = replace(choose_engine(engine, sides, plan), spark_of=lambda: spark)
    assert choice.in_process == (engine == "auto")
    with choice.rules():
        sides, not_captured = captured_sides(sides, choice)
        changeset, refused = staged_changeset(
            sides, "pair", upload=True, download=True, progress=NoProgress(), choice=choice
        )
        for side in sides.values():
            for item in side.captured:
                item.release()
    assert not_captured == {}
    assert changeset is not None
    assert refused == {}
    works = [work.articles for work in changeset.works.values()]
    events = [work.nickname for work in works[0] if work.events]
    runs = [
        spark.read.format("delta").load(str(replica.folder / name))
        for replica in (hq, north)
        for name in RUNS
    ]
    return (
        works,
        changeset.manifest.conflicts,
        [typed(read_staged(spark, changeset.rows(work.nickname))) for work in works[0]],
        [typed(read_staged(spark, changeset.events(nickname))) for nickname in events],
        [bits(each.drop(contents.MARKER)) for each in runs],
    )


def typed(rows: DataFrame) -> tuple[str, list[bytes]]:
    if CONFLICT_HASH in rows.columns:
        # Each engine has a hash of its own; the staged files keep it, no table does.
        rows = rows.withColumn(CONFLICT_HASH, F.col(CONFLICT_HASH).isNotNull())
    return rows.schema.simpleString(), bits(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["known", "new", "stay", "move"])
def test_few_rows_are_staged_as_spark_stages_them(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO, logger="mergerepl")
    if kind in ("known", "new"):
        pair = Pair(spark, replica_dir / "pair", ARTICLES)
        edit(pair, 0)
        if kind == "known":
            pair.sync()
            # Some of these rows have metadata, others are new.
            edit(pair, 1)
    else:
        pair = Pair(spark, replica_dir / "pair", FILTERED, joins=JOINS, subscriptions=TO_ITS_OWN)
        edit_filtered(pair, 0)
        pair.sync()
        # Some rows are known from before, others are as they were published.
        edit_filtered(pair, 1)
        pair.edit(
            "update north.lines set a = 7 where order_id = 6", "update hq.orders set a = 'x' where id > 20"
        )
        if kind == "move":
            move_rows(pair)
    with interpreted(spark):
        few = staged(spark, pair, "auto", replica_dir / "auto")
        assert [each for each in caplog.messages if each.startswith("Spark: ")] == []
        by_spark = staged(spark, pair, "spark", replica_dir / "spark")
    for one, other in zip(few, by_spark, strict=True):
        assert one == other
