"""One publication from its file to rows at a subscriber, by the command line."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mergerepl.agents.jobs import DatabaseJobs
from mergerepl.cdc.tables import tables_at
from mergerepl.model.cdc import JobEvent
from tests.cdc.databases import add, delete, merge, update
from tests.commands_of_docs import blocks, type_blocks
from tests.transactional.publications import new_table, publication_file, rows, run, state

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "transactional.md"


# By default the golden outputs and the histories beside the model are such threads.
@pytest.mark.slow
def test_from_a_file_to_rows_at_the_subscriber(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    orders = new_table(hq, "orders", {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)})
    file = publication_file(replica_dir, [{"name": "orders", "key": ["id"]}])
    planned = run("apply", "-f", file, "--dry-run")
    assert [step["action"] for step in planned["steps"]] == ["publish", "initialise"]
    assert not north.exists()
    run("apply", "-f", file)
    assert run("apply", "-f", file)["steps"] == []
    assert rows(north / "orders") == rows(orders)
    add(orders, {4: ("d", 4)})
    update(orders, "id = 2", qty="20")
    delete(orders, "id = 1")
    merge(orders, {2: ("B", 20), 3: (None, 3), 5: ("e", 5)})
    spark.sql(f"update delta.`{orders}` set id = 50 where id = 5")
    waiting = run("pending", "-f", hq)
    assert [(each["changes"], each["uncaptured_commits"]) for each in waiting] == [(0, 5)]
    # No capture instance is there: an agent reads the log for the publication all the same.
    job, _ = run("agent", "status", "-f", hq)["agents"][0]["jobs"]
    assert (job["job_type"], job["requested"], job["pollinginterval"]) == ("logreader", "started", 5)
    events: list[JobEvent] = []
    jobs = DatabaseJobs(tables_at(hq), events.append, lambda: False)
    jobs.look()
    jobs.look()
    assert [(each.job, each.text) for each in events] == [("logreader", "transactions 5, change rows 7.")]
    done = run("sync", "-f", file)
    assert rows(north / "orders") == rows(orders)
    (session,) = done["sessions"]
    assert session["status"] == "succeeded"
    assert session["download"] == {"inserts": 2, "updates": 1, "deletes": 2, "conflicts": 0}
    texts = [each["command"] for each in run("transactional", "browse", "-f", hq)]
    assert texts == [
        "{CALL [sp_MSins_dboorders] (4,'d',4)}",
        "{CALL [sp_MSupd_dboorders] (,,20,2,0x04)}",
        "{CALL [sp_MSdel_dboorders] (1)}",
        "{CALL [sp_MSdel_dboorders] (3)}",
        "{CALL [sp_MSupd_dboorders] (,'B',,2,0x02)}",
        "{CALL [sp_MSins_dboorders] (5,'e',5)}",
        "{CALL [sp_MSupd_dboorders] (50,,,5,0x01)}",
    ]
    assert run("sync", "-f", file)["sessions"][0]["status"] == "nothing_to_do"
    assert [each["differing_rows"] for each in run("validate", "-f", file)] == [0]
    assert [each["download"] for each in state(hq)["subscriptions"]] == [0]


@pytest.mark.slow
def test_the_page_does_what_it_says(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    found = blocks("docs/transactional.md")
    assert [each.language for each in found[:5]] == ["python", "yaml", "console", "python", "console"]
    printed = type_blocks(found[:5], typed)
    browsed = next(text for line, text in printed.items() if "browse" in line)
    shown = re.search(r"\| `SCALL` \| `(.*)` \|", PAGE.read_text(encoding="utf-8"))
    assert shown
    assert shown[1] in browsed
    for table in ("north/orders", "south/sales/orders"):
        assert [str(value) for value in rows(Path(table))[0]] == ["7", "N", "12.50", "x"]
    repairs = type_blocks(blocks("docs/transactional.md", "Validation and repair"), typed)
    assert len(repairs) == 5
