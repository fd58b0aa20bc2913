"""Two processes that append to one local Delta table at once lose nothing if they hold the lock.

Without the lock the number of lost commits is luck: docs/protocol.md has measurements.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl

ROOT = Path(__file__).parents[2]
APPENDS = int(os.environ.get("MERGEREPL_TEST_APPENDS", "20"))
"""Commits of each process; a Spark session makes a tenth, and its partner goes on until it is done."""
UNTIL_TOLD = 1_000_000
PAUSE_S = 0.02
PAUSE_BESIDE_SPARK_S = 0.2
"""Shorter, and Spark's commits find a newer version time after time: ten took four minutes."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of tokens without rows."""
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"token": pa.array([], pa.string())}))
    return path


class Appending:
    """Processes that append, one a name, beginning at the same instant."""

    def __init__(self, table: Path, names: Sequence[str], count: int) -> None:
        self.gate = table.parent / "gate"
        self.written: dict[str, int] = {}
        pause = PAUSE_BESIDE_SPARK_S if count == UNTIL_TOLD else PAUSE_S
        self._running = {
            name: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.faults.appender",
                    *map(str, (table, name, count, pause, self.gate)),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        }

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


def append_with_spark(spark: SparkSession, table: Path, count: int) -> None:
    """Append from this process's session, one commit a row."""
    for number in range(count):
        row = spark.createDataFrame(pa.table({"token": [f"spark-{number}"]}))
        with mergerepl.lock(table, wait_s=300.0):
            row.write.format("delta").mode("append").save(str(table))


def found(table: Path, written: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the acknowledged tokens that are lost, and the tokens that are there more than once."""
    tokens = Counter(DeltaTable(str(table)).to_pyarrow_table()["token"].to_pylist())
    expected = {f"{name}-{number}" for name, count in written.items() for number in range(count)}
    assert set(tokens) <= expected
    return sorted(expected - set(tokens)), sorted(token for token, times in tokens.items() if times > 1)


def test_two_deltalake_processes_that_hold_the_lock_lose_nothing(table: Path) -> None:
    with Appending(table, ("one", "two"), APPENDS) as processes:
        processes.wait()
    assert found(table, processes.written) == ([], [])
    assert DeltaTable(str(table)).version() == 2 * APPENDS


@pytest.mark.slow
def test_spark_and_deltalake_that_hold_the_lock_lose_nothing(spark: SparkSession, table: Path) -> None:
    count = max(1, APPENDS // 10)
    with Appending(table, ("rust",), UNTIL_TOLD) as processes:
        append_with_spark(spark, table, count)
        processes.stop()
    written = processes.written | {"spark": count}
    assert found(table, written) == ([], [])
    assert DeltaTable(str(table)).version() == sum(written.values())
