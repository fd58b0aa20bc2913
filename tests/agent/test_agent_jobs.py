"""What an agent runs by itself beside captures: the syncs of merge publications and the distributions of publishers."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.agents.jobs import distribute_all, run_reported, sync_merge
from mergerepl.model.cdc import JobEvent
from mergerepl.store.location import Location
from tests.cdc.databases import add
from tests.networks import Site, edit_by_delta_rs
from tests.transactional.publications import new_table, publication_file, rows, run


def test_an_agent_syncs_what_a_root_publishes(spark: SparkSession, replica_dir: Path) -> None:
    site = Site(spark, replica_dir, ["orders"])
    hq, north = Location.of(replica_dir / "hq"), Location.of(replica_dir / "north")
    (job,) = run("agent", "status", "-f", site.file)["agents"][0]["jobs"]
    assert (job["job_type"], job["requested"], job["continuous"]) == ("sync", "started", True)
    assert sync_merge(hq) == ("", False)
    edit_by_delta_rs(site.path("hq", "orders"), "update orders set b = 7 where id < 3")
    edit_by_delta_rs(site.path("north", "orders"), "update orders set a = 'n' where id in (2, 4)")
    text, is_failed = sync_merge(hq)
    assert text.startswith(f"site with {north}: up ~1, down ~3, conflicts 1")
    assert not is_failed
    assert sync_merge(hq) == ("", False)
    # A subscriber's sessions run where it is published.
    assert sync_merge(north) == ("", False)
    (replica_dir / "north").rename(replica_dir / "away")
    events: list[JobEvent] = []
    assert not run_reported(hq, "sync", lambda: sync_merge(hq), events.append)
    assert [(each.job, each.is_failed) for each in events] == [("sync", True)]
    assert f"'{north}' is out of reach" in events[0].text


@pytest.mark.slow
def test_an_agent_distributes_what_the_log_reader_has_read(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    orders = new_table(hq, "orders", {1: ("a", 1)})
    assert distribute_all(hq) == ("", False)
    file = publication_file(replica_dir, [{"name": "orders", "key": ["id"]}])
    run("apply", "-f", file)
    jobs = run("agent", "status", "-f", hq)["agents"][0]["jobs"]
    assert [(each["job_type"], each["requested"]) for each in jobs] == [
        ("logreader", "started"),
        ("distribute", "started"),
    ]
    assert distribute_all(hq) == ("", False)
    add(orders, {2: ("b", 2)})
    run("capture", "-f", hq)
    text, is_failed = distribute_all(hq)
    assert text.endswith(f"at {north}: transactions 1, commands 1")
    assert not is_failed
    assert rows(north / "orders") == rows(orders)
