"""A subscription's life after its first snapshot: expired, begun again, restored from an older copy."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.systables.transactional import ACTIVE
from mergerepl.transactional.catalog import DistributionStore
from tests.cdc.databases import add, update
from tests.transactional.publications import new_table, publication_file, rows, run

pytestmark = pytest.mark.spark

BOTH = [{"subscriber": "./north"}, {"subscriber": "./south"}]


@pytest.mark.slow
def test_a_subscriber_that_was_away_too_long_begins_again(spark: SparkSession, replica_dir: Path) -> None:
    hq, north, south = (replica_dir / each for each in ("hq", "north", "south"))
    items = new_table(hq, "items", {1: ("a", 1)})
    article = {"name": "items", "key": ["id"]}
    run("apply", "-f", publication_file(replica_dir, [article], subscribers=BOTH))
    retention = {"retention": "0 hours"}
    file = publication_file(replica_dir, [article], subscribers=BOTH, **retention)
    assert [each["action"] for each in run("apply", "-f", file)["steps"]] == ["change"]
    for key in (2, 3):
        add(items, {key: ("b", key)})
        run("capture", "-f", hq)
        run("sync", north.name, "-f", hq)
    for words in (("--dry-run",), ("--dry-run",), ()):
        assert [each["rows"] for each in run("cleanup", "-f", hq, *words)["removed"]] == [1]
    add(items, {4: ("d", 4)})
    refused = run("sync", south.name, "-f", hq, code=1)
    assert refused["error"]["number"] == "21074"
    done = run("sync", "-f", file, code=1)["sessions"]
    assert [(each["subscriber"], each["status"]) for each in done] == [
        (str(north), "succeeded"),
        (str(south), "failed"),
    ]
    assert rows(north / "items") == rows(items)
    assert len(rows(south / "items")) == 1
    # An agent that looked at its subscription before the cleanup is not misled by what is left of the gate.
    distributor = DistributionStore(hq)
    guid = distributor.subscriptions()[1].subscription_guid
    distributor.change_subscription(guid, status=ACTIVE)
    refused = run("sync", south.name, "-f", hq, code=1)
    assert "were removed" in refused["error"]["message"]
    assert len(rows(south / "items")) == 1
    # A table whose log cannot be read is paused, and read on when it was put back: no commit is passed over.
    shutil.move(items, replica_dir / "items")
    paused = run("sync", "-f", file, code=1)
    assert "can not be read" in paused["error"]["message"].replace("cannot", "can not")
    shutil.move(replica_dir / "items", items)
    add(items, {5: ("e", 5)})
    assert run("sync", "-f", file, code=1)["error"]["number"] == "21076"
    assert run("resume", "items", "-f", hq)["changed"]
    assert not run("resume", "items", "-f", hq)["changed"]
    assert run("reinit", south.name, "-f", hq, "--yes")["subscribers"] == [str(south)]
    run("sync", "-f", file)
    assert rows(north / "items") == rows(south / "items") == rows(items)
    assert [each["differing_rows"] for each in run("validate", "-f", file)] == [0, 0]


@pytest.mark.slow
def test_older_copies_are_refused(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    file = publication_file(replica_dir)
    run("apply", "-f", file)
    shutil.copytree(north, replica_dir / "north-old")
    shutil.copytree(hq, replica_dir / "hq-old")
    update(items, "id = 1", qty="10")
    run("sync", "-f", file)
    # The whole subscriber: what comes after its position is sent again.
    shutil.move(north, replica_dir / "north-new")
    shutil.copytree(replica_dir / "north-old", north)
    add(items, {3: ("c", 3)})
    run("sync", "-f", file)
    assert rows(north / "items") == rows(items)
    # Its position alone: the next batch would have the number of one that its table has, and be passed over.
    shutil.rmtree(north / "_transactional")
    shutil.copytree(replica_dir / "north-old" / "_transactional", north / "_transactional")
    update(items, "id = 2", qty="20")
    refused = run("sync", "-f", file, code=1)
    assert refused["error"]["number"] == "21074"
    assert "its position says batch 0" in refused["error"]["message"]
    # Its table alone.
    shutil.rmtree(north)
    shutil.copytree(replica_dir / "north-new", north)
    shutil.rmtree(north / "items")
    shutil.copytree(replica_dir / "north-old" / "items", north / "items")
    refused = run("sync", "-f", file, code=1)
    assert "is older" in refused["error"]["message"]
    run("reinit", "-f", hq, "--all", "--yes")
    assert rows(north / "items") == rows(items)
    # The publisher: its new transactions get numbers that the subscriber has passed.
    shutil.rmtree(hq)
    shutil.copytree(replica_dir / "hq-old", hq)
    add(items, {9: ("z", 9)})
    refused = run("sync", "-f", file, code=1)
    assert refused["error"]["number"] == "21074"
    assert "the last scan cycle of" in refused["error"]["message"]
    run("reinit", "-f", hq, "--all", "--yes")
    assert rows(north / "items") == rows(items)
