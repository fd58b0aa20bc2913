"""Commits that wait for capture longer than half of what Delta keeps them are reported. No Spark."""

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

import mergerepl
from mergerepl.monitoring.doctor import checks
from tests.networks import Network

DAY = 86_400


@pytest.mark.parametrize(
    ("age", "files", "log", "level"),
    [
        (6, "14 days", "30 days", None),
        (8, "14 days", "30 days", "warning"),
        (12, "14 days", "30 days", "critical"),
        # The shorter one counts.
        (8, "30 days", "14 days", "warning"),
        (8, "30 days", "30 days", None),
        (99, "14 days", "30 days", "critical"),
    ],
)
def test_status_and_doctor_warn_from_half_of_the_shorter_retention(
    tmp_path: Path, age: float, files: str, log: str, level: str | None
) -> None:
    network = Network(tmp_path)
    table = network.root("north") / "orders"
    properties = {"delta.deletedFileRetentionDuration": files, "delta.logRetentionDuration": log}
    DeltaTable(str(table)).alter.set_table_properties(
        {name: f"interval {each}" for name, each in properties.items()}
    )
    network.add_rows("north", 9)
    version = DeltaTable(str(table)).version()
    for number in (version - 1, version):
        # A commit that changes no rows does not count.
        then = datetime.now(UTC) - timedelta(days=age if number == version else 300)
        os.utime(table / "_delta_log" / f"{number:020d}.json", (then.timestamp(), then.timestamp()))
    warnings = mergerepl.Replica(network.root("north")).status()[0].warnings
    assert [each.level for each in warnings] == ([] if level is None else [level])
    assert all("are not captured" in each.text for each in warnings)
    found = [each for each in checks([str(network.root("north"))]) if each.name.startswith("capture ")]
    assert [str(each.status) for each in found] == {None: [], "warning": ["warn"], "critical": ["fail"]}[
        level
    ]


def test_every_session_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = Network(tmp_path)
    network.add_rows("north", 9)
    table = network.root("north") / "orders"
    then = datetime.now(UTC).timestamp() - 8 * DAY
    os.utime(table / "_delta_log" / f"{DeltaTable(str(table)).version():020d}.json", (then, then))
    with caplog.at_level(logging.WARNING):
        assert mergerepl.Project.load(network.root("hq")).sync("north", engine="auto").ok
    assert "Article 'orders': commits of " in caplog.text
