"""kill -9 of a real `mergerepl sync`: of Python, of its JVM, of both; the next run makes up for it (I26)."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.test_crash_everywhere import Crashing
from tests.faults.test_crash_ladder import LADDER

KILLED = (("publisher.after_merge", "killgroup"),)
"""What every run of the tests tries; `--long` tries everything."""

EVERYTHING = [
    pytest.param(point, kind, marks=() if (point, kind) in KILLED else pytest.mark.slow)
    for point in LADDER
    for kind in ("kill", "killgroup", "jvm")
]


@pytest.fixture(scope="module")
def crashing(spark: SparkSession, worker_folder: Path) -> Crashing:
    """Two replicas in step, for all kills one after the other."""
    folder = worker_folder / uuid.uuid4().hex[:12]
    folder.mkdir()
    crashing = Crashing(spark, folder)
    crashing.edit()
    crashing.engine.sync("north")
    return crashing


def start_sync(folder: Path, failpoint: str) -> subprocess.Popen[str]:
    """Start the command in a process group of its own."""
    command = [str(Path(sys.executable).with_name("mergerepl")), "sync", "hub", "--subscriber", "north"]
    environment = {**os.environ, "MERGEREPL_FAILPOINT": failpoint, "MERGEREPL_MEMORY": "1g"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def jvm_of(python: int) -> int:
    """Return the process id of a process's JVM."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == "java" and int(fields.split()[1]) == python:
            return int(entry.name)
    raise AssertionError(f"process {python} has no JVM")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("point", "kind"), EVERYTHING)
def test_inv_26_a_killed_sync_is_finished_by_the_next(crashing: Crashing, point: str, kind: str) -> None:
    crashing.edit()
    folder = crashing.engine.folder
    gate = folder / f"{point} {kind}"
    process = start_sync(folder, f"{point}={kind if kind != 'jvm' else f'pause:{gate}'}")
    if kind == "jvm":
        reached = gate.with_name(f"{gate.name}.reached")
        while not reached.exists() and process.poll() is None:
            time.sleep(0.05)
        assert reached.exists(), process.communicate()
        os.kill(jvm_of(process.pid), signal.SIGKILL)
        gate.touch()
    said, _ = process.communicate(timeout=300)
    if kind != "jvm":
        assert process.returncode == -signal.SIGKILL, said
    elif process.returncode != 0:
        # Late enough a session needs its JVM no more; else it says what happened.
        assert "The Spark engine ended" in said, said
        assert "Traceback" not in said
    crashing.engine.sync("north")
    crashing.check()
    assert crashing.engine.sync("north").status == "nothing_to_do"
