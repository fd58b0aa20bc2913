"""What is staged of few rows by Arrow is what Spark stages, bit for bit and count for count (decision 0021)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from enumeration.plan import number_generations
from mergerepl.agent.session_plan import session_plan
from mergerepl.agent.sides import captured_sides, open_sides, planned, with_windows
from mergerepl.agent.stage_session import PlannedSession, stage_articles
from mergerepl.engine import confs
from mergerepl.model.progress import NoProgress
from mergerepl.rows.encodings import encoded
from mergerepl.staging.article import StagedArticle
from mergerepl.store.replica import Replica
from mergerepl.store.staged_rows import read_staged
from tests.networks import Pair

pytestmark = pytest.mark.spark

ODD = """cast(id as double) b, cast(id / 7 as decimal(20, 6)) d, timestamp '1582-10-04 00:00:00' t,
    array(named_struct('x', cast('nan' as double))) s, date '9999-12-31' y"""
ARTICLES = {
    "by_row": (f"select id, cast(id as string) a, {ODD} from range(40)", {"key": ["id"]}),
    "by_column": (
        f"select id, cast(id as string) a, {ODD} from range(40)",
        {"key": ["id"], "tracking": "column"},
    ),
    "days": (
        f"select date_add(date '1969-12-20', cast(id as int)) k, cast(id as string) n, {ODD} from range(40)",
        {"key": ["k", "n"], "tracking": "column"},
    ),
    "one_side": (f"select id, cast(id as string) a, {ODD} from range(40)", {"key": ["id"]}),
}


@pytest.fixture(autouse=True)
def _engine(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(confs.ENGINE)


def bits(rows: DataFrame) -> list[bytes]:
    """Return each row as the bytes that its values are."""
    whole = rows.select(F.struct("*").alias("whole"))
    coded = encoded(F.col("whole"), whole.schema["whole"].dataType)
    return sorted(bytes(row.coded) for row in whole.select(coded.alias("coded")).collect())


def staged(
    spark: SparkSession, pair: Pair, engine: str
) -> tuple[dict[int, StagedArticle], dict[int, tuple[str, list[bytes]]]]:
    """Stage a session as one engine does: its counts, and the columns and rows of each article."""
    spark.conf.set(confs.ENGINE, engine)
    hq, north = Replica(pair.folder / "hq"), Replica(pair.folder / "north")
    (subscription,) = hq.relations()
    sides, _ = with_windows(open_sides(hq, north, subscription))
    sides, _ = captured_sides(spark, sides)
    assert all(
        (item.few is not None) == (engine == "auto")
        for side in sides.values()
        for item in side.captured
        if item.changes
    )
    sides = {name: planned(side) for name, side in sides.items()}
    plan = session_plan(sides, upload=True, download=True)
    numbers = number_generations(
        plan, {n: side.info.last_generation for n, side in sides.items()}, one_way=[]
    )
    with tempfile.TemporaryDirectory() as name:
        session = PlannedSession(spark, sides, plan, numbers, Path(name), NoProgress())
        found, refused = stage_articles(session)
        assert refused == {}
        rows = {n: read_staged(spark, Path(name) / str(n)) for n in found}
        kept = {n: (each.schema.simpleString(), bits(each)) for n, each in rows.items()}
    for side in sides.values():
        for item in side.captured:
            item.release()
    return found, kept


def edit(pair: Pair, number: int) -> None:
    """Change rows at one side, at both alike, at both in other columns, and against each other; delete and insert."""
    for name in ("by_row", "by_column") if number == 0 else ("by_column",):
        pair.edit(
            f"update hq.{name} set a = 'h', b = -0.0 where id < 12",
            f"update north.{name} set a = 'h' where id < 3",
        )
        pair.edit(
            f"update north.{name} set a = 'n' where id > 2 and id < 6",
            f"update north.{name} set d = 1 where id > 4 and id < 9",
        )
        pair.edit(
            f"delete from north.{name} where id = 9", f"delete from hq.{name} where id > 13 and id < 16"
        )
        pair.edit(
            f"delete from north.{name} where id > 14 and id < 18",
            f"update north.{name} set a = null where id = 14",
        )
        pair.sql(f"insert into hq.{name} select id + {number}00 + 100, 'h', {ODD} from range(3)")
        pair.sql(f"insert into north.{name} select id + {number}00 + 102, 'n', {ODD} from range(3)")
    pair.sql("update hq.days set b = double('nan'), s = null where n < '2'")
    pair.sql("update north.days set b = -0.0 where n < '15'")
    pair.sql("delete from north.days where n = '3'")
    pair.sql("update hq.one_side set b = -0.0, t = null where id < 5")
    pair.sql("delete from hq.one_side where id = 7")


def test_few_rows_are_staged_as_spark_stages_them(spark: SparkSession, replica_dir: Path) -> None:
    pair = Pair(spark, replica_dir, ARTICLES)
    for number in range(2):
        # The second time with what is known of the rows.
        edit(pair, number)
        assert staged(spark, pair, "auto") == staged(spark, pair, "spark")
        pair.sync()
