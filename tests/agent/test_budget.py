"""The cost of a sync in Spark jobs, Delta commits and rows that come to the driver: counts, not times."""

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable as LogTable
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from mergerepl.delta import small_writer
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.merge.session import merge_session
from mergerepl.replica.replica import Replica
from tests.networks import Pair, Site, add_history
from tests.openings import counted_openings
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber
from tests.staging.few_rows import FILTERED, JOINS, TO_ITS_OWN, edit_filtered

JOBS_OF_ONE_ARTICLE = 38
"""Spark jobs of a session with changes and conflicts on both sides: 35 measured, two MERGEs among them."""

JOBS_OF_FIVE_ARTICLES = 70
"""The same of five articles, with a MERGE each: 62 measured."""

OPENINGS = (32, 10)
"""Openings that read the log of a table, in a session of one article with `engine: auto`: 26 tables in a new process, of
which six are read before the replicas are held, too; in a warm one only those."""

COMMITS = {
    "hub/t": 1,
    "north/t": 1,
    "hub/_mergerepl/MSmerge_contents": 2,  # what was captured, what was applied
    "north/_mergerepl/MSmerge_contents": 2,
    "hub/_mergerepl/MSmerge_conflict_net_t": 1,
    "hub/_mergerepl/MSmerge_conflicts_info": 1,
    "hub/_mergerepl/MSmerge_genhistory": 2,  # captured, received and resolved
    "north/_mergerepl/MSmerge_genhistory": 2,
    "hub/_mergerepl/MSmerge_replinfo": 2,
    "north/_mergerepl/MSmerge_replinfo": 2,
    "hub/_mergerepl/sysmergesubscriptions": 1,
    "north/_mergerepl/sysmergesubscriptions": 1,
    **{
        f"{replica}/_mergerepl/{table}": 1
        for replica in ("hub", "north")
        for table in ("MSmerge_sessions", "MSmerge_articlehistory", "MSmerge_history")
    },
}


def versions(folder: Path) -> dict[str, int]:
    logs = folder.rglob("_delta_log")
    return {str(log.parent.relative_to(folder)): len(list(log.glob("*.json"))) for log in logs}


def next_job(spark: SparkSession) -> int:
    """Return the number of the next Spark job (one is run to learn it)."""
    group = "budget"
    spark.sparkContext.setJobGroup(group, group)
    spark.range(1).collect()
    number = max(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    return int(number)


@pytest.mark.parametrize(
    ("writer", "most"),
    [
        pytest.param("spark", JOBS_OF_ONE_ARTICLE, id="spark", marks=pytest.mark.slow),
        pytest.param("auto", 0, id="auto"),
    ],
)
def test_a_sync_stays_within_its_budget_of_jobs_and_commits(
    spark: SparkSession, replica_dir: Path, writer: Literal["spark", "auto"], most: int
) -> None:
    snapshot = {f"k{n:03d}": {"a": "a", "b": "b", "c": None} for n in range(100)}
    engine = EngineNetwork(spark, replica_dir, Setting((Subscriber("north"),), engines=(writer,)), snapshot)
    for number in range(2):  # the second session has metadata of the first to look up
        engine.write("hub", {f"k{n:03d}": {"a": f"h{number}", "b": "b", "c": None} for n in range(40)})
        engine.write("north", {f"k{n:03d}": {"a": f"n{number}", "b": "b", "c": None} for n in range(30, 70)})
        if number == 1:  # and a history, from which it reads what is new
            hub, north = (Replica(engine.path(name)) for name in ("hub", "north"))
            add_history(hub, north, 10_000, pubid=hub.publications[0].pubid)
        before, first = versions(replica_dir), next_job(spark)
        engine.sync("north")
        jobs, after = next_job(spark) - first - 1, versions(replica_dir)
        commits = {table: count - before[table] for table, count in after.items() if count != before[table]}
        assert commits == COMMITS
        assert jobs <= most
    before, first = versions(replica_dir), next_job(spark)
    # Sessions without changes settle what the last one brought: one commit at each side, then none.
    for _ in range(4):
        assert engine.sync("north").status == "nothing_to_do"
        after = versions(replica_dir)
        commits = {table: count - before[table] for table, count in after.items() if count != before[table]}
        assert commits.keys() <= {f"{name}/_mergerepl/sysmergesubscriptions" for name in ("hub", "north")}
        assert {*commits.values()} <= {1}
        before = after
    assert commits == {}
    assert next_job(spark) - first - 1 == 0


def update(table: Path, ids: list[int], text: str) -> None:
    """Commit a user's update of column a."""
    rows = pa.table({"id": ids, "a": [text] * len(ids)})
    merge = LogTable(str(table)).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"a": "s.a"}).execute()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "most"),
    [pytest.param("spark", JOBS_OF_FIVE_ARTICLES, id="spark"), pytest.param("auto", 0, id="auto")],
)
def test_a_sync_of_five_articles_decides_them_in_one_plan(
    spark: SparkSession, replica_dir: Path, engine: Literal["spark", "auto"], most: int
) -> None:
    """Eleven edits, one of them met by a conflicting one: what articles cost is their feeds, their files and MERGEs."""
    articles = [f"t{number}" for number in range(5)]
    site = Site(spark, replica_dir, articles)
    for root in ("hq", "north"):
        for article in articles:
            # As an agent that stays warm has: Delta reads a table's log once in a process.
            spark.read.format("delta").load(str(site.path(root, article))).count()
    for number in range(2):  # the second session has metadata of the first to look up
        for article in articles:
            update(site.path("hq", article), [0, 1], f"hq {number}")
        update(site.path("north", "t0"), [1], f"north {number}")
        before, first = versions(replica_dir), next_job(spark)
        session = site.sync(engine)
        jobs, after = next_job(spark) - first - 1, versions(replica_dir)
        assert (session.download.updates, session.upload.conflicts) == (10, 1)
        assert jobs <= most
        # Two runs at each side, those that were captured and those that were applied, whatever the articles are.
        runs = [f"{replica}/_mergerepl/MSmerge_contents" for replica in ("hq", "north")]
        assert [after[table] - before[table] for table in runs] == [2, 2]


