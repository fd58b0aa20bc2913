"""Two processes append to one local Delta table at once: what Delta alone loses, and that the lock loses nothing.

Without the lock only a count is recorded: how much is lost is luck (docs/protocol.md says what was measured).
"""

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl

ROOT = Path(__file__).parents[2]
APPENDS = int(os.environ.get("MERGEREPL_TEST_APPENDS", "100"))
"""Commits of each process; a Spark session makes a tenth, and its partner goes on until it is done."""
UNTIL_TOLD = 1_000_000
PAUSE_S = 0.02
PAUSE_BESIDE_SPARK_S = 0.2
"""Shorter, and Spark's commits find a newer version time after time: ten took four minutes."""

log = logging.getLogger(__name__)
Record = Callable[[str, object], None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of tokens without rows."""
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"token": pa.array([], pa.string())}))
    return path


class Appending:
    """Processes that append, one a name, beginning at the same instant."""

    def __init__(self, table: Path, names: Sequence[str], count: int, *, locked: bool) -> None:
        self.gate = table.parent / "gate"
        self.written: dict[str, int] = {}
        self._running = {name: self._start(table, name, count, locked=locked) for name in names}

    def _start(self, table: Path, name: str, count: int, *, locked: bool) -> subprocess.Popen[str]:
        pause = PAUSE_BESIDE_SPARK_S if count == UNTIL_TOLD else PAUSE_S
        arguments = [str(table), name, str(count), str(pause), str(self.gate), *(["lock"] if locked else [])]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.appender", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        for process in self._running.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        self.gate.touch()
        return self

    def wait(self) -> None:
        """Wait for all, and keep how many commits of each returned without an error."""
        for name, process in self._running.items():
            said, _ = process.communicate(timeout=600)
            assert process.returncode == 0
            self.written[name] = int(said)

    def stop(self) -> None:
        """Let them end after the commit they are at."""
        self.gate.unlink()
        self.wait()

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
                process.communicate()


def append_with_spark(spark: SparkSession, table: Path, count: int, *, locked: bool) -> None:
    """Append from this process's session, one commit a row."""
    for number in range(count):
        row = spark.createDataFrame(pa.table({"token": [f"spark-{number}"]}))
        with mergerepl.lock(table, wait_s=300.0) if locked else nullcontext():
            row.write.format("delta").mode("append").save(str(table))


def found(table: Path, written: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the acknowledged tokens that are lost, and the tokens that are there more than once."""
    tokens = Counter(DeltaTable(str(table)).to_pyarrow_table()["token"].to_pylist())
    expected = {f"{name}-{number}" for name, count in written.items() for number in range(count)}
    assert set(tokens) <= expected
    return sorted(expected - set(tokens)), sorted(token for token, times in tokens.items() if times > 1)


def note(record: Record, written: Mapping[str, int], lost: list[str]) -> None:
    """Keep the count: in the JUnit report, and with `--log-cli-level=INFO` on the screen."""
    record("lost_commits", f"{len(lost)} of {sum(written.values())}")
    log.info("of commits %s, %d lost %s", dict(written), len(lost), lost[:5])


@pytest.mark.slow
def test_two_deltalake_processes_without_the_lock(table: Path, record_property: Record) -> None:
    with Appending(table, ("one", "two"), APPENDS, locked=False) as processes:
        processes.wait()
    lost, twice = found(table, processes.written)
    note(record_property, processes.written, lost)
    assert twice == []


def test_two_deltalake_processes_that_hold_the_lock_lose_nothing(table: Path) -> None:
    with Appending(table, ("one", "two"), APPENDS, locked=True) as processes:
        processes.wait()
    assert found(table, processes.written) == ([], [])
    assert DeltaTable(str(table)).version() == 2 * APPENDS


@pytest.mark.slow
@pytest.mark.parametrize("locked", [False, True])
def test_what_spark_and_deltalake_lose_and_with_the_lock_it_is_nothing(
    spark: SparkSession, table: Path, record_property: Record, locked: bool
) -> None:
    count = max(1, APPENDS // 10)
    with Appending(table, ("rust",), UNTIL_TOLD, locked=locked) as processes:
        append_with_spark(spark, table, count, locked=locked)
        processes.stop()
    written = processes.written | {"spark": count}
    lost, twice = found(table, written)
    note(record_property, written, lost)
    assert twice == []
    assert lost == [] or not locked
    assert DeltaTable(str(table)).version() == sum(written.values()) or not locked
