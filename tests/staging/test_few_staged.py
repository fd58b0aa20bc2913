"""What is staged of few rows by Arrow is what Spark stages, bit for bit and count for count (decision 0021)."""

import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from enumeration.plan import number_generations
from mergerepl.merge.capture.small_capture import choose_engine
from mergerepl.merge.session.session_plan import session_plan
from mergerepl.merge.session.sides import captured_sides, open_sides, planned, with_windows
from mergerepl.merge.session.stage_session import PlannedSession, stage_articles
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model.progress import NoProgress
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged
from tests.networks import Pair
from tests.staging.few_rows import ARTICLES, bits, edit

pytestmark = pytest.mark.spark


def staged(
    spark: SparkSession, pair: Pair, engine: str
) -> tuple[dict[int, StagedArticle], dict[int, tuple[str, list[bytes]]]]:
    """Stage a session as one engine does: its counts, and the columns and rows of each article."""
    hq, north = Replica(pair.folder / "hq"), Replica(pair.folder / "north")
    (subscription,) = hq.relations()
    sides, _ = with_windows(open_sides(hq, north, subscription))
    choice = choose_engine(engine, [window for side in sides.values() for window in side.windows])
    sides, _ = captured_sides(spark, sides, choice)
    assert all(
        (item.few is not None) == (engine == "auto")
        for side in sides.values()
        for item in side.captured
        if item.changes
    )
    sides = {name: planned(side) for name, side in sides.items()}
    plan = session_plan(sides, upload=True, download=True)
    numbers = number_generations(
        plan, {n: side.info.last_generation for n, side in sides.items()}, resolving_alone=[]
    )
    with tempfile.TemporaryDirectory() as name:
        session = PlannedSession(spark, sides, plan, numbers, Path(name), NoProgress(), choice)
        found, refused = stage_articles(session)
        assert refused == {}
        rows = {n: read_staged(spark, Path(name) / str(n)) for n in found}
        kept = {n: (each.schema.simpleString(), bits(each)) for n, each in rows.items()}
    for side in sides.values():
        for item in side.captured:
            item.release()
    return found, kept


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_few_rows_are_staged_as_spark_stages_them(
    spark: SparkSession, replica_dir: Path, is_known: bool
) -> None:
    pair = Pair(spark, replica_dir, ARTICLES)
    edit(pair, 0)
    if is_known:
        pair.sync()
        # Some of these rows have metadata, others are new.
        edit(pair, 1)
    assert staged(spark, pair, "auto") == staged(spark, pair, "spark")
