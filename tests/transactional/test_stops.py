"""An agent that stops leaves a trace until it works again, and each command that its message names works then."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.systables.transactional import INACTIVE
from mergerepl.transactional.catalog import DistributionStore
from tests.cdc.databases import add, delete, update
from tests.transactional.publications import (
    CliRunner,
    named,
    new_table,
    publication_file,
    rows,
    run,
    runs,
    stops,
    warnings,
    works,
)

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_stop_leaves_a_trace_and_names_commands_that_work(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north with ' quote"
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    new_table(north, "items", {1: ("a", 1), 2: ("b", 2)})
    subscriber = {"subscriber": f"./{north.name}", "sync_type": "none", "verify": False}
    file = publication_file(replica_dir, subscribers=[subscriber])
    run("apply", "-f", file)

    def is_lost() -> None:
        shutil.rmtree(north / "items")

    def is_inactive() -> None:
        distributor = DistributionStore(hq)
        distributor.change_subscription(distributor.subscriptions()[0].subscription_guid, status=INACTIVE)

    def has_twins() -> None:
        add(north / "items", {1: ("a", 1)})

    cases: dict[str, tuple[Callable[[], None], int, str]] = {
        "is no Delta table": (is_lost, 21074, "reinit"),
        "it is inactive": (is_inactive, 21074, "reinit"),
        "more than once": (has_twins, 2627, "reinit"),
    }
    for word, (breaks, number, command) in cases.items():
        breaks()
        update(items, "id = 1", qty="qty + 1")
        for _ in range(2):
            run("sync", "-f", file, code=1)
        before = len(runs(hq, "--failed"))
        message = stops(hq, word, number, shown="It is inactive" if "inactive" in word else "")
        run("sync", "-f", file, code=1)
        assert len(runs(hq, "--failed")) == before, "met again, it is recorded once"
        assert CliRunner().invoke(main, [*named(message, command), "--yes"]).exit_code == 0, message
        works(hq)
        assert rows(north / "items") == rows(items)
    # A folder that is not there is a warning, as long as it is so.
    shutil.move(north, replica_dir / "away")
    update(items, "id = 2", qty="5")
    run("sync", "-f", file, code=3)
    found = warnings(hq, code=1)
    assert [each["text"] for each in found] == ["It is not there: is it mounted?"]
    assert "is it mounted?" in runs(hq, "--failed")[0]["text"]
    shutil.move(replica_dir / "away", north)
    run("sync", "-f", file)
    works(hq)
    assert rows(north / "items") == rows(items)


@pytest.mark.slow
def test_other_stops_leave_a_trace(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq = replica_dir / "hq"
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    file = publication_file(replica_dir)
    run("apply", "-f", file)
    # A changed column.
    spark.sql(f"alter table delta.`{items}` set tblproperties ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"alter table delta.`{items}` rename column note to remark")
    spark.sql(f"update delta.`{items}` set qty = 90 where id = 2")
    run("sync", "-f", file, code=1)
    message = stops(hq, "RENAME COLUMN note TO remark", 21076)
    assert CliRunner().invoke(main, [*named(message, "reinit"), "--yes"]).exit_code == 0
    works(hq)

    # The log reader: a source whose key was dropped, and one that cannot be read at all.
    def fails(*args: Any, **options: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("mergerepl.logreader.scan.look_at", fails)
        run("sync", "-f", file, code=1)
        stops(hq, "Input/output error", None)
    run("sync", "-f", file)
    works(hq)
    spark.sql(f"alter table delta.`{items}` rename column id to key")
    run("sync", "-f", file, code=1)
    assert "was dropped or renamed" in stops(hq, "Column 'id'", 21076)
    said = run("sync", "-f", file, code=1)["error"]["message"]
    assert "take the article and the subscriptions out of the file and run `mergerepl apply`" in said


@pytest.mark.slow
def test_two_syncs_at_once_end_with_one_that_works(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergerepl.logreader.log_reader import LogReader
    from mergerepl.store.lease import lease

    monkeypatch.setattr("mergerepl.sessions.distributed.SILENT_WAIT_S", 0.1)
    monkeypatch.setattr("mergerepl.sessions.distributed.LOCK_WAIT_S", 0.1)
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {1: ("a", 1)})
    file = publication_file(replica_dir)
    run("apply", "-f", file)
    delete(items)
    for root, held in ((hq, LogReader(hq).held("one sync")), (north, lease(north, purpose="one sync"))):
        with held:
            met = CliRunner().invoke(main, ["sync", "-f", str(file)])
        assert met.exit_code == 3
        assert f"wait for a minute: Replica '{root}' is in use: one sync by process" in met.stderr.replace(
            "18752: ", ""
        )
    assert "stopped" not in str(warnings(hq))
    run("sync", "-f", file)
    assert rows(north / "items") == []
