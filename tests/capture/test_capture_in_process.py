"""What is captured in process is what Spark captures, bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from mergerepl.delta import appended
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.feed.window import FeedPosition, feed_window
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.reads import write_files
from mergerepl.delta.transactions import Transaction
from mergerepl.frames import in_process
from mergerepl.merge.capture.capture import CapturedArticle, CaptureJob, open_generations, read_changes
from mergerepl.merge.capture.windows import article_window
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import collected, frame_of
from mergerepl.systables import contents, tombstone
from mergerepl.systables.genhistory import GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from tests.drawn_tables import Drawn, merged, write
from tests.networks import Pair, generation
from tests.staging.few_rows import bits
from triggers.errors import CaptureError
from triggers.tracked_rows import contents_rows, tombstone_rows
from triggers.window import CaptureWindow

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def check(spark: SparkSession, jobs: Sequence[CaptureJob], *, alone: set[int] = frozenset()) -> None:
    """Capture both ways and compare; only Spark captures the jobs of `alone`."""
    compared = 0
    for number, job in enumerate(replace(job, with_images=True) for job in jobs):
        if not job.window.has_changes:
            continue
        if number in alone:
            with pytest.raises(NeedsSparkError), in_process():
                read_changes(None, job)  # type: ignore[arg-type]
            continue
        with in_process():
            here = read_changes(None, job)  # type: ignore[arg-type]
        there = read_changes(spark, job)
        assert facts(here) == facts(there), number
        for one, other in ((here.rows, there.rows), (here.images, there.images)):
            assert (one is None) == (other is None), number
            if one is not None and other is not None:
                assert bits_here(spark, one) == (other.schema.simpleString(), bits(other)), number
        if not compared and here.rows is not None:
            check_run(spark, job, here, there)
            compared += 1
        there.release()


def bits_here(spark: SparkSession, rows: DataFrame) -> tuple[str, list[bytes]]:
    with in_process():
        found, schema = collected(rows), rows.schema
    return schema.simpleString(), bits(frame_of(spark, found, schema))


def check_run(spark: SparkSession, job: CaptureJob, here: CapturedArticle, there: CapturedArticle) -> None:
    """Append what was captured to tables like contents and tombstone, and compare with what Spark would append."""
    assert here.rows is not None
    assert there.rows is not None
    run = Transaction("runs", 5, CommitMark("session", "capture:5", "r"))
    for name, rows_of in ((contents.NAME, contents_rows), (tombstone.NAME, tombstone_rows)):
        by_spark = rows_of(there.rows, job.article, seq=5, marker="session")
        table = job.replica.root / f"{name}-{uuid4()}"
        by_spark.limit(0).write.format("delta").save(str(table))
        with in_process():
            of_run = rows_of(here.rows, job.article, seq=5, marker="session")
            assert appended.append(of_run, table, run) is not None
        found = appended.read(spark, table).select(*by_spark.columns)
        assert bits(found) == bits(by_spark), name


def facts(found: CapturedArticle) -> tuple[object, ...]:
    return found.window, found.generation, found.inserts, found.updates, found.deletes


def drawn_job(spark: SparkSession, folder: Path, seed: int) -> CaptureJob:
    """Return the job of a drawn table that Spark and delta-rs changed."""
    drawn = Drawn(seed)
    table, staged = folder / f"t{seed}", folder / f"staged{seed}"
    write(spark, drawn.table(), drawn.files, table, by_spark=drawn.random.random() < 0.5)
    for version in (1, 2):
        if not set(drawn.actions.values()) - {"metadata"}:
            break
        write_files(spark.createDataFrame(drawn.staged()).coalesce(1), staged)
        merged(spark, drawn, staged, table, small=drawn.random.random() < 0.7, version=version)
    if drawn.random.random() < 0.5:
        by_both = f"`{drawn.columns[0][0]}` is not null"
        DeltaTable(str(table)).update(
            updates={f'"{drawn.columns[-1][0]}"': "null"}, predicate=by_both.replace("`", '"')
        )
    article = replace(drawn.article(table), column_tracking=drawn.random.random() < 0.5, nickname=seed + 1)
    facts = feed_window(table, FeedPosition("", 0))
    changes = facts.changes(lambda mark: False)
    window = CaptureWindow(
        article,
        table,
        0,
        facts.through_version_inclusive,
        tuple(changes),
        facts.segments(changes, article.identity),
        facts.gap(changes),
        state=facts.table,
    )
    return CaptureJob(
        Replica(folder),
        window,
        ReplicaInfo(repid="r", replnickname=7, root=""),
        75.0,
        generation(seed + 4, art_nick=article.nickname, genstatus=GenStatus.OPEN, changecount=0),
    )


def test_odd_values_are_captured_bit_for_bit(spark: SparkSession, replica_dir: Path) -> None:
    for first in range(0, 300, 5):
        check(spark, [drawn_job(spark, replica_dir, seed) for seed in range(first, first + 5)])


ARTICLES = {
    "orders": (
        "select id, cast(id as string) a, cast(id as double) b from range(9)",
        {"key": ["id"], "tracking": "column"},
    ),
    "lines": ("select id x, cast(id as string) y, 0 b from range(9)", {"key": ["x", "y"]}),
    "guids": (
        "select upper(concat('00000000-0000-0000-0000-00000000000', id)) g, 1 b from range(9)",
        {"rowguid": "g"},
    ),
    "odd": ("select id, cast('' as string) a from range(9)", {"key": ["id"]}),
}


def jobs_of(pair: Pair, replica: str) -> list[CaptureJob]:
    """Return the jobs that a session would have at one side."""
    at = Replica(pair.folder / replica)
    info = at.info()
    windows = [article_window(at, article, info) for article in at.articles]
    generations = open_generations(at.genhistory(from_generation_exclusive=0), windows, info)
    return [
        CaptureJob(at, window, info, 50.0, found) for window, found in zip(windows, generations, strict=True)
    ]


def test_what_is_known_of_a_row_goes_on_and_odd_keys_are_left_to_spark(
    spark: SparkSession, replica_dir: Path
) -> None:
    pair = Pair(spark, replica_dir, ARTICLES)
    pair.edit("update hq.orders set b = -0.0 where id = 1", "delete from hq.orders where id = 2")
    pair.edit("update hq.lines set b = 7 where x = 1", "delete from north.lines where x = 2")
    pair.edit("insert into hq.orders values (20, 'new', 1.0)", "delete from north.guids where b = 1")
    pair.sync()
    g = "00000000-0000-0000-0000-00000000000"
    for replica in ("hq", "north"):
        pair.edit(
            f"insert into {replica}.orders values (2, 'again', 1.0)",
            f"delete from {replica}.orders where id = 20",
        )
        pair.edit(
            f"update {replica}.orders set a = 'b' where id < 5",
            f"update {replica}.orders set b = 0.0 where id = 1",
        )
        pair.edit(
            f"insert into {replica}.lines values (2, '2', 1), (3, '4', 1)",
            f"update {replica}.lines set y = '9' where x = 5",
        )
        pair.edit(f"insert into {replica}.guids values ('{g}1', 5), ('{g}a', 6)")
    pair.sql("update hq.odd set a = cast(unhex('ff') as string) where id = 1")
    pair.edit("update north.odd set a = 'x' where id = 1")
    jobs = [*jobs_of(pair, "hq"), *jobs_of(pair, "north")]
    odd = {n for n, job in enumerate(jobs) if job.article.name == "odd" and job.replica.root.name == "hq"}
    check(spark, jobs, alone=odd)
    # Two rows of one key: both ways refuse it.
    pair.edit(
        "insert into hq.orders values (4, 'twice', 1.0)",
        "insert into north.lines values (3, '4', 2), (3, '4', 3)",
    )
    jobs = [*jobs_of(pair, "hq"), *jobs_of(pair, "north")]
    twice = {
        n
        for n, job in enumerate(jobs)
        if (job.article.name, job.replica.root.name) in {("orders", "hq"), ("lines", "north"), ("odd", "hq")}
    }
    check(spark, [job for number, job in enumerate(jobs) if number not in twice])
    for number in twice - odd:
        with pytest.raises(CaptureError, match="several rows"):
            read_changes(spark, jobs[number])
        with pytest.raises(CaptureError, match="several rows"), in_process():
            read_changes(None, jobs[number])  # type: ignore[arg-type]