def test_a_sync_reads_the_log_of_each_table_once(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(spark, replica_dir, ["t0"])
    for number in range(2):
        update(site.path("hq", "t0"), [0, 1], f"hq {number}")
        update(site.path("north", "t0"), [1, 2], f"north {number}")
        with monkeypatch.context() as context:
            openings = counted_openings(context)
            assert site.sync("auto").upload.conflicts == 1
        assert openings.total() <= OPENINGS[number], openings
        assert set(openings.values()) <= {1, 2, 3}


def test_a_table_that_only_spark_merges_is_decided_once_in_process(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(spark, replica_dir, ["t0"])
    update(site.path("hq", "t0"), [0, 1], "hq")
    update(site.path("north", "t0"), [1, 2], "north")
    chosen: list[EngineChoice] = []
    choose = merge_session.choose_engine
    monkeypatch.setattr(
        merge_session, "choose_engine", lambda *given: chosen.append(choose(*given)) or chosen[-1]
    )
    large = NeedsSparkError("its files are large")
    monkeypatch.setattr(small_writer, "_file_problem", lambda *_: large)
    session = site.sync("auto")
    assert [each.in_process for each in chosen] == [True]
    assert (session.upload.conflicts, session.upload.updates, session.download.updates) == (1, 1, 2)
    assert session.fallbacks == ("table 't0': its files are large",) * 2
    rows = [
        sorted(LogTable(str(site.path(root, "t0"))).to_pyarrow_table().to_pylist(), key=str)
        for root in ("hq", "north")
    ]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_sync_of_few_changes_of_filtered_articles_runs_no_job(
    spark: SparkSession, replica_dir: Path
) -> None:
    pair = Pair(spark, replica_dir, FILTERED, joins=JOINS, subscriptions=TO_ITS_OWN)
    for number in range(2):  # the second session has metadata of the first to look up
        edit_filtered(pair, number)
        first = next_job(spark)
        session = pair.sync()
        assert next_job(spark) - first - 1 == 0
        assert session.upload.conflicts
    theirs = [row[:3] for row in pair.rows("hq", "customers") if row[1] == "North"]
    assert [row[:3] for row in pair.rows("north", "customers")] == theirs


class RowsInPython:
    """Counts the rows that Spark hands over to Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fetched: list[int] = []
        for name in ("collect", "toArrow", "toPandas"):
            monkeypatch.setattr(DataFrame, name, self._counted(getattr(DataFrame, name)))
        monkeypatch.delattr(DataFrame, "toLocalIterator")

    @property
    def rows(self) -> int:
        return sum(self._fetched)

    def _counted(self, fetch: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            fetched = fetch(*args, **named)
            self._fetched.append(len(fetched))  # by several threads
            return fetched

        return counted


@pytest.mark.slow
def test_inv_45_no_more_rows_come_to_the_driver_when_more_are_changed(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"k{n:04d}" for n in range(3000)]
    row = {"a": "a", "b": "b", "c": None}
    setting = Setting((Subscriber("north"),), engines=("spark",))
    engine = EngineNetwork(spark, replica_dir, setting, dict.fromkeys(keys, row))
    fetched = RowsInPython(monkeypatch)
    counts = []
    for changed in (20, 2000):
        engine.write("hub", {key: {**row, "a": f"hub {changed}"} for key in keys[:changed]})
        engine.write("north", {key: {**row, "a": f"north {changed}"} for key in keys[changed // 2 : changed]})
        before = fetched.rows
        session = engine.sync("north")
        assert (session.upload + session.download).conflicts == changed // 2
        counts.append(fetched.rows - before)
    assert counts[0] > 0
    assert counts == [counts[0]] * 2
