"""Change Data Capture and a transactional publication in one folder: one log reader reads each commit once, for both."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mergerepl import cdc, failpoints
from mergerepl.agents.jobs import DatabaseJobs
from mergerepl.cdc.tables import tables_at
from mergerepl.delta.feed.commit_changes import KeptEvents
from mergerepl.delta.feed.net_changes import RowShape
from mergerepl.logreader import read
from mergerepl.logreader.plan import Reading
from tests.cdc.databases import add, check_replay, delete, entries, new_table, update
from tests.transactional.publications import publication_file, rows, run

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}


def dies(monkeypatch: pytest.MonkeyPatch, point: str, *words: object) -> None:
    """Run a command that dies at a failpoint."""
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
    assert f"failpoint {point}" in run(*words, code=1)["error"]["message"]
    monkeypatch.delenv("MERGEREPL_FAILPOINT")


@pytest.mark.slow
def test_the_log_is_read_once_for_both_and_the_jobs_change_places(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    orders, stock = new_table(hq, "orders", ROWS), new_table(hq, "stock", ROWS)
    database = tables_at(hq)
    reads: Counter[tuple[str, int]] = Counter()
    events_of_feed = read._events_of_feed

    def counted(session: SparkSession, table: Path, reading: Reading, shape: RowShape) -> KeptEvents | None:
        versions = range(reading.from_version_inclusive, reading.through_version_inclusive + 1)
        reads.update((table.name, version) for version in versions)
        return events_of_feed(session, table, reading, shape)

    # In process or on Spark.
    monkeypatch.setattr(read, "_events_of_feed", counted)

    def jobs() -> list[str]:
        return [job["job_type"] for job in run("cdc", "jobs", "list", "-f", hq)["jobs"]]

    def lsns_with_rows(instance: str) -> set[str]:
        found: list[dict[str, Any]] = run("cdc", "changes", instance, "-f", hq, "--limit", "1000")["rows"]
        return {row["__$start_lsn"] for row in found}

    run("cdc", "enable", "stock", "-f", hq, "--key", "id")
    run("cdc", "enable", "orders", "-f", hq, "--key", "id")
    assert jobs() == ["capture", "cleanup"]
    add(orders, {4: ("d", 4)})
    update(stock, "id = 1", qty="10")
    # Case 36: the capture job dies as it writes, then the first publication comes.
    dies(monkeypatch, "cdc.after_change_table", "capture", "-f", hq)
    delete(orders, "id = 1")
    assert reads == {("orders", 1): 1, ("stock", 1): 1}
    file = publication_file(replica_dir, [{"name": "orders", "key": ["id"]}])
    run("apply", "-f", file)
    assert jobs() == ["cleanup", "logreader"]
    with pytest.raises(cdc.CdcError) as refused:
        cdc.Database(hq).capture()
    assert refused.value.number == 22911
    elsewhere = [{"subscriber": "./south"}]
    by_qty = [{"name": "orders", "key": ["qty"]}]
    other = publication_file(replica_dir, by_qty, subscribers=elsewhere, publication="other")
    assert "is read by the key (id)" in run("apply", "-f", other, code=1)["error"]["message"]
    # Only what the cycle that died had not written is read again.
    assert reads.pop(("orders", 1)) == 2
    publication_file(replica_dir, [{"name": "orders", "key": ["id"]}])
    update(orders, "id = 2", note="'B'")
    update(stock, "id = 2", qty="20")
    assert run("capture", "-f", hq)[0]["details"]["transactions"] == 2
    add(orders, {5: ("e", 5)})
    add(stock, {5: ("e", 5)})
    events: list[Any] = []
    DatabaseJobs(database, events.append, lambda: False).look()
    assert [event.job for event in events if event.job != "cleanup"] == ["logreader"]
    texts = [each["command"] for each in run("transactional", "browse", "-f", hq)]
    assert texts[-2:] == [
        "{CALL [sp_MSupd_dboorders] (,'B',,2,0x02)}",
        "{CALL [sp_MSins_dboorders] (5,'e',5)}",
    ]
    run("sync", "-f", file)
    assert rows(north / "orders") == rows(orders)
    # Case 37: the last publication goes, by a process that dies: the next scan makes the capture job.
    publication_file(replica_dir, [])
    assert "no article" in run("apply", "-f", file, code=2)["error"]["message"]
    file.write_text(file.read_text(encoding="utf-8").partition("subscriptions:")[0], encoding="utf-8")
    delete(orders, "id = 3")
    dies(monkeypatch, "logreader.after_leave", "apply", "-f", file, "--yes")
    assert jobs() == ["cleanup", "logreader"]
    assert run("capture", "-f", hq)[0]["details"]["transactions"] == 1
    assert jobs() == ["capture", "cleanup"]
    run("apply", "-f", file)
    assert run("apply", "-f", file)["steps"] == []
    update(stock, "id = 3", qty="30")
    assert run("capture", "-f", hq)[0]["details"]["transactions"] == 1
    assert set(reads.values()) == {1}
    assert len(lsns_with_rows("dbo_orders")) == 5
    assert len(lsns_with_rows("dbo_stock")) == 4
    read_commits = [(c["source_object_id"], c["version"]) for e in entries(database) for c in e.commits]
    begun = [e for e in entries(database) if e.kind == "begin"]
    assert len(begun) == 3
    assert len(set(read_commits)) == len(read_commits) - 1
    check_replay(database)
