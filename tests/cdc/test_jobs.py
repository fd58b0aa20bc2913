"""Jobs and their agent: rows of cdc_jobs, what the agent does at each look, and the process with its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.agents.jobs import DatabaseJobs
from mergerepl.cdc.sources import join_small_files
from mergerepl.cdc.tables import CdcTables, tables_at
from mergerepl.cli.main import main
from mergerepl.delta.table import open_table
from mergerepl.model.cdc import JobEvent
from mergerepl.spark import session as engine
from tests.cdc.databases import add, enabled, entries, lsns, new_table
from tests.waiting import waited

ORDERS = "dbo_orders"


def command(*words: object, code: int = 0) -> dict:
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.output)


def without_key(root: Path) -> CdcTables:
    """Return a database that was enabled without Spark: no key has to be checked."""
    return enabled(root, {"orders": {1: ("a", 1)}}, index=None)


def test_a_dropped_job_stays_dropped_and_wrong_words_change_nothing(replica_dir: Path) -> None:
    root, before = replica_dir, engine.jvm_pid()
    without_key(root)
    jobs = cdc.Database(root).jobs
    jobs.drop("capture")
    new_table(root, "items", {})
    cdc.Database(root).enable("items")
    assert [job.job_type for job in jobs.list()] == ["cleanup"]
    assert jobs.add("capture", maxtrans=7, start=False).requested == "stopped"
    for call in (
        lambda: jobs.add("capture"),
        lambda: jobs.change("capture", maxtrans=0),
        lambda: jobs.start("merge"),
        lambda: jobs.stop(hold="30 days"),  # type: ignore[call-arg],
    ):
        with pytest.raises(cdc.CdcUsageError):
            call()
    assert jobs.list()[0].maxtrans == 7
    assert engine.jvm_pid() == before


@pytest.mark.spark
def test_the_agent_does_what_is_asked_at_each_look(spark: SparkSession, replica_dir: Path) -> None:
    root, database = replica_dir, without_key(replica_dir)
    events: list[JobEvent] = []
    jobs = DatabaseJobs(tables_at(root), events.append, lambda: False)
    jobs.look()
    # Nothing is new, nothing is old.
    assert events == []
    add(root / "orders", {2: ("b", 2)})
    cdc.Database(root).jobs.change(pollinginterval=0)
    cdc.Database(root).jobs.stop()
    jobs.look()
    assert len(entries(database)) == 1
    cdc.Database(root).jobs.start()
    jobs.look()
    assert [(event.job, event.text, event.is_failed) for event in events] == [
        ("capture", "transactions 1, change rows 1.", False)
    ]
    # Once only, as in the original: it stops by itself.
    cdc.Database(root).jobs.stop()
    jobs.look()
    cdc.Database(root).jobs.change(continuous=False)
    cdc.Database(root).jobs.start()
    add(root / "orders", {3: ("c", 3)})
    jobs.look()
    assert cdc.Database(root).jobs.list()[0].requested == "stopped"
    assert len(events) == 2
    # A failure is reported; the job goes on afterwards.
    cdc.Database(root).jobs.change(pollinginterval=0, continuous=True)
    cdc.Database(root).jobs.start()
    plan = root / "_logreader" / "plan.json"
    plan.write_text("{")
    jobs.look()
    assert events[-1].is_failed
    assert "plan.json' is damaged" in events[-1].text
    plan.unlink()
    # So is a folder whose jobs cannot be read, once: another root of the same agent goes on.
    log = root / "_cdc" / "cdc_jobs" / "_delta_log"
    newest = max(log.glob("*.json"))
    whole = newest.read_text()
    newest.write_text("{")
    unread = DatabaseJobs(tables_at(root), events.append, lambda: False)
    before = len(events)
    unread.look()
    unread.look()
    assert [event.job for event in events[before:]] == ["agent"]
    newest.write_text(whole)
    add(root / "orders", {4: ("d", 4)})
    jobs.capture = jobs.capture.after_run(-1000.0, is_done=False)
    jobs.look()
    assert not events[-1].is_failed
    assert len(entries(database)) == 4
    cdc.Database(root).disable()
    jobs.look()
    # Joined files are in the order of cycles, and the gate keeps its place.
    cdc.Database(root).enable("orders")
    for key in range(10, 13):
        add(root / "orders", {key: ("n", key)})
        cdc.Database(root).capture()
    lsns_before, gate = lsns(tables_at(root)), tables_at(root).gate_cycle
    join_small_files(tables_at(root), most=2)
    after = tables_at(root)
    assert (lsns(after), after.gate_cycle) == (lsns_before, gate)
    assert len(open_table(after.change_table(after.instance(ORDERS))).files()) == 1
    assert [
        row["id"]
        for row in cdc.Database(root).instance(ORDERS).changes(lsns_before[2], lsns_before[2]).collect()
    ] == [11]


def started(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mergerepl", "agent", "run", "-f", str(root), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["job"] == "agent"
    return process


@pytest.mark.slow
def test_an_agent_process_is_seen_refuses_a_second_one_and_is_stopped(replica_dir: Path) -> None:
    without_key(replica_dir)
    process = started(replica_dir)
    try:
        assert command("agent", "status", "-f", replica_dir)["agents"][0]["pid"] == process.pid
        second = command("agent", "run", "-f", replica_dir, code=3)
        assert f"by process {process.pid}" in second["error"]["message"]
        assert command("agent", "stop", "-f", replica_dir)["stopped"][0]["pid"] == process.pid
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
    assert command("agent", "status", "-f", replica_dir)["agents"][0]["pid"] is None
    assert command("agent", "stop", "-f", replica_dir)["stopped"][0]["pid"] is None


@pytest.mark.slow
def test_an_agent_is_started_in_the_background(replica_dir: Path) -> None:
    without_key(replica_dir)
    words = [sys.executable, "-m", "mergerepl", "agent", "run", "--detach", "-f", str(replica_dir), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    pid = json.loads(done.stdout)["started"][0]["pid"]
    try:
        second = command("agent", "run", "--detach", "-f", replica_dir, code=3)
        assert f"has an agent already: process {pid}" in second["error"]["message"]
        assert "its jobs run" in (replica_dir / ".mergerepl.agent.log").read_text()
    finally:
        assert command("agent", "stop", "-f", replica_dir)["stopped"][0]["pid"] == pid
    held = replica_dir / ".mergerepl.agent.lock"
    held.unlink(missing_ok=True)
    held.mkdir()
    failed = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "did not start: Error: Replica" in json.loads(failed.stdout)["error"]["message"]


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_ends_leaves_no_jvm(replica_dir: Path, number: signal.Signals) -> None:
    database = without_key(replica_dir)
    process = started(replica_dir)
    try:
        add(replica_dir / "orders", {2: ("b", 2)})
        waited(lambda: len(entries(database)) == 2)
        jvms = children(process.pid)
        assert jvms
        os.kill(process.pid, number)
        assert process.wait(timeout=60) == (0 if number == signal.SIGTERM else -number)
        waited(lambda: not any(map(is_alive, jvms)), seconds=60)
    finally:
        process.kill()
        process.communicate()
