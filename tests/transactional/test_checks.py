"""`status --check`: exit codes of what waits, and of what is wrong."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.systables.transactional import INACTIVE, SUBSCRIBED
from mergerepl.transactional import monitoring
from mergerepl.transactional.catalog import DistributionStore
from tests.cdc.databases import delete, update
from tests.transactional.publications import THERE, new_table, publication_file, run, warnings

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_exit_codes_of_a_monitor(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    new_table(north, "items", {1: ("a", 1), 2: ("b", 2)})
    file = publication_file(replica_dir, subscribers=THERE)
    run("apply", "-f", file)

    def warned(code: int, level: str, source: object, text: str) -> None:
        (found,) = warnings(file, code=code)
        assert (found["level"], found["source"]) == (level, str(source))
        assert text in found["text"]

    # `verify: false`: nobody has compared the rows.
    warned(1, "warning", north, "not known to be equal: rows were not compared")
    assert [each["differing_rows"] for each in run("validate", "-f", file)] == [0]
    done = CliRunner().invoke(main, ["status", "-f", str(hq), "--check"])
    assert (done.exit_code, done.output) == (0, "All is well.\n")
    update(items, "id > 0", qty="7")
    # It may wait for 30 seconds.
    assert warnings(file) == []
    monkeypatch.setattr(monitoring, "LATENCY", timedelta(0))
    warned(1, "warning", "items", "Commits that are not read: 1, ")
    run("capture", "-f", hq)
    warned(1, "warning", north, "Transactions that wait: 1, ")
    monkeypatch.setattr(monitoring, "EXPIRATION", 0.0)
    warned(1, "warning", north, "Commands are removed after 3 days, 0:00:00")
    delete(north / "items", "id = 1")
    run("sync", "-f", hq, code=1)
    found: list[dict[str, Any]] = warnings(file, code=2)
    assert [each["level"] for each in found] == ["warning", "critical", "warning"]
    assert "Others changed rows of article 'items' since the last batch (versions 1 of" in found[2]["text"]
    assert "Its agent stopped on " in found[1]["text"]
    assert "id = 1. Transaction 0x" in found[1]["text"]
    run("sync", "-f", hq, "--skip-errors", "20598")
    warned(1, "warning", north, "not known to be equal")
    distributor = DistributionStore(hq)
    guid = distributor.subscriptions()[0].subscription_guid
    for status, code, level, text in (
        (SUBSCRIBED, 1, "warning", "Its snapshot is not done."),
        (INACTIVE, 2, "critical", "It is inactive"),
    ):
        distributor.change_subscription(guid, status=status)
        warned(code, level, north, text)
    # Nothing is known: another version of mergerepl wrote the store.
    monkeypatch.setattr("mergerepl.transactional.catalog.SCHEMA_VERSION", 99)
    assert [each["level"] for each in warnings(hq, code=3)] == ["unknown"]


def test_a_replica_of_another_kind_has_no_check(replica_dir: Path) -> None:
    (replica_dir / "hq").mkdir()
    done = CliRunner().invoke(main, ["status", "-f", str(replica_dir / "hq"), "--check"])
    assert done.exit_code == 2
    assert "is not a replica" in done.output
