"""What a window of commits is, told from the log: changes that were undone, and layouts, make a gap of the feed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mergerepl.agent.feed_window import FeedWindow, feed_window
from mergerepl.agent.net_rows import _feed_gap_reason
from mergerepl.errors import SchemaMismatchError, StoreError
from mergerepl.publish.table_facts import read_table_facts
from mergerepl.store.deltalog import log_path
from mergerepl.store.replica import Replica
from tests.bad_inputs.network import Network, commit

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """The table of a subscriber that is in step."""
    return Network(tmp_path).root("north") / "orders"


def window(orders: Path) -> FeedWindow:
    replica = Replica(orders.parent)
    return feed_window(replica, replica.articles[0], replica.info())


def metadata(table: Path, change: Change = lambda body: None) -> dict[str, Any]:
    """Return the table's metaData action, with a change."""
    lines = map(json.loads, log_path(table, 0).read_text().splitlines())
    body = next(line["metaData"] for line in lines if "metaData" in line)
    change(body)
    return {"metaData": body}


def alter(table: Path, change: Change = lambda body: None) -> None:
    commit(table, {"commitInfo": {"operation": "ALTER TABLE"}}, metadata(table, change))


def no_null(body: dict[str, Any]) -> None:
    schema = json.loads(body["schemaString"])
    schema["fields"][1]["nullable"] = False
    body["schemaString"] = json.dumps(schema)


def by_region(body: dict[str, Any]) -> None:
    body["partitionColumns"] = ["region"]


def check(body: dict[str, Any]) -> None:
    body["configuration"]["delta.constraints.small"] = "amount < 5"


def test_properties_and_constraints_are_no_gap(orders: Path) -> None:
    alter(orders, check)
    assert (window(orders).gap, window(orders).through_version_inclusive) == (None, 1)


def test_not_null_is_refused_and_a_gap_once_undone(orders: Path) -> None:
    alter(orders, no_null)
    with pytest.raises(SchemaMismatchError, match="'region' became NOT NULL"):
        window(orders)
    alter(orders)
    assert window(orders).gap == "its columns were changed in between"


def test_another_partitioning_is_a_gap_also_once_undone(orders: Path) -> None:
    alter(orders, by_region)
    assert window(orders).gap == "its partitioning was changed"
    alter(orders)
    assert window(orders).gap == "its partitioning was changed"


def test_a_log_that_lost_a_version_is_a_gap_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """Whatever the folder is called: the path is part of the message."""
    orders = Network(tmp_path / "truncated").root("north") / "orders"
    for _ in range(2):
        alter(orders, check)
    DeltaTable(str(orders)).create_checkpoint()
    log_path(orders, 1).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        window(orders)
    log_path(orders, 1).unlink()
    assert window(orders).gap == "versions are gone from its log"
    log_path(orders, 0).unlink()
    (checkpoint,) = (orders / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"checkpoint '.*' of a Delta log cannot be read"):
        read_table_facts(orders)


def test_spark_without_its_own_files_is_no_gap() -> None:
    lost = "java.io.FileNotFoundException: {}: No such file or directory"
    feed = "/lake/orders/_change_data/cdc-00000-1.c000.snappy.parquet"
    assert _feed_gap_reason(RuntimeError(lost.format(feed))) == "change files were removed by VACUUM"
    scratch = "/tmp/mergerepl-1/blockmgr-2/0c/temp_shuffle_3"
    assert _feed_gap_reason(RuntimeError(lost.format(scratch))) is None


def test_files_elsewhere_that_left_the_table_again_are_a_gap(orders: Path) -> None:
    file = {
        "path": "/elsewhere/x",
        "size": 1,
        "modificationTime": 1,
        "partitionValues": {},
        "dataChange": True,
    }
    commit(orders, {"add": file})
    commit(orders, {"remove": {"path": "/elsewhere/x", "dataChange": True}})
    assert window(orders).gap == "files outside the table's folder were part of it for a while"
