"""What a batch costs: Spark jobs, files that are read and rewritten; without commands nothing is loaded."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl.delta import engine_choice
from mergerepl.delta.log import head_version
from mergerepl.delta.reads import read_columns
from mergerepl.logreader import scan
from tests.cdc.databases import update
from tests.transactional.publications import THERE, new_table, publication_file, rows, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = 4
JOBS = 16
"""Most Spark jobs of a batch of few commands with one article."""


@pytest.fixture(scope="module")
def feed(spark: SparkSession, worker_folder: Path) -> Path:
    """Return the file of a publication whose tables have a range of keys in each file."""
    folder = worker_folder / "feed-costs"
    for table in (folder / "hq" / "items", folder / "north" / "items"):
        keys = spark.range(0, 100 * FILES, 1, FILES).selectExpr("cast(id as int) id", "cast(id as int) qty")
        keys.write.format("delta").option("delta.enableChangeDataFeed", "true").save(str(table))
    file = publication_file(folder, subscribers=THERE)
    run("apply", "-f", file)
    return file


def next_job(spark: SparkSession) -> int:
    """Return the number of the next Spark job (one is run to learn it)."""
    spark.sparkContext.setJobGroup("costs", "costs")
    spark.range(1).collect()
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    return int(max(spark.sparkContext.statusTracker().getJobIdsForGroup("costs")))


def test_a_batch_takes_few_jobs_and_rewrites_the_files_of_its_keys(
    spark: SparkSession, feed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = feed.parent / "hq" / "items", feed.parent / "north" / "items"
    most, most_bytes = engine_choice.MOST_IN_PROCESS, engine_choice.MOST_BYTES
    for qty in ("7", "8", "9"):
        # The last one in process.
        monkeypatch.setattr(engine_choice, "MOST_IN_PROCESS", -1 if qty == "7" else most)
        monkeypatch.setattr(engine_choice, "MOST_BYTES", most_bytes if qty == "9" else 1000)
        update(hq, "id between 110 and 130", qty=qty)
        run("capture", "-f", feed)
        before = next_job(spark)
        run("sync", "-f", feed)
        # The first batch meets a table that Delta does not know yet.
        jobs = next_job(spark) - before - 1
        assert qty == "7" or jobs <= (0 if qty == "9" else JOBS)
        assert bool(jobs) is (qty != "9")
    assert rows(north) == rows(hq)
    for done in DeltaTable(str(north)).history(3):
        assert done["operation"] == "MERGE"
        metrics = done["operationMetrics"]
        assert str(metrics.get("numTargetFilesRemoved", metrics.get("num_target_files_removed"))) == "1"


def test_files_without_keys_of_a_batch_are_not_read(spark: SparkSession, feed: Path) -> None:
    table = feed.parent / "north" / "items"
    version = head_version(table)

    def files(bounds: dict[str, tuple[int | None, int | None]] | None) -> int:
        return len(read_columns(spark, table, version, ["id"], bounds=bounds).inputFiles())

    assert files(None) == FILES
    assert files({"id": (209, 220)}) == 1
    assert files({"id": (109, 220)}) == 2
    assert files({"id": (1000, 2000)}) == 0


def test_without_commands_no_library_of_the_engine_is_loaded(feed: Path) -> None:
    run("sync", "-f", feed)
    script = (
        "import sys; from mergerepl.cli.main import main\n"
        "for words, heavy in (\n"
        "    (('sync', '-f', 'hq'), {'pyspark', 'pyarrow', 'pandas', 'pydantic'}),\n"
        "    (('capture', '-f', 'hq'), {'pyspark'}),\n"
        "):\n"
        "    sys.argv = ['mergerepl', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as done:\n        assert not done.code, words\n"
        "    assert not (found := heavy & set(sys.modules)), (words, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=feed.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_quiet_while_needs_no_procedure(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After five minutes without a commit the log reader adds a transaction without commands; nothing is called for it."""
    new_table(replica_dir / "hq", "items", {1: ("a", 1)})
    article = {"name": "items", "key": ["id"], "upd_cmd": "CALL nobody_has_it"}
    file = publication_file(replica_dir, [article])
    run("apply", "-f", file)
    monkeypatch.setattr(scan, "IDLE", timedelta(0))
    (done,) = run("sync", "-f", file)["sessions"]
    assert done["status"] == "nothing_to_do"
    assert done["download"]["updates"] == 0
